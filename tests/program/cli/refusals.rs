//! Protects refusals: what is refused, with which words and exit code.

use glimt::gguf::GgufWriter;

use super::{EMBEDDED, error_line, failure, json, text, write};

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &[][..],
        &["generate", "--no-such-flag", "x"],
        &["generate", "--temp", "-1", "x"],
        &["generate", "--temp", "warm", "x"],
        &["generate", "--top-p", "1.5", "x"],
        &["generate", "--repeat-penalty", "0", "x"],
        &["generate", "--think", "maybe", "x"],
        &["generate", "--raw", "--system", "y", "x"],
        &["generate", "--raw", "--think", "on", "x"],
        &["generate", "--tier", "warp", "x"],
        &["generate", "--device", "", "x"],
        &["generate", "-m", "", "x"],
        &["generate", "x", "-f", "y"],
        &["logits", "--top", "0", "x"],
        &["logits", "--tokens", "1,two"],
        &["logits", "--tokens", "1", "x"],
        &["no-such-command"],
    ] {
        failure(args, 2);
    }
    // A negative number is a wrong value, not an unknown flag.
    for (flag, value) in [("--temp", "-1"), ("--top-k", "-3"), ("-n", "-2")] {
        let message = failure(&["generate", flag, value, "x"], 2);
        assert!(
            message.contains(&format!("invalid value '{value}'")),
            "{message}"
        );
    }
}

#[test]
fn an_empty_prompt_is_refused() {
    assert!(error_line(&failure(&["generate", ""], 2)).contains("prompt is empty"));
    assert!(error_line(&failure(&["logits", ""], 2)).contains("text is empty"));
}

#[test]
fn files_that_are_no_models_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let missing = directory.path().join("missing.gguf");
    let missing = missing.to_str().expect("temporary paths are UTF-8 here");
    let letter = write(
        directory.path(),
        "letter.gguf",
        b"Dear reader, this is no model.\n",
    );
    let half = write(
        directory.path(),
        "half.gguf",
        &EMBEDDED[..EMBEDDED.len() / 2],
    );
    let head = write(directory.path(), "head.gguf", &EMBEDDED[..1000]);
    let nothing = write(directory.path(), "nothing.gguf", b"");
    let mut other = GgufWriter::new(Vec::new());
    other
        .metadata("general.architecture", "mamba")
        .expect("the first key");
    let other = other
        .begin_data()
        .and_then(|data| data.finish())
        .expect("memory takes it");
    let other = write(directory.path(), "other.gguf", &other);
    let folder = directory
        .path()
        .to_str()
        .expect("temporary paths are UTF-8 here");
    for (file, expected) in [
        (missing, "missing.gguf"),
        (&letter, "not a GGUF file"),
        (&half, "truncated"),
        (&head, "truncated"),
        (&nothing, "empty"),
        (&other, "mamba"),
        (folder, "directory"),
    ] {
        for args in [
            &["generate", "--device", "cpu", "-m", file, "Hello"][..],
            &["inspect", file],
            &["logits", "--device", "cpu", "-m", file, "Hello"],
            &["bench", "--device", "cpu", "-m", file],
        ] {
            let message = failure(args, 1);
            let error = error_line(&message);
            assert!(error.contains(expected), "{args:?}: {error}");
            assert_eq!(error.matches(file).count(), 1, "the file is named: {error}");
        }
    }
}

