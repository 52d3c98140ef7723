//! llama.cpp's own API: `/completion` on top of completions, and what is told of the server and the model.

mod about;

use std::sync::Arc;

use serde_json::{Value, json};

pub(super) use about::{apply_template, props, slots};

use super::answers::{Step, Usage};
use super::ask::Ask;
use super::completions::Completion;
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

/// Fields that the API has in its own way, or that mean nothing here. docs/serving.md tells why.
const OWN: [&str; 16] = [
    "n_predict",
    "n_probs",
    "logprobs",
    "stream_options",
    "cache_prompt",
    "id_slot",
    "slot_id",
    "return_tokens",
    "return_progress",
    "timings_per_token",
    "response_fields",
    "n_keep",
    "n_cache_reuse",
    "image_data",
    "lora",
    "echo",
];

/// Fields that cannot be met.
const REFUSED: [(&str, &str); 6] = [
    ("image_data", "is not supported: this model reads only text"),
    ("lora", "is not supported: this server has no adapters"),
    (
        "n_discard",
        "is not supported: an answer ends where the context is full",
    ),
    (
        "n_indent",
        "is not supported: lines are not indented by force",
    ),
    (
        "t_max_predict_ms",
        "is not supported; limit the tokens with n_predict",
    ),
    (
        "post_sampling_probs",
        "is not supported: probabilities are those before any sampler",
    ),
];

/// A request to continue texts.
pub(super) struct Continued {
    inner: Completion,
    /// The prompts, as the request has them.
    prompts: Vec<Value>,
    /// Whether answers tell their tokens.
    tokens: bool,
}

impl Form for Continued {
    const ID: &'static str = "";
    const FRAMING: Framing = Framing::Plain;

    fn read(fields: &Fields<'_>, model: &Model, kept: &Arc<Kept>) -> Read<Self> {
        refuse(fields, &REFUSED)?;
        let mut body = shared(fields, &OWN)?;
        let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
        let most = fields.count("n_predict", i64::MIN..=i64::MAX)?;
        // A number below 0 is no limit.
        if let Some(most) = most.filter(|most| *most >= 0) {
            put("max_tokens", most.into());
        }
        if let Some(Value::Array(stops)) = fields.get("stop") {
            let stops = stops.iter().filter(|stop| **stop != "");
            put("stop", stops.cloned().collect());
        }
        let shown = fields.count("n_probs", 0..=20)?.unwrap_or(0);
        if shown > 0 {
            put("logprobs", shown.into());
        }
        let prompts = match fields.get("prompt") {
            Some(Value::Array(items)) if !items.first().is_some_and(Value::is_number) => {
                items.clone()
            }
            other => other.cloned().into_iter().collect(),
        };
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
    /// The last message of an answer, without its text.
    fn last(&self, head: &Head, index: usize, answer: &Collected, usage: &Usage) -> Value {
        let stop_type = match (answer.reason, &answer.stopped_by) {
            ("length", _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let ask = self.ask();
        let prompt = self.prompts.get(index / ask.n);
        json!({
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": 0,
            "stop": true,
            "model": head.model.name,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "generation_settings": about::settings(&head.model, &ask.chain, Some(ask)),
            "prompt": prompt,
            "has_new_line": answer.blocks.text().contains('\n'),
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": answer.stopped_by.as_deref().unwrap_or_default(),
            "tokens_cached": usage.prompt + usage.generated,
            "timings": timings(usage),
        })
    }
}

/// How long things took.
fn timings(usage: &Usage) -> Value {
    let computed = usage.prompt.saturating_sub(usage.cached);
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let rates = |tokens: usize, ms: f64| {
        let tokens = tokens as f64;
        // JSON has no infinity.
        let rate = |of: f64, by: f64| if by > 0.0 { of / by } else { 0.0 };
        [rate(ms, tokens), rate(tokens * 1e3, ms)]
    };
    let (prompt, answer) = (ms(usage.of_prompt), ms(usage.of_answer));
    let [prompt_each, prompt_rate] = rates(computed, prompt);
    let [answer_each, answer_rate] = rates(usage.generated, answer);
    json!({
        "cache_n": usage.cached,
        "prompt_n": computed,
        "prompt_ms": prompt,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": prompt_rate,
        "predicted_n": usage.generated,
        "predicted_ms": answer,
        "predicted_per_token_ms": answer_each,
        "predicted_per_second": answer_rate,
    })
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
                reason,
                stopped_by: step.stopped_by,
                ..Collected::default()
            };
            self.ended.push((step.choice, ended));
        }
        if text.is_empty() && step.token.is_none() {
            return vec![];
        }
        let mut part = json!({
            "index": step.choice,
            "content": text,
            "tokens": step.token.as_slice(),
            "stop": false,
            "id_slot": 0,
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
