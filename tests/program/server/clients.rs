//! Protects who uses official clients: their streams, tools, schemas, log-probabilities and errors work as with the servers that they are
//! made for.

use std::path::Path;
use std::process::Command;

use glimt::gguf::Value as Meta;

use super::Server;
use super::edited::edited;
use super::others::made;
use super::scripted_server;
use super::tools::TAGGED;

/// Has a client of chats call a server; returns which of its checks passed.
fn called(program: &str, script: &str, folder: &str) -> Vec<String> {
    let home = tempfile::tempdir().expect("a temporary directory");
    let template = ("tokenizer.chat_template", Meta::from(TAGGED));
    let model = edited(home.path(), "tools.gguf", &[template], |_, _| {});
    let server = Server::start(&["-m", &model, "-c", "512", "--api-key", "first"]);
    let url = format!("http://{}/v1", server.address);
    passed(&server, program, script, &url, folder)
}

/// Has a client call a server of the scripted model; returns which of its checks passed.
fn scripted(program: &str, script: &str, folder: &str) -> Vec<String> {
    let (server, _folder) = scripted_server();
    let url = format!("http://{}", server.address);
    passed(&server, program, script, &url, folder)
}

/// The checks of a client that pass at this address.
fn passed(server: &Server, program: &str, script: &str, url: &str, folder: &str) -> Vec<String> {
    let path = format!(
        "{}/tests/program/server/{script}",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut command = Command::new(program);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let output = command.args([&path, url, folder]).output();
    let output = output.expect("the client can be run");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    server.until_idle();
    let passed = String::from_utf8_lossy(&output.stdout);
    passed.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_client_for_python_is_served() {
    let passed = called(&made("openai"), "openai_client.py", "");
    assert_eq!(passed.len(), 8, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_client_for_javascript_is_served() {
    let folder = made("openai-node");
    let passed = called("node", "openai_client.mjs", &folder);
    assert_eq!(passed.len(), 5, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn responses_are_read_by_the_client_for_python() {
    let passed = scripted(&made("openai"), "responses_client.py", "");
    assert_eq!(passed.len(), 7, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn responses_are_read_by_the_client_for_javascript() {
    let passed = scripted("node", "responses_client.mjs", &made("openai-node"));
    assert_eq!(passed.len(), 4, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn anthropics_client_for_python_is_served() {
    let passed = scripted(&made("anthropic"), "anthropic_client.py", "");
    assert_eq!(passed.len(), 7, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn anthropics_client_for_javascript_is_served() {
    let passed = scripted("node", "anthropic_client.mjs", &made("anthropic-node"));
    assert_eq!(passed.len(), 3, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn ollamas_client_is_served() {
    let passed = scripted(&made("ollama"), "ollama_client.py", "");
    assert_eq!(passed.len(), 6, "{passed:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn litellm_is_served_in_each_api_that_it_speaks() {
    let program = made("litellm");
    let python = Path::new(&program).with_file_name("python");
    let python = python.to_str().expect("paths are UTF-8 here");
    let passed = scripted(python, "litellm_client.py", "");
    assert_eq!(passed.len(), 4, "{passed:?}");
}
