//! Protects pulling: the layout of the cache, the choice of files, names that commands take.

use std::collections::BTreeSet;
use std::fs;

use super::server::{Manners, Server, git_sha1, sha256};
use super::{Home, TALES, failed, files, noise, pull, stderr, stdout};

const REPO: &str = "teller/Tales-GGUF";

/// A hub with the built-in model in one quantisation and noise in others.
fn tales() -> Server {
    let server = Server::start();
    server.put(REPO, "tales-Q4_K_M.gguf", TALES);
    server.put(REPO, "tales-Q8_0.gguf", noise(5000, 1));
    server.put(REPO, "README.md", "A teller of tales.");
    server
}

#[test]
fn a_model_pulled_by_name_generates_text() {
    let (server, home) = (tales(), Home::new());
    let greedy = [
        "generate",
        "--device",
        "cpu",
        "--raw",
        "--temp",
        "0",
        "-n",
        "12",
        "Once upon a time",
    ];
    let built_in = home.text(&server, &greedy);
    let output = home.run(&server, &["pull", REPO]);
    assert!(output.status.success(), "{}", stderr(&output));
    let printed = stdout(&output);
    let commit = server.commit(REPO);
    let expected = home.hub().join(format!(
        "models--teller--Tales-GGUF/snapshots/{commit}/tales-Q4_K_M.gguf"
    ));
    assert_eq!(printed, format!("{}\n", expected.display()));
    assert_eq!(fs::read(&expected).expect("it is there"), TALES);
    let told = stderr(&output);
    assert!(
        told.contains("teller/Tales-GGUF:Q4_K_M") && told.contains("it also has Q8_0"),
        "{told}"
    );
    // From then on no hub is asked.
    server.asked();
    for (model, by) in [
        (REPO, "-m"),
        ("teller/tales-gguf:q4_k_m", "--model"),
        (printed.trim(), "-m"),
    ] {
        let output = home.run(&server, &[&greedy[..], &[by, model]].concat());
        assert_eq!(stdout(&output), built_in, "{}", stderr(&output));
        assert_eq!(
            stderr(&output).contains("Hugging Face cache"),
            model != printed.trim()
        );
    }
    let variable = home
        .glimt(&server, &greedy)
        .env("GLIMT_MODEL", REPO)
        .output()
        .expect("it runs");
    assert_eq!(stdout(&variable), built_in, "{}", stderr(&variable));
    let config = home.path("glimt.toml");
    fs::write(&config, format!("model = \"{REPO}\"\n")).expect("it can be written");
    let configured = home
        .glimt(&server, &greedy)
        .env("GLIMT_CONFIG", &config)
        .output()
        .expect("it runs");
    assert_eq!(stdout(&configured), built_in, "{}", stderr(&configured));
    let inspected = home.text(&server, &["inspect", REPO, "--json"]);
    assert!(inspected.contains("tales-Q4_K_M.gguf"), "{inspected}");
    assert!(server.asked().is_empty());
}

#[test]
fn the_cache_is_laid_out_as_huggingface_hub_does() {
    let server = Server::start();
    let home = Home::new();
    let (large, small) = (noise(70_000, 2), noise(500, 3));
    server.put("a/b", "deep/model-Q4_0.gguf", large.clone());
    server.put("a/b", "small-Q8_0.gguf", small.clone());
    let commit = server.commit("a/b");
    home.pull(&server, "a/b:Q4_0").0.expect("it is pulled");
    home.pull(&server, "a/b:Q8_0").0.expect("it is pulled");
    let (large, small) = (sha256(&large), git_sha1(&small));
    let mut expected = vec![
        "CACHEDIR.TAG".to_owned(),
        format!(".locks/models--a--b/{large}.lock"),
        format!(".locks/models--a--b/{small}.lock"),
        format!("models--a--b/blobs/{large}"),
        format!("models--a--b/blobs/{small}"),
        "models--a--b/refs/main".to_owned(),
        format!("models--a--b/snapshots/{commit}/deep/model-Q4_0.gguf"),
        format!("models--a--b/snapshots/{commit}/small-Q8_0.gguf"),
    ];
    expected.sort();
    assert_eq!(files(&home.hub()), expected);
    let folder = home.hub().join("models--a--b");
    assert_eq!(
        fs::read_to_string(folder.join("refs/main")).expect("it is there"),
        commit
    );
    let link = |name: &str| {
        fs::read_link(folder.join("snapshots").join(&commit).join(name)).expect("a link")
    };
    assert_eq!(
        link("deep/model-Q4_0.gguf").to_str(),
        Some(&*format!("../../../blobs/{large}"))
    );
    assert_eq!(
        link("small-Q8_0.gguf").to_str(),
        Some(&*format!("../../blobs/{small}"))
    );
}

