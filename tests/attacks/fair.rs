//! Protects those who ask for little from clients that ask for much beside them.

use std::time::{Duration, Instant};

use serde_json::json;

use super::client::send;
use super::{CHAT, COMPLETIONS, Server, post_as};

/// How long somebody may wait for the work of others, on the slowest machine that tests run on.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_request_for_many_answers_leaves_others_their_places() {
    let server = Server::start(&[]);
    let messages = json!([{"role": "user", "content": "x"}]);
    let many = json!({"messages": messages, "n": 80, "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut many = server.begin(CHAT, &many);
    assert_eq!(many.head().0, 200);
    many.chunk();
    for _ in 0..4 {
        let began = Instant::now();
        server.answer(CHAT, &json!({"messages": messages, "max_tokens": 1}));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    let running = server.metric("vllm:num_requests_running");
    let waiting = server.metric("vllm:num_requests_waiting");
    assert!(
        running + waiting > 1.0,
        "the answers of the other request are not all there"
    );
    drop(many);
    server.until_idle();
}

/// Asserts that a short request is answered before long prompts that have come before it are computed.
fn assert_short_is_first(flags: &[&str], tokens: usize) {
    let server = Server::start(flags);
    let mut long: Vec<_> = (0..3)
        .map(|i| {
            let prompt = vec![100 + i; tokens];
            let body = json!({"prompt": prompt, "max_tokens": 2, "ignore_eos": true});
            server.begin(COMPLETIONS, &body)
        })
        .collect();
    server.until("they are there", |server| {
        let running = server.metric("vllm:num_requests_running");
        running + server.metric("vllm:num_requests_waiting") == 3.0
    });
    server.answer(COMPLETIONS, &json!({"prompt": "Hello", "max_tokens": 1}));
    let left =
        server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting");
    assert!(left >= 1.0, "all long ones had ended before");
    let ended = long
        .drain(..)
        .map(|connection| connection.response().status);
    assert!(ended.into_iter().all(|status| status == 200));
    server.until_idle();
}

#[test]
fn a_short_prompt_does_not_wait_for_long_ones() {
    assert_short_is_first(&["--parallel", "2"], 150);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_short_prompt_does_not_wait_for_long_ones_on_a_gpu() {
    assert_short_is_first(&["--device", "0", "-c", "1024", "--parallel", "2"], 700);
}

#[test]
fn a_key_that_takes_all_places_leaves_another_key_its_share() {
    let keys = ["--api-key", "greedy", "--api-key", "modest"];
    let server = Server::start(&[&keys[..], &["--parallel", "1", "--queue", "3"]].concat());
    let long = json!({"prompt": "a", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let headers = [("Authorization", "Bearer greedy")];
    let begin = || {
        send(
            server.address,
            "POST",
            COMPLETIONS,
            &headers,
            &long.to_string(),
        )
    };
    let mut first = begin();
    assert_eq!(first.head().0, 200);
    first.chunk();
    let waiting: Vec<_> = (0..3).map(|_| begin()).collect();
    server.until("all places are taken", |server| {
        server.metric("vllm:num_requests_waiting") == 3.0
    });
    let short = json!({"prompt": "a", "max_tokens": 1});
    let refused = post_as(&server, "greedy", COMPLETIONS, &short);
    assert_eq!(
        (refused.status, refused.error().1.as_str()),
        (429, "queue_full"),
        "{refused:?}"
    );
    let after = refused
        .header("retry-after")
        .and_then(|after| after.parse::<u64>().ok());
    assert!(after.is_some_and(|after| after >= 1), "{refused:?}");
    // It is next when the first answer ends, before those that wait for longer.
    let modest = [("Authorization", "Bearer modest")];
    let modest = send(
        server.address,
        "POST",
        COMPLETIONS,
        &modest,
        &short.to_string(),
    );
    server.until("it has a place", |server| {
        server.metric("vllm:num_requests_waiting") == 4.0
    });
    drop(first);
    assert_eq!(modest.response().status, 200);
    drop(waiting);
    server.until_idle();
}
