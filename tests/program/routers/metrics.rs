//! Protects routers that go by the load of a server: what they look for is there under its name, as Prometheus' own library reads it.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use super::load::{self, End};
use super::others::made;
use super::path;
use super::server::Server;

/// The metrics that the router of vLLM's production-stack looks for (`src/vllm_router/stats/engine_stats.py`).
const PRODUCTION_STACK: [&str; 6] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:gpu_prefix_cache_hit_rate",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:gpu_cache_usage_perc",
];
/// The metrics that the Gateway API Inference Extension looks for, and with it llm-d (its model server protocol).
const INFERENCE_EXTENSION: [&str; 4] = [
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
];

/// The samples of metrics.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut child = Command::new(made("prometheus"))
        .arg(path("tests/program/routers/metrics.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python can be run");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it was started");
    assert!(output.status.success(), "it cannot be read: {text}");
    let text = String::from_utf8(output.stdout).expect("it prints UTF-8");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

#[test]
#[ignore = "long: scripts/test --all"]
fn routers_find_the_metrics_that_they_look_for() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let server = Server::start(home.path());
    let target = server.target();
    let questions = load::questions(&target);
    // The CPU keeps what it computed last.
    let last = questions.last().expect("there are questions");
    assert_eq!(load::ask(&target, last, true).end, End::Whole);
    let found = samples(&server.metrics());
    for name in PRODUCTION_STACK.iter().chain(&INFERENCE_EXTENSION) {
        assert!(found.contains_key(*name), "no {name} in {found:?}");
    }
    let value = |name: &str| found[&format!("vllm:gpu_prefix_cache_{name}")];
    let (hits, queries) = (value("hits_total"), value("queries_total"));
    assert!(0.0 < hits && hits < queries, "{hits} of {queries}");
    assert_eq!(value("hit_rate"), hits / queries);
}
