//! The kernels of a decoded token, whose products prepare their outputs, but for those of experts. Some also run in steps of a few tokens,
//! each with its own position and slices.

use super::attention::{given_slices, random_slices};
use super::lab::{Compared, Lab, state, wide};
use super::prepared::{self, Normed, compared, form, limit, limit_of_rounded, room, stand_for};
use super::{DIMS, EPS, TYPES};
use crate::gpu::buffer::Role;
use crate::gpu::call::State;
use crate::gpu::{GpuError, Most};
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::attention_merge::attention_merge;
use crate::kernels::products::{MatvecOptions, matvec};
use crate::kernels::rope_cache::{CacheRow, rope_cache};
use crate::kernels::sequences::{PAGE, Record, Sequences};
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_absorb::{GpuTokenAbsorb, token_absorb};
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
        let (values, rms) = x.token(0);
        let twin = token_matvec(&w, values, 0, Some(rms), Some(&before));
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
    let case = format!("q4_0 {rows}x{cols}, logits of {experts} experts");
    lab.check(case, |lab| {
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
        let fits = tile.is_some_and(|tile| leaves_partial_logits(lab.gpu.machine, router, tile));
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
    });
}

pub(super) fn beside(lab: &mut Lab<'_>) {
    let (rows, cols) = ([256, 99], 512);
    let case = format!("q4_k {}x{cols}, q8_0 {}x{cols}", rows[0], rows[1]);
    lab.check(case, |lab| {
        let w = lab.weight(GgmlType::Q4_K, [1, rows[0], cols]);
        let v = lab.weight(GgmlType::Q8_0, [1, rows[1], cols]);
        let x = Normed::new(lab, 1, cols);
        let (values, rms) = x.token(0);
        let twin = token_beside([&w, &v], values, rms);
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
    });
}

/// Where several tokens stand, and the slices of each.
const POSITIONS: [usize; 3] = [5, 0, 17];
const SLICES: [usize; 3] = [2, 1, 4];

/// The table that tells the kernels the positions and slices of the tokens.
fn standing(lab: &Lab<'_>) -> Sequences {
    let record = |t: usize| Record {
        position: POSITIONS[t] as u32,
        first_slice: SLICES[..t].iter().sum::<usize>() as u32,
        slices: SLICES[t] as u32,
        // No kernel in question reads these.
        first_page: u32::MAX,
        first_id: u32::MAX,
    };
    let table: Vec<u32> = (0..POSITIONS.len())
        .flat_map(|t| record(t).words())
        .collect();
    let none = || lab.given(&[u32::MAX; 4]);
    Sequences {
        table: lab.given(&table),
        pages: none(),
        work: none(),
        page: PAGE,
        rows: PAGE,
        ids: 1,
        alone: false,
    }
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
        wide(&cache)
    }

    fn compared(&self, lab: &Lab<'_>, found: &CacheRow) -> Result<Compared, GpuError> {
        let twin = self.twin();
        let found: Vec<f16> = lab.read(&found.cache, twin.len())?;
        // WGSL leaves the rounding to f16 open.
        Ok(Compared::new(&wide(&found), &twin, 1e-6))
    }
}

