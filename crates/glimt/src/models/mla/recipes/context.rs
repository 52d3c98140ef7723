//! The context of all steps: the cache, the rotation table, the partial sums of the attention, and which forms of attention and
//! products the device takes.

use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::machine::Machine;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError, Most, Target};
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::rope_cache::CacheRow;
use crate::kernels::sequences::{PAGE, RECORD, SLICE, Sequences};
use crate::kernels::{KvDims, attention, attention_short, gemm, prompt_attention};
use crate::model::rope_table;
use crate::models::BatchSizes;
use crate::models::mla::Config;
use crate::models::mla::GpuLayer;

/// The forms that a device takes where it has several: verdicts of trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    /// The products of prompts.
    pub products: gemm::Form,
    /// The attention of prompts over expanded keys and values, where the sizes suit it.
    pub expanded: Option<prompt_attention::Form>,
    /// The attention of steps of one token.
    pub token: attention::Form,
}

impl Forms {
    /// The forms that trials on the device choose.
    ///
    /// # Errors
    /// The error that the device reports in a trial.
    pub async fn tried(gpu: &Gpu, config: &Config) -> Result<Self, GpuError> {
        let before = gpu.allocated();
        let forms = Self {
            products: gemm::Form::for_prompts(gpu).await?,
            expanded: prompt_attention::Form::of(gpu, config.kv_dims()).await?,
            token: attention::Form::for_decode(gpu, config.dims()).await?,
        };
        // The buffers of the trials are gone.
        gpu.count_dropped(before);
        Ok(forms)
    }

    /// The forms of steps of several sequences, whose contexts are not expanded.
    pub fn of_batch(self) -> Self {
        Self {
            expanded: None,
            ..self
        }
    }

    /// The forms that trials would choose if all that a device has were right and fast.
    pub fn untried(target: &Target, config: &Config) -> Self {
        Self {
            products: gemm::Form::best(target),
            expanded: prompt_attention::Form::untried(target, config.kv_dims()),
            token: attention::Form::untried(target, config.dims()),
        }
    }
}

/// The buffers that every step shares, and what steps are recorded with.
#[derive(Clone)]
pub struct Context {
    /// Positions of a sequence.
    pub rows: u32,
    /// Where tokens stand, if they belong to several sequences. Then the caches have pages.
    pub sequences: Option<Sequences>,
    /// Token ids by position, (sequences, n_ctx + 1) u32.
    pub history: Range,
    /// Per layer (rows, kv_lora + rope) f16.
    pub cache: Vec<Range>,
    /// (n_ctx, rope / 2) cosine and sine.
    pub rope_table: Range,
    /// Partial sums of the attention: values, then maxima and sums.
    pub partials: [Range; 2],
    /// The forms that the device takes.
    pub forms: Forms,
    /// Rows of a context up to which the attention of one token takes [`attention_short`], or 0.
    pub short: u32,
    /// The attention of prompts over expanded keys and values, where the sizes suit it.
    pub expanded: Option<Expanded>,
}

/// The attention of prompts over expanded keys and values.
#[derive(Clone)]
pub struct Expanded {
    /// The device.
    pub machine: Machine,
    /// The kernels that expand and attend.
    pub form: prompt_attention::Form,
    /// The sizes.
    pub dims: KvDims,
    /// The buffers that they need besides, shared by all layers.
    pub scratch: prompt_attention::Scratch,
}

impl Expanded {
    /// The most tokens of a step that the absorbed attention takes instead.
    pub fn most_few(&self) -> u32 {
        prompt_attention::most_few(self.machine, self.dims, self.form.is_matrix())
    }

    /// Whether the absorbed attention takes a step of `tokens` tokens after `pos` rows.
    pub fn few(&self, pos: usize, tokens: usize) -> bool {
        self.form.few(self.machine, self.dims, pos, tokens)
    }
}

impl Context {
    /// The context for sequences and steps of these sizes.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] where a layer's cache does not fit one binding.
    pub fn new(
        target: &Target,
        config: &Config,
        forms: Forms,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let (dims, kv, machine) = (config.dims(), config.kv_dims(), target.machine);
        let BatchSizes { n_ctx, chunk, .. } = sizes;
        let paged = sizes.pages > 0;
        let expanded = forms.expanded.filter(|_| chunk > 0);
        let expanded = expanded.map(|form| Expanded {
            machine,
            form,
            dims: kv,
            scratch: prompt_attention::Scratch::new(target, kv, form, chunk as usize, n_ctx),
        });
        let absorbed = expanded.as_ref().map_or(chunk, |e| e.most_few().min(chunk));
        let slices = match paged {
            true => MAX_SLICES + sizes.tokens as usize,
            false => 0,
        };
        let ids = u64::from(sizes.sequences) * (n_ctx as u64 + 1);
        Ok(Self {
            rows: n_ctx as u32,
            sequences: paged.then(|| sequences(sizes, slices, ids)),
            history: Range::words("token histories", ids),
            cache: caches(target, config, sizes.rows())?,
            rope_table: Range::whole(&Buffer::with(
                "rotation table",
                &rope_table(&config.rope, config.qk_rope_head_dim, n_ctx),
            )),
            partials: attention::partials(dims, slices.max(absorbed as usize)),
            short: attention_short::most_rows(target, forms.token, dims),
            forms,
            expanded,
        })
    }

