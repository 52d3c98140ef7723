//! Protects the continuation of texts over HTTP, and what turns texts into tokens and back.

use glimt::synth::ModelName;
use serde_json::{Value, json};

use super::edited::synthetic_of;
use super::{COMPLETIONS, Server, completion, streamed, text, with};

#[test]
fn texts_and_tokens_are_continued_alike() {
    let server = Server::start(&[]);
    assert_alike(&server);
    let several =
        completion(json!({"prompt": ["Once upon a time", "The fox"], "n": 2, "max_tokens": 4}));
    let answer = server.answer(COMPLETIONS, &several);
    let choices = answer["choices"].as_array().expect("a list");
    let indices: Vec<_> = choices.iter().map(|c| c["index"].as_u64()).collect();
    assert_eq!(indices, [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(choices[0]["text"], choices[1]["text"]);
    assert_ne!(choices[0]["text"], choices[2]["text"]);
    assert_eq!(answer["usage"]["completion_tokens"], 16);
}

#[test]
fn models_of_the_other_family_continue_them_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in [ModelName::TinyQwen3Moe, ModelName::TinyLlama] {
        let model = synthetic_of(folder.path(), name);
        assert_alike(&Server::start(&["--model", &model]));
    }
}

/// A text and its tokens have the same continuation, also one that is drawn.
fn assert_alike(server: &Server) {
    let tokens = server.answer("/tokenize", &json!({"prompt": "Once upon a time"}));
    assert_eq!(
        tokens["count"],
        tokens["tokens"].as_array().map_or(0, Vec::len)
    );
    for drawn in [json!({}), json!({"temperature": 1.0, "seed": 5})] {
        let of_text = server.answer(COMPLETIONS, &completion(drawn.clone()));
        assert_eq!(of_text["object"], "text_completion");
        let mut of_tokens = completion(drawn);
        of_tokens["prompt"] = tokens["tokens"].clone();
        let of_tokens = server.answer(COMPLETIONS, &of_tokens);
        assert_eq!(text(&of_text), text(&of_tokens));
    }
}

#[test]
fn streams_echoes_and_log_probabilities_are_those_of_the_text() {
    let server = Server::start(&[]);
    let plain = server.answer(COMPLETIONS, &completion(json!({})));
    let echoed = server.answer(COMPLETIONS, &completion(json!({"echo": true})));
    assert_eq!(text(&echoed), format!("Once upon a time{}", text(&plain)));
    let events = server
        .post(
            COMPLETIONS,
            &completion(json!({"echo": true, "stream": true})),
        )
        .events();
    assert_eq!(streamed(&events), text(&echoed));
    let found = server.answer(COMPLETIONS, &completion(json!({"logprobs": 2})));
    let table = &found["choices"][0]["logprobs"];
    let tokens: Vec<String> = serde_json::from_value(table["tokens"].clone()).expect("texts");
    assert_eq!(tokens.concat(), text(&plain));
    assert_eq!(
        table["top_logprobs"][0].as_object().map(|top| top.len()),
        Some(2)
    );
    assert_eq!(table["text_offset"][1], tokens[0].chars().count());
    let events = server
        .post(
            COMPLETIONS,
            &completion(json!({"logprobs": 2, "stream": true})),
        )
        .events();
    let offsets = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["text_offset"].as_array());
    let offsets: Vec<Value> = offsets.flatten().cloned().collect();
    assert_eq!(Value::from(offsets), table["text_offset"]);
}

#[test]
fn a_stream_may_have_an_event_for_every_token() {
    let server = Server::start(&[]);
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"prompt": [9, 99, 999], "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 4, "ignore_eos": true,
        "max_tokens": 40, "stream": true, "stream_options": options});
    let events = server.post(COMPLETIONS, &body).events();
    let used: Vec<u64> = events
        .iter()
        .filter_map(|event| event["usage"]["completion_tokens"].as_u64())
        .collect();
    let tokens: Vec<u64> = (1..=40).collect();
    // The last token, the reason why the answer has ended, and the sum.
    let mut told = used.clone();
    told.dedup();
    assert_eq!(told, tokens, "{used:?}");
    assert_eq!(events[0]["usage"]["prompt_tokens"], 3);
    // The first byte of a letter comes to no text yet, and has an event all the same.
    let asked = json!({"prompt": "狐", "add_special_tokens": false});
    let first = server.answer("/tokenize", &asked)["tokens"][0].to_string();
    let body = with(body, json!({"logit_bias": {first: 100}, "max_tokens": 2}));
    let events = server.post(COMPLETIONS, &body).events();
    assert_eq!(events[0]["choices"][0]["text"], "");
    assert_eq!(events[0]["usage"]["completion_tokens"], 1);
}

#[test]
fn an_answer_may_be_told_not_to_end() {
    let server = Server::start(&["-c", "64"]);
    let body = completion(json!({"ignore_eos": true, "max_tokens": null, "logprobs": 0}));
    let answer = server.answer(COMPLETIONS, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // Up to the end of the context.
    assert_eq!(answer["usage"]["total_tokens"], 64);
}

#[test]
fn tokens_are_told_and_turned_back() {
    let server = Server::start(&[]);
    let asked = json!({"prompt": "A fox.", "add_special_tokens": false, "return_token_strs": true});
    let found = server.answer("/tokenize", &asked);
    let texts: Vec<String> = serde_json::from_value(found["token_strs"].clone()).expect("texts");
    assert_eq!(texts.concat(), "A fox.");
    assert_eq!(found["max_model_len"], 1024);
    let back = server.answer("/detokenize", &json!({"tokens": found["tokens"]}));
    assert_eq!(back["prompt"], "A fox.");
    let messages = json!({"messages": [{"role": "user", "content": "A fox."}]});
    let chat = server.answer("/tokenize", &messages);
    assert!(chat["count"].as_u64() > found["count"].as_u64(), "{chat}");
    let text = super::chat(json!({"messages": messages["messages"]}));
    let usage = server.answer(super::CHAT, &text)["usage"]["prompt_tokens"].clone();
    assert_eq!(usage, chat["count"]);
    for (path, body, name) in [
        ("/tokenize", json!({}), "prompt"),
        ("/detokenize", json!({"tokens": [1, -1]}), "tokens"),
        ("/detokenize", json!({"tokens": [99_999_999]}), "tokens"),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(
            (refused.status, refused.error().0.as_str()),
            (400, name),
            "{path} {body}"
        );
    }
}

#[test]
fn the_model_is_listed() {
    let server = Server::start(&["--alias", "the/fox"]);
    let list = server.get("/v1/models").json();
    assert_eq!(list["data"][0]["id"], "the/fox");
    assert_eq!(list["data"][0]["max_model_len"], 1024);
    assert_eq!(server.get("/v1/models/the/fox").json()["id"], "the/fox");
    let missing = server.get("/v1/models/the/hen");
    assert_eq!(missing.status, 404);
    assert_eq!(missing.error().1, "model_not_found");
    let body = with(completion(json!({})), json!({"model": "the/fox"}));
    assert_eq!(server.answer(COMPLETIONS, &body)["model"], "the/fox");
    let version = server.get("/version").json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}
