//! Protects users who are answered at once on a GPU: each gets what it gets alone, and who goes away makes place for others.

use serde_json::{Value, json};

use super::Server;

/// A server on the first adapter with these flags.
fn start(flags: &[&str]) -> Server {
    Server::start(&[&["--device", "0", "--tier", "subgroup", "-c", "256"], flags].concat())
}

fn body(i: usize) -> Value {
    json!({
        "prompt": format!("Once upon a time there was a fox who had {i} friends"),
        "max_tokens": 8 + 4 * i,
        "temperature": 0,
        // The host chooses some of them.
        "logprobs": (i % 3 == 1).then_some(1),
        // The device adds the biases of others.
        "ignore_eos": !i.is_multiple_of(3),
        "logit_bias": (i % 3 == 2).then_some(json!({"300": -100, "301": 1.5})),
    })
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().expect("a text")
}

#[test]
fn answers_at_once_are_those_of_one_after_the_other() {
    let mut server = Server::listening(&[
        "--device",
        "0",
        "--tier",
        "subgroup",
        "-c",
        "256",
        "--parallel",
        "4",
    ]);
    let line = server.line("at once");
    assert!(
        line.contains("up to 4 requests at once") && line.contains("1024 tokens"),
        "{line}"
    );
    server.until("it is ready", |server| server.get("/health").status == 200);
    let all = 5;
    let at_once: Vec<_> = (0..all)
        .map(|i| server.begin("/v1/completions", &body(i)))
        .collect();
    server.until("several are answered", |server| {
        server.metric("vllm:num_requests_running") > 1.0
    });
    let at_once: Vec<Value> = at_once.into_iter().map(|c| c.response().json()).collect();
    let alone = (0..all).map(|i| server.answer("/v1/completions", &body(i)));
    let equal = at_once
        .iter()
        .zip(alone)
        .filter(|(at_once, alone)| text(at_once) == text(alone));
    // Two tokens may be as good as equal.
    assert!(equal.count() + 1 >= all);
    server.until("nothing is held", |server| {
        server.metric("vllm:num_requests_running") == 0.0
            && server.metric("vllm:kv_cache_usage_perc") == 0.0
    });
}

#[test]
fn two_users_with_a_cache_of_codes_get_what_each_gets_alone() {
    let flags = ["--cache-type", "q8_0", "--parallel", "2", "-c", "256"];
    let body = |friend: &str| {
        json!({
            "prompt": format!("Once upon a time there was a fox whose friend was a {friend}"),
            "max_tokens": 32, "temperature": 0, "ignore_eos": true,
        })
    };
    let bodies = ["crow", "king"].map(body);
    let server = Server::start(&flags);
    let both = bodies
        .each_ref()
        .map(|body| server.begin("/v1/completions", body));
    server.until("both are answered", |server| {
        server.metric("vllm:num_requests_running") == 2.0
    });
    let at_once = both.map(|client| client.response().json());
    // Another server has no rows of them.
    let server = Server::start(&flags);
    let alone = bodies.map(|body| server.answer("/v1/completions", &body));
    assert_eq!(at_once.each_ref().map(text), alone.each_ref().map(text));
}

#[test]
fn a_client_that_goes_away_makes_place_for_those_who_wait() {
    let server = start(&["--parallel", "2", "--cache-tokens", "256"]);
    let endless = json!({
        "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": true, "stream": true,
    });
    let gone: Vec<_> = (0..4)
        .map(|_| server.begin("/v1/completions", &endless))
        .collect();
    server.until("they are answered", |server| {
        server.metric("vllm:num_requests_running") == 2.0
            && server.metric("vllm:num_requests_waiting") == 2.0
    });
    drop(gone);
    let answer = server.answer("/v1/completions", &body(1));
    assert!(!text(&answer).is_empty());
    server.until("nothing is held", |server| {
        server.metric("vllm:num_requests_running") == 0.0
            && server.metric("vllm:num_requests_waiting") == 0.0
            && server.metric("vllm:kv_cache_usage_perc") == 0.0
    });
}

#[test]
fn a_prompt_that_the_cache_has_no_room_for_is_refused() {
    let server = start(&["--cache-tokens", "64"]);
    let prompt: Vec<u32> = vec![5; 64];
    let refused = server.post("/v1/completions", &json!({"prompt": prompt}));
    assert_eq!(refused.status, 400, "{refused:?}");
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("--cache-tokens"), "{message}");
    // One that just fits is answered.
    let answer = server.answer("/v1/completions", &json!({"prompt": prompt[1..]}));
    assert_eq!(answer["usage"]["prompt_tokens"], 63);
}

#[test]
fn one_user_at_a_time_is_answered_as_before() {
    let server = start(&["--parallel", "1"]);
    let answer = server.answer("/v1/completions", &body(0));
    assert!(!text(&answer).is_empty());
}
