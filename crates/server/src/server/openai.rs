//! The common parts of OpenAI's chats and completions: the envelope of answers, and of the events of a stream.

use serde_json::{Value, json};

use super::answers::{Step, Usage};
use super::deliver::{Collected, Events, Form, Head};
use super::error::ApiError;

/// A request whose answers are a list of choices.
pub(super) trait Choices: Form {
    /// The field `object` of a body or an event.
    fn object(&self) -> &'static str;

    /// An answer as a whole.
    fn choice(&self, head: &Head, index: usize, answer: Collected) -> Value;

    /// The choices that stand before the answers of a stream.
    fn first(&self) -> Vec<Value>;

    /// A function that makes the parts of a stream from a step.
    fn parts(&self, head: &Head) -> impl FnMut(Step) -> Vec<Value> + Send;
}

/// A message with these answers.
fn around(form: &impl Choices, head: &Head, choices: Vec<Value>) -> Value {
    json!({
        "id": head.id,
        "object": form.object(),
        "created": head.created,
        "model": head.model.name,
        "system_fingerprint": concat!("glimt-", env!("CARGO_PKG_VERSION")),
        "choices": choices,
    })
}

/// The tokens of answers.
fn usage(usage: &Usage) -> Value {
    let [expected, accepted] = usage.expected;
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "reasoning_tokens": usage.thoughts,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": expected - accepted,
        },
    })
}

/// The body with all answers and what they took.
pub(super) fn whole(
    form: &impl Choices,
    head: &Head,
    answers: Vec<Collected>,
    took: &Usage,
) -> Value {
    let choices = answers.into_iter().enumerate();
    let choices = choices.map(|(i, answer)| form.choice(head, i, answer));
    let mut body = around(form, head, choices.collect());
    body["usage"] = usage(took);
    body
}

/// Makes the events of a stream of which the parts are made by `parts`.
struct Chunks<'a, F, P> {
    form: &'a F,
    head: &'a Head,
    parts: P,
}

/// A maker of the events of a stream.
pub(super) fn events<'a, F: Choices>(form: &'a F, head: &'a Head) -> impl Events + 'a {
    let parts = form.parts(head);
    Chunks { form, head, parts }
}

impl<F: Choices, P> Chunks<'_, F, P> {
    fn event(&self, choices: Vec<Value>) -> Value {
        let mut event = around(self.form, self.head, choices);
        if self.form.ask().include_usage {
            event["usage"] = Value::Null;
        }
        event
    }
}

impl<F: Choices, P: FnMut(Step) -> Vec<Value> + Send> Events for Chunks<'_, F, P> {
    fn begin(&mut self, _: &Usage) -> Vec<Value> {
        let first = self.form.first().into_iter();
        first.map(|choice| self.event(vec![choice])).collect()
    }

    fn step(&mut self, step: Step, took: &Usage) -> Vec<Value> {
        let parts = (self.parts)(step).into_iter();
        let events = parts.map(|choice| {
            let mut event = self.event(vec![choice]);
            if self.form.ask().usage_with_each {
                event["usage"] = usage(took);
            }
            event
        });
        events.collect()
    }

    fn end(&mut self, took: &Usage) -> Vec<Value> {
        if !self.form.ask().include_usage {
            return vec![];
        }
        let mut last = self.event(vec![]);
        last["usage"] = usage(took);
        vec![last]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.json()]
    }
}
