//! Protects the first product of the experts: it agrees with its twin in every way in which logits come.

use super::*;
use crate::gpu::Gpu;
use crate::gpu::buffer::Role;
use crate::gpu::call::State;
use crate::gpu::machine::{Machine, Profile};
use crate::gpu::testing::{
    download, gpu_weights, output, run, token_gpus, token_gpus_with_binding, upload,
};
use crate::kernels::testing::{Rng, assert_close, drawn, drawn_pairs, random_weight};
use crate::kernels::token::testing::{Given, activation, assert_prepared, geometries, room};
use crate::model::Experts;
use crate::model::Gating;
use crate::model::Weight;
use crate::quant::GgmlType;

mod several;

/// Types of the experts' weights and their number, chosen ones and rows; types and rows of the shared expert.
type Case = (
    Option<([GgmlType; 2], [usize; 3])>,
    Option<([GgmlType; 2], usize)>,
);

/// Logits or biases no two of which, nor their probabilities, are near each other.
fn distinct(rng: &mut Rng, count: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..count)
        .map(|i| (i as f32 + 0.5 * rng.uniform()) * 6.0 / count as f32 - 3.0)
        .collect();
    rng.shuffle(&mut values);
    values
}

/// How the experts' logits come.
#[derive(Clone, Copy, PartialEq)]
enum Logits {
    /// Divided by the root mean square of the input.
    Whole,
    /// Not yet.
    Raw,
    /// Nor added up, as `attn_output` leaves them; of a number of experts that is no multiple of 4 as `Raw`.
    InParts,
}

const LOGITS: [Logits; 3] = [Logits::Whole, Logits::Raw, Logits::InParts];

fn check(gpu: &Gpu, rng: &mut Rng, cols: usize, case: Case, all: bool) {
    let logits = LOGITS[rng.below(LOGITS.len())];
    check_logits(gpu, rng, cols, case, all, logits);
}

/// Experts and which of them their logits choose.
struct Chosen {
    pair: [Weight; 2],
    config: Experts,
    logits: Vec<f32>,
    bias: Option<Vec<f32>>,
    ids: Vec<u32>,
    weights: Vec<f32>,
}

impl Chosen {
    /// The bits of `flags` say how they are chosen.
    fn new(
        rng: &mut Rng,
        types: [GgmlType; 2],
        [count, used, rows]: [usize; 3],
        cols: usize,
        flags: usize,
    ) -> Self {
        let config = Experts {
            count,
            used,
            shared_count: 1,
            feed_forward_length: rows,
            gating: [Gating::Sigmoid, Gating::Softmax][flags & 1],
            weights_norm: flags & 2 != 0,
            weights_scale: 1.8,
        };
        let mut logits = distinct(rng, count);
        // The flags mean a sigmoid, a norm and no bias. Then all probabilities may be small. The norm divides by no less than MIN_WEIGHT_SUM.
        if flags == 2 && rng.below(2) == 0 {
            logits.iter_mut().for_each(|logit| *logit -= 16.0);
        }
        // A bias that moves whole ranks, and not towards ties.
        let bias: Option<Vec<f32>> =
            (flags & 4 != 0).then(|| logits.iter().map(|v| -2.0 * v).collect());
        let (mut ids, mut weights) = (vec![0; used], vec![0.0; used]);
        router::router(&logits, bias.as_deref(), &config, 1, &mut ids, &mut weights);
        Self {
            pair: types.map(|ty| random_weight(rng, ty, count, rows, cols)),
            config,
            logits,
            bias,
            ids,
            weights,
        }
    }

    /// The choice on the device, by `factor` times the logits.
    fn router(&self, gpu: &Gpu, rng: &mut Rng, factor: f32, come: Logits) -> GpuRouter<'_> {
        let count = self.config.count;
        let mut logits: Vec<f32> = self.logits.iter().map(|logit| logit * factor).collect();
        let mut partial_sums = 1;
        if come == Logits::InParts && count.is_multiple_of(4) {
            partial_sums = 2 + rng.below(140);
            // The last partial sum has all of each logit, except for numbers that cancel.
            let mut all = vec![0.0; (partial_sums - 1) * count];
            all.extend(logits);
            let last = (partial_sums - 1) * count;
            for (i, v) in rng.normals(count).iter().enumerate() {
                all[i] += v;
                all[last + i] -= v;
            }
            logits = all;
        }
        let range = |data: &Vec<f32>| Range::whole(&upload(gpu, data));
        let used = self.ids.len();
        GpuRouter {
            logits: range(&logits),
            partial_sums: partial_sums as u32,
            bias: self.bias.as_ref().map(range),
            experts: &self.config,
            max_tokens: 1,
            ids: Range::whole(&output(gpu, used)).holding(Role::Words),
            weights: Range::whole(&output(gpu, used)),
        }
    }
}

