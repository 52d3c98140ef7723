//! The kernels of a decoded token, whose products prepare their outputs, but for those of experts.

use super::lab::{Compared, Lab, state};
use super::prepared::{self, Normed, compared, form, limit, limit_of_rounded, room, stand_for};
use super::{DIMS, EPS, TYPES};
use crate::gpu::GpuError;
use crate::gpu::buffer::Role;
use crate::gpu::call::State;
use crate::kernels::attention::partial_bytes;
use crate::kernels::attention_merge::attention_merge;
use crate::kernels::products::{MatvecOptions, matvec};
use crate::kernels::rope_cache::{CacheRow, Rotation, rope_cache, rotate_rows};
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_absorb::{self, GpuTokenAbsorb};
use crate::kernels::token_beside::{GpuTokenBeside, token_beside};
use crate::kernels::token_embed::{self, token_embed};
use crate::kernels::token_matvec::{
    GpuTokenMatvec, Input, PartialLogits, ROUTER_ROWS, leaves_partial_logits, token_matvec,
};
use crate::kernels::token_queries::{GpuTokenQueries, token_queries};
use crate::kernels::token_router::{GpuTokenRouter, token_router};
use crate::quant::GgmlType;
use half::f16;

pub(super) fn embed(lab: &mut Lab<'_>) {
    let (rows, cols, pos) = (37, 512, 3);
    lab.check(format!("q6_k {rows}x{cols}"), |lab| {
        let w = lab.weight(GgmlType::Q6_K, [1, rows, cols]);
        let norm = lab.normals(cols);
        let history: Vec<u32> = (0..8).map(|_| lab.below(rows) as u32).collect();
        let (x, ..) = token_embed(&w, history[pos], &norm);
        let (y, left) = (lab.room(cols), room(lab, cols, Some(&norm)));
        let weight = &lab.load(&[&w])?[0];
        let ids = lab.given(&history);
        let calls = token_embed::calls(None, weight, &ids, &y, &left, form(lab));
        lab.run(calls, state(1, pos))?;
        let mut all = compared(lab, &left, Some(&norm), &x)?;
        all.push(lab.floats(&y, &x, 1e-12)?);
        Ok(all)
    });
}

pub(super) fn products(lab: &mut Lab<'_>) {
    for ty in TYPES {
        product(lab, ty);
    }
    heads(lab);
    rotated(lab);
    stream(lab);
    partial_logits(lab);
}

/// With a norm before it and a residual after it, left prepared and in f32.
fn product(lab: &mut Lab<'_>, ty: GgmlType) {
    let (rows, cols) = (160, 768);
    lab.check(format!("{ty} {rows}x{cols}"), |lab| {
        let w = lab.weight(ty, [1, rows, cols]);
        let x = Normed::new(lab, 1, cols);
        let (before, g) = (lab.normals(rows), lab.normals(rows));
        let twin = token_matvec(&w, &x.values, 0, Some(x.rms()), Some(&before));
        let (y, left) = (lab.room(rows), room(lab, rows, Some(&g)));
        let weight = &lab.load(&[&w])?[0];
        let product = GpuTokenMatvec::new(weight, form(lab), Input::Prepared(x.input(lab), 0))
            .bind("residual", &lab.given(&before))
            .bind("y", &y)
            .prepared(left.clone());
        lab.run(product.calls(lab.gpu)?, state(1, 0))?;
        let mut all = compared(lab, &left, Some(&g), &twin)?;
        all.push(lab.floats(&y, &twin, limit(form(lab)))?);
        Ok(all)
    });
}

/// Of heads, each with an input of its own.
fn heads(lab: &mut Lab<'_>) {
    let (groups, rows, cols, units) = (4, 128, 64, 4);
    lab.check(format!("q5_0 {groups}x{rows}x{cols}"), |lab| {
        let w = lab.weight(GgmlType::Q5_0, [groups, rows, cols]);
        let given = lab.normals(groups * units * 32);
        let values = stand_for(form(lab), &given);
        let twin = token_matvec(&w, &values, units, None, None);
        let y = lab.room(twin.len());
        let weight = &lab.load(&[&w])?[0];
        let input = TokenInput::of(prepared::given(lab, &given));
        let x = Input::Prepared(input, units as u32);
        let product = GpuTokenMatvec::new(weight, form(lab), x).bind("y", &y);
        lab.run(product.calls(lab.gpu)?, state(1, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit(form(lab)))?])
    });
}

