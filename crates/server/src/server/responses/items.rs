//! The items of a response: what the blocks of an answer become.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::engine::chooser::TokenLogProbs;
use crate::server::blocks::{Block, Blocks, Kind};
use crate::server::model::Model;
use crate::server::probabilities;

/// The mark before thoughts that are handed to a client as sealed. They are sealed by name only: the client has them in plain text, too.
const SEAL: &str = "glimt:";

/// Thoughts as a client keeps them who may not look at them.
fn sealed(thoughts: &str) -> String {
    format!("{SEAL}{thoughts}")
}

/// Thoughts that came back from a client; `None` if another server has sealed them.
pub(super) fn unsealed(text: &str) -> Option<&str> {
    text.strip_prefix(SEAL)
}

/// The name by which the model calls a tool of a namespace.
pub(super) fn spaced(space: &str, name: &str) -> String {
    format!("{}__{name}", space.trim_end_matches('_'))
}

/// The one argument of a custom tool, which models are told of as of a function.
pub(super) const INPUT: &str = "input";

/// How items look that a request wants.
#[derive(Default)]
pub(super) struct Shape {
    /// The names of custom tools.
    pub(super) custom: HashSet<String>,
    /// The tools of namespaces, by what the model calls them: the namespace and the name in it.
    pub(super) spaced: HashMap<String, [String; 2]>,
    /// Whether thoughts also come sealed.
    pub(super) sealed: bool,
    /// Whether the tokens of texts have log-probabilities.
    pub(super) log_probs: bool,
}

impl Shape {
    /// Log-probabilities where they are asked for.
    pub(super) fn log_probs(&self, model: &Model, found: &[TokenLogProbs]) -> Vec<Value> {
        match self.log_probs {
            true => probabilities::list(model.engine.tokenizer(), found),
            false => vec![],
        }
    }

    /// Whether a block is the call of a custom tool.
    pub(super) fn is_custom(&self, block: &Block) -> bool {
        matches!(&block.kind, Kind::Call(name) if self.custom.contains(name))
    }

    /// The id of the item that a block becomes.
    pub(super) fn id(&self, block: &Block) -> String {
        let before = match &block.kind {
            Kind::Thoughts => "rs",
            Kind::Text => "msg",
            Kind::Call(_) if self.is_custom(block) => "ctc",
            Kind::Call(_) => "fc",
        };
        format!("{before}_{}", block.id)
    }
}

/// The status of a response whose answer has ended so.
pub(super) fn status(reason: &str) -> &'static str {
    match reason {
        "length" => "incomplete",
        _ => "completed",
    }
}

/// The input of a custom tool's call: the argument of that name, or else the only one. A model may give it another name.
pub(super) fn input(block: &Block) -> String {
    let arguments = serde_json::from_str::<Map<_, _>>(&block.text).unwrap_or_default();
    let only = arguments.values().next().filter(|_| arguments.len() == 1);
    match arguments.get(INPUT).or(only) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None if arguments.is_empty() => String::new(),
        None => block.text.clone(),
    }
}

/// The part of a message that holds its text.
pub(super) fn text_part(text: &str, log_probs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": log_probs})
}

/// The part of a reasoning item that holds the thoughts.
pub(super) fn thought_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// The item that a block has become.
pub(super) fn whole(shape: &Shape, block: &Block, status: &str, log_probs: &[Value]) -> Value {
    let mut item = begun(shape, block);
    item["status"] = status.into();
    match &block.kind {
        Kind::Thoughts => {
            item["content"] = json!([thought_part(&block.text)]);
            if shape.sealed {
                item["encrypted_content"] = sealed(&block.text).into();
            }
        }
        Kind::Text => item["content"] = json!([text_part(&block.text, log_probs)]),
        Kind::Call(_) if shape.is_custom(block) => item["input"] = input(block).into(),
        Kind::Call(_) => item["arguments"] = block.text.as_str().into(),
    }
    item
}

/// The item that a block becomes when it begins.
pub(super) fn begun(shape: &Shape, block: &Block) -> Value {
    let (id, status) = (shape.id(block), "in_progress");
    let call_id = format!("call_{}", block.id);
    match &block.kind {
        Kind::Thoughts => {
            json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": []})
        }
        Kind::Text => {
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": []})
        }
        Kind::Call(name) if shape.is_custom(block) => {
            json!({"id": id, "type": "custom_tool_call", "status": status, "call_id": call_id, "name": name, "input": ""})
        }
        Kind::Call(called) => {
            let spaced = shape.spaced.get(called);
            let name = spaced.map_or(called, |[_, name]| name);
            let mut call = json!({"id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": ""});
            if let Some([space, _]) = spaced {
                call["namespace"] = space.as_str().into();
            }
            call
        }
    }
}

/// All items of an answer that has ended.
pub(super) fn all(shape: &Shape, blocks: &Blocks, reason: &str, log_probs: &[Value]) -> Vec<Value> {
    let blocks = blocks.all();
    let item = |(i, block): (usize, &Block)| {
        let is_last = i + 1 == blocks.len();
        let status = if is_last { status(reason) } else { "completed" };
        whole(shape, block, status, log_probs)
    };
    blocks.iter().enumerate().map(item).collect()
}
