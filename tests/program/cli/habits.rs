//! Protects those who come from llama.cpp and ollama, and texts that begin with a hyphen: what they type is done, or the error says what to
//! type instead.

use super::{error_line, failure, glimt, json, run, stderr, stdout, text, write};

const QUICK: [&str; 8] = [
    "generate", "--device", "cpu", "-q", "-n", "2", "--temp", "0",
];

#[test]
fn texts_that_begin_with_a_hyphen_are_texts() {
    let quick = |args: &[&str]| text(&[&QUICK[..], args].concat());
    let list = "- item one\n- item two";
    let expected = quick(&["--prompt=- item one\n- item two"]);
    for args in [
        &["-p", list][..],
        &["--prompt", list],
        &[list],
        &["--", list],
    ] {
        assert_eq!(quick(args), expected, "{args:?}");
    }
    for word in ["-n", "--raw", "-h", "--", "---", "-1"] {
        quick(&["-p", word]);
        quick(&["--system", word, "Hi"]);
        quick(&["--stop", word, "Hi"]);
    }
    // A text that is also a flag is told of, as it may have been meant so.
    let output = run(&[&QUICK[..], &["--system", "--raw", "Hi"]].concat());
    assert!(
        stderr(&output).contains("--system has the text --raw"),
        "{}",
        stderr(&output)
    );
    assert!(text(&["tokenize", "- a"]).contains("\"-\""));
    assert!(
        text(&["logits", "--device", "cpu", "-- a", "--top", "1"])
            .lines()
            .count()
            > 1
    );
    text(&[
        "chat",
        "--device",
        "cpu",
        "-q",
        "-n",
        "1",
        "--system",
        "- be short",
        "-p",
        "- Hi",
        "--stop",
        "-x",
    ]);
    // A word that looks like a flag and is none stays an error.
    for word in ["-y", "--warmth", "--warmth=3"] {
        failure(&[&QUICK[..], &[word]].concat(), 2);
    }
}

#[test]
fn flags_of_llama_cpp_are_understood() {
    let plain = text(&[&QUICK[..], &["Tell me of a fox."]].concat());
    let flags = [
        "-fa",
        "on",
        "-ctk",
        "f16",
        "-ctv",
        "f16",
        "--jinja",
        "-t",
        "1",
        "-st",
        "--no-display-prompt",
        "-p",
        "Tell me of a fox.",
    ];
    assert_eq!(text(&[&QUICK[..], &flags].concat()), plain);
    assert_eq!(
        text(&[&QUICK[..], &["-no-cnv", "Once\\nupon", "-e"]].concat()),
        text(&[&QUICK[..], &["--raw", "Once\nupon"]].concat())
    );
    let layers = [
        "generate", "-ngl", "0", "-q", "-n", "2", "--temp", "0", "Hi",
    ];
    assert_eq!(text(&layers), text(&[&QUICK[..], &["Hi"]].concat()));
    let codes = ["-ctk", "q8_0", "-ctv", "q8_0", "Hi"];
    assert_eq!(
        text(&[&QUICK[..], &codes].concat()),
        text(&[&QUICK[..], &["--cache-type", "q8_0", "Hi"]].concat())
    );
    let grammar = ["--grammar", "root ::= \"yes\" | \"no\"", "Well?"];
    let answer = text(&[&QUICK[..2], &["cpu", "-q", "--temp", "0"], &grammar].concat());
    assert!(["yes\n", "no\n"].contains(&&*answer), "{answer}");
    for (args, said) in [
        (&["-ctk", "q8_0", "-ctv", "f16", "Hi"][..], "-ctv f16: "),
        (&["-ctk", "q4_0", "Hi"], "expected f16 or q8_0"),
        (&["-fa", "off", "Hi"], "-fa off: "),
        (&["-cnv", "Hi"], "glimt chat"),
        (&["--mlock", "Hi"], "--mlock: "),
        (&["--rope-scaling", "yarn", "Hi"], "file"),
        (&["--samplers", "top_k", "Hi"], "--samplers: "),
        (&["-t", "0", "Hi"], "1 to 1024"),
    ] {
        let message = failure(&[&QUICK[..], args].concat(), 2);
        assert!(message.contains(said), "{args:?}: {message}");
    }
    // The log is the program's own.
    let verbose = run(&["generate", "--device", "cpu", "-n", "1", "-v", "Hi"]);
    assert!(verbose.status.success(), "{}", stderr(&verbose));
}