#[test]
fn a_text_file_that_cannot_be_read_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let latin = write(directory.path(), "latin.txt", b"caf\xe9");
    let message = failure(&["generate", "-f", &latin], 1);
    assert!(error_line(&message).contains("byte 3"), "{message}");
    let message = failure(&["perplexity", "-f", "no/such/file.txt"], 1);
    assert!(
        error_line(&message).contains("no/such/file.txt"),
        "{message}"
    );
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let prompt = "Once upon a time there was a fox. ".repeat(10);
    let ids = json(&text(&["tokenize", "--json", &prompt]));
    let tokens = ids["ids"].as_array().expect("a list").len();
    let message = failure(
        &["generate", "--device", "cpu", "--raw", "-c", "32", &prompt],
        1,
    );
    let error = error_line(&message);
    assert!(error.contains(&format!(" {tokens} tokens")), "{error}");
    assert!(error.contains(" 32;"), "{error}");
    assert!(error.contains("-c (the model's is 2048)"), "{error}");
    // Where the context is the model's whole one, more of it cannot be asked for.
    let prompt = "Once upon a time there was a fox. ".repeat(300);
    let message = failure(&["generate", "--device", "cpu", "--raw", &prompt], 1);
    let error = error_line(&message);
    assert!(error.contains(" 1024;"), "{error}");
    assert!(error.contains("-c (the model's is 2048)"), "{error}");
    let all = ["generate", "--device", "cpu", "--raw", "-c", "0", &prompt];
    let message = failure(&all, 1);
    let error = error_line(&message);
    assert!(error.contains(" 2048;") && !error.contains("-c"), "{error}");
    let message = failure(&["generate", "--device", "cpu", "-c", "9000", "x"], 1);
    let error = error_line(&message);
    assert!(error.contains("9000") && error.contains("2048"), "{error}");
}

#[test]
fn unknown_devices_and_useless_tiers_are_refused() {
    let message = failure(&["generate", "--device", "no such adapter", "x"], 1);
    assert!(error_line(&message).contains("adapter"), "{message}");
    let message = failure(&["generate", "--device", "cpu", "--tier", "plain", "x"], 1);
    assert!(error_line(&message).contains("plain"), "{message}");
    for flag in [
        &["--no-matrices"][..],
        &["--serial-passes", "on"],
        &["--packed-halves", "off"],
    ] {
        for command in [&["logits", "x"][..], &["bench", "-p", "1", "-n", "0"]] {
            let args = [command, &["--device", "cpu"], flag].concat();
            let message = failure(&args, 1);
            let error = error_line(&message);
            assert!(error.contains(flag[0]), "{args:?}: {error}");
        }
    }
    let message = failure(&["tune", "--precompose", "qk"], 2);
    assert!(message.contains("--precompose"), "{message}");
}

#[test]
fn unknown_and_useless_choices_of_precompose_are_refused() {
    let message = failure(&["generate", "--precompose", "always"], 2);
    assert!(message.contains("auto, qk, vo, both or off"), "{message}");
    for [command, text] in [["generate", "x"], ["bench", "-r1"]] {
        let message = failure(&[command, text, "--device=cpu", "--precompose=qk"], 1);
        let error = error_line(&message);
        assert!(error.contains("--precompose chooses"), "{error}");
    }
    let off = ["logits", "x", "--device=cpu", "--precompose=off"];
    assert!(!text(&off).is_empty());
}

/// Without any driver the default device is the CPU reference, said aloud; a device that was asked for is refused.
#[test]
fn thinking_is_refused_where_the_template_knows_none() {
    let message = failure(&["generate", "--device", "cpu", "--think", "on", "x"], 1);
    assert!(
        error_line(&message).contains("no switch for thinking"),
        "{message}"
    );
}

#[test]
fn flags_of_llama_cpp_mean_what_they_mean_there() {
    let raw = ["--raw", "--temp", "0", "-n", "4"];
    let expected = super::greedy_text(&["-n", "4", "A fox"]);
    for flags in [
        &["-p", "A fox", "-ngl", "0"][..],
        &["--prompt", "A fox", "--device", "CPU", "-ub", "64"],
        &["A fox", "-ngl", "0"],
    ] {
        let found = text(&[&["generate"], &raw[..], flags].concat());
        assert_eq!(found, expected, "{flags:?}");
    }
    for some in ["7", "-5", "many"] {
        let message = failure(&["generate", "-ngl", some, "x"], 2);
        assert!(message.contains("all layers in one place"), "{message}");
    }
    failure(&["generate", "-p", "x", "y"], 2);
}
