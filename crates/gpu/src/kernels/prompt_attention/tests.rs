//! Protects the attention of prompts: in every form it agrees with its twin, wherever chunks and blocks begin and end.

use super::*;
use crate::gpu::call::State;
use crate::gpu::testing::{download, gpu_weights, gpus, metal, output, padded, run, upload};
use crate::gpu::wait::complete;
use crate::kernels::MlaDims;
use crate::kernels::attention::attention;
use crate::kernels::expand_kv::tests::{role, shapes};
use crate::kernels::expand_kv::{self, expand_kv, expand_kv_weights, weights_calls};
use crate::kernels::rope_cache::rotate_rows;
use crate::kernels::testing::coop::{APPLE, NVIDIA};
use crate::kernels::testing::paged::Paged;
use crate::kernels::testing::{Rng, assert_close, drawn_pairs, nmse, random_weight};
use crate::quant::GgmlType;
use half::f16;

mod emulated;
mod pages;

/// A context and the queries of a chunk at its end.
struct Case {
    dims: KvDims,
    pos: usize,
    tokens: usize,
    scale: f32,
    q: Vec<f32>,
    /// Cosine and sine of random angles.
    rope_table: Vec<[f32; 2]>,
    /// The rows of the cache, with NaN behind the last token: reading that would show.
    cache: Vec<f16>,
    weights: Vec<f16>,
    /// Where the rows of the cache lie on the device, if it has pages there.
    paged: Option<Paged>,
}

impl Case {
    fn random(rng: &mut Rng, dims: KvDims, pos: usize, tokens: usize) -> Self {
        let mla = dims.mla;
        let rows = pos + tokens;
        let mut narrow = |n: usize, size: f32| -> Vec<f16> {
            let wide = rng.normals(n).into_iter();
            wide.map(|x| f16::from_f32(x * size)).collect()
        };
        let mut cache = narrow((rows + 3) * mla.cache_row(), 1.0);
        cache[rows * mla.cache_row()..].fill(f16::NAN);
        let weights = narrow(
            dims.width() * mla.kv_lora,
            1.0 / (mla.kv_lora as f32).sqrt(),
        );
        // Queries large enough for weights that differ much, as real ones do.
        let mut queries =
            |n: usize| -> Vec<f32> { rng.normals(n).into_iter().map(|x| x * 3.0).collect() };
        let scale = 1.0 / (mla.head() as f32).sqrt();
        let q = queries(tokens * mla.heads * mla.head());
        let q_pe = queries(tokens * mla.heads * mla.rope);
        let seen = cache[..rows * mla.cache_row()].chunks_exact_mut(mla.cache_row());
        for (i, row) in seen.enumerate() {
            row[mla.kv_lora] = f16::from_f32((i / 8 % 32) as f32);
        }
        let angle = |_| rng.uniform() * 6.3;
        let angles = (0..(rows + 3) * mla.rope / 2).map(angle);
        let mut case = Self {
            dims,
            pos,
            tokens,
            scale,
            q,
            rope_table: angles.map(|a: f32| [a.cos(), a.sin()]).collect(),
            cache,
            weights,
            paged: None,
        };
        // A share of the scores that rises by 1 every 8 rows, so that sums must be scaled.
        case.set_rotated(q_pe, 1.0 / scale);
        case
    }

    /// This case, with the rows of the cache in pages on the device.
    fn in_pages(self, rng: &mut Rng) -> Self {
        Self {
            paged: Some(Paged::new(rng, self.pos + self.tokens)),
            ..self
        }
    }

    /// The cache as it lies on the device.
    fn on_device(&self) -> Vec<f16> {
        let row = self.dims.mla.cache_row();
        match &self.paged {
            Some(paged) => paged.cache(&self.cache[..(self.pos + self.tokens) * row], row),
            None => self.cache.clone(),
        }
    }

    /// The score of row i is `step` times i, so all weight is on the last row seen or on the first.
    fn far(rng: &mut Rng, dims: KvDims, step: f32) -> Self {
        let (pos, tokens, mla) = (150, 50, dims.mla);
        let mut case = Self::random(rng, dims, pos, tokens);
        case.q.fill(0.0);
        let q_pe = vec![0.0; tokens * mla.heads * mla.rope];
        case.set_rotated(q_pe, step * (mla.head() as f32).sqrt());
        let seen = case.cache.chunks_exact_mut(mla.cache_row());
        for (i, row) in seen.take(pos + tokens).enumerate() {
            row[mla.kv_lora] = f16::from_f32(i as f32);
        }
        case
    }

