//! Protects answers of models that think first: no answer is an error, thoughts can be ended, and there is room for them.

use super::edited::{edited, thinking, thinking_template};
use super::{error_line, run, stderr, stdout};

const ASK: [&str; 7] = [
    "generate",
    "--device",
    "cpu",
    "--temp",
    "0",
    "Tell me a story.",
    "-m",
];

#[test]
fn thoughts_without_an_end_are_no_answer() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let model = thinking(directory.path());
    for (room, what) in [
        (["-n", "12"], "limit of 12 tokens"),
        (["-c", "40"], "context of 40 tokens is full"),
    ] {
        let output = run(&[&ASK[..], &[&model], &room].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        let error = error_line(stderr(&output));
        for expected in [
            "thoughts took all the room",
            what,
            "--think-limit",
            "--think off",
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[test]
fn thoughts_end_at_their_limit_and_the_answer_follows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let model = thinking(directory.path());
    for limit in ["0", "1", "7"] {
        let args = ["--think-limit", limit, "-n", "30"];
        let output = run(&[&ASK[..], &[&model], &args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!stdout(&output).trim().is_empty(), "{limit}: an answer");
        assert!(stderr(&output).contains("30 tokens (limit)"), "{limit}");
    }
    // The limit of all tokens comes first.
    let args = ["--think-limit", "50", "-n", "10"];
    let output = run(&[&ASK[..], &[&model], &args].concat());
    assert!(error_line(stderr(&output)).contains("limit of 10 tokens"));
    // Thoughts that end with the last token leave nothing for the answer.
    for most in ["7", "8"] {
        let args = ["--think-limit", "7", "-n", most];
        let output = run(&[&ASK[..], &[&model], &args].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let error = error_line(stderr(&output));
        assert!(error.contains("took all the room"), "{error}");
    }
    // Who does not think has no thoughts to end.
    let output = run(&[&ASK[..], &[&model, "--think", "off", "-n", "5"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).trim().is_empty());
}

#[test]
fn a_model_that_thinks_has_room_for_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let long = [
        ("deepseek2.context_length", glimt::gguf::Value::U32(100_000)),
        ("tokenizer.chat_template", thinking_template()),
    ];
    let model = edited(directory.path(), "long.gguf", &long, |_, _| {});
    for (args, context) in [
        (&["-n", "2"][..], 32768),
        (&["-n", "2", "--think", "off"], 4096),
        (&["-n", "2", "--raw"], 4096),
        (&["-n", "2", "-c", "300"], 300),
    ] {
        let output = run(&[&ASK[..], &[&model, "-v"], args].concat());
        let expected = format!("context: {context} of 100000 tokens");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
    // The memory that is told is that of such an answer.
    for (model, context) in [(&["-m", &model][..], 32768), (&[], 1024)] {
        let output = run(&[&["inspect", "--device", "cpu"], model].concat());
        let expected = format!("memory at a context of {context} tokens");
        assert!(stdout(&output).contains(&expected), "{}", stdout(&output));
    }
}
