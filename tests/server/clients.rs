//! Protects who uses OpenAI's official clients: their streams, tools, schemas, log-probabilities and errors work as with OpenAI's server.

use std::process::Command;

use glimt::gguf::Value as Meta;

use super::Server;
use super::edited::edited;
use super::others::made;
use super::tools::TAGGED;

/// Has a client call a server; returns which of its checks passed.
fn called(program: &str, script: &str, folder: &str) -> Vec<String> {
    let home = tempfile::tempdir().expect("a temporary directory");
    let template = ("tokenizer.chat_template", Meta::from(TAGGED));
    let model = edited(home.path(), "tools.gguf", &[template], |_, _| {});
    let server = Server::start(&["-m", &model, "-c", "512", "--api-key", "first"]);
    let path = format!("{}/tests/server/{script}", env!("CARGO_MANIFEST_DIR"));
    let url = format!("http://{}/v1", server.address);
    let mut command = Command::new(program);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let output = command.args([&path, &url, folder]).output();
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
