//! The recipe of few tokens: one, some of one sequence, or those of a batch, in which each may belong to another one. Every product leaves its
//! output prepared for the next, so that no kernel begins with a norm of its own. A product takes its kernel by the number of tokens.

mod feed_forward;
mod product;

pub use product::Product;

use super::{BeforeNorm, Given, GpuBlock, Weights};
use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::batch_combine::GpuBatchCombine;
use crate::kernels::compose::Pair;
use crate::kernels::token::{TokenInput, unsupported};
use crate::kernels::{embed, token_embed};
use crate::model::Ffn;
use crate::quant::activation::Activation;
use feed_forward::RouterLogits;
use std::collections::HashMap;

/// Where a step leaves its hidden states: the last norm is done, or its sums of squares are beside them.
#[derive(Clone)]
pub struct Hidden {
    stream: BeforeNorm,
    /// Whether the last norm is done.
    normed: bool,
}

impl Hidden {
    /// The hidden states of steps of up to `tokens` tokens, or of the steps of [`one`](is_one). The last layer says whether it norms what it
    /// leaves.
    pub(super) fn new(target: &Target, weights: &Weights, tokens: u32, one: bool) -> Self {
        let n = tokens * weights.config.embedding_length as u32;
        let last = weights.layers.last();
        let names = ["hidden states", "squares of hidden states"];
        Self {
            stream: BeforeNorm::new(names, target.activation(), n),
            normed: !one && last.is_none_or(|layer| matches!(layer.ffn, Ffn::Moe(_))),
        }
    }

    /// The input of the head.
    fn input(&self, eps: f32) -> TokenInput {
        match self.normed {
            true => TokenInput::of(self.stream.values.clone()),
            false => self.stream.input(eps),
        }
    }
}

/// Whether a step of up to `most` tokens takes the kernels of a decoded token.
pub(super) fn is_one(target: &Target, most: u32) -> bool {
    most == 1 && target.tier.has_subgroups()
}

/// The step over up to `most` tokens, which leaves their hidden states: prepared for a [`head`], and in f32 before the last norm (tokens, d)
/// where that has a place.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub(super) fn step(
    given: Given<'_>,
    most: u32,
    hidden: &Hidden,
    floats: Option<&Range>,
) -> Result<Step, GpuError> {
    given.attention.check(given.target)?;
    if !given.width().is_multiple_of(32) {
        let missing = format!(
            "a kernel for hidden states of {}, no multiple of 32",
            given.width()
        );
        return Err(unsupported(given.target, &missing));
    }
    let mut step = Few::new(given, most);
    step.layers(hidden, floats)?;
    Ok(step.done())
}

/// The step from the hidden states of up to `most` tokens to their logits (tokens, vocab).
///
/// # Errors
/// The errors of [`step`].
pub(super) fn head(
    given: Given<'_>,
    most: u32,
    hidden: &Hidden,
    logits: &Range,
) -> Result<Step, GpuError> {
    let mut step = Few::new(given, most);
    let x = hidden.input(given.eps());
    step.record(&Product {
        y: Some(logits.clone()),
        ..Product::of(&given.weights.output, &x)
    })?;
    Ok(step.done())
}

/// The step from the first rows of hidden states in f32, (tokens, d) before the last norm, to the logits (tokens, vocab) of up to `most`
/// tokens. They become the `hidden` states that a step of few tokens leaves.
///
/// # Errors
/// The errors of [`step`].
pub(super) fn head_of_floats(
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
        norm: (norm.clone(), given.eps()),
        values: values.clone(),
        activation: given.target.activation(),
        rows: given.width(),
    }
}

/// The residual stream between two sublayers, a row for each token.
struct Stream {
    /// (tokens, d) f32.
    x: Range,
    /// x times the weight of the norm that comes next, prepared, with its sums of squares; or already normed.
    values: TokenInput,
}

/// The place of the stream behind a sublayer.
struct Place {
    x: Range,
    prepared: BeforeNorm,
}

impl Place {
    /// The stream there.
    fn stream(&self, eps: f32) -> Stream {
        Stream {
            x: self.x.clone(),
            values: self.prepared.input(eps),
        }
    }
}

/// Builds the dispatches of a step of up to `most` tokens.
pub struct Few<'a> {
    /// The input of the recipe.
    pub given: Given<'a>,
    /// The most tokens.
    pub most: u32,
    /// Whether the step takes the kernels of a decoded token.
    pub one: bool,
    /// The format of what products leave for each other.
    pub activation: Activation,
    /// The dispatches that were recorded so far.
    pub calls: Vec<Call>,
    /// The buffers that layers share, by name; nothing where each layer has its own.
    shared: Option<HashMap<&'static str, Range>>,
}

impl<'a> Few<'a> {
    fn new(given: Given<'a>, most: u32) -> Self {
        // Few tokens of one sequence come once, at the end of a prompt, so their buffers are not worth much memory.
        let own = match given.context.sequences {
            Some(_) => most <= given.target.machine.tuned.own_buffers_of_batch,
            None => most == 1,
        };
        Self {
            given,
            most,
            one: is_one(given.target, most),
            activation: given.target.activation(),
            calls: vec![],
            shared: (!own).then(HashMap::new),
        }
    }

    fn done(self) -> Step {
        Step::of(self.given.context.most(self.most), self.calls)
    }

    /// Whether each token has workgroups of its own for its queries, its heads' values and its experts. They repeat small work to save
    /// dispatches, as those of a decoded token do. They also read an expert once for each of its tokens, but few tokens share experts.
    pub fn is_apart(&self) -> bool {
        let target = self.given.target;
        target.tier.has_subgroups() && self.most <= target.machine.tuned.apart_of_batch
    }

