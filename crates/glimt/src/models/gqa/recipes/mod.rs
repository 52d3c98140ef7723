//! Grouped-query attention in the steps of a device: its weights with the kernels that the device takes, and its buffers.

mod few;
mod prompt;
#[cfg(test)]
mod tests;

use super::{Attention, Model};
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, State};
use crate::gpu::machine::Machine;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError, Target};
use crate::kernels::attention::{Cut, MAX_SLICES, OfOne, Seen, cut_context, cut_sequences};
use crate::kernels::grouped_attention::{self, GpuGroupedAttention, partial_bytes, partials};
use crate::kernels::grouped_prompt_attention as of_prompts;
use crate::kernels::grouped_rows::{GpuGroupedRows, GpuHeadVectors};
use crate::kernels::token::TokenInput;
use crate::kernels::{GroupedDims, attention_merge};
use crate::model::rope_table_by;
use crate::quant::activation::Activation;
use crate::recipes::few::{Few, most_as_one};
use crate::recipes::prompt::{Prompt, Rows};
use crate::recipes::{self, AttentionWeights, BatchSizes, Chosen, ChunkSize, Context, Given};
use std::sync::Arc;

/// Tokens that share a workgroup in the attention of prompts, about: what its kernels have lies around it.
const TILE: usize = 32;

/// The attention of all layers on a device, and the forms that the device takes.
#[derive(Clone)]
pub(super) struct Weights {
    config: Arc<super::Config>,
    /// Divisors of the frequencies of the rotation, (rope / 2), if the file has any.
    frequency_factors: Option<Arc<[f32]>>,
    layers: Arc<[Attention<GpuWeight, Range>]>,
    /// The attention of prompts.
    prompts: of_prompts::Form,
    /// The attention of decoded tokens, or none where it is the one that runs on every device.
    tokens: Option<grouped_attention::Form>,
}

impl Weights {
    /// The weights of these `layers` of a model, in the forms that run everywhere.
    pub fn new(model: &Model, layers: Vec<Attention<GpuWeight, Range>>) -> Self {
        Self {
            config: Arc::new(model.config.clone()),
            frequency_factors: model.frequency_factors.as_deref().map(Arc::from),
            layers: layers.into(),
            prompts: of_prompts::Form::Vector,
            tokens: None,
        }
    }

    /// The weights in these forms. The sizes suit that of prompts without matrices, or the model would have been refused.
    fn in_forms(
        &self,
        prompts: Option<of_prompts::Form>,
        tokens: grouped_attention::Form,
    ) -> Arc<dyn AttentionWeights> {
        Arc::new(Self {
            prompts: prompts.unwrap_or(of_prompts::Form::Vector),
            tokens: Some(tokens),
            ..self.clone()
        })
    }

    fn dims(&self) -> GroupedDims {
        self.config.dims
    }

    /// The attention of steps of one token to short contexts.
    fn short(&self, target: &Target) -> Option<grouped_attention::Short> {
        grouped_attention::Short::of(target, self.dims())
    }

    /// The attention of steps of one token.
    fn of_one(&self, target: &Target) -> OfOne<grouped_attention::Form> {
        let everywhere = || grouped_attention::Form::without_matrices(target, self.dims());
        OfOne {
            form: self.tokens.unwrap_or_else(everywhere),
            short: self.short(target).map_or(0, |short| short.rows),
        }
    }

    /// The most tokens of a chunk for which slices of the context attend: where so few share a workgroup and a head, the workgroups of the
    /// attention of prompts would leave most of a device idle, each of them going over the whole context.
    fn most_few(&self, machine: Machine) -> usize {
        let tuned = machine.tuned;
        let speed = match self.prompts {
            of_prompts::Form::Vector => 1,
            of_prompts::Form::Matrix(_) => tuned.matrix_speed as usize,
        };
        let few = machine.cores as usize * TILE / (self.dims().heads * speed);
        few.max(tuned.few_tokens as usize)
    }
}

impl AttentionWeights for Weights {
    fn cache_row(&self) -> usize {
        self.dims().cache_row()
    }

    fn values(&self) -> usize {
        self.dims().heads * self.dims().value
    }

    fn tried<'a>(&'a self, gpu: &'a Gpu) -> Chosen<'a> {
        Box::pin(async {
            let prompts = of_prompts::Form::of(gpu, self.dims()).await?;
            let tokens = grouped_attention::Form::of(gpu, self.dims()).await?;
            Ok(self.in_forms(prompts, tokens))
        })
    }

    fn untried(&self, target: &Target) -> Arc<dyn AttentionWeights> {
        let prompts = of_prompts::Form::untried(target, self.dims());
        self.in_forms(
            prompts,
            grouped_attention::Form::untried(target, self.dims()),
        )
    }

    fn widest(&self, size: ChunkSize, several: bool) -> u64 {
        let Buffers { q, k, v, queries } = Buffers::new(size, &self.config);
        let widest = [q, k, v, queries].map(|range| range.size);
        let slices = MAX_SLICES + size.tokens as usize;
        let [partials, _] = partial_bytes(self.dims(), slices);
        let widest = widest.into_iter().chain(several.then_some(partials));
        widest.max().unwrap_or(0)
    }

    fn most_slices(&self, target: &Target, n_ctx: usize) -> u32 {
        let heads = self.dims().heads;
        self.of_one(target)
            .most_slices(target.machine, n_ctx, heads)
    }

