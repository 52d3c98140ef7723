//! The layer recipe of a few tokens: of one sequence, or of a batch, in which each may belong to another one. Every product leaves its output
//! prepared for the next. In tier `plain` it is the recipe of one token, too.

mod attention;
mod buffers;
mod experts;

use super::{BeforeNorm, Given};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Sublayer, belong};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::batch_combine::GpuBatchCombine;
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input};
use crate::kernels::embed;
use crate::kernels::token::{Divided, TokenInput};
use crate::model::Ffn;
use crate::quant::activation::Activation;
use buffers::{Buffers, Stream};

/// Where a step leaves its hidden states: the last norm is done, or its sums of squares are beside them.
#[derive(Clone)]
pub struct Hidden {
    stream: BeforeNorm,
    /// Whether the sums of squares are still to be used.
    normed: bool,
}

impl Hidden {
    /// The hidden states of steps of up to `tokens` tokens. The last layer says whether it norms what it leaves.
    pub fn new(given: Given<'_>, tokens: u32) -> Self {
        let n = tokens * given.config().embedding_length as u32;
        let last = given.weights.layers.last();
        let names = ["hidden states", "squares"];
        Self {
            stream: BeforeNorm::new(names, given.target.activation(), n),
            normed: last.is_none_or(|layer| matches!(layer.ffn, Ffn::Moe(_))),
        }
    }
}

/// The step over up to `most` tokens, which leaves their hidden states: prepared for a [`head`], and in f32 before the last norm (tokens, d)
/// where that has a place.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub fn step(
    given: Given<'_>,
    most: u32,
    hidden: &Hidden,
    floats: Option<&Range>,
) -> Result<Step, GpuError> {
    given.check_units()?;
    let recipe = Recipe {
        given,
        activation: given.target.activation(),
        most,
        calls: vec![],
    };
    Ok(Step::of(
        given.context.most(most),
        recipe.step(hidden, floats)?,
    ))
}

/// The step from the hidden states of up to `most` tokens to their logits (tokens, vocab).
///
/// # Errors
/// The errors of [`step`].
pub fn head(
    given: Given<'_>,
    most: u32,
    hidden: &Hidden,
    logits: &Range,
) -> Result<Step, GpuError> {
    let input = match hidden.normed {
        true => TokenInput::of(hidden.stream.values.clone()),
        false => hidden.stream.input(given.config().rms_eps),
    };
    let product = GpuBatchMatvec {
        y: Some(logits.clone()),
        ..GpuBatchMatvec::new(
            given.target,
            &given.weights.output,
            most,
            Input::Prepared(input),
        )
    };
    Ok(Step::of(
        given.context.most(most),
        product.calls(given.target)?,
    ))
}

/// The step from the first rows of hidden states in f32, (tokens, d) before the last norm, to the logits (tokens, vocab) of up to `most`
/// tokens. They become the `hidden` states that a step of few tokens leaves.
///
/// # Errors
/// The errors of [`step`].
pub fn head_of_floats(
    given: Given<'_>,
    most: u32,
    [floats, logits]: [&Range; 2],
    hidden: &Hidden,
) -> Result<Step, GpuError> {
    let norm = &given.weights.output_norm;
    let norm = combine(given, floats, norm, &hidden.stream.values);
    let hidden = Hidden {
        normed: true,
        ..hidden.clone()
    };
    let head = head(given, most, &hidden, logits)?;
    Ok(Step::of(head.most, [norm.call()]).then(&head.calls))
}

/// The residual, normed and prepared, to be completed.
fn combine(given: Given<'_>, residual: &Range, norm: &Range, values: &Range) -> GpuBatchCombine {
    GpuBatchCombine {
        slots: None,
        used: 0,
        residual: residual.clone(),
        x: None,
        norm: (norm.clone(), given.config().rms_eps),
        values: values.clone(),
        activation: given.target.activation(),
        rows: given.config().embedding_length as u32,
    }
}

/// Builds the dispatches of a step of up to `most` tokens.
struct Recipe<'a> {
    given: Given<'a>,
    activation: Activation,
    most: u32,
    calls: Vec<Call>,
}

impl Recipe<'_> {
    fn target(&self) -> &Target {
        self.given.target
    }

    fn eps(&self) -> f32 {
        self.given.config().rms_eps
    }

    /// The dispatches from token ids to hidden states.
    fn step(mut self, hidden: &Hidden, floats: Option<&Range>) -> Result<Vec<Call>, GpuError> {
        let Given {
            weights, context, ..
        } = self.given;
        let config = self.given.config();
        let (target, most) = (self.given.target, self.most);
        let new = || Buffers::new(config, target, most);
        let shared = new();
        // Few tokens of one sequence come once, at the end of a prompt, so their buffers are not worth much memory.
        let own = match context.sequences {
            Some(_) => self.most <= self.target().machine.tuned.own_buffers_of_batch,
            None => self.most == 1,
        };
        let norms = weights.layers.iter().map(|layer| &layer.attn_norm);
        let norms: Vec<&Range> = norms.chain([&weights.output_norm]).collect();
        let x = Range::floats(
            "embedding",
            u64::from(self.most) * config.embedding_length as u64,
        );
        self.calls.extend(embed::calls(
            context.sequences.as_ref(),
            &weights.token_embd,
            &context.history,
            &x,
        ));
        let values = Range::prepared(
            "embedding values",
            self.activation,
            self.most * config.embedding_length as u32,
        );
        let embedding = combine(self.given, &x, norms[0], &values);
        self.calls.push(embedding.call());
        let mut stream = Stream {
            x,
            values: TokenInput::of(values),
        };
        let last = weights.layers.len() - 1;
        for (i, of) in self.given.layers(self.most).enumerate() {
            let mut buffers = match own {
                true => new(),
                false => shared.with_new_beside(new()),
            };
            if i == last {
                buffers.next = hidden.stream.clone();
                buffers.after = floats.unwrap_or(&buffers.after).clone();
            }
            let begin = self.calls.len();
            let after = self.attention(of, &stream, &buffers)?;
            let middle = self.calls.len();
            stream = self.feed_forward(of.layer, &after, norms[i + 1], &buffers, i == last)?;
            belong(&mut self.calls[begin..middle], Sublayer::Attention(i));
            belong(&mut self.calls[middle..], Sublayer::FeedForward(i));
        }
        Ok(self.calls)
    }

    /// The product of `weight` with `x`, to be completed.
    fn product<'w>(&self, weight: &'w GpuWeight, x: &TokenInput) -> GpuBatchMatvec<'w> {
        GpuBatchMatvec::new(self.target(), weight, self.most, Input::Prepared(x.clone()))
    }

    fn record(&mut self, product: &GpuBatchMatvec<'_>) -> Result<(), GpuError> {
        let calls = product.calls(self.target())?;
        self.calls.extend(calls);
        Ok(())
    }

    /// Whether each token has workgroups of its own for its queries, its heads' values and its experts. They repeat small work to save
    /// dispatches, as those of a decoded token do. They also read an expert once for each of its tokens, but few tokens share experts.
    fn is_apart(&self) -> bool {
        let target = self.target();
        target.tier.has_subgroups() && self.most <= target.machine.tuned.apart_of_batch
    }
}
