//! Protects what a terminal shows: colours where they are wanted and no escape codes elsewhere, lines that fit and end between words.

use std::path::Path;

use super::terminal::Terminal;
use super::{failure, glimt, json, run, stderr, stdout, text};

const CHAT: [&str; 5] = ["chat", "--device", "cpu", "--temp", "0"];

fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// All that a command writes to a terminal of 80 columns, without control sequences and with them.
fn shown(args: &[&str], home: &Path, variables: &[(&str, &str)]) -> (String, String) {
    let mut terminal = Terminal::start_in(args, home, [50, 80], variables);
    let text = terminal.all();
    (text, terminal.raw())
}

#[test]
fn bars_are_coloured_in_a_terminal_and_no_escape_code_is_seen() {
    let home = home();
    let inspect = ["inspect", "--device", "cpu"];
    let bench = ["bench", "--device", "cpu", "-p", "3", "-n", "2", "-r", "1"];
    for args in [&inspect[..], &bench[..]] {
        let (text, raw) = shown(args, home.path(), &[]);
        assert!(!text.contains("u{1b}"), "{args:?}: {text}");
        assert!(raw.contains("\x1b[34m"), "{args:?}: {raw:?}");
        for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb"), ("CLICOLOR", "0")] {
            let (_, raw) = shown(args, home.path(), &[(name, value)]);
            assert!(!raw.contains("\x1b[34m"), "{args:?} {name}: {raw:?}");
        }
    }
    // Output that no terminal reads is coloured only if that is forced.
    let forced = |value: &str| {
        let mut command = glimt(&["inspect", "--device", "cpu", "--bars"]);
        command.env_remove("NO_COLOR").env("CLICOLOR_FORCE", value);
        let output = command
            .output()
            .expect("the binary was built with this test");
        stdout(&output).contains("\x1b[34m")
    };
    assert!(forced("1") && !forced("0") && !forced(""));
}

