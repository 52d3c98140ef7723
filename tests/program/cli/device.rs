//! Protects the choice of the device: the default is the fast one and says so where it is no GPU, everything else is met or refused.

use std::process::Output;

use super::{error_line, glimt, json, run, stderr, stdout};

/// Runs the program as on a machine without any driver.
#[cfg(target_os = "linux")]
pub(super) fn without_drivers(args: &[&str]) -> Output {
    let mut command = glimt(args);
    command
        .env("VK_DRIVER_FILES", "/dev/null")
        .env("VK_ICD_FILENAMES", "/dev/null");
    command
        .output()
        .expect("the binary was built with this test")
}

#[cfg(target_os = "linux")]
#[test]
fn only_the_default_device_is_replaced_and_not_silently() {
    let output = without_drivers(&["generate", "-n", "4", "Tell me a story."]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stderr(&output);
    for expected in ["device: CPU with ", " (no GPU found: see glimt devices)"] {
        assert!(told.contains(expected), "{told}");
    }
    // The command that it names tells what to do, and so does a run that tells all.
    for (args, expected) in [
        (&["devices"][..], "no GPU adapter found: install the driver"),
        (&["generate", "-v", "-n", "1", "A"], "install its driver"),
    ] {
        let output = without_drivers(args);
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    for choice in [
        ["--device", "0"],
        ["--device", "nvidia"],
        ["--tier", "plain"],
        ["--precompose", "auto"],
    ] {
        let output = without_drivers(&[&["generate", "x"], &choice[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{choice:?}");
        assert_eq!(stdout(&output), "");
        let error = error_line(stderr(&output));
        assert!(error.contains("--device cpu"), "{error}");
    }
    let listing = without_drivers(&["devices", "--json"]);
    assert_eq!(json(stdout(&listing))["adapters"], serde_json::json!([]));
}

/// Needs the software driver, which the tests' machine has; where there is a GPU, too, nothing is replaced.
#[test]
fn software_is_taken_only_where_it_is_asked_for() {
    let listing = run(&["devices", "--json"]);
    let listing = json(stdout(&listing));
    let adapters = listing["adapters"].as_array().expect("a list");
    let kinds: Vec<_> = adapters.iter().filter_map(|a| a["kind"].as_str()).collect();
    if kinds.is_empty() || kinds.iter().any(|kind| *kind != "software") {
        eprintln!("skipped: the adapters here are {kinds:?}");
        return;
    }
    let prompt = [
        "generate",
        "-v",
        "-n",
        "2",
        "--temp",
        "0",
        "Tell me a story.",
    ];
    let output = run(&prompt);
    assert!(output.status.success(), "{}", stderr(&output));
    for expected in ["only software", "device: CPU with", "--device 0"] {
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    // Asked for by its number, or by flags that only kernels of a GPU know.
    for asked in [["--device", "0"], ["--tier", "plain"]] {
        let output = run(&[&prompt, &asked[..]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let device = "device: CPU with";
        assert!(!stderr(&output).contains(device), "{asked:?}");
    }
    for cpu in ["cpu", "CPU"] {
        let output = run(&[&prompt, &["--device", cpu][..]].concat());
        assert!(
            !stderr(&output).contains("only software"),
            "it was asked for"
        );
    }
}

/// Needs an adapter; a software one will do.
#[test]
#[ignore = "long: scripts/test --all"]
fn checked_shaders_give_the_same_in_the_commands_that_run_a_model() {
    let listing = run(&["devices", "--json"]);
    if json(stdout(&listing))["adapters"] == serde_json::json!([]) {
        eprintln!("skipped: there is no adapter");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let body = serde_json::json!({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0});
    let line = serde_json::json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body});
    std::fs::write(file("in.jsonl"), format!("{line}\n")).expect("it is writable");
    let text = |checked: &[&str]| {
        let on = [&["--device", "0"], checked].concat();
        let output = file(&format!("out{}.jsonl", checked.len()));
        let generate = [
            "generate",
            "--raw",
            "-n",
            "4",
            "--temp",
            "0",
            "Once upon a time",
        ];
        let generated = run(&[&generate[..], &on].concat());
        let batch = run(&[&["batch", &file("in.jsonl"), &output], &on[..]].concat());
        let bench = ["bench", "-p", "16", "-n", "2", "-r", "1"];
        let bench = run(&[&bench[..], &on].concat());
        for output in [&generated, &batch, &bench] {
            assert!(output.status.success(), "{}", stderr(output));
        }
        let answers = std::fs::read_to_string(output).expect("it was written");
        let answer = json(&answers)["response"]["body"]["choices"][0]["text"].clone();
        (stdout(&generated).to_owned(), answer)
    };
    assert_eq!(text(&["--checked"]), text(&[]));
}
