//! Protects pulling from hubs, lines and disks that fail: what is whole is right, what is not is fetched on, and all of it is told.

use std::fs;
use std::time::{Duration, Instant};

use super::server::{Manners, Server, sha256};
use super::{Home, failed, files, noise, parts, pull, stderr};

const LENGTH: usize = 3_000_000;

/// A hub with one model.
fn hub() -> (Server, Home) {
    let server = Server::start();
    server.put("a/b", "m-Q4_0.gguf", noise(LENGTH, 1));
    (server, Home::new())
}

/// Pulls from a hub that behaves so, and expects the right bytes; returns what was told.
fn pulled(manners: Manners) -> (Vec<String>, Server) {
    let (server, home) = hub();
    server.behave(manners);
    let (path, told) = home.pull(&server, "a/b");
    let path = path.unwrap_or_else(|error| panic!("{error}: {told:?}"));
    assert!(fs::read(path).expect("it is there") == noise(LENGTH, 1));
    assert!(parts(&home).is_empty());
    (told, server)
}

#[test]
fn a_line_that_breaks_is_taken_up_where_it_broke() {
    let (told, server) = pulled(Manners {
        cut: Some((3, 900_000)),
        ..Manners::default()
    });
    assert_eq!(
        told.iter().filter(|told| told.starts_with("Again")).count(),
        3,
        "{told:?}"
    );
    let ranges: Vec<_> = server
        .asked()
        .iter()
        .filter_map(|asked| asked.headers.get("range").cloned())
        .collect();
    assert_eq!(
        ranges,
        ["bytes=900000-", "bytes=1800000-", "bytes=2700000-"]
    );
}

#[test]
fn a_line_that_only_breaks_is_given_up_and_its_part_stays() {
    let (server, home) = hub();
    server.behave(Manners {
        cut: Some((usize::MAX, 1000)),
        ..Manners::default()
    });
    let (result, told) = home.pull(&server, "a/b");
    let error = result.expect_err("it never comes").to_string();
    assert!(error.contains("after 4000 of 3000000 bytes"), "{error}");
    assert_eq!(
        told.iter().filter(|told| told.starts_with("Again")).count(),
        3,
        "{told:?}"
    );
    assert_eq!(parts(&home).len(), 1);
    server.behave(Manners::default());
    home.pull(&server, "a/b").0.expect("it comes now");
    let sent: Vec<_> = server.asked().iter().map(|asked| asked.sent).collect();
    assert_eq!(sent.last(), Some(&(LENGTH - 4000)), "only what was missing");
}

