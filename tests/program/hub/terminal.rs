//! Protects the questions that are asked in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use std::ptr::null_mut;

use super::server::Server;
use super::{Home, files, noise};

/// A pseudo-terminal: the side of whoever sits there, and that of the program.
fn terminal() -> (File, File) {
    let (mut user, mut program) = (0, 0);
    // SAFETY: both places are integers of this frame, and the last three may be null.
    let failed =
        unsafe { libc::openpty(&mut user, &mut program, null_mut(), null_mut(), null_mut()) };
    assert_eq!(failed, 0, "the system has pseudo-terminals");
    // SAFETY: the call gave two open descriptors that nothing else owns.
    let open = |descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) };
    (open(user).into(), open(program).into())
}

/// Runs a command in a terminal where `answer` is typed; returns whether it succeeded, its standard output, and the screen.
fn typed(home: &Home, server: &Server, args: &[&str], answer: &str) -> (bool, String, String) {
    let (mut user, program) = terminal();
    let clone = || Stdio::from(program.try_clone().expect("it is open"));
    let mut command = home.glimt(server, args);
    command
        .stdin(clone())
        .stderr(clone())
        .stdout(Stdio::piped());
    let child = command.spawn().expect("it runs");
    user.write_all(answer.as_bytes())
        .expect("it takes what is typed");
    drop((command, program));
    let mut screen = vec![];
    // The end is an error on some systems; what came before it counts.
    let _ = user.read_to_end(&mut screen);
    let output = child.wait_with_output().expect("it ends");
    let screen = String::from_utf8_lossy(&screen).into_owned();
    (output.status.success(), super::stdout(&output), screen)
}

#[test]
fn a_model_that_is_not_here_is_fetched_if_the_answer_is_yes() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "tales-Q4_K_M.gguf", super::TALES);
    server.put("a/b", "tales-Q8_0.gguf", noise(5000, 1));
    let generate = [
        "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "4", "-m", "a/b", "Once",
    ];
    let (succeeded, text, screen) = typed(&home, &server, &generate, "n\n");
    assert!(!succeeded && text.is_empty(), "{screen}");
    for expected in [
        "a/b:Q4_K_M",
        "MiB in 1 file",
        "it also has Q8_0",
        "all of it would run on ",
        "Fetch 9.5 MiB? [y/N]",
        "a/b was not fetched",
    ] {
        assert!(screen.contains(expected), "{expected}: {screen}");
    }
    assert!(files(&home.hub()).is_empty());
    let (succeeded, text, screen) = typed(&home, &server, &generate, "y\n");
    assert!(succeeded && !text.is_empty(), "{screen}");
}

#[test]
fn short_names_and_removals_are_asked_about() {
    let (server, home) = (Server::start(), Home::new());
    let (alias, repo) = glimt_formats::aliases::ALIASES[0];
    server.put(repo, "m-Q4_K_M.gguf", noise(5000, 1));
    let (succeeded, _, screen) = typed(&home, &server, &["pull", alias], "\n");
    assert!(
        !succeeded && screen.contains(repo) && screen.contains("Fetch 4.9 KiB?"),
        "{screen}"
    );
    let (succeeded, path, screen) = typed(&home, &server, &["pull", alias], "yes\n");
    assert!(succeeded && path.ends_with("m-Q4_K_M.gguf\n"), "{screen}");
    let (succeeded, _, screen) = typed(&home, &server, &["rm", alias], "n\n");
    assert!(
        succeeded && screen.contains("Remove it?") && screen.contains("nothing was removed"),
        "{screen}"
    );
    let (succeeded, _, screen) = typed(&home, &server, &["rm", alias], "y\n");
    assert!(succeeded && screen.contains("are free again"), "{screen}");
    assert_eq!(files(&home.hub()), ["CACHEDIR.TAG"]);
}
