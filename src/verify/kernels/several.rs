//! The kernels of a decoded token in steps of a few tokens, each with its own position, slices and experts.

use super::experts::{Choice, config};
use super::lab::{Lab, state};
use super::prepared::{self, Normed, compared, form, limit, limit_of_rounded, room, stand_for};
use super::{DIMS, EPS};
use crate::gpu::Most;
use crate::kernels::attention::{MAX_SLICES, partial_bytes};
use crate::kernels::attention_merge::attention_merge;
use crate::kernels::sequences::{PAGE, Record, Sequences};
use crate::kernels::token::Divided;
use crate::kernels::token_absorb::{GpuTokenAbsorb, token_absorb};
use crate::kernels::token_gate_up::{GpuTokenGateUp, token_gate_up};
use crate::kernels::token_matvec::{GpuTokenMatvec, Input, token_matvec};
use crate::kernels::token_moe_down::{GpuTokenMoeDown, token_moe_down};
use crate::model::Gating;
use crate::quant::GgmlType;

/// Where the tokens stand, and the slices of each.
const POSITIONS: [u32; 3] = [5, 0, 17];
const SLICES: [u32; 3] = [2, 1, 4];
const TOKENS: usize = POSITIONS.len();
/// Rows of the rotation table.
const ROWS: usize = 20;

