//! The attention of prompts: its weights, the expansion of keys and values, and the attention over them.

use super::DIMS;
use super::lab::{Compared, Lab, halves, state, wide};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Blocks, State};
use crate::gpu::wait::complete;
use crate::kernels::KvDims;
use crate::kernels::expand_kv::{expand_kv, expand_kv_weights, weights_calls};
use crate::kernels::prompt_attention::{Form, GpuPromptAttention, Scratch, prompt_attention};
use crate::quant::GgmlType;
use half::f16;

const KV: KvDims = KvDims { mla: DIMS, v: 128 };
/// Tokens of the chunk, and rows of the cache before them.
const TOKENS: usize = 37;
const POS: usize = 20;
const ROWS: usize = POS + TOKENS;

/// In f32 everywhere, and by matrices where the device takes them.
pub(super) fn all(lab: &mut Lab<'_>) {
    let chosen = complete(Form::of(lab.gpu, KV));
    for form in lab.forms(Form::Vector, chosen, "prompt_attention_coop") {
        weights(lab, form);
        let problem = Problem::new(lab);
        expansion(lab, form, &problem);
        attention(lab, form, &problem);
    }
}

fn role(form: Form) -> Role {
    match form.is_matrix() {
        true => Role::Halves,
        false => Role::Floats,
    }
}

/// Values as a form has them, of f16 or f32.
fn given(lab: &Lab<'_>, form: Form, values: &[f32]) -> Range {
    match form.is_matrix() {
        true => lab.given(&halves(values)),
        false => lab.given(values),
    }
}

/// The output of a form, of f16 or f32.
fn left(lab: &Lab<'_>, form: Form, range: &Range, n: usize) -> Result<Vec<f32>, GpuError> {
    match form.is_matrix() {
        true => Ok(wide(&lab.read(range, n)?)),
        false => lab.read(range, n),
    }
}

/// The weights of the expansion from `attn_k_b`, which is turned, and from `attn_v_b`.
fn weights(lab: &mut Lab<'_>, form: Form) {
    let mla = KV.mla;
    let of_keys = mla.heads * mla.nope * mla.kv_lora;
    let limit = if form.is_matrix() { 1e-6 } else { 1e-10 };
    for (kernel, part) in [
        ("expand_kv_turned", 0..of_keys),
        ("expand_kv_weights", of_keys..KV.width() * mla.kv_lora),
    ] {
        lab.check("q5_0 and q4_k, 16 heads", |lab| {
            let k_b = lab.weight(GgmlType::Q5_0, [mla.heads, mla.kv_lora, mla.nope]);
            let v_b = lab.weight(GgmlType::Q4_K, [mla.heads, KV.v, mla.kv_lora]);
            let mut twin = vec![0.0; KV.width() * mla.kv_lora];
            expand_kv_weights(&k_b, &v_b, KV, &mut twin);
            let bytes = KV.weight_bytes(form.is_matrix()) as usize;
            let out = lab.room(bytes / 4).holding(role(form));
            let [k_b, v_b] = [lab.load(&[&k_b])?.remove(0), lab.load(&[&v_b])?.remove(0)];
            let mut calls = weights_calls(&k_b, &v_b, KV, form.is_matrix(), &out);
            calls.retain(|call| call.kernel == kernel);
            lab.run(calls, State::default())?;
            let found = left(lab, form, &out, twin.len())?;
            Ok(vec![Compared::new(
                &found[part.clone()],
                &twin[part],
                limit,
            )])
        });
    }
}

/// A context, and the queries of the chunk at its end.
struct Problem {
    q: Vec<f32>,
    table: Vec<f32>,
    cache: Vec<f16>,
    weights: Vec<f32>,
    kv: Vec<f32>,
}

