//! Protects steps of few tokens by the kernels of a decoded token: each token gets what it gets alone, to the bit.

use super::*;
use crate::engine::gpu::precompose::nmse;
use crate::engine::gpu::{PrecomposeChoice, Precomposed};
use crate::gpu::Gpu;
use crate::model::NextnSource;
use crate::models;
use crate::recipes::Residence;
use crate::synth::{self, ModelName, Recipe, SynthOptions};
use crate::testing::drawn;

/// One way to run a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    model: ModelName,
    recipe: Recipe,
    tier: Tier,
    /// Whether workgroups repeat small work.
    repeats: bool,
    /// Cache rows up to which another kernel attends, for each workgroup that keeps a core busy.
    short: u32,
    /// Slices up to which `attn_v_b` joins them.
    joined: u32,
    precompose: PrecomposeChoice,
    /// Units of an input that pass through workgroup memory at least.
    staged: u32,
    /// The numbers that say how the workgroups of several tokens are divided: workgroups of a core, lanes of down, the tokens from which on
    /// experts are chosen apart, and from which on a core has two workgroups that absorb.
    divided: [u32; 4],
    /// Whether one sequence is longer, so that its context has more slices and pages.
    long: bool,
    /// Whether the model has a prediction layer.
    pub(super) nextn: bool,
}

impl Way {
    /// The model; nothing where the adapter cannot run it.
    pub(super) fn load(self) -> Option<Arc<GpuModel>> {
        let options = GpuOptions {
            tier: Some(self.tier),
            serial_passes: Some(false),
            repeats_work: Some(self.repeats),
            ..GpuOptions::default()
        };
        let mut gpu = match Gpu::open(&options).wait() {
            Ok(gpu) => gpu,
            Err(GpuError::TierUnsupported { .. }) => return None,
            Err(e) => panic!("these tests need a GPU adapter: {e}"),
        };
        let tuned = &mut gpu.target.machine.tuned;
        tuned.short_attention_rows = self.short;
        tuned.merged_slices = self.joined;
        tuned.staged_units_least = self.staged;
        tuned.prompt_as_one = 32;
        let [workgroups, lanes, apart, absorb] = self.divided;
        tuned.workgroups_of_several = workgroups;
        tuned.down_lanes_of_several = lanes;
        tuned.choice_apart_of = apart;
        tuned.absorb_more_of = absorb;
        tuned.as_one_of_batch = 16;
        let options = SynthOptions {
            layers: Some(3),
            nextn: self.nextn,
            ..SynthOptions::default()
        };
        let gguf = synth::without_matrices(self.model, self.recipe, &options).expect("a plan");
        let model = models::load_with_nextn(Arc::new(gguf), &NextnSource::IfAny);
        let model = model.expect("it is supported");
        let mut ignore = |_, _| {};
        let loaded = GpuModel::load_precomposed(
            Arc::new(gpu),
            model,
            Residence::Whole,
            self.precompose,
            N_CTX,
            &mut ignore,
        );
        let model = loaded.wait().expect("it fits");
        let kept = model
            .precomposed
            .as_ref()
            .map(|Precomposed { kept, .. }| *kept);
        assert_eq!(kept.unwrap_or(PrecomposeChoice::Off), self.precompose);
        Some(Arc::new(model))
    }

    /// Compares a step of several tokens, of one sequence or of several, with tokens alone.
    fn compare(self, rng: &mut Rng) {
        let Some(model) = self.load() else {
            eprintln!("skipped: {self:?}");
            return;
        };
        let made = GpuBackend::with_chunk(Arc::clone(&model), N_CTX, Some(16));
        let mut session = made.wait().expect("it fits");
        let longest = if self.long {
            60 + rng.below(70)
        } else {
            3 + rng.below(20)
        };
        let prompts = [1, longest, 2 + rng.below(4)];
        let prompts = prompts.map(|n| (0..n).map(|_| rng.below(500) as u32).collect());
        let mut run = Run::new(rng, &model, &prompts, 16);
        let mut found = vec![vec![]; prompts.len()];
        while run.sequences[1].1 + 16 < longest {
            run.step(&[0, 5 + rng.below(4), 0]);
        }
        for _ in 0..6 {
            // At least two tokens of a step.
            let mut counts = [1, 1, 0].map(|least| least + rng.below(5));
            rng.shuffle(&mut counts);
            for (sequence, row) in run.step(&counts) {
                found[sequence].push((run.sequences[sequence].1 - 1, row));
            }
        }
        assert!(run.batch.recipes.several_equal_one(run.batch.gpu()));
        for (sequence, found) in found.iter().enumerate() {
            let (ids, done) = &run.sequences[sequence];
            let expected = alone(&mut session, &ids[..*done]);
            let rows = complete(session.read_rows(0..*done)).expect("they are there");
            let halves = rows.as_chunks::<2>().0.iter();
            let rows: Vec<u16> = halves.map(|half| u16::from_le_bytes(*half)).collect();
            let own = run.rows(sequence, *done);
            let own: Vec<u16> = own.iter().map(|half| half.to_bits()).collect();
            assert!(own == rows, "rows of {done} tokens, {self:?}");
            for (at, row) in found {
                assert!(bits(row) == bits(&expected[*at]), "position {at}, {self:?}");
            }
        }
        let (ids, done) = &run.sequences[1];
        self.compare_prompts(rng, &mut session, &ids[..*done]);
    }

