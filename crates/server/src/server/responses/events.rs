//! The events of a response while it is generated.

use serde_json::{Value, json};

use super::{Response, items};
use crate::server::answers::{Step, Usage};
use crate::server::blocks::{Block, Blocks, Change, Kind};
use crate::server::deliver::{self, Head};
use crate::server::error::ApiError;

/// Makes the events of a stream.
pub(super) struct Events<'a> {
    response: &'a Response,
    head: &'a Head,
    blocks: Blocks,
    /// Log-probabilities of all tokens, and how many of them are sent.
    log_probs: Vec<Value>,
    sent: usize,
    reason: &'static str,
    /// The number of events until now.
    number: usize,
}

/// The place of an item.
fn place(shape: &items::Shape, index: usize, block: &Block) -> Value {
    let mut place = json!({"item_id": shape.id(block), "output_index": index});
    if !matches!(block.kind, Kind::Call(_)) {
        place["content_index"] = 0.into();
    }
    place
}

/// An event at a place.
fn at(place: &Value, kind: &str, more: Value) -> Value {
    let mut event = json!({ "type": format!("response.{kind}") });
    for fields in [place.clone(), more] {
        if let (Some(all), Value::Object(fields)) = (event.as_object_mut(), fields) {
            all.extend(fields);
        }
    }
    event
}

impl<'a> Events<'a> {
    pub(super) fn new(response: &'a Response, head: &'a Head) -> Self {
        Self {
            response,
            head,
            blocks: Blocks::default(),
            log_probs: vec![],
            sent: 0,
            reason: "stop",
            number: 0,
        }
    }

    /// Numbers events.
    fn numbered(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        for event in &mut events {
            event["sequence_number"] = self.number.into();
            self.number += 1;
        }
        events
    }

    /// The events of a change of the last of `blocks`. An answer that has ended so far has ended for `reason`.
    fn changed(&self, blocks: &Blocks, change: Change, reason: &str) -> Vec<Value> {
        let Some((index, block)) = blocks.last() else {
            return vec![];
        };
        let shape = &self.response.shape;
        let place = place(shape, index, block);
        let event = |kind: &str, more: Value| at(&place, kind, more);
        let of_item = |kind: &str, item: Value| {
            at(
                &json!({"output_index": index}),
                kind,
                json!({ "item": item }),
            )
        };
        match change {
            Change::Begins => {
                let begins = of_item("output_item.added", items::begun(shape, block));
                let part = match block.kind {
                    Kind::Thoughts => Some(items::thought_part("")),
                    Kind::Text => Some(items::text_part("", &[])),
                    Kind::Call(_) => None,
                };
                let part = part.map(|part| event("content_part.added", json!({ "part": part })));
                [begins].into_iter().chain(part).collect()
            }
            Change::More(text) => match block.kind {
                Kind::Thoughts => vec![event("reasoning_text.delta", json!({ "delta": text }))],
                Kind::Text => {
                    let unsent = &self.log_probs[self.sent..];
                    let more = json!({"delta": text, "logprobs": unsent});
                    vec![event("output_text.delta", more)]
                }
                // A custom tool's input is known when the JSON around it is whole.
                Kind::Call(_) if shape.is_custom(block) => vec![],
                Kind::Call(_) => {
                    vec![event(
                        "function_call_arguments.delta",
                        json!({ "delta": text }),
                    )]
                }
            },
            Change::Ends => {
                let text = block.text.as_str();
                let with_part = |kind: &str, more: Value, part: Value| {
                    vec![
                        event(kind, more),
                        event("content_part.done", json!({ "part": part })),
                    ]
                };
                let mut events = match &block.kind {
                    Kind::Thoughts => {
                        let part = items::thought_part(text);
                        with_part("reasoning_text.done", json!({ "text": text }), part)
                    }
                    Kind::Text => {
                        let more = json!({"text": text, "logprobs": self.log_probs});
                        let part = items::text_part(text, &self.log_probs);
                        with_part("output_text.done", more, part)
                    }
                    Kind::Call(_) if shape.is_custom(block) => {
                        let input = items::input(block);
                        vec![
                            event("custom_tool_call_input.delta", json!({ "delta": input })),
                            event("custom_tool_call_input.done", json!({ "input": input })),
                        ]
                    }
                    Kind::Call(name) => {
                        let more = json!({"name": name, "arguments": text});
                        vec![event("function_call_arguments.done", more)]
                    }
                };
                let item = items::whole(shape, block, items::status(reason), &self.log_probs);
                events.push(of_item("output_item.done", item));
                events
            }
        }
    }
}

impl deliver::Events for Events<'_> {
    fn begin(&mut self, _: &Usage) -> Vec<Value> {
        let response = self.response.around(self.head, "in_progress", vec![]);
        let events = ["response.created", "response.in_progress"];
        let events = events.map(|kind| json!({"type": kind, "response": response}));
        self.numbered(events.into())
    }

    fn step(&mut self, step: Step, _: &Usage) -> Vec<Value> {
        let shape = &self.response.shape;
        let found = shape.log_probs(&self.head.model, step.log_probs.as_slice());
        self.log_probs.extend(found);
        self.reason = step.reason.unwrap_or(self.reason);
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut events = vec![];
        for delta in step.deltas {
            let mut told_text = false;
            blocks.take(delta, &mut |blocks, change| {
                let is_text = blocks
                    .last()
                    .is_some_and(|(_, last)| last.kind == Kind::Text);
                told_text |= is_text && matches!(change, Change::More(_));
                events.extend(self.changed(blocks, change, "stop"));
            });
            if told_text {
                self.sent = self.log_probs.len();
            }
        }
        if let Some(reason) = step.reason {
            blocks.end(&mut |blocks, change| events.extend(self.changed(blocks, change, reason)));
        }
        self.blocks = blocks;
        self.numbered(events)
    }

    fn end(&mut self, usage: &Usage) -> Vec<Value> {
        let (shape, reason) = (&self.response.shape, self.reason);
        let output = items::all(shape, &self.blocks, reason, &self.log_probs);
        let response = self.response.ended(self.head, output, reason, usage);
        let kind = format!("response.{}", items::status(reason));
        self.numbered(vec![json!({"type": kind, "response": response})])
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        let output = items::all(&self.response.shape, &self.blocks, "length", &[]);
        let mut response = self.response.around(self.head, "failed", output);
        response["error"] = json!({"code": error.code(), "message": error.message()});
        self.numbered(vec![
            json!({"type": "response.failed", "response": response}),
        ])
    }
}