fn check_logits(gpu: &Gpu, rng: &mut Rng, cols: usize, case: Case, all: bool, come: Logits) {
    let flags = rng.below(8);
    check_choice(gpu, rng, cols, case, all, come, flags);
}

/// Each geometry against the twin. The bits of `flags` say how experts are chosen.
fn check_choice(
    gpu: &Gpu,
    rng: &mut Rng,
    cols: usize,
    (experts, shared): Case,
    all: bool,
    come: Logits,
    flags: usize,
) {
    let given = Given::new(gpu, &rng.normals(cols), &rng.normals(cols));
    let raw_logits = come != Logits::Whole;
    let experts = experts.map(|(types, sizes)| Chosen::new(rng, types, sizes, cols, flags));
    let shared = shared.map(|(types, rows)| types.map(|ty| random_weight(rng, ty, 1, rows, cols)));
    let twin = token_gate_up(
        experts
            .as_ref()
            .map(|e| (e.pair.each_ref(), e.ids.as_slice())),
        shared.as_ref().map(|pair| pair.each_ref()),
        &given.values,
        (&given.squares, 1e-6),
    );
    let on_gpu = |pair: &[Weight; 2]| gpu_weights(gpu, &[&pair[0], &pair[1]]);
    let experts_gpu = experts.as_ref().map(|e| on_gpu(&e.pair));
    let shared_gpu = shared.as_ref().map(on_gpu);
    let h = room(gpu, twin.len(), None);
    let mut call = GpuTokenGateUp {
        tokens: 1,
        experts: experts.as_ref().zip(experts_gpu.as_ref()).map(|(e, w)| {
            let rms = (given.squares.iter().sum::<f32>() / cols as f32 + 1e-6).sqrt();
            let router = e.router(gpu, rng, if raw_logits { rms } else { 1.0 }, come);
            ([&w[0], &w[1]], router)
        }),
        raw_logits,
        shared: shared_gpu.as_ref().map(|w| [&w[0], &w[1]]),
        activation: activation(gpu),
        x: given.upload(gpu, 1e-6),
        h: h.values.clone(),
    };
    let site = call.site();
    let geometries = geometries(gpu, &site, all);
    for geometry in geometries {
        let what = format!("{cols} columns, choice {flags}, {geometry:?}");
        let h = room(gpu, twin.len(), None);
        call.h = h.values.clone();
        let calls = call
            .calls_with(gpu, &geometry)
            .unwrap_or_else(|e| panic!("{e}"));
        let state = State {
            tokens: 1,
            ..State::default()
        };
        run(gpu, &calls, &state);
        assert_prepared(gpu, &h, None, &twin, &what);
        if let Some((_, router)) = &call.experts {
            let Chosen { ids, weights, .. } = experts.as_ref().expect("they were there");
            let found: Vec<u32> = download(gpu, &router.ids.buffer, ids.len());
            assert_eq!(&found, ids, "{what}");
            let found: Vec<f32> = download(gpu, &router.weights.buffer, ids.len());
            let exact: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
            // The limit is that of the router's test.
            assert_close(&found, &exact, 1e-11, &what);
        }
    }
}

#[test]
fn the_gpu_agrees_for_every_type() {
    let mut rng = Rng::fresh();
    let others = GgmlType::ALL.iter().cycle().skip(1);
    let of_types = GgmlType::ALL.iter().zip(others).map(|(&ty, &other)| {
        // The error of few values varies more.
        let experts = Some(([ty, other], [5, 2, 96]));
        (256, (experts, Some(([other, ty], 192))))
    });
    // Rows have two units. A workgroup takes 32 rows, and the last one has 16.
    let small = (64, (None, Some(([GgmlType::Q4_0; 2], 400))));
    let cases: Vec<_> = of_types.chain([small]).collect();
    for (gpu, &(cols, case)) in drawn_pairs(&token_gpus(), &cases) {
        check(gpu, &mut rng, cols, case, false);
    }
}