    /// Compares prompts of a session, in steps of several tokens, with tokens alone.
    fn compare_prompts(self, rng: &mut Rng, session: &mut GpuBackend, ids: &[u32]) {
        let expected = alone(session, ids);
        // The first prompt of a session is computed token by token.
        let first = session.prefill(&ids[..2], 0);
        first.wait().expect("it computes");
        let mut at = 0;
        while at < ids.len() {
            let count = (1 + rng.below(18)).min(ids.len() - at);
            let prefilled = session.prefill(&ids[at..at + count], at);
            prefilled.wait().expect("it computes");
            at += count;
            let kept: Vec<u32> = kept(session);
            assert!(
                kept == bits(&expected[at - 1]),
                "{count} until {at}, {self:?}"
            );
        }
    }
}

pub(super) fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|v| v.to_bits()).collect()
}

/// A way by lot, with these choices of weights to multiply.
pub(super) fn way(rng: &mut Rng, precompose: &[PrecomposeChoice]) -> Way {
    let mut one_of = |n: usize| rng.below(n);
    let models = [
        ModelName::TinyDs2,
        ModelName::TinyYoutu,
        ModelName::Tiny,
        ModelName::TinyGlm,
    ];
    Way {
        model: models[one_of(models.len())],
        recipe: Recipe::ALL[one_of(Recipe::ALL.len())],
        tier: [Tier::Subgroup, Tier::Int8][one_of(2)],
        repeats: one_of(2) == 0,
        short: [0, 1, 5][one_of(3)],
        joined: [0, 1, 2, 144][one_of(4)],
        precompose: precompose[one_of(precompose.len())],
        staged: [1, 48][one_of(2)],
        divided: [
            [1, 2, 8][one_of(3)],
            [2, 4, 32][one_of(3)],
            [1, 5, 64][one_of(3)],
            [1, 4, 64][one_of(3)],
        ],
        long: false,
        nextn: false,
    }
}

#[test]
fn a_step_of_several_tokens_gives_each_what_it_gets_alone_to_the_bit() {
    let mut rng = Rng::fresh();
    way(&mut rng, &[PrecomposeChoice::Off]).compare(&mut rng);
}

/// Models with grouped-query attention: 3, 7, 16 and 8 query heads to a key head.
const GROUPED: [ModelName; 4] = [
    ModelName::TinyLlama,
    ModelName::TinyQwen2,
    ModelName::TinyQwen3,
    ModelName::TinyQwen3Moe,
];

#[test]
fn a_step_of_several_tokens_does_so_with_grouped_queries() {
    let mut rng = Rng::fresh();
    for &model in drawn(&GROUPED, 1) {
        let way = way(&mut rng, &[PrecomposeChoice::Off]);
        let long = rng.below(2) == 0;
        Way { model, long, ..way }.compare(&mut rng);
    }
}

#[test]
fn a_short_context_is_attended_to_alike_in_one_dispatch_and_in_two() {
    let mut rng = Rng::fresh();
    // Heads of the others are no whole units of 32 values, and have no kernel for short contexts.
    for &model in drawn(&[ModelName::TinyQwen2, ModelName::TinyQwen3Moe], 1) {
        let way = Way {
            model,
            tier: Tier::Subgroup,
            ..way(&mut rng, &[PrecomposeChoice::Off])
        };
        let ids: Vec<u32> = (0..70).map(|_| rng.below(500) as u32).collect();
        let [two, one] = [0, 64].map(|short| {
            let model = Way { short, ..way }.load()?;
            let session = GpuBackend::with_chunk(model, N_CTX, Some(16)).wait();
            Some(alone(&mut session.expect("it fits"), &ids).concat())
        });
        if let (Some(two), Some(one)) = (two, one) {
            let error = nmse(&one, &two);
            assert!(error < 1e-6, "NMSE {error:e}, {way:?}");
            assert!(bits(&one) != bits(&two), "both in two: {way:?}");
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_step_of_several_tokens_does_so_in_every_way() {
    let mut rng = Rng::fresh();
    let choices = [
        PrecomposeChoice::Off,
        PrecomposeChoice::Qk,
        PrecomposeChoice::Vo,
        PrecomposeChoice::Both,
    ];
    for _ in drawn(&[(); 24], 24) {
        let way = way(&mut rng, &choices);
        let long = rng.below(3) == 0;
        Way { long, ..way }.compare(&mut rng);
    }
}
