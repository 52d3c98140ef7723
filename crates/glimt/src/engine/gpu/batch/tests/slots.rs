//! Protects experts in host memory and in the file: text and logits are those of a model that lies on the device, to the bit, whatever the slots hold.

use super::*;
use crate::engine::gpu::ExpertTraffic;
use crate::gguf::Gguf;
use crate::gpu::Gpu;
use crate::models;
use crate::recipes::Residence;
use crate::synth::{self, ModelName, Recipe, SynthOptions};
use tempfile::TempPath;

/// One way to run a model with slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) model: ModelName,
    pub(super) recipe: Recipe,
    pub(super) tier: Tier,
    pub(super) slots: u32,
    /// Whether experts come from the file; else they lie in host memory.
    pub(super) from_file: bool,
    /// Whether workgroups repeat small work.
    pub(super) repeats: bool,
    /// Whether few tokens have workgroups of their own for their experts.
    pub(super) apart: bool,
    /// Whether the weights come from a file; else they are made on the device.
    pub(super) file: bool,
}

/// A model of four layers.
fn small() -> SynthOptions {
    SynthOptions {
        layers: Some(4),
        ..SynthOptions::default()
    }
}

impl Way {
    /// The model on the device, and in host memory with slots; nothing where the adapter cannot run it.
    pub(super) fn models(self) -> Option<[Arc<GpuModel>; 2]> {
        let (models, _file) = self.models_of_a_file()?;
        Some(models)
    }

    /// The same, and the path of the file of a model that has its experts come from there.
    pub(super) fn models_of_a_file(self) -> Option<([Arc<GpuModel>; 2], TempPath)> {
        let file = tempfile::NamedTempFile::new().expect("there is room");
        let gguf = match (self.file, self.from_file) {
            (true, true) => {
                std::fs::write(file.path(), self.bytes()).expect("there is room");
                Gguf::open(file.path()).expect("it is whole")
            }
            (true, false) => Gguf::from_bytes(self.bytes(), "a small model").expect("it is whole"),
            (false, _) => {
                let plan = synth::without_matrices(self.model, self.recipe, &small());
                plan.expect("four layers are fine")
            }
        };
        Some((self.models_of(gguf)?, file.into_temp_path()))
    }

    /// The bytes of the model's file.
    pub(super) fn bytes(self) -> Vec<u8> {
        let bytes = synth::in_memory(self.model, self.recipe, &small());
        bytes.expect("four layers are fine")
    }

    /// The models of a container.
    pub(super) fn models_of(self, gguf: Gguf) -> Option<[Arc<GpuModel>; 2]> {
        let options = GpuOptions {
            tier: Some(self.tier),
            repeats_work: Some(self.repeats),
            ..GpuOptions::default()
        };
        let mut gpu = match Gpu::open(&options).wait() {
            Ok(gpu) => gpu,
            Err(GpuError::TierUnsupported { .. }) => return None,
            Err(e) => panic!("these tests need a GPU adapter: {e}"),
        };
        gpu.target.machine.tuned.as_one_of_batch = if self.apart { 8 } else { 1 };
        gpu.target.machine.tuned.apart_of_batch = if self.apart { 8 } else { 1 };
        let gpu = Arc::new(gpu);
        let model = models::load(Arc::new(gguf)).expect("it is supported");
        let partly = match self.from_file {
            true => Residence::File(self.slots),
            false => Residence::Slots(self.slots),
        };
        let residences = [Residence::Whole, partly];
        Some(residences.map(|residence| {
            let (gpu, model) = (Arc::clone(&gpu), Arc::clone(&model));
            let mut ignore = |_, _| {};
            let loaded = GpuModel::load_for(gpu, model, residence, 1, &mut ignore);
            Arc::new(loaded.wait().expect("it fits"))
        }))
    }

    /// Compares sessions, and steps of several sequences, whose tokens come one at a time and many at once.
    fn compare(self, rng: &Rng) {
        match self.models() {
            Some(models) => self.compare_models(&models, rng),
            None => eprintln!("skipped: {self:?}"),
        }
    }

    /// Compares them for two models, the first of which lies on the device.
    pub(super) fn compare_models(self, models: &[Arc<GpuModel>; 2], rng: &Rng) {
        let [whole, slots] = models.each_ref().map(|model| {
            // Both get the same.
            let mut rng = rng.clone();
            (session(model, &mut rng), sequences(model, &mut rng))
        });
        assert!(whole.0 == slots.0, "a session, {self:?}");
        assert!(whole.1 == slots.1, "several sequences, {self:?}");
        let counted = models
            .each_ref()
            .map(|model| complete(model.expert_traffic()).expect("they are there"));
        let experts = models[0].model.config().experts.as_ref();
        let [used, count] = experts.map_or([0; 2], |e| [e.used, e.count].map(|n| n as u32));
        assert_eq!(counted[0], None, "{self:?}");
        match counted[1] {
            None => assert!(self.slots < used, "{self:?}"),
            Some(ExpertTraffic {
                hits,
                misses,
                bytes,
            }) => {
                // At first the slots have the first experts.
                let (all, half) = (self.slots >= count, self.slots <= count / 2);
                assert!(misses == 0 || !all, "{misses} misses, {self:?}");
                assert!(misses > 0 || !half, "no misses, {self:?}");
                assert_eq!(bytes > 0, misses > 0, "{self:?}");
                assert!(hits > 0 || self.slots == used, "{self:?}");
            }
        }
    }
}

