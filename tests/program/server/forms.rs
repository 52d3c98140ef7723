//! Protects answers that have to be of a form: JSON of a schema, texts of a grammar, one of a few choices.

use serde_json::{Value, json};

use super::{CHAT, COMPLETIONS, Server, chat, completion, streamed, text};

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"enum": ["Reynard", "Chanticleer"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn an_answer_is_json_of_the_schema() {
    let server = Server::start(&[]);
    let schema = json!({"name": "person", "strict": true, "schema": person()});
    let format = json!({"type": "json_schema", "json_schema": schema});
    let body = chat(json!({"response_format": format, "max_tokens": 80}));
    let answer = server.answer(CHAT, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let found: Value = serde_json::from_str(text(&answer)).expect("it is JSON");
    assert!(
        found["name"].is_string() && found["age"].is_u64(),
        "{found}"
    );
    let events = server
        .post(CHAT, &super::with(body, json!({"stream": true})))
        .events();
    assert_eq!(streamed(&events), text(&answer));
    let guided = chat(json!({"guided_json": person(), "max_tokens": 80}));
    assert_eq!(text(&server.answer(CHAT, &guided)), text(&answer));
}

#[test]
fn an_answer_is_a_text_of_the_grammar() {
    let server = Server::start(&[]);
    for more in [
        json!({"grammar": "root ::= \"yes\" | \"no\""}),
        json!({"grammar": "start: \"yes\" | \"no\""}),
        json!({"guided_choice": ["yes", "no"]}),
        json!({"structured_outputs": {"choice": ["yes", "no"]}}),
        json!({"structured_outputs": {"regex": "^(yes|no)$"}}),
    ] {
        let answer = server.answer(COMPLETIONS, &completion(more.clone()));
        assert!(["yes", "no"].contains(&text(&answer)), "{more}: {answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let body = completion(json!({"response_format": {"type": "json_object"}, "max_tokens": 3}));
    let answer = server.answer(COMPLETIONS, &body);
    assert!(text(&answer).trim_start().starts_with('{'), "{answer}");
    let body = completion(json!({"guided_json": person(), "max_tokens": 3}));
    let answer = server.answer(COMPLETIONS, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn what_an_answer_does_not_take_into_account_is_told() {
    let server = Server::start(&[]);
    let schema = json!({
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 2, "uniqueItems": true}},
        "required": ["tags"],
        "additionalProperties": false,
    });
    let more = json!({"guided_json": schema, "max_tokens": 40, "verbosity": "low", "user": "me", "stream": true});
    let answer = server.post(CHAT, &chat(more));
    assert_eq!(answer.status, 200, "{answer:?}");
    let header = |name: &str| answer.header(name).map(str::to_owned);
    assert_eq!(header("x-glimt-ignored").as_deref(), Some("verbosity"));
    let lost = header("x-glimt-not-enforced");
    assert_eq!(lost.as_deref(), Some("uniqueItems at #/properties/tags"));
    let message = json!([{"role": "user", "name": "me", "mood": 1, "content": "Hi"}, {"role": "user", "mood": 2, "content": "Hi"}]);
    let answer = server.post(CHAT, &json!({"messages": message, "max_tokens": 1}));
    assert_eq!(answer.header("x-glimt-ignored"), Some("messages[].mood"));
    for (route, body) in [
        ("/tokenize", json!({"prompt": "Hi", "mood": 1})),
        ("/tokenize", json!({"content": "Hi", "mood": 1})),
        ("/detokenize", json!({"tokens": [5], "mood": 1})),
        (
            "/apply-template",
            json!({"messages": [{"role": "user", "content": "Hi"}], "mood": 1}),
        ),
    ] {
        let answer = server.post(route, &body);
        assert_eq!(answer.header("x-glimt-ignored"), Some("mood"), "{route}");
    }
    let plain = server.post(CHAT, &chat(json!({"max_tokens": 1})));
    assert_eq!(plain.header("x-glimt-ignored"), None);
    assert_eq!(plain.header("x-glimt-not-enforced"), None);
}

#[test]
fn values_that_mean_none_are_none() {
    let server = Server::start(&["-n", "4"]);
    for more in [
        json!({"max_tokens": 2, "n_predict": -1}),
        json!({"max_tokens": -1, "grammar": "root ::= \"yes\""}),
        json!({"max_completion_tokens": -2, "grammar": "root ::= \"yes\""}),
        json!({"grammar": "", "guided_grammar": "", "stop": "", "logit_bias": [], "response_format": {}}),
        json!({"stop": [""], "top_k": -1, "seed": -1, "user": null}),
        json!({"model": "gpt-9"}),
    ] {
        server.answer(COMPLETIONS, &completion(more));
    }
}
