//! Protects what `glimt chat` does when somebody types, presses Ctrl-C or ends it at an inconvenient moment, and what it says then.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::terminal::Terminal;
use super::{engine, error_line, failure, glimt, stderr};

const CHAT: [&str; 5] = ["chat", "--device", "cpu", "--temp", "0"];

fn terminal(args: &[&str], home: &Path) -> Terminal {
    Terminal::start(&[&CHAT[..], args].concat(), home, [24, 80])
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn however_often_ctrl_c_comes_the_conversation_goes_on() {
    let home = home();
    let mut terminal = terminal(&["-c", "1024"], home.path());
    for _ in 0..2 {
        terminal.line("Tell me a long story.");
        terminal.wait("story.");
        pause(200);
        for _ in 0..15 {
            terminal.signal(libc::SIGINT);
            pause(3);
        }
        terminal.wait("stopped");
    }
    terminal.line("/stats");
    let told = terminal.wait("computed before");
    assert!(!told.contains("prompt: 0"), "{told}");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn keys_during_an_answer_wait_for_the_prompt() {
    let home = home();
    let mut terminal = terminal(&["-n", "80"], home.path());
    terminal.line("Tell me of a fox.");
    terminal.wait("fox.");
    pause(100);
    terminal.keys("And of a crow?");
    let answer = terminal.wait("stopped at the limit");
    assert!(!answer.contains("And of a crow?"), "{answer}");
    terminal.wait("And of a crow?");
    terminal.keys("\r");
    terminal.wait("stopped at the limit");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
    assert!(terminal.is_plain());
}

#[test]
fn a_signal_at_the_prompt_leaves_the_terminal_as_it_was() {
    let home = home();
    let mut terminal = terminal(&["-n", "4"], home.path());
    terminal.wait("> ");
    pause(100);
    assert!(!terminal.is_plain());
    terminal.signal(libc::SIGTERM);
    assert_eq!(terminal.end(), 143);
    assert!(terminal.is_plain());
}

#[test]
fn what_was_typed_is_kept_when_the_program_is_killed() {
    let home = home();
    let mut first = terminal(&["-n", "4"], home.path());
    first.line("Tell me of a crow.");
    first.wait("stopped at the limit");
    first.wait("> ");
    first.signal(libc::SIGKILL);
    first.end();
    let mut second = terminal(&["-n", "4"], home.path());
    second.wait("> ");
    second.keys("\x1b[A");
    second.wait("Tell me of a crow.");
}

#[test]
fn the_meter_never_covers_what_is_typed() {
    let home = home();
    let mut terminal = terminal(&["-n", "4"], home.path());
    let long = "this message goes on until it comes to where the meter of the context stands";
    terminal.line(long);
    terminal.wait("stopped at the limit");
    let rows = terminal.rows().concat();
    assert!(rows.contains(long), "{}", terminal.screen());
    // Completions have the same prompt.
    terminal.wait("> ");
    terminal.keys("/re\t");
    terminal.wait("/regen");
    let shown = terminal.rows();
    assert!(
        shown.iter().any(|row| row.starts_with("> /re")),
        "{shown:#?}"
    );
}

#[test]
fn the_file_of_a_conversation_is_saved_and_loaded_again() {
    let home = home();
    let file = home.path().join("fox");
    let name = file.to_str().expect("a plain name");
    let mut terminal = terminal(&["-n", "8", "--session", name], home.path());
    terminal.wait("fox: begun");
    terminal.line("Tell me of a fox.");
    terminal.wait("stopped at the limit");
    for _ in 0..2 {
        terminal.line(&format!("/save {name}"));
        terminal.wait(&format!("kept in {name}"));
    }
    terminal.line("/clear");
    terminal.wait("brings it back");
    terminal.wait(" 0 of 1024 tokens");
    terminal.keys(&format!("/load {name}\r"));
    terminal.wait("Tell me of a fox.");
    terminal.line("/regen");
    terminal.wait("stopped at the limit");
    terminal.line("/drop");
    terminal.wait("forgot 1 question");
    terminal.wait(" 0 of 1024 tokens");
    terminal.keys("/bye\r");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn what_has_no_room_or_no_text_is_refused_at_once() {
    let home = home();
    let (long, empty) = (home.path().join("long one.txt"), home.path().join("empty"));
    let text = "the fox and the crow went into the wood. ".repeat(40);
    std::fs::write(&long, text).expect("it can be written");
    std::fs::write(&empty, "\n").expect("it can be written");
    let mut terminal = terminal(&["-n", "4", "-c", "64"], home.path());
    // The home folder of the program is that of the test.
    terminal.line("/read '~/long one.txt'");
    terminal.wait("tokens, the context holds 64");
    terminal.line(&format!("/read {}", empty.display()));
    terminal.wait("the file is empty");
    terminal.line(&format!("/system {}", "Be kind. ".repeat(40)));
    terminal.line("Tell me of a fox.");
    terminal.wait("the context is full");
    terminal.line("/system \"\"");
    terminal.wait("the system prompt is removed");
    // A question without an answer can be changed.
    terminal.line("/edit Tell me of a crow.");
    terminal.wait("limit of 4 tokens");
    terminal.line("/edit");
    terminal.wait("Tell me of a crow.");
    terminal.keys("\x03");
    terminal.wait("Ctrl-D leaves");
    terminal.wait("> ");
    terminal.keys("\x04");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn settings_are_shown_and_keep_the_seed() {
    let home = home();
    let args = ["chat", "--device", "cpu", "--temp", "0.5"];
    let mut terminal = Terminal::start(&args, home.path(), [24, 100]);
    terminal.wait("/help lists");
    let [first, second] = [8, 9].map(|n| {
        terminal.line(&format!("/set n-predict {n}"));
        terminal.wait(&format!("n-predict: {n};"));
        terminal.wait("think-limit: -1; seed: ");
        let screen = terminal.screen();
        let (_, seed) = screen.rsplit_once("; seed: ").expect("it is told");
        let digits = seed.chars().take_while(char::is_ascii_digit);
        digits.collect::<String>()
    });
    assert!(!first.is_empty(), "the seed is told");
    assert_eq!(first, second);
    terminal.line("/set think off");
    terminal.wait("no switch for thinking");
    // The conversation goes on.
    terminal.line("Tell me of a fox.");
    terminal.wait("limit of 9 tokens");
    terminal.line("/set seed 4");
    terminal.wait("seed: 4");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_switch_that_the_template_lacks_is_refused_before_the_first_message() {
    let message = failure(&[&CHAT[..], &["--think", "off"]].concat(), 1);
    assert!(
        error_line(&message).contains("no switch for thinking"),
        "{message}"
    );
    // Thoughts that never come are hidden, too.
    let output = glimt(&[&CHAT[..], &["--think", "hide"]].concat()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn an_answer_without_a_text_says_so() {
    let engine = engine();
    let end = engine.tokenizer().stop_tokens()[0];
    let bias = format!("{end}+1000");
    let mut child = glimt(&[&CHAT[..], &["--logit-bias", &bias]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(b"Tell me of a fox.\n").expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(
        stderr(&output).contains("ended its answer without a text"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn ctrl_c_ends_what_is_piped_and_keeps_the_answer() {
    let folder = home();
    let file = folder.path().join("fox");
    let session = ["--session", file.to_str().expect("a plain name")];
    let mut child = glimt(&[&CHAT[..], &session].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    let lines = "Tell me a long story.\n".repeat(3);
    stdin.write_all(lines.as_bytes()).expect("it reads");
    drop(stdin);
    let mut answer = child.stdout.take().expect("it is a pipe");
    answer.read_exact(&mut [0; 8]).expect("an answer");
    // SAFETY: the process is this one's child and has not been waited for, so its number is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let rest = std::thread::spawn(move || answer.read_to_end(&mut vec![]));
    let output = child.wait_with_output().expect("it was started");
    rest.join().expect("reading ends").expect("a pipe");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let file = glimt::engine::SessionFile::open(&file, &engine()).expect("it is whole");
    let data: serde_json::Value = serde_json::from_slice(file.data()).expect("it is JSON");
    let turns = data["conversation"]["turns"].as_array();
    assert_eq!(turns.expect("a list").len(), 2, "{data}");
}