    /// Makes the queries such that `q_pe` (tokens, heads, rope) comes of rotating them, each head's first value `first`.
    fn set_rotated(&mut self, mut q_pe: Vec<f32>, first: f32) {
        let mla = self.dims.mla;
        let heads = q_pe.chunks_exact_mut(mla.rope);
        for (i, (head, q)) in heads.zip(self.q.chunks_exact_mut(mla.head())).enumerate() {
            head[0] = first;
            let at = (self.pos + i / mla.heads) * mla.rope / 2;
            let angles = &self.rope_table[at..][..mla.rope / 2];
            let back: Vec<_> = angles.iter().map(|[cos, sin]| [*cos, -sin]).collect();
            rotate_rows(head, 0, mla.rope, &back);
            q[mla.nope..].copy_from_slice(head);
        }
    }

    /// The rotated part of the queries, (tokens, heads, rope).
    fn rotated(&self) -> Vec<f32> {
        let mla = self.dims.mla;
        let heads = self.q.chunks_exact(mla.head()).enumerate();
        let rotated = heads.flat_map(|(i, q)| {
            let mut q = q[mla.nope..].to_vec();
            let at = (self.pos + i / mla.heads) * mla.rope / 2;
            let angles = &self.rope_table[at..][..mla.rope / 2];
            rotate_rows(&mut q, 0, mla.rope, angles);
            q
        });
        rotated.collect()
    }

    fn wide_weights(&self) -> Vec<f32> {
        self.weights.iter().map(|w| w.to_f32()).collect()
    }

    fn twin(&self) -> Vec<f64> {
        let rows = self.pos + self.tokens;
        let seen = &self.cache[..rows * self.dims.mla.cache_row()];
        let mut kv = vec![f32::NAN; rows * self.dims.width()];
        expand_kv(seen, &self.wide_weights(), self.dims, &mut kv);
        let mut out = vec![f32::NAN; self.tokens * self.dims.mla.heads * self.dims.v];
        prompt_attention(
            &self.q,
            &self.rope_table,
            seen,
            &kv,
            self.pos,
            self.tokens,
            self.dims,
            self.scale,
            &mut out,
        );
        out.into_iter().map(f64::from).collect()
    }

    /// By the kernels in `form`, with `tiled` in place of its attention where given, in blocks of `rows` rows.
    fn on_gpu(&self, gpu: &Gpu, form: Form, tiled: Option<(Call, usize)>, rows: usize) -> Vec<f32> {
        self.run(gpu, form, None, tiled, rows, |call| call)
    }

    /// Likewise, with other kernels in place of the expansion and of the attention, and both dispatches changed.
    fn run(
        &self,
        gpu: &Gpu,
        form: Form,
        expansion: Option<expand_kv_coop::Tiled>,
        tiled: Option<(Call, usize)>,
        rows: usize,
        change: impl Fn(Call) -> Call,
    ) -> Vec<f32> {
        let dims = self.dims;
        // More than the tokens that there are: the last ones of a prompt.
        let max_tokens = self.tokens + 5;
        let blocks = Blocks::new(rows as u32, (self.pos + self.tokens + 3) as u32);
        let [_, kv, second, stats] = Scratch::bytes(dims, form.is_matrix(), max_tokens, blocks);
        let weights = match form {
            Form::Vector => upload(gpu, &self.wide_weights()),
            Form::Matrix(_) => upload(gpu, &self.weights),
        };
        let scratch = Scratch {
            weights: Range::whole(&weights),
            kv: [kv, second]
                .into_iter()
                .filter(|bytes| *bytes > 0)
                .map(|bytes| {
                    Range::whole(&output(gpu, bytes as usize / 4)).holding(role(form.is_matrix()))
                })
                .collect(),
            stats: Range::whole(&output(gpu, stats as usize / 4)),
            blocks,
        };
        let long = |data: &[f32]| {
            let width = data.len() / self.tokens;
            let all = padded(data, width, max_tokens as u32);
            Range::whole(&upload(gpu, &all))
        };
        let width = dims.mla.heads * dims.v;
        let values = output(gpu, max_tokens * width);
        let attention = GpuPromptAttention {
            form,
            q: long(&self.q),
            rope_table: Range::whole(&upload(gpu, &self.rope_table)),
            cache: Range::whole(&upload(gpu, &self.on_device())).holding(Role::Cache),
            sequences: self.paged.as_ref().map(|paged| paged.sequences(gpu)),
            dims,
            scale: self.scale,
            max_tokens: max_tokens as u32,
            scratch: &scratch,
            values: Range::whole(&values),
        };
        let [mut expand, mut attend] = attention.calls(gpu);
        if let Some(tiled) = tiled {
            attend = attention.attention(tiled);
        }
        if let Some(tiled) = expansion {
            let Scratch { weights, kv, .. } = &scratch;
            let cache = (attention.sequences.as_ref(), &attention.cache);
            expand = expand_kv::call(cache, weights, dims, true, tiled, blocks, &kv[0]);
        }
        let calls = attention.in_turn(expand, attend).map(change);
        let state = State {
            pos: self.pos as u32,
            tokens: self.tokens as u32,
            first_page: self.paged.as_ref().map_or(0, Paged::first_page),
            ..State::default()
        };
        run(gpu, &calls, &state);
        let mut found: Vec<f32> = download(gpu, &values, max_tokens * width);
        let behind = found.split_off(self.tokens * width);
        assert!(behind.iter().all(|x| x.is_nan()), "written behind the end");
        found
    }