#[test]
fn logits_in_parts_are_added_up() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        // The threads of a workgroup share the 16 columns of 64 experts evenly, and the 3 columns of 12 experts not.
        for count in [64, 12] {
            // The error of few values varies more.
            let case = (Some(([GgmlType::Q4_0; 2], [count, 4, 96])), None);
            check_logits(gpu, &mut rng, 256, case, false, Logits::InParts);
        }
    }
}

#[test]
fn all_threads_choose_where_a_lane_has_many_experts() {
    for mut gpu in token_gpus_with_binding(1 << 20) {
        gpu.target.machine.tuned.choice_experts = 1;
        let mut rng = Rng::fresh();
        // The first gating is a sigmoid, the second a softmax, whose sum is one of all threads.
        for flags in [0, 1] {
            let case = (Some(([GgmlType::Q4_0; 2], [68, 3, 32])), None);
            check_choice(&gpu, &mut rng, 256, case, false, Logits::Whole, flags);
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_gpu_agrees_at_the_shapes_of_the_models() {
    let mut rng = Rng::fresh();
    let (q4_0, q4_k) = ([GgmlType::Q4_0; 2], [GgmlType::Q4_K; 2]);
    let cases = [
        (Some((q4_0, [64, 4, 1536])), Some((q4_0, 1536))),
        (Some((q4_k, [7, 6, 1408])), Some((q4_k, 2816))),
        (Some((q4_0, [4, 1, 96])), None),
        (Some((q4_0, [256, 8, 32])), Some((q4_0, 48))),
    ];
    for (&case, &come) in drawn_pairs(&cases, &LOGITS) {
        for gpu in drawn(&token_gpus(), 2) {
            check_logits(gpu, &mut rng, 2048, case, false, come);
        }
    }
    let dense = (None, Some((q4_k, 6144)));
    for gpu in drawn(&token_gpus(), 2) {
        check(gpu, &mut rng, 2048, dense, false);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn other_geometries_give_the_same() {
    let mut rng = Rng::fresh();
    // 36 units leave some lanes without, 48 rows some tiles unfilled.
    let pair = [GgmlType::Q4_0, GgmlType::Q8_0];
    let experts = (1152, (Some((pair, [68, 3, 48])), Some((pair, 80))));
    let dense = (64, (None, Some((pair, 48))));
    for (gpu, &(cols, case)) in drawn_pairs(&token_gpus(), &[experts, dense]) {
        check(gpu, &mut rng, cols, case, true);
    }
}

#[test]
fn weights_larger_than_a_binding_are_cut() {
    for gpu in token_gpus_with_binding(40_000) {
        let mut rng = Rng::fresh();
        let types = [GgmlType::Q4_0, GgmlType::Q8_0];
        for case in [
            // Experts in more pieces, the shared expert in more, a dense block.
            (Some((types, [8, 3, 64])), Some((types, 96))),
            (Some((types, [2, 2, 64])), Some((types, 736))),
            (None, Some((types, 736))),
        ] {
            check(&gpu, &mut rng, 256, case, false);
        }
    }
}

#[test]
fn logits_are_added_up_by_all_where_that_costs_less_than_a_dispatch() {
    // The rows of G of the chosen experts and the shared one in GLM-4.7-Flash and DeepSeek-V2-Lite.
    let rows = [5 * 1536, 8 * 1408];
    for (profile, cores, expected) in [
        (Profile::Nvidia, 132, true),
        (Profile::Nvidia, 24, false),
        (Profile::Apple, 8, false),
        (Profile::Apple, 40, false),
        (Profile::Software, 8, false),
    ] {
        let machine = Machine::with_cores(profile, cores);
        let halves = Activation::Halves { packed: false };
        let each = rows.map(|rows| [Activation::Bytes, halves].map(|a| (rows, a)));
        for (rows, activation) in each.into_iter().flatten() {
            let more = repeated(machine, activation, rows, [64, 2048 / 16]);
            assert_eq!(
                machine.repeats(more),
                expected,
                "{profile:?}, {cores} cores, {rows} rows, {activation:?}: {more:?}"
            );
        }
    }
}
