//! Running a session for an answer: a bar while a long prompt is evaluated, and Ctrl-C.

use std::ops::ControlFlow;

use super::error::CliError;
use super::{interrupt, load};
use crate::engine::chooser::{ChainSettings, Chooser};
use crate::engine::{GenerateStats, Session};
use crate::gpu::wait::Wait;

/// An answer, or a part of one.
pub(super) struct Ran<E> {
    pub(super) stats: GenerateStats,
    /// Why the caller ended it, if it did.
    pub(super) ended: Option<E>,
}

/// Evaluates `tokens` and gives up to `limit` tokens of the answer to `take`. Tokens are chosen by the host, if it is to, else by the
/// device. It ends where `take` says why, or at Ctrl-C.
pub(super) fn run<E: Send>(
    session: &mut Session,
    tokens: &[u32],
    (chain, host): (&ChainSettings, Option<&mut dyn Chooser>),
    limit: usize,
    take: &mut (dyn FnMut(u32) -> Result<Option<E>, CliError> + Send),
) -> Result<Ran<E>, CliError> {
    let bar = load::prompt_bar("prompt", tokens.len());
    let on_prompt = &mut |done: usize| {
        // Between two submissions of a prompt there is something to end in order.
        interrupt::begin_answer();
        bar.at(done as u64);
        flow(!interrupt::requested())
    };
    let mut ended = None;
    let on_token = &mut |token| {
        bar.end();
        interrupt::begin_answer();
        ended = take(token).transpose();
        flow(ended.is_none() && !interrupt::requested())
    };
    let stats = match host {
        Some(host) => session
            .generate_chosen(tokens, host, limit, on_prompt, on_token)
            .wait(),
        None => {
            session.set_biases(chain.on_device().unwrap_or_default());
            session
                .generate_watched(tokens, &chain.sampling, limit, on_prompt, on_token)
                .wait()
        }
    };
    bar.end();
    Ok(Ran {
        stats: stats?,
        ended: ended.transpose()?,
    })
}

/// Whether to go on.
pub(super) fn flow(on: bool) -> ControlFlow<()> {
    match on {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}
