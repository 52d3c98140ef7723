//! Protects the page that runs models in a browser: a headless Chromium, whose GPU is software, says what the CPU reference says.
//!
//! It needs what `scripts/web` builds, and `scripts/web --test` runs it.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glimt::engine::{
    DeviceChoice, Engine, EngineOptions, GpuOptions, ModelSource, Opened, Products, Sampling, Wait,
};

use crate::server::browser::Browser;

/// Chromium's software GPU, and no request of its own.
const FLAGS: [&str; 8] = [
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan,WebGPU",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--mute-audio",
];
/// How long a software GPU may take to load the model, and to answer.
const PATIENCE: Duration = Duration::from_secs(240);
/// The text that the model goes on with, and the number of tokens.
const PROMPT: &str = "Once upon a time there was a fox";
const TOKENS: usize = 12;

/// `glimt web`, until it is dropped.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/web");
        let mut child = Command::new(env!("CARGO_BIN_EXE_glimt"))
            .args(["web", "--port", "0"])
            .arg(folder)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built with this test");
        let mut said = String::new();
        let stderr = child.stderr.take().expect("it is piped");
        let read = BufReader::new(stderr).read_line(&mut said);
        read.expect("it speaks UTF-8");
        let address = said
            .split_whitespace()
            .find(|word| word.starts_with("http://"));
        let url = address.unwrap_or_else(|| panic!("glimt web says: {said}"));
        Self {
            url: url.to_owned(),
            child,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The tokens and the text with which the CPU reference goes on.
fn expected() -> (Vec<u32>, String) {
    let options = EngineOptions {
        // Bytes for activations may turn a choice that is close.
        cpu_products: Products::Exact,
        gpu: GpuOptions {
            device: DeviceChoice::Cpu,
            ..GpuOptions::default()
        },
        ..EngineOptions::default()
    };
    let opened = Opened::new(&ModelSource::Embedded, &options)
        .wait()
        .unwrap_or_else(|e| panic!("{e}"));
    let engine = Engine::load(opened, &mut |_| {})
        .wait()
        .unwrap_or_else(|e| panic!("{e}"));
    let prompt = engine.tokenizer().encode(PROMPT, true);
    let mut ids = vec![];
    let mut session = engine.session().wait().unwrap_or_else(|e| panic!("{e}"));
    let generated = session
        .generate(
            &prompt.unwrap_or_else(|e| panic!("{e}")),
            &Sampling::GREEDY,
            TOKENS,
            &mut |token| {
                ids.push(token);
                ControlFlow::Continue(())
            },
        )
        .wait();
    generated.unwrap_or_else(|e| panic!("{e}"));
    let text = engine.tokenizer().decode(&ids);
    (ids, text)
}

/// Waits until the page says that it is in a state, and fails with what it shows if that is another in the end.
fn until(browser: &mut Browser, state: &str) {
    let is = "document.documentElement.dataset.state";
    browser.until_for(
        &format!("{is} === {state:?} || {is} === 'failed'"),
        PATIENCE,
    );
    let shown = browser.value("document.body.innerText");
    assert_eq!(browser.value(is), state, "the page shows {shown}");
}

/// Keeps a picture of the page for who wants to look at it.
fn picture(browser: &mut Browser, name: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let shot = browser.call("Page.captureScreenshot", serde_json::json!({}));
    let encoded = shot["data"].as_str().expect("it is there");
    let path = folder.join(name);
    std::fs::write(&path, unpacked(encoded)).expect("it can be written");
    eprintln!("a picture of the page: {}", path.display());
}

/// The bytes of a text in base64.
fn unpacked(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let (mut bytes, mut held, mut bits) = (vec![], 0u32, 0);
    for digit in digits {
        held = held << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}

/// Sets the fields of the settings.
fn set(browser: &mut Browser, fields: &[(&str, &str)]) {
    browser.value("document.getElementById('settings').open = true");
    for (field, value) in fields {
        browser.fill(field, value);
    }
}

mod in_a_browser {
    use super::*;

    #[test]
    #[ignore = "needs what scripts/web builds; scripts/web --test runs it"]
    fn the_page_says_what_the_reference_says() {
        let (ids, text) = expected();
        assert_eq!(ids.len(), TOKENS, "{text}");
        let served = Served::start();
        let mut browser = Browser::start_with(&FLAGS);
        browser.resize(1000, 900, false);
        browser.open(&served.url);
        until(&mut browser, "ready");
        eprintln!("{}\n{}", browser.text("#device"), browser.text("#tier"));
        picture(&mut browser, "web-ready.png");

        // The tokens of the reference, one after the other.
        set(
            &mut browser,
            &[
                ("#temperature", "0"),
                ("#repeat_penalty", "1"),
                ("#limit", &TOKENS.to_string()),
            ],
        );
        browser.value("document.getElementById('raw').checked = true");
        browser.fill("#prompt", PROMPT);
        browser.click("#send");
        until(&mut browser, "answered");
        assert_eq!(browser.value("took.ids"), serde_json::json!(ids));
        assert_eq!(browser.text(".answered"), text.trim());
        assert_eq!(browser.value("took.ended"), "limit");
        eprintln!(
            "{}\n{}",
            browser.text(".answered"),
            browser.text("#figures")
        );

        // A turn of a conversation, which is stopped when some of it is there.
        browser.value("document.getElementById('raw').checked = false");
        set(&mut browser, &[("#limit", "")]);
        browser.fill("#prompt", "Tell me a story.");
        browser.click("#send");
        browser.until_for(
            "[...document.querySelectorAll('.answered')].at(-1).textContent.length > 40",
            PATIENCE,
        );
        browser.click("#stop");
        until(&mut browser, "answered");
        assert_eq!(browser.value("took.ended"), "stopped");
        assert!(browser.text("#figures").contains("stopped"));
        browser.value("document.getElementById('lost').open = true");
        picture(&mut browser, "web-answered.png");
        browser.system_colours("dark");
        picture(&mut browser, "web-dark.png");

        assert_eq!(browser.nameless(), Vec::<String>::new());
        assert_eq!(browser.complaints(&served.url), Vec::<String>::new());
    }

    #[test]
    #[ignore = "needs what scripts/web builds; scripts/web --test runs it"]
    fn a_browser_without_a_gpu_is_told_so() {
        let served = Served::start();
        let mut browser = Browser::start();
        browser.open(&served.url);
        browser.until_for(
            "document.documentElement.dataset.state === 'failed'",
            PATIENCE,
        );
        let trouble = browser.text("#trouble");
        assert!(trouble.starts_with("This browser has "), "{trouble}");
        picture(&mut browser, "web-without-gpu.png");
    }
}