#[test]
fn a_dead_line_is_left_and_a_slow_one_is_borne() {
    let began = Instant::now();
    let (told, _) = pulled(Manners {
        silent: Some((2, 500_000)),
        ..Manners::default()
    });
    assert_eq!(
        told.iter().filter(|told| told.starts_with("Again")).count(),
        2,
        "{told:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(20));
    // Each piece comes in time, though all together take longer than the silence that is borne.
    let slow = Some((LENGTH / 8, Duration::from_millis(150)));
    let (told, _) = pulled(Manners {
        slow,
        ..Manners::default()
    });
    assert!(
        !told.iter().any(|told| told.starts_with("Again")),
        "{told:?}"
    );
}

#[test]
fn refused_ranges_start_over() {
    for refusal in [200, 416] {
        let manners = Manners {
            cut: Some((1, 900_000)),
            no_ranges: Some(refusal),
            ..Manners::default()
        };
        let (told, _) = pulled(manners);
        assert!(
            told.iter().any(|told| told.starts_with("StartOver")),
            "{refusal}: {told:?}"
        );
    }
}

#[test]
fn a_wrong_checksum_is_refused_and_nothing_is_kept() {
    let (server, home) = hub();
    server.behave(Manners {
        flip: true,
        ..Manners::default()
    });
    let error = home.failure(&server, &["pull", "a/b"], 1);
    assert!(
        error.contains("its checksum is") && error.contains(&sha256(&noise(LENGTH, 1))),
        "{error}"
    );
    let left = files(&home.hub());
    assert!(
        left.iter()
            .all(|name| name.contains(".locks") || name.contains("TAG")),
        "{left:?}"
    );
    assert_eq!(home.text(&server, &["list"]), "");
    server.behave(Manners::default());
    home.pull(&server, "a/b")
        .0
        .expect("the right bytes come now");
}

#[test]
fn a_damaged_part_of_an_earlier_run_is_fetched_once_more() {
    let (server, home) = hub();
    let blobs = home.hub().join("models--a--b/blobs");
    fs::create_dir_all(&blobs).expect("it can be made");
    for length in [1000, LENGTH, LENGTH + 1] {
        let _ = fs::remove_dir_all(home.hub().join("models--a--b/snapshots"));
        let sum = sha256(&noise(LENGTH, 1));
        let _ = fs::remove_file(blobs.join(&sum));
        fs::write(blobs.join(format!("{sum}.incomplete")), vec![7; length])
            .expect("it can be written");
        let (path, told) = home.pull(&server, "a/b");
        let path = path.expect("the right bytes come the second time");
        assert!(
            fs::read(path).expect("it is there") == noise(LENGTH, 1),
            "{told:?}"
        );
    }
}

#[test]
fn more_than_was_told_is_refused() {
    let (server, home) = hub();
    server.behave(Manners {
        more: true,
        ..Manners::default()
    });
    let error = home
        .pull(&server, "a/b")
        .0
        .expect_err("it is too long")
        .to_string();
    assert!(error.contains("more than the 3000000 bytes"), "{error}");
    assert!(
        !files(&home.hub())
            .iter()
            .any(|name| name.contains("snapshots"))
    );
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let (server, home) = hub();
    let storage = Server::start();
    storage.put("a/b", "m-Q4_0.gguf", noise(LENGTH, 1));
    server.behave(Manners {
        storage: Some(storage.url()),
        hops: 2,
        token: Some("hf_secret"),
        cut: None,
        ..Manners::default()
    });
    storage.behave(Manners {
        cut: Some((1, 1_000_000)),
        ..Manners::default()
    });
    let error = home.failure(&server, &["pull", "a/b"], 1);
    assert!(error.contains("HF_TOKEN"), "{error}");
    let wrong = home
        .glimt(&server, &["pull", "a/b"])
        .env("HF_TOKEN", "hf_other")
        .output()
        .expect("it runs");
    let error = failed(&wrong, 1);
    assert!(
        error.contains("does not accept") && !stderr(&wrong).contains("hf_other"),
        "{error}"
    );
    server.asked();
    // The token file of HF_HOME.
    fs::create_dir_all(home.path("huggingface")).expect("it can be made");
    fs::write(home.path("huggingface/token"), "hf_secret\n").expect("it can be written");
    home.text(&server, &["pull", "a/b"]);
    let (own, other) = (server.asked(), storage.asked());
    assert!(own.iter().all(|asked| {
        asked
            .headers
            .get("authorization")
            .is_some_and(|token| token == "Bearer hf_secret")
    }));
    assert!(own.len() >= 6 && other.len() == 2, "{own:?} {other:?}");
    for asked in &other {
        let headers = format!("{:?}", asked.headers);
        assert!(
            !headers.contains("hf_secret") && !headers.contains("authorization"),
            "{headers}"
        );
    }
    assert_eq!(
        other[1].headers.get("range").map(String::as_str),
        Some("bytes=1000000-")
    );
}

#[test]
fn redirects_in_a_circle_and_to_nowhere_are_refused() {
    for (manners, expected) in [
        (
            Manners {
                hops: 100,
                ..Manners::default()
            },
            "redirects again and again",
        ),
        (
            Manners {
                storage: Some("file:///etc".to_owned()),
                ..Manners::default()
            },
            "which is no address",
        ),
    ] {
        let (server, home) = hub();
        server.behave(manners);
        let error = home
            .pull(&server, "a/b")
            .0
            .expect_err("it leads nowhere")
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    for (status, headers, expected) in [
        (401, "", "set HF_TOKEN"),
        (
            403,
            "X-Error-Code: GatedRepo\r\n",
            "accept its conditions at http://127.0.0.1",
        ),
        (404, "", "the hub has no repository a/b"),
        (418, "", "answered with status 418"),
        (500, "", "try again later"),
        (429, "Retry-After: 86400\r\n", "asks to wait 86400 s"),
        (429, "", "too many requests"),
    ] {
        let (server, home) = hub();
        server.behave(Manners {
            refuse: Some((usize::MAX, status, headers)),
            ..Manners::default()
        });
        let (result, told) = home.pull(&server, "a/b");
        let error = result.expect_err("it is refused").to_string();
        assert!(error.contains(expected), "{error}");
        let again = matches!((status, headers), (500, _) | (429, ""));
        assert_eq!(!told.is_empty(), again, "{status}: {told:?}");
        assert!(files(&home.hub()).is_empty());
    }
}

#[test]
fn a_hub_that_asks_for_patience_gets_it() {
    let began = Instant::now();
    let (told, _) = pulled(Manners {
        refuse: Some((1, 429, "Retry-After: 1\r\n")),
        ..Manners::default()
    });
    assert!(began.elapsed() >= Duration::from_secs(1), "{told:?}");
    assert!(told[0].contains("wait: 1s"), "{told:?}");
    let (told, _) = pulled(Manners {
        refuse: Some((2, 503, "")),
        ..Manners::default()
    });
    assert_eq!(
        told.iter().filter(|told| told.starts_with("Again")).count(),
        2,
        "{told:?}"
    );
}

#[test]
fn a_hub_that_is_not_there_is_told() {
    let (server, home) = hub();
    let mut settings = home.settings(&server);
    // Nothing listens on the port of a listener that was dropped.
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("it is bound");
    settings.endpoint = format!("http://{gone}");
    let error = pull(&settings, "a/b")
        .0
        .expect_err("nobody answers")
        .to_string();
    assert!(error.contains("look at the connection"), "{error}");
}

#[test]
fn names_that_would_leave_the_cache_are_refused() {
    for name in [
        "../../../evil.gguf",
        "/tmp/evil.gguf",
        "a/../../evil.gguf",
        "a\\..\\evil.gguf",
        "C:evil.gguf",
        "a//evil.gguf",
    ] {
        let (server, home) = hub();
        server.behave(Manners {
            rename: Some(name.to_owned()),
            ..Manners::default()
        });
        let error = home
            .pull(&server, "a/b")
            .0
            .expect_err("it would leave the cache")
            .to_string();
        assert!(error.contains("outside of the cache"), "{error}");
        assert!(files(home.folder.path()).is_empty());
    }
    let sum = "0".repeat(64);
    for (commit, sha256, expected) in [
        ("../../../../evil", sum.as_str(), "found the commit"),
        (
            "0123456789abcdef0123456789abcdef01234567",
            "../../../../evil",
            "no checksum",
        ),
    ] {
        let (server, home) = hub();
        let file = format!(
            r#"{{"rfilename":"m.gguf","size":5000,"lfs":{{"sha256":"{sha256}","size":5000}}}}"#
        );
        let listing = format!(r#"{{"sha":"{commit}","siblings":[{file}]}}"#);
        server.behave(Manners {
            listing: Some(listing),
            ..Manners::default()
        });
        let result = home.pull(&server, "a/b").0;
        let error = result.expect_err("it would leave the cache").to_string();
        assert!(
            error.contains(expected) || error.contains("has no file m.gguf"),
            "{error}"
        );
        assert!(files(home.folder.path()).is_empty());
    }
}

#[test]
fn answers_that_mean_nothing_are_told() {
    for listing in [
        "",
        "<html>",
        "[]",
        "{}",
        "{\"sha\":1,\"siblings\":[]}",
        "\u{feff}{",
    ] {
        let (server, home) = hub();
        server.behave(Manners {
            listing: Some(listing.to_owned()),
            ..Manners::default()
        });
        let error = home
            .pull(&server, "a/b")
            .0
            .expect_err("it is no list")
            .to_string();
        assert!(error.contains("HF_ENDPOINT"), "{error}");
    }
}

#[test]
fn room_is_asked_for_before_anything_is_fetched() {
    let (server, home) = hub();
    server.behave(Manners {
        claim: Some(1 << 60),
        ..Manners::default()
    });
    let error = home.failure(&server, &["pull", "a/b"], 1);
    assert!(
        error.contains("are needed in") && error.contains("HF_HOME"),
        "{error}"
    );
    assert_eq!(server.asked().len(), 1, "only the list was asked for");
    assert!(files(&home.hub()).is_empty());
}

/// A shell lets the program write no file of more than a mebibyte: the system then refuses as a full disk does.
#[cfg(unix)]
#[test]
fn what_a_full_disk_took_is_kept() {
    let (server, home) = hub();
    let command = home.glimt(&server, &["pull", "a/b"]);
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$@\"", "bash"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let error = failed(&shell.output().expect("there is a shell"), 1);
    assert!(
        error.contains("cannot write") && error.contains("what is fetched is kept"),
        "{error}"
    );
    assert_eq!(parts(&home).len(), 1);
    server.asked();
    home.text(&server, &["pull", "a/b"]);
    let sent = server.asked().iter().map(|asked| asked.sent).sum::<usize>();
    assert_eq!(sent, LENGTH - (1 << 20), "only what was missing");
}

/// The device that is always full stands where the part would be.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let (server, home) = hub();
    let blobs = home.hub().join("models--a--b/blobs");
    fs::create_dir_all(&blobs).expect("it can be made");
    let part = blobs.join(format!("{}.incomplete", sha256(&noise(LENGTH, 1))));
    std::os::unix::fs::symlink("/dev/full", &part).expect("links are possible");
    let error = home.failure(&server, &["pull", "a/b"], 1);
    assert!(
        error.contains("No space left on device") && error.contains("make room"),
        "{error}"
    );
    assert!(
        !files(&home.hub())
            .iter()
            .any(|name| name.contains("snapshots"))
    );
}