    /// NMSE of every form and shape that the device has, with names.
    fn errors(&self, gpu: &Gpu, rows: usize, exact: &[f64]) -> Vec<(String, bool, f64)> {
        let mut errors = vec![];
        let found = self.on_gpu(gpu, Form::Vector, None, rows);
        errors.push(("vectors".to_owned(), false, nmse(&found, exact)));
        let of_device = |shape: &prompt_attention_coop::Shape| Some(shape.coop) == gpu.coop;
        for shape in prompt_attention_coop::SHAPES.into_iter().filter(of_device) {
            // llvmpipe takes a minute to compile a shape for wide heads: there the one that would be chosen is enough.
            let best = prompt_attention_coop::best(self.dims, shape.coop);
            let wide = self.dims.mla.head() > 128 && best != Some(shape);
            if wide && shape.coop.lanes == 8 || !shape.fits(self.dims) {
                continue;
            }
            let tiled = Some(shape.tiled(self.dims));
            let found = self.on_gpu(gpu, Form::Matrix(shape.coop), tiled, rows);
            errors.push((format!("{shape:?}"), true, nmse(&found, exact)));
        }
        errors
    }

    #[track_caller]
    fn check(&self, rows: usize) {
        let exact = self.twin();
        for gpu in gpus() {
            self.check_on(gpu, rows, &exact);
        }
    }

    #[track_caller]
    fn check_on(&self, gpu: &Gpu, rows: usize, exact: &[f64]) {
        let tier = gpu.tier.name();
        for (form, matrix, error) in self.errors(gpu, rows, exact) {
            let limit = match (matrix, self.tokens) {
                (true, 1) => ONE_TOKEN * MATRIX_LIMIT,
                (true, _) => MATRIX_LIMIT,
                (false, _) => VECTOR_LIMIT,
            };
            assert!(
                error <= limit,
                "{:?}: {} at {}, blocks of {rows}, {form} on {tier}: NMSE {error:.2e}",
                self.dims,
                self.tokens,
                self.pos,
            );
        }
    }
}

/// Sums in another order; scores of up to some 30 make weights off by as many units in their last place.
const VECTOR_LIMIT: f64 = 1e-10;
/// Everything is rounded to f16: scores of variance 9 move by some 5e-4, and weights by as much.
const MATRIX_LIMIT: f64 = 1e-6;
/// The factor of the limit for two heads of one token: some draws in a hundred exceed the limit by rounding alone.
const ONE_TOKEN: f64 = 3.0;

#[test]
fn expanded_and_absorbed_attention_are_the_same() {
    let mut rng = Rng::fresh();
    let dims = KvDims {
        mla: MlaDims {
            heads: 2,
            nope: 32,
            rope: 16,
            kv_lora: 64,
        },
        v: 64,
    };
    let mla = dims.mla;
    let (pos, tokens) = (5, 3);
    let mut case = Case::random(&mut rng, dims, pos, tokens);
    let k_b = random_weight(&mut rng, GgmlType::F16, 2, 64, 32);
    let v_b = random_weight(&mut rng, GgmlType::F16, 2, 64, 64);
    let mut weights = vec![f32::NAN; case.weights.len()];
    expand_kv_weights(&k_b, &v_b, dims, &mut weights);
    // Weights of F16 are halves.
    case.weights = weights.iter().map(|w| f16::from_f32(*w)).collect();
    let (keys, values) = weights.split_at(2 * 32 * 64);
    // q_lat = q E_k per head, out = E_v latent.
    let mut q_lat = vec![0.0f32; tokens * 2 * 64];
    for (i, q_lat) in q_lat.chunks_exact_mut(64).enumerate() {
        for (c, q) in case.q[i * 48..][..32].iter().enumerate() {
            let row = &keys[(i % 2 * 32 + c) * 64..][..64];
            q_lat.iter_mut().zip(row).for_each(|(l, w)| *l += q * w);
        }
    }
    let mut latent = vec![f32::NAN; q_lat.len()];
    attention(
        &q_lat,
        &case.rotated(),
        &case.cache,
        pos,
        tokens,
        mla,
        case.scale,
        &mut latent,
    );
    let mut exact = vec![];
    for (i, latent) in latent.chunks_exact(64).enumerate() {
        for row in values[i % 2 * 64 * 64..][..64 * 64].chunks_exact(64) {
            exact.push(row.iter().zip(latent).map(|(a, b)| f64::from(a * b)).sum());
        }
    }
    let found: Vec<f32> = case.twin().iter().map(|x| *x as f32).collect();
    assert_close(&found, &exact, 1e-10, "expanded");
}