impl Problem {
    fn new(lab: &Lab<'_>) -> Self {
        let mla = KV.mla;
        let size = 1.0 / (mla.kv_lora as f32).sqrt();
        let weights = lab.normals(KV.width() * mla.kv_lora).into_iter();
        let weights: Vec<f32> = weights.map(|x| x * size).collect();
        // Numbers that f16 has, too.
        let weights = wide(&halves(&weights));
        let cache = halves(&lab.normals(ROWS * mla.cache_row()));
        let mut kv = vec![0.0; ROWS * KV.width()];
        expand_kv(&cache, &weights, KV, &mut kv);
        let angles = lab.normals(ROWS * mla.rope / 2);
        Self {
            q: lab.normals(TOKENS * mla.heads * mla.head()),
            table: angles.iter().flat_map(|a| [a.cos(), a.sin()]).collect(),
            cache,
            weights,
            kv: wide(&halves(&kv)),
        }
    }

    /// On the device, with these keys and values in the one block of the context.
    fn scratch(&self, lab: &Lab<'_>, form: Form, kv: Range) -> Scratch {
        let stats = TOKENS * KV.mla.heads * 2;
        Scratch {
            weights: given(lab, form, &self.weights),
            kv: vec![kv.holding(role(form))],
            stats: lab.room(stats),
            blocks: Blocks::new(64, ROWS as u32),
        }
    }

    fn on_gpu<'s>(
        &self,
        lab: &Lab<'_>,
        form: Form,
        scratch: &'s Scratch,
    ) -> GpuPromptAttention<'s> {
        GpuPromptAttention {
            form,
            q: lab.given(&self.q),
            rope_table: lab.given(&self.table),
            cache: lab.given(&self.cache).holding(Role::Cache),
            sequences: None,
            dims: KV,
            scale: scale(),
            max_tokens: TOKENS as u32,
            scratch,
            values: lab.room(TOKENS * KV.mla.heads * KV.v),
        }
    }
}

fn scale() -> f32 {
    1.0 / (KV.mla.head() as f32).sqrt()
}

fn expansion(lab: &mut Lab<'_>, form: Form, problem: &Problem) {
    lab.check(format!("{ROWS} rows of 16 heads"), |lab| {
        let kv = lab.room(KV.kv_bytes(64, form.is_matrix()) as usize / 4);
        let scratch = problem.scratch(lab, form, kv);
        let [expand, _] = problem.on_gpu(lab, form, &scratch).calls(lab.gpu);
        lab.run(vec![expand], state(TOKENS, POS))?;
        let mut twin = vec![0.0; ROWS * KV.width()];
        expand_kv(&problem.cache, &problem.weights, KV, &mut twin);
        let found = left(lab, form, &scratch.kv[0], twin.len())?;
        let limit = if form.is_matrix() { 1e-6 } else { 1e-10 };
        Ok(vec![Compared::new(&found, &twin, limit)])
    });
}

fn attention(lab: &mut Lab<'_>, form: Form, problem: &Problem) {
    lab.check(format!("{TOKENS} tokens after {POS}, 16 heads"), |lab| {
        let mut kv = problem.kv.clone();
        kv.resize(64 * KV.width(), 0.0);
        let scratch = problem.scratch(lab, form, given(lab, form, &kv));
        let attention = problem.on_gpu(lab, form, &scratch);
        let [_, attend] = attention.calls(lab.gpu);
        lab.run(vec![attend], state(TOKENS, POS))?;
        let mut twin = vec![0.0; TOKENS * KV.mla.heads * KV.v];
        let (table, _) = problem.table.as_chunks();
        let (q, cache) = (&problem.q, &problem.cache);
        prompt_attention(
            q,
            table,
            cache,
            &problem.kv,
            POS,
            TOKENS,
            KV,
            scale(),
            &mut twin,
        );
        // Everything is rounded to f16 for matrices, scores among it.
        let limit = if form.is_matrix() { 1e-5 } else { 1e-9 };
        Ok(vec![lab.floats(&attention.values, &twin, limit)?])
    });
}