/// What tells it to the kernels.
fn standing(lab: &Lab<'_>) -> Sequences {
    let record = |t: usize| Record {
        position: POSITIONS[t],
        first_slice: SLICES[..t].iter().sum(),
        slices: SLICES[t],
        // No kernel in question reads these.
        first_page: u32::MAX,
        first_id: u32::MAX,
    };
    let table: Vec<u32> = (0..TOKENS).flat_map(|t| record(t).words()).collect();
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

/// The absorbed and the rotated queries.
pub(super) fn queries(lab: &mut Lab<'_>) {
    let cols = 256;
    lab.check(format!("q4_0, q8_0, 16 heads, {TOKENS} tokens"), |lab| {
        let q_b = lab.weight(GgmlType::Q4_0, [1, DIMS.heads * DIMS.head(), cols]);
        let k_b = lab.weight(GgmlType::Q8_0, [DIMS.heads, DIMS.kv_lora, DIMS.nope]);
        let x = Normed::new(lab, TOKENS, cols);
        let table = lab.normals(ROWS * DIMS.rope);
        let keep = |q: &[f32]| stand_for(form(lab), q);
        let mut twin = [vec![], vec![]];
        for (t, position) in POSITIONS.iter().enumerate() {
            let (angles, _) = table[*position as usize * DIMS.rope..][..DIMS.rope].as_chunks();
            let rms = Some((&x.squares[t * cols / 16..][..cols / 16], EPS));
            let x = &x.values[t * cols..][..cols];
            let own = token_absorb([&q_b, &k_b], x, rms, angles, DIMS, keep);
            twin.iter_mut()
                .zip(own)
                .for_each(|(all, own)| all.extend(own));
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
            row: None,
            sequences: Some(standing(lab)),
            tokens: TOKENS as u32,
        };
        let most = Most {
            tokens: TOKENS as u32,
            context: ROWS as u32,
        };
        lab.run_of(vec![call.call(lab.gpu.machine)], most, state(TOKENS, 0))?;
        Ok(vec![
            lab.floats(&call.q_lat, &twin[0], limit_of_rounded(form(lab)))?,
            lab.floats(&call.q_pe, &twin[1], limit(form(lab)))?,
        ])
    });
}

/// `attn_v_b` over the slices of each token.
pub(super) fn values(lab: &mut Lab<'_>) {
    let rows = 128;
    lab.check(
        format!("q4_0 16x{rows}x512, slices of {TOKENS} tokens"),
        |lab| {
            let (heads, width) = (DIMS.heads, DIMS.kv_lora);
            let w = lab.weight(GgmlType::Q4_0, [heads, rows, width]);
            let (mut sums, mut stats, mut twin) = (vec![], vec![], vec![]);
            for slices in SLICES.map(|slices| slices as usize) {
                let own = lab.normals(heads * slices * width);
                let scores = lab.normals(heads * slices);
                let stat = |score: &f32| [score * 4.0, 0.5 + score.abs()];
                let own_stats: Vec<[f32; 2]> = scores.iter().map(stat).collect();
                let mut latent = vec![0.0; heads * width];
                attention_merge(&own, &own_stats, slices, width, &mut latent);
                let latent = stand_for(form(lab), &latent);
                twin.extend(token_matvec(&w, &latent, width / 32, None, None));
                sums.extend(own);
                stats.extend(own_stats);
            }
            let [bytes, pairs] =
                partial_bytes(DIMS, MAX_SLICES + TOKENS).map(|bytes| bytes as usize);
            sums.resize(bytes / 4, f32::NAN);
            stats.resize(pairs / 8, [f32::NAN; 2]);
            let partials = [lab.given(&sums), lab.given(stats.as_flattened())];
            let (y, left) = (lab.room(twin.len()), room(lab, twin.len(), None));
            let weight = &lab.load(&[&w])?[0];
            let product = GpuTokenMatvec::new(weight, form(lab), Input::Slices(partials, DIMS))
                .of_tokens(TOKENS as u32, &standing(lab))
                .bind("y", &y)
                .prepared(left.clone());
            lab.run(product.calls(lab.gpu)?, state(TOKENS, 0))?;
            let found: Vec<f32> = lab.read(&y, twin.len())?;
            let mut all = compared(lab, &left, None, &found)?;
            all.push(lab.floats(&y, &twin, limit_of_rounded(form(lab)))?);
            Ok(all)
        },
    );
}

/// Gate and up of the experts that each token chooses.
pub(super) fn gate_up(lab: &mut Lab<'_>) {
    let (count, used, rows, cols) = (6, 2, 96, 256);
    lab.check(
        format!("q4_k, {used} of {count}x{rows}x{cols}, {TOKENS} tokens"),
        |lab| {
            let pair = [(); 2].map(|()| lab.weight(GgmlType::Q4_K, [count, rows, cols]));
            let x = Normed::new(lab, TOKENS, cols);
            let choice = Choice::new(lab, TOKENS, config(count, used, Gating::Softmax));
            let of_token = |t: usize| {
                let ids = &choice.ids[t * used..][..used];
                let rms = (&x.squares[t * cols / 16..][..cols / 16], EPS);
                let x = &x.values[t * cols..][..cols];
                token_gate_up(Some((pair.each_ref(), ids)), None, x, rms)
            };
            let twin: Vec<f32> = (0..TOKENS).flat_map(of_token).collect();
            let h = room(lab, twin.len(), None);
            let weights = lab.load(&pair.each_ref())?;
            let call = GpuTokenGateUp {
                experts: Some(([&weights[0], &weights[1]], choice.router(lab))),
                raw_logits: false,
                shared: None,
                activation: form(lab),
                x: x.input(lab),
                h: h.values.clone(),
                tokens: TOKENS as u32,
            };
            lab.run(call.calls(lab.gpu)?, state(TOKENS, 0))?;
            let mut all = compared(lab, &h, None, &twin)?;
            if let Some((_, found)) = &call.experts {
                all.extend(choice.compared(lab, found)?);
            }
            Ok(all)
        },
    );
}

/// Down of the experts of each token.
pub(super) fn moe_down(lab: &mut Lab<'_>) {
    let (count, used, rows, cols) = (6, 2, 96, 256);
    lab.check(
        format!("q6_k, {used} of {count}x{rows}x{cols}, {TOKENS} tokens"),
        |lab| {
            let down = lab.weight(GgmlType::Q6_K, [count, rows, cols]);
            let slots = TOKENS * used;
            let given = lab.normals(slots * cols);
            let h = stand_for(form(lab), &given);
            let ids: Vec<u32> = (0..slots).map(|_| lab.below(count) as u32).collect();
            let sizes = [slots, TOKENS * rows, rows];
            let [weights, residual, g] = sizes.map(|n| lab.normals(n));
            let of_token = |t: usize| {
                let h = &h[t * used * cols..][..used * cols];
                let (ids, weights) = (&ids[t * used..][..used], &weights[t * used..][..used]);
                token_moe_down(&down, None, h, ids, weights, &residual[t * rows..][..rows])
            };
            let twin: Vec<f32> = (0..TOKENS).flat_map(of_token).collect();
            let left = room(lab, twin.len(), Some(&g));
            let call = GpuTokenMoeDown {
                down: &lab.load(&[&down])?[0],
                shared: None,
                activation: form(lab),
                h: prepared::given(lab, &given),
                ids: lab.given(&ids),
                weights: lab.given(&weights),
                used: used as u32,
                residual: lab.given(&residual),
                y: lab.room(twin.len()),
                prepared: left.clone(),
                tokens: TOKENS as u32,
            };
            lab.run(call.calls(lab.gpu)?, state(TOKENS, 0))?;
            let mut all = compared(lab, &left, Some(&g), &twin)?;
            all.push(lab.floats(&call.y, &twin, limit(form(lab)))?);
            Ok(all)
        },
    );
}
