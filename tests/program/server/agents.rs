//! Protects who works with agents: Codex and Claude Code edit two files by what the scripted model says, and come to their end.

use std::path::Path;
use std::process::{Command, Output};

use super::Server;
use super::others::made;
use super::scripted::{Script, scripted};

const END: &str = "Both files are edited.";

/// A call of a tool as the model writes it.
fn call(name: &str, arguments: &[(&str, &str)]) -> String {
    let pairs = arguments.iter();
    let pairs =
        pairs.map(|(key, value)| format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"));
    format!("<tool_call>{name}{}</tool_call>", pairs.collect::<String>())
}

/// A server whose model answers so to an agent, with the context that agents want.
fn server(folder: &Path, steps: &[String]) -> Server {
    let mut steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    steps.push(END);
    let script = Script {
        steps: &steps,
        thoughts: "A title is asked for.",
        text: "Two edits.",
        context: 65536,
        template: None,
    };
    let model = scripted(folder, "script", &script);
    let model = model.to_str().expect("temporary paths are UTF-8 here");
    Server::start(&["-m", model, "--temp", "0", "-c", "65536"])
}

/// A folder with the two files, and a home beside it.
fn folders() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for name in ["home", "work"] {
        std::fs::create_dir(folder.path().join(name)).expect("it is writable");
    }
    for (name, text) in [("a.txt", "one fox\n"), ("b.txt", "one hen\n")] {
        std::fs::write(folder.path().join("work").join(name), text).expect("it is writable");
    }
    folder
}

/// A command in the folder of the files, with a home of its own and without what the machine's user has set.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", folder.join("home"))
        .current_dir(folder.join("work"))
        .stdin(std::process::Stdio::null());
    command
}

/// Checks that the agent has said the end, and that both files are edited.
fn check(folder: &Path, output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains(END),
        "{said}\n{told}"
    );
    for (name, text) in [("a.txt", "two foxes\n"), ("b.txt", "two hens\n")] {
        let found = std::fs::read_to_string(folder.join("work").join(name));
        assert_eq!(found.expect("it is there"), text, "{said}\n{told}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn claude_code_edits_two_files() {
    let program = made("claude-code");
    let folder = folders();
    let work = folder.path().join("work");
    let path = |name: &str| work.join(name).display().to_string();
    let steps = [
        ("a.txt", "one fox", "two foxes"),
        ("b.txt", "one hen", "two hens"),
    ];
    let steps = steps.iter().flat_map(|(name, old, new)| {
        let read = call("Read", &[("file_path", &path(name))]);
        let edit = [
            ("file_path", path(name)),
            ("old_string", (*old).to_owned()),
            ("new_string", (*new).to_owned()),
        ];
        let edit: Vec<_> = edit
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        [read, call("Edit", &edit)]
    });
    let server = server(folder.path(), &steps.collect::<Vec<_>>());
    let output = command(&program, folder.path())
        .args(["-p", "Edit both files.", "--model", "script"])
        .args(["--allowedTools", "Read,Edit"])
        .env("ANTHROPIC_BASE_URL", format!("http://{}", server.address))
        .env("ANTHROPIC_API_KEY", "none")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("DISABLE_TELEMETRY", "1")
        .env("DISABLE_AUTOUPDATER", "1")
        .output();
    check(folder.path(), &output.expect("it can be run"));
}

/// The settings of Codex for a server.
fn config(server: &Server) -> String {
    format!(
        "model = \"script\"\nmodel_provider = \"glimt\"\nmodel_context_window = 65536\napproval_policy = \"never\"\n\
         sandbox_mode = \"danger-full-access\"\ncheck_for_update_on_startup = false\n\
         [analytics]\nenabled = false\n[model_providers.glimt]\nname = \"glimt\"\n\
         base_url = \"http://{}/v1\"\nwire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n",
        server.address
    )
}

#[test]
#[ignore = "long: scripts/test --all"]
fn codex_edits_two_files() {
    let program = made("codex");
    let folder = folders();
    let steps = [
        ("a.txt", "one fox", "two foxes"),
        ("b.txt", "one hen", "two hens"),
    ];
    let steps = steps.map(|(name, old, new)| {
        let patch = format!(
            "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: {name}\n@@\n-{old}\n+{new}\n*** End Patch\nEOF"
        );
        call("exec_command", &[("cmd", &patch)])
    });
    let server = server(folder.path(), &steps);
    let home = folder.path().join("home/.codex");
    std::fs::create_dir(&home).expect("it is writable");
    std::fs::write(home.join("config.toml"), config(&server)).expect("it is writable");
    let output = command(&program, folder.path())
        .args(["exec", "--skip-git-repo-check", "Edit both files."])
        .output();
    check(folder.path(), &output.expect("it can be run"));
}
