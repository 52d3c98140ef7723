//! Cases of the choice of experts in steps of a few tokens, and of the tiles of their slots.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::router::{LIMIT, experts};
use crate::gpu::GpuError;
use crate::gpu::machine::Machine;
use crate::kernels::batch_experts::{GpuBatchExperts, TILE_WORDS, Tile, batch_experts, tiles};
use crate::kernels::router::{logit_stride, strided};
use crate::model::{Experts, Gating};

/// Logits whose order no rounding changes: each expert of a token has another one, or many have the same.
fn logits(lab: &Lab<'_>, tokens: usize, count: usize, equal: bool) -> Vec<f32> {
    let of_token = |_| {
        // Steps of an odd width from anywhere come to each of a power of two, and to each of 7.
        let (first, by) = (lab.below(count), 2 * lab.below(3) + 1);
        let logit = move |i: usize| {
            let step = (first + i * by) % count;
            let step = if equal { step % 3 } else { step };
            step as f32 * 4.0 / count as f32 - 2.0
        };
        (0..count).map(logit)
    };
    (0..tokens).flat_map(of_token).collect()
}

/// Without a bias there are all tokens, many logits are the same, and workgroups are as small as on any device, so a thread takes several slots.
fn compare(
    lab: &Lab<'_>,
    e: &Experts,
    most: usize,
    with_bias: bool,
) -> Result<Vec<Compared>, GpuError> {
    let (count, used) = (e.count, e.used);
    let tokens = if with_bias { 1 + lab.below(most) } else { most };
    let machine = Machine {
        threads: if with_bias {
            lab.gpu.machine.threads
        } else {
            256
        },
        ..lab.gpu.machine
    };
    let mut given = logits(lab, tokens, count, !with_bias);
    // The norm divides by no less than MIN_WEIGHT_SUM.
    if !with_bias && e.weights_norm && e.gating == Gating::Sigmoid {
        given.iter_mut().for_each(|logit| *logit -= 16.0);
    }
    // The last expert comes first. Threads without an expert read its bias, but must not take a place behind it.
    let mut bias = vec![1.0; count];
    bias[count - 1] = 3.0;
    let bias = with_bias.then_some(bias);
    let places = lab.one_of(&[2, 4]);
    let (weights, mut listed) = batch_experts(&given, bias.as_deref(), e, tokens, places);
    let filled = listed.len() as u32;
    let list = tiles(most as u32, places, e);
    // On the CPU, a read behind buffers that end with the tokens shows.
    let stride = logit_stride(e) as usize;
    let call = GpuBatchExperts {
        logits: lab.padded(&strided(&given, e), stride, most),
        bias: bias.map(|bias| lab.given(&bias)),
        experts: e,
        max_tokens: most as u32,
        places,
        weights: lab.room(most * used),
        tiles: lab.words((TILE_WORDS * list) as usize),
        counts: lab.given(&[7u32; 8]),
    };
    lab.run(vec![call.call(machine)], state(tokens, 0))?;
    // Nobody writes all words, and behind the last tile only the number of slots.
    let mut none: Tile = [u32::MAX; TILE_WORDS as usize];
    none[2] = 0;
    for tile in &mut listed {
        tile[1] = u32::MAX;
        tile[3] = u32::MAX;
    }
    listed.resize(tiles(tokens as u32, places, e) as usize, none);
    Ok(vec![
        lab.floats(&call.weights, &weights, LIMIT)?,
        lab.same(&call.counts, &[7, filled, 7, 7, filled, 7, 7, 7])?,
        lab.same(&call.tiles, &listed)?,
    ])
}

pub(crate) fn cases() -> Vec<Case> {
    let sizes = [
        (64, 4, Gating::Sigmoid, true, 64),
        (64, 6, Gating::Softmax, false, 64),
        (64, 6, Gating::Softmax, true, 2),
        (8, 2, Gating::Sigmoid, false, 9),
        (256, 8, Gating::Sigmoid, true, 16),
        (7, 3, Gating::Softmax, true, 40),
        (1, 1, Gating::Softmax, true, 3),
    ];
    let both = sizes
        .into_iter()
        .flat_map(|size| [false, true].map(|bias| (size, bias)));
    let case = |((count, used, gating, norm, most), bias)| {
        let e = experts(count, used, gating, norm);
        let how = if bias { ", bias" } else { "" };
        let name = format!("{used} of {count}, up to {most} tokens{how}");
        let case = Case::new(name, move |lab| compare(lab, &e, most, bias));
        case.verified_if(used == 4 && bias)
    };
    both.map(case).collect()
}
