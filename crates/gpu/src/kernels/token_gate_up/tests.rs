//! Protects the first product of the experts: it agrees with its twin in every way in which logits come, for one token and for several.

use super::*;
use crate::gpu::machine::Profile;
use crate::gpu::testing::{some_waves, token_gpus, token_gpus_with_binding};
use crate::kernels::cases::token_gate_up::{GateUp, Logits, OfSeveral, cases, in_parts_of_models};
use crate::kernels::testing::{agree, agree_everywhere, agree_long, assert_in_pieces, lab};
use crate::quant::GgmlType;

#[test]
fn the_gpu_agrees_with_its_twin() {
    agree(token_gpus(), |_| cases());
    agree_everywhere(token_gpus(), |_| in_parts_of_models());
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_gpu_agrees_at_the_shapes_of_the_models_and_in_other_geometries() {
    agree_long(token_gpus(), |_| cases());
}

/// The types of both weights.
const TYPES: [GgmlType; 2] = [GgmlType::Q4_0, GgmlType::Q8_0];

/// A product of 256 columns, with logits that come in any way.
fn of(experts: Option<[usize; 3]>, shared: Option<usize>) -> GateUp {
    GateUp {
        cols: 256,
        experts: experts.map(|sizes| (TYPES, sizes)),
        shared: shared.map(|rows| (TYPES, rows)),
        logits: None,
        flags: None,
        many: false,
    }
}

#[test]
fn all_threads_choose_where_a_lane_has_many_experts() {
    for mut gpu in token_gpus_with_binding(1 << 20) {
        gpu.target.machine.tuned.choice_experts = 1;
        // The first gating is a sigmoid, the second a softmax, whose sum is one of all threads.
        agree_everywhere([&gpu], |_| {
            let of_flags = |flags| GateUp {
                logits: Some(Logits::Whole),
                flags: Some(flags),
                ..of(Some([68, 3, 32]), None)
            };
            [0, 1].map(|flags| of_flags(flags).case()).into()
        });
    }
}

#[test]
fn weights_larger_than_a_binding_are_cut() {
    for gpu in &token_gpus_with_binding(40_000) {
        // Experts in more pieces, the shared expert in more, a dense block.
        for gate_up in [
            of(Some([8, 3, 64]), Some(96)),
            of(Some([2, 2, 64]), Some(736)),
            of(None, Some(736)),
        ] {
            let lab = lab(gpu, format!("{:?}, {:?}", gate_up.experts, gate_up.shared));
            gate_up.compare(&lab).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn each_token_has_experts_of_its_own_in_larger_subgroups() {
    let several = OfSeveral {
        types: [GgmlType::Q4_0; 2],
        used: 4,
        sizes: [64, 32, 2048],
        shared: Some(64),
        many: false,
    };
    agree_everywhere(&some_waves(), |_| vec![several.case()]);
}

#[test]
fn experts_of_several_tokens_lie_in_any_piece() {
    let several = OfSeveral {
        types: TYPES,
        used: 3,
        sizes: [8, 64, 256],
        shared: Some(736),
        many: false,
    };
    for gpu in &token_gpus_with_binding(40_000) {
        let lab = lab(gpu, "pieces");
        let pair = several.weights(&lab);
        assert_in_pieces(gpu, &pair[0]);
        several
            .compare(&lab, &pair)
            .unwrap_or_else(|e| panic!("{e}"));
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