    /// The context for steps whose tokens all belong to one sequence of a batch: a token alone, or a chunk of its prompt.
    pub fn alone(&self) -> Self {
        Self {
            sequences: self.sequences.as_ref().map(|s| s.of_steps(1)),
            ..self.clone()
        }
    }

    /// The attention of prompts over expanded keys and values, where steps may take it: if all their tokens belong to one sequence.
    pub fn expands(&self) -> Option<&Expanded> {
        self.expanded.as_ref().filter(|_| !self.has_several())
    }

    /// Whether the tokens of a step may belong to several sequences.
    fn has_several(&self) -> bool {
        self.sequences.as_ref().is_some_and(|s| !s.alone)
    }

    /// The number of slices that the attention of `tokens` tokens after `pos` rows is cut into, and the cache rows of each.
    pub fn cut(&self, machine: Machine, heads: usize, pos: usize, tokens: usize) -> (u32, u32) {
        let rows = pos + tokens;
        if tokens == 1 && rows <= self.short as usize {
            let slice = attention_short::ROWS;
            return ((rows as u32).div_ceil(slice), slice);
        }
        attention::cut_context(self.form(tokens), machine, rows, tokens, heads)
    }

    /// The largest replay of a step over up to `tokens` tokens, whose buffers may hold more than the context does.
    pub fn most(&self, tokens: u32) -> Most {
        Most {
            tokens,
            context: self.rows,
        }
    }

    /// The attention of steps of up to `tokens` tokens.
    pub fn form(&self, tokens: usize) -> attention::Form {
        match tokens {
            _ if self.has_several() => self.forms.token,
            1 => self.forms.token,
            _ => attention::Form::Vector,
        }
    }
}

/// Where tokens of several sequences stand, whose attention is cut into up to so many slices.
fn sequences(sizes: BatchSizes, slices: usize, ids: u64) -> Sequences {
    let per_sequence = sizes.n_ctx.div_ceil(PAGE as usize) as u64;
    let table = u64::from(sizes.tokens) * RECORD as u64;
    Sequences {
        table: Range::words("where tokens stand", table),
        pages: Range::words("pages", u64::from(sizes.sequences) * per_sequence),
        work: Range::words("slices of tokens", (slices * SLICE) as u64),
        page: PAGE,
        rows: sizes.pages * PAGE,
        ids: ids as u32,
        alone: false,
    }
}

/// The cache of each layer, of so many rows.
fn caches(target: &Target, config: &Config, rows: usize) -> Result<Vec<Range>, GpuError> {
    let bytes = (rows * config.dims().cache_row() * 2) as u64;
    if bytes > target.max_binding {
        return Err(GpuError::BindingTooLarge {
            what: format!("the cache of a layer for {rows} positions"),
            bytes,
            adapter: target.name.clone(),
            limit: target.max_binding,
            remedy: "use a smaller context (-c)",
        });
    }
    let cache = |_| Range::whole(&Buffer::new("latent cache", bytes, Role::Cache));
    Ok((0..config.block_count).map(cache).collect())
}

/// A layer with its cache, and the products of its weights that a step reads.
#[derive(Clone, Copy)]
pub(super) struct TokenLayer<'a> {
    pub layer: &'a GpuLayer,
    pub cache: &'a Range,
    /// (heads * (kv_lora + rope)) x the width of the query's input.
    pub qk: Option<&'a GpuWeight>,
    /// embedding_length x (heads * kv_lora).
    pub vo: Option<&'a GpuWeight>,
}

impl TokenLayer<'_> {
    /// The inputs of the cache's new row, and where the row goes.
    pub fn row(&self, kv_a: Range, eps: f32) -> CacheRow {
        CacheRow {
            kv_a,
            kv_a_norm: self.layer.attn_kv_a_norm.clone(),
            eps,
            cache: self.cache.clone(),
        }
    }
}
