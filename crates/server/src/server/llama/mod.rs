//! llama.cpp's own API: `/completion` on top of completions, and what is told of the server and the model.

mod about;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

pub(super) use about::{apply_template, props, slots};
pub(super) use slots::Asked;

use super::answers::{Step, Usage};
use super::ask::Ask;
use super::completions::{Completion, listed};
use super::deliver::{self, Collected, Form, Head, Read};
use super::error::ApiError;
use super::fields::Fields;
use super::kept::Kept;
use super::model::Model;
use super::reader::Reader;
use super::sse::Framing;
use super::tools::Delta;
use super::translated::{self, refuse, shared};
use crate::engine::chooser::TokenLogProbs;
use crate::tokenizer::Tokenizer;

/// Fields that the API has in its own way.
const OWN: [&str; 7] = [
    "n_predict",
    "max_tokens",
    "max_completion_tokens",
    "n_probs",
    "logprobs",
    "return_tokens",
    "echo",
];

/// Fields that mean nothing here. docs/serving.md tells why.
const SILENT: [&str; 5] = [
    "return_progress",
    "timings_per_token",
    "response_fields",
    "stream_options",
    "n_discard",
];

/// The names of the limit of an answer, the first of which counts.
const LIMITS: [&str; 3] = ["n_predict", "max_tokens", "max_completion_tokens"];

/// The answer to a request whose limit is 0.
fn nothing(slot: usize) -> Collected {
    Collected {
        slot,
        reason: "length",
        ..Collected::default()
    }
}

/// A field that cannot be met, whose name is another one elsewhere.
const REFUSED: [(&str, &str); 1] = [(
    "post_sampling_probs",
    "is not supported: probabilities are those before any sampler",
)];

/// A request to continue texts.
pub(super) struct Continued {
    inner: Completion,
    /// The prompts, as the request has them.
    prompts: Vec<Value>,
    /// Whether answers tell their tokens.
    tokens: bool,
    /// Whether the prompt is computed and nothing is answered. The one token of the answer is left out.
    nothing: bool,
}

impl Form for Continued {
    const ID: &'static str = "";
    const FRAMING: Framing = Framing::Plain;

    fn read(fields: &Fields<'_>, model: &Model, kept: &Arc<Kept>) -> Read<Self> {
        refuse(fields, &REFUSED)?;
        fields.skip(&SILENT);
        let mut body = shared(fields, &[&OWN[..], &SILENT].concat())?;
        let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
        let mut most = None;
        for name in LIMITS {
            most = most.or(fields.count(name, i64::MIN..=i64::MAX)?);
        }
        // A number below 0 is no limit.
        if let Some(most) = most.filter(|most| *most >= 0) {
            put("max_tokens", most.max(1).into());
        }
        if let Some(Value::Array(stops)) = fields.get("stop") {
            let stops = stops.iter().filter(|stop| **stop != "");
            put("stop", stops.cloned().collect());
        }
        let shown = fields.count("n_probs", 0..=20)?.unwrap_or(0);
        if shown > 0 {
            put("logprobs", shown.into());
        }
        let prompts = fields.get("prompt").map_or(&[][..], listed).to_vec();
        let body = Value::from(body);
        let names = [("max_tokens", "n_predict"), ("logprobs", "n_probs")];
        let read = translated::read(fields, None, &body, |body| {
            Completion::read(body, model, kept)
        });
        let (inner, orders) = read.map_err(|error| error.renamed(&names))?;
        let form = Self {
            inner,
            prompts,
            tokens: fields.flag("return_tokens")?.unwrap_or(false),
            nothing: most == Some(0),
        };
        Ok((form, orders))
    }

    fn ask(&self) -> &Ask {
        self.inner.ask()
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        self.inner.reader(model)
    }

    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value {
        let answers = answers.into_iter().enumerate().map(|(index, answer)| {
            let answer = match self.nothing {
                true => nothing(answer.slot),
                false => answer,
            };
            let mut whole = self.last(head, index, &answer, usage);
            whole["content"] = answer.blocks.text().into();
            if self.tokens {
                whole["tokens"] = answer.tokens.into();
            }
            if self.ask().log_probs.is_some() {
                let tokenizer = head.model.engine.tokenizer();
                whole["completion_probabilities"] = probabilities(tokenizer, &answer.log_probs);
            }
            whole
        });
        let mut answers: Vec<_> = answers.collect();
        match answers.len() {
            1 => answers.remove(0),
            _ => answers.into(),
        }
    }

