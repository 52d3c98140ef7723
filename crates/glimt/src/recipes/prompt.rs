//! The step of many tokens: products as matrix products, experts grouped by their tokens. All layers share the buffers of a chunk.

mod feed_forward;
mod fills;

use super::chunk::{Chunk, RowsBuffer};
use super::{ChunkSize, Given, GpuBlock};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, State};
use crate::gpu::memory::GpuWeight;
use crate::gpu::question::Question;
use crate::gpu::{GpuError, Step};
use crate::kernels::batch_matvec::{self, GpuBatchMatvec};
use crate::kernels::embed;
use crate::kernels::expert_rows::Other;
use crate::kernels::gemm::{Form, GpuGemm, Input};
use crate::kernels::rows_f16::GpuRowsF16;
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_matvec::{self, GpuTokenMatvec};
use crate::quant::activation::Activation;
use fills::Fill;

/// The step from the hidden states of up to `tokens` tokens, those of the chunk, to the logits (vocab) of the last: by the kernel of
/// decoding in the tiers that have one, on floats, as exact as the rest of a prompt.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub(super) fn last_logits(
    given: Given<'_>,
    chunk: &Chunk,
    tokens: u32,
    logits: &Range,
) -> Result<Step, GpuError> {
    let most = given.context.most(tokens);
    let hidden = &chunk.after_ffn;
    let (w, norm) = (&given.body.output, &given.body.output_norm);
    let row = Range::floats("last row", u64::from(w.cols));
    let rows = GpuRowsF16 {
        norm: Some((norm.clone(), given.eps())),
        floats: Some(row.clone()),
        last: true,
        ..GpuRowsF16::of(hidden, w.cols, tokens)
    };
    let x = TokenInput::of(row);
    let calls = match given.target.tier.has_subgroups() {
        true => {
            let x = token_matvec::Input::Prepared(x, 0);
            GpuTokenMatvec::new(w, Activation::Floats, x)
                .bind("y", logits)
                .calls(given.target)?
        }
        false => {
            let x = batch_matvec::Input::Prepared(x);
            GpuBatchMatvec {
                single: true,
                y: Some(logits.clone()),
                ..GpuBatchMatvec::new(given.target, w, 1, x)
            }
            .calls(given.target)?
        }
    };
    Ok(Step::of(most, [rows.call()]).then(&calls))
}

/// The logits (tokens, vocab) of hidden states, of which the step's slot chooses those that begin at one of `slices`.
pub(super) fn logits_of_slices(
    given: Given<'_>,
    chunk: &Chunk,
    tokens: u32,
    slices: &[Range],
    logits: &Range,
) -> Step {
    let mut recipe = Prompt::new(given, chunk, tokens);
    let w = &given.body.output;
    let norm = Some(&given.body.output_norm);
    let (x, rows) = recipe.rows(
        &chunk.normed,
        &PartialSums::whole(&slices[0]),
        w.cols,
        1,
        norm,
    );
    let rows = rows.call().with_alternatives("x", slices.to_vec());
    recipe.calls.push(rows);
    let product = recipe.gemm(w, &x, logits);
    recipe.multiply(&product);
    recipe.done()
}

/// Builds the dispatches of a step for up to `max_tokens` tokens.
pub struct Prompt<'a> {
    /// The input of the recipe.
    pub given: Given<'a>,
    /// The buffers.
    pub chunk: &'a Chunk,
    /// The most tokens.
    pub max_tokens: u32,
    form: Form,
    /// The dispatches that were recorded so far.
    pub calls: Vec<Call>,
    /// The questions to the host.
    questions: Vec<Question>,
    /// The fills that are to stand beside dispatches.
    fills: Vec<Fill<'a>>,
}

/// Rows of a chunk as products take them.
#[derive(Clone)]
pub struct Rows {
    input: Input,
    /// Values from one row to the next.
    stride: u32,
}

/// The output of a product: partial sums (count, tokens, rows), which the next kernel adds up.
#[derive(Clone)]
pub struct PartialSums {
    /// The partial sums.
    pub range: Range,
    /// The number of partial sums that make a value.
    pub count: u32,
    /// Tokens of the product, also for an attention that has fewer; 0 where there is nothing to be added up.
    pub tokens: u32,
    /// The rows that are read instead where there are tall tiles, if products by tiles of two heights stand beside each other.
    other: Option<Other>,
}

impl PartialSums {
    /// A product without partial sums.
    pub fn whole(range: &Range) -> Self {
        Self {
            range: range.clone(),
            count: 1,
            tokens: 0,
            other: None,
        }
    }
}

/// The residual stream between the two sublayers of a layer. If `unsummed` holds partial sums and a residual, the next norm adds them up
/// and writes the result to `x`. Otherwise `x` has the rows already.
pub(super) struct Between {
    x: Range,
    unsummed: Option<(PartialSums, Range)>,
}

impl<'a> Prompt<'a> {
    /// A recipe without dispatches yet.
    pub fn new(given: Given<'a>, chunk: &'a Chunk, max_tokens: u32) -> Self {
        Self {
            given,
            chunk,
            max_tokens,
            form: given.context.products,
            calls: vec![],
            questions: vec![],
            fills: vec![],
        }
    }

    pub(super) fn done(self) -> Step {
        let most = self.given.context.most(self.max_tokens);
        Step::of(most, self.calls).asking(self.questions)
    }

