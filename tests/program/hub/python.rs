//! Protects the cache that is shared with PyPI's huggingface_hub: each program finds what the other has fetched from the same hub.

use std::process::Command;

use super::others::made;
use super::server::{Manners, Server};
use super::{Home, TALES, stdout};

/// Runs Python with the settings that the program gets; returns what it prints.
fn run(python: &str, home: &Home, server: &Server, code: &str) -> String {
    let settings = home.glimt(server, &[]);
    let mut command = Command::new(python);
    command
        .args(["-c", code])
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_TELEMETRY", "1");
    command.env("HF_HUB_DISABLE_UPDATE_CHECK", "1");
    for (name, value) in settings.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().expect("Python runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    stdout(&output).trim().to_owned()
}

#[test]
#[ignore = "long: scripts/test --all"]
fn each_program_finds_what_the_other_has_fetched() {
    let python = made("huggingface");
    let (server, storage) = (Server::start(), Server::start());
    for (repo, name) in [
        ("a/one", "deep/tales-Q4_K_M.gguf"),
        ("b/two", "tales-Q4_K_M.gguf"),
    ] {
        server.put(repo, name, TALES);
        storage.put(repo, name, TALES);
    }
    server.behave(Manners {
        storage: Some(storage.url()),
        ..Manners::default()
    });
    let home = Home::new();

    let theirs = "from huggingface_hub import hf_hub_download as get; print(get('a/one', 'deep/tales-Q4_K_M.gguf'))";
    let fetched = run(&python, &home, &server, theirs);
    server.asked();
    let generate = [
        "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "4", "-m", "a/one", "Once",
    ];
    let output = home.run(&server, &generate);
    assert!(output.status.success(), "{}", super::stderr(&output));
    assert!(super::stderr(&output).contains(&fetched));
    assert!(server.asked().is_empty(), "what is here is not asked for");
    let again = home.text(&server, &["pull", "a/one"]);
    assert_eq!(again.trim(), fetched);
    assert!(server.asked().iter().all(|asked| asked.sent == 0));

    let ours = home.text(&server, &["pull", "b/two"]);
    server.asked();
    let local = "from huggingface_hub import hf_hub_download as get; print(get('b/two', 'tales-Q4_K_M.gguf', local_files_only=True))";
    assert_eq!(run(&python, &home, &server, local), ours.trim());
    let scan = "from huggingface_hub import scan_cache_dir as scan; s = scan(); print(len(s.warnings), sorted((r.repo_id, r.nb_files) for r in s.repos))";
    assert_eq!(
        run(&python, &home, &server, scan),
        "0 [('a/one', 1), ('b/two', 1)]"
    );
    assert!(server.asked().is_empty());
    // With the hub asked, too, nothing is fetched again.
    let online = local.replace(", local_files_only=True", "");
    assert_eq!(run(&python, &home, &server, &online), ours.trim());
    assert!(server.asked().iter().all(|asked| asked.method == "HEAD"));

    home.text(&server, &["rm", "--yes", "a/one"]);
    assert_eq!(run(&python, &home, &server, scan), "0 [('b/two', 1)]");
}
