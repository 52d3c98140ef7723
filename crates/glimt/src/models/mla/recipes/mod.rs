//! Multi-head latent attention in the steps of a device: its weights with the kernels that the device takes, and its buffers.

mod few;
mod prompt;
#[cfg(test)]
mod tests;

use super::Config;
use super::layer::Attention;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, State};
use crate::gpu::machine::Machine;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError, Target};
use crate::kernels::attention::{self, Cut, GpuAttention, OfOne, Seen, cut_sequences};
use crate::kernels::prompt_attention::{self, Scratch};
use crate::kernels::rope_cache::{CacheRow, GpuRopeCache};
use crate::kernels::token::{TokenInput, unsupported};
use crate::kernels::{MlaDims, attention_merge, attention_short};
use crate::model::rope_table;
use crate::quant::activation::Activation;
use crate::recipes::few::{self as of_few, Few};
use crate::recipes::prompt::{Prompt, Rows};
use crate::recipes::{
    self, AttentionWeights, BatchSizes, Chosen, ChunkSize, Context, Given, RowsBuffer,
};
use std::sync::Arc;

/// The attention of all layers on a device, and the forms that the device takes.
#[derive(Clone)]
pub(super) struct Weights {
    config: Arc<Config>,
    layers: Arc<[Attention<GpuWeight, Range>]>,
    /// The attention of prompts over expanded keys and values, where the sizes suit it.
    expanded: Option<prompt_attention::Form>,
    /// The attention of steps of one token.
    token: attention::Form,
}

impl Weights {
    /// The weights of these `layers`, in the forms that run everywhere.
    pub fn new(config: &Config, layers: Vec<Attention<GpuWeight, Range>>) -> Self {
        Self {
            config: Arc::new(config.clone()),
            layers: layers.into(),
            expanded: None,
            token: attention::Form::Vector,
        }
    }

    /// The weights in the forms that trials would choose if all that a device has were right and fast.
    fn in_best_forms(&self, target: &Target) -> Self {
        Self {
            expanded: prompt_attention::Form::untried(target, self.config.kv_dims()),
            token: attention::Form::untried(target, self.config.dims()),
            ..self.clone()
        }
    }

    /// The attention of steps of one token.
    fn of_one(&self, target: &Target) -> OfOne {
        OfOne {
            form: self.token,
            short: attention_short::most_rows(target, self.token, self.config.dims()),
        }
    }

    /// The attention with its buffers, also for steps of prompts of this size.
    fn mla(&self, target: &Target, chunk: ChunkSize, sizes: BatchSizes) -> Mla {
        let config = &*self.config;
        let (dims, kv, machine) = (config.dims(), config.kv_dims(), target.machine);
        let expanded = self.expanded.filter(|_| sizes.chunk > 0);
        let expanded = expanded.map(|form| Expanded {
            form,
            scratch: Scratch::new(target, kv, form, sizes.chunk as usize, sizes.n_ctx),
        });
        let most_absorbed = most_absorbed(machine, config, self.expanded);
        let absorbed = match &expanded {
            Some(_) => most_absorbed.min(sizes.chunk),
            None => sizes.chunk,
        };
        let angles = rope_table(&config.rope, config.qk_rope_head_dim, sizes.n_ctx);
        let slices = self.most_slices(target, sizes.n_ctx);
        let of_each = (of_few::most_as_one(target, sizes.pages > 0) * slices) as usize;
        let most_slices = sizes.slices().max(absorbed as usize).max(of_each);
        Mla {
            partials: attention::partials(dims, most_slices),
            short: self.of_one(target).short,
            slices,
            rope_table: Range::whole(&Buffer::with("rotation table", &angles)),
            buffers: Buffers::new(chunk, config, most_absorbed.max(sizes.of_several())),
            weights: self.clone(),
            expanded,
        }
    }
}

impl AttentionWeights for Weights {
    fn cache_row(&self) -> usize {
        self.config.dims().cache_row()
    }

    fn values(&self) -> usize {
        self.config.head_count * self.config.v_head_dim
    }

    fn tried<'a>(&'a self, gpu: &'a Gpu) -> Chosen<'a> {
        Box::pin(async {
            let chosen = Self {
                expanded: prompt_attention::Form::of(gpu, self.config.kv_dims()).await?,
                token: attention::Form::for_decode(gpu, self.config.dims()).await?,
                ..self.clone()
            };
            let chosen: Arc<dyn AttentionWeights> = Arc::new(chosen);
            Ok(chosen)
        })
    }

    fn untried(&self, target: &Target) -> Arc<dyn AttentionWeights> {
        Arc::new(self.in_best_forms(target))
    }