    fn sized(
        &self,
        target: &Target,
        chunk: ChunkSize,
        sizes: BatchSizes,
    ) -> Arc<dyn recipes::Attention> {
        let (config, dims) = (&*self.config, self.dims());
        let factors = self.frequency_factors.as_deref();
        let angles = rope_table_by(&config.rope, dims.rope, factors, sizes.n_ctx);
        let slices = self.most_slices(target, sizes.n_ctx);
        let few = self.most_few(target.machine).min(sizes.chunk as usize);
        let of_each = (most_as_one(target, sizes.pages > 0) * slices) as usize;
        Arc::new(Grouped {
            partials: partials(dims, sizes.slices().max(few).max(of_each)),
            slices,
            of_one: self.of_one(target),
            rope_table: Range::whole(&Buffer::with("rotation table", &angles)),
            buffers: Buffers::new(chunk, config),
            weights: self.clone(),
        })
    }
}

/// The buffers of chunks that all layers share, f32.
#[derive(Clone)]
struct Buffers {
    /// Partial sums of the queries, (split_k, tokens, heads * key), of the keys, (split_k, tokens, kv_heads * key), and of the values,
    /// (split_k, tokens, kv_heads * value).
    q: Range,
    k: Range,
    v: Range,
    /// The finished queries, (tokens, heads, key).
    queries: Range,
}

impl Buffers {
    /// The buffers of chunks of this size.
    fn new(of: ChunkSize, config: &super::Config) -> Self {
        let (dims, d) = (config.dims, config.embedding_length);
        let query = dims.heads * dims.key;
        Self {
            q: Range::floats("q", of.sums(query, d)),
            k: Range::floats("k", of.sums(dims.kv_heads * dims.key, d)),
            v: Range::floats("v", of.sums(dims.kv_heads * dims.value, d)),
            queries: Range::floats("queries", u64::from(of.tokens) * query as u64),
        }
    }
}

/// The attention with its buffers.
#[derive(Clone)]
struct Grouped {
    weights: Weights,
    /// The attention of tokens that are few.
    of_one: OfOne<grouped_attention::Form>,
    /// The cosine and the sine of each angle, (n_ctx, rope / 2).
    rope_table: Range,
    /// Partial sums of the attention: values, then maxima and sums.
    partials: [Range; 2],
    /// The most slices that one token cuts its context into.
    slices: u32,
    buffers: Buffers,
}

impl Grouped {
    fn dims(&self) -> GroupedDims {
        self.weights.dims()
    }

    /// The rows of the cache of a layer, and nothing else, from its keys and values.
    fn rows_of(&self, given: Given<'_>, layer: usize, [k, v]: [Range; 2]) -> GpuGroupedRows {
        let attention = &self.weights.layers[layer];
        GpuGroupedRows {
            queries: None,
            k,
            v,
            partial_sums: [1; 3],
            partial_tokens: 0,
            vectors: GpuHeadVectors {
                q_bias: attention.attn_q.bias.clone(),
                k_bias: attention.attn_k.bias.clone(),
                v_bias: attention.attn_v.bias.clone(),
                q_norm: attention.attn_q_norm.clone(),
                k_norm: attention.attn_k_norm.clone(),
            },
            eps: given.eps(),
            rope_table: self.rope_table.clone(),
            dims: self.dims(),
            cache: given.context.cache[layer].clone(),
            sequences: given.context.sequences.clone(),
        }
    }

    /// The attention of finished queries to the cache of a layer.
    fn attention(&self, given: Given<'_>, layer: usize, q: &Range) -> GpuGroupedAttention {
        GpuGroupedAttention {
            form: self.of_one.form,
            q: q.clone(),
            cache: given.context.cache[layer].clone(),
            dims: self.dims(),
            scale: self.weights.config.softmax_scale(),
            partials: self.partials.clone(),
            sequences: given.context.sequences.clone(),
        }
    }

    /// The dispatch that joins the slices of the attention in `values`. With `as_one` the slices of each token are joined as those of a token alone
    /// are.
    fn merge(
        &self,
        given: Given<'_>,
        (values, output): (&Range, Activation),
        as_one: bool,
    ) -> Call {
        let of = (given.context.sequences.as_ref(), as_one);
        let heads = [self.dims().heads, self.dims().value];
        attention_merge::call(of, &self.partials, heads, values, output)
    }
}

impl recipes::Attention for Grouped {
    fn check(&self, _: &Target) -> Result<(), GpuError> {
        // A model whose sizes have no kernels is not placed.
        Ok(())
    }

    fn few<'a>(
        &self,
        step: &mut Few<'a>,
        layer: usize,
        x: &TokenInput,
    ) -> Result<(&'a GpuWeight, Range), GpuError> {
        self.attend_few(step, layer, x)
    }

    fn many(&self, step: &mut Prompt<'_>, layer: usize, x: &Rows, least: u32) {
        self.attend_many(step, layer, x, least);
    }

    fn rows(&self, step: &mut Prompt<'_>, layer: usize, x: &Rows) {
        self.record_rows(step, layer, x);
    }

    fn state(&self, _: &Context, machine: Machine, pos: usize, tokens: usize) -> State {
        let (rows, heads) = (pos + tokens, self.dims().heads);
        let (slices, slice_rows) = match tokens {
            1 => self.of_one.slices(machine, rows, heads),
            _ => cut_context(self.of_one.form, machine, rows, tokens, heads),
        };
        State {
            pos: pos as u32,
            tokens: tokens as u32,
            slices,
            slice_rows,
            few: tokens <= self.weights.most_few(machine),
            ..State::default()
        }
    }

    fn cut(&self, target: &Target, tokens: &[Seen], as_one: bool) -> Cut {
        let (machine, heads) = (target.machine, self.dims().heads);
        match as_one {
            true => self.of_one.cut(machine, tokens, heads),
            false => cut_sequences(self.of_one.form, machine, tokens, heads),
        }
    }
}