/// With rotated rows behind the others.
fn rotated(lab: &mut Lab<'_>) {
    let (rows, first, rope, cols, pos, n_ctx) = (576, 448, 64, 256, 5, 7);
    lab.check(format!("q8_0 {rows}x{cols}, rotated"), |lab| {
        let w = lab.weight(GgmlType::Q8_0, [1, rows, cols]);
        let x = Normed::new(lab, 1, cols);
        let table = lab.normals(n_ctx * rope);
        let mut twin = token_matvec(&w, &x.values, 0, Some(x.rms()), None);
        let (angles, _) = table[pos * rope..][..rope].as_chunks();
        rotate_rows(&mut twin, first, rope, angles);
        let y = lab.room(rows);
        let weight = &lab.load(&[&w])?[0];
        let rotation = Rotation {
            table: lab.given(&table),
            first_row: first as u32,
            rope: rope as u32,
        };
        let product = GpuTokenMatvec::new(weight, form(lab), Input::Prepared(x.input(lab), 0))
            .bind("y", &y)
            .rotated(rotation);
        lab.run(product.calls(lab.gpu)?, state(1, pos))?;
        Ok(vec![lab.floats(&y, &twin, limit(form(lab)))?])
    });
}

/// Of the residual stream itself, in f32.
fn stream(lab: &mut Lab<'_>) {
    let (rows, cols) = (64, 512);
    lab.check(format!("f32 {rows}x{cols}, from the stream"), |lab| {
        let w = lab.weight(GgmlType::F32, [1, rows, cols]);
        let Normed {
            x, norm, squares, ..
        } = Normed::new(lab, 1, cols);
        let mut twin = vec![0.0; rows];
        let options = MatvecOptions::contiguous(cols).with_norm(&norm, EPS);
        matvec(&w, &x, 1, options, &mut twin);
        let y = lab.room(rows);
        let [x, norm, squares] = [x, norm, squares].map(|data| lab.given(&data));
        let weight = &lab.load(&[&w])?[0];
        let input = Input::Stream(x, norm, squares, EPS);
        let product = GpuTokenMatvec::new(weight, form(lab), input).bind("y", &y);
        lab.run(product.calls(lab.gpu)?, state(1, 0))?;
        Ok(vec![lab.floats(&y, &twin, 1e-10)?])
    });
}

/// With the experts' logits as partial sums beside the output.
fn partial_logits(lab: &mut Lab<'_>) {
    let (experts, rows, cols) = (64, 512, 256);
    lab.check(
        format!("q4_0 {rows}x{cols}, logits of {experts} experts"),
        |lab| {
            let w = lab.weight(GgmlType::Q4_0, [1, rows, cols]);
            let router = lab.weight(GgmlType::F32, [1, experts, rows]);
            let (x, before, g) = (lab.normals(cols), lab.normals(rows), lab.normals(rows));
            let twin = token_matvec(&w, &stand_for(form(lab), &x), 0, None, Some(&before));
            let of_rows = |first: usize| {
                let mut own = vec![0.0; rows];
                for row in first..first + ROUTER_ROWS as usize {
                    own[row] = twin[row] * g[row];
                }
                token_matvec(&router, &own, 0, None, None)
            };
            let sums = (0..rows).step_by(ROUTER_ROWS as usize).flat_map(of_rows);
            let sums: Vec<f32> = sums.collect();
            let (left, logits) = (room(lab, rows, Some(&g)), lab.room(sums.len()));
            let weight = &lab.load(&[&w])?[0];
            let router = &lab.load(&[&router])?[0];
            let input = TokenInput::of(prepared::given(lab, &x));
            let mut product = GpuTokenMatvec::new(weight, form(lab), Input::Prepared(input, 0))
                .bind("residual", &lab.given(&before))
                .prepared(left.clone());
            let geometry = lab.gpu.geometry(&product.site());
            let tile = geometry.map(|geometry| geometry.tile);
            let fits =
                tile.is_some_and(|tile| leaves_partial_logits(lab.gpu.machine, router, tile));
            product.router = fits.then(|| PartialLogits {
                weight: router,
                logits: logits.clone(),
            });
            lab.run(product.calls(lab.gpu)?, state(1, 0))?;
            let mut all = compared(lab, &left, Some(&g), &twin)?;
            if fits {
                all.push(lab.floats(&logits, &sums, limit(form(lab)))?);
            }
            Ok(all)
        },
    );
}

