//! Protects answers that are kept to a grammar as a user meets them: what is cut is an error, and what is no grammar is told by line.

use std::process::Output;

use super::{error_line, failure, json, run, stderr, stdout, write};

const ASK: [&str; 7] = [
    "generate", "--device", "cpu", "--raw", "--temp", "0", "The fox",
];
/// Sixty letters at least.
const LONG: &str = "root ::= [a-z ]{60,80} \"!\"";

fn asked(grammar: &str, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = write(directory.path(), "fox.gbnf", grammar.as_bytes());
    run(&[&ASK[..], &["--grammar", &file], args].concat())
}

#[test]
fn an_answer_that_its_grammar_does_not_end_is_an_error() {
    for (args, why, what_to_do) in [
        (&["-n", "5"][..], "limit of 5 tokens", "-n"),
        (&["-c", "8"], "context of 8 tokens is full", "-c"),
        (&["--stop", "e"], "stop text", "--stop"),
    ] {
        let output = asked(LONG, args);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let error = error_line(stderr(&output));
        for expected in ["cut before the grammar ends it", why, what_to_do] {
            assert!(error.contains(expected), "{error}");
        }
        assert!(!stdout(&output).is_empty(), "what was said stays");
        let output = asked(LONG, &[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(json(stdout(&output))["complete"], false);
    }
    let schema = [
        &ASK[..],
        &["-n", "3", "--json-schema", "{\"type\": \"object\"}"],
    ]
    .concat();
    let output = run(&schema);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(error_line(stderr(&output)).contains("limit of 3 tokens"));
}

#[test]
fn an_answer_that_could_end_is_complete() {
    // It may end after each letter, and behind the stop text, of which nothing is shown, it may not.
    for (grammar, args) in [
        ("root ::= [a-z]+", &["-n", "5"][..]),
        ("root ::= [a-z]+ (\"!\" [0-9])?", &["--stop", "!"]),
        ("root ::= \"yes\" | \"no\"", &["-n", "50"]),
        ("root ::= [a-z ]{60,80} \"!\"", &["-n", "500"]),
    ] {
        let output = asked(grammar, &[args, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(json(stdout(&output))["complete"], true, "{grammar}");
    }
    let free = run(&[&ASK[..], &["--json", "-n", "3"]].concat());
    assert!(json(stdout(&free))["complete"].is_null(), "no grammar");
}

#[test]
fn what_is_no_grammar_is_told_with_its_file_and_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let refused = |name: &str, text: &str| {
        let file = write(directory.path(), name, text.as_bytes());
        let message = failure(&[&ASK[..], &["--grammar", &file]].concat(), 1);
        let error = error_line(&message).to_owned();
        assert!(error.contains(name), "the file is named: {error}");
        error
    };
    let error = refused("list.gbnf", "root ::= item+\nitem ::= \"- \" [^\\n\n");
    for expected in ["line 2", "found the end of the line", "expected ]"] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(refused("no.gbnf", "root ::= fox").contains("there is no rule fox"));
    let error = refused("fox.lark", "start: missing");
    assert!(error.contains("missing"), "{error}");
    let chain: String = (0..20_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let error = refused("long.lark", &format!("start: r0\n{chain}r20000: \"a\"\n"));
    assert!(error.contains("lines"), "{error}");
    let chain: String = (0..9_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let chain = write(
        directory.path(),
        "deep.lark",
        format!("start: r0\n{chain}r9000: \"a\"\n").as_bytes(),
    );
    let output = run(&[&ASK[..], &["--grammar", &chain]].concat());
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{:?}",
        output.status
    );
    let message = failure(&[&ASK[..], &["--json-schema", "{\"type\": 7}"]].concat(), 1);
    assert!(
        error_line(&message).starts_with("--json-schema: "),
        "{message}"
    );
    let message = failure(&[&ASK[..], &["--json-schema", "[7]"]].concat(), 1);
    assert!(
        error_line(&message).contains("--json-schema takes"),
        "{message}"
    );
}