#[test]
fn a_new_commit_fetches_only_what_is_new() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "m-Q4_0.gguf", noise(90_000, 4));
    let old = home.pull(&server, "a/b:Q4_0").0.expect("it is pulled");
    server.put("a/b", "m-Q8_0.gguf", noise(90_000, 5));
    server.asked();
    let new = home.pull(&server, "a/b:Q4_0").0.expect("it is pulled");
    let content = server.asked().iter().map(|asked| asked.sent).sum::<usize>();
    assert_eq!(content, 0, "the same bytes are there under the old commit");
    assert_ne!(old, new);
    assert_eq!(
        fs::read(&old).expect("it stays"),
        fs::read(&new).expect("it is there")
    );
}

#[test]
fn all_shards_are_pulled_and_the_first_is_printed() {
    let (server, home) = (Server::start(), Home::new());
    let name = |no| format!("Q8_0/m-Q8_0-0000{no}-of-00003.gguf");
    for no in 1..=3 {
        server.put("a/b", &name(no), noise(20_000, no));
    }
    let first = home.pull(&server, "a/b").0.expect("it is pulled");
    for no in 1..=3 {
        let path = first
            .parent()
            .and_then(|folder| folder.parent())
            .expect("two folders")
            .join(name(no));
        assert_eq!(fs::read(path).expect("it is there"), noise(20_000, no));
    }
    assert!(first.ends_with(name(1)));
    let listed = home.text(&server, &["list", "--json"]);
    assert!(listed.contains("\"bytes\":60000"), "{listed}");
}

#[test]
fn a_quantisation_that_is_not_there_is_told_with_those_that_are() {
    let (server, home) = (tales(), Home::new());
    let error = home.failure(&server, &["pull", &format!("{REPO}:Q5_K_M")], 1);
    assert_eq!(
        error,
        format!("{REPO} has no Q5_K_M; it has Q4_K_M (9.5 MiB), Q8_0 (5000 bytes)")
    );
    let error = home.failure(&server, &["pull", &format!("{REPO}:Q")], 1);
    assert!(
        error.contains("name one: Q4_K_M (9.5 MiB), Q8_0 (5000 bytes)"),
        "{error}"
    );
    assert!(files(&home.hub()).is_empty());
}

#[test]
fn what_is_not_here_says_how_to_get_it() {
    let (server, home) = (tales(), Home::new());
    let error = |model: &str| {
        home.failure(
            &server,
            &["generate", "--device", "cpu", "-m", model, "Hi"],
            1,
        )
    };
    for (model, expected) in [
        (
            REPO,
            "there is no such file, and no model of this name is on this machine; fetch it with: glimt pull teller/Tales-GGUF",
        ),
        ("glm-4.7-flash:Q8_0", "glimt pull glm-4.7-flash:Q8_0"),
        ("talse", "glimt list shows what there is"),
        ("tales.gguf", "No such file"),
        ("./tales", "No such file"),
        ("models/tales/new", "No such file"),
    ] {
        let error = error(model);
        assert!(error.contains(expected) && error.contains(model), "{error}");
    }
    assert!(
        server.asked().is_empty(),
        "nothing is asked for without a word"
    );
    assert!(files(home.folder.path()).is_empty());
}

