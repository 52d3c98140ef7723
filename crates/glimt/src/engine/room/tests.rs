//! Protects the decision where a model lies: whole wherever it has room, else partly, else a refusal with its numbers.

use super::*;
use crate::engine::ModelSource;
use crate::engine::disk::Disk;
use crate::gpu::behind::Behind;
use crate::gpu::bus::Bus;
use crate::model::NextnSource;
use crate::models;
use crate::synth::{ModelName, Plan, Recipe, SynthOptions, without_matrices};
use glimt_formats::testing::Rng;
use std::sync::Arc;

#[test]
fn the_longest_context_that_fits_is_found() {
    for limit in [0, 255, 256, 257, 1000, 4096, 5000, 9999, 10_000, 20_000] {
        let found = longest(10_000, &|n_ctx| Ok(n_ctx <= limit)).expect("it fits or not");
        let expected = match limit {
            0..256 => None,
            256..10_000 => Some(limit / STEP * STEP),
            _ => Some(10_000),
        };
        assert_eq!(found, expected, "{limit}");
    }
}

#[test]
fn a_model_that_thinks_gets_what_has_room() {
    let gguf = ModelSource::Embedded
        .open()
        .expect("it is part of the program");
    let model = models::load(Arc::new(gguf)).expect("it is supported");
    let cpu = Device::Cpu { because: None };
    let place = Place {
        site: Site::of(&cpu),
        model: &*model,
        ubatch: None,
        has_flag: true,
    };
    let context = |thinks| place.default_context(thinks).expect("it has room");
    // The built-in model was made for no more.
    assert_eq!([context(true), context(false)], [2048, 2048]);
    assert!(place.fits(2048, true).expect("it is read in place"));
    let plan = place.plan(Residence::Whole, 2048);
    let plan = plan.expect("it is read in place");
    assert_eq!(plan.cache, model.cache_bytes_per_token() * 2048);
}

#[test]
fn a_prediction_layer_takes_memory_where_it_is_loaded() {
    let options = SynthOptions {
        nextn: true,
        ..SynthOptions::default()
    };
    let [with, without] = [NextnSource::Own, NextnSource::None].map(|source| {
        let gguf = without_matrices(ModelName::TinyGlm, Recipe::Q4_0, &options).expect("a plan");
        let model = models::load_with_nextn(Arc::new(gguf), &source);
        model.expect("it has the layer")
    });
    let plan = |model: &Arc<dyn Model>| MemoryPlan::on_cpu(&**model, 512);
    let more = plan(&with).weights - plan(&without).weights;
    assert_eq!(more, with.nextn_bytes());
    // 64 experts of 3 matrices of 256 x 256, and less than a third of that beside them.
    let experts = 64 * 3 * 256 * 256 / 32 * 18;
    assert!((experts..experts * 4 / 3).contains(&more), "{more}");
    assert_eq!(without.nextn_bytes(), 0);
    let rows = plan(&with).cache - plan(&without).cache;
    assert_eq!(rows, 512 * 576 * 2);
    // As if the file had no layer.
    assert_eq!(plan(&without).weights, plan(&tiny()).weights);
}

/// A small model with experts.
fn tiny() -> Arc<dyn Model> {
    tiny_of(Recipe::Q4_0)
}

/// The small model in another mix of types.
fn tiny_of(recipe: Recipe) -> Arc<dyn Model> {
    let options = SynthOptions::default();
    let gguf = without_matrices(ModelName::TinyGlm, recipe, &options).expect("a plan");
    models::load(Arc::new(gguf)).expect("it is supported")
}

/// The place of a model in so many bytes of a device and of its host.
fn place<'a>(
    model: &'a dyn Model,
    target: &'a Target,
    device: u64,
    behind: Behind,
    host: Host,
) -> Place<'a> {
    let memory = Memory {
        device: Some(device),
        behind,
        host,
        experts: ExpertsFrom::Host,
        disk: Some(Disk::ASSUMED),
    };
    Place {
        site: Site::Gpu(target, memory),
        model,
        ubatch: None,
        has_flag: true,
    }
}

const CARD: Behind = Behind::Host(Bus::ASSUMED);
const N_CTX: usize = 512;

