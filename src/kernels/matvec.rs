//! Matrix times vector, for any weight and any number of tokens: the norm before and the residual after included.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::memory::GpuWeight;
use crate::gpu::shader::Variant;
use crate::quant::repack::shader_module;

use super::linear::{Batch, in_tasks, rms_norm_rows, rows_dot};
use super::rope_cache::Rotation;
use super::{LANES, MAX_GRID, WG, tokens_at_once};
use crate::model::Weight;

/// What surrounds a product: how the input lies, what happens to it first, what is added last.
#[derive(Debug, Clone, Copy)]
pub struct MatvecOptions<'a> {
    /// RMS norm of each input row first: its weight (cols) and epsilon. Only for weights of one group.
    pub norm: Option<(&'a [f32], f32)>,
    /// Added to the output, (T, groups * rows).
    pub residual: Option<&'a [f32]>,
    /// Floats from one token's input to the next.
    pub x_stride: usize,
    /// Floats from one group's input to the next: 0 where all groups read the same.
    pub x_group_stride: usize,
}

impl<'a> MatvecOptions<'a> {
    /// The input is (T, cols), nothing before, nothing after.
    pub fn contiguous(cols: usize) -> Self {
        Self::per_group(cols, 0)
    }

    /// The input is (T, stride), and group g (a head) reads `cols` values from `g * group_stride` on.
    pub fn per_group(stride: usize, group_stride: usize) -> Self {
        MatvecOptions {
            norm: None,
            residual: None,
            x_stride: stride,
            x_group_stride: group_stride,
        }
    }

    /// The same with an RMS norm of the input.
    pub fn with_norm(self, weight: &'a [f32], eps: f32) -> Self {
        MatvecOptions {
            norm: Some((weight, eps)),
            ..self
        }
    }

    /// The same with `residual` (T, groups * rows) added.
    pub fn with_residual(self, residual: &'a [f32]) -> Self {
        MatvecOptions {
            residual: Some(residual),
            ..self
        }
    }
}

/// `out` (T, groups * rows): out\[t\]\[g\]\[r\] = w\[g\]\[r\] . norm(x\[t * x_stride + g * x_group_stride ..\]\[..cols\]) + residual.
///
/// # Panics
/// If a size does not fit the others: sizes come from a checked [`Model`](crate::models::Model), never from input.
pub fn matvec(w: &Weight, x: &[f32], n_tokens: usize, options: MatvecOptions<'_>, out: &mut [f32]) {
    let rows = w.groups * w.rows;
    assert_eq!(
        out.len(),
        n_tokens * rows,
        "output of {} for {n_tokens} tokens",
        w.name
    );
    if n_tokens == 0 {
        return;
    }
    let normed;
    let (x, stride) = match options.norm {
        None => (x, options.x_stride),
        Some((weight, eps)) => {
            assert_eq!(
                (w.groups, options.x_stride),
                (1, w.cols),
                "norm before {}: one contiguous input",
                w.name
            );
            normed = rms_norm_rows(&x[..n_tokens * w.cols], weight, eps);
            (normed.as_slice(), w.cols)
        }
    };

    let tokens = 0..n_tokens;
    let batch = |group: usize| {
        let input = |t: usize| &x[t * stride + group * options.x_group_stride..][..w.cols];
        Batch {
            group,
            inputs: tokens.clone().map(input).collect(),
            places: tokens.clone().map(|t| t * rows + group * w.rows).collect(),
        }
    };
    let batches: Vec<_> = (0..w.groups).map(batch).collect();
    in_tasks(&batches, [w.rows, w.cols], out, |batch, rows| {
        rows_dot(w, batch.group, rows, &batch.inputs)
    });
    if let Some(residual) = options.residual {
        assert_eq!(residual.len(), out.len(), "residual of {}", w.name);
        out.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
    }
}

