//! An answer in the form of Anthropic's API, as a whole and in events.

use std::mem::take;

use serde_json::{Map, Value, json};

use crate::server::answers::{Step, Usage};
use crate::server::blocks::{Block, Blocks, Change, Kind};
use crate::server::deliver::{self, Collected, Head};
use crate::server::error::ApiError;

/// The signature of thoughts. Clients want one, and nobody checks it here.
const SIGNATURE: &str = "unsigned";

/// The tokens of an answer. Tokens that had been computed before do not count as input.
fn took(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
    })
}

/// Why an answer has ended.
fn stop_reason(reason: &str, stopped_by: Option<&str>) -> &'static str {
    match reason {
        "tool_calls" => "tool_use",
        "length" => "max_tokens",
        _ if stopped_by.is_some() => "stop_sequence",
        _ => "end_turn",
    }
}

/// A block of an answer.
fn block(block: &Block) -> Value {
    match &block.kind {
        Kind::Text => json!({"type": "text", "text": block.text, "citations": null}),
        Kind::Thoughts => {
            json!({"type": "thinking", "thinking": block.text, "signature": SIGNATURE})
        }
        Kind::Call(name) => {
            // An answer that was cut may have arguments that are no JSON.
            let input = serde_json::from_str::<Map<_, _>>(&block.text).unwrap_or_default();
            json!({"type": "tool_use", "id": format!("toolu_{}", block.id), "name": name, "input": input})
        }
    }
}

/// The beginning of a block, of which nothing is told yet.
fn begun(begun: &Block) -> Value {
    let mut value = block(&Block {
        text: String::new(),
        ..begun.clone()
    });
    if begun.kind == Kind::Thoughts {
        value["signature"] = "".into();
    }
    value
}

/// A message around the blocks of an answer.
fn around(head: &Head, content: Vec<Value>, usage: &Usage) -> Value {
    json!({
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model.name,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
        "usage": took(usage),
    })
}

/// An answer as a whole.
pub(super) fn message(head: &Head, answer: &Collected, usage: &Usage) -> Value {
    let blocks = answer.blocks.all().iter().map(block);
    let mut message = around(head, blocks.collect(), usage);
    let stopped_by = answer.stopped_by.as_deref();
    message["stop_reason"] = stop_reason(answer.reason, stopped_by).into();
    message["stop_sequence"] = stopped_by.into();
    message
}

/// Makes the events of a stream.
pub(super) struct Events<'a> {
    head: &'a Head,
    blocks: Blocks,
    /// Why the answer has ended, and by which text.
    ended: (&'static str, Option<String>),
}

impl<'a> Events<'a> {
    pub(super) fn new(head: &'a Head) -> Self {
        Self {
            head,
            blocks: Blocks::default(),
            ended: ("stop", None),
        }
    }
}

/// The events of a change of the last block.
fn changed(blocks: &Blocks, change: Change) -> Vec<Value> {
    let Some((index, last)) = blocks.last() else {
        return vec![];
    };
    let delta = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let is_thoughts = last.kind == Kind::Thoughts;
    match change {
        Change::Begins => {
            vec![
                json!({"type": "content_block_start", "index": index, "content_block": begun(last)}),
            ]
        }
        Change::More(text) => vec![delta(match last.kind {
            Kind::Thoughts => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Call(_) => json!({"type": "input_json_delta", "partial_json": text}),
        })],
        Change::Ends => {
            let signed = json!({"type": "signature_delta", "signature": SIGNATURE});
            let signed = is_thoughts.then(|| delta(signed));
            let stop = json!({"type": "content_block_stop", "index": index});
            signed.into_iter().chain([stop]).collect()
        }
    }
}

impl deliver::Events for Events<'_> {
    fn begin(&mut self, usage: &Usage) -> Vec<Value> {
        let message = around(self.head, vec![], usage);
        vec![
            json!({"type": "message_start", "message": message}),
            json!({"type": "ping"}),
        ]
    }

    fn step(&mut self, step: Step, _: &Usage) -> Vec<Value> {
        let mut events = vec![];
        let mut tell = |blocks: &Blocks, change| events.extend(changed(blocks, change));
        for delta in step.deltas {
            self.blocks.take(delta, &mut tell);
        }
        if let Some(reason) = step.reason {
            self.blocks.end(&mut tell);
            self.ended = (reason, step.stopped_by);
        }
        events
    }

    fn end(&mut self, usage: &Usage) -> Vec<Value> {
        let (reason, stopped_by) = take(&mut self.ended);
        let stop_reason = stop_reason(reason, stopped_by.as_deref());
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stopped_by});
        vec![
            json!({"type": "message_delta", "delta": delta, "usage": took(usage)}),
            json!({"type": "message_stop"}),
        ]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![super::error(error)]
    }

    fn alive(&self) -> Option<Value> {
        Some(json!({"type": "ping"}))
    }
}