#[test]
fn a_model_is_whole_wherever_it_has_room_and_else_has_the_most_slots() {
    let (model, target) = (tiny(), Target::h200());
    let host = Host::of(64 << 30);
    let at = |device| place(&*model, &target, device, CARD, host);
    let plan = |residence| at(0).plan(residence, N_CTX).expect("it is planned");
    let whole = plan(Residence::Whole).total();
    for room in [whole, whole + 1, u64::MAX] {
        assert_eq!(at(room).check(N_CTX).expect("it fits"), None);
    }
    let least = plan(Residence::Slots(0));
    let experts = Experts::of(&target, &*model).expect("they have places");
    let experts = experts.expect("it has some");
    assert_eq!(least.host, whole_experts(&model, &target));
    // The fewest that keep any, one that is drawn, and the most.
    let drawn = Rng::fresh().below((experts.count - experts.used) as usize);
    let drawn = experts.used + drawn as u32;
    for slots in [experts.used, drawn, experts.count - 1] {
        let needed = plan(Residence::Slots(slots)).total();
        if needed >= whole {
            continue;
        }
        let found = at(needed).check(N_CTX).expect("it fits partly");
        let found = found.expect("it is not whole");
        assert_eq!((found.slots, found.experts), (slots, experts.count));
        let fewer = at(needed - 1).check(N_CTX).expect("it fits partly");
        assert!(fewer.is_some_and(|fewer| fewer.slots < slots));
    }
    let fewest = at(least.total()).check(N_CTX).expect("the rest fits");
    assert_eq!(fewest.map(|fewest| fewest.slots), Some(0));
    assert!(at(least.total() - 1).check(N_CTX).is_err());
}

/// Bytes of the experts of a model.
fn whole_experts(model: &Arc<dyn Model>, target: &Target) -> u64 {
    let experts = Experts::of(target, &**model).expect("they have places");
    let experts = experts.expect("it has some");
    experts.of_token * u64::from(experts.count) / u64::from(experts.used)
}

/// The sentence that refuses a place.
fn refused(place: &Place<'_>) -> String {
    let refused = place.check(N_CTX).expect_err("it has no room");
    refused.to_string()
}

#[test]
fn refusals_tell_what_is_missing() {
    let (model, target) = (tiny(), Target::h200());
    let host = Host::of(64 << 30);
    let at = |device, behind, host| place(&*model, &target, device, behind, host);
    let of = |residence| at(0, CARD, host).plan(residence, N_CTX).expect("a plan");
    let (whole, least) = (of(Residence::Whole), of(Residence::Slots(0)));
    let told = refused(&at(least.total() - 1, CARD, host));
    for expected in [
        format!("take {} in all", size(whole.total())),
        format!(
            "{} are needed there without any expert",
            size(least.total())
        ),
    ] {
        assert!(told.contains(&expected), "{expected}: {told}");
    }
    // The machine has a byte less than the experts take, beside the tenth that is left to others.
    let scarce = |bytes: u64| Host {
        total: Some(1 << 30),
        available: Some(bytes * 10 / 9),
    };
    let enough = at(least.total(), CARD, scarce(least.host + 10)).check(N_CTX);
    assert!(enough.expect("it fits").is_some());
    let told = refused(&at(least.total(), CARD, scarce(least.host - 10)));
    let expected = format!(
        "its experts, {}, have no room in the machine's memory",
        size(least.host)
    );
    assert!(told.contains(&expected), "{expected}: {told}");
    let told = refused(&at(1 << 20, CARD, host));
    assert!(told.contains("a smaller model would"), "{told}");
    // Half of the weights fit, with the shortest context.
    let short = at(0, CARD, host).plan(Residence::Whole, STEP);
    let short = short.expect("a plan");
    let half = short.total() - short.weights / 2;
    let told = refused(&at(half, Behind::Unified, host));
    let plan = |recipe| {
        let plan = Plan::new(ModelName::TinyGlm, recipe, &SynthOptions::default());
        plan.expect("a plan").byte_len()
    };
    let fits = |recipe: &Recipe| {
        let model = tiny_of(*recipe);
        let place = place(&*model, &target, half, Behind::Unified, host);
        place.check(STEP).is_ok()
    };
    let fitting = Recipe::ALL.into_iter().filter(fits);
    let largest = fitting.max_by_key(|recipe| plan(*recipe));
    let largest = largest.expect("some have half of the bits");
    let expected = format!(
        "a file of {}, which has about {}, fits with a context of {STEP} tokens; this one has {}",
        largest.name().to_uppercase(),
        size(plan(largest)),
        size(plan(Recipe::Q4_0))
    );
    assert!(told.contains(&expected), "{expected}: {told}");
    let told = refused(&at(whole.total() - 1, Behind::Browser, host));
    assert!(told.contains("a browser's shaders"), "{told}");
    let plain = Target {
        reads_host: false,
        tier: crate::gpu::Tier::Plain,
        ..target.clone()
    };
    let whole = place(&*model, &plain, 0, CARD, host);
    let whole = whole.plan(Residence::Whole, N_CTX).expect("a plan").total();
    let told = refused(&place(&*model, &plain, whole - 1, CARD, host));
    assert!(told.contains("the tiers 'subgroup' and 'int8'"), "{told}");
}