pub(super) fn beside(lab: &mut Lab<'_>) {
    let (rows, cols) = ([256, 99], 512);
    lab.check(
        format!("q4_k {}x{cols}, q8_0 {}x{cols}", rows[0], rows[1]),
        |lab| {
            let w = lab.weight(GgmlType::Q4_K, [1, rows[0], cols]);
            let v = lab.weight(GgmlType::Q8_0, [1, rows[1], cols]);
            let x = Normed::new(lab, 1, cols);
            let twin = token_beside([&w, &v], &x.values, x.rms());
            let g = lab.normals(rows[0]);
            let [w, v] = [lab.load(&[&w])?.remove(0), lab.load(&[&v])?.remove(0)];
            let (y, z) = (lab.room(rows[0]), lab.room(rows[1]));
            let left = room(lab, rows[0], Some(&g));
            let call = GpuTokenBeside {
                weights: [&w, &v],
                activation: form(lab),
                x: x.input(lab),
                y: Some(y.clone()),
                prepared: Some(left.clone()),
                z: z.clone(),
            };
            lab.run(call.calls(lab.gpu)?, state(1, 0))?;
            let mut all = compared(lab, &left, Some(&g), &twin[0])?;
            all.push(lab.floats(&y, &twin[0], limit(form(lab)))?);
            all.push(lab.floats(&z, &twin[1], limit(form(lab)))?);
            Ok(all)
        },
    );
}

/// The new row of a cache of `ROWS` rows, and what it is made of.
struct Row {
    kv_a: Vec<f32>,
    norm: Vec<f32>,
    /// Cosines and sines, (rows, rope / 2).
    table: Vec<f32>,
}

const ROWS: usize = 7;
const POS: usize = 5;

impl Row {
    fn new(lab: &Lab<'_>) -> Self {
        Self {
            kv_a: lab.normals(DIMS.cache_row()),
            norm: lab.normals(DIMS.kv_lora),
            table: lab.normals(ROWS * DIMS.rope),
        }
    }

    fn angles(&self) -> &[[f32; 2]] {
        self.table[POS * DIMS.rope..][..DIMS.rope].as_chunks().0
    }

    /// On the device, with a cache of zeros.
    fn given(&self, lab: &Lab<'_>) -> CacheRow {
        CacheRow {
            kv_a: lab.given(&self.kv_a),
            kv_a_norm: lab.given(&self.norm),
            eps: EPS,
            cache: lab
                .given(&vec![f16::ZERO; ROWS * DIMS.cache_row()])
                .holding(Role::Cache),
        }
    }

    /// The whole cache afterwards.
    fn twin(&self) -> Vec<f32> {
        let (table, _) = self.table.as_chunks();
        let q = vec![0.0; DIMS.heads * DIMS.head()];
        let mut q_pe = vec![0.0; DIMS.heads * DIMS.rope];
        let mut cache = vec![f16::ZERO; ROWS * DIMS.cache_row()];
        rope_cache(
            &q, &self.kv_a, &self.norm, EPS, table, POS, DIMS, &mut q_pe, &mut cache,
        );
        cache.into_iter().map(f16::to_f32).collect()
    }

    fn compared(&self, lab: &Lab<'_>, found: &CacheRow) -> Result<Compared, GpuError> {
        let twin = self.twin();
        let found: Vec<f16> = lab.read(&found.cache, twin.len())?;
        let found: Vec<f32> = found.into_iter().map(f16::to_f32).collect();
        // WGSL leaves the rounding to f16 open.
        Ok(Compared::new(&found, &twin, 1e-6))
    }
}

/// The queries of a token and its row of the cache: in one dispatch from the latent of the query, and from queries that are there.
pub(super) fn queries(lab: &mut Lab<'_>) {
    absorbed(lab);
    lab.check("q5_0, 16 heads", |lab| {
        let k_b = lab.weight(GgmlType::Q5_0, [DIMS.heads, DIMS.kv_lora, DIMS.nope]);
        let q = lab.normals(DIMS.heads * DIMS.head());
        let row = Row::new(lab);
        let keep = |q: &[f32]| stand_for(form(lab), q);
        let of_row = (&row.kv_a[..], &row.norm[..], EPS);
        let ([q_lat, q_pe], _) = token_queries(&k_b, &q, of_row, row.angles(), DIMS, keep);
        let call = GpuTokenQueries {
            k_b: &lab.load(&[&k_b])?[0],
            activation: form(lab),
            q: lab.given(&q),
            values: prepared::given(lab, &q),
            rope_table: lab.given(&row.table),
            dims: DIMS,
            q_lat: lab.room(q_lat.len()),
            q_pe: lab.room(q_pe.len()),
            row: row.given(lab),
            sequences: None,
        };
        lab.run(call.calls(lab.gpu)?, state(1, POS))?;
        Ok(vec![
            lab.floats(&call.q_lat, &q_lat, limit(form(lab)))?,
            lab.floats(&call.q_pe, &q_pe, 1e-10)?,
            row.compared(lab, &call.row)?,
        ])
    });
}

