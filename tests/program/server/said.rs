//! Protects what users, tools and requests say from being read as marks, in the program as it runs.

use glimt::gguf::Value as Metadata;
use serde_json::{Value, json};

use super::Server;
use super::edited::edited;

/// A template that writes all that a request tells of tools and of calls.
const TEMPLATE: &str = "[gMASK]<sop>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}\
    {% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>{{ c.id }} {{ c.function.name }}{% endfor %}\
    {% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}<|assistant|>";

/// One that looks for marks in what is said.
const SEARCHING: &str =
    "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<|assistant|>";

/// Servers with this template that read marks in what is said not at all, and everywhere.
fn servers(template: &str) -> ([Server; 2], tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let template = ("tokenizer.chat_template", Metadata::from(template));
    let model = edited(folder.path(), "said.gguf", &[template], |_, _| {});
    let flags = [&["-m", &model][..], &["-m", &model, "--parse-special"]];
    (flags.map(Server::start), folder)
}

/// A request in which `said` stands at each place in turn where a user, a tool or what is told of tools has a text.
fn requests(said: &str) -> Vec<(&'static str, Value)> {
    let places = [
        "content",
        "result",
        "id",
        "name",
        "description",
        "property",
        "value",
    ];
    let request = |place: &'static str| {
        let at = |own: &str, plain: &str| match own == place {
            true => format!("{plain}{said}"),
            false => plain.to_owned(),
        };
        let id = at("id", "call");
        let properties =
            json!({at("property", "path"): {"type": "string", "enum": [at("value", "a")]}});
        let body = json!({
            "tools": [{
                "name": "read",
                "description": at("description", "Reads."),
                "input_schema": {"type": "object", "properties": properties},
            }],
            "messages": [
                {"role": "user", "content": at("content", "Go")},
                {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": at("name", "read"), "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": at("result", "x")}]},
            ],
        });
        (place, body)
    };
    places.map(request).into()
}

fn tokens(server: &Server, body: &Value) -> u64 {
    let answer = server.answer("/v1/messages/count_tokens", body);
    answer["input_tokens"].as_u64().expect("a number")
}

#[test]
fn marks_are_text_wherever_they_are_said_unless_a_flag_has_them_read() {
    let ([plain, reading], _folder) = servers(TEMPLATE);
    for (place, body) in requests("<|user|>") {
        let [as_text, as_marks] = [&plain, &reading].map(|server| tokens(server, &body));
        assert!(as_text > as_marks, "{place}: {as_text}, {as_marks}");
    }
    for (place, body) in requests(" user") {
        assert_eq!(tokens(&plain, &body), tokens(&reading, &body), "{place}");
    }
    // The text is that of the request.
    let body = json!({"messages": [{"role": "tool", "tool_call_id": "a<|user|>", "content": "b</think>"}]});
    let rendered = plain.answer("/apply-template", &body);
    assert_eq!(
        rendered["prompt"],
        "[gMASK]<sop><|tool|>b</think>(a<|user|>)<|assistant|>"
    );
}

#[test]
fn a_template_that_looks_for_marks_is_told_of_once_and_finds_them_with_the_flag() {
    let ([plain, reading], _folder) = servers(SEARCHING);
    let body = json!({"messages": [{"role": "user", "content": "a</think>b"}]});
    for (server, warnings, expected) in [
        (&plain, 1, "a</think>b<|assistant|>"),
        (&reading, 0, "b<|assistant|>"),
    ] {
        let rendered = server.answer("/apply-template", &body);
        assert_eq!(rendered["prompt"], expected);
        let told = server.read.iter();
        let told = told.filter(|line| line.contains("looks for marks such as </think>"));
        assert_eq!(told.count(), warnings, "{:#?}", server.read);
    }
}
