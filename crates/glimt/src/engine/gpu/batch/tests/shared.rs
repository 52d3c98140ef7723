//! Protects the CPU's share of missing experts: logits are those without it but for activations as bytes, the same each time, and to the bit
//! where there is no share.

use super::slots::Way;
use super::*;
use crate::engine::gpu::by_host::ByHost;
use crate::engine::{CpuShare, Share};
use crate::gpu::GpuError;
use crate::recipes::Residence;
use crate::synth::{ModelName, Recipe};

/// The most that the CPU's share may change logits: the mean square of the error in that of the logits, in the middle of some positions. About
/// 1e-5 was found in tier `subgroup` and 2e-4 in `int8`, which differs as much from `subgroup` itself.
const LIMIT: f64 = 1e-3;

fn way(rng: &mut Rng) -> Way {
    let recipes = [
        Recipe::Q4_0,
        Recipe::Q4KM,
        Recipe::Q6K,
        Recipe::Q8_0,
        Recipe::Iq2M,
    ];
    let (model, used) = [(ModelName::Tiny, 2), (ModelName::TinyDs2, 3)][rng.below(2)];
    Way {
        model,
        recipe: recipes[rng.below(5)],
        tier: [Tier::Subgroup, Tier::Int8][rng.below(2)],
        slots: [0, used, used + 1][rng.below(3)],
        from_file: false,
        repeats: rng.below(2) == 1,
        apart: rng.below(2) == 1,
        file: true,
    }
}

/// The logits after each of some tokens that come one at a time, and the text behind them.
fn answers(model: &Arc<GpuModel>) -> (Vec<Vec<f32>>, Vec<u32>) {
    let made = GpuBackend::with_chunk(Arc::clone(model), N_CTX, Some(16));
    let mut session = made.wait().expect("it fits");
    let mut ids = tokens(12).to_vec();
    let mut all = vec![];
    for position in 0..ids.len() {
        let prefilled = session.prefill(&ids[position..=position], position);
        prefilled.wait().expect("it computes");
        all.push(kept(&session).into_iter().map(f32::from_bits).collect());
    }
    let context = ids.clone();
    let on_token = &mut |id| {
        ids.push(id);
        ControlFlow::Continue(())
    };
    let decoded = session.decode(&context, &Sampling::GREEDY, 8, on_token);
    decoded.wait().expect("it computes");
    (all, ids.split_off(context.len()))
}

/// Gives a model this share, and tells what it has.
fn share(model: &mut Arc<GpuModel>, asked: CpuShare) -> Option<Share> {
    let own = Arc::get_mut(model).expect("no session has it");
    let shared = own.share_with_cpu(asked, None).wait();
    shared.expect("the processor reaches the memory");
    own.share.clone()
}

#[test]
fn logits_are_near_those_without_a_share_and_the_same_each_time() {
    let mut rng = Rng::fresh();
    for _ in 0..crate::testing::rounds(2) {
        let way = way(&mut rng);
        let Some([whole, mut slots]) = way.models() else {
            eprintln!("skipped: {way:?}");
            continue;
        };
        let (expected, _) = answers(&whole);
        let used = whole.model.config().experts.as_ref().map_or(0, |e| e.used);
        assert!(answers(&slots).0 == expected, "{way:?}");
        for experts in 1..=used as u32 {
            let has = share(&mut slots, CpuShare::Experts(experts)).expect("it has one");
            assert_eq!((has.experts, has.used), (experts, used as u32));
            let first = answers(&slots);
            let mut errors = vec![];
            for (found, expected) in first.0.iter().zip(&expected) {
                let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
                errors.push(nmse(found, &expected));
            }
            errors.sort_by(f64::total_cmp);
            let middle = errors[errors.len() / 2];
            assert!(middle < LIMIT, "{experts} of {used}: {errors:?}, {way:?}");
            let always = way.slots == 0 || experts == used as u32;
            let most = errors[errors.len() - 1];
            assert!(most > 0.0 || !always, "{experts} of {used}, {way:?}");
            if slots.residence == Residence::Slots(0) {
                // No slots keep anything from one session to the next.
                assert!(answers(&slots) == first, "{experts} of {used}, {way:?}");
            }
        }
    }
}

#[test]
fn a_share_is_refused_or_left_out_by_reason() {
    let mut rng = Rng::fresh();
    let way = Way {
        tier: Tier::Subgroup,
        ..way(&mut rng)
    };
    let [mut whole, mut slots] = way.models().expect("all adapters have the tier");
    assert_eq!(share(&mut whole, CpuShare::Auto), None);
    let none = share(&mut whole, CpuShare::Experts(1)).expect("it is told");
    assert!(
        none.to_string().contains("all experts lie on the GPU"),
        "{none}"
    );
    let [mut dense, _] = Way {
        model: ModelName::TinyQwen2,
        recipe: Recipe::Q4_0,
        ..way
    }
    .models()
    .expect("all adapters have the tier");
    let none = share(&mut dense, CpuShare::Experts(1)).expect("it is told");
    assert!(none.to_string().contains("has no experts"), "{none}");
    let own = Arc::get_mut(&mut slots).expect("no session has it");
    let refused = own.share_with_cpu(CpuShare::Experts(9), None).wait();
    let refused = refused.expect_err("no token has as many");
    assert!(
        matches!(refused, GpuError::CannotShare { experts: 9, .. }),
        "{refused}"
    );
    assert_eq!(share(&mut slots, CpuShare::Off), None);
    // Software, as tests run it, is the CPU itself.
    let chosen = share(&mut slots, CpuShare::Auto).expect("it is told");
    let is_software = slots.gpu.info.device_type == wgpu::DeviceType::Cpu;
    assert!(chosen.experts == 0 || !is_software, "{chosen:?}");
    assert_eq!(chosen.because.is_some(), chosen.experts == 0, "{chosen:?}");
    let sum = Range::floats("sum", 1 << 12);
    let by_host = ByHost::new(&slots.gpu, &slots.weights, sum).wait();
    let mut by_host = by_host.expect("it reads").expect("the memory is in reach");
    let times = slots
        .times(&mut by_host, 2)
        .wait()
        .expect("they are measured");
    let of_each: Vec<_> = times.with_host.iter().map(Vec::len).collect();
    assert_eq!((times.by_bus.len(), &of_each[..]), (3, &[1, 2, 3][..]));
    let all = times.with_host.iter().flatten().chain(&times.by_bus);
    assert!(all.clone().all(|us| us.is_finite()), "{times:?}");
    let of_token = slots.time_tokens().wait().expect("it is measured");
    assert!(of_token.is_some_and(|us| us > 0.0), "{of_token:?}");
}