/// The bits of the kept logits of a session after each of its calls, and the tokens that it chooses.
fn session(model: &Arc<GpuModel>, rng: &mut Rng) -> Vec<u32> {
    let made = GpuBackend::with_chunk(Arc::clone(model), N_CTX, Some(16));
    let mut session = made.wait().expect("it fits");
    if rng.below(3) == 0 {
        // Each dispatch of a prompt in a submission of its own.
        cut_everywhere(&mut session);
    }
    let (mut ids, mut all) = (vec![], vec![]);
    // Prompts in chunks, in a step of few tokens and of one token, between answers.
    for count in [1, 20 + rng.below(8), 2 + rng.below(7), 1] {
        let before = ids.len();
        ids.extend((0..count).map(|_| rng.below(500) as u32));
        let prefilled = session.prefill(&ids[before..], before).wait();
        prefilled.expect("it computes");
        all.extend(kept(&session));
        let context = ids.clone();
        let on_token = &mut |id| {
            ids.push(id);
            ControlFlow::Continue(())
        };
        let decoded = session.decode(&context, &Sampling::GREEDY, 6 + rng.below(4), on_token);
        decoded.wait().expect("it computes");
        // The cache has no row of the last token.
        ids.pop();
        all.extend(&ids[context.len()..]);
    }
    all
}

/// The bits of the logits of several sequences, in steps of one token to 64 in which some begin and others go on.
fn sequences(model: &Arc<GpuModel>, rng: &mut Rng) -> Vec<u32> {
    let prompts = [20, 3, 40, 9].map(|n| tokens(n + rng.below(8))[..].to_vec());
    let mut run = Run::new(rng, model, &prompts, 64);
    let mut all = vec![];
    let mut step = |counts: [usize; 4]| {
        for (_, row) in run.step(&counts) {
            all.extend(row.iter().map(|v| v.to_bits()));
        }
    };
    for _ in 0..4 {
        // Most steps are small, and one that has no token for any sequence is none.
        let most = [1, 2, 4, 16][rng.below(4)];
        let mut counts = [0; 4].map(|_: usize| rng.below(most + 1));
        counts[rng.below(4)] += 1;
        step(counts);
    }
    // Steps that choose, whatever those before were.
    for counts in [
        [16; 4],
        [1; 4],
        [0, 1, 0, 0],
        [48, 1, 1, 0],
        [1; 4],
        [1, 1, 0, 0],
        [1, 0, 1, 1],
    ] {
        step(counts);
    }
    all
}

/// All ways in which the number of slots is one of interest.
fn ways() -> Vec<Way> {
    let mut all = vec![];
    for (model, used, count) in [
        (ModelName::Tiny, 2, 8),
        (ModelName::TinyDs2, 3, 8),
        (ModelName::TinyGlm, 4, 64),
    ] {
        // Any number, and those at which something changes: as many as two tokens choose, three or four.
        let any = Rng::fresh().below(count as usize) as u32;
        let few = [used - 1, used, used + 1, 2 * used, 3 * used, 4 * used];
        let all_slots = [0, any, count / 2, count - 1, count + 1];
        for slots in all_slots.into_iter().chain(few) {
            for tier in [Tier::Subgroup, Tier::Int8] {
                // Experts come only from a file that there is.
                for flags in (0..32).filter(|flags| flags & 20 != 20) {
                    all.push(Way {
                        model,
                        // The second has types with a grid.
                        recipe: [Recipe::Q4KM, Recipe::Iq2M][flags >> 3 & 1],
                        tier,
                        slots,
                        from_file: flags & 16 == 16,
                        repeats: flags & 1 == 1,
                        apart: flags & 2 == 2,
                        file: flags & 4 == 0,
                    });
                }
            }
        }
    }
    all
}

#[test]
fn a_step_of_as_many_tokens_as_slots_suffice_for_keeps_its_experts() {
    // A token has 2 experts. By powers of 2 the step of 3 tokens is that of 4.
    for (slots, apart, kept) in [
        (6, false, [true, true, false]),
        (6, true, [true, true, false]),
        (5, false, [true, false, false]),
    ] {
        let way = Way {
            model: ModelName::Tiny,
            recipe: Recipe::Q4KM,
            tier: Tier::Subgroup,
            slots,
            from_file: false,
            repeats: false,
            apart,
            file: true,
        };
        let Some([_, model]) = way.models() else {
            return eprintln!("skipped: {way:?}");
        };
        let run = Run::new(
            &mut Rng::fresh(),
            &model,
            &[1, 1, 1, 1].map(|n| tokens(n)[..].to_vec()),
            64,
        );
        let keeps = [2, 3, 4].map(|tokens| {
            let class = run.batch.class(tokens);
            let step = run
                .batch
                .recipes
                .step(&model.gpu, class)
                .expect("it is a step");
            step.calls.iter().any(|call| call.kernel == "expert_places")
        });
        assert_eq!(keeps, kept, "{way:?}");
    }
}

#[test]
fn experts_in_host_memory_give_the_bits_of_experts_on_the_device() {
    compare_small(false);
}

#[test]
fn experts_from_the_file_give_the_bits_of_experts_on_the_device() {
    compare_small(true);
}

fn compare_small(from_file: bool) {
    let small: Vec<_> = ways()
        .into_iter()
        .filter(|way| way.model != ModelName::TinyGlm && way.file && way.from_file == from_file)
        .collect();
    for way in some(&small, 1) {
        way.compare(&Rng::fresh());
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn experts_elsewhere_give_the_bits_of_experts_on_the_device_in_every_way() {
    for way in some(&ways(), 24) {
        way.compare(&Rng::fresh());
    }
}
