//! Protects gate and up of the experts where a step has several tokens. Each token chooses its own experts, and gets the values that it gets
//! alone.

use super::*;
use crate::gpu::testing::{padded, some_waves};
use crate::kernels::testing::several::Several;

const EPS: f32 = 1e-6;

/// Logits of a token of which rounding changes no choice, and what they choose: experts in another order than the tokens before, one of
/// which the second token shares with the first.
fn choose(
    rng: &mut Rng,
    experts: &Experts,
    bias: Option<&[f32]>,
    before: &[u32],
) -> (Vec<f32>, Vec<u32>, Vec<f32>) {
    let (count, used) = (experts.count, experts.used);
    let ranked = Experts {
        used: count,
        weights_norm: false,
        weights_scale: 1.0,
        ..experts.clone()
    };
    loop {
        let logits = distinct(rng, count);
        let (mut ids, mut weights) = (vec![0; count], vec![0.0; count]);
        router::router(&logits, bias, &ranked, 1, &mut ids, &mut weights);
        let score = |i: usize| weights[i] + bias.map_or(0.0, |bias| bias[ids[i] as usize]);
        let apart = (0..used.min(count - 1)).all(|i| score(i) - score(i + 1) > 1e-4);
        let mut ids = vec![0; used];
        let mut weights = vec![0.0; used];
        router::router(&logits, bias, experts, 1, &mut ids, &mut weights);
        let own = before.chunks_exact(used).all(|other| other != ids);
        let shares = before.len() != used || before.iter().any(|id| ids.contains(id));
        if apart && own && shares {
            return (logits, ids, weights);
        }
    }
}

/// The experts with what each token chose of them. The bits of `flags` say how.
fn chosen_by_each(rng: &mut Rng, pair: &[Weight; 2], used: usize, tokens: usize) -> Chosen {
    let flags = rng.below(8);
    let (count, rows) = (pair[0].groups, pair[0].rows);
    let config = Experts {
        count,
        used,
        shared_count: 0,
        feed_forward_length: rows,
        gating: [Gating::Sigmoid, Gating::Softmax][flags & 1],
        weights_norm: flags & 2 != 0,
        weights_scale: 1.8,
    };
    // All tokens have the same bias, which decides no more than their logits do.
    let size = [0.1, 1.0 / count as f32][flags & 1];
    let bias = distinct(rng, count).into_iter().map(|v| size * v);
    let bias: Option<Vec<f32>> = (flags & 4 != 0).then(|| bias.collect());
    let (mut logits, mut ids, mut weights) = (vec![], vec![], vec![]);
    for _ in 0..tokens {
        let own = choose(rng, &config, bias.as_deref(), &ids);
        logits.extend(own.0);
        ids.extend(own.1);
        weights.extend(own.2);
    }
    Chosen {
        pair: pair.clone(),
        config,
        logits,
        bias,
        ids,
        weights,
    }
}

/// Each geometry against the twin; the pieces of the weights.
fn check_several(gpu: &Gpu, rng: &mut Rng, pair: &[Weight; 2], used: usize, all: bool) -> usize {
    let several = Several::new(rng);
    let Several { here, most } = several;
    let (rows, cols) = (pair[0].rows, pair[0].cols);
    let norm = rng.normals(cols).repeat(most);
    let given = Given::new(gpu, &rng.normals(most * cols), &norm);
    let chosen = chosen_by_each(rng, pair, used, here);
    let raw_logits = rng.below(2) == 0;
    let count = chosen.config.count;
    let mut logits = chosen.logits.clone();
    let mut twin = vec![];
    for t in 0..here {
        let squares = &given.squares[t * cols / 16..][..cols / 16];
        twin.extend(token_gate_up(
            Some((pair.each_ref(), &chosen.ids[t * used..][..used])),
            None,
            &given.values[t * cols..][..cols],
            (squares, EPS),
        ));
        if raw_logits {
            let rms = (squares.iter().sum::<f32>() / cols as f32 + EPS).sqrt();
            let own = &mut logits[t * count..][..count];
            own.iter_mut().for_each(|logit| *logit *= rms);
        }
    }

    let stride = router::logit_stride(&chosen.config) as usize;
    let logits = router::strided(&logits, &chosen.config);
    let on_gpu = gpu_weights(gpu, &[&pair[0], &pair[1]]);
    let room_for = || {
        let router = GpuRouter {
            logits: Range::whole(&upload(gpu, &padded(&logits, stride, most as u32))),
            partial_sums: 1,
            bias: (chosen.bias.as_ref()).map(|bias| Range::whole(&upload(gpu, bias))),
            experts: &chosen.config,
            max_tokens: most as u32,
            ids: Range::whole(&output(gpu, most * used)).holding(Role::Words),
            weights: Range::whole(&output(gpu, most * used)),
        };
        (router, room(gpu, most * used * rows, None))
    };
    let (router, h) = room_for();
    let mut call = GpuTokenGateUp {
        experts: Some(([&on_gpu[0], &on_gpu[1]], router)),
        raw_logits,
        shared: None,
        activation: activation(gpu),
        x: given.upload(gpu, EPS),
        h: h.values,
        tokens: most as u32,
    };
    let site = call.site();
    let geometries = geometries(gpu, &site, all);
    for geometry in geometries {
        let (router, h) = room_for();
        let (ids, weights) = (router.ids.buffer.clone(), router.weights.buffer.clone());
        call.h = h.values.clone();
        call.experts = Some(([&on_gpu[0], &on_gpu[1]], router));
        let calls = call
            .calls_with(gpu, &geometry)
            .unwrap_or_else(|e| panic!("{e}"));
        several.run(gpu, &calls, most);
        let choice = (chosen.config.gating, chosen.bias.is_some(), raw_logits);
        let what = format!("{used}x{rows}x{cols}, {several:?}, {choice:?}, {geometry:?}");
        assert_prepared(gpu, &h, None, &twin, &what);
        let found = several.download(gpu, &ids, used).into_iter();
        let found: Vec<u32> = found.map(f32::to_bits).collect();
        assert_eq!(found, chosen.ids, "{what}");
        let found = several.download(gpu, &weights, used);
        let exact: Vec<f64> = chosen.weights.iter().map(|w| f64::from(*w)).collect();
        // The limit is that of the router's test.
        assert_close(&found, &exact, 1e-11, &what);
    }
    on_gpu[0].pieces.len()
}

