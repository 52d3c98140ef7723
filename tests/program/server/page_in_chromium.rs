//! Protects who uses the page: a headless Chromium opens it and does what a user does, with the keyboard and the mouse.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::browser::Browser;
use super::{CHAT, Server, edited};

/// The page of a server in a browser.
pub fn opened(server: &Server) -> (Browser, String) {
    let url = format!("http://{}/", server.address);
    let mut browser = Browser::start();
    browser.open(&url);
    (browser, url)
}

/// Waits until the page knows the model.
fn until_met(browser: &mut Browser) {
    browser.until("document.querySelector('#model.ready')");
}

/// Sends a message with the keyboard.
fn say(browser: &mut Browser, text: &str) {
    browser.value("document.getElementById('message').focus()");
    browser.write(text);
    browser.press("Enter", false);
}

const ANSWERING: &str = "document.querySelector('[aria-busy=true]')";

fn until_answered(browser: &mut Browser) {
    browser.until(&format!(
        "document.querySelector('.answer') && !{ANSWERING}"
    ));
}

/// Sets a field of the settings and closes them.
fn set(browser: &mut Browser, fields: &[(&str, &str)]) {
    browser.click("#open-settings");
    for (field, value) in fields {
        browser.fill(field, value);
    }
    browser.click("#settings .main");
}

