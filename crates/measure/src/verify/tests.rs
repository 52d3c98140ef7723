//! Protects `glimt verify`: a device that is right passes, and one that is wrong anywhere does not.

use std::ops::ControlFlow;

use super::golden::Golden;
use super::rows::Difference;
use super::*;
use crate::gpu::behind::ExpertsFrom;
use crate::gpu::testing::gpus;
use crate::gpu::wait::Wait;
use crate::kernels::testing::Rng;
use crate::testing::some;

fn quiet(_: Row<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn all_of(options: Option<&GpuOptions>, tiers: &[Tier], cache: CacheType) -> Found {
    let seed = Rng::fresh().bits();
    verify(options, tiers, (seed, cache), &mut quiet).expect("these tests need a GPU adapter")
}

#[test]
fn the_cpu_reference_has_the_golden_values() {
    for cache in CacheType::ALL {
        let found = all_of(None, &Tier::ALL, cache);
        assert_eq!((found.device.clone(), found.checks.len()), (None, 1));
        assert_eq!(found.failed(), 0, "{found:?}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn tiers_of_this_machine_pass() {
    // Each run draws a tier. `verify/kernels/tests.rs` compares the kernels of all tiers.
    let asked = some(&Tier::ALL, 1);
    let found = all_of(Some(&GpuOptions::default()), &asked, CacheType::F16);
    // Drafts need steps of several tokens, which one tier does not have.
    let drafts = usize::from(asked != [Tier::Plain]);
    let of_model = Way::ALL.len() + drafts;
    let tiers = asked.len() - found.lacking.len();
    if tiers == 0 {
        return;
    }
    let partly: Vec<_> = found
        .checks
        .iter()
        .filter(|check| check.expert_slots.is_some())
        .collect();
    assert_eq!(
        found.checks.len(),
        1 + tiers * (5 * of_model + 1 + drafts) + partly.len()
    );
    if asked != [Tier::Plain] {
        assert_eq!(partly.len(), of_model + 1, "{partly:?}");
        assert!(partly.iter().all(|check| check.expert_slots == Some(32)));
    }
    let failed: Vec<_> = found.checks.iter().filter(|c| !c.passed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let kernels = found.kernels.iter().filter(|kernel| !kernel.passed());
    let failed: Vec<_> = kernels.collect();
    assert!(
        failed.is_empty() && !found.kernels.is_empty(),
        "{failed:#?}"
    );
    assert_eq!(found.all(), found.kernels.len() + found.checks.len());
    assert!(found.device.is_some());
}

#[test]
fn a_wrong_weight_on_the_device_fails_every_way() {
    let golden = Golden::read();
    let mut subject = models::built_in(CacheType::F16).expect("it is in the program");
    // The reference's logits of other tokens stand for a device that is wrong.
    for row in &mut subject.rows {
        row.rotate_right(1);
    }
    let gpu = Gpu::open(&GpuOptions::default())
        .wait()
        .expect("these tests need a GPU adapter");
    let checks = checks_of(&Arc::new(gpu), &subject, &golden);
    let against = |what| checks.iter().filter(move |check| check.against == what);
    assert_eq!(against("CPU reference").count(), Way::ALL.len());
    assert!(against("CPU reference").all(|check| !check.passed()));
    assert!(against("llama.cpp").all(Check::passed), "{checks:?}");
    assert!(!gpus().is_empty());
}

#[test]
fn a_model_whose_prompts_have_room_token_by_token_alone_passes() {
    let golden = Golden::read();
    let subject = models::built_in(CacheType::F16).expect("it is in the program");
    let options = GpuOptions {
        tier: Some(Tier::Subgroup),
        ..GpuOptions::default()
    };
    let mut gpu = match Gpu::open(&options).wait() {
        Ok(gpu) => gpu,
        Err(GpuError::TierUnsupported { .. }) => return eprintln!("skipped: no tier for slots"),
        Err(error) => panic!("these tests need a GPU adapter: {error}"),
    };
    gpu.experts = ExpertsFrom::File;
    let found = (8..64).find_map(|mib| {
        gpu.memory = Some(mib << 20);
        let residences = residences(&gpu, &subject).ok()?;
        Some((gpu.clone(), residences))
    });
    let (gpu, residences) = found.expect("the least memory with which it runs");
    assert!(
        matches!(residences[..], [(Residence::OneByOne(_), Some(1))]),
        "{residences:?}"
    );
    let checks = checks_of(&Arc::new(gpu), &subject, &golden);
    assert_eq!(checks.len(), 1 + Way::ALL.len());
    assert!(checks.iter().all(Check::passed), "{checks:?}");
}

#[test]
fn one_broken_position_and_numbers_that_are_none_are_seen() {
    let mut rng = Rng::fresh();
    let exact: Vec<Vec<f32>> = (0..9).map(|_| rng.normals(50)).collect();
    let same = Difference::of(&exact, &exact);
    assert_eq!((same.median, same.worst), (0.0, 0.0));
    let mut broken = exact.clone();
    broken[4].reverse();
    let one = Difference::of(&broken, &exact);
    assert_eq!(one.median, 0.0);
    assert!(one.worst > WORST, "{one:?}");
    broken[4] = vec![f32::NAN; 50];
    assert_eq!(Difference::of(&broken, &exact).worst, f64::INFINITY);
    assert_eq!(Difference::of(&exact[..8], &exact).median, f64::INFINITY);
    assert_eq!(Difference::of(&[], &[]).median, f64::INFINITY);
}