fn pair_of(rng: &mut Rng, types: [GgmlType; 2], sizes: [usize; 3]) -> [Weight; 2] {
    let [experts, rows, cols] = sizes;
    types.map(|ty| random_weight(rng, ty, experts, rows, cols))
}

#[test]
fn each_token_has_experts_of_its_own() {
    let mut rng = Rng::fresh();
    let (q4_0, q8_0) = (GgmlType::Q4_0, GgmlType::Q8_0);
    let cases = [
        ([q4_0; 2], 4, [64, 32, 2048]),
        // So many that all threads choose.
        ([q4_0; 2], 8, [256, 16, 256]),
        ([GgmlType::Q4_K, GgmlType::Q6_K], 6, [64, 16, 256]),
        ([q8_0, q4_0], 3, [8, 48, 1152]),
        // Units of a token that pass through workgroup memory.
        ([q4_0, q8_0], 3, [8, 48, 1792]),
        // Units of a token that are no whole blocks of halves.
        ([q4_0, q8_0], 3, [8, 48, 1632]),
    ];
    for (gpu, &(types, used, sizes)) in drawn_pairs(&token_gpus(), &cases) {
        let pair = pair_of(&mut rng, types, sizes);
        check_several(gpu, &mut rng, &pair, used, false);
    }
}

#[test]
fn each_token_has_experts_of_its_own_in_larger_subgroups() {
    let mut rng = Rng::fresh();
    let pair = pair_of(&mut rng, [GgmlType::Q4_0; 2], [64, 32, 2048]);
    for gpu in &some_waves() {
        check_several(gpu, &mut rng, &pair, 4, false);
    }
}

#[test]
fn experts_of_several_tokens_lie_in_any_piece() {
    let mut rng = Rng::fresh();
    let types = [GgmlType::Q4_0, GgmlType::Q8_0];
    let pair = pair_of(&mut rng, types, [8, 64, 256]);
    for gpu in token_gpus_with_binding(40_000) {
        let pieces = check_several(&gpu, &mut rng, &pair, 3, false);
        assert!(pieces > 1, "{pieces} pieces");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn each_token_has_experts_of_its_own_at_the_shape_of_glm_4_7_flash() {
    let mut rng = Rng::fresh();
    let pair = pair_of(&mut rng, [GgmlType::Q4_0; 2], [64, 1536, 2048]);
    for gpu in token_gpus() {
        check_several(gpu, &mut rng, &pair, 4, false);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn other_geometries_give_each_token_the_same() {
    let mut rng = Rng::fresh();
    // 36 units leave some lanes without, 48 rows some tiles unfilled.
    let types = [GgmlType::Q4_0, GgmlType::Q8_0];
    let pair = pair_of(&mut rng, types, [68, 48, 1152]);
    for gpu in drawn(&token_gpus(), 1) {
        check_several(gpu, &mut rng, &pair, 3, true);
    }
}