#[test]
fn tables_fit_80_columns() {
    let home = home();
    let bench = [
        "bench", "--device", "cpu", "-p", "3", "-n", "2", "-d", "0,8", "-r", "1",
    ];
    let two = [
        &bench[..],
        &[
            "--model",
            concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tales-q4_k_m.gguf"),
        ],
        &["-pg", "2,2"],
    ]
    .concat();
    for args in [&bench[..], &two] {
        let (text, _) = shown(args, home.path(), &[]);
        let table: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert!(table.len() >= 4 && text.contains("tg2 @ d8"), "{text}");
        // A bar is drawn over itself, so its line has several in a row.
        for line in text.lines().filter(|line| !line.contains('░')) {
            assert!(line.trim_end().chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn errors_and_pages_are_broken_between_words() {
    let home = home();
    for (args, words) in [
        // An error of glimt, one of the parser, a warning, two pages.
        (&["generate"][..], "standard input"),
        (&["generate", "--tier", "int9", "A"], "plain, subgroup"),
        (
            &["inspect", "--device", "cpu", "nothing-of-this-name"],
            "can be fetched",
        ),
        (&["inspect", "--device", "cpu"], "normalised and"),
        (&["devices"], "CPU with "),
    ] {
        for variables in [&[][..], &[("CLICOLOR_FORCE", "1")], &[("NO_COLOR", "1")]] {
            let (text, _) = shown(args, home.path(), variables);
            let lines: Vec<_> = text.lines().map(str::trim_end).collect();
            assert!(
                lines.iter().all(|line| line.chars().count() <= 80),
                "{args:?}: {text}"
            );
            let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(joined.contains(words), "{args:?}: {text}");
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_table_of_verify_fits_80_columns() {
    let home = home();
    let (text, _) = shown(&["verify", "--device", "cpu"], home.path(), &[]);
    assert!(
        text.contains("verdict") && text.contains("passed"),
        "{text}"
    );
    for line in text.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line}");
    }
}

#[test]
fn answers_are_broken_between_words() {
    let home = home();
    let question = "Tell me of a fox.";
    let args = [&CHAT[..], &["-n", "60", "-q"]].concat();
    let mut whole = Terminal::start(&args, home.path(), [50, 400]);
    whole.line(question);
    whole.wait(question);
    whole.line("/bye");
    let whole = whole.all();
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let args = [&args[..], &["-p", question]].concat();
    let mut narrow = Terminal::start(&args, home.path(), [50, 24]);
    narrow.wait("> ");
    let rows = narrow.rows();
    narrow.keys("\x04");
    narrow.end();
    let rows: Vec<_> = rows
        .iter()
        .take_while(|row| !row.starts_with('>'))
        .collect();
    assert!(rows.len() > 5, "{rows:?}");
    // A word of a row is a word of the answer.
    let known = words(&whole);
    for row in rows {
        for word in words(row) {
            assert!(known.contains(&word), "{word:?} is no word of: {whole}");
        }
    }
}

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let home = home();
    let args = [&CHAT[..], &["-n", "5"]].concat();
    let mut terminal = Terminal::start_in(&args, home.path(), [24, 80], &[("TERM", "dumb")]);
    terminal.wait("/help lists");
    terminal.line("Tell me of a fox.");
    terminal.wait("limit of 5 tokens");
    terminal.line("/hlep");
    terminal.wait("no command /hlep");
    terminal.line("/edit");
    terminal.wait("takes the place of: Tell me of a fox.");
    terminal.line("Tell me of a crow.");
    terminal.wait("limit of 5 tokens");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
    assert!(!terminal.raw().contains('\x1b'), "{:?}", terminal.raw());
    let generate = ["generate", "--device", "cpu", "-n", "3", "A"];
    let (_, raw) = shown(&generate, home.path(), &[("TERM", "dumb")]);
    assert!(!raw.contains('\x1b'), "{raw:?}");
}

#[test]
fn notes_are_dim_and_quiet_leaves_nothing() {
    let home = home();
    let generate = ["generate", "--device", "cpu", "-n", "3", "A"];
    let (text, raw) = shown(&generate, home.path(), &[]);
    assert!(
        raw.contains("\x1b[2mmodel: ") && raw.contains("\x1b[2mprompt: "),
        "{raw:?}"
    );
    // All is well, so a note tells what answers, and another one how fast.
    assert_eq!(raw.matches("\x1b[2m").count(), 2, "{raw:?}");
    // Bars are drawn in a line before it is cleared.
    let mut lines = text.lines().filter(|line| !line.contains('░'));
    assert!(
        lines.all(|line| line.trim_end().chars().count() <= 80),
        "{text}"
    );
    let (text, _) = shown(&[&generate[..], &["-v"]].concat(), home.path(), &[]);
    for detail in [
        "context: 1024 of",
        "sampling: temperature",
        "stopped: limit",
    ] {
        assert!(text.contains(detail), "{detail}: {text}");
    }
    let mut chat = Terminal::start(&[&CHAT[..], &["-n", "3"]].concat(), home.path(), [24, 80]);
    let before = chat.wait("> ");
    for note in ["model: ", "/help lists"] {
        assert!(before.contains(note), "{before}");
    }
    for detail in ["sampling: ", "context: ", "seed"] {
        assert!(!before.contains(detail), "{before}");
    }
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    for args in [
        &["generate", "-n", "3", "A", "--device", "cpu"][..],
        &["chat", "-n", "3", "-p", "A", "--device", "cpu"],
        &[
            "perplexity",
            "-c",
            "64",
            "-f",
            concat!(env!("CARGO_MANIFEST_DIR"), "/assets/README.md"),
            "--device",
            "cpu",
        ],
        &["inspect", "--device", "cpu"],
        &["bench", "-p", "3", "-n", "2", "-r", "1", "--device", "cpu"],
        &["logits", "A", "--device", "cpu"],
    ] {
        let output = run(&[args, &["-q"]].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{args:?}");
    }
}

#[test]
fn tokens_that_are_parts_of_characters_are_shown_by_their_bytes() {
    let fox = "\u{1f98a}";
    let lines = text(&["tokenize", fox]);
    assert!(
        lines.contains("\\x") && !lines.contains('\u{fffd}'),
        "{lines}"
    );
    let pieces = json(&text(&["tokenize", "--json", fox]))["pieces"].clone();
    let mut bytes = vec![];
    for piece in pieces.as_array().expect("a list") {
        match piece {
            serde_json::Value::String(text) => bytes.extend(text.bytes()),
            list => bytes.extend(
                list.as_array()
                    .expect("bytes")
                    .iter()
                    .map(|b| b.as_u64().expect("a byte") as u8),
            ),
        }
    }
    assert!(bytes.ends_with(fox.as_bytes()), "{bytes:?}");
    let line = text(&["logits", "--device", "cpu", "--top", "2", "Once"]);
    let first = json(line.lines().last().expect("a line"));
    assert_eq!(first["text"], "Once");
    assert_eq!(first["texts"].as_array().map(Vec::len), Some(2), "{first}");
    let line = text(&["logits", "--device", "cpu", "--top", "all", "Once"]);
    assert!(json(line.lines().next().expect("a line"))["texts"].is_null());
}

#[test]
fn the_built_in_model_read_from_a_file_has_its_defaults() {
    let folder = home();
    let copy = folder.path().join("copy.gguf");
    std::fs::write(&copy, super::EMBEDDED).expect("it can be written");
    let args = [
        "generate", "--device", "cpu", "--json", "-n", "2", "-s", "1", "A",
    ];
    let built_in = json(&text(&args));
    let file = json(&text(
        &[&args[..], &["-m", copy.to_str().expect("a plain name")]].concat(),
    ));
    for field in ["context", "sampling", "text"] {
        assert_eq!(file[field], built_in[field], "{field}");
    }
    assert_eq!(file["context"], 1024);
}

#[test]
fn a_conversation_begins_with_a_file_and_a_prompt() {
    let folder = home();
    let notes = super::write(folder.path(), "notes.txt", b"- A fox lived in a wood.\n");
    let args = [
        &CHAT[..],
        &["-n", "4", "-f", &notes, "-p", "- Who lived there?"],
    ]
    .concat();
    let session = folder.path().join("fox.session").display().to_string();
    let output = run(&[&args[..], &["--session", &session]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).trim().is_empty());
    let file = glimt::engine::SessionFile::open(Path::new(&session), &super::engine());
    let data = json(&String::from_utf8_lossy(file.expect("it is whole").data()));
    let turns = &data["conversation"]["turns"];
    assert_eq!(
        turns[0]["user"], "- A fox lived in a wood.\n\n- Who lived there?",
        "{data}"
    );
    assert_eq!(turns.as_array().map(Vec::len), Some(2), "{data}");
}

#[test]
fn answers_of_a_conversation_end_at_texts_and_keep_to_grammars() {
    let args = [&CHAT[..], &["--grammar", "root ::= \"yes, \" \"really\""]].concat();
    let lines = "Is it?\n/set grammar \"\"\n/set stop , \n/set json-schema {\"enum\": [\"fox, crow\"]}\nWho?\n/regen\n";
    let output = super::pipes::piped(&args, lines.as_bytes());
    assert!(output.status.success(), "{}", stderr(&output));
    let answers: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(
        answers,
        ["yes, really", "\"fox", "\"fox"],
        "{}",
        stderr(&output)
    );
    let wrong = failure(&[&CHAT[..], &["--grammar", "root ::= fox"]].concat(), 1);
    assert!(wrong.contains("there is no rule fox"), "{wrong}");
}

#[test]
fn another_context_goes_on_with_the_conversation() {
    let home = home();
    let session = home.path().join("fox.session");
    let args = [
        "-n",
        "4",
        "-c",
        "64",
        // The line with the context is broken where the length of a drawn seed decides.
        "--seed",
        "7",
        "--session",
        session.to_str().expect("a plain name"),
    ];
    let mut terminal = Terminal::start(&[&CHAT[..], &args].concat(), home.path(), [24, 80]);
    terminal.line("Tell me of a fox.");
    terminal.wait("limit of 4 tokens");
    terminal.line("/set temp 0.5");
    terminal.wait("ctx: 64");
    terminal.line("/set ctx many");
    terminal.wait("expected a number of tokens");
    terminal.line("/set ctx 999999");
    terminal.wait("999999");
    terminal.line("/set ctx 256");
    terminal.wait("context: 256 of");
    terminal.wait(" of 256 tokens");
    terminal.keys("And then?\r");
    terminal.wait("limit of 4 tokens");
    terminal.line("/stats");
    let told = terminal.wait("context: ");
    assert!(told.contains("in all: 8 tokens generated"), "{told}");
    terminal.line("/set");
    terminal.wait("ctx: 256");
    terminal.line("/drop 2");
    let told = terminal.wait("brings them back");
    for expected in [
        "forgot 2 questions",
        "their answers",
        "0 questions left",
        "fox.session",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    terminal.line("/drop");
    terminal.wait("no question to forget");
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn the_last_answer_goes_to_the_clipboard() {
    let home = home();
    let mut terminal = Terminal::start(&[&CHAT[..], &["-n", "4"]].concat(), home.path(), [24, 80]);
    terminal.line("/copy");
    terminal.wait("nothing was asked");
    terminal.line("Tell me of a fox.");
    terminal.wait("limit of 4 tokens");
    terminal.line("/copy");
    terminal.wait("OSC 52");
    assert!(terminal.raw().contains("\x1b]52;c;"));
    terminal.line("/bye");
    assert_eq!(terminal.end(), 0);
}
