//! Cases of the attention of prompts: each kernel alone, and both in turn over the blocks of a context.

use half::f16;

use super::Case;
use super::expand_kv::{Expansion, dims, given, role};
use super::lab::{self, Compared, Lab, state, wide};
use crate::gpu::call::{Blocks, State};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::CacheType;
use crate::kernels::expand_kv::expand_kv;
use crate::kernels::prompt_attention::{Form, GpuPromptAttention, Scratch, prompt_attention};
use crate::kernels::rope_cache::rotate_rows;
use crate::kernels::{KvDims, expand_kv_coop};

/// Sums in another order; scores of up to some 30 make weights off by as many units in their last place.
pub(crate) const VECTOR_LIMIT: f64 = 1e-10;
/// Everything is rounded to f16: scores of variance 9 move by some 5e-4, and weights by as much.
pub(crate) const MATRIX_LIMIT: f64 = 1e-6;
/// A context and the queries of a chunk at its end.
pub(crate) struct Context {
    pub dims: KvDims,
    pub pos: usize,
    pub tokens: usize,
    pub scale: f32,
    pub q: Vec<f32>,
    /// Cosine and sine of random angles.
    pub table: Vec<[f32; 2]>,
    /// The rows of the cache.
    pub cache: Vec<f16>,
    pub weights: Vec<f16>,
}

impl Context {
    pub fn random(lab: &Lab<'_>, dims: KvDims, pos: usize, tokens: usize) -> Self {
        let (mla, rows) = (dims.mla, pos + tokens);
        let mut cache = lab.rows(mla.rows(), rows, 1.0);
        for (i, row) in cache.chunks_exact_mut(mla.cache_row()).enumerate() {
            row[mla.rows().plain_word()] = f16::from_f32((i / 8 % 32) as f32);
        }
        // Queries large enough for weights that differ much, as real ones do.
        let queries = |n: usize| {
            lab.normals(tokens * mla.heads * n)
                .into_iter()
                .map(|x| x * 3.0)
        };
        let size = 1.0 / (mla.kv_lora as f32).sqrt();
        let mut context = Self {
            dims,
            pos,
            tokens,
            scale: 1.0 / (mla.head() as f32).sqrt(),
            q: queries(mla.head()).collect(),
            table: lab.angles((rows + 3) * mla.rope / 2),
            cache,
            weights: lab.halves(dims.width() * mla.kv_lora, size),
        };
        // A share of the scores that rises by 1 every 8 rows, so that sums must be scaled.
        let first = 1.0 / context.scale;
        context.set_rotated(queries(mla.rope).collect(), first);
        context
    }

    /// Makes the queries such that `q_pe` (tokens, heads, rope) comes of rotating them, each head's first value `first`.
    pub fn set_rotated(&mut self, mut q_pe: Vec<f32>, first: f32) {
        let mla = self.dims.mla;
        let heads = q_pe.chunks_exact_mut(mla.rope);
        for (i, (head, q)) in heads.zip(self.q.chunks_exact_mut(mla.head())).enumerate() {
            head[0] = first;
            let at = (self.pos + i / mla.heads) * mla.rope / 2;
            let angles = &self.table[at..][..mla.rope / 2];
            let back: Vec<_> = angles.iter().map(|[cos, sin]| [*cos, -sin]).collect();
            rotate_rows(head, 0, mla.rope, &back);
            q[mla.nope..].copy_from_slice(head);
        }
    }

    /// The keys and values of all rows.
    pub fn expanded(&self) -> Vec<f32> {
        let mut kv = vec![f32::NAN; (self.pos + self.tokens) * self.dims.width()];
        expand_kv(&self.cache, &wide(&self.weights), self.dims, &mut kv);
        kv
    }

    /// The attention over these keys and values.
    pub fn twin_of(&self, kv: &[f32]) -> Vec<f32> {
        let Self {
            q, table, cache, ..
        } = self;
        let (pos, tokens, dims, scale) = (self.pos, self.tokens, self.dims, self.scale);
        let mut out = vec![f32::NAN; tokens * dims.mla.heads * dims.v];
        prompt_attention(q, table, cache, kv, pos, tokens, dims, scale, &mut out);
        out
    }

