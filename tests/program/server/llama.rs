//! Protects who uses llama.cpp's own API, and who asks for a route that does not exist.

use serde_json::{Value, json};

use super::{Server, scripted_server, with};

const TEXT: &str = "Good morning to all of you! END of this text.";

fn ask(more: Value) -> Value {
    with(json!({"prompt": "<|quiet|>", "temperature": 0}), more)
}

/// The events of a stream without a mark of its end.
pub(super) fn events(server: &Server, body: Value) -> Vec<Value> {
    let response = server.post("/completion", &with(body, json!({"stream": true})));
    assert_eq!(response.status, 200, "{response:?}");
    let lines = response
        .body
        .split("\n\n")
        .filter_map(|line| line.strip_prefix("data: "));
    lines
        .map(|line| serde_json::from_str(line).expect("events are JSON"))
        .collect()
}

#[test]
fn texts_are_continued() {
    let (server, _folder) = scripted_server();
    let whole = server.answer(
        "/completion",
        &ask(json!({"n_predict": -1, "cache_prompt": true, "return_tokens": true})),
    );
    assert_eq!(whole["content"], TEXT);
    assert_eq!(
        (&whole["stop"], &whole["stop_type"]),
        (&json!(true), &json!("eos"))
    );
    assert_eq!(whole["tokens_evaluated"], 1);
    let tokens = whole["tokens"].as_array().expect("a list");
    assert_eq!(whole["tokens_predicted"], tokens.len());
    let timings = &whole["timings"];
    assert_eq!(timings["predicted_n"], tokens.len());
    assert!(timings["predicted_per_second"].is_f64());
    let text = server.answer("/detokenize", &json!({"tokens": tokens}));
    assert_eq!(
        (&text["content"], &text["prompt"]),
        (&json!(TEXT), &json!(TEXT))
    );
    let parts = events(&server, ask(json!({})));
    let texts: String = parts
        .iter()
        .filter_map(|part| part["content"].as_str())
        .collect();
    assert_eq!(texts, TEXT);
    let (last, others) = parts.split_last().expect("there are some");
    assert!(others.iter().all(|part| part["stop"] == false));
    assert_eq!(
        (&last["stop"], &last["stop_type"], &last["content"]),
        (&json!(true), &json!("eos"), &json!(""))
    );
    for path in ["/completion", "/completions"] {
        let stopped = server.answer(path, &ask(json!({"stop": ["", " END"]})));
        assert_eq!(
            (&stopped["stop_type"], &stopped["stopping_word"]),
            (&json!("word"), &json!(" END"))
        );
    }
    let cut = server.answer("/completion", &ask(json!({"n_predict": 2, "n_probs": 3})));
    assert_eq!(cut["stop_type"], "limit");
    let found = &cut["completion_probabilities"];
    assert_eq!(found.as_array().map(Vec::len), Some(2));
    assert_eq!(found[0]["top_logprobs"].as_array().map(Vec::len), Some(3));
    assert_eq!(found[0]["top_logprobs"][0]["id"], found[0]["id"]);
    let two = server.answer(
        "/completion",
        &json!({"prompt": ["<|quiet|>", [3, 4]], "temperature": 0}),
    );
    assert_eq!(
        (&two[0]["content"], &two[1]["content"]),
        (&json!(TEXT), &json!(""))
    );
    for (more, name) in [
        (json!({"image_data": [{"id": 1}]}), "image_data"),
        (json!({"n_probs": 99}), "n_probs"),
    ] {
        let refused = server.post("/completion", &ask(more));
        assert_eq!((refused.status, refused.error().0.as_str()), (400, name));
    }
}

#[test]
fn a_limit_of_0_computes_the_prompt_and_answers_with_nothing() {
    let (server, _folder) = scripted_server();
    for limit in ["n_predict", "max_tokens"] {
        let body = json!({"prompt": "Hello there", limit: 0, "n_probs": 2, "return_tokens": true});
        let whole = server.answer("/completion", &body);
        assert_eq!(
            (&whole["content"], &whole["stop_type"]),
            (&json!(""), &json!("limit"))
        );
        assert_eq!(
            (&whole["tokens_predicted"], &whole["tokens"]),
            (&json!(0), &json!([]))
        );
        assert_eq!(whole["tokens_evaluated"], 10);
        assert_eq!(whole["tokens_cached"], 10);
        assert_eq!(whole["generation_settings"]["n_predict"], 0);
        assert_eq!(whole["timings"]["predicted_n"], 0);
        let parts = events(&server, body);
        assert_eq!(parts.len(), 1, "{parts:?}");
        assert_eq!(
            (&parts[0]["stop"], &parts[0]["tokens_predicted"]),
            (&json!(true), &json!(0))
        );
    }
}