    fn widest(&self, size: ChunkSize, several: bool) -> u64 {
        // Contexts of several sequences are not expanded.
        let expanded = self.expanded.filter(|_| !several);
        let absorbed = most_absorbed(size.machine, &self.config, expanded);
        let buffers = Buffers::new(size, &self.config, absorbed);
        let widths = [&buffers.q_a, &buffers.kv_a, &buffers.q, &buffers.q_lat];
        let widest = widths.map(|range| range.size).into_iter().max();
        let slices = attention::MAX_SLICES + size.tokens as usize;
        let [partials, _] = attention::partial_bytes(self.config.dims(), slices);
        widest.max(several.then_some(partials)).unwrap_or(0)
    }

    fn most_slices(&self, target: &Target, n_ctx: usize) -> u32 {
        let heads = self.config.head_count;
        self.of_one(target)
            .most_slices(target.machine, n_ctx, heads)
    }

    fn sized(
        &self,
        target: &Target,
        chunk: ChunkSize,
        sizes: BatchSizes,
    ) -> Arc<dyn recipes::Attention> {
        Arc::new(self.mla(target, chunk, sizes))
    }
}

/// The most tokens of a chunk whose attention is absorbed: all of them where the sizes do not suit the other.
fn most_absorbed(
    machine: Machine,
    config: &Config,
    expanded: Option<prompt_attention::Form>,
) -> u32 {
    let most = |form: prompt_attention::Form| {
        prompt_attention::most_few(machine, config.kv_dims(), form.is_matrix())
    };
    expanded.map_or(u32::MAX, most)
}

/// The attention of prompts over expanded keys and values.
#[derive(Clone)]
struct Expanded {
    /// The kernels that expand and attend.
    form: prompt_attention::Form,
    /// The buffers that they need besides, shared by all layers.
    scratch: Scratch,
}

/// The buffers of chunks that all layers share, f32.
#[derive(Clone)]
struct Buffers {
    /// Partial sums of `q_a`, (split_k, tokens, q_lora_rank).
    q_a: Range,
    /// Partial sums of `kv_a`, (split_k, tokens, kv_lora + rope).
    kv_a: Range,
    /// The queries, (tokens, heads, nope + rope).
    q: Range,
    /// Three buffers of absorbed tokens: (tokens, heads, rope), (tokens, heads, kv_lora), and the output of the attention.
    q_pe: Range,
    q_lat: Range,
    latent: Range,
    /// Inputs of products: the normed latent of the query, and what those of absorbed tokens read.
    normed_q_a: RowsBuffer,
    absorbed: RowsBuffer,
}

impl Buffers {
    /// The buffers of chunks of this size. The attention of up to `absorbed` tokens is absorbed.
    fn new(of: ChunkSize, config: &Config, absorbed: u32) -> Self {
        let dims = config.dims();
        let n = u64::from(of.tokens);
        let absorbed = n.min(u64::from(absorbed));
        let width = |of_head: usize| (dims.heads * of_head) as u64;
        let (q, latents) = (width(dims.head()), width(dims.kv_lora));
        let (d, q_lora) = (config.embedding_length, config.q_lora_rank.unwrap_or(0));
        Self {
            q_a: Range::floats("q_a", of.sums(q_lora, d)),
            kv_a: Range::floats("kv_a", of.sums(config.cache_values(), d)),
            q: Range::floats("q", n * q),
            q_pe: Range::floats("q_pe", absorbed * width(dims.rope)),
            q_lat: Range::floats("q_lat", absorbed * latents),
            latent: Range::floats("latent", absorbed * latents),
            normed_q_a: RowsBuffer::new("normed q_a", n, q_lora as u64, 1),
            absorbed: RowsBuffer::new("absorbed", absorbed, q.max(latents), 1),
        }
    }
}

/// The attention with its buffers.
#[derive(Clone)]
struct Mla {
    weights: Weights,
    /// The cosine and the sine of each angle, (n_ctx, rope / 2).
    rope_table: Range,
    /// Partial sums of the attention: values, then maxima and sums.
    partials: [Range; 2],
    /// Rows of a context up to which the attention of one token takes [`attention_short`], or 0.
    short: u32,
    /// The most slices that one token cuts its context into.
    slices: u32,
    /// The attention of prompts over expanded keys and values, where the sizes suit it.
    expanded: Option<Expanded>,
    buffers: Buffers,
}

impl Mla {
    fn config(&self) -> &Config {
        &self.weights.config
    }

    fn dims(&self) -> MlaDims {
        self.config().dims()
    }

