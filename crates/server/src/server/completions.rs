//! `/v1/completions`: a text in, what continues it out.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answers::{Step, Usage};
use super::ask::{Ask, check_prompt, unread};
use super::deliver::{Collected, Events, Form, Head, Read};
use super::error::ApiError;
use super::fields::Fields;
use super::kept::Kept;
use super::model::Model;
use super::openai::{self, Choices};
use super::probabilities;
use super::reader::Reader;
use super::sse::Framing;
use super::tools::Delta;

/// The most prompts of a request.
const MOST_PROMPTS: usize = 128;

/// A request to continue texts.
pub(super) struct Completion {
    ask: Ask,
    /// The texts that stand before the answers to each prompt, where a request asks for an echo.
    echoes: Vec<String>,
}

/// The prompts of a field. As in llama.cpp, a list with a number in it is one prompt.
pub(super) fn listed(prompt: &Value) -> &[Value] {
    match prompt {
        Value::Array(items) if !items.iter().any(Value::is_number) => items,
        one => std::slice::from_ref(one),
    }
}

/// The prompts of a request, as tokens.
fn prompts(fields: &Fields<'_>, model: &Model) -> Result<Vec<Vec<u32>>, ApiError> {
    let add = fields.flag("add_special_tokens")?.unwrap_or(true);
    let Some(prompt) = fields.get("prompt") else {
        return Err(fields.wrong("prompt", "is missing"));
    };
    let all = listed(prompt);
    if all.is_empty() || all.len() > MOST_PROMPTS {
        let message = format!("must hold 1 to {MOST_PROMPTS} prompts");
        return Err(fields.wrong("prompt", &message));
    }
    let tokens = |prompt| tokens(fields, prompt, add, model);
    all.iter().map(tokens).collect()
}

/// The texts and tokens of a prompt, if it is one.
fn parts(prompt: &Value) -> Option<&[Value]> {
    match prompt {
        Value::String(_) => Some(std::slice::from_ref(prompt)),
        Value::Array(parts) => {
            let is_one = parts.is_empty() || parts.iter().any(Value::is_number);
            is_one.then_some(parts)
        }
        // llama.cpp's form of a prompt that may have pictures, which have a field of their own.
        Value::Object(map) if map.len() == 1 => {
            let text = map.get("prompt_string")?;
            (!text.is_object()).then(|| parts(text)).flatten()
        }
        _ => None,
    }
}

/// The tokens of a prompt. Only in front of one that begins with a text stands the token that the model adds.
fn tokens(
    fields: &Fields<'_>,
    prompt: &Value,
    add: bool,
    model: &Model,
) -> Result<Vec<u32>, ApiError> {
    let message = "must be a text, a list of tokens and texts, an object with prompt_string alone, or a list of such prompts";
    let wrong = || fields.wrong("prompt", message);
    let mut tokens = vec![];
    for (i, part) in parts(prompt).ok_or_else(wrong)?.iter().enumerate() {
        match part {
            Value::String(text) => {
                let encoded = model.engine.tokenizer().encode(text, add && i == 0);
                tokens.extend(encoded.map_err(|error| unread(error, "prompt", model))?);
            }
            part => {
                let id = part.as_u64().and_then(|id| u32::try_from(id).ok());
                tokens.push(id.ok_or_else(wrong)?);
            }
        }
    }
    Ok(tokens)
}

impl Form for Completion {
    const ID: &'static str = "cmpl-";
    const FRAMING: Framing = Framing::Marked;

    fn read(fields: &Fields<'_>, model: &Model, _: &Arc<Kept>) -> Read<Self> {
        if fields.text("suffix")?.is_some_and(|text| !text.is_empty()) {
            let message = "is not supported: the model only continues a text";
            return Err(fields.wrong("suffix", message));
        }
        let log_probs = fields.count("logprobs", 0..=20)?;
        let log_probs = log_probs.map(|most| most as usize);
        let echo = fields.flag("echo")?.unwrap_or(false);
        if echo && log_probs.is_some() {
            let message =
                "cannot be given together with logprobs: those of prompts are not computed";
            return Err(fields.wrong("echo", message));
        }
        let prompts = prompts(fields, model)?;
        for prompt in &prompts {
            check_prompt("prompt", prompt, model)?;
        }
        let ask = Ask::read(fields, model, false, log_probs)?;
        let tokenizer = model.engine.tokenizer();
        let text = |ids: &Vec<u32>| tokenizer.text_of(ids);
        let orders = ask.orders(&prompts, model, None)?;
        let echoes = match echo {
            true => prompts.iter().map(text).collect(),
            false => vec![String::new(); prompts.len()],
        };
        Ok((Self { ask, echoes }, orders))
    }

    fn ask(&self) -> &Ask {
        &self.ask
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        Reader::new(model.engine.tokenizer(), None, &self.ask.stops, None)
    }

    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value {
        openai::whole(self, head, answers, usage)
    }

    fn events<'a>(&'a self, head: &'a Head) -> impl Events + 'a {
        openai::events(self, head)
    }
}

impl Choices for Completion {
    fn object(&self) -> &'static str {
        "text_completion"
    }

    fn choice(&self, head: &Head, index: usize, answer: Collected) -> Value {
        let text = format!(
            "{}{}",
            self.echoes[index / self.ask.n],
            answer.blocks.text()
        );
        let tokenizer = head.model.engine.tokenizer();
        let table = |_| probabilities::table(tokenizer, &answer.log_probs, &mut 0);
        let log_probs = self.ask.log_probs.map(table);
        choice(index, text, log_probs, Some(answer.reason))
    }

    fn first(&self) -> Vec<Value> {
        let each = |text| std::iter::repeat_n(text, self.ask.n);
        let echoed = self.echoes.iter().flat_map(each).enumerate();
        echoed
            .filter(|(_, text)| !text.is_empty())
            .map(|(i, text)| choice(i, text.clone(), None, None))
            .collect()
    }

    fn parts(&self, head: &Head) -> impl FnMut(Step) -> Vec<Value> + Send {
        let tokenizer = head.model.engine.tokenizer();
        let mut offsets = vec![0; self.ask.n * self.echoes.len()];
        move |step| {
            let mut text = String::new();
            for delta in step.deltas {
                if let Delta::Text(more) = delta {
                    text += &more;
                }
            }
            let offset = &mut offsets[step.choice];
            let found = step.log_probs;
            let log_probs = found.map(|found| probabilities::table(tokenizer, &[found], offset));
            let is_empty = text.is_empty() && log_probs.is_none() && step.reason.is_none();
            if is_empty && !self.ask.usage_with_each {
                return vec![];
            }
            vec![choice(step.choice, text, log_probs, step.reason)]
        }
    }
}

/// An answer, or a part of one.
fn choice(
    index: usize,
    text: String,
    log_probs: Option<Value>,
    reason: Option<&'static str>,
) -> Value {
    json!({"index": index, "text": text, "logprobs": log_probs, "finish_reason": reason})
}
