//! Protects who waits: a terminal shows what is done and how far it is, and everything else gets plain lines.

use super::terminal::Terminal;
use super::{glimt, stderr};

/// A text of some thousand words.
fn long() -> String {
    (0..1500).map(|i| format!("fox{} ", i % 7)).collect()
}

const GENERATE: [&str; 8] = [
    "generate", "--device", "cpu", "--raw", "-c", "2048", "-n", "1",
];

/// The longest prompt that fits.
fn prompt() -> String {
    let mut text = long();
    let fits = |text: &str| {
        super::engine()
            .tokenizer()
            .encode(text, true)
            .is_ok_and(|tokens| tokens.len() < 2000)
    };
    while !fits(&text) {
        text.truncate(text.len() * 9 / 10);
    }
    text
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_long_prompt_on_the_cpu_has_a_bar_that_goes_away() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let prompt = prompt();
    let args = [&GENERATE[..], &[prompt.trim()]].concat();
    let mut terminal = Terminal::start(&args, home.path(), [24, 80]);
    terminal.wait("prompt ");
    let before = terminal.wait(" tokens, ");
    assert!(before.contains(" of "), "{before}");
    assert_eq!(terminal.end(), 0, "{}", terminal.screen());
    let screen = terminal.screen();
    assert!(
        !screen.contains(" tokens, 0s") && screen.contains("generated: 1 token"),
        "{screen}"
    );

    let mut dumb = Terminal::start_in(&args, home.path(), [24, 80], &[("TERM", "dumb")]);
    assert_eq!(dumb.end(), 0);
    assert!(!dumb.is_controlled(), "{}", dumb.text());

    let quiet = [&args[..], &["-q"]].concat();
    let output = glimt(&quiet).output().expect("it runs");
    assert_eq!(stderr(&output), "");
}
