//! Cases of the grouped attention of prompts.

use half::f16;

use super::Case;
use super::lab::{self, Compared, Lab, state};
use super::places::Pages;
use super::prompt_attention::{MATRIX_LIMIT, VECTOR_LIMIT};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::grouped_attention::grouped_attention;
use crate::kernels::grouped_prompt_attention::{Form, GpuGroupedPromptAttention, Kernel};
use crate::kernels::sequences::PAGE;
use crate::kernels::{CacheType, GroupedDims, Pairing};

/// Blocks of so many query heads, key heads, and widths of a key and of a value.
pub(crate) const fn dims(heads: usize, kv_heads: usize, key: usize, value: usize) -> GroupedDims {
    GroupedDims {
        heads,
        kv_heads,
        key,
        value,
        // Queries and keys come rotated.
        rope: key,
        pairing: Pairing::Halves,
        cache: CacheType::F16,
    }
}

/// Qwen3-30B-A3B.
pub(crate) const QWEN3: GroupedDims = dims(32, 4, 128, 128);
/// SmolLM2-135M.
pub(crate) const SMOLLM: GroupedDims = dims(9, 3, 64, 64);

/// A context and the finished queries of a chunk at its end.
pub(crate) struct Context {
    pub dims: GroupedDims,
    pub pos: usize,
    pub tokens: usize,
    pub scale: f32,
    pub q: Vec<f32>,
    pub cache: Vec<f16>,
}

impl Context {
    /// Queries are large enough for weights that differ much, as real ones do. A share of the scores rises by about 1 every 8 rows, so that
    /// sums must be scaled.
    pub fn random(lab: &Lab<'_>, dims: GroupedDims, pos: usize, tokens: usize) -> Self {
        let q = lab.normals(tokens * dims.heads * dims.key).into_iter();
        let mut context = Self {
            dims,
            pos,
            tokens,
            scale: 1.0 / (dims.key as f32).sqrt(),
            q: q.map(|x| x * 3.0).collect(),
            cache: lab.rows(dims.rows(), pos + tokens, 1.0),
        };
        context.set_share(1.0, |i| i / 8 % 16);
        context
    }

    /// Makes a share of the score of row i `step` times `of(i)` * 127 / 128, by the first value of queries and keys. Up to 16 it is exact in
    /// every type of the cache, and codes times their scale are exact in f16.
    pub fn set_share(&mut self, step: f32, of: impl Fn(usize) -> usize) {
        let dims = self.dims;
        let queries = self.q.chunks_exact_mut(dims.key);
        queries.for_each(|q| q[0] = step / self.scale);
        let mut cache = dims.rows().read_all(&self.cache);
        for (i, row) in cache.chunks_exact_mut(dims.cache_values()).enumerate() {
            let keys = row.chunks_exact_mut(dims.key).take(dims.kv_heads);
            keys.for_each(|key| key[0] = of(i) as f32 * (127.0 / 128.0));
        }
        self.cache = dims.rows().write_all(&cache);
    }

    /// Compares a kernel with the twin, in a cache of its own or in pages. There is room for more tokens than there are: these are the last
    /// of a prompt.
    pub fn compare(
        &self,
        lab: &Lab<'_>,
        kernel: Kernel,
        paged: bool,
    ) -> Result<Vec<Compared>, GpuError> {
        let (dims, tokens, most) = (self.dims, self.tokens, self.tokens + 5);
        let mut state = state(tokens, self.pos);
        let (cache, sequences) = match paged {
            false => {
                let mut cache = self.cache.clone();
                cache.resize(cache.len() + 3 * dims.cache_row(), f16::NAN);
                (cache, None)
            }
            true => {
                let pages = Pages::new(lab, PAGE as usize, &[3, self.pos + tokens, 40]);
                let (sequences, alone) = pages.alone(lab, 1, 16);
                state.first_page = alone.first_page;
                let cache = pages.cache(&[vec![], self.cache.clone()], dims.cache_row());
                (cache, Some(sequences))
            }
        };
        let attention = GpuGroupedPromptAttention {
            form: kernel.form(),
            q: lab.padded(&self.q, dims.heads * dims.key, most),
            cache: lab.cache(&cache),
            sequences,
            dims,
            scale: self.scale,
            values: lab.room(most * dims.heads * dims.value),
        };
        lab.run(vec![attention.call_by(kernel)], state)?;
        let mut twin = vec![f32::NAN; tokens * dims.heads * dims.value];
        let (q, cache) = (&self.q, &self.cache);
        grouped_attention(q, cache, self.pos, tokens, dims, self.scale, &mut twin);
        let limit = match kernel.form() {
            Form::Vector => VECTOR_LIMIT,
            Form::Matrix(_) => MATRIX_LIMIT,
        };
        Ok(vec![lab.floats(&attention.values, &twin, limit)?])
    }
}

/// A chunk of `tokens` tokens after `pos` rows.
pub(crate) fn case(
    kernel: Kernel,
    dims: GroupedDims,
    [pos, tokens]: [usize; 2],
    paged: bool,
) -> Case {
    let GroupedDims {
        heads,
        kv_heads,
        key,
        value,
        ..
    } = dims;
    let pages = if paged { ", in pages" } else { "" };
    let cache = dims.cache.name();
    let name = format!(
        "{tokens} tokens after {pos}, {heads} heads on {kv_heads}, keys of {key}, values of {value}, cache of {cache}{pages}, {kernel:?}"
    );
    Case::new(name, move |lab| {
        Context::random(lab, dims, pos, tokens).compare(lab, kernel, paged)
    })
}

/// Wide heads and narrow ones, in f32 and in the form that a device takes after it has tried it.
pub(super) fn tried(gpu: &Gpu) -> Vec<Case> {
    let mut all = vec![];
    for dims in [QWEN3, SMOLLM, QWEN3.with_cache(CacheType::Q8_0)] {
        let mut kernels = vec![Kernel::Vector];
        match lab::tried(Form::of(gpu, dims)) {
            Ok(form) => kernels.extend(form.map(|form| form.kernel(dims))),
            Err(error) => all.push(Case::failed("prompt_attention_coop", error)),
        }
        kernels.dedup();
        let cases = kernels.into_iter();
        all.extend(cases.map(|kernel| case(kernel, dims, [20, 37], false).verified()));
    }
    all
}
