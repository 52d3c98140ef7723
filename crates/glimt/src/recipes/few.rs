//! The recipe of few tokens: one, some of one sequence, or those of a batch, in which each may belong to another one. Every product leaves its
//! output prepared for the next, so that no kernel begins with a norm of its own. Up to [`most_as_one`] tokens take the kernels of a decoded
//! token, and each gets what it gets alone, to the bit. More take kernels that read a weight once for several of them.

mod buffers;
mod feed_forward;
mod product;

pub use product::Product;

use super::{Body, Given, GpuBlock};
use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::memory::GpuWeight;
use crate::gpu::question::Question;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::batch_combine::GpuBatchCombine;
use crate::kernels::token::{TokenInput, TokenOutput};
use crate::kernels::{embed, token_embed};
use crate::model::Ffn;
use crate::model::pairs::Pair;
use crate::quant::activation::Activation;
use buffers::Buffers;
use feed_forward::RouterLogits;

/// Values before a norm, as one product leaves them for the next.
#[derive(Clone)]
pub struct BeforeNorm {
    /// The values times the weight of the norm, prepared.
    pub(super) values: Range,
    /// The sums of the squares of every 16 values.
    squares: Range,
    /// The weight of the norm.
    norm: Range,
}

impl BeforeNorm {
    /// The output of the first product.
    pub fn output(&self) -> TokenOutput {
        TokenOutput {
            values: self.values.clone(),
            norm: Some((self.norm.clone(), self.squares.clone())),
        }
    }

    /// The input of the next product.
    pub fn input(&self, eps: f32) -> TokenInput {
        TokenInput {
            values: self.values.clone(),
            rms: Some((self.squares.clone(), eps)),
        }
    }
}

/// Room for the hidden states of up to `tokens` tokens, prepared for the head.
pub(super) fn hidden(target: &Target, body: &Body, tokens: u32) -> BeforeNorm {
    let n = tokens * body.config.embedding_length as u32;
    BeforeNorm {
        values: Range::prepared("hidden states", target.activation(), n),
        squares: Range::floats("squares of hidden states", u64::from(n / 16)),
        norm: body.output_norm.clone(),
    }
}

/// The most tokens of a step, of a `batch` or of one sequence, that takes the kernels of a decoded token; 0 where the tier has none.
pub fn most_as_one(target: &Target, batch: bool) -> u32 {
    let tuned = target.machine.tuned;
    match target.tier.has_subgroups() {
        true if batch => tuned.as_one_of_batch.max(1),
        true => tuned.as_one_of_sequence.max(1),
        false => 0,
    }
}

/// The most drafts of a step, of a `batch` or of one sequence, whose tokens get what each gets alone, to the bit. With serial passes a token alone
/// takes other kernels.
pub fn most_drafts(target: &Target, batch: bool) -> u32 {
    match target.machine.serial_passes {
        true => 0,
        false => most_as_one(target, batch).saturating_sub(1),
    }
}

/// The step from the hidden states `x` of up to `most` tokens to their logits (tokens, vocab), by the kernels of a decoded token or not.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub(super) fn head(
    given: Given<'_>,
    (most, as_one): (u32, bool),
    x: &TokenInput,
    logits: &Range,
) -> Result<Step, GpuError> {
    let mut step = Few::new(given, most, as_one);
    step.record(&Product {
        y: Some(logits.clone()),
        ..Product::of(&given.body.output, x)
    })?;
    Ok(step.done())
}