#[test]
fn wrong_names_and_variables_are_wrong_usage() {
    let (server, home) = (tales(), Home::new());
    for name in [
        "a",
        "../a",
        "a/../b",
        "a/b/c",
        "/etc/passwd",
        "a/b:",
        "",
        "a--b/c",
    ] {
        let error = home.failure(&server, &["pull", name], 2);
        assert!(error.contains(name), "{error}");
    }
    for (variable, value) in [
        ("HF_ENDPOINT", "hub"),
        ("HF_TOKEN", "a b"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "x"),
    ] {
        let output = home
            .glimt(&server, &["pull", REPO])
            .env(variable, value)
            .output()
            .expect("it runs");
        let error = failed(&output, 2);
        assert!(
            error.contains(variable) && !error.contains("a b"),
            "{error}"
        );
    }
    let error = home.failure(&server, &["pull", "ollama:tales"], 1);
    assert!(error.contains("ollama pull tales"), "{error}");
    assert!(server.asked().is_empty());
}

#[test]
fn offline_nothing_is_asked() {
    let (server, home) = (tales(), Home::new());
    let offline = |args: &[&str]| {
        home.glimt(&server, args)
            .env("HF_HUB_OFFLINE", "1")
            .output()
            .expect("it runs")
    };
    for args in [&["pull", REPO][..], &["inspect", REPO]] {
        let error = failed(&offline(args), 1);
        assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
    }
    assert!(server.asked().is_empty());
    let there = home.text(&server, &["pull", REPO]);
    server.asked();
    assert_eq!(stdout(&offline(&["pull", REPO])), there);
    // An empty variable is unset.
    let empty = home
        .glimt(&server, &["pull", REPO])
        .env("HF_HUB_OFFLINE", "")
        .output()
        .expect("it runs");
    assert_eq!(stdout(&empty), there);
    assert_eq!(server.asked().len(), 1, "the list of files, and no file");
}

#[test]
fn a_hub_without_checksums_in_its_list_tells_them_with_the_files() {
    let (server, storage, home) = (Server::start(), Server::start(), Home::new());
    for server in [&server, &storage] {
        server.put("a/b", "m-Q4_0.gguf", noise(70_000, 6));
        server.put("c/d", "m-Q4_0.gguf", noise(700, 7));
    }
    for storage in [None, Some(storage.url())] {
        server.behave(Manners {
            terse: true,
            storage,
            hops: 1,
            ..Manners::default()
        });
        for (repo, bytes) in [("a/b", noise(70_000, 6)), ("c/d", noise(700, 7))] {
            let home = Home::new();
            let result = home.pull(&server, repo).0;
            match result {
                Ok(path) => assert_eq!(fs::read(path).expect("it is there"), bytes),
                // A small file has its checksum from the storage, which is not asked for it.
                Err(error) => assert!(
                    repo == "c/d" && error.to_string().contains("no checksum"),
                    "{error}"
                ),
            }
        }
    }
    assert!(files(&home.hub()).is_empty());
}

#[test]
fn the_short_names_name_repositories() {
    let (server, home) = (Server::start(), Home::new());
    let all = glimt_formats::aliases::ALIASES;
    for (alias, repo) in all {
        server.put(repo, "m-Q4_K_M.gguf", noise(3000, 8));
        let output = home.run(&server, &["pull", alias]);
        let told = stderr(&output);
        assert!(
            output.status.success() && told.contains(repo) && told.contains("nobody has verified"),
            "{told}"
        );
        assert!(home.run(&server, &["list"]).status.success());
        let settings = home.settings(&server);
        pull(&settings, alias).0.expect("it is there already");
    }
    let lines = home.text(&server, &["list"]).lines().count();
    let repositories: BTreeSet<_> = all.iter().map(|(_, repo)| repo).collect();
    // The first line is a head.
    assert_eq!(lines, 1 + repositories.len());
}
