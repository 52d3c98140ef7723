//! How answers are sent: as a whole, or in events while they come.

use std::time::Duration;

use serde_json::{Value, json};

use super::answers::{Answers, Step};
use super::error::ApiError;
use super::log::Record;
use super::reader::Delta;
use super::sse::{Gone, Stream};
use super::tools;
use crate::engine::chooser::TokenLogProbs;

/// A stream that has nothing to send says so after this time.
const SILENT: Duration = Duration::from_secs(15);

/// What stands around all answers.
pub(super) struct Envelope {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: i64,
    pub(super) model: String,
    /// Whether the last event of a stream tells what it took.
    pub(super) include_usage: bool,
    /// Whether the others tell what was taken so far.
    pub(super) usage_with_each: bool,
}

impl Envelope {
    /// A message with these answers.
    fn around(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("glimt-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// An event of a stream.
    fn event(&self, choices: Vec<Value>) -> Value {
        let mut event = self.around(self.object, choices);
        if self.include_usage {
            event["usage"] = Value::Null;
        }
        event
    }

    /// The body with all answers and what they took.
    pub(super) fn whole(&self, choices: Vec<Value>, usage: Value) -> Value {
        let mut body = self.around(self.object, choices);
        body["usage"] = usage;
        body
    }
}

/// A call of a tool.
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// An answer that is complete.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) thoughts: String,
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
    pub(super) log_probs: Vec<TokenLogProbs>,
    pub(super) reason: &'static str,
}

impl Collected {
    fn add(&mut self, step: Step) {
        self.log_probs.extend(step.log_probs);
        self.reason = step.reason.unwrap_or(self.reason);
        for delta in step.deltas {
            match delta {
                Delta::Thought(text) => self.thoughts += &text,
                Delta::Said(tools::Delta::Text(text)) => self.text += &text,
                Delta::Said(tools::Delta::Call { name, .. }) => self.calls.push(Call {
                    name,
                    arguments: String::new(),
                }),
                Delta::Said(tools::Delta::Arguments { text, .. }) => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments += &text;
                    }
                }
            }
        }
    }
}

/// Waits for so many answers.
///
/// # Errors
/// What went wrong with one of them.
pub(super) async fn collect(
    answers: &mut Answers<'_>,
    count: usize,
) -> Result<Vec<Collected>, ApiError> {
    let mut all: Vec<Collected> = std::iter::repeat_with(Collected::default)
        .take(count)
        .collect();
    while let Some(step) = answers.next().await? {
        if let Some(one) = all.get_mut(step.choice) {
            one.add(step);
        }
    }
    Ok(all)
}

/// Sends answers as they come, in events that `choices` makes of each step, after those of `first`.
pub(super) async fn pour(
    stream: &Stream,
    answers: &mut Answers<'_>,
    envelope: &Envelope,
    record: &Record,
    first: Vec<Value>,
    choices: &mut (dyn FnMut(Step) -> Vec<Value> + Send),
) -> Result<(), Gone> {
    for choice in first {
        stream.send(&envelope.event(vec![choice])).await?;
    }
    loop {
        let next = match tokio::time::timeout(SILENT, answers.next()).await {
            Ok(next) => next,
            Err(_) => {
                stream.comment().await?;
                continue;
            }
        };
        match next {
            Ok(Some(step)) => {
                for choice in choices(step) {
                    let mut event = envelope.event(vec![choice]);
                    if envelope.usage_with_each {
                        event["usage"] = answers.usage();
                    }
                    stream.send(&event).await?;
                }
            }
            Ok(None) => break,
            Err(error) => {
                record.failed(error.status().as_str());
                stream.send(&error.json()).await?;
                return stream.done().await;
            }
        }
    }
    if envelope.include_usage {
        let mut last = envelope.event(vec![]);
        last["usage"] = answers.usage();
        stream.send(&last).await?;
    }
    stream.done().await?;
    record.ended();
    Ok(())
}
