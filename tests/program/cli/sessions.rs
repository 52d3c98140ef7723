//! Protects `generate --session`: a text goes on as if it had been one, kills and full disks leave what was saved, and files that are in
//! use or hold something else are refused.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use glimt::engine::{Engine, Sampling, SessionFile, Wait};

use super::random::{Rng, rounds};
use super::{GREEDY, engine, error_line, failure, glimt, greedy_text, run, stderr, stdout};

fn named(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    path.to_str().expect("temporary paths are UTF-8").to_owned()
}

/// The tokens that `prompt` and a greedy answer of `n` tokens come to after `said`.
fn expected(engine: &Engine, said: &[u32], prompt: &str, n: usize) -> Vec<u32> {
    let next = engine.tokenizer().encode(prompt, said.is_empty());
    let mut all = [said, &next.expect("plain text")].concat();
    let mut session = engine.session().wait().expect("there is memory");
    let prompt = all.clone();
    let answer = session
        .generate(&prompt, &Sampling::GREEDY, n, &mut |token| {
            all.push(token);
            ControlFlow::Continue(())
        })
        .wait();
    answer.expect("it fits");
    all
}

#[test]
fn a_text_goes_on_from_its_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = named(folder.path(), "tale");
    let args = |prompt| [&GREEDY[..], &["--session", &path, "-n", "8", prompt]].concat();
    let first = run(&args("Once upon a time"));
    assert!(first.status.success(), "{}", stderr(&first));
    assert_eq!(
        stdout(&first),
        greedy_text(&["-n", "8", "Once upon a time"])
    );
    let told = stderr(&first);
    assert!(told.contains("tale: begun"), "{told}");
    let second = run(&args(" and then"));
    assert!(second.status.success(), "{}", stderr(&second));
    let engine = engine();
    let said = expected(&engine, &[], "Once upon a time", 8);
    let all = expected(&engine, &said, " and then", 8);
    let file = SessionFile::open(Path::new(&path), &engine).expect("it is whole");
    assert_eq!(file.tokens(), all);
    let told = stderr(&second);
    let reused = said.len() - 1;
    let line = format!(
        "{} tokens, {reused} of them in the cache; {reused} reused, 0",
        said.len()
    );
    assert!(told.contains(&line), "{told}");
    // The file is open here.
    let message = failure(&args(" and"), 1);
    assert!(
        error_line(&message).contains("in use by another process"),
        "{message}"
    );
    drop(file);
    let chat = [&args("Hello")[..3], &args("Hello")[4..]].concat();
    let message = failure(&chat, 2);
    assert!(
        error_line(&message).contains("go on with --raw"),
        "{message}"
    );
}

#[test]
fn a_conversation_in_a_template_goes_on_from_its_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = named(folder.path(), "chat");
    let args = |prompt| {
        let before = ["generate", "--device", "cpu", "--temp", "0", "-n", "6"];
        [&before[..], &["--session", &path, prompt]].concat()
    };
    for prompt in ["Tell me of a fox.", "And of a crow.", "Go on."] {
        let output = run(&args(prompt));
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let engine = engine();
    let file = SessionFile::open(Path::new(&path), &engine).expect("it is whole");
    let talk: serde_json::Value = serde_json::from_slice(file.data()).expect("it is JSON");
    let turns = talk["conversation"]["turns"].as_array().expect("a list");
    assert_eq!(turns.len(), 6, "{talk}");
    for pair in turns.chunks(2) {
        assert!(pair[0]["user"].is_string(), "{talk}");
        let ids = pair[1]["reply"]["answer"]["ids"].as_array();
        assert!(!ids.expect("a list").is_empty(), "{talk}");
    }
    assert_eq!(turns[2]["user"], "And of a crow.");
    drop(file);
    let message = failure(&[&args("Hello")[..], &["--raw"]].concat(), 2);
    assert!(
        error_line(&message).contains("leave out --raw"),
        "{message}"
    );
}

