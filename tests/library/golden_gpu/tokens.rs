//! Protects decoded tokens on the GPU: one by one, in serial passes, and with every way to join slices and to divide products.

use super::*;
use glimt::gpu::geometry::Made;

/// Positions at which the choice of an expert hangs on the order of a sum, which differs from processor to processor: the CPU reference
/// prefers it by a probability of less than 1e-4. So what rounds activations is compared before it.
const NEAR_TIES: [(&str, &str, usize); 3] = [
    ("Q4_0", "mixed", 45),
    ("Q5_0", "story", 14),
    ("Q5_0", "chat", 12),
];

/// Holds a model's tokens one by one against golden values on these devices.
fn check_one_by_one(
    gpus: &[(Arc<Gpu>, f64, f64)],
    model: &Arc<Model>,
    mut golden: impl FnMut() -> Golden,
    name: &str,
) {
    for (gpu, nmse, contrast) in gpus {
        // Software pays for every repetition.
        let repeats = gpu.asked_to_repeat() == Some(true);
        if repeats && !["embedded", "Q4_0"].contains(&name) {
            continue;
        }
        let repeats = if repeats { ", repeating" } else { "" };
        let name = format!("{name} {} one by one{repeats}", form(gpu));
        let mut backend = OneByOne(backend(gpu, model, 128));
        check_golden(&mut backend, &golden(), &name, *nmse, *contrast);
    }
}

#[test]
fn tokens_one_by_one_stay_near_the_golden_values() {
    let golden = Golden::read(&in_repository("tests/data/golden-tales-q4_k_m.json"));
    // The other ways to compute a token have a test of their own.
    let gpus = tiers_of_tokens(Tier::Subgroup);
    check_one_by_one(
        gpus.get(..1).unwrap_or_default(),
        &embedded(),
        || golden.clone(),
        "embedded",
    );
}

#[test]
#[ignore = "long: scripts/test --all"]
fn tokens_one_by_one_stay_near_the_golden_values_in_all_other_ways() {
    let golden = Golden::read(&in_repository("tests/data/golden-tales-q4_k_m.json"));
    let gpus = tiers_of_tokens(Tier::Subgroup);
    check_one_by_one(
        gpus.get(1..).unwrap_or_default(),
        &embedded(),
        || golden.with_a_prompt(),
        "embedded",
    );
}

