//! The frame of a step: its layers one after the other, each with the attention of its family.

use super::few::{BeforeNorm, Few};
use super::nextn::{self, Predicting};
use super::prompt::Prompt;
use super::{Attention, Chunk, Given};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Sublayer, belong};
use crate::gpu::{GpuError, Step};
use crate::kernels::token::unsupported;

/// The step that `step` begins, which leaves the `hidden` states of its tokens: prepared for a head, and in f32 before the last norm
/// (tokens, d) where that has a place.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub(super) fn few<'a>(
    mut step: Few<'a>,
    attention: &dyn Attention,
    hidden: &BeforeNorm,
    floats: Option<&Range>,
) -> Result<Few<'a>, GpuError> {
    let given = step.given;
    attention.check(given.target)?;
    let width = given.width();
    if !width.is_multiple_of(32) {
        let missing = format!("a kernel for hidden states of {width}, no multiple of 32");
        return Err(unsupported(given.target, &missing));
    }
    let layers = &given.body.layers;
    let norms = layers.iter().map(|layer| &layer.attn_norm);
    let norms: Vec<&Range> = norms.chain([&given.body.output_norm]).collect();
    let mut stream = step.embedding(norms[0]);
    for (i, layer) in layers.iter().enumerate() {
        let begin = step.calls.len();
        let attended = attention.few(&mut step, i, &stream.values)?;
        let (after, logits) = step.after_attention(layer, attended, &stream)?;
        let middle = step.calls.len();
        let mut next = step.place(
            ["after ffn", "prepared after ffn", "ffn squares"],
            norms[i + 1],
        );
        if i + 1 == layers.len() {
            next.prepared = hidden.clone();
            next.x = floats.unwrap_or(&next.x).clone();
        }
        stream = step.feed_forward(i, &after, logits, &next)?;
        belong_to_layer(&mut step.calls, i, begin, middle);
        // Behind other steps of several sequences that has a recording of its own.
        if i + 1 == layers.len() && (step.as_one || !given.context.has_several()) {
            nextn::keep(given, &mut step.calls, &next.x, step.most);
        }
    }
    Ok(step)
}

/// The step over `least` to `most` tokens, which leaves hidden states in the chunk's `after_ffn`, and rows of the prediction layer if its tokens
/// follow each other.
///
/// # Errors
/// The errors of recording it.
pub(super) fn prompt(
    given: Given<'_>,
    attention: &dyn Attention,
    (chunk, predicting): (&Chunk, Option<&Predicting>),
    least: u32,
    most: u32,
) -> Result<Step, GpuError> {
    let mut step = Prompt::new(given, chunk, most);
    let mut x = step.embedding();
    for (i, layer) in given.body.layers.iter().enumerate() {
        let begin = step.calls.len();
        let rows = step.before_attention(layer, &x);
        attention.many(&mut step, i, &rows, least);
        let after = step.after_attention(layer, &x);
        let middle = step.calls.len();
        x = step.feed_forward(i, after, least);
        belong_to_layer(&mut step.calls, i, begin, middle);
    }
    if let Some(layer) = predicting {
        layer.rows_of(&mut step, attention, true);
        nextn::keep(given, &mut step.calls, &x, most);
    }
    let state = attention.state(given.context, given.target.machine, 0, most as usize);
    step.filled(&state)
}

/// Tells the `calls` of layer `i` from `begin` on their sublayers, of which the second begins at `middle`.
fn belong_to_layer(calls: &mut [Call], i: usize, begin: usize, middle: usize) {
    belong(&mut calls[begin..middle], Sublayer::Attention(i));
    belong(&mut calls[middle..], Sublayer::FeedForward(i));
}