#[test]
fn chunks_of_any_size_anywhere_agree_with_the_twin() {
    let mut rng = Rng::fresh();
    let [glm, deepseek, tales] = shapes();
    let cases = [
        (glm, 0, 1, 64),
        (glm, 0, 67, 128),
        (glm, 1, 9, 64),
        (glm, 575, 37, 4096),
        (glm, 575, 37, 192),
        (deepseek, 0, 130, 2048),
        (deepseek, 1, 33, 64),
        (deepseek, 575, 65, 256),
        (tales, 0, 2, 64),
        (tales, 575, 100, 640),
    ];
    for (gpu, &(dims, pos, tokens, rows)) in drawn_pairs(gpus(), &cases) {
        let case = Case::random(&mut rng, dims, pos, tokens);
        case.check_on(gpu, rows, &case.twin());
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_long_context_agrees_with_the_twin_in_one_block_and_in_several() {
    if metal::skips("a long context") {
        return;
    }
    let mut rng = Rng::fresh();
    let [glm, ..] = shapes();
    let case = Case::random(&mut rng, glm, 4096, 19);
    let twin = case.twin();
    for (gpu, &rows) in drawn_pairs(gpus(), &[4160, 1024]) {
        case.check_on(gpu, rows, &twin);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn masks_hold_at_the_edges_of_tiles_and_blocks() {
    let mut rng = Rng::fresh();
    let [_, dims, _] = shapes();
    let cases = [(31, 33), (32, 32), (33, 31), (63, 65), (64, 64), (127, 1)];
    // Also blocks that no tile divides.
    let cases: Vec<_> = [64, 100]
        .into_iter()
        .flat_map(|rows| cases.map(|(pos, tokens)| (pos, tokens, rows)))
        .collect();
    for (gpu, &(pos, tokens, rows)) in drawn_pairs(gpus(), &cases) {
        let case = Case::random(&mut rng, dims, pos, tokens);
        case.check_on(gpu, rows, &case.twin());
    }
}

#[test]
fn scores_far_beyond_the_range_of_exp_stay_finite() {
    let mut rng = Rng::fresh();
    let [_, dims, _] = shapes();
    // The second kind of query exceeds the range of f16.
    for step in [1000.0, -1e6] {
        Case::far(&mut rng, dims, step).check(64);
    }
}

#[test]
fn the_whole_list_of_dispatches_reads_weights_of_any_type() {
    let mut rng = Rng::fresh();
    let [.., dims] = shapes();
    let mla = dims.mla;
    let mut case = Case::random(&mut rng, dims, 100, 40);
    let k_b = random_weight(&mut rng, GgmlType::Q5_0, mla.heads, mla.kv_lora, mla.nope);
    let v_b = random_weight(&mut rng, GgmlType::Q6_K, mla.heads, dims.v, mla.kv_lora);
    let mut weights = vec![f32::NAN; case.weights.len()];
    expand_kv_weights(&k_b, &v_b, dims, &mut weights);
    // Rounded here, not by the kernels in f32: the same to 1e-7.
    case.weights = weights.iter().map(|w| f16::from_f32(*w)).collect();
    let exact = case.twin();
    for gpu in gpus() {
        let form = complete(Form::of(gpu, dims)).unwrap_or_else(|e| panic!("{e}"));
        let form = form.expect("sizes that suit");
        let weights = [&k_b, &v_b].map(|w| gpu_weights(gpu, &[w]).remove(0));
        let scratch = Scratch::new(gpu, dims, form, 40, 140);
        let cache = &case.cache[..140 * mla.cache_row()];
        let values = output(gpu, exact.len());
        let [k_b, v_b] = &weights;
        let mut calls = weights_calls(k_b, v_b, dims, form.is_matrix(), &scratch.weights);
        let attention = GpuPromptAttention {
            form,
            q: Range::whole(&upload(gpu, &case.q)),
            rope_table: Range::whole(&upload(gpu, &case.rope_table)),
            cache: Range::whole(&upload(gpu, cache)).holding(Role::Cache),
            sequences: None,
            dims,
            scale: case.scale,
            max_tokens: 40,
            scratch: &scratch,
            values: Range::whole(&values),
        };
        calls.extend(attention.calls(gpu));
        let state = State {
            pos: 100,
            tokens: 40,
            ..State::default()
        };
        run(gpu, &calls, &state);
        let found: Vec<f32> = download(gpu, &values, exact.len());
        let what = format!("{form:?} on {}", gpu.tier.name());
        assert_close(&found, &exact, MATRIX_LIMIT, &what);
    }
}

#[test]
fn the_trial_passes_where_there_are_matrices() {
    if metal::skips("a trial, which runs on the device") {
        return;
    }
    for gpu in gpus() {
        let Some(coop) = gpu.coop else {
            eprintln!("skipped: tier {} (no matrices)", gpu.tier.name());
            continue;
        };
        for dims in shapes() {
            let error = complete(trial::compared(gpu, dims, coop).nmse(gpu))
                .unwrap_or_else(|e| panic!("{e}"));
            eprintln!("{dims:?}: NMSE {error:.1e}");
            assert!(error <= trial::LIMIT / 4.0, "{dims:?}: {error:e}");
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn what_is_timed_is_an_attention_by_matrices_and_one_in_floats() {
    for gpu in gpus() {
        let trial = trial::timed(gpu, glm(), NVIDIA, 16);
        let calls = |matrices: bool, values: &Range| {
            let calls = (trial.calls)(matrices, values);
            let floats = (trial.calls)(false, values);
            assert_eq!(calls.len(), floats.len());
            // Matrices where there are some: they take long to emulate.
            if gpu.coop == Some(NVIDIA) {
                calls
            } else {
                floats
            }
        };
        let (state, values) = (trial.state, trial.values);
        let trial = coop::Trial {
            state,
            values,
            calls,
        };
        let us = complete(trial.times(gpu)).unwrap_or_else(|e| panic!("{e}"));
        assert!(us.iter().all(|us| *us > 0.0), "{us:?}");
    }
}

/// GLM-4.7-Flash with all its heads.
pub(super) fn glm() -> KvDims {
    let [glm, ..] = shapes();
    KvDims {
        mla: MlaDims {
            heads: 20,
            ..glm.mla
        },
        ..glm
    }
}

#[test]
fn scratch_depends_on_the_chunk_and_not_on_the_context() {
    for matrices in [false, true] {
        for (tokens, n_ctx, rows) in [
            (64, 1000, 1024),
            (64, 131_072, 2048),
            (2048, 131_072, 2048),
            (3000, 131_072, 3008),
        ] {
            let rows = if matrices && n_ctx > 4096 { 4096 } else { rows };
            let blocks = Scratch::blocks(Machine::H200, glm(), matrices, tokens, n_ctx, 1 << 40);
            assert_eq!(blocks.rows, rows, "{tokens} tokens, {n_ctx} rows");
            let bytes = Scratch::bytes(glm(), matrices, tokens, blocks);
            assert!(bytes.iter().all(|n| *n <= 128 << 20), "{bytes:?}");
        }
    }
    let blocks = Scratch::blocks(Machine::H200, glm(), true, 2048, 131_072, 16 << 20);
    assert_eq!(blocks.rows, 896, "what 16 MiB hold");
    let blocks = Scratch::blocks(Machine::H200, glm(), false, 4096, 131_072, 128 << 20);
    assert_eq!(blocks.rows, 3712, "what 128 MiB hold");
}

#[test]
fn few_tokens_late_in_a_context_are_left_to_the_absorbed_attention() {
    let coop = Coop {
        size: 16,
        lanes: 32,
    };
    for form in [Form::Vector, Form::Matrix(coop)] {
        let most = most_few(Machine::H200, glm(), form != Form::Vector) as usize;
        assert!((8..1000).contains(&most), "{most}");
        for pos in [0, 100, 4096, 131_000] {
            assert!(
                form.few(Machine::H200, glm(), pos, 1) && form.few(Machine::H200, glm(), pos, 8)
            );
            assert!(!form.few(Machine::H200, glm(), pos, most + 1));
        }
        assert!(form.few(Machine::H200, glm(), 130_000, most - 3));
        assert!(
            !form.few(Machine::H200, glm(), 0, 64),
            "a first chunk is expanded"
        );
    }
}
