//! ollama's API: `/api/chat` and `/api/generate`, on top of chats and completions, and what is told of the model.

mod about;
mod request;

use std::sync::Arc;

use serde_json::{Value, json};

pub(super) use about::{running, show, tags, version};

use super::answers::{Step, Usage};
use super::ask::Ask;
use super::blocks::{Block, Blocks, Change, Kind};
use super::chat::Chat;
use super::completions::Completion;
use super::deliver::{self, Collected, Form, Head, Read};
use super::error::ApiError;
use super::fields::Fields;
use super::kept::Kept;
use super::model::Model;
use super::probabilities;
use super::reader::Reader;
use super::sse::Framing;
use super::translated;

/// The beginning of all its routes.
pub(super) const PATH: &str = "/api/";

/// A request for an answer: to a conversation (`TALK`), or to a prompt.
pub(super) struct Ollama<const TALK: bool>(Asked);

/// A request to `/api/chat`.
pub(super) type Talk = Ollama<true>;
/// A request to `/api/generate`.
pub(super) type Generate = Ollama<false>;

/// A request in the terms of this server.
enum Asked {
    Chat(Chat),
    /// A prompt without a template.
    Raw(Completion),
}

impl<const TALK: bool> Form for Ollama<TALK> {
    const ID: &'static str = "";
    const FRAMING: Framing = Framing::Lines;

    fn read(fields: &Fields<'_>, model: &Model, kept: &Arc<Kept>) -> Read<Self> {
        let (body, raw) = match TALK {
            true => (request::talk(fields)?, false),
            false => request::generate(fields)?,
        };
        let read = translated::read(fields, Some("options"), &body, |body| match raw {
            true => {
                Completion::read(body, model, kept).map(|(text, orders)| (Asked::Raw(text), orders))
            }
            false => {
                Chat::read(body, model, kept).map(|(chat, orders)| (Asked::Chat(chat), orders))
            }
        });
        let (asked, orders) = read.map_err(|error| request::named(error, fields))?;
        Ok((Self(asked), orders))
    }

    fn at_once(body: &Value, model: &Model) -> Option<Value> {
        let is_empty = match &body[if TALK { "messages" } else { "prompt" }] {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        // With nothing to answer, clients have the model loaded or given up.
        (is_empty && body.is_object()).then(|| {
            let ends = request::ends(&body["keep_alive"]);
            let mut answer = part::<TALK>(model, json!({}));
            answer["done"] = true.into();
            answer["done_reason"] = if ends { "unload" } else { "load" }.into();
            answer
        })
    }

    fn ask(&self) -> &Ask {
        match &self.0 {
            Asked::Chat(chat) => chat.ask(),
            Asked::Raw(text) => text.ask(),
        }
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        match &self.0 {
            Asked::Chat(chat) => chat.reader(model),
            Asked::Raw(text) => text.reader(model),
        }
    }

    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value {
        let answer = answers.into_iter().next().unwrap_or_default();
        let blocks = &answer.blocks;
        let mut said = json!({ "content": blocks.text() });
        let thoughts = blocks.thoughts();
        if !thoughts.is_empty() {
            said["thinking"] = thoughts.into();
        }
        let calls: Vec<_> = blocks.calls().enumerate().map(called).collect();
        if !calls.is_empty() {
            said["tool_calls"] = calls.into();
        }
        let mut whole = part::<TALK>(&head.model, said);
        if self.ask().log_probs.is_some() {
            let tokenizer = head.model.engine.tokenizer();
            whole["logprobs"] = probabilities::list(tokenizer, &answer.log_probs).into();
        }
        ended(&mut whole, answer.reason, usage);
        whole
    }

    fn events<'a>(&'a self, head: &'a Head) -> impl deliver::Events + 'a {
        Events::<TALK> {
            head,
            blocks: Blocks::default(),
            calls: 0,
            reason: "stop",
        }
    }
}

/// A part of an answer. `said` has the content, the thoughts and the calls.
fn part<const TALK: bool>(model: &Model, mut said: Value) -> Value {
    let now = jiff::Timestamp::now().to_string();
    let mut part = json!({"model": model.name, "created_at": now});
    if said.get("content").is_none() {
        said["content"] = "".into();
    }
    if TALK {
        said["role"] = "assistant".into();
        part["message"] = said;
    } else {
        for (here, there) in [
            ("content", "response"),
            ("thinking", "thinking"),
            ("tool_calls", "tool_calls"),
        ] {
            if let Some(value) = said.get(here) {
                part[there] = value.clone();
            }
        }
    }
    part["done"] = false.into();
    part
}

/// A call of a tool.
fn called((index, (call, name)): (usize, (&Block, &str))) -> Value {
    let arguments = serde_json::from_str(&call.text).unwrap_or_else(|_| json!({}));
    let function = json!({"index": index, "name": name, "arguments": arguments});
    json!({"id": format!("call_{}", call.id), "function": function})
}

/// Writes that an answer has ended, and what it took.
fn ended(part: &mut Value, reason: &str, usage: &Usage) {
    let nanoseconds =
        |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    part["done"] = true.into();
    part["done_reason"] = if reason == "length" { "length" } else { "stop" }.into();
    part["total_duration"] = nanoseconds(usage.whole).into();
    part["load_duration"] = 0.into();
    part["prompt_eval_count"] = usage.prompt.into();
    part["prompt_eval_duration"] = nanoseconds(usage.of_prompt).into();
    part["eval_count"] = usage.generated.into();
    part["eval_duration"] = nanoseconds(usage.of_answer).into();
}

/// Makes the lines of a stream.
struct Events<'a, const TALK: bool> {
    head: &'a Head,
    blocks: Blocks,
    /// Calls that were sent.
    calls: usize,
    reason: &'static str,
}

impl<const TALK: bool> deliver::Events for Events<'_, TALK> {
    fn begin(&mut self, _: &Usage) -> Vec<Value> {
        vec![]
    }

    fn step(&mut self, step: Step, _: &Usage) -> Vec<Value> {
        let mut said = vec![];
        let calls = &mut self.calls;
        let mut tell = |blocks: &Blocks, change: Change| {
            let Some((_, last)) = blocks.last() else {
                return;
            };
            match (&last.kind, change) {
                (Kind::Thoughts, Change::More(text)) => said.push(json!({ "thinking": text })),
                (Kind::Text, Change::More(text)) => said.push(json!({ "content": text })),
                // Calls are sent when they are whole.
                (Kind::Call(name), Change::Ends) => {
                    said.push(json!({"tool_calls": [called((*calls, (last, name)))]}));
                    *calls += 1;
                }
                _ => {}
            }
        };
        for delta in step.deltas {
            self.blocks.take(delta, &mut tell);
        }
        if let Some(reason) = step.reason {
            self.blocks.end(&mut tell);
            self.reason = reason;
        }
        let mut parts: Vec<Value> = said
            .into_iter()
            .map(|said| part::<TALK>(&self.head.model, said))
            .collect();
        if let (Some(found), Some(last)) = (step.log_probs, parts.last_mut()) {
            let tokenizer = self.head.model.engine.tokenizer();
            last["logprobs"] = probabilities::list(tokenizer, &[found]).into();
        }
        parts
    }

    fn end(&mut self, usage: &Usage) -> Vec<Value> {
        let mut last = part::<TALK>(&self.head.model, json!({}));
        ended(&mut last, self.reason, usage);
        vec![last]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![self::error(error)]
    }
}

/// An error in the form of the API.
pub(super) fn error(error: &ApiError) -> Value {
    json!({"error": error.message()})
}