/// The queries of a token and its row of the cache: in one dispatch from the latent of the query, and from queries that are there.
pub(super) fn queries(lab: &mut Lab<'_>) {
    absorbed(lab, "16 heads of 256 columns", &[POS]);
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

/// The absorbed and the rotated queries of several tokens.
pub(super) fn queries_of_several(lab: &mut Lab<'_>) {
    absorbed(lab, "16 heads, 3 tokens", &POSITIONS);
}

/// The queries of tokens at these positions from their latents. A single one also leaves its row of the cache.
fn absorbed(lab: &mut Lab<'_>, case: &str, positions: &[usize]) {
    let (cols, tokens) = (256, positions.len());
    lab.check(format!("q4_0, q8_0, {case}"), |lab| {
        let q_b = lab.weight(GgmlType::Q4_0, [1, DIMS.heads * DIMS.head(), cols]);
        let k_b = lab.weight(GgmlType::Q8_0, [DIMS.heads, DIMS.kv_lora, DIMS.nope]);
        let x = Normed::new(lab, tokens, cols);
        let row = (tokens == 1).then(|| Row::new(lab));
        let table = match &row {
            Some(row) => row.table.clone(),
            None => lab.normals(20 * DIMS.rope),
        };
        let keep = |q: &[f32]| stand_for(form(lab), q);
        let mut twin = [vec![], vec![]];
        for (t, position) in positions.iter().enumerate() {
            let (angles, _) = table[position * DIMS.rope..][..DIMS.rope].as_chunks();
            let (x, rms) = x.token(t);
            let own = token_absorb([&q_b, &k_b], x, Some(rms), angles, DIMS, keep);
            let pairs = twin.iter_mut().zip(own);
            pairs.for_each(|(all, own)| all.extend(own));
        }
        let [q_b, k_b] = [lab.load(&[&q_b])?.remove(0), lab.load(&[&k_b])?.remove(0)];
        let call = GpuTokenAbsorb {
            q_b: &q_b,
            k_b: &k_b,
            activation: form(lab),
            x: x.input(lab),
            rope_table: lab.given(&table),
            dims: DIMS,
            q_lat: lab.room(twin[0].len()),
            q_pe: lab.room(twin[1].len()),
            row: row.as_ref().map(|row| row.given(lab)),
            sequences: row.is_none().then(|| standing(lab)),
            tokens: tokens as u32,
        };
        let most = Most {
            tokens: tokens as u32,
            context: (table.len() / DIMS.rope) as u32,
        };
        let pos = if row.is_some() { POS } else { 0 };
        lab.run_of(vec![call.call(lab.gpu.machine)], most, state(tokens, pos))?;
        let mut all = vec![
            lab.floats(&call.q_lat, &twin[0], limit_of_rounded(form(lab)))?,
            lab.floats(&call.q_pe, &twin[1], limit(form(lab)))?,
        ];
        if let Some((row, found)) = row.as_ref().zip(call.row.as_ref()) {
            all.push(row.compared(lab, found)?);
        }
        Ok(all)
    });
}

/// `attn_v_b` over the slices that the attention left.
pub(super) fn values(lab: &mut Lab<'_>) {
    of_slices(lab, "5 slices", &[5]);
}

/// `attn_v_b` over the slices of each of several tokens.
pub(super) fn values_of_several(lab: &mut Lab<'_>) {
    of_slices(lab, "slices of 3 tokens", &SLICES);
}

fn of_slices(lab: &mut Lab<'_>, case: &str, slices: &[usize]) {
    let (rows, tokens) = (128, slices.len());
    lab.check(format!("q4_0 16x{rows}x512, {case}"), |lab| {
        let (heads, width) = (DIMS.heads, DIMS.kv_lora);
        let w = lab.weight(GgmlType::Q4_0, [heads, rows, width]);
        let (mut sums, mut stats, mut twin) = (vec![], vec![], vec![]);
        for &slices in slices {
            let (own, own_stats) = random_slices(lab, heads * slices);
            let mut latent = vec![0.0; heads * width];
            attention_merge(&own, &own_stats, slices, width, &mut latent);
            let latent = stand_for(form(lab), &latent);
            twin.extend(token_matvec(&w, &latent, width / 32, None, None));
            sums.extend(own);
            stats.extend(own_stats);
        }
        let several = tokens > 1;
        let most = if several { MAX_SLICES + tokens } else { 1 };
        let partials = given_slices(lab, (sums, stats), most);
        let (y, left) = (lab.room(twin.len()), room(lab, twin.len(), None));
        let weight = &lab.load(&[&w])?[0];
        let mut product = GpuTokenMatvec::new(weight, form(lab), Input::Slices(partials, DIMS))
            .bind("y", &y)
            .prepared(left.clone());
        if several {
            product = product.of_tokens(tokens as u32, &standing(lab));
        }
        // The slices of several tokens are in the table.
        let state = State {
            slices: slices[0] as u32,
            ..state(tokens, 0)
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