#[test]
fn a_mac_is_told_how_to_give_its_gpu_more_where_it_has_more() {
    let model = tiny();
    let mac = Target::named("Apple M4 Pro").expect("it is known");
    let needed = |host| {
        let place = place(&*model, &mac, 1 << 20, Behind::Unified, host);
        let whole = place.plan(Residence::Whole, N_CTX).expect("a plan");
        (whole.total(), refused(&place))
    };
    let (bytes, told) = needed(Host::of(24 << 30));
    let expected = format!(
        "sudo sysctl iogpu.wired_limit_mb={}` gives the GPU enough until the next start",
        bytes.div_ceil(1 << 20)
    );
    assert!(told.contains(&expected), "{expected}: {told}");
    // Such a machine has no room beside its system.
    let (_, told) = needed(Host::of(3 << 30));
    assert!(!told.contains("sysctl"), "{told}");
    let (_, told) = needed(Host::default());
    assert!(!told.contains("sysctl"), "{told}");
}

#[test]
fn experts_come_from_the_file_where_they_have_no_other_room() {
    let (model, target) = (tiny(), Target::h200());
    let host = Host::of(64 << 30);
    let at = |device, behind, host, experts, disk: f64| {
        let mut place = place(&*model, &target, device, behind, host);
        if let Site::Gpu(_, memory) = &mut place.site {
            memory.experts = experts;
            memory.disk = Some(disk.to_string().parse().expect("it is a speed"));
        }
        place
    };
    let of = |residence| {
        let place = place(&*model, &target, 0, CARD, host);
        place.plan(residence, N_CTX).expect("it is planned")
    };
    let least = of(Residence::File(0));
    // The experts stay in the file, and take the same room on the device as those in host memory.
    let in_host = of(Residence::Slots(0));
    assert_eq!((least.host, least.file), (0, in_host.host));
    assert!(least.total() <= in_host.total());
    let scarce = Host {
        total: Some(1 << 30),
        available: Some(least.file),
    };
    let found = |place: &Place<'_>| {
        let found = place.check(N_CTX).expect("it fits partly");
        found.expect("it is not whole")
    };
    let device = of(Residence::Whole).total() - 1;
    for (behind, host, experts, from_file) in [
        (CARD, host, ExpertsFrom::Auto, false),
        (CARD, host, ExpertsFrom::File, true),
        (CARD, scarce, ExpertsFrom::Auto, true),
        (Behind::Unified, host, ExpertsFrom::Auto, true),
    ] {
        let found = found(&at(device, behind, host, experts, 3.0));
        assert_eq!(matches!(found.way, Way::Disk(_)), from_file, "{found}");
        let residence = Partly::residence_of(Some(&found));
        assert_eq!(residence, found.way.residence(found.slots, None));
        assert_eq!(found.to_string().contains("stay in the file"), from_file);
    }
    let told = refused(&at(device, Behind::Unified, host, ExpertsFrom::Host, 3.0));
    assert!(!told.contains("file"), "{told}");
    let told = refused(&at(1 << 20, CARD, scarce, ExpertsFrom::Auto, 3.0));
    assert!(told.contains("without any expert"), "{told}");
    // A disk that gives one token in a second is of use, and a slower one only to whoever asks for it.
    let slots = f64::from(found(&at(device, CARD, host, ExpertsFrom::File, 3.0)).slots);
    let experts = Experts::of(&target, &*model).expect("they have places");
    let experts = experts.expect("it has some");
    let missing = (1.0 - slots / f64::from(experts.count)) * experts.of_token as f64 * 1e-9;
    let slow = |experts, share: f64| at(device, CARD, scarce, experts, missing * share);
    assert!(found(&slow(ExpertsFrom::Auto, 1.1)).tokens_per_s > 1.0);
    assert!(found(&slow(ExpertsFrom::File, 0.5)).tokens_per_s < 1.0);
    let told = refused(&slow(ExpertsFrom::Auto, 0.5));
    assert!(told.contains("0.50 tokens/s"), "{told}");
    assert!(told.contains("a file of"), "{told}");
}

