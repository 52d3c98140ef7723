//! Protects conversations over HTTP: streams say what whole answers say, and every field of sampling does what it is for.

use std::process::Command;

use serde_json::{Value, json};

use super::{CHAT, Server, chat, streamed, text};

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::start(&[]);
    let whole = server.answer(CHAT, &chat(json!({})));
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "glimt");
    assert!(
        whole["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("chatcmpl-"))
    );
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["logprobs"], Value::Null);
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let prompt = usage["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(usage["total_tokens"], prompt + 8);
    let asked = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let response = server.post(CHAT, &asked);
    assert_eq!(
        response.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    let events = response.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk")
    );
    assert_eq!(streamed(&events), text(&whole));
    let last = &events[events.len() - 1];
    assert_eq!(last["choices"], json!([]));
    // The prompt was computed for the answer before.
    assert_eq!(
        last["usage"]["prompt_tokens_details"]["cached_tokens"],
        prompt - 1
    );
    assert_eq!(last["usage"]["completion_tokens"], 8);
    assert_eq!(
        events[events.len() - 2]["choices"][0]["finish_reason"],
        "length"
    );
    let without = server.post(CHAT, &chat(json!({"stream": true}))).events();
    assert!(without.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn answers_are_drawn_by_their_seeds() {
    let server = Server::start(&[]);
    let drawn = |more: Value| {
        let mut body = chat(json!({"temperature": 1.5, "top_k": 0, "top_p": 1, "max_tokens": 10}));
        body = super::with(body, more);
        let answer = server.answer(CHAT, &body);
        let choices = answer["choices"].as_array().expect("a list").clone();
        let texts = choices.iter().map(|c| c["message"]["content"].to_string());
        texts.collect::<Vec<_>>()
    };
    let two = drawn(json!({"seed": 5, "n": 2}));
    assert_ne!(two[0], two[1]);
    assert_eq!(drawn(json!({"seed": 5}))[0], two[0]);
    assert_eq!(drawn(json!({"seed": 6}))[0], two[1]);
    assert_ne!(drawn(json!({})), drawn(json!({})));
}

#[test]
fn answers_are_those_of_generate() {
    let server = Server::start(&[]);
    for (temperature, seed) in [("0", "1"), ("0.9", "5")] {
        let output = Command::new(env!("CARGO_BIN_EXE_glimt"))
            .args(["generate", "--device", "cpu", "-n", "12", "--no-stdin"])
            .args(["--temp", temperature, "--seed", seed])
            .arg("Tell me a story about a fox.")
            .env("GLIMT_CONFIG", "")
            .env_remove("GLIMT_MODEL")
            .output()
            .expect("the binary was built with this test");
        let expected = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |text: &str| -> Value { serde_json::from_str(text).expect("a number") };
        let body = chat(json!({
            "temperature": number(temperature), "seed": number(seed), "max_tokens": 12,
        }));
        let answer = server.answer(CHAT, &body);
        assert_eq!(text(&answer), expected.trim_end_matches('\n'));
    }
}

#[test]
fn a_text_that_ends_the_answer_is_not_in_it() {
    let server = Server::start(&[]);
    let whole = server.answer(CHAT, &chat(json!({"max_tokens": 16})));
    let whole = text(&whole).to_owned();
    let words: Vec<&str> = whole.split(' ').collect();
    assert!(words.len() > 6, "{whole}");
    let stop = words[3..5].join(" ");
    for stop in [json!(stop), json!(["never said", stop])] {
        let body = chat(json!({"max_tokens": 16, "stop": stop}));
        let answer = server.answer(CHAT, &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let before = whole.find(&words[3..5].join(" ")).expect("it is there");
        assert_eq!(text(&answer), &whole[..before]);
        let body = super::with(body, json!({"stream": true}));
        let events = server.post(CHAT, &body).events();
        assert_eq!(streamed(&events), text(&answer));
    }
    // The place of an answer that has ended early is soon free.
    server.until_idle();
}

#[test]
fn log_probabilities_are_told_with_the_tokens() {
    let server = Server::start(&[]);
    let body = chat(json!({"logprobs": true, "top_logprobs": 3}));
    let answer = server.answer(CHAT, &body);
    let tokens = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("a list")
        .clone();
    assert_eq!(tokens.len(), 8);
    let joined: String = tokens.iter().filter_map(|t| t["token"].as_str()).collect();
    assert_eq!(joined.trim_start(), text(&answer).trim_start());
    for token in &tokens {
        let top = token["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        // The most probable is chosen.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).expect("bytes");
        assert_eq!(
            Some(String::from_utf8_lossy(&bytes).as_ref()),
            token["token"].as_str()
        );
    }
    let events = server
        .post(CHAT, &super::with(body, json!({"stream": true})))
        .events();
    let streamed = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), tokens);
}

#[test]
fn biases_and_penalties_change_the_answer() {
    let server = Server::start(&[]);
    let plain = server.answer(CHAT, &chat(json!({"logprobs": true})));
    let first = &plain["choices"][0]["logprobs"]["content"][0]["token"];
    let asked = json!({"prompt": first, "add_special_tokens": false});
    let token = server.answer("/tokenize", &asked)["tokens"][0].clone();
    let banned = chat(json!({"logit_bias": {token.to_string(): -100}}));
    let other = server.answer(CHAT, &banned);
    assert_ne!(text(&other), text(&plain));
    let penalised = chat(json!({"repetition_penalty": 1.9, "repeat_last_n": -1, "max_tokens": 24}));
    let unpenalised = chat(json!({"max_tokens": 24}));
    let (one, other) = (
        server.answer(CHAT, &penalised),
        server.answer(CHAT, &unpenalised),
    );
    assert_ne!(text(&one), text(&other));
}

#[test]
fn content_may_be_a_list_of_texts() {
    let server = Server::start(&[]);
    let parts = json!([{"type": "text", "text": "Tell me a story "}, {"type": "text", "text": "about a fox."}]);
    let of_parts = chat(json!({"messages": [{"role": "user", "content": parts}]}));
    let (one, other) = (
        server.answer(CHAT, &of_parts),
        server.answer(CHAT, &chat(json!({}))),
    );
    assert_eq!(text(&one), text(&other));
    // Fields that change no answer are taken, and others that are not known are told of.
    let unknown =
        chat(json!({"user": "me", "metadata": {"a": 1}, "store": false, "whatever": [1]}));
    assert_eq!(text(&server.answer(CHAT, &unknown)), text(&other));
}
