//! Protects `glimt chat`: its commands and keys in a terminal, its lines through a pipe, and that nothing is computed twice.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use glimt::engine::SessionFile;
use glimt::synth::ModelName;

use super::edited::{synthetic, synthetic_of, thinking};
use super::random::{Rng, rounds};
use super::terminal::Terminal;
use super::{engine, error_line, glimt, stderr, stdout};

const CHAT: [&str; 5] = ["chat", "--device", "cpu", "--temp", "0"];

/// The output of the program for `lines`, one message each.
fn piped(args: &[&str], lines: &str) -> std::process::Output {
    let mut child = glimt(&[&CHAT[..], args].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    // A program that has ended reads no more.
    let _ = stdin.write_all(lines.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// The numbers in a line of /stats that begins with `name`, of each time that it is there.
fn numbers(text: &str, name: &str) -> Vec<Vec<usize>> {
    let lines = text
        .lines()
        .filter(|line| line.trim_start().starts_with(name));
    let digits = |line: &str| {
        let words = line.split(|c: char| !c.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).collect()
    };
    lines.map(digits).collect()
}

#[test]
fn nothing_is_computed_twice() {
    nothing_is_computed_twice_with(&[]);
}

#[test]
fn nothing_is_computed_twice_by_models_of_the_other_family() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in [ModelName::TinyQwen3Moe, ModelName::TinyLlama] {
        let model = synthetic_of(folder.path(), name);
        nothing_is_computed_twice_with(&["--model", &model]);
    }
}

fn nothing_is_computed_twice_with(model: &[&str]) {
    let output = piped(
        &[model, &["-n", "20"]].concat(),
        "Tell me of a fox.\n/stats\nAnd then?\n/stats\n\"\"\"\nAnd\nthen?\n\"\"\"\n/stats\n",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let prompts = numbers(stderr(&output), "prompt:");
    assert_eq!(prompts.len(), 3);
    assert_eq!(prompts[0][1], 0);
    for two in prompts.windows(2) {
        let (before, kept) = (two[0][0], two[1][1]);
        assert_eq!(kept, before + 20, "{}", stderr(&output));
    }
    let answers = stdout(&output).lines().filter(|line| !line.is_empty());
    assert!(answers.count() >= 3, "{}", stdout(&output));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_second_turn_after_a_thousand_tokens_computes_only_what_is_new() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    let text = "the fox and the crow went into the wood. ".repeat(90);
    std::fs::write(&long, text).expect("it can be written");
    let lines = format!(
        "/read {}\nWhat was that?\nAnd then?\n/stats\n",
        long.display()
    );
    let output = piped(&["-n", "12", "-c", "2048"], &lines);
    assert!(output.status.success(), "{}", stderr(&output));
    let prompt = &numbers(stderr(&output), "prompt:")[0];
    let computed = &numbers(stderr(&output), "computed:")[0];
    assert!(prompt[1] > 900, "{}", stderr(&output));
    assert!(computed[0] < 12, "{}", stderr(&output));
}

#[test]
fn the_context_is_never_cut_in_silence() {
    let question = "the fox and the crow went into the wood. ".repeat(8);
    let lines = format!("{question}\n{question}\n");
    let output = piped(&["-n", "4", "-c", "128"], &lines);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let error = error_line(stderr(&output));
    for expected in ["context is full", "128", "/drop", "/clear", "-c"] {
        assert!(error.contains(expected), "{error}");
    }
    let output = piped(&["-n", "400", "-c", "64"], "Tell me of a fox.\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("the answer is cut"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn lines_that_are_wrong_are_refused() {
    for (line, expected) in [
        ("/hlep", "no command /hlep"),
        ("/set warmth 3", "no setting warmth"),
        ("/set temp hot", "not a number"),
        ("/read", "name of a file"),
        ("/read /nowhere/notes.txt", "/nowhere/notes.txt"),
        ("/regen", "nothing was asked"),
        ("/edit a", "nothing was asked"),
        ("/drop many", "not a whole number"),
    ] {
        let output = piped(&[], line);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{line}: {}", stderr(&output));
        assert!(
            error_line(stderr(&output)).contains(expected),
            "{line}: {}",
            stderr(&output)
        );
    }
    let output = piped(&[], &"endless ".repeat(1 << 20));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

/// Talks in a terminal of 80 columns.
fn terminal(args: &[&str], home: &Path) -> Terminal {
    Terminal::start(&[&CHAT[..], args].concat(), home, [24, 80])
}

#[test]
fn every_command_in_a_terminal() {
    let home = tempfile::tempdir().expect("a folder");
    let notes = home.path().join("notes.txt");
    std::fs::write(&notes, "A fox lived in a wood.").expect("it can be written");
    let mut terminal = terminal(&["-n", "8"], home.path());
    terminal.wait("/help lists the commands");
    terminal.line("/help");
    terminal.wait("/thoughts");
    terminal.line("/set temp 0.5");
    terminal.wait("temperature 0.5");
    terminal.line("/system Be kind.");
    terminal.wait("the system prompt is changed");
    terminal.line("/system");
    terminal.wait("Be kind.");
    terminal.line(&format!("/read {}", notes.display()));
    terminal.wait("it goes with your next message");
    terminal.line("Who lived there?");
    terminal.wait("stopped at the limit of 8 tokens");
    terminal.line("/stats");
    terminal.wait("generated: 8 tokens");
    terminal.line("/thoughts");
    terminal.wait("without thoughts");
    terminal.line("/regen");
    terminal.wait("stopped at the limit");
    // The question stands in the editor and is gone on with.
    terminal.line("/edit");
    terminal.wait("Who lived there?");
    terminal.keys(" And why?\r");
    terminal.wait("stopped at the limit");
    terminal.line("/drop");
    terminal.wait("forgot 1 question");
    terminal.line("/hlep");
    terminal.wait("no command /hlep");
    terminal.line("/clear");
    terminal.wait("forgotten");
    // The lines that were typed come back.
    terminal.wait("> ");
    terminal.keys("\x1b[A\x1b[A\x1b[A");
    terminal.wait("/drop");
    terminal.keys("\x03");
    terminal.wait("Ctrl-D leaves");
    terminal.wait("> ");
    terminal.keys("\x04");
    assert_eq!(terminal.end(), 0);
    assert!(home.path().join("state/glimt/history").exists());
}

#[test]
fn ctrl_c_stops_an_answer_and_the_conversation_goes_on() {
    let home = tempfile::tempdir().expect("a folder");
    let mut terminal = terminal(&["-c", "1024"], home.path());
    terminal.line("Tell me a long story.");
    // Some words of the answer.
    terminal.wait("story.");
    std::thread::sleep(std::time::Duration::from_millis(300));
    terminal.keys("\x03");
    terminal.wait("stopped");
    terminal.line("/set n-predict 5");
    terminal.line("And then?");
    terminal.wait("limit of 5 tokens");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_paste_of_many_lines_is_one_message() {
    let home = tempfile::tempdir().expect("a folder");
    let mut terminal = terminal(&["-n", "3", "-c", "2048"], home.path());
    terminal.wait("> ");
    let lines: Vec<_> = (0..100).map(|i| format!("line {i}")).collect();
    terminal.keys(&format!("\x1b[200~{}\x1b[201~", lines.join("\r")));
    terminal.wait("line 99");
    terminal.keys("\r");
    terminal.wait("limit of 3 tokens");
    terminal.line("/stats");
    let before = terminal.wait("computed before");
    let said = &numbers(&before, "prompt:")[0];
    assert!(said[0] > 200, "{before}");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_narrow_terminal_and_one_that_changes_its_size() {
    let home = tempfile::tempdir().expect("a folder");
    let mut terminal = Terminal::start(&[&CHAT[..], &["-n", "30"]].concat(), home.path(), [24, 40]);
    terminal.line("/help");
    terminal.wait("/bye");
    terminal.line("Tell me a story of a fox who went into the wood");
    terminal.wait("limit of 30 tokens");
    terminal.wait("> ");
    terminal.resize([30, 100]);
    terminal.keys("and then she came home and was glad of it all");
    terminal.resize([10, 40]);
    terminal.keys(" again\r");
    terminal.wait("limit of 30 tokens");
    terminal.wait("> ");
    // The prompt stands at the beginning of a row, and what was typed does not.
    let rows = terminal.rows();
    let last = rows.iter().rfind(|row| !row.trim().is_empty());
    assert!(last.is_some_and(|row| row.starts_with('>')), "{rows:#?}");
    terminal.keys("\x04");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn without_a_command_a_terminal_gets_a_conversation() {
    let home = tempfile::tempdir().expect("a folder");
    for flags in [&[][..], &["--device", "cpu", "-c", "512"]] {
        let mut terminal = Terminal::start(flags, home.path(), [24, 80]);
        terminal.wait("/help lists the commands");
        terminal.line("/bye");
        assert_eq!(terminal.end(), 0);
    }
    for (flags, expected) in [("--help", "completions"), ("--version", "glimt ")] {
        let mut terminal = Terminal::start(&[flags], home.path(), [80, 80]);
        terminal.wait(expected);
        assert_eq!(terminal.end(), 0);
    }
}

/// A conversation of two turns in one run, and in two with a file, which computes nothing again.
fn goes_on(flags: &[&str], name: &str) {
    let questions = ["Tell me of a fox.\n", "And then?\n"];
    let run = |more: &[&str], lines: &str| piped(&[flags, &["-n", "12"], more].concat(), lines);
    let whole = run(&[], &questions.concat());
    let first = run(&["--session", name], questions[0]);
    let second = run(&["--session", name], &format!("{}/stats\n", questions[1]));
    assert!(second.status.success(), "{}", stderr(&second));
    assert_eq!([stdout(&first), stdout(&second)].concat(), stdout(&whole));
    let prompt = &numbers(stderr(&second), "prompt:")[0];
    // All that the first run computed, and the row of its last token.
    assert!(
        prompt[1] > 20 && prompt[0] - prompt[1] < 10,
        "{}",
        stderr(&second)
    );
}

#[test]
fn a_session_file_with_a_cache_of_codes_goes_on_and_is_refused_without() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("codes.session");
    let name = file.to_str().expect("a plain name");
    goes_on(&["-ctk", "q8_0", "-ctv", "q8_0"], name);
    let refused = piped(&["--session", name], "Hello\n");
    assert_eq!(refused.status.code(), Some(1));
    let error = error_line(stderr(&refused));
    assert!(
        error.contains("a cache in q8_0, but the cache is in f16 here; give --cache-type q8_0"),
        "{error}"
    );
}

#[test]
fn a_session_file_goes_on_without_computing_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fox.session");
    let name = file.to_str().expect("a plain name");
    goes_on(&[], name);

    // By commands, from one file to another.
    let other = folder.path().join("other.session");
    let lines = format!(
        "/load {name}\n/save {}\n/stats\nAnd then?\n/stats\n",
        other.display()
    );
    let third = piped(&["-n", "4"], &lines);
    assert!(third.status.success(), "{}", stderr(&third));
    assert!(
        numbers(stderr(&third), "prompt:")[0][1] > 30,
        "{}",
        stderr(&third)
    );
    let refused = piped(&["-n", "1"], &format!("Hello\n/save {}\n", other.display()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(error_line(stderr(&refused)).contains("a conversation already"));
    let refused = piped(&[], "/load /nowhere/fox.session\n");
    assert!(error_line(stderr(&refused)).contains("/nowhere/fox.session"));
}

/// Kills conversations at random moments. Each file opens, and has all that was shown.
fn kill(times: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine();
    let text = |file: &Path| {
        let kept = SessionFile::open(file, &engine).unwrap_or_else(|e| panic!("{e}"));
        (
            kept.tokens().to_vec(),
            engine.tokenizer().decode(kept.tokens()),
        )
    };
    let talk = |file: &Path| {
        let name = file.to_str().expect("a plain name");
        let mut child = glimt(&[&CHAT[..], &["-n", "12", "--session", name]].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary was built with this test");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        stdin
            .write_all(b"Tell me of a fox.\nAnd then?\nWho was it?\n")
            .expect("a pipe has room for it");
        child
    };
    let whole = folder.path().join("whole");
    let began = Instant::now();
    assert!(talk(&whole).wait().expect("it ends").success());
    let lasts = began.elapsed();
    let (all, _) = text(&whole);
    let mut rng = Rng::fresh();
    for i in 0..rounds(times) {
        let file = folder.path().join(format!("{i}.session"));
        let mut child = talk(&file);
        std::thread::sleep(lasts.mul_f32(rng.uniform()));
        child.kill().expect("it is a child of this test");
        let output = child.wait_with_output().expect("it ended");
        if !file.exists() {
            assert!(output.stdout.is_empty());
            continue;
        }
        let (tokens, said) = text(&file);
        assert!(all.starts_with(&tokens), "{i}: {said}");
        for line in stdout(&output).lines() {
            assert!(
                said.contains(line),
                "{i}: {line:?} was shown, kept is: {said}"
            );
        }
    }
}

#[test]
fn a_kill_loses_nothing_that_was_shown() {
    kill(6);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_second_turn_after_four_thousand_tokens_computes_only_what_is_new() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = synthetic(folder.path());
    let long = folder.path().join("long.txt");
    let text = "the fox and the crow went into the wood. ".repeat(140);
    std::fs::write(&long, text).expect("it can be written");
    let lines = format!("/read {}\nWhat?\nGo on.\n/stats\n", long.display());
    let output = piped(&["-m", &model, "-n", "12", "-c", "8192"], &lines);
    assert!(output.status.success(), "{}", stderr(&output));
    let prompt = &numbers(stderr(&output), "prompt:")[0];
    let computed = &numbers(stderr(&output), "computed:")[0];
    assert!(prompt[1] > 4000, "{}", stderr(&output));
    // The last token of the answer, and at most a token for each byte of the question between two line breaks.
    let most = 1 + "\nGo on.\n".len();
    assert!(computed[0] <= most, "{}", stderr(&output));
    assert_eq!(prompt[0], prompt[1] + computed[0], "{}", stderr(&output));
}

#[test]
fn thoughts_are_shown_folded_and_left_out_of_what_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = thinking(folder.path());
    let limits = ["-m", &model, "--think-limit", "5", "-n", "12"];
    let lines = "Tell me of a fox.\n/thoughts\nAnd then?\n/stats\n";
    let output = piped(&limits, lines);
    assert!(output.status.success(), "{}", stderr(&output));
    // The template leaves out thoughts, so the answer behind them is computed again, and nothing else.
    let told = stderr(&output);
    let computed = &numbers(told, "computed:")[0];
    let prompt = &numbers(told, "prompt:")[0];
    let again = *computed
        .last()
        .expect("the tokens that were computed again");
    assert!((6..=8).contains(&again), "{told}");
    assert_eq!(prompt[0] - prompt[1], computed[0], "{told}");

    let shown = piped(&limits, "Tell me of a fox.\n");
    let hidden = piped(
        &[&limits[..], &["--think", "hide"]].concat(),
        "Tell me of a fox.\n",
    );
    assert_eq!(stdout(&shown), stdout(&hidden));
    assert!(
        stderr(&hidden).contains("thought for"),
        "{}",
        stderr(&hidden)
    );
    let off = piped(
        &[&limits[..], &["--think", "off"]].concat(),
        "Tell me.\n/thoughts\n",
    );
    assert!(
        stderr(&off).contains("came without thoughts"),
        "{}",
        stderr(&off)
    );
}

#[test]
fn a_question_that_has_no_room_takes_nothing_away() {
    let home = tempfile::tempdir().expect("a folder");
    let mut terminal = terminal(&["-n", "4", "-c", "64"], home.path());
    terminal.line("Tell me of a fox.");
    terminal.wait("limit of 4 tokens");
    let long = "the fox and the crow went into the wood. ".repeat(6);
    terminal.line(&format!("/edit {long}"));
    terminal.wait("the context is full");
    // The question before and its answer are still there, and so is the long one.
    terminal.line("/regen");
    terminal.wait("the context is full");
    terminal.line("/edit");
    terminal.wait("Tell me of a fox.");
    terminal.keys("\r");
    terminal.wait("limit of 4 tokens");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}
