//! The settings that requests for chats and for completions have in common.

use std::sync::Arc;

use serde_json::Value;

use super::error::{ApiError, TooMany};
use super::fields::Fields;
use super::model::Model;
use super::orders::{Order, Wish};
use super::{known, sampling};
use crate::engine::EngineError;
use crate::engine::chooser::{ChainSettings, Language};
use crate::engine::draft::{DraftOptions, DraftSource};
use crate::tokenizer::TokenizerError;

/// The most texts that may end an answer.
const MOST_STOPS: usize = 32;
/// Bytes of such a text: the end of an answer is compared with it at every token.
const LONGEST_STOP: usize = 1024;
/// The most answers to one prompt.
const MOST_ANSWERS: i64 = 128;
/// The names of the number of answers, the first of which counts. The second one is llama.cpp's.
pub(super) const ANSWERS: [&str; 2] = ["n", "n_cmpl"];
/// The most answers to all prompts of a request.
pub(super) const MOST_IN_ALL: usize = 1024;

/// The settings that requests for chats and for completions have in common.
pub(super) struct Ask {
    pub(super) stream: bool,
    /// Whether the last message of a stream tells what it took.
    pub(super) include_usage: bool,
    /// Whether every token has an event, which tells what was taken so far.
    pub(super) usage_with_each: bool,
    /// Answers to each prompt.
    pub(super) n: usize,
    /// Texts that end an answer.
    pub(super) stops: Vec<String>,
    /// The number of best tokens that are told with each, where that is asked for.
    pub(super) log_probs: Option<usize>,
    pub(super) limit: usize,
    /// The slot that the conversation is kept in; `None` is any.
    slot: Option<usize>,
    drafts: DraftOptions,
    /// The text that answers are expected to repeat.
    pub(super) expected: Vec<u32>,
    pub(super) chain: ChainSettings,
    /// The field that asks for a form of the answer, and the form as a language.
    form: Option<(&'static str, Language)>,
}

impl Ask {
    /// Reads it. `no_thoughts` is whether the model is told not to think.
    ///
    /// # Errors
    /// The problem with the request, by its field.
    pub(super) fn read(
        fields: &Fields<'_>,
        model: &Model,
        no_thoughts: bool,
        log_probs: Option<usize>,
    ) -> Result<Self, ApiError> {
        known::check(fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let options = fields.object("stream_options")?;
        if !stream && options.as_ref().is_some_and(|options| !options.is_empty()) {
            return Err(fields.wrong("stream_options", "means something only with stream"));
        }
        let option = |name: &str| match &options {
            Some(options) => Ok(options.flag(name)?.unwrap_or(false)),
            None => Ok(false),
        };
        let include_usage = option("include_usage")?;
        let usage_with_each = option("continuous_usage_stats")? && include_usage;
        let mut n = None;
        for name in ANSWERS {
            n = n.or(fields.count(name, 1..=MOST_ANSWERS)?);
        }
        let n = n.unwrap_or(1) as usize;
        if let Some(best) = fields.count("best_of", 1..=MOST_ANSWERS)?
            && best as usize != n
        {
            return Err(fields.wrong("best_of", "must be as n is; answers are not ranked here"));
        }
        let limit = limit(fields)?.or(model.limit).unwrap_or(usize::MAX);
        let defaults = match no_thoughts {
            true => &model.answering,
            false => &model.thinking,
        };
        let tokenizer = model.engine.tokenizer();
        let (seed, penalty) = (model.seed, model.penalty_asked);
        Ok(Self {
            stream,
            include_usage,
            usage_with_each,
            n,
            stops: stops(fields)?,
            log_probs,
            limit,
            slot: slot(fields, model)?,
            drafts: drafts(fields, model)?,
            expected: vec![],
            chain: sampling::read(fields, defaults, seed, penalty, tokenizer)?,
            form: sampling::form(fields)?,
        })
    }

    /// Whether the answers can have drafts.
    pub(super) fn has_drafts(&self, model: &Model) -> bool {
        let sizes = model.engine.batch_sizes();
        let has_room = sizes.is_some_and(|sizes| sizes.drafts > 0);
        has_room && self.drafts.source != DraftSource::Off && self.drafts.most != Some(0)
    }

    /// Demands a form that the request itself does not name.
    ///
    /// # Errors
    /// If it names another.
    pub(super) fn demand(&mut self, field: &'static str, form: Language) -> Result<(), ApiError> {
        // A call is free of the form that answers have.
        let other = self.form.replace((field, form));
        if let Some((other, _)) = other.filter(|(other, _)| *other != "response_format") {
            let message = format!("'{field}' demands a call, and '{other}' another answer");
            return Err(ApiError::field(field, message));
        }
        Ok(())
    }

    /// Lets the answer be a call, which begins with one of `marks`, in place of the form that the request names.
    pub(super) fn or_call(&mut self, marks: &[&str]) {
        self.form = self.form.take().map(|(field, answer)| {
            let (answer, marks) = (Box::new(answer), marks.iter());
            let marks = marks.map(|mark| (*mark).to_owned()).collect();
            (field, Language::Unless { answer, marks })
        });
    }

    /// The orders for the answers to some prompts. A grammar begins behind the token `begins_after`, if there is one.
    ///
    /// # Errors
    /// If these are too many, or what is wrong with the form that is demanded.
    pub(super) fn orders(
        &self,
        prompts: &[Vec<u32>],
        model: &Model,
        begins_after: Option<u32>,
    ) -> Result<Vec<Order>, ApiError> {
        if prompts.len().saturating_mul(self.n) > MOST_IN_ALL {
            let (n, prompts, most) = (self.n, prompts.len(), MOST_IN_ALL);
            return Err(TooMany::Answers { n, prompts, most }.refused());
        }
        let grammar = match &self.form {
            None => None,
            Some((field, language)) => {
                let grammar = model.engine.grammar(language.clone());
                let refused = |error| ApiError::field(*field, format!("'{field}': {error}"));
                Some(grammar.map_err(refused)?)
            }
        };
        let wish = Arc::new(Wish {
            chain: self.chain.clone(),
            grammar,
            begins_after,
            log_probs: self.log_probs,
            limit: self.limit,
            slot: self.slot,
            drafts: self.drafts,
            expected: self.expected.clone(),
        });
        let order = |prompt: &Vec<u32>| Order {
            prompt: prompt.as_slice().into(),
            n: self.n,
            wish: Arc::clone(&wish),
        };
        Ok(prompts.iter().map(order).collect())
    }
}

/// The slot that the conversation is kept in, if a request names one; -1 is any.
fn slot(fields: &Fields<'_>, model: &Model) -> Result<Option<usize>, ApiError> {
    let slots = model
        .engine
        .batch_sizes()
        .map_or(1, |sizes| sizes.sequences);
    let mut found = None;
    for name in ["id_slot", "slot_id"] {
        found = found.or(fields.count(name, -1..=i64::from(slots) - 1)?);
    }
    Ok(found.and_then(|slot| usize::try_from(slot).ok()))
}

/// The drafts that an answer may take: those of the server, or fewer of them by llama.cpp's fields.
fn drafts(fields: &Fields<'_>, model: &Model) -> Result<DraftOptions, ApiError> {
    let most = fields.count("speculative.n_max", 0..=i64::from(u32::MAX))?;
    let most = most.and_then(|most| usize::try_from(most).ok());
    if most == Some(0) || fields.text("speculative.type")? == Some("none") {
        return Ok(DraftOptions::OFF);
    }
    let most = [most, model.drafts.most].into_iter().flatten().min();
    Ok(DraftOptions {
        most,
        ..model.drafts
    })
}

/// The most tokens of an answer, if a request says it; -1 and -2 are no limit, as in llama.cpp.
fn limit(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        let most = fields.count(name, -2..=i64::MAX)?;
        if most == Some(0) {
            return Err(fields.wrong(name, "must be a whole number from 1 on, or -1 for no limit"));
        }
        let most = most.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        found = found.or(most);
    }
    Ok(found)
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let message = "must be a text, or a list of up to 32 texts, of up to 1024 bytes each";
    let wrong = || fields.wrong("stop", message);
    let texts: Vec<&Value> = match fields.get("stop") {
        None => vec![],
        Some(Value::Array(texts)) => texts.iter().collect(),
        Some(text) => vec![text],
    };
    if texts.len() > MOST_STOPS {
        return Err(wrong());
    }
    let read = |text: &Value| {
        let text = text.as_str().filter(|text| text.len() <= LONGEST_STOP);
        text.map(str::to_owned).ok_or_else(wrong)
    };
    let texts: Result<Vec<String>, _> = texts.into_iter().map(read).collect();
    // Some clients send an empty one for none.
    Ok(texts?.into_iter().filter(|text| !text.is_empty()).collect())
}

/// Checks that a request is for the model that is served. One without a name is, and one with another name if names are not strict.
///
/// # Errors
/// If it names another and names are strict.
pub(super) fn check_model(fields: &Fields<'_>, model: &Model) -> Result<(), ApiError> {
    match fields.text("model")? {
        // Clients of ollama add the tag that stands for none.
        Some(asked)
            if model.strict_name
                && asked.strip_suffix(":latest").unwrap_or(asked) != model.name =>
        {
            Err(ApiError::no_model(asked, &model.name))
        }
        _ => Ok(()),
    }
}

/// The error about a prompt of `tokens` tokens if there is room for `room` only.
fn too_long(param: &str, [tokens, room]: [usize; 2], more: &str) -> ApiError {
    // Agents know by these words, which are those of OpenAI's, llama.cpp's and Anthropic's servers, that they have to shorten.
    let message = format!(
        "This model's maximum context length is {room} tokens. However, your {param} resulted in {tokens} tokens. Please reduce the length of the {param}. The prompt is too long: it exceeds the available context size ({room} tokens). {more}"
    );
    ApiError::field(param, message).too_many(tokens, room)
}

/// The error about a prompt of `tokens` tokens, at least, for which the context is too small.
fn too_many(param: &str, tokens: usize, model: &Model) -> ApiError {
    let more = "The context holds the answer, too. A server with a larger one is started with -c.";
    too_long(param, [tokens, model.engine.n_ctx()], more)
}

/// The error about a text that is no tokens, or too many.
pub(super) fn unread(error: TokenizerError, param: &str, model: &Model) -> ApiError {
    match error {
        TokenizerError::TooMany { most } => too_many(param, most + 1, model),
        TokenizerError::Stopped(stopped) => ApiError::stopped(stopped),
        error => ApiError::field(param, format!("'{param}' cannot be read: {error}")),
    }
}

/// Checks that a prompt leaves room for an answer.
///
/// # Errors
/// If it does not, or has no tokens.
pub(super) fn check_prompt(param: &str, prompt: &[u32], model: &Model) -> Result<(), ApiError> {
    let (tokens, n_ctx) = (prompt.len(), model.engine.n_ctx());
    if tokens >= n_ctx {
        return Err(too_many(param, tokens, model));
    }
    match model.engine.check_cache(tokens) {
        Ok(()) => {}
        Err(error @ EngineError::CacheTooSmall { rows, .. }) => {
            return Err(too_long(param, [tokens, rows], &format!("{error}.")));
        }
        Err(error) => return Err(ApiError::field(param, error.to_string())),
    }
    let checked = model.engine.check_tokens(prompt, 0);
    checked.map_err(|error| ApiError::field(param, format!("'{param}': {error}")))
}
