//! Protects who has drafts: the text is what it is without, requests may go without, and what became of drafts is told.

use serde_json::{Value, json};

use super::{SCRIPT, Server, with};
use crate::scripted::{self, Script};

const COMPLETION: &str = "/completion";

/// A request for the scripted text, which also stands in the prompt, so that n-grams find it.
fn repeated(server: &Server) -> Value {
    let asked = json!({"prompt": "<|quiet|>", "temperature": 0, "return_tokens": true});
    let first = server.answer(COMPLETION, &asked);
    let begin = server.answer("/tokenize", &json!({"content": "<|quiet|>"}));
    let text = first["tokens"].as_array().expect("a list");
    let begin = begin["tokens"].as_array().expect("a list");
    let prompt = [&text[..], begin].concat();
    with(asked, json!({ "prompt": prompt }))
}

/// Asks until drafts of an answer were accepted. Where measured times say that drafts do not pay, as on a machine that is busy for a moment, they
/// are tried again after up to 1024 steps.
#[track_caller]
fn until_drafts_pay(mut accepted: impl FnMut() -> bool) {
    assert!((0..60).any(|_| accepted()), "no draft was accepted");
}

#[test]
fn texts_with_drafts_are_those_without_and_what_became_of_them_is_told() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // A token for each line.
    let text: String = (10..50).map(|line| format!("Line {line} here")).collect();
    let script = Script {
        text: &text,
        ..SCRIPT
    };
    let model = scripted::scripted(folder.path(), "script", &script);
    let model = model.to_str().expect("temporary paths are UTF-8 here");
    let without = Server::start(&["-m", model, "--draft", "off"]);
    let request = repeated(&without);
    let expected = without.answer(COMPLETION, &request);
    assert_eq!(expected["content"], text);
    let timings = expected["timings"].as_object().expect("an object");
    assert!(!timings.contains_key("draft_n"), "{timings:?}");
    let server = Server::start(&["-m", model, "--draft", "ngram", "--draft-max", "3"]);
    for off in [
        json!({"speculative.n_max": 0}),
        json!({"speculative.type": "none"}),
    ] {
        let answer = server.answer(COMPLETION, &with(request.clone(), off));
        assert_eq!(answer["content"], text);
        assert_eq!(answer["timings"]["draft_n"], Value::Null);
    }
    let metric = |name: &str| server.metric(&format!("vllm:spec_decode_num_{name}_total"));
    assert_eq!(metric("drafts"), 0.0);
    let (mut drafted, mut accepted) = (0.0, 0.0);
    until_drafts_pay(|| {
        let answer = server.answer(COMPLETION, &request);
        for name in ["content", "tokens", "stop_type", "tokens_predicted"] {
            assert_eq!(answer[name], expected[name], "{name}");
        }
        let told = |name: &str| answer["timings"][name].as_f64();
        drafted += told("draft_n").unwrap_or(0.0);
        accepted += told("draft_n_accepted").unwrap_or(0.0);
        accepted > 0.0
    });
    assert!(accepted <= drafted, "{accepted} of {drafted}");
    server.until_idle();
    assert_eq!(metric("draft_tokens"), drafted);
    assert_eq!(metric("accepted_tokens"), accepted);
    assert!(metric("drafts") >= drafted / 3.0);
    let metrics = server.get("/metrics").body;
    let first =
        "num_accepted_tokens_per_pos_total{model_name=\"script\",engine=\"0\",position=\"0\"}";
    assert!(metrics.contains(first), "{metrics}");
}

#[test]
fn drafts_that_cannot_be_had_end_the_server_with_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let model = scripted::scripted(folder.path(), "script", &SCRIPT);
    let model = model.to_str().expect("temporary paths are UTF-8 here");
    let mut server = Server::listening(&["-m", model, "--draft", "mtp"]);
    server.line("nextn");
    assert!(!server.child.wait().expect("it runs").success());
}

/// A request for a story.
fn story(extra: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox."}]);
    let asked = json!({"messages": messages, "temperature": 0, "max_tokens": 40});
    with(asked, extra)
}

/// The accepted and the rejected tokens of a prediction.
fn of_prediction(answer: &Value) -> [u64; 2] {
    let details = &answer["usage"]["completion_tokens_details"];
    ["accepted", "rejected"].map(|name| {
        let count = &details[format!("{name}_prediction_tokens")];
        count.as_u64().unwrap_or_else(|| panic!("{answer}"))
    })
}

#[test]
fn an_answer_that_is_predicted_takes_drafts_of_the_prediction() {
    let path = "/v1/chat/completions";
    let predicted = |content: Value| json!({"prediction": {"type": "content", "content": content}});
    let server = Server::start(&["--draft", "ngram"]);
    let expected = server.answer(path, &story(json!({})));
    let message = &expected["choices"][0]["message"];
    assert_eq!(of_prediction(&expected), [0, 0]);
    let parts = json!([{"type": "text", "text": message["content"]}]);
    for content in [message["content"].clone(), parts] {
        let request = story(predicted(content));
        until_drafts_pay(|| {
            let answer = server.answer(path, &request);
            assert_eq!(&answer["choices"][0]["message"], message);
            of_prediction(&answer)[0] > 0
        });
    }
    // One that is wrong changes nothing, and the next answer does not know it.
    let wrong = server.answer(path, &story(predicted(json!("Once there was no fox."))));
    assert_eq!(&wrong["choices"][0]["message"], message);
    let after = server.answer(path, &story(json!({})));
    assert_eq!(of_prediction(&after), [0, 0]);
    let response = server.post(path, &story(predicted(json!(7))));
    assert_eq!(response.status, 400, "{}", response.body);
    assert!(
        response.body.contains("prediction.content"),
        "{}",
        response.body
    );
    // Where there are no drafts it is told as ignored.
    let off = with(predicted(json!("Once")), json!({"speculative.n_max": 0}));
    let response = server.post(path, &story(off));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("x-glimt-ignored"), Some("prediction"));
}