#[test]
fn a_conversation_that_was_killed_keeps_the_answer_as_far_as_it_came() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = named(folder.path(), "chat");
    let args = |prompt| {
        let before = ["generate", "--device", "cpu", "--temp", "0", "--session"];
        [&before[..], &[&path, prompt]].concat()
    };
    let mut child = glimt(&args("Tell me of a fox."))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let mut answer = child.stdout.take().expect("it is piped");
    let mut begins = [0; 16];
    std::io::Read::read_exact(&mut answer, &mut begins).expect("an answer");
    child.kill().expect("it runs");
    child.wait().expect("it was started");
    let output = run(&[&args("And of a crow.")[..], &["-n", "4", "--stop", "e"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let engine = engine();
    let file = SessionFile::open(Path::new(&path), &engine).expect("it is whole");
    let talk: serde_json::Value = serde_json::from_slice(file.data()).expect("it is JSON");
    let turns = talk["conversation"]["turns"].as_array().expect("a list");
    let said = |i: usize| {
        let said = match i % 2 {
            0 => &turns[i]["user"],
            _ => &turns[i]["reply"]["answer"]["text"],
        };
        said.as_str().expect("a text")
    };
    assert_eq!(turns.len(), 4, "{talk}");
    assert_eq!((said(0), said(2)), ("Tell me of a fox.", "And of a crow."));
    let begins = std::str::from_utf8(&begins).expect("plain text");
    assert!(said(1).starts_with(begins.trim_start()), "{talk}");
    // Without the text that stopped it.
    assert!(!said(3).contains('e'), "{talk}");
}

/// Kills a program that keeps a text in a file, again and again, at moments that fall all over its run.
fn kill(times: usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = named(folder.path(), "killed");
    let engine = engine();
    let args = [&GREEDY[..], &["--session", &path, "-n", "12", " and then"]].concat();
    let begin = Instant::now();
    assert!(run(&args).status.success());
    let whole = begin.elapsed();
    let mut said = expected(&engine, &[], " and then", 12);
    let (mut unfinished, mut rng) = (0, Rng::fresh());
    for _ in 0..rounds(times) {
        if said.len() > 150 {
            std::fs::remove_file(&path).expect("it is there");
            said.clear();
        }
        let all = expected(&engine, &said, " and then", 12);
        let prompt = all.len() - 12;
        let mut child = glimt(&args)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(
            whole
                .mul_f32(1.2 * rng.uniform())
                .max(Duration::from_millis(1)),
        );
        let _ = child.kill();
        child.wait().expect("it was started");
        let mut file = SessionFile::open(Path::new(&path), &engine)
            .unwrap_or_else(|error| panic!("after {} tokens: {error}", said.len()));
        let found = file.tokens().to_vec();
        // Nothing of what was said before is missing, and nothing else is there.
        assert!(
            found == said || found.len() >= prompt,
            "{} of {}",
            found.len(),
            prompt
        );
        assert_eq!(found, all[..found.len()]);
        let mut session = engine.session().wait().expect("there is memory");
        file.restore(&mut session).wait().expect("it is whole");
        unfinished += u32::from(found.len() < all.len());
        said = found;
    }
    assert!(unfinished > 0, "every run came to its end");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn killed_at_any_moment_a_file_opens_and_misses_a_tail_at_most() {
    kill(12);
}

/// The limit for files ends a process that does not ignore the signal, and so tells of a disk that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_that_leaves_what_was_saved() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = named(folder.path(), "full");
    let args = [&GREEDY[..], &["--session", &path, "-n", "4", "A fox"]].concat();
    assert!(run(&args).status.success());
    let engine = engine();
    let kept = |engine| {
        let file = SessionFile::open(Path::new(&path), engine).expect("it is whole");
        (file.tokens().to_vec(), file.cached())
    };
    let before = kept(&engine);
    // With so many more blocks of 512 bytes.
    let limited = |more: u64, prompt: &str| {
        let blocks = std::fs::metadata(&path).expect("it is there").len() / 512 + more;
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let output = std::process::Command::new("sh")
            .args(["-c", &script, "sh"])
            .arg(glimt(&[]).get_program())
            .args(&args[..args.len() - 1])
            .arg(prompt)
            .env("GLIMT_CONFIG", "")
            .env_remove("GLIMT_MODEL")
            .env_remove("GLIMT_DEVICE")
            .stdin(std::process::Stdio::null())
            .output()
            .expect("there is a shell");
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            error_line(told).contains("cannot write the session file"),
            "{told}"
        );
        output
    };
    // No room for the journal of the prompt.
    limited(
        1,
        &"the king and the queen and the fox and the crow ".repeat(4),
    );
    let (tokens, cached) = kept(&engine);
    assert_eq!(tokens[..before.0.len()], before.0);
    assert_eq!(cached, before.1);
    // Room for the journal, but not for the rows of the turn: the answer is there, with its figures.
    let output = limited(4, " and");
    assert!(stdout(&output).ends_with('\n'), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("generated: 4 tokens"),
        "{}",
        stderr(&output)
    );
    // With room again it goes on.
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(kept(&engine).0.len() > tokens.len());
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_what_was_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = named(folder.path(), "stopped");
    let args = [&GREEDY[..], &["--session", &path, "Once upon a time"]].concat();
    let mut child = glimt(&args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut answer = child.stdout.take().expect("it is piped");
    std::io::Read::read_exact(&mut answer, &mut [0; 8]).expect("an answer");
    let signal = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(signal.expect("there is kill").success());
    let reader = std::thread::spawn(move || std::io::Read::read_to_end(&mut answer, &mut vec![]));
    let output = child.wait_with_output().expect("it was started");
    reader.join().expect("reading ends").expect("a pipe");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let engine = engine();
    let file = SessionFile::open(Path::new(&path), &engine).expect("it is whole");
    let prompt = engine
        .tokenizer()
        .encode("Once upon a time", true)
        .expect("plain text");
    assert!(
        file.tokens().len() > prompt.len(),
        "{}",
        file.tokens().len()
    );
    assert_eq!(file.cached(), file.tokens().len() - 1);
}