#[test]
#[ignore = "long: scripts/test --all"]
fn tokens_one_by_one_stay_near_the_golden_values_of_every_tales_fixture() {
    let gpus = tiers_of_tokens(Tier::Subgroup);
    for ty in some(&FIXTURES, 1) {
        let (Some(model), Some(golden)) = (
            fixture(&format!("tales/tales-{ty}.gguf")),
            fixture(&format!("tales/golden-{ty}.json")),
        ) else {
            return;
        };
        let mut golden = Golden::read(&golden);
        for (name, prompt) in &mut golden.prompts {
            for (_, _, at) in NEAR_TIES.iter().filter(|tie| (tie.0, tie.1) == (ty, name)) {
                prompt.cut(*at);
            }
        }
        check_one_by_one(&gpus, &load(&model), || golden.with_a_prompt(), ty);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn tokens_one_by_one_stay_near_the_golden_values_of_synthetic_models() {
    // Devices that repeat work, and those that multiply f16 one by one, run the built-in model in another test.
    let mut gpus = tiers_of_tokens(Tier::Int8);
    gpus.retain(|(gpu, ..)| {
        let alone = Activation::Halves { packed: false };
        gpu.asked_to_repeat() == Some(false) && gpu.activation() != alone
    });
    for (gpu, nmse, contrast) in drawn(&gpus, 1) {
        let mut one_by_one = |model: &Arc<Model>, n_ctx: usize| -> Box<dyn Backend> {
            Box::new(OneByOne(backend(gpu, model, n_ctx)))
        };
        eprintln!("{}", form(gpu));
        check_synthetic([1, 1], &mut one_by_one, *nmse, *contrast);
        check_small_files(1, &mut one_by_one, *nmse, *contrast);
    }
}

/// Tiers, whether halves are multiplied in pairs, and whether work is repeated.
const SERIAL: [(Tier, bool, bool); 4] = [
    (Tier::Subgroup, false, false),
    (Tier::Int8, false, true),
    (Tier::Subgroup, true, true),
    (Tier::Int8, false, false),
];

/// Devices of some of [`SERIAL`] where every dispatch waits for the one before it, with the limits of each.
fn serial_tiers(all: &[(Tier, bool, bool)]) -> Vec<(Arc<Gpu>, f64, f64)> {
    let open = |&(tier, packed, repeats_work): &(Tier, bool, bool)| {
        let gpu = open_with(GpuOptions {
            tier: Some(tier),
            repeats_work: Some(repeats_work),
            packed_halves: Some(packed),
            serial_passes: Some(true),
            ..Default::default()
        })?;
        let (nmse, contrast) = token_limits(&gpu);
        Some((gpu, nmse, contrast))
    };
    all.iter().filter_map(open).collect()
}

#[test]
#[ignore = "long: scripts/test --all"]
fn serial_passes_give_the_same_text_and_logits() {
    let model = embedded();
    let golden = Golden::read(&in_repository("tests/data/golden-tales-q4_k_m.json"));
    for (gpu, nmse, contrast_limit) in serial_tiers(&some(&SERIAL, 1)) {
        let repeats_work = gpu.asked_to_repeat();
        let name = format!("serial passes, {}, repeating {repeats_work:?}", form(&gpu));
        let mut found = OneByOne(backend(&gpu, &model, 128));
        check_golden(
            &mut found,
            &golden.with_a_prompt(),
            &name,
            nmse,
            contrast_limit,
        );
        // Fewer dispatches than in the other mode, which leaves the same logits but for the order of sums.
        let parallel = open_with(GpuOptions {
            tier: Some(gpu.tier),
            repeats_work,
            packed_halves: Some(gpu.activation() == Activation::Halves { packed: true }),
            serial_passes: Some(false),
            ..Default::default()
        });
        let mut other = OneByOne(backend(&parallel.expect("as before"), &model, 128));
        let layers = model.layers.len();
        let dispatches = [&found, &other].map(|b| b.0.dispatches_per_token(0));
        assert_eq!(dispatches[0] + 2 * layers, dispatches[1], "{name}");
        for prompt in some(&["chat", "mixed", "story"], 1) {
            let prompt = &golden.prompts[prompt];
            let [rows, others] =
                [&mut found, &mut other].map(|b| all_logits(b, &prompt.tokens, &[]));
            let error = contrast(&rows, &others);
            eprintln!("{name}: contrast {error:.2e} between the modes");
            // A byte that turns may turn what comes behind it.
            if gpu.activation() != Activation::Bytes {
                assert!(error < contrast_limit, "{name}: contrast {error:.2e}");
                let n = prompt.greedy.len();
                let texts = [&mut found, &mut other].map(|b| greedy(b, &prompt.tokens, n));
                assert_eq!(texts[0], texts[1], "{name}: text");
            }
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn serial_passes_stay_near_the_golden_values_of_synthetic_models() {
    // The form in which a query leaves both as floats and prepared, as with bytes, and where less turns.
    let (gpu, nmse, contrast) = serial_tiers(&SERIAL[..1]).swap_remove(0);
    let mut one_by_one = |model: &Arc<Model>, n_ctx: usize| -> Box<dyn Backend> {
        Box::new(OneByOne(backend(&gpu, model, n_ctx)))
    };
    check_synthetic([1, 1], &mut one_by_one, nmse, contrast);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn slices_joined_by_either_way_and_other_geometries_give_the_same_logits() {
    for (gpu, limit, _) in tiers_of_tokens(Tier::Int8) {
        // Of one position's spread halves stray more than of all positions' logits.
        let halves = gpu.activation().is_halves();
        check_choices(&gpu, if halves { 20.0 * limit } else { limit });
    }
}

/// `gpu` is a device of its own for the choices: they are the device's.
fn check_choices(gpu: &Arc<Gpu>, limit: f64) {
    let activation = gpu.activation();
    let model = GpuModel::load(Arc::clone(gpu), embedded(), &mut |_, _| {}).wait();
    let model = Arc::new(model.expect("the model fits"));
    // With the choices of the moment.
    let backend = || {
        GpuBackend::new(Arc::clone(&model), 1024)
            .wait()
            .expect("a small cache")
    };
    let tokens = random_tokens(5);
    // With 4 heads a context of some hundred rows is many slices.
    let logits = |backend: &mut GpuBackend| {
        backend.fill_cache(700).wait().expect("it fits");
        let mut found = vec![];
        for token in &tokens {
            let mut keep = |_, row: &[f32]| {
                found.push(row.to_vec());
                ControlFlow::Continue(())
            };
            let token = std::slice::from_ref(token);
            backend
                .logits(token, 700, &mut keep)
                .wait()
                .expect("it fits");
        }
        found
    };
    // A latent midway between two bytes or halves may round the other way, and that may turn a choice of experts, for some tokens:
    // so the median counts.
    let judged = |found: &[Vec<f32>], expected: &[Vec<f32>]| {
        let mut errors = contrasts(found, expected);
        errors.sort_by(f64::total_cmp);
        errors[errors.len() / 2]
    };
    let merge_up_to = |most| {
        gpu.choices.replace(Made {
            merge_up_to: [(activation.name().to_owned(), most)].into(),
            ..Made::default()
        });
    };
    merge_up_to(0);
    let mut usual = backend();
    let expected = logits(&mut usual);
    let apart = usual.dispatches_per_token(700);
    for most in [1, 1000] {
        merge_up_to(most);
        let mut backend = backend();
        let error = judged(&logits(&mut backend), &expected);
        assert!(
            error < limit,
            "up to {most} slices: contrast error {error:.2e}"
        );
        let fewer = if most == 1 { 0 } else { 6 };
        assert_eq!(backend.dispatches_per_token(700), apart - fewer);
        assert_eq!(backend.dispatches_per_token(0), apart - 6);
    }
    // The last of what could be chosen, everywhere.
    let machine = gpu.machine;
    for site in usual.sites() {
        let all = site.candidates(machine);
        gpu.choices
            .set(site, *all.last().expect("there is a default"));
    }
    let error = judged(&logits(&mut backend()), &expected);
    assert!(
        error < limit,
        "other geometries: contrast error {error:.2e}"
    );
}