fn absorbed(lab: &mut Lab<'_>) {
    let cols = 256;
    lab.check(format!("q4_0, q8_0, 16 heads of {cols} columns"), |lab| {
        let q_b = lab.weight(GgmlType::Q4_0, [1, DIMS.heads * DIMS.head(), cols]);
        let k_b = lab.weight(GgmlType::Q8_0, [DIMS.heads, DIMS.kv_lora, DIMS.nope]);
        let x = Normed::new(lab, 1, cols);
        let row = Row::new(lab);
        let keep = |q: &[f32]| stand_for(form(lab), q);
        let weights = [&q_b, &k_b];
        let rms = Some(x.rms());
        let twin = token_absorb::token_absorb(weights, &x.values, rms, row.angles(), DIMS, keep);
        let [q_b, k_b] = [lab.load(&[&q_b])?.remove(0), lab.load(&[&k_b])?.remove(0)];
        let new_row = row.given(lab);
        let call = GpuTokenAbsorb {
            q_b: &q_b,
            k_b: &k_b,
            activation: form(lab),
            x: x.input(lab),
            rope_table: lab.given(&row.table),
            dims: DIMS,
            q_lat: lab.room(twin[0].len()),
            q_pe: lab.room(twin[1].len()),
            row: Some(new_row.clone()),
            sequences: None,
            tokens: 1,
        };
        lab.run(vec![call.call(lab.gpu.machine)], state(1, POS))?;
        Ok(vec![
            lab.floats(&call.q_lat, &twin[0], limit_of_rounded(form(lab)))?,
            lab.floats(&call.q_pe, &twin[1], limit(form(lab)))?,
            row.compared(lab, &new_row)?,
        ])
    });
}

/// `attn_v_b` over the slices that the attention left.
pub(super) fn values(lab: &mut Lab<'_>) {
    let (rows, slices) = (128, 5);
    lab.check(format!("q4_0 16x{rows}x512, {slices} slices"), |lab| {
        let (heads, width) = (DIMS.heads, DIMS.kv_lora);
        let w = lab.weight(GgmlType::Q4_0, [heads, rows, width]);
        let mut sums = lab.normals(heads * slices * width);
        let scores = lab.normals(heads * slices);
        let stat = |score: &f32| [score * 4.0, 0.5 + score.abs()];
        let mut stats: Vec<[f32; 2]> = scores.iter().map(stat).collect();
        let mut latent = vec![0.0; heads * width];
        attention_merge(&sums, &stats, slices, width, &mut latent);
        let latent = stand_for(form(lab), &latent);
        let twin = token_matvec(&w, &latent, width / 32, None, None);
        let [bytes, pairs] = partial_bytes(DIMS, 1).map(|bytes| bytes as usize);
        sums.resize(bytes / 4, f32::NAN);
        stats.resize(pairs / 8, [f32::NAN; 2]);
        let partials = [lab.given(&sums), lab.given(stats.as_flattened())];
        let (y, left) = (lab.room(twin.len()), room(lab, twin.len(), None));
        let weight = &lab.load(&[&w])?[0];
        let product = GpuTokenMatvec::new(weight, form(lab), Input::Slices(partials, DIMS))
            .bind("y", &y)
            .prepared(left.clone());
        let state = State {
            slices: slices as u32,
            ..state(1, 0)
        };
        lab.run(product.calls(lab.gpu)?, state)?;
        let found: Vec<f32> = lab.read(&y, twin.len())?;
        let mut all = compared(lab, &left, None, &found)?;
        all.push(lab.floats(&y, &twin, limit_of_rounded(form(lab)))?);
        Ok(all)
    });
}

/// The logits of the experts.
pub(super) fn router(lab: &mut Lab<'_>) {
    let (rows, cols) = (64, 2048);
    lab.check(format!("f32 {rows}x{cols}"), |lab| {
        let w = lab.weight(GgmlType::F32, [1, rows, cols]);
        let x = Normed::new(lab, 1, cols);
        let weighted: Vec<f32> = x.x.iter().zip(&x.norm).map(|(x, g)| x * g).collect();
        let twin = token_router(&w, &weighted, &x.squares, EPS);
        let y = lab.room(rows);
        let call = GpuTokenRouter {
            weight: &lab.load(&[&w])?[0],
            x: lab.given(&x.x),
            norm: Some(lab.given(&x.norm)),
            squares: lab.given(&x.squares),
            eps: EPS,
            y: y.clone(),
        };
        lab.run(call.calls(), state(1, 0))?;
        Ok(vec![lab.floats(&y, &twin, 1e-10)?])
    });
}
