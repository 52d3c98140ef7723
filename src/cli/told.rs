//! The JSON that `glimt generate --json` prints.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::piece::Piece;
use super::sampling::Choice;
use super::sink::Sink;
use crate::engine::chooser::TokenLogProbs;
use crate::engine::{Engine, GenerateStats, StopReason};

/// An answer and how it came about.
#[derive(Serialize)]
pub(super) struct Report {
    text: String,
    /// The thoughts, where the model had any.
    reasoning: Option<String>,
    stopped: &'static str,
    /// Whether the answer is all of a text of its grammar, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    prompt: Rate,
    generated: Rate,
    /// The drafts of the answer, if there were some.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<Drafts>,
    seed: u64,
    sampling: Map<String, Value>,
    model: String,
    device: String,
    context: usize,
    /// The tokens of thoughts and answer, where log-probabilities were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<Token>>,
}

#[derive(Serialize)]
struct Rate {
    tokens: usize,
    seconds: f64,
    tokens_per_second: Option<f64>,
}

#[derive(Serialize)]
struct Drafts {
    proposed: usize,
    accepted: usize,
}

impl Rate {
    /// `timed` of the tokens took `time`.
    fn new(tokens: usize, timed: usize, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            tokens,
            seconds,
            tokens_per_second: (timed > 0 && seconds > 0.0).then(|| timed as f64 / seconds),
        }
    }
}

#[derive(Serialize)]
struct Token {
    id: u32,
    text: Piece,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

/// Why an answer ended, in a word for programs.
pub(super) fn stopped(stop: StopReason, interrupted: bool) -> &'static str {
    match stop {
        _ if interrupted => "interrupted",
        StopReason::StopToken => "end of text",
        StopReason::SentenceEnd => "end of a sentence",
        StopReason::Limit => "limit",
        StopReason::ContextFull => "context full",
        StopReason::Caller => "stop text",
    }
}

impl Report {
    /// The report of an answer that was kept in `sink`.
    pub(super) fn new(
        engine: &Engine,
        sink: Sink,
        stats: &GenerateStats,
        interrupted: bool,
        complete: Option<bool>,
        choice: &Choice,
        log_probs: Option<&[TokenLogProbs]>,
    ) -> Self {
        let (text, reasoning) = match sink {
            Sink::Kept { text, thoughts } => (text, thoughts),
            Sink::Streamed(..) => (String::new(), None),
        };
        let token = |kept: &TokenLogProbs| Token {
            id: kept.token,
            text: Piece::of(engine.tokenizer(), kept.token),
            logprob: kept.log_prob,
            top: kept.top.clone(),
        };
        Self {
            text,
            reasoning,
            stopped: stopped(stats.stop, interrupted),
            complete,
            prompt: Rate::new(stats.prompt_tokens, stats.prompt_tokens, stats.prompt_time),
            generated: Rate::new(stats.generated, stats.steps, stats.generate_time),
            drafts: (stats.drafted > 0).then_some(Drafts {
                proposed: stats.drafted,
                accepted: stats.accepted,
            }),
            seed: choice.sampling().seed,
            sampling: choice.json(),
            model: engine.model().config().name.clone(),
            device: engine.device_name(),
            context: engine.n_ctx(),
            tokens: log_probs.map(|kept| kept.iter().map(token).collect()),
        }
    }
}
