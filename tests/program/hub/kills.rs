//! Protects what a pull leaves behind when it is ended at any moment.

use std::process::Stdio;
use std::time::Duration;

use super::server::{Manners, Server};
use super::{Home, noise, parts};

const LENGTH: usize = 4_000_000;

/// Pulls and is killed `pause` after it begins, or after its first request if it is `met`; whether it was still at work.
#[cfg(unix)]
fn killed(home: &Home, server: &Server, met: bool, pause: Duration, signal: i32) -> bool {
    let mut command = home.glimt(server, &["pull", "a/b"]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    server.asked();
    while met && server.asked().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(pause);
    // SAFETY: the process is this one's child and has not been waited for, so its number is its own.
    unsafe { libc::kill(child.id() as i32, signal) };
    !child.wait().expect("it ends").success()
}

#[cfg(unix)]
#[test]
fn thirty_kills_at_random_moments_lose_nothing() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "m-Q4_0-00001-of-00002.gguf", noise(LENGTH, 1));
    server.put("a/b", "m-Q4_0-00002-of-00002.gguf", noise(LENGTH, 2));
    // Each piece takes so long that thirty short runs do not reach the end.
    let slow = Some((5_000, Duration::from_millis(10)));
    server.behave(Manners {
        slow,
        ..Manners::default()
    });
    let mut random = noise(60, std::process::id().into()).into_iter();
    let mut most = 0;
    let mut unfinished = 0;
    for run in 0..30 {
        let pause = Duration::from_millis(10 + u64::from(random.next().unwrap_or(0)) / 4);
        let signal = [libc::SIGKILL, libc::SIGINT, libc::SIGTERM][run % 3];
        // A loaded machine may need longer than a pause to begin a program, so two runs of three wait for it.
        let met = run % 9 < 6;
        unfinished += usize::from(killed(&home, &server, met, pause, signal));
        let there =
            |name: &String| std::fs::metadata(home.hub().join(name)).map_or(0, |there| there.len());
        let all = super::files(&home.hub());
        let fetched: u64 = all
            .iter()
            .filter(|name| name.contains("/blobs/"))
            .map(there)
            .sum();
        assert!(
            fetched >= most,
            "run {run}: {fetched} of {most} bytes are left"
        );
        most = fetched;
        // A file with its final name is whole.
        for name in all
            .iter()
            .filter(|name| name.contains("/blobs/") && !name.ends_with(".incomplete"))
        {
            assert_eq!(there(name), LENGTH as u64, "run {run}: {name}");
        }
    }
    assert!(
        unfinished >= 25,
        "{unfinished} of 30 runs were killed at work"
    );
    assert!(most > 0);
    server.behave(Manners::default());
    server.asked();
    let first = home.text(&server, &["pull", "a/b"]);
    let sent: u64 = server.asked().iter().map(|asked| asked.sent as u64).sum();
    assert_eq!(
        sent + most,
        2 * LENGTH as u64,
        "only what was missing is fetched"
    );
    for (no, name) in [
        (1, first.trim().to_owned()),
        (2, first.trim().replace("-00001-", "-00002-")),
    ] {
        assert!(std::fs::read(name).expect("it is there") == noise(LENGTH, no));
    }
    assert!(parts(&home).is_empty());
}

#[test]
fn two_pulls_at_once_fetch_once() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "m-Q4_0.gguf", noise(LENGTH, 3));
    server.behave(Manners {
        slow: Some((400_000, Duration::from_millis(50))),
        ..Manners::default()
    });
    let start = || {
        let mut command = home.glimt(&server, &["pull", "a/b"]);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs")
    };
    let both = [start(), start()].map(|child| child.wait_with_output().expect("it ends"));
    for output in &both {
        assert!(output.status.success(), "{}", super::stderr(output));
    }
    assert_eq!(both[0].stdout, both[1].stdout);
    let sent: usize = server.asked().iter().map(|asked| asked.sent).sum();
    assert_eq!(sent, LENGTH);
    let waited = both
        .iter()
        .filter(|output| super::stderr(output).contains("another program"))
        .count();
    assert_eq!(waited, 1);
}

/// A pull of two shards, begun: the first is there, and the second is on its way.
#[cfg(unix)]
fn begun(home: &Home, server: &Server) -> std::process::Child {
    server.put("a/b", "m-Q4_0-00001-of-00002.gguf", noise(5000, 1));
    server.put("a/b", "m-Q4_0-00002-of-00002.gguf", noise(LENGTH, 2));
    server.behave(Manners {
        slow: Some((40_000, Duration::from_millis(10))),
        ..Manners::default()
    });
    let mut command = home.glimt(server, &["pull", "a/b"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let second = home.hub().join(format!(
        "models--a--b/blobs/{}.incomplete",
        super::server::sha256(&noise(LENGTH, 2))
    ));
    while !second.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

#[cfg(unix)]
#[test]
fn a_model_is_not_removed_while_it_is_fetched() {
    let (server, home) = (Server::start(), Home::new());
    let child = begun(&home, &server);
    for name in ["a/b", "a/b:Q4_0"] {
        let error = home.failure(&server, &["rm", "--yes", name], 1);
        assert!(
            error.contains("another program fetches from a/b"),
            "{error}"
        );
    }
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", super::stderr(&output));
    let first = super::stdout(&output).trim().to_owned();
    for (no, name, length) in [
        (1, first.clone(), 5000),
        (2, first.replace("-00001-", "-00002-"), LENGTH),
    ] {
        assert!(std::fs::read(name).expect("it is there") == noise(length, no));
    }
    home.text(&server, &["rm", "--yes", "a/b"]);
    assert_eq!(super::files(&home.hub()), ["CACHEDIR.TAG"]);
}

#[cfg(unix)]
#[test]
fn what_vanishes_while_the_rest_is_fetched_is_told() {
    let (server, home) = (Server::start(), Home::new());
    let child = begun(&home, &server);
    let first = super::server::sha256(&noise(5000, 1));
    let first = home.hub().join("models--a--b/blobs").join(first);
    std::fs::remove_file(first).expect("it is there");
    let error = super::failed(&child.wait_with_output().expect("it ends"), 1);
    assert!(
        error.contains("m-Q4_0-00001-of-00002.gguf of a/b was removed"),
        "{error}"
    );
    server.behave(Manners::default());
    home.text(&server, &["pull", "a/b"]);
}

#[cfg(unix)]
#[test]
fn what_ctrl_c_ends_is_told_listed_and_removed() {
    let (server, home) = (Server::start(), Home::new());
    let child = begun(&home, &server);
    // SAFETY: the process is this one's child and has not been waited for, so its number is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().expect("it ends");
    let told = super::stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("what was fetched is kept"), "{told}");
    let list = home.run(&server, &["list"]);
    let told = super::stderr(&list);
    assert!(
        told.contains("begun and not finished:") && told.contains("of a/b; glimt pull goes on"),
        "{told}"
    );
    home.text(&server, &["rm", "--yes", "a/b"]);
    assert_eq!(super::files(&home.hub()), ["CACHEDIR.TAG"]);
    assert!(!super::stderr(&home.run(&server, &["list"])).contains("begun"));
}
