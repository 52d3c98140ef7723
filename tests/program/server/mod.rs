//! Protects the server as its clients meet it: the program runs on a free port with the built-in model, mostly on the CPU, and is spoken
//! to over HTTP.

#[cfg(unix)]
mod agents;
mod anthropic;
#[cfg(unix)]
pub mod browser;
mod chat;
#[cfg(unix)]
mod clients;
mod completions;
mod drafts;
mod fields;
mod forms;
mod hosts;
mod llama;
mod load;
#[cfg(unix)]
mod manners;
mod many;
mod ollama;
mod page;
#[cfg(unix)]
mod page_in_chromium;
#[cfg(unix)]
mod page_markdown;
mod qwen;
mod refusals;
mod responses;
mod said;
mod slots;
#[cfg(target_os = "linux")]
mod soak;
mod tools;

use serde_json::{Value, json};

use crate::edited::{self, write};
#[cfg(unix)]
use crate::others;
use crate::served::Server;
use crate::{client, scripted};

/// The answers of the scripted model: two steps of an agent and an end, and to conversations without tools a text with thoughts.
const SCRIPT: scripted::Script<'_> = scripted::Script {
    steps: &[
        "Reading it first.<tool_call>read<arg_key>path</arg_key><arg_value>a \"b\".txt</arg_value></tool_call>",
        "<tool_call>write<arg_key>input</arg_key><arg_value>one\ntwo ✓</arg_value></tool_call>",
        "Both steps are done.",
    ],
    thoughts: "Somebody greets me, so I greet back.",
    text: "Good morning to all of you! END of this text.",
    context: 4096,
    template: None,
};

/// A server of the scripted model.
fn scripted_server() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let model = scripted::scripted(folder.path(), "script", &SCRIPT);
    let model = model.to_str().expect("temporary paths are UTF-8 here");
    (Server::start(&["-m", model, "--temp", "0"]), folder)
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A request for a greedy answer to a short message.
fn chat(more: Value) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
        "temperature": 0,
        "max_tokens": 8,
    });
    with(body, more)
}

/// A request to continue a short text greedily.
fn completion(more: Value) -> Value {
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8});
    with(body, more)
}

fn with(mut body: Value, more: Value) -> Value {
    let fields = body.as_object_mut().expect("it is an object");
    fields.extend(more.as_object().expect("it is an object").clone());
    body
}

/// The text of the first answer.
fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"]
        .as_str()
        .or(choice["text"].as_str());
    text.unwrap_or_else(|| panic!("no text in {answer}"))
}

/// The texts of the deltas of a stream, joined.
fn streamed(events: &[Value]) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    let texts = choices.filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()));
    texts.collect()
}