    /// The step with the fills beside what computes in replays like this.
    ///
    /// # Errors
    /// The errors of recording the step.
    pub(super) fn filled(mut self, state: &State) -> Result<Step, GpuError> {
        let fills = std::mem::take(&mut self.fills);
        match &fills[..] {
            [] => Ok(self.done()),
            fills => fills::beside(self.done(), fills, state),
        }
    }

    /// `x` (max_tokens * used, cols) as the products of this form take it, normed first where a weight is given, and what makes it so: it
    /// leaves nothing where it is so already.
    fn rows(
        &self,
        to: &RowsBuffer,
        x: &PartialSums,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> (Rows, GpuRowsF16) {
        let halves = [to.halves.clone(), to.scales.clone()];
        let (input, halves, floats) = match (self.form, norm) {
            (Form::Float { .. }, None) if x.count == 1 => {
                (Input::Floats(x.range.clone()), None, None)
            }
            (Form::Float { .. }, _) => {
                let floats = to.floats.clone();
                (Input::Floats(floats.clone()), None, Some(floats))
            }
            (Form::Matrix(_), _) => (Input::Halves(halves.clone()), Some(halves), None),
        };
        let rows = GpuRowsF16 {
            other: x.other.clone(),
            partial_sums: x.count,
            norm: norm.map(|norm| (norm.clone(), self.given.eps())),
            halves,
            floats,
            used,
            ..GpuRowsF16::of(&x.range, cols, self.max_tokens)
        };
        let stride = cols;
        (Rows { input, stride }, rows)
    }

    /// Records what makes the rows of `x` the input of products, normed first where a weight is given. There are `used` rows for each token.
    pub fn input(
        &mut self,
        to: &RowsBuffer,
        x: &PartialSums,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> Rows {
        let (rows, made) = self.rows(to, x, cols, used, norm);
        if made.halves.is_some() || made.floats.is_some() {
            self.calls.push(made.call());
        }
        rows
    }

    /// Rows of `x` (max_tokens, cols) that are whole and not normed, as [`input`](Self::input) makes them.
    pub fn plain_input(&mut self, to: &RowsBuffer, x: &Range, cols: u32) -> Rows {
        self.input(to, &PartialSums::whole(x), cols, 1, None)
    }

    /// The product W x alone, to be completed.
    fn gemm<'w>(&self, weight: &'w GpuWeight, x: &Rows, y: &Range) -> GpuGemm<'w> {
        GpuGemm {
            x_stride: x.stride,
            ..GpuGemm::of(self.form, weight, x.input.clone(), self.max_tokens, y)
        }
    }

    /// Records a product.
    fn multiply(&mut self, product: &GpuGemm<'_>) {
        self.calls.extend(product.calls(self.given.target));
    }

    /// y = W x (+ residual); where W has heads they read `head` values each.
    pub fn product(
        &mut self,
        y: &Range,
        weight: &GpuWeight,
        x: &Rows,
        head: u32,
        residual: Option<&Range>,
    ) -> Range {
        let product = GpuGemm {
            x_group_stride: head,
            residual: residual.cloned(),
            ..self.gemm(weight, x, y)
        };
        self.multiply(&product);
        y.clone()
    }

    /// The ranges of columns (split-K) that suit a weight's shape.
    fn product_split_k(&self, weight: &GpuWeight) -> u32 {
        let size = ChunkSize {
            machine: self.given.target.machine,
            products: self.form,
            tokens: self.max_tokens,
        };
        size.split_k(weight.rows, weight.cols)
    }

    /// W x, as partial sums where they suit its shape.
    pub fn split_product(&mut self, y: &Range, weight: &GpuWeight, x: &Rows) -> PartialSums {
        let count = self.product_split_k(weight);
        let product = GpuGemm {
            split_k: count,
            ..self.gemm(weight, x, y)
        };
        self.multiply(&product);
        PartialSums {
            range: y.clone(),
            count,
            tokens: self.max_tokens,
            other: None,
        }
    }

    /// The stream before the first layer.
    pub(super) fn embedding(&mut self) -> Range {
        let Given { body, context, .. } = self.given;
        let (sequences, x) = (context.sequences.as_ref(), &self.chunk.embedding);
        let calls = embed::calls(sequences, &body.token_embd, &context.history, x);
        self.calls.extend(calls);
        x.clone()
    }

    /// The normed rows of the stream that the attention of a layer reads.
    pub(super) fn before_attention(&mut self, layer: &GpuBlock, x: &Range) -> Rows {
        let (norm, width) = (Some(&layer.attn_norm), self.given.width());
        let x = PartialSums::whole(x);
        self.input(&self.chunk.normed, &x, width, 1, norm)
    }

    /// The stream after the attention of a layer, which has left its values.
    pub(super) fn after_attention(&mut self, layer: &GpuBlock, x: &Range) -> Between {
        let (chunk, w) = (self.chunk, &layer.attn_output);
        let values = self.plain_input(&chunk.inner, &chunk.values, w.cols);
        let after = &chunk.after_attention;
        if self.product_split_k(w) == 1 {
            return Between {
                x: self.product(after, w, &values, 0, Some(x)),
                unsummed: None,
            };
        }
        let sums = self.split_product(&chunk.output_sums, w, &values);
        Between {
            x: after.clone(),
            unsummed: Some((sums, x.clone())),
        }
    }
}
