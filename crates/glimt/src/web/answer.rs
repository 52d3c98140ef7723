//! An answer for a page.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use js_sys::Function;
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;

use super::Model;
use crate::chat::{Piece, ReplyReader, Turn};
use crate::engine::recommended::Recommended;
use crate::engine::{EngineError, GenerateStats, Sampling, StopReason};

/// How to choose tokens, and how many; what is not given is as it is natively.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Goes on with the text as it is, without the chat template and without the conversation.
    raw: bool,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    /// A random one where it is missing.
    seed: Option<u32>,
    /// Tokens at most; none is no limit.
    limit: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(Sampling::DEFAULT)
    }
}

impl Settings {
    /// The settings of `sampling`, without its seed.
    fn of(sampling: Sampling) -> Self {
        Self {
            raw: false,
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: sampling.repeat_penalty,
            seed: None,
            limit: None,
        }
    }

    /// The settings that the file of a model or its publisher recommends.
    pub(super) fn recommended(known: &Recommended) -> Self {
        Self::of(known.sampling(false))
    }

    fn sampling(&self) -> Sampling {
        let drawn = || (js_sys::Math::random() * f64::from(u32::MAX)) as u32;
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: u64::from(self.seed.unwrap_or_else(drawn)),
            ..Sampling::GREEDY
        }
    }
}

/// The page, which is told of an answer and may end it.
pub(super) struct Told<'a> {
    on_piece: &'a Function,
    stopped: AtomicBool,
}

impl<'a> Told<'a> {
    /// A listener whose pieces `on_piece` gets.
    pub(super) fn new(on_piece: &'a Function) -> Self {
        Self {
            on_piece,
            stopped: AtomicBool::new(false),
        }
    }

    fn call(&self, kind: &str, text: JsValue, of: JsValue) -> ControlFlow<()> {
        let answer = self
            .on_piece
            .call3(&JsValue::NULL, &kind.into(), &text, &of);
        // A page that throws is not listening any more.
        if self.stopped.load(Ordering::Relaxed) || answer.map_or(true, |stop| stop.is_truthy()) {
            self.stopped.store(true, Ordering::Relaxed);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn piece(&self, piece: Option<Piece>) -> ControlFlow<()> {
        match piece {
            None => ControlFlow::Continue(()),
            Some(Piece::Thought(text)) => self.call("thought", text.into(), JsValue::NULL),
            Some(Piece::Answer(text)) => self.call("answer", text.into(), JsValue::NULL),
        }
    }

    fn prompt(&self, done: usize, of: usize) -> ControlFlow<()> {
        self.call("prompt", (done as f64).into(), (of as f64).into())
    }
}

/// The tokens and the time that an answer took.
#[derive(Debug, Serialize)]
pub(super) struct Took {
    prompt_tokens: usize,
    prompt_seconds: f64,
    tokens: usize,
    /// Tokens per second after the first.
    rate: Option<f64>,
    /// Why it ended: `end`, `limit`, `stopped` or `context`.
    ended: &'static str,
    /// The tokens of the answer.
    ids: Vec<u32>,
}

impl Took {
    fn new(stats: &GenerateStats, ids: Vec<u32>) -> Self {
        let seconds = stats.generate_time.as_secs_f64();
        Self {
            prompt_tokens: stats.prompt_tokens,
            prompt_seconds: stats.prompt_time.as_secs_f64(),
            tokens: stats.generated,
            rate: (stats.steps > 0 && seconds > 0.0).then(|| stats.steps as f64 / seconds),
            ended: match stats.stop {
                StopReason::StopToken | StopReason::SentenceEnd => "end",
                StopReason::Limit => "limit",
                StopReason::Caller => "stopped",
                StopReason::ContextFull => "context",
            },
            ids,
        }
    }
}

/// Answers `text` and tells the page piece by piece. A question that was not answered is taken back.
///
/// # Errors
/// The refusal of the prompt, or the error of the device.
pub(super) async fn answer(
    model: &mut Model,
    text: String,
    settings: &Settings,
    told: &Told<'_>,
) -> Result<Took, EngineError> {
    let engine = &model.engine;
    let talks = !settings.raw && engine.chat_template().is_some();
    let (ids, rendered) = match talks {
        true => {
            model.conversation.turns.push(Turn::User(text));
            match model.conversation.prompt(engine, None) {
                Ok(prompt) => (prompt.ids, prompt.text),
                Err(error) => {
                    model.conversation.take_last();
                    return Err(error);
                }
            }
        }
        false => (engine.tokenizer().encode(&text, true)?, text),
    };
    let mut reader = match talks {
        true => ReplyReader::new(engine.tokenizer(), &rendered),
        false => ReplyReader::plain(engine.tokenizer()),
    };
    let session = &mut model.session;
    let prompt = session.sync(&ids);
    let limit = settings.limit.unwrap_or(usize::MAX);
    let mut chosen = vec![];
    let on_prompt = &mut |done: usize| told.prompt(done, prompt.len());
    let on_token = &mut |token: u32| {
        chosen.push(token);
        told.piece(reader.push(token))
    };
    let sampling = settings.sampling();
    let generated = session
        .generate_watched(prompt, &sampling, limit, on_prompt, on_token)
        .await;
    let (reply, rest) = reader.finish();
    if talks {
        match &generated {
            Ok(_) => model.conversation.turns.push(Turn::Reply(reply)),
            Err(_) => drop(model.conversation.take_last()),
        }
    }
    let stats = generated?;
    let _ = told.piece(rest);
    Ok(Took::new(&stats, chosen))
}