/// A product on the device: the buffers of [`matvec`] and how they lie.
pub struct GpuMatvec<'a> {
    /// W, (groups, rows, cols).
    pub weight: &'a GpuWeight,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// The input, f32.
    pub x: Range,
    /// The first float of the input.
    pub x_offset: Word,
    /// Floats from one token's input to the next.
    pub x_stride: u32,
    /// Floats from one group's input to the next.
    pub x_group_stride: u32,
    /// RMS norm before: its weight (cols) and epsilon.
    pub norm: Option<(Range, f32)>,
    /// Added to the output, (max_tokens, groups * rows).
    pub residual: Option<Range>,
    /// The output, (max_tokens, groups * rows).
    pub y: Range,
    /// Tokens of a replay: [`Word::Tokens`], or [`Word::U`] of 1 for the last token only.
    pub tokens: Word,
}

impl GpuMatvec<'_> {
    /// The dispatches: one per piece of the weight.
    pub fn calls(&self) -> Vec<Call> {
        self.with_rotation(None)
    }

    /// The dispatches for one token, with a norm, whose output is rotated.
    ///
    /// # Panics
    /// If the rows to rotate are not whole heads, or there is no norm, or more than one token. A replay's position must be in the
    /// table.
    pub fn rotated_calls(&self, rotation: &Rotation) -> Vec<Call> {
        rotation.check(self.weight.total_rows(), &self.weight.name);
        assert!(
            self.norm.is_some() && self.max_tokens == 1 && self.weight.groups == 1,
            "{}: rotation of one token after a norm",
            self.weight.name
        );
        self.with_rotation(Some(rotation))
    }

    fn with_rotation(&self, rotation: Option<&Rotation>) -> Vec<Call> {
        let w = self.weight;
        let cols_at_once = tokens_at_once(self.max_tokens);
        let groups = w.groups > 1;
        let mut variant = Variant::default();
        // Weights of one group share a pipeline, whatever their number of rows.
        if groups {
            variant = variant.number("ROWS_PER_GROUP", w.rows);
        }
        let quarter = |floats: Word| match floats {
            Word::U(n) => Word::U(n / 4),
            Word::LastTokenTimes(n) => Word::LastTokenTimes(n / 4),
            other => other,
        };
        w.pieces
            .iter()
            .map(|piece| {
                let tiles = piece.rows.div_ceil(WG / LANES);
                let row_tiles = tiles.min(MAX_GRID);
                if rotation.is_some() {
                    assert!(piece.first_row.is_multiple_of(2), "pairs of {}", w.name);
                }
                let along_tokens = match self.tokens {
                    Word::Tokens => Extent::TokensBy(cols_at_once),
                    _ => Extent::N(1),
                };
                let grid = [
                    Extent::N(row_tiles),
                    Extent::N(tiles.div_ceil(row_tiles)),
                    along_tokens,
                ];
                let products = 2 * u64::from(piece.rows) * u64::from(w.cols);
                let flops = match self.tokens {
                    Word::Tokens => super::per_token(products),
                    _ => super::once(products),
                };
                let call = Call::new("matvec")
                    .variant(variant.clone())
                    .module("WEIGHT", shader_module(w.ty))
                    .number("WG", WG)
                    .number("LANES", LANES)
                    .number("COLS", cols_at_once)
                    .planes(["w_q", "w_s"], piece)
                    .bind("x", &self.x)
                    .bind("y", &self.y)
                    .bind_some("norm", self.norm.as_ref().map(|norm| &norm.0))
                    .bind_some("residual", self.residual.as_ref())
                    .word("rows", piece.rows)
                    .word("first_row", piece.first_row)
                    .word("units", w.cols / 32)
                    .word("sub", piece.sub)
                    .word("tokens", self.tokens)
                    .word("x_offset", quarter(self.x_offset))
                    .word("x_stride", self.x_stride / 4)
                    .word_some("x_group_stride", groups.then_some(self.x_group_stride / 4))
                    .word("out_stride", w.total_rows())
                    .word("row_tiles", row_tiles)
                    .word_some("eps", self.norm.as_ref().map(|norm| norm.1))
                    .grid(grid)
                    .with_bytes(piece.quants.size + piece.scales.size)
                    .with_flops(flops)
                    .with_shape(w.shape());
                match rotation {
                    Some(rotation) => rotation.bind(call),
                    None => call,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::testing::{assert_refused, unmade_weight};
    use crate::gpu::testing::{download, gpu_weight, gpus, output, padded, run, upload};
    use crate::gpu::{Gpu, GpuOptions, Most, Step, Tier};
    use crate::kernels::linear::rms_norm;
    use crate::kernels::rope_cache::rotate_rows;
    use crate::kernels::testing::{Rng, assert_close, exact_rows, random_weight};
    use crate::quant::GgmlType;

    #[test]
    fn plain_product_with_norm_and_residual() {
        let mut rng = Rng::fresh();
        for (ty, rows, cols, n_tokens) in [
            (GgmlType::Q4_K, 301, 512, 3),
            (GgmlType::Q8_0, 5, 96, 1),
            (GgmlType::F32, 64, 32, 17),
        ] {
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
            let residual = rng.normals(n_tokens * rows);
            let mut out = vec![f32::NAN; n_tokens * rows];
            let options = MatvecOptions::contiguous(cols)
                .with_norm(&norm, 1e-6)
                .with_residual(&residual);
            matvec(&w, &x, n_tokens, options, &mut out);
            for t in 0..n_tokens {
                let input = rms_norm(&x[t * cols..][..cols], &norm, 1e-6);
                let exact: Vec<f64> = exact_rows(&w, 0, &input)
                    .iter()
                    .zip(&residual[t * rows..])
                    .map(|(y, r)| y + f64::from(*r))
                    .collect();
                assert_close(&out[t * rows..][..rows], &exact, 1e-12, "token");
            }
        }
    }

    #[test]
    fn each_head_reads_its_own_slice() {
        let mut rng = Rng::fresh();
        // Heads of nope 64 + rope 32: only the first 64 of each 96 are multiplied.
        let (heads, rows, cols, head, n_tokens) = (3, 80, 64, 96, 4);
        let w = random_weight(&mut rng, GgmlType::Q5_0, heads, rows, cols);
        let x = rng.normals(n_tokens * heads * head);
        let mut out = vec![f32::NAN; n_tokens * heads * rows];
        matvec(
            &w,
            &x,
            n_tokens,
            MatvecOptions::per_group(heads * head, head),
            &mut out,
        );
        for t in 0..n_tokens {
            for h in 0..heads {
                let exact = exact_rows(&w, h, &x[(t * heads + h) * head..][..cols]);
                assert_close(
                    &out[(t * heads + h) * rows..][..rows],
                    &exact,
                    1e-12,
                    "head",
                );
            }
        }
    }

    #[test]
    fn a_batch_has_the_bits_of_single_tokens() {
        let mut rng = Rng::fresh();
        let w = random_weight(&mut rng, GgmlType::Q4_0, 1, 130, 288);
        let x = rng.normals(6 * 288);
        let mut batch = vec![0.0; 6 * 130];
        matvec(&w, &x, 6, MatvecOptions::contiguous(288), &mut batch);
        for t in 0..6 {
            let mut one = vec![0.0; 130];
            matvec(
                &w,
                &x[t * 288..][..288],
                1,
                MatvecOptions::contiguous(288),
                &mut one,
            );
            assert_eq!(one, batch[t * 130..][..130]);
        }
    }

    /// Sums of up to 11264 products in f32, in another order than the twin's.
    const GPU_NMSE: f64 = 1e-11;

    fn exact(values: &[f32]) -> Vec<f64> {
        values.iter().map(|v| f64::from(*v)).collect()
    }

    fn on_gpu(
        gpu: &Gpu,
        w: &Weight,
        x: &[f32],
        n_tokens: usize,
        max_tokens: u32,
        options: MatvecOptions<'_>,
    ) -> Vec<f32> {
        let weight = gpu_weight(gpu, w);
        let (x, y) = (
            padded(x, options.x_stride, max_tokens),
            max_tokens as usize * w.groups * w.rows,
        );
        let out = output(gpu, y);
        let range = |data: &[f32]| Range::whole(&upload(gpu, data));
        let call = GpuMatvec {
            weight: &weight,
            max_tokens,
            x: range(&x),
            x_offset: Word::U(0),
            x_stride: options.x_stride as u32,
            x_group_stride: options.x_group_stride as u32,
            norm: options.norm.map(|(norm, eps)| (range(norm), eps)),
            residual: options
                .residual
                .map(|r| range(&padded(r, w.groups * w.rows, max_tokens))),
            y: Range::whole(&out),
            tokens: Word::Tokens,
        };
        run(
            gpu,
            &call.calls(),
            &State {
                tokens: n_tokens as u32,
                ..State::default()
            },
        );
        download(gpu, &out, n_tokens * w.groups * w.rows)
    }

    #[test]
    fn the_gpu_agrees_for_every_type() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for (i, &ty) in GgmlType::ALL.iter().enumerate() {
                for (j, (n_tokens, max_tokens)) in
                    [(1, 1), (3, 64), (9, 64)].into_iter().enumerate()
                {
                    let (rows, cols) = (131, 768);
                    let w = random_weight(&mut rng, ty, 1, rows, cols);
                    let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
                    let residual = rng.normals(n_tokens * rows);
                    let with_norm = MatvecOptions::contiguous(cols).with_norm(&norm, 1e-5);
                    // Each type has each of these, with one of the numbers of tokens.
                    let options = [
                        with_norm,
                        MatvecOptions::contiguous(cols).with_residual(&residual),
                        with_norm.with_residual(&residual),
                    ][(i + j) % 3];
                    let mut twin = vec![0.0; n_tokens * rows];
                    matvec(&w, &x, n_tokens, options, &mut twin);
                    let found = on_gpu(gpu, &w, &x, n_tokens, max_tokens, options);
                    let what = format!("{} {} {n_tokens} tokens", gpu.tier.name(), ty.name());
                    assert_close(&found, &exact(&twin), GPU_NMSE, &what);
                }
            }
        }
    }

    #[test]
    fn the_gpu_agrees_at_the_shapes_of_the_models() {
        let mut rng = Rng::fresh();
        // (type, groups, rows, cols, floats between groups): GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B.
        for (ty, groups, rows, cols, head) in [
            (GgmlType::Q4_0, 1, 576, 2048, 0),
            (GgmlType::Q4_K, 1, 5120, 768, 0),
            (GgmlType::Q5_0, 20, 512, 192, 256),
            (GgmlType::Q8_0, 16, 512, 128, 192),
            (GgmlType::Q4_0, 20, 256, 512, 512),
            (GgmlType::Q6_K, 1, 67, 10240, 0),
            (GgmlType::Q5_0, 1, 35, 10944, 0),
            (GgmlType::F32, 1, 64, 2048, 0),
        ] {
            let w = random_weight(&mut rng, ty, groups, rows, cols);
            let stride = if groups == 1 { cols } else { groups * head };
            for n_tokens in [1, 2] {
                let x = rng.normals(n_tokens * stride);
                let options = MatvecOptions::per_group(stride, head);
                let mut twin = vec![0.0; n_tokens * groups * rows];
                matvec(&w, &x, n_tokens, options, &mut twin);
                for gpu in gpus() {
                    let max_tokens = if n_tokens == 1 { 1 } else { 8 };
                    let found = on_gpu(gpu, &w, &x, n_tokens, max_tokens, options);
                    let what = format!(
                        "{} {} {groups} x {rows} x {cols}",
                        gpu.tier.name(),
                        ty.name()
                    );
                    assert_close(&found, &exact(&twin), GPU_NMSE, &what);
                }
            }
        }
    }

    #[test]
    fn queries_leave_rotated() {
        let mut rng = Rng::fresh();
        // Composed queries of GLM-4.7-Flash and DeepSeek-V2-Lite cut down in heads, and heads that are no power of two.
        for (ty, first_row, rope, rows, cols) in [
            (GgmlType::Q8_0, 3 * 512, 64, 3 * 576, 768),
            (GgmlType::Q8_0, 512, 64, 576, 2048),
            (GgmlType::F16, 90, 20, 150, 96),
        ] {
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let (x, norm) = (rng.normals(cols), rng.normals(cols));
            let (pos, n_ctx) = (rng.below(7), 7);
            let table = rng.normals(n_ctx * rope);
            let mut twin = vec![0.0; rows];
            let options = MatvecOptions::contiguous(cols).with_norm(&norm, 1e-5);
            matvec(&w, &x, 1, options, &mut twin);
            let (angles, _) = table[pos * rope..][..rope].as_chunks();
            rotate_rows(&mut twin, first_row, rope, angles);
            for gpu in gpus() {
                let weight = gpu_weight(gpu, &w);
                let out = output(gpu, rows);
                let range = |data: &[f32]| Range::whole(&upload(gpu, data));
                let call = GpuMatvec {
                    weight: &weight,
                    max_tokens: 1,
                    x: range(&x),
                    x_offset: Word::U(0),
                    x_stride: cols as u32,
                    x_group_stride: 0,
                    norm: Some((range(&norm), 1e-5)),
                    residual: None,
                    y: Range::whole(&out),
                    tokens: Word::Tokens,
                };
                let rotation = Rotation {
                    table: range(&table),
                    first_row: first_row as u32,
                    rope: rope as u32,
                };
                let state = State {
                    pos: pos as u32,
                    tokens: 1,
                    ..State::default()
                };
                run(gpu, &call.rotated_calls(&rotation), &state);
                let what = format!("{} {rows} x {cols}", gpu.tier.name());
                assert_close(&download(gpu, &out, rows), &exact(&twin), GPU_NMSE, &what);
            }
        }
    }

    #[test]
    fn a_weight_larger_than_a_binding_is_cut_into_rows() {
        let mut rng = Rng::fresh();
        for tier in Tier::ALL {
            let options = GpuOptions {
                tier: Some(tier),
                max_binding: Some(100_000),
                ..Default::default()
            };
            let Ok(gpu) = Gpu::open(&options) else {
                continue;
            };
            let w = random_weight(&mut rng, GgmlType::Q6_K, 1, 1003, 512);
            assert!(gpu_weight(&gpu, &w).pieces.len() > 2);
            let x = rng.normals(512);
            let mut twin = vec![0.0; 1003];
            matvec(&w, &x, 1, MatvecOptions::contiguous(512), &mut twin);
            let found = on_gpu(&gpu, &w, &x, 1, 1, MatvecOptions::contiguous(512));
            assert_close(&found, &exact(&twin), GPU_NMSE, tier.name());
        }
    }

    #[test]
    fn buffers_that_are_too_small_are_refused() {
        let weight = unmade_weight(GgmlType::Q6_K, 2, 40, 256);
        let call = |[x, y, residual]: [u64; 3], x_offset| {
            GpuMatvec {
                weight: &weight,
                max_tokens: 3,
                x: Range::floats("x", x),
                x_offset,
                x_stride: 512,
                x_group_stride: 256,
                norm: None,
                residual: Some(Range::floats("residual", residual)),
                y: Range::floats("y", y),
                tokens: Word::Tokens,
            }
            .calls()
        };
        let (x, y, first) = (3 * 512, 3 * 80, Word::U(0));
        let fits = Step::of(Most::token(3), call([512, 80, 80], first));
        fits.resolve().unwrap_or_else(|e| panic!("{e}"));
        assert_refused(&call([x - 4, y, y], first), 3, "matvec", "x");
        assert_refused(&call([x, y, y], Word::U(4)), 3, "matvec", "x");
        assert_refused(&call([x, y - 4, y], first), 3, "matvec", "y");
        assert_refused(&call([x, y, y - 4], first), 3, "matvec", "residual");
    }
}