    /// The attention of prompts over expanded keys and values, where steps may take it: if all their tokens belong to one sequence.
    fn expands(&self, context: &Context) -> Option<&Expanded> {
        self.expanded.as_ref().filter(|_| !context.has_several())
    }

    /// The attention of steps of up to `tokens` tokens.
    fn form(&self, context: &Context, tokens: usize) -> attention::Form {
        match tokens {
            _ if context.has_several() => self.weights.token,
            1 => self.weights.token,
            _ => attention::Form::Vector,
        }
    }

    /// The attention of up to `tokens` tokens to the cache of a layer.
    fn attention(
        &self,
        given: Given<'_>,
        tokens: u32,
        layer: usize,
        [q_lat, q_pe]: [Range; 2],
    ) -> GpuAttention {
        GpuAttention {
            form: self.form(given.context, tokens as usize),
            q_lat,
            q_pe,
            cache: given.context.cache[layer].clone(),
            dims: self.dims(),
            scale: self.config().softmax_scale(),
            partials: self.partials.clone(),
            sequences: given.context.sequences.clone(),
        }
    }

    /// The dispatch that joins its slices in `latent`, with `as_one` as those of one token are joined.
    fn merge(&self, given: Given<'_>, latent: &Range, output: Activation, as_one: bool) -> Call {
        let sequences = (given.context.sequences.as_ref(), as_one);
        let dims = self.dims();
        let sums = [dims.heads, dims.kv_lora];
        attention_merge::call(sequences, &self.partials, sums, latent, output)
    }

    /// The attention of steps of one token.
    fn of_one(&self) -> OfOne {
        OfOne {
            form: self.weights.token,
            short: self.short,
        }
    }

    /// The rows of the cache, and nothing else, from `kv_a` of the layer.
    fn cache_rows(&self, given: Given<'_>, layer: usize, kv_a: Range) -> GpuRopeCache {
        let row = CacheRow {
            kv_a,
            kv_a_norm: self.weights.layers[layer].attn_kv_a_norm.clone(),
            eps: given.eps(),
            cache: given.context.cache[layer].clone(),
        };
        GpuRopeCache {
            sequences: given.context.sequences.clone(),
            ..GpuRopeCache::of(row, &self.rope_table, self.dims())
        }
    }
}

impl recipes::Attention for Mla {
    fn check(&self, target: &Target) -> Result<(), GpuError> {
        for (what, width) in [
            ("query heads", self.dims().head()),
            ("latents", self.dims().kv_lora),
        ] {
            if !width.is_multiple_of(32) {
                let missing = format!("a kernel for {what} of {width}, no multiple of 32");
                return Err(unsupported(target, &missing));
            }
        }
        Ok(())
    }

    fn few<'a>(
        &self,
        step: &mut Few<'a>,
        layer: usize,
        x: &TokenInput,
    ) -> Result<(&'a GpuWeight, Range), GpuError> {
        let layer = few::Layer {
            mla: self,
            weights: &self.weights.layers[layer],
            i: layer,
            step,
            x,
        };
        layer.attend()
    }

    fn many(&self, step: &mut Prompt<'_>, layer: usize, x: &Rows, least: u32) {
        self.attend_many(step, layer, x, least);
    }

    fn rows(&self, step: &mut Prompt<'_>, layer: usize, x: &Rows) {
        self.record_rows(step, layer, x);
    }

    fn state(&self, context: &Context, machine: Machine, pos: usize, tokens: usize) -> State {
        let rows = pos + tokens;
        let heads = self.dims().heads;
        let (slices, slice_rows) = match tokens {
            1 => self.of_one().slices(machine, rows, heads),
            _ => {
                let form = self.form(context, tokens);
                attention::cut_context(form, machine, rows, tokens, heads)
            }
        };
        let few = |e: &Expanded| e.form.few(machine, self.config().kv_dims(), pos, tokens);
        State {
            pos: pos as u32,
            tokens: tokens as u32,
            slices,
            slice_rows,
            few: self.expanded.as_ref().is_none_or(few),
            ..State::default()
        }
    }

    fn cut(&self, target: &Target, tokens: &[Seen], as_one: bool) -> Cut {
        let (machine, heads) = (target.machine, self.dims().heads);
        if !as_one {
            return cut_sequences(self.weights.token, machine, tokens, heads);
        }
        let mut cut = self.of_one().cut(machine, tokens, heads);
        let most = target.merge_up_to(target.activation());
        for [_, slices] in &cut.slices {
            cut.kernels |= 1
                << if *slices <= most {
                    few::JOINED
                } else {
                    few::MERGED
                };
        }
        cut
    }
}