/// Has the page get this answer, in pieces of a few characters, in place of one of the server.
fn fake(browser: &mut Browser, thoughts: &str, text: &str) {
    let pieces = |name: &str, text: &str| {
        let characters: Vec<char> = text.chars().collect();
        let pieces = characters.chunks(3).map(|piece| {
            let delta = json!({ name: piece.iter().collect::<String>() });
            json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
        });
        pieces.collect::<Vec<_>>()
    };
    let mut events = pieces("reasoning_content", thoughts);
    events.extend(pieces("content", text));
    events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
    let lines = events.iter().map(|event| format!("data: {event}\r\n\r\n"));
    let body = lines.collect::<String>() + ": alive\n\ndata: [DONE]\n\n";
    // Pieces of a few bytes cut lines and characters anywhere.
    browser.value(&format!(
        "(() => {{
            const bytes = new TextEncoder().encode({});
            const fetched = window.fetch;
            window.fetch = (path, options) => {{
                if (!String(path).endsWith('chat/completions')) return fetched(path, options);
                window.fetch = fetched;
                const start = (stream) => {{
                    for (let at = 0; at < bytes.length; at += 7) stream.enqueue(bytes.slice(at, at + 7));
                    stream.close();
                }};
                return Promise.resolve(new Response(new ReadableStream({{ start }})));
            }};
        }})()",
        Value::from(body)
    ));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_are_streamed_and_stopped() {
    let mut server = Server::start(&["--alias", "fable", "--seed", "1"]);
    let (mut browser, url) = opened(&server);
    until_met(&mut browser);
    assert_eq!(browser.text("#model"), "fable");
    // The field has the focus, Shift and Enter begin a line, Enter alone sends.
    browser.until("document.activeElement.id === 'message'");
    browser.write("Tell me a story");
    browser.press("Enter", true);
    browser.write("about a fox.");
    assert_eq!(browser.sent(CHAT).len(), 0);
    browser.press("Enter", false);
    let mut lengths = BTreeSet::new();
    let end = Instant::now() + Duration::from_secs(30);
    while lengths.len() < 5 && Instant::now() < end {
        lengths.insert(browser.text(".answer .text").len());
    }
    assert!(lengths.len() >= 5, "it came at once: {lengths:?}");
    assert_eq!(browser.value(&format!("{ANSWERING} !== null")), true);
    browser.press("Escape", false);
    until_answered(&mut browser);
    server.until_idle();
    assert_eq!(server.logged(CHAT)["status"], 499);
    let stopped = browser.text(".answer .text");
    let figures = browser.text(".figures");
    for part in ["tokens/s", "first after", "stopped"] {
        assert!(figures.contains(part), "{figures}");
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(browser.text(".answer .text"), stopped);

    set(
        &mut browser,
        &[("#max_tokens", "12"), ("#temperature", "0")],
    );
    say(&mut browser, "你好！讲一个故事。");
    until_answered(&mut browser);
    let figures = browser.text(".figures");
    assert!(figures.starts_with("12 tokens · "), "{figures}");
    assert!(figures.ends_with("cut at its limit"), "{figures}");
    let sent = browser.sent(CHAT).pop().expect("it was asked");
    assert_eq!(sent["model"], "fable");
    assert_eq!(
        sent["messages"][0]["content"],
        "Tell me a story\nabout a fox."
    );
    assert_eq!(sent["messages"][1]["role"], "assistant");
    assert_eq!(sent["messages"][2]["content"], "你好！讲一个故事。");
    let used = browser.text("#context");
    assert!(used.ends_with(" of 1024 tokens of context"), "{used}");
    assert_eq!(browser.complaints(&url), Vec::<String>::new());
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_conversation_is_answered_anew_edited_and_kept() {
    let server = Server::start(&["--seed", "1"]);
    let (mut browser, url) = opened(&server);
    until_met(&mut browser);
    set(
        &mut browser,
        &[("#max_tokens", "12"), ("#temperature", "0")],
    );
    for text in ["Tell me a story.", "你好！讲一个故事。"] {
        say(&mut browser, text);
        until_answered(&mut browser);
    }
    let sent = browser.sent(CHAT).pop().expect("it was asked");
    let answer = browser.text(".answer .text");
    browser.click(".anew:not([hidden])");
    until_answered(&mut browser);
    assert_eq!(browser.text(".answer .text"), answer, "it is greedy");
    assert_eq!(browser.sent(CHAT).len(), 3);
    assert_eq!(browser.sent(CHAT).pop(), Some(sent));

    // An edit gives back what was in the field before.
    browser.fill("#message", "a draft");
    browser.click(".edit:not([hidden])");
    let shown = browser.value("document.getElementById('message').value");
    assert_eq!(shown, "你好！讲一个故事。");
    browser.fill("#message", "About a hen.");
    browser.press("Enter", false);
    until_answered(&mut browser);
    let shown = browser.value("document.getElementById('message').value");
    assert_eq!(shown, "a draft");
    browser.fill("#message", "");
    assert_eq!(
        browser.value("document.querySelectorAll('.asked').length"),
        2
    );
    assert_eq!(browser.text(".asked .text"), "About a hen.");
    let sent = browser.sent(CHAT).pop().expect("it was asked");
    assert_eq!(sent["messages"].as_array().map(Vec::len), Some(3));
    assert_eq!(sent["messages"][2]["content"], "About a hen.");

    // The conversation survives a reload, and a new conversation as well.
    let talk = "document.getElementById('talk').innerText";
    let said = browser.value(talk);
    browser.reload();
    assert_eq!(browser.value(talk), said);
    browser.click("#new");
    assert_eq!(
        browser.value("document.querySelectorAll('article').length"),
        0
    );
    browser.click("#back");
    assert_eq!(browser.value(talk), said);
    // A reload stops an answer and keeps what there is of it.
    set(&mut browser, &[("#max_tokens", "")]);
    say(&mut browser, "Go on.");
    browser.until("document.querySelectorAll('.answer .text')[2]?.textContent.length > 20");
    browser.reload();
    server.until_idle();
    assert!(browser.text(".answer .text").len() > 20);
    let figures = browser.text(".figures");
    assert!(figures.ends_with("stopped"), "{figures}");
    assert_eq!(browser.complaints(&url), Vec::<String>::new());
    server.until_idle();
}

#[test]
#[ignore = "long: scripts/test --all"]
fn settings_and_colours_stay() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let model = edited::thinking(folder.path());
    let server = Server::start(&[
        "-m", &model, "-c", "512", "-n", "4", "--top-k", "33", "--seed", "1",
    ]);
    let (mut browser, url) = opened(&server);
    browser.system_colours("light");
    until_met(&mut browser);
    let usual = browser.value("document.getElementById('top_k').placeholder");
    assert_eq!(usual, "33");
    let numbers = [
        ("#temperature", "0.5"),
        ("#top_p", "0.25"),
        ("#top_k", "7"),
        ("#min_p", "0.125"),
        ("#max_tokens", "3"),
        ("#seed", "42"),
        ("#system", "Be kind."),
    ];
    set(&mut browser, &numbers);
    browser.value(
        "(() => { const f = document.getElementById('thinking'); f.value = 'off'; f.dispatchEvent(new Event('input')); })()",
    );
    browser.reload();
    until_met(&mut browser);
    for (field, value) in numbers {
        let kept = browser.value(&format!("document.querySelector({field:?}).value"));
        assert_eq!(kept, value, "{field}");
    }
    say(&mut browser, "Hello");
    until_answered(&mut browser);
    assert_eq!(browser.text(".trouble p"), "");
    let sent = browser.sent(CHAT).pop().expect("it was asked");
    let expected = json!({
        "model": "thinking", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "max_tokens": 3, "seed": 42,
        "chat_template_kwargs": {"enable_thinking": false},
    });
    assert_eq!(sent, expected);
    // A value out of its range is told, and not taken.
    browser.click("#open-settings");
    browser.fill("#temperature", "9");
    assert_eq!(browser.text("#temperature-hint"), "must be from 0 to 2");
    browser.press("Escape", false);
    browser.until("document.getElementById('temperature').value === '0.5'");
    // A reset leaves the prompt, and the model thinks again.
    browser.click("#open-settings");
    browser.click("#reset");
    browser.click("#settings .main");
    say(&mut browser, "Hello again");
    until_answered(&mut browser);
    let sent = browser.sent(CHAT).pop().expect("it was asked");
    assert_eq!(sent["messages"][0]["content"], "Be kind.");
    for name in ["temperature", "seed", "chat_template_kwargs"] {
        assert_eq!(sent[name], Value::Null);
    }
    browser.until("!document.querySelectorAll('.thoughts')[1].hidden");
    assert!(browser.text(".trouble p").contains("no answer"));

    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(ground);
    let is_light = format!("{ground} === {light}");
    let is_dark = format!("!({is_light})");
    browser.system_colours("dark");
    browser.until(&is_dark);
    browser.click("#theme");
    browser.until(&is_light);
    browser.reload();
    browser.until(&is_light);
    // Who goes back to what the system has follows it again.
    browser.click("#theme");
    browser.until(&is_dark);
    browser.system_colours("light");
    browser.until(&is_light);
    assert_eq!(browser.complaints(&url), Vec::<String>::new());
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_key_is_asked_for_and_kept_in_the_tab_alone() {
    let server = Server::start(&["--api-key", "right-key", "-n", "3", "--seed", "1"]);
    let (mut browser, url) = opened(&server);
    let asks = "document.querySelector('#key-dialog[open]')";
    browser.until(asks);
    browser.until("document.activeElement.id === 'key'");
    for wrong in ["wrong-key", "schlüssel"] {
        browser.fill("#key", wrong);
        browser.press("Enter", false);
        browser.until("document.getElementById('key-trouble').textContent.includes('not one of')");
    }
    browser.fill("#key", "right-key");
    browser.press("Enter", false);
    browser.until(&format!("!{asks}"));
    until_met(&mut browser);
    say(&mut browser, "Hello");
    until_answered(&mut browser);
    assert!(browser.text(".figures").starts_with("3 tokens"));
    let kept = "[sessionStorage, localStorage].map((s) => JSON.stringify(s).includes('right-key'))";
    assert_eq!(browser.value(kept), json!([true, false]));
    browser.reload();
    until_met(&mut browser);
    assert_eq!(browser.value(&format!("{asks} === null")), true);
    // Forgotten, it is asked for with the next message, which then is answered.
    browser.click("#open-settings");
    browser.click("#forget");
    browser.click("#settings .main");
    assert_eq!(browser.value(kept), json!([false, false]));
    say(&mut browser, "Hello again");
    browser.until(asks);
    browser.fill("#key", "right-key");
    browser.click("#key-stays");
    browser.click("#key-form .main");
    until_answered(&mut browser);
    assert_eq!(browser.text(".trouble p"), "");
    assert!(browser.text(".figures").starts_with("3 tokens"));
    assert_eq!(browser.value(kept), json!([false, true]));
    // Who gives none is told, and may try again.
    browser.value("localStorage.removeItem('glimt.key')");
    browser.reload();
    browser.until(asks);
    browser.press("Escape", false);
    browser.until(&format!("!{asks}"));
    assert_eq!(
        browser.value("document.querySelector('#model.ready') === null"),
        true
    );
    assert_eq!(browser.complaints(&url), Vec::<String>::new());
}

/// An answer that would do harm if any of it were read as HTML, with all that Markdown has.
const HARMFUL: &str = "# 标题 <b>bold</b>\n\n<img src=x onerror=\"window.harm=1\"> and **你好** with `<script>window.harm=1</script>`\n\n\
    <script>window.harm=1</script>\n\n1. one\n   - two *three*\n2. four\n\n```html\n<img src=x onerror=window.harm=1>\n\
    a_very_long_line_of_code_that_is_wider_than_any_phone_and_has_no_space_in_it_at_all_so_it_must_scroll_in_its_box\n```\n\n\
    | a | b |\n|---|--:|\n| <i>x</i> | aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa |\n\n\
    > quoted\n\n![picture](http://127.0.0.1:1/x.png) [bad](javascript:window.harm=1) [good](https://example.org/a) snake_case_name 2 * 3 * 4\n\n\
    AnEndlessWordAnEndlessWordAnEndlessWordAnEndlessWordAnEndlessWordAnEndlessWordAnEndlessWordAnEndlessWord";

#[test]
#[ignore = "long: scripts/test --all"]
fn texts_stay_texts_and_fit_on_a_phone() {
    let server = Server::start(&[]);
    let (mut browser, url) = opened(&server);
    until_met(&mut browser);
    fake(
        &mut browser,
        "Hm <img src=x onerror=window.harm=1>, 让我想想。",
        HARMFUL,
    );
    let asked = "<img src=x onerror=\"window.harm=1\"> 你好，世界";
    say(&mut browser, asked);
    until_answered(&mut browser);
    assert_eq!(browser.text(".asked .text"), asked);
    assert_eq!(browser.text(".trouble p"), "");
    browser.click(".thoughts summary");
    browser.until("document.querySelector('.thoughts .prose').textContent.includes('<img src=x onerror=window.harm=1>, 让我想想。')");
    let texts = [
        (".answer .text h3", "标题 <b>bold</b>"),
        (".answer .text p code", "<script>window.harm=1</script>"),
        (".answer .text strong", "你好"),
        (".answer .text ol > li ul li em", "three"),
        (".answer .text blockquote p", "quoted"),
        (".answer .text td:first-child", "<i>x</i>"),
        (".answer .text a", "good"),
    ];
    for (selector, text) in texts {
        assert_eq!(browser.text(selector), text, "{selector}");
    }
    let whole = browser.text(".answer .text");
    for part in [
        "<img src=x onerror=\"window.harm=1\"> and",
        "[bad](javascript:window.harm=1)",
        "snake_case_name 2 * 3 * 4",
    ] {
        assert!(whole.contains(part), "{part} is not in {whole}");
    }
    let made = "document.querySelectorAll('#talk :is(img, script, iframe, b, i)').length";
    assert_eq!(browser.value(made), 0);
    assert_eq!(browser.value("typeof window.harm"), "undefined");
    // Whatever reads a text as HTML fails, even where a mistake would do it.
    let mistake =
        "try { document.body.innerHTML = '<b></b>'; 'read' } catch (error) { error.name }";
    assert_eq!(browser.value(mistake), "TypeError");
    let script = "(() => { const s = document.createElement('script'); try { s.text = 'window.harm = 1'; document.head.append(s); } catch {} return typeof window.harm; })()";
    assert_eq!(browser.value(script), "undefined");

    let permissions = json!({"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]});
    browser.call("Browser.grantPermissions", permissions);
    browser.click(".copy-code");
    browser.until("document.querySelector('.copy-code').textContent === 'Copied'");
    let copied = browser.value("navigator.clipboard.readText()");
    let copied = copied.as_str().unwrap_or_default();
    assert!(
        copied.starts_with("<img src=x onerror=window.harm=1>\na_very"),
        "{copied}"
    );
    assert_eq!(browser.nameless(), Vec::<String>::new());

    for (width, height) in [(320, 560), (390, 760), (1280, 800)] {
        browser.resize(width, height, width < 1000);
        let wide = "[document.documentElement, document.getElementById('scroll')].filter((e) => e.scrollWidth > e.clientWidth).length";
        assert_eq!(browser.value(wide), 0, "{width} pixels");
        let seen = "document.getElementById('send').getBoundingClientRect().right <= innerWidth && document.getElementById('send').getBoundingClientRect().bottom <= innerHeight";
        assert_eq!(browser.value(seen), true, "{width} pixels");
        browser.click("#open-settings");
        assert_eq!(browser.value(wide), 0, "{width} pixels with settings");
        assert_eq!(browser.nameless(), Vec::<String>::new());
        browser.press("Escape", false);
        browser.until("!document.querySelector('dialog[open]')");
    }
    // The policy has refused what the test tried to smuggle in, and nothing else has gone wrong.
    let complaints = browser.complaints(&url);
    let others = complaints
        .iter()
        .filter(|c| !c.contains("Trusted") && !c.contains("Content Security Policy"));
    assert_eq!(others.count(), 0, "{complaints:#?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_busy_a_lost_and_a_loading_server_are_told_in_plain_words() {
    let mut server = Server::start(&["--queue", "0", "--parallel", "1", "--seed", "1"]);
    let (mut browser, url) = opened(&server);
    until_met(&mut browser);
    // The only place is taken, until somebody goes away.
    let long = json!({"prompt": "Once", "ignore_eos": true, "max_tokens": 900, "stream": true});
    let mut taken = server.begin(super::COMPLETIONS, &long);
    taken.head();
    taken.chunk();
    set(&mut browser, &[("#max_tokens", "5")]);
    say(&mut browser, "Hello");
    browser.until("document.querySelector('.answer .trouble p').textContent.startsWith('All places of the server are taken. Asking again in ')");
    drop(taken);
    until_answered(&mut browser);
    assert_eq!(browser.text(".trouble p"), "");
    assert!(browser.text(".figures").starts_with("5 tokens"));
    // A prompt that is too long is told in plain words, and can be edited.
    let words = "fox ".repeat(2000);
    say(&mut browser, &words);
    until_answered(&mut browser);
    let trouble = browser.text(".trouble p");
    assert!(
        trouble.starts_with("The conversation has outgrown"),
        "{trouble}"
    );
    browser.click(".edit:not([hidden])");
    browser.fill("#message", "Tell me a story.");
    set(&mut browser, &[("#max_tokens", "")]);
    browser.value("document.getElementById('message').focus()");
    browser.press("Enter", false);
    browser.until("document.querySelectorAll('.answer .text')[1]?.textContent.length > 20");
    // The server dies in the middle. What it has said stays.
    let _ = server.child.kill();
    until_answered(&mut browser);
    let trouble = browser.text(".trouble p");
    assert!(
        trouble.starts_with("The connection to the server was lost."),
        "{trouble}"
    );
    assert!(browser.text(".answer .text").len() > 20);
    browser.click(".again:not([hidden])");
    browser.until("document.querySelectorAll('.answer .text')[1].textContent === ''");
    until_answered(&mut browser);
    assert!(
        browser
            .text(".trouble p")
            .starts_with("The connection to the server was lost.")
    );
    assert_eq!(browser.complaints(&url), Vec::<String>::new());

    let settings = glimt_server::server::Settings {
        address: ([127, 0, 0, 1], 0).into(),
        keys: glimt_server::server::Keys::default(),
        behind_proxy: false,
        guard_all: false,
        page: true,
        hosts: Default::default(),
        cors: vec![],
        queue: 1,
        timeout: None,
        max_body: 1 << 20,
        drain: Duration::ZERO,
        slots: None,
    };
    let loading = glimt_server::server::Server::bind(settings).expect("there are free ports");
    browser.open(&format!("http://{}/", loading.address()));
    browser.until(
        "document.getElementById('model').textContent === 'the server is loading its model'",
    );
    say(&mut browser, "Hello");
    browser.until("document.querySelector('.answer .trouble p').textContent.startsWith('The server is loading its model. Asking again in ')");
    browser.click("#stop");
    until_answered(&mut browser);
    assert_eq!(browser.text(".figures"), "stopped");
}