    fn events<'a>(&'a self, head: &'a Head) -> impl deliver::Events + 'a {
        Events {
            form: self,
            head,
            ended: vec![],
        }
    }
}

impl Continued {
    /// The usage as an answer tells it.
    fn usage(&self, usage: &Usage) -> Usage {
        match self.nothing {
            true => Usage {
                generated: 0,
                of_answer: Duration::ZERO,
                ..*usage
            },
            false => *usage,
        }
    }

    /// The last message of an answer, without its text.
    fn last(&self, head: &Head, index: usize, answer: &Collected, usage: &Usage) -> Value {
        let stop_type = match (answer.reason, &answer.stopped_by) {
            ("length", _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let ask = self.ask();
        let prompt = self.prompts.get(index / ask.n);
        let usage = self.usage(usage);
        let mut settings = about::settings(&head.model, &ask.chain, Some(ask));
        if self.nothing {
            settings["n_predict"] = 0.into();
        }
        json!({
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": answer.slot,
            "stop": true,
            "model": head.model.name,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "generation_settings": settings,
            "prompt": prompt,
            "has_new_line": answer.blocks.text().contains('\n'),
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": answer.stopped_by.as_deref().unwrap_or_default(),
            "tokens_cached": usage.prompt + usage.generated,
            "timings": timings(&usage),
        })
    }
}

/// How long things took.
fn timings(usage: &Usage) -> Value {
    let computed = usage.prompt.saturating_sub(usage.cached);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let rates = |tokens: usize, ms: f64| {
        let tokens = tokens as f64;
        // JSON has no infinity.
        let rate = |of: f64, by: f64| if by > 0.0 { of / by } else { 0.0 };
        [rate(ms, tokens), rate(tokens * 1e3, ms)]
    };
    let (prompt, answer) = (ms(usage.of_prompt), ms(usage.of_answer));
    let [prompt_each, prompt_rate] = rates(computed, prompt);
    let [answer_each, answer_rate] = rates(usage.generated, answer);
    let mut timings = json!({
        "cache_n": usage.cached,
        "prompt_n": computed,
        "prompt_ms": prompt,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": prompt_rate,
        "predicted_n": usage.generated,
        "predicted_ms": answer,
        "predicted_per_token_ms": answer_each,
        "predicted_per_second": answer_rate,
    });
    let [drafted, accepted] = usage.drafts;
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = accepted.into();
    }
    timings
}

/// Log-probabilities of tokens.
fn probabilities(tokenizer: &Tokenizer, all: &[TokenLogProbs]) -> Value {
    let mut listed = super::probabilities::list(tokenizer, all);
    for (value, found) in listed.iter_mut().zip(all) {
        value["id"] = found.token.into();
        let tops = value["top_logprobs"].as_array_mut();
        for (top, (id, _)) in tops.into_iter().flatten().zip(&found.top) {
            top["id"] = (*id).into();
        }
    }
    listed.into()
}

/// Makes the events of a stream.
struct Events<'a> {
    form: &'a Continued,
    head: &'a Head,
    /// The answers that have ended.
    ended: Vec<(usize, Collected)>,
}

impl deliver::Events for Events<'_> {
    fn begin(&mut self, _: &Usage) -> Vec<Value> {
        vec![]
    }

    fn step(&mut self, step: Step, usage: &Usage) -> Vec<Value> {
        let mut text = String::new();
        for delta in step.deltas {
            if let Delta::Text(more) = delta {
                text += &more;
            }
        }
        if let Some(reason) = step.reason {
            let ended = Collected {
                slot: step.slot,
                reason,
                stopped_by: step.stopped_by,
                ..Collected::default()
            };
            let ended = if self.form.nothing {
                nothing(step.slot)
            } else {
                ended
            };
            self.ended.push((step.choice, ended));
        }
        if self.form.nothing || text.is_empty() && step.token.is_none() {
            return vec![];
        }
        let mut part = json!({
            "index": step.choice,
            "content": text,
            "tokens": step.token.as_slice(),
            "stop": false,
            "id_slot": step.slot,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
        });
        if let Some(found) = step.log_probs {
            let tokenizer = self.head.model.engine.tokenizer();
            part["completion_probabilities"] = probabilities(tokenizer, &[found]);
        }
        vec![part]
    }

    fn end(&mut self, usage: &Usage) -> Vec<Value> {
        let ended = self.ended.drain(..);
        let last = ended.map(|(i, answer)| self.form.last(self.head, i, &answer, usage));
        last.collect()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.json()]
    }
}