    /// The context on the device, with room for more tokens than there are: the last ones of a prompt.
    pub fn given<'s>(
        &self,
        lab: &Lab<'_>,
        form: Form,
        scratch: &'s Scratch,
    ) -> GpuPromptAttention<'s> {
        let (mla, most) = (self.dims.mla, self.tokens + 5);
        let mut cache = self.cache.clone();
        cache.resize(cache.len() + 3 * mla.cache_row(), f16::NAN);
        GpuPromptAttention {
            form,
            q: lab.padded(&self.q, mla.heads * mla.head(), most),
            rope_table: lab.given(self.table.as_flattened()),
            cache: lab.cache(&cache),
            sequences: None,
            dims: self.dims,
            scale: self.scale,
            max_tokens: most as u32,
            scratch,
            values: lab.room(most * mla.heads * self.dims.v),
        }
    }

    pub fn scratch(&self, lab: &Lab<'_>, form: Form, rows: usize) -> Scratch {
        let (dims, matrices) = (self.dims, form.is_matrix());
        let blocks = Blocks::new(rows as u32, (self.pos + self.tokens + 3) as u32);
        let bytes = Scratch::bytes(dims, matrices, self.tokens + 5, blocks);
        let [_, kv, second, stats] = bytes.map(|bytes| bytes as usize / 4);
        let kv = [kv, second].into_iter().filter(|n| *n > 0);
        Scratch {
            weights: given(lab, &self.weights, matrices),
            kv: kv.map(|n| lab.room(n).holding(role(matrices))).collect(),
            stats: lab.room(stats),
            blocks,
        }
    }

    /// Compares the attention alone, over keys and values that are there, in one block.
    fn attend(&self, lab: &Lab<'_>, form: Form) -> Result<Vec<Compared>, GpuError> {
        let rows = (self.pos + self.tokens + 3).next_multiple_of(64);
        let mut kv: Vec<f16> = self.expanded().into_iter().map(f16::from_f32).collect();
        let twin = self.twin_of(&wide(&kv));
        kv.resize(rows * self.dims.width(), f16::ZERO);
        let matrices = form.is_matrix();
        let scratch = Scratch {
            kv: vec![given(lab, &kv, matrices).holding(role(matrices))],
            ..self.scratch(lab, form, rows)
        };
        let attention = self.given(lab, form, &scratch);
        let [_, attend] = attention.calls(lab.gpu);
        let state: State = state(self.tokens, self.pos);
        lab.run(vec![attend], state)?;
        let limit = if matrices { MATRIX_LIMIT } else { VECTOR_LIMIT };
        Ok(vec![lab.floats(&attention.values, &twin, limit)?])
    }
}

/// Each kernel alone, in f32 and in the form that a device takes after it has tried it.
pub(super) fn tried(gpu: &Gpu) -> Vec<Case> {
    let dims = dims(16, 128, 128);
    let mut forms = vec![Form::Vector];
    let mut all = vec![];
    match lab::tried(Form::of(gpu, dims)) {
        Ok(form) => forms.extend(form),
        Err(error) => all.push(Case::failed("prompt_attention_coop", error)),
    }
    forms.dedup();
    for form in forms {
        let shape = match form {
            Form::Vector => None,
            Form::Matrix(coop) => expand_kv_coop::shape(dims, coop),
        };
        let codes = dims.with_cache(CacheType::Q8_0);
        let expansion = Expansion {
            dims,
            n: 57,
            rows: 64,
            paged: false,
            shape,
        };
        let attention = Case::new("37 tokens after 20, 16 heads", move |lab| {
            Context::random(lab, dims, 20, 37).attend(lab, form)
        });
        let of_codes = Expansion {
            dims: codes,
            ..expansion
        };
        let expansion = Case::new("57 rows of 16 heads", move |lab| expansion.compare(lab));
        let expansion_of_codes = Case::new("57 rows of 16 heads, cache of q8_0", move |lab| {
            of_codes.compare(lab)
        });
        let attention_of_codes =
            Case::new("37 tokens after 20, 16 heads, cache of q8_0", move |lab| {
                Context::random(lab, codes, 20, 37).attend(lab, form)
            });
        let own = [expansion, attention, expansion_of_codes, attention_of_codes];
        all.extend(own.map(Case::verified));
    }
    all
}