#[test]
fn prompts_may_mix_texts_and_tokens() {
    let (server, _folder) = scripted_server();
    let tokens = server.answer("/tokenize", &json!({"prompt": "ab<|quiet|>"}));
    let [a, b, quiet] = tokens["tokens"].as_array().expect("a list").as_slice() else {
        panic!("{tokens}");
    };
    for prompt in [
        json!([a, b, quiet]),
        json!([a, "b<|quiet|>"]),
        json!(["a", b, quiet]),
        json!(["ab", quiet]),
        json!({"prompt_string": "ab<|quiet|>"}),
        json!({"prompt_string": ["ab", quiet]}),
    ] {
        let body = json!({"prompt": prompt, "temperature": 0});
        let one = server.answer("/completion", &body);
        assert_eq!(
            (&one["content"], &one["tokens_evaluated"], &one["prompt"]),
            (&json!(TEXT), &json!(3), &prompt)
        );
        let several = json!({"prompt": [prompt, "a"], "temperature": 0});
        let several = server.answer("/v1/completions", &several);
        assert_eq!(several["choices"][0]["text"], TEXT, "{prompt}");
        assert_eq!(several["choices"][1]["text"], "", "{prompt}");
        assert_eq!(several["usage"]["prompt_tokens"], 4);
    }
}

#[test]
fn the_server_is_told_of() {
    let (server, _folder) = scripted_server();
    let props = server.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert_eq!(
        (&props["eos_token"], &props["total_slots"]),
        (&json!("<|end|>"), &json!(16))
    );
    assert!(
        props["chat_template"]
            .as_str()
            .is_some_and(|text| text.contains("<tool_call>"))
    );
    let slots = server.get("/slots").json();
    assert_eq!(slots.as_array().map(Vec::len), Some(16));
    assert_eq!(slots[0]["is_processing"], false);
    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let prompt = server.answer("/apply-template", &messages);
    assert_eq!(prompt, json!({"prompt": "user: Hi<|none|>"}));
    let tokens = server.answer("/tokenize", &json!({"content": "ab", "with_pieces": true}));
    assert_eq!(tokens["tokens"].as_array().map(Vec::len), Some(2));
    assert_eq!(tokens["tokens"][1]["piece"], "b");
    assert_eq!(server.get("/models").json()["data"][0]["id"], "script");
    let answer = server.answer("/chat/completions", &messages);
    assert_eq!(answer["choices"][0]["message"]["content"], TEXT);
}

#[test]
fn fields_that_no_api_reads_are_named() {
    let (server, _folder) = scripted_server();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let options = json!({"bogus": 1, "num_ctx": 1, "seed": 1});
    for (path, body, expected) in [
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 4}),
            "bogus",
        ),
        ("/v1/responses", json!({"input": "Hi"}), "bogus"),
        ("/completion", json!({"prompt": "Hi", "n_keep": 1}), "bogus"),
        (
            "/api/chat",
            json!({"messages": messages, "stream": false, "options": options}),
            "options.bogus; bogus",
        ),
        (
            "/api/generate",
            json!({"prompt": "Hi", "raw": true, "stream": false, "options": options}),
            "options.bogus; bogus",
        ),
    ] {
        let response = server.post(path, &with(body, json!({"bogus": 1, "temperature": 0})));
        assert_eq!(response.status, 200, "{path}: {response:?}");
        assert_eq!(response.header("x-glimt-ignored"), Some(expected), "{path}");
    }
}

#[test]
fn a_missing_route_names_the_one_to_use() {
    let (server, _folder) = scripted_server();
    for (path, expected) in [
        ("/v1/chat/completion", "use POST /v1/chat/completions"),
        ("/v1/v1/messages", "leave it out of the address"),
        ("/api/embedding", "no embeddings"),
        ("/api/embed", "no embeddings"),
        ("/v1/responses/compact", "nothing is compacted here"),
        ("/v1/audio/speech", "only text"),
    ] {
        let missing = server.post(path, &json!({}));
        assert_eq!(missing.status, 404);
        assert!(missing.body.contains(expected), "{path}: {}", missing.body);
    }
    assert_eq!(server.get("/v1/health").status, 200);
    let wrong = server.get("/v1/responses");
    assert_eq!(wrong.status, 405);
    assert!(
        wrong.body.contains("use POST /v1/responses"),
        "{}",
        wrong.body
    );
}
