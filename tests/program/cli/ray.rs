//! Protects who answers a batch on many machines: examples/ray_batch.py loses nothing when its driver is killed and a node is lost.

use std::process::Command;

use serde_json::json;

use super::others::made;
use super::{json, write};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
#[ignore = "long: scripts/test --all"]
fn a_cluster_answers_every_request_once_and_in_order() {
    let python = made("ray");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let line = |i: usize| {
        let body = json!({"prompt": "从前", "max_tokens": 30, "ignore_eos": true, "seed": i});
        let line = json!({"custom_id": format!("狐-{i}"), "method": "POST", "url": "/v1/completions", "body": body});
        format!("{line}\n")
    };
    let text: String = (0..24).map(line).collect();
    let input = write(folder.path(), "in.jsonl", text.as_bytes());
    let [output, shards] = ["out.jsonl", "shards"].map(|name| folder.path().join(name));
    let ended = Command::new(python)
        .arg(format!("{ROOT}/tests/program/cli/ray_batch.py"))
        .arg(format!("{ROOT}/examples/ray_batch.py"))
        .args([env!("CARGO_BIN_EXE_glimt"), &input])
        .args([&output, &shards])
        .env("GLIMT_CONFIG", "")
        .env_remove("GLIMT_DEVICE")
        .env_remove("GLIMT_MODEL")
        .output()
        .expect("Python can be run");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{told}");
    let answers = std::fs::read_to_string(&output).expect("the answers are joined");
    let found: Vec<_> = answers
        .lines()
        .map(|l| json(l)["custom_id"].clone())
        .collect();
    let expected: Vec<_> = text.lines().map(|l| json(l)["custom_id"].clone()).collect();
    assert_eq!(found, expected, "{told}");
    let whole = |line: &str| json(line)["response"]["body"]["usage"]["completion_tokens"] == 30;
    assert!(answers.lines().all(whole), "{told}");
}