#[test]
fn commands_of_ollama_are_understood_or_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = write(folder.path(), "copy.gguf", super::EMBEDDED);
    let quick = ["--device", "cpu", "-q", "-n", "2", "--temp", "0"];
    let answer = text(&[&["run"], &quick[..], &[&*model, "Tell", "me", "of a fox."]].concat());
    assert_eq!(
        answer,
        text(&[&QUICK[..], &["-m", &model, "Tell me of a fox."]].concat())
    );
    assert_eq!(text(&["show", &model]), text(&["inspect", &model]));
    for (args, said) in [
        (&["ps"][..], "glimt serve"),
        (&["stop", "m"], "Ctrl-C"),
        (&["-p", "Hi"], "glimt generate"),
        (&["-hf", "a/b"], "glimt generate"),
    ] {
        let message = failure(args, 2);
        assert!(error_line(&message).contains(said), "{args:?}: {message}");
    }
}

#[test]
fn bench_takes_several_models_and_layers() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = write(folder.path(), "copy.gguf", super::EMBEDDED);
    let bench = ["bench", "-p", "2", "-n", "0", "-r", "1", "-o", "jsonl"];
    let rows = text(&[&bench[..], &["-m", &model, "-m", &model, "-ngl", "0"]].concat());
    assert_eq!(rows.lines().count(), 2, "{rows}");
    for row in rows.lines() {
        assert_eq!(
            (&json(row)["backends"], &json(row)["model_filename"]),
            (&"CPU".into(), &(*model).into())
        );
    }
    let message = failure(&[&bench[..], &["-ngl", "20"]].concat(), 2);
    assert!(message.contains("all layers in one place"), "{message}");
}

#[test]
fn help_is_no_answer() {
    // Beside a prompt, help for a file or a pipe is a mistake.
    for args in [
        &["generate", "-hf", "user/no-such-repo", "Hi"][..],
        &["generate", "-h", "Hi"],
        &["generate", "Hi", "--help"],
        &["generate", "-qh", "Hi"],
        &["serve", "-h", "0.0.0.0"],
    ] {
        let output = run(args);
        assert_ne!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(stdout(&output), "", "{args:?}");
    }
    assert!(failure(&["generate", "-h", "Hi"], 2).contains("Usage: glimt generate"));
    for args in [
        &["generate", "-h"][..],
        &["generate", "--help"],
        &["help", "generate"],
        &["-h"],
        &["help"],
    ] {
        assert!(text(args).contains("Usage: glimt"), "{args:?}");
    }
}

#[test]
fn short_help_begins_with_what_people_need() {
    let help = |args: &[&str]| {
        let output = glimt(args).env("COLUMNS", "80").output();
        let output = output.expect("the binary was built with this test");
        stdout(&output).to_owned()
    };
    let short = help(&["generate", "-h"]);
    assert!(short.lines().count() <= 45, "{short}");
    let at = |text: &str| {
        short
            .find(text)
            .unwrap_or_else(|| panic!("{text} is not in: {short}"))
    };
    let options = short
        .split("\n\n")
        .find(|part| part.starts_with("Options:"));
    let options = options.expect("they have no heading of their own");
    for flag in ["--ctx", "--quiet"] {
        assert!(options.contains(flag), "{flag}: {short}");
    }
    let order = [
        "--prompt",
        "--n-predict",
        "--model",
        "--system",
        "Sampling:",
        "--temp",
        "Device:",
        "--device",
        "Examples:",
    ];
    assert!(
        order.windows(2).all(|two| at(two[0]) < at(two[1])),
        "{short}"
    );
    for expert in [
        "--precompose",
        "--xtc-probability",
        "--serial-passes",
        "--tier",
        "--dry-base",
    ] {
        assert!(!short.contains(expert), "{expert}: {short}");
        assert!(help(&["generate", "--help"]).contains(expert), "{expert}");
    }
    for command in [
        "chat", "serve", "batch", "bench", "inspect", "profile", "tune",
    ] {
        let (short, long) = (help(&[command, "-h"]), help(&[command, "--help"]));
        assert!(
            short.lines().count() <= 90,
            "{command}: {}",
            short.lines().count()
        );
        assert!(short.len() < long.len(), "{command}");
        for help in [short, long] {
            assert!(
                !help.contains("=]") && !help.contains(": ]"),
                "an empty text in {help}"
            );
        }
    }
}