/// The step from the first rows of hidden states in f32, (tokens, d) before the last norm, to the logits (tokens, vocab) of up to `most`
/// tokens. They become the `hidden` states that a step of few tokens leaves.
///
/// # Errors
/// The errors of [`head`].
pub(super) fn head_of_floats(
    given: Given<'_>,
    most: u32,
    [floats, logits]: [&Range; 2],
    hidden: &BeforeNorm,
) -> Result<Step, GpuError> {
    let norm = combine(given, floats, &hidden.norm, &hidden.values);
    let x = TokenInput::of(hidden.values.clone());
    let head = head(given, (most, false), &x, logits)?;
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
pub(super) struct Stream {
    /// The stream itself, (tokens, d) f32.
    x: Range,
    /// x times the weight of the norm that comes next, prepared, with its sums of squares; or already normed.
    pub(super) values: TokenInput,
}

/// The place of the stream behind a sublayer.
pub(super) struct Place {
    pub(super) x: Range,
    pub(super) prepared: BeforeNorm,
}

impl Place {
    /// The stream there.
    pub(super) fn stream(&self, eps: f32) -> Stream {
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
    /// The most tokens that its kernels and buffers are for.
    pub most: u32,
    /// The most tokens of a replay.
    live: u32,
    /// Whether the step takes the kernels of a decoded token, with more of their workgroups if there are more tokens.
    pub as_one: bool,
    /// The format of what products leave for each other.
    pub activation: Activation,
    /// The dispatches that were recorded so far.
    pub calls: Vec<Call>,
    /// The questions to the host.
    questions: Vec<Question>,
    buffers: Buffers,
}

impl<'a> Few<'a> {
    pub(super) fn new(given: Given<'a>, most: u32, as_one: bool) -> Self {
        // Other steps of few tokens of one sequence come once, at the end of a prompt, so their buffers are not worth much memory.
        let own = match given.context.sequences {
            Some(_) => as_one || most <= given.target.machine.tuned.own_buffers_of_batch,
            None => most == 1,
        };
        Self {
            given,
            most,
            live: most,
            as_one,
            activation: given.target.activation(),
            calls: vec![],
            questions: vec![],
            buffers: Buffers::new(own),
        }
    }

    /// The step with no more than `live` tokens, by the kernels of more.
    pub(super) fn of_up_to(self, live: u32) -> Self {
        Self { live, ..self }
    }

    /// The step in the buffers of another one, which has more tokens and is the same otherwise.
    pub(super) fn within(self, others: &[Range]) -> Self {
        Self {
            buffers: Buffers::of(others),
            ..self
        }
    }

    pub(super) fn done(self) -> Step {
        Step::of(self.given.context.most(self.live), self.calls).asking(self.questions)
    }

    /// The buffers that were made for the step so far, in order.
    pub(super) fn made(&self) -> &[Range] {
        self.buffers.made()
    }

    /// Whether each token of a batch has workgroups of its own for its queries, its heads' values and its experts, though other products read a
    /// weight once for several tokens.
    pub fn is_apart(&self) -> bool {
        let Given {
            target, context, ..
        } = self.given;
        let sequences = context.sequences.as_ref();
        let has_table = sequences.is_some_and(|sequences| !sequences.alone);
        let few = (2..=target.machine.tuned.apart_of_batch).contains(&self.most);
        !self.as_one && few && has_table && target.tier.has_subgroups()
    }

    /// The weight that stands for a pair of layer `i`. Only steps by the kernels of a decoded token read such.
    pub fn product_of(&self, pair: Pair, i: usize) -> Option<&'a GpuWeight> {
        let product = self.given.body.products[pair as usize].get(i);
        product.filter(|_| self.as_one || self.most == 1)
    }

    /// A buffer of this name, which layers share unless each has its own.
    fn buffer(&mut self, name: &'static str, new: impl FnOnce() -> Range) -> Range {
        self.buffers.of_layer(name, new)
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
    pub fn floats_beside(&mut self, name: &'static str, width: u32) -> Range {
        let most = self.most;
        let new = || Range::floats(name, u64::from(most) * u64::from(width));
        self.buffers.own(new)
    }

    /// A row of `width` prepared values for each token.
    pub fn values(&mut self, name: &'static str, width: u32) -> Range {
        let (activation, n) = (self.activation, self.most * width);
        self.buffer(name, || Range::prepared(name, activation, n))
    }

    /// A row of `width` prepared values for each token, for an output that is written beside another one.
    fn values_beside(&mut self, name: &'static str, width: u32) -> Range {
        let (activation, n) = (self.activation, self.most * width);
        self.buffers.own(|| Range::prepared(name, activation, n))
    }

    /// A row of `width` prepared values for each token, before the norm with this weight.
    pub fn before_norm(
        &mut self,
        [values, squares]: [&'static str; 2],
        width: u32,
        norm: &Range,
    ) -> BeforeNorm {
        BeforeNorm {
            values: self.values(values, width),
            squares: self.floats(squares, width / 16),
            norm: norm.clone(),
        }
    }

    /// The place of the stream behind a sublayer, before the norm with this weight.
    pub(super) fn place(&mut self, [x, values, squares]: [&'static str; 3], norm: &Range) -> Place {
        let width = self.given.width();
        Place {
            x: self.floats(x, width),
            prepared: self.before_norm([values, squares], width, norm),
        }
    }

    /// The stream before the first layer, whose norm has this weight.
    pub(super) fn embedding(&mut self, norm: &Range) -> Stream {
        let given = self.given;
        let (sequences, history) = (given.context.sequences.as_ref(), &given.context.history);
        let (token_embd, activation) = (&given.body.token_embd, self.activation);
        let place = self.place(["embedding", "embedding values", "embedding squares"], norm);
        let x = &place.x;
        if self.as_one {
            let (output, of) = (place.prepared.output(), (sequences, self.most));
            let calls = token_embed::calls(of, token_embd, history, x, &output, activation);
            self.calls.extend(calls);
            return place.stream(given.eps());
        }
        self.calls
            .extend(embed::calls(sequences, token_embd, history, x));
        let values = &place.prepared.values;
        self.calls.push(combine(given, x, norm, values).call());
        Stream {
            values: TokenInput::of(values.clone()),
            x: place.x,
        }
    }

    /// The stream after the attention of a layer, which a weight makes of `values`, and the experts' logits where they are made beside it.
    pub(super) fn after_attention(
        &mut self,
        layer: &GpuBlock,
        (weight, values): (&GpuWeight, Range),
        stream: &Stream,
    ) -> Result<(Stream, Option<RouterLogits>), GpuError> {
        let names = [
            "after attention",
            "prepared after attention",
            "attention squares",
        ];
        let after = self.place(names, &layer.ffn_norm);
        let product = Product {
            residual: Some(stream.x.clone()),
            y: Some(after.x.clone()),
            prepared: Some(after.prepared.output()),
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