    /// The weight that stands for a pair of layer `i`. None but steps of one token read such.
    pub fn composed(&self, pair: Pair, i: usize) -> Option<&'a GpuWeight> {
        let product = self.given.weights.composed[pair as usize].get(i);
        product.filter(|_| self.most == 1 && self.given.composed.contains(&pair))
    }

    /// A buffer of this name, which layers share unless each has its own.
    fn buffer(&mut self, name: &'static str, new: impl FnOnce() -> Range) -> Range {
        match &mut self.shared {
            Some(shared) => shared.entry(name).or_insert_with(new).clone(),
            None => new(),
        }
    }

    /// A row of `width` f32 for each token.
    pub fn floats(&mut self, name: &'static str, width: u32) -> Range {
        let most = self.most;
        self.buffer(name, || {
            Range::floats(name, u64::from(most) * u64::from(width))
        })
    }

    /// A row of `width` f32 for each token, for an output that is written beside another one. Its first use in a step waits for nothing, so
    /// that no layer needs a pass of its own (`gpu/levels.rs`).
    pub fn floats_beside(&self, name: &'static str, width: u32) -> Range {
        Range::floats(name, u64::from(self.most) * u64::from(width))
    }

    /// A row of `width` u32 for each token.
    fn words(&mut self, name: &'static str, width: u32) -> Range {
        let most = self.most;
        self.buffer(name, || {
            Range::words(name, u64::from(most) * u64::from(width))
        })
    }

    /// A row of `width` prepared values for each token.
    pub fn values(&mut self, name: &'static str, width: u32) -> Range {
        let (activation, n) = (self.activation, self.most * width);
        self.buffer(name, || Range::prepared(name, activation, n))
    }

    /// A row of `width` prepared values for each token, for an output that is written beside another one.
    fn values_beside(&self, name: &'static str, width: u32) -> Range {
        Range::prepared(name, self.activation, self.most * width)
    }

    /// A row of `width` prepared values before a norm for each token.
    pub fn before_norm(&mut self, [values, squares]: [&'static str; 2], width: u32) -> BeforeNorm {
        BeforeNorm {
            values: self.values(values, width),
            squares: self.floats(squares, width / 16),
        }
    }

    /// The dispatches from token ids to hidden states.
    fn layers(&mut self, hidden: &Hidden, floats: Option<&Range>) -> Result<(), GpuError> {
        let weights = self.given.weights;
        let norms = weights.layers.iter().map(|layer| &layer.attn_norm);
        let norms: Vec<&Range> = norms.chain([&weights.output_norm]).collect();
        let mut stream = self.embedding(norms[0]);
        for (i, layer) in weights.layers.iter().enumerate() {
            let begin = self.calls.len();
            let (after, logits) = self.attention(i, layer, &stream)?;
            let middle = self.calls.len();
            let is_last = i + 1 == weights.layers.len();
            let width = self.given.width();
            let next = match is_last {
                false => Place {
                    x: self.floats("after ffn", width),
                    prepared: self.before_norm(["prepared after ffn", "ffn squares"], width),
                },
                true => Place {
                    x: match floats {
                        Some(floats) => floats.clone(),
                        None => self.floats("after ffn", width),
                    },
                    prepared: hidden.stream.clone(),
                },
            };
            let output = next.prepared.output(norms[i + 1]);
            stream = self.feed_forward(layer, &after, logits, (&next, output), is_last)?;
            super::belong_to_layer(&mut self.calls, i, begin, middle);
        }
        Ok(())
    }

    /// The stream before the first layer, whose norm has this weight.
    fn embedding(&mut self, norm: &Range) -> Stream {
        let (given, width) = (self.given, self.given.width());
        let (sequences, history) = (given.context.sequences.as_ref(), &given.context.history);
        let token_embd = &given.weights.token_embd;
        let x = self.floats("embedding", width);
        let prepared = self.before_norm(["embedding values", "embedding squares"], width);
        if self.one {
            let output = prepared.output(norm);
            let calls =
                token_embed::calls(sequences, token_embd, history, &x, &output, self.activation);
            self.calls.extend(calls);
            return Place { x, prepared }.stream(given.eps());
        }
        self.calls
            .extend(embed::calls(sequences, token_embd, history, &x));
        let values = prepared.values;
        self.calls.push(combine(given, &x, norm, &values).call());
        Stream {
            x,
            values: TokenInput::of(values),
        }
    }

    /// The stream after the attention, and the experts' logits where they are made beside it.
    fn attention(
        &mut self,
        i: usize,
        layer: &GpuBlock,
        stream: &Stream,
    ) -> Result<(Stream, Option<RouterLogits>), GpuError> {
        let (weight, values) = self.given.attention.few(self, i, &stream.values)?;
        let width = self.given.width();
        let after = Place {
            x: self.floats("after attention", width),
            prepared: self.before_norm(["prepared after attention", "attention squares"], width),
        };
        let product = Product {
            residual: Some(stream.x.clone()),
            y: Some(after.x.clone()),
            prepared: Some(after.prepared.output(&layer.ffn_norm)),
            ..Product::of(weight, &TokenInput::of(values))
        };
        let logits = match &layer.ffn {
            Ffn::Moe(moe) if self.leaves_router(moe) => {
                self.record_with_router(&product, &moe.ffn_gate_inp)?
            }
            _ => {
                self.record(&product)?;
                None
            }
        };
        Ok((after.stream(self.given.eps()), logits))
    }
}