#[test]
fn fewer_tokens_of_a_prompt_at_once_leave_room_for_experts_from_the_file() {
    let (model, target) = (tiny(), Target::h200());
    let host = Host::of(64 << 30);
    let of_experts = |device, experts| {
        let mut place = place(&*model, &target, device, CARD, host);
        if let Site::Gpu(_, memory) = &mut place.site {
            memory.experts = experts;
        }
        place
    };
    let at = |device| of_experts(device, ExpertsFrom::File);
    let of = |residence, at_once| {
        let plan = at(0).plan_at(residence, N_CTX, at_once);
        plan.expect("it is planned").total()
    };
    let found = |device| {
        let found = at(device).check(N_CTX).expect("it fits partly");
        found.expect("it is not whole")
    };
    let usual = of(Residence::File(0), None);
    assert_eq!(found(usual).at_once, None);
    let refused = |place: Place<'_>| place.check(N_CTX).expect_err("it has no room").to_string();
    let ubatch = Some(N_CTX as u32);
    assert!(
        refused(Place {
            ubatch,
            ..at(usual - 1)
        })
        .contains("without any expert")
    );
    // All tokens of this context at once are fewer than 512.
    let [few, one] = [(Residence::File(0), 64), (Residence::OneByOne(0), 1)]
        .map(|(residence, n)| of(residence, Some(n)));
    assert!(one < few && few < usual, "{one}, {few}, {usual}");
    for (device, at_once) in [(few, 64), (few - 1, 1), (one, 1)] {
        let found = found(device);
        assert_eq!(found.at_once, Some(at_once), "{found}");
        assert!(of(Partly::residence_of(Some(&found)), found.at_once) <= device);
        assert!(
            found.to_string().contains("prompts are computed"),
            "{found}"
        );
    }
    // Slots for those of a token leave no need for another room.
    let slots = found(few - 1).slots;
    let used = model.config().experts.as_ref().map_or(0, |e| e.used as u32);
    assert!(slots == 0 || slots >= used, "{slots}");
    for experts in [ExpertsFrom::File, ExpertsFrom::Auto] {
        let told = refused(of_experts(one - 1, experts));
        assert!(told.contains(&size(one)), "{}: {told}", size(one));
    }
}

#[test]
fn a_mac_reads_experts_from_the_file_and_is_told_how_to_do_without() {
    let model = tiny();
    let mac = Target::named("Apple M4 Pro").expect("it is known");
    let mut place = place(&*model, &mac, 0, Behind::Unified, Host::of(24 << 30));
    let whole = place.plan(Residence::Whole, N_CTX).expect("a plan").total();
    if let Site::Gpu(_, memory) = &mut place.site {
        memory.experts = ExpertsFrom::Auto;
        memory.device = Some(whole - 1);
    }
    let found = place.check(N_CTX).expect("it fits partly");
    let told = found.expect("it is not whole").to_string();
    let limit = whole.div_ceil(1 << 20);
    for expected in [
        "are read from the file (3.0 GB/s, assumed)".to_owned(),
        format!("all of it would fit: `sudo sysctl iogpu.wired_limit_mb={limit}`"),
    ] {
        assert!(told.contains(&expected), "{expected}: {told}");
    }
}
