//! Cases of the expansion of keys and values, and of its weights.

use half::f16;

use super::Case;
use super::lab::{Compared, Lab, wide};
use super::places::Pages;
use crate::gpu::GpuError;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Blocks, State};
use crate::kernels::expand_kv::{call, expand_kv, expand_kv_weights, tiled, weights_calls};
use crate::kernels::expand_kv_coop::Shape;
use crate::kernels::sequences::PAGE;
use crate::kernels::{CacheType, KvDims, MlaDims};
use crate::quant::GgmlType::{self, Q4_K, Q5_0, Q8_0};

pub(crate) const fn dims(heads: usize, nope: usize, v: usize) -> KvDims {
    let mla = MlaDims {
        heads,
        nope,
        rope: 64,
        kv_lora: 512,
        cache: CacheType::F16,
    };
    KvDims { mla, v }
}

/// GLM-4.7-Flash, DeepSeek-V2-Lite and Youtu-LLM-2B, the model inside the program; fewer heads.
pub(crate) const SHAPES_OF_MODELS: [KvDims; 3] =
    [dims(3, 192, 256), dims(2, 128, 128), dims(4, 64, 128)];

/// The NMSE of products of latents, which are rounded to f16 for matrices.
pub(crate) const fn limit(matrices: bool) -> f64 {
    if matrices { 1e-7 } else { 1e-12 }
}

/// The content of keys, values and their weights, for matrices or in f32.
pub(crate) const fn role(matrices: bool) -> Role {
    match matrices {
        true => Role::Halves,
        false => Role::Floats,
    }
}

/// Values as a form has them, of f16 or of f32.
pub(crate) fn given(lab: &Lab<'_>, values: &[f16], matrices: bool) -> Range {
    match matrices {
        true => lab.given(values),
        false => lab.given(&wide(values)),
    }
}

/// Both kernels that unpack weights, or one of them: `attn_k_b` is turned.
fn weights_of(
    lab: &Lab<'_>,
    types: [GgmlType; 2],
    dims: KvDims,
    matrices: bool,
    kernel: Option<&'static str>,
) -> Result<Vec<Compared>, GpuError> {
    let mla = dims.mla;
    let k_b = lab.weight(types[0], [mla.heads, mla.kv_lora, mla.nope]);
    let v_b = lab.weight(types[1], [mla.heads, dims.v, mla.kv_lora]);
    let mut twin = vec![f32::NAN; dims.width() * mla.kv_lora];
    expand_kv_weights(&k_b, &v_b, dims, &mut twin);
    // A workgroup more would fit: threads behind the last weight write nothing.
    let words = dims.weight_bytes(matrices) as usize / 4;
    let out = lab.room(words + 64 * 32).holding(role(matrices));
    let (k_b, v_b) = (lab.load(&k_b)?, lab.load(&v_b)?);
    let mut calls = weights_calls(&k_b, &v_b, dims, matrices, &out);
    calls.retain(|call| kernel.is_none_or(|kernel| call.kernel == kernel));
    lab.run(calls, State::default())?;
    let found = lab.read_wide(&out, twin.len(), matrices)?;
    let of_keys = mla.heads * mla.nope * mla.kv_lora;
    let part = match kernel {
        None => 0..twin.len(),
        Some("expand_kv_turned") => 0..of_keys,
        Some(_) => of_keys..twin.len(),
    };
    let behind: Vec<f32> = lab.read(&out, words + 64 * 32)?;
    let untouched = behind[words..].iter().all(|x| x.is_nan());
    Ok(vec![
        lab.close(&found[part.clone()], &twin[part], limit(matrices)),
        lab.holds(untouched, || "written behind the end".to_owned()),
    ])
}

/// The kernels that unpack weights, in both forms.
pub(crate) fn weights() -> Vec<Case> {
    let [glm, deepseek, _] = SHAPES_OF_MODELS;
    let mut all = vec![];
    for matrices in [false, true] {
        let kind = if matrices { "halves" } else { "floats" };
        for kernel in ["expand_kv_turned", "expand_kv_weights"] {
            let case = Case::new(format!("q5_0 and q4_k, 2 heads, {kind}"), move |lab| {
                weights_of(lab, [Q5_0, Q4_K], deepseek, matrices, Some(kernel))
            });
            all.push(case.verified_if(!matrices));
        }
        all.extend(GgmlType::ALL.iter().map(|&ty| {
            // Blocks of 256 do not fit the columns of attn_k_b.
            let fits = glm.mla.nope.is_multiple_of(ty.block_len());
            let types = [if fits { ty } else { Q5_0 }, ty];
            let case = Case::new(format!("{ty}, 3 heads, {kind}"), move |lab| {
                weights_of(lab, types, glm, matrices, None)
            });
            case.long()
        }));
    }
    // 66 units of the values' weights, for workgroups of 64 threads.
    let mla = MlaDims {
        heads: 1,
        nope: 32,
        rope: 8,
        kv_lora: 64,
        cache: CacheType::F16,
    };
    let ragged = KvDims { mla, v: 33 };
    all.push(Case::new("q8_0, 33 values of a head", move |lab| {
        weights_of(lab, [Q8_0; 2], ragged, false, None)
    }));
    all
}

/// The expansion of a context in blocks.
#[derive(Clone, Copy)]
pub(crate) struct Expansion {
    pub dims: KvDims,
    /// Rows of the context.
    pub n: usize,
    /// Rows of a block.
    pub rows: usize,
    /// Whether the cache has pages.
    pub paged: bool,
    /// The shape by matrices.
    pub shape: Option<Shape>,
}

impl Expansion {
    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let Self { dims, n, rows, .. } = self;
        let (row, matrices) = (dims.mla.cache_row(), self.shape.is_some());
        let weights = lab.halves(dims.width() * dims.mla.kv_lora, 0.05);
        let mut cache = lab.rows(dims.mla.rows(), n, 1.0);
        // The buffer holds the last block in the end, in the rows that it has.
        let begin = (n - 1) / rows * rows;
        let mut twin = vec![f32::NAN; (n - begin) * dims.width()];
        expand_kv(&cache[begin * row..], &wide(&weights), dims, &mut twin);
        let mut first_page = 0;
        let mut sequences = None;
        if self.paged {
            let pages = Pages::new(lab, PAGE as usize, &[3, n, 40]);
            let (own, state) = pages.alone(lab, 1, 16);
            cache = pages.cache(&[vec![], cache], row);
            (sequences, first_page) = (Some(own), state.first_page);
        } else {
            cache.resize((n + 3) * row, f16::NAN);
        }
        let words = dims.kv_bytes(rows, matrices) as usize / 4;
        let out = lab.room(words).holding(role(matrices));
        let call = call(
            (sequences.as_ref(), &lab.cache(&cache)),
            &given(lab, &weights, matrices),
            dims,
            matrices,
            self.shape
                .map_or_else(|| tiled(dims), |shape| shape.tiled(dims)),
            Blocks::new(rows as u32, n as u32 + 3),
            &out,
        );
        let state = State {
            first_page,
            ..super::lab::state(1, n - 1)
        };
        lab.run(vec![call], state)?;
        let found = lab.read_wide(&out, twin.len(), matrices)?;
        Ok(vec![lab.close(&found, &twin, limit(matrices))])
    }
}
