//! Protects the drafts of the prediction layer: its logits are those of the reference, whatever steps came before.

use super::*;
use crate::engine::Products;
use crate::engine::backend::BackendError;
use crate::engine::draft::{Acceptance, Drafter, Proposal, Verified};
use crate::gpu::Gpu;
use crate::kernels::sample::sample;
use crate::kernels::sampling::uniform;
use crate::model::NextnSource;
use crate::models::{self, Model, Part, Reference};
use crate::synth::{self, ModelName, Recipe, SynthOptions};

/// The layer on the CPU, with a text that is known.
struct Exact {
    reference: Box<dyn Reference>,
    width: usize,
    /// The state before each position of the text.
    before: Vec<f32>,
    /// The tokens of the text whose rows are there.
    rows: usize,
}

impl Exact {
    fn new(model: Arc<dyn Model>, text: &[u32]) -> Self {
        let width = model.config().embedding_length;
        let reference = model.reference(Products::Exact, N_CTX, N_CTX);
        let mut reference = reference.unwrap_or_else(|_| panic!("there is memory"));
        let go_on = &mut |_| ControlFlow::Continue(());
        let hidden = reference.forward(text, &[part(text.len(), 0)], go_on);
        let mut before = vec![0.0; width];
        before.extend(reference.normed(&hidden.expect("nobody breaks")));
        Self {
            reference,
            width,
            before,
            rows: 0,
        }
    }

    /// The logits that choose each of `drafts` behind the first `known` tokens of `text`.
    fn logits(&mut self, text: &[u32], known: usize, drafts: &[u32]) -> Vec<Vec<f32>> {
        let (first, width) = (self.rows, self.width);
        let before = &self.before[first * width..known * width];
        let own = part(known - first, first);
        let states = self.reference.predict(&text[first..known], before, &[own]);
        self.rows = known;
        let mut state = states[(known - 1 - first) * width..].to_vec();
        let mut all = vec![self.reference.predicted_head(&state)];
        for (i, draft) in drafts.iter().enumerate().take(drafts.len() - 1) {
            let own = part(1, known + i);
            state = self.reference.predict(&[*draft], &state, &[own]);
            all.push(self.reference.predicted_head(&state));
        }
        all
    }
}

fn part(tokens: usize, pos: usize) -> Part<'static> {
    Part {
        tokens,
        pos,
        pages: &[],
    }
}

/// A session with room for drafts, and its model.
fn session(tier: Tier, name: ModelName, recipe: Recipe) -> Option<GpuBackend> {
    let model = model(tier, name, recipe)?;
    Some(complete(GpuBackend::with_drafts(model, N_CTX, Some(32), 3)).expect("it fits"))
}

/// A model with a prediction layer.
fn model(tier: Tier, name: ModelName, recipe: Recipe) -> Option<Arc<GpuModel>> {
    let options = GpuOptions {
        tier: Some(tier),
        serial_passes: Some(false),
        ..GpuOptions::default()
    };
    let gpu = match Gpu::open(&options).wait() {
        Ok(gpu) => gpu,
        Err(GpuError::TierUnsupported { .. }) => return None,
        Err(e) => panic!("these tests need a GPU adapter: {e}"),
    };
    let options = SynthOptions {
        layers: Some(2),
        nextn: true,
        ..SynthOptions::default()
    };
    let bytes = synth::in_memory(name, recipe, &options).expect("a plan");
    let gguf = crate::gguf::Gguf::from_bytes(bytes, "a model").expect("it is whole");
    let model = models::load_with_nextn(Arc::new(gguf), &NextnSource::Own);
    let model = model.expect("it is supported");
    let model = GpuModel::load(Arc::new(gpu), model, &mut |_, _| {}).wait();
    Some(Arc::new(model.expect("it fits")))
}

/// A step over rows from the one at `last` on, with `drafts` of the layer.
fn step(session: &mut GpuBackend, last: usize, rows: usize, drafts: u32) -> BatchLanding {
    let token = |position: usize| BatchToken {
        sequence: 0,
        position: position as u32,
    };
    let tokens: Vec<_> = (last..last + rows).map(token).collect();
    let prediction = Prediction {
        sequence: 0,
        position: last as u32,
        behind: (last + 1 - session.batch.layer_rows) as u32,
        drafts,
    };
    let predictions = [prediction];
    let flight = complete(session.batch.submit(BatchStep {
        tokens: &tokens,
        choices: &vec![Sampling::GREEDY; rows],
        biases: &[],
        logits: &[],
        predictions: if drafts == 0 { &[] } else { &predictions },
    }));
    let landing = complete(session.batch.land(flight.expect("it runs"))).expect("it lands");
    if drafts > 0 {
        session.batch.layer_rows = last + 1;
    }
    landing
}

/// Compares drafts along a text, whose tokens are computed in steps of all kinds.
fn compare(tier: Tier, limit: f64, recipe: Recipe) {
    let mut rng = Rng::fresh();
    let name = [ModelName::Tiny, ModelName::TinyGlm][rng.below(2)];
    let Some(mut session) = session(tier, name, recipe) else {
        return;
    };
    // Some prompts end with steps of few tokens, whose rows are made later.
    let context = tokens(3 + rng.below(40));
    complete(session.prefill(&context, 0)).expect("it computes");
    let mut text = context.clone();
    let on_token = &mut |id| {
        text.push(id);
        ControlFlow::Continue(())
    };
    complete(session.decode(&context, &Sampling::GREEDY, 24, on_token)).expect("it decodes");
    let model = Arc::clone(&session.model().model);
    let mut exact = Exact::new(model, &text);
    complete(session.prefill(&context, 0)).expect("it computes");
    session
        .batch
        .write_ids(0, context.len(), &text[context.len()..=context.len()]);
    let (mut last, mut errors) = (context.len(), vec![]);
    while last + 5 < text.len() {
        let drafts = rng.below(4);
        if drafts == 0 {
            // All of them are right.
            let rows = 1 + rng.below(4);
            session.batch.write_ids(0, last, &text[last..last + rows]);
            step(&mut session, last, rows, 0);
            last += rows;
            session.batch.write_ids(0, last, &text[last..=last]);
            continue;
        }
        let landing = step(&mut session, last, drafts + 1, drafts as u32);
        assert_eq!(landing.drafts.len(), drafts);
        let logits = exact.logits(&text, last + 1, &landing.drafts);
        for (row, draft) in logits.iter().zip(&landing.drafts) {
            let best = sample(row, &[], &Sampling::GREEDY, 0);
            let near = row[best as usize] - row[*draft as usize];
            assert!(near < 0.3, "{draft} for {best}, {near} below");
        }
        errors.push(error(&session.batch, &logits[drafts - 1]));
        let same = landing.drafts.iter().zip(&text[last + 1..]);
        last += 1 + same.take_while(|(draft, id)| draft == id).count();
        session.batch.write_ids(0, last, &text[last..=last]);
    }
    errors.sort_by(f64::total_cmp);
    // Rounding may turn a near tie of experts.
    let middle = errors[errors.len() / 2];
    assert!(middle < limit, "{name:?} {recipe:?} {tier:?}: {errors:?}");
}

/// The error of the logits of the last draft of a step with one sequence.
fn error(batch: &GpuBatch, exact: &[f32]) -> f64 {
    let drafting = batch.drafting.as_ref().expect("it drafts");
    let Range { buffer, offset, .. } = &drafting.logits;
    let bytes = size_of_val(exact) as u64;
    let found: Vec<f32> = (batch.gpu().read(buffer, *offset, bytes))
        .wait()
        .expect("it reads");
    let exact: Vec<f64> = exact.iter().map(|v| f64::from(*v)).collect();
    nmse(&found, &exact)
}

/// A sequence of a batch whose tokens are all known.
struct Known {
    text: Vec<u32>,
    /// The tokens that are computed, and those that have rows of the layer.
    done: usize,
    rows: usize,
}

/// Computes tokens of the sequences, so many of each, and chooses one behind the last of each, which is put back.
fn compute(batch: &mut GpuBatch, all: &mut [Known], counts: &[usize]) {
    let (mut drawn, mut others) = (vec![], vec![]);
    for (sequence, (known, count)) in all.iter().zip(counts).enumerate() {
        let token = |position: usize| BatchToken {
            sequence: sequence as u32,
            position: position as u32,
        };
        let mut tokens: Vec<_> = (known.done..known.done + count).map(token).collect();
        drawn.extend(tokens.pop());
        others.extend(tokens);
    }
    let flight = complete(batch.submit(BatchStep {
        tokens: &[&drawn[..], &others].concat(),
        choices: &vec![Sampling::GREEDY; drawn.len()],
        biases: &[],
        logits: &[],
        predictions: &[],
    }));
    let landing = complete(batch.land(flight.expect("it runs"))).expect("it lands");
    for (sequence, (known, count)) in all.iter_mut().zip(counts).enumerate() {
        let is_behind = known.rows < known.done;
        known.done += count;
        if landing.layer_rows && !is_behind {
            known.rows = known.done;
        }
        if *count > 0 {
            let next = &known.text[known.done..=known.done];
            batch.write_ids(sequence as u32, known.done, next);
        }
    }
}

/// A batch with a sequence for each of these lengths, of a text that is a little longer.
fn sequences(model: &Arc<GpuModel>, lengths: &[usize]) -> (GpuBatch, Vec<Known>) {
    let per_sequence = N_CTX.div_ceil(PAGE as usize) as u32;
    let sizes = BatchSizes {
        n_ctx: N_CTX,
        pages: lengths.len() as u32 * per_sequence,
        sequences: lengths.len() as u32,
        tokens: 128,
        chunk: 160,
        drafts: 3,
    };
    let mut batch = complete(GpuBatch::new(Arc::clone(model), sizes)).expect("it fits");
    let mut all: Vec<Known> = vec![];
    for (sequence, length) in lengths.iter().enumerate() {
        let (sequence, text) = (sequence as u32, tokens(length + 10).to_vec());
        batch.write_ids(sequence, 0, &text);
        let first = sequence * per_sequence;
        let pages: Vec<u32> = (first..first + per_sequence).collect();
        batch.write_pages(sequence, 0, &pages);
        let (done, rows) = (0, 0);
        all.push(Known { text, done, rows });
    }
    (batch, all)
}

/// Computes the prompts of several sequences beside each other, and compares the first draft of each.
fn compare_mixed(tier: Tier, limit: f64, recipe: Recipe) {
    let mut rng = Rng::fresh();
    let name = [ModelName::Tiny, ModelName::TinyGlm][rng.below(2)];
    let Some(model) = model(tier, name, recipe) else {
        return;
    };
    let lengths = [30, 50, 3, 15, 25, 6].map(|length| length + rng.below(10));
    let (mut batch, mut all) = sequences(&model, &lengths);
    // By the kernels of many tokens, then of few, and the rest.
    for sum in [100, 14, usize::MAX] {
        let mut counts = vec![0; all.len()];
        let is_whole =
            |counts: &[usize], which: usize| all[which].done + counts[which] == lengths[which];
        while counts.iter().sum::<usize>() < sum {
            let left: Vec<usize> = (0..all.len())
                .filter(|which| !is_whole(&counts, *which))
                .collect();
            let Some(last) = left.len().checked_sub(1) else {
                break;
            };
            counts[left[rng.below(last + 1)]] += 1;
        }
        compute(&mut batch, &mut all, &counts);
    }
    // Then they decode, all at once or some of them.
    for _ in 0..9 {
        let counts: Vec<usize> = (0..all.len()).map(|_| rng.below(2)).collect();
        if counts.contains(&1) {
            compute(&mut batch, &mut all, &counts);
        }
    }
    let mut errors = vec![];
    for (sequence, known) in all.iter().enumerate().take(3) {
        let token = |position| BatchToken {
            sequence: sequence as u32,
            position: (known.done + position) as u32,
        };
        let prediction = Prediction {
            sequence: sequence as u32,
            position: known.done as u32,
            behind: (known.done + 1 - known.rows) as u32,
            drafts: 1,
        };
        assert!(prediction.behind <= 10, "{prediction:?}: {lengths:?}");
        let flight = complete(batch.submit(BatchStep {
            tokens: &[token(0), token(1)],
            choices: &[Sampling::GREEDY; 2],
            biases: &[],
            logits: &[],
            predictions: &[prediction],
        }));
        let landing = complete(batch.land(flight.expect("it runs"))).expect("it lands");
        let mut exact = Exact::new(Arc::clone(&model.model), &known.text);
        let logits = exact.logits(&known.text, known.done + 1, &landing.drafts);
        errors.push(error(&batch, &logits[0]));
    }
    errors.sort_by(f64::total_cmp);
    // Rounding may turn a near tie of experts.
    assert!(
        errors[errors.len() / 2] < limit,
        "{name:?} {recipe:?} {tier:?}: {errors:?}"
    );
}

#[test]
fn prompts_beside_others_have_rows_of_the_layer() {
    compare_mixed(Tier::Subgroup, 1e-4, Recipe::Q8_0);
}

#[test]
fn drafts_have_the_logits_of_the_reference() {
    compare(Tier::Subgroup, 1e-4, Recipe::Q8_0);
}

#[test]
fn drafts_for_choices_of_the_host_are_those_of_steps() {
    let mut rng = Rng::fresh();
    let made = || session(Tier::Subgroup, ModelName::TinyGlm, Recipe::Q8_0);
    let (Some(mut by_step), Some(mut by_host)) = (made(), made()) else {
        return;
    };
    let text = tokens(48);
    let mut last = 20 + rng.below(20);
    for session in [&mut by_step, &mut by_host] {
        complete(session.prefill(&text[..last], 0)).expect("it computes");
    }
    while last + 3 < text.len() {
        let rows = 1 + rng.below(2);
        let drafts = rng.below(4);
        if drafts > 0 {
            // The step before has put the tokens that it chose behind its rows, and the text has others.
            by_step.batch.write_ids(0, 0, &text[..=last]);
            let landing = step(&mut by_step, last, 1, drafts as u32);
            let found = complete(by_host.predict(&text[..=last], drafts));
            assert_eq!(found.expect("it predicts"), landing.drafts, "at {last}");
        }
        by_step.batch.write_ids(0, last, &text[last..last + rows]);
        step(&mut by_step, last, rows, 0);
        let on_row = &mut |_, _: &[f32]| ControlFlow::Continue(());
        let next = &text[last..last + rows];
        complete(by_host.logits(next, last, on_row)).expect("it computes");
        last += rows;
    }
    assert!(
        complete(by_host.predict(&[], 2))
            .expect("nothing")
            .is_empty()
    );
}

#[test]
#[ignore = "long: scripts/test --all"]
fn drafts_have_them_in_every_tier() {
    for recipe in [Recipe::Q8_0, Recipe::Q4KM] {
        compare(Tier::Subgroup, 1e-4, recipe);
        compare(Tier::Int8, 2e-3, recipe);
        compare_mixed(Tier::Subgroup, 1e-4, recipe);
        compare_mixed(Tier::Int8, 2e-3, recipe);
    }
}

/// Has as many drafts in each step, of which as many count as accepted as a lot says, or those that were chosen.
struct Forced {
    seed: u64,
    lots: u64,
    drafts: usize,
    /// Whether they count by lot, and whether the device is told so before.
    by_lot: bool,
    flies: bool,
    steps: usize,
}

impl Forced {
    fn lot(&mut self, most: usize) -> usize {
        self.lots += 1;
        let lot = uniform(self.seed, self.lots) * (self.drafts + 1) as f32;
        most.min(lot as usize)
    }
}

impl Drafter for Forced {
    fn propose(&mut self, _: &[u32], _: usize) -> Proposal {
        Proposal::Predict(self.drafts)
    }

    fn accepted(&mut self, drafts: &[u32], chosen: &[u32]) -> usize {
        let pairs = drafts.iter().zip(chosen);
        match self.by_lot {
            true => self.lot(drafts.len()),
            false => pairs.take_while(|(draft, chosen)| draft == chosen).count(),
        }
    }

    fn acceptance(&mut self, drafts: usize) -> Acceptance {
        match (self.flies, self.by_lot) {
            (false, _) => Acceptance::Told,
            (true, false) => Acceptance::Chosen,
            (true, true) => Acceptance::Fixed(self.lot(drafts)),
        }
    }

    fn verified(&mut self, _: &Verified) {
        self.steps += 1;
    }
}

/// Compares texts of steps in flight with those of steps for which the host waits.
fn compare_in_flight(tier: Tier, drafts: usize) {
    let mut rng = Rng::fresh();
    let name = [ModelName::Tiny, ModelName::TinyGlm][rng.below(2)];
    let Some(mut session) = session(tier, name, Recipe::Q8_0) else {
        return;
    };
    let context = tokens(3 + rng.below(100));
    let limit = 60 + rng.below(30);
    let seed = rng.bits();
    let sampling = Sampling {
        temperature: [0.0, 0.9][rng.below(2)],
        repeat_penalty: 1.2,
        seed,
        ..Sampling::GREEDY
    };
    for by_lot in [true, false] {
        let mut answers = [true, false].map(|flies| {
            let mut drafter = Forced {
                seed,
                lots: 0,
                drafts,
                by_lot,
                flies,
                steps: 0,
            };
            let mut said = vec![];
            let on_token = &mut |id| {
                said.push(id);
                ControlFlow::Continue(())
            };
            complete(session.prefill(&context, 0)).expect("it computes");
            let drafter: &mut dyn Drafter = &mut drafter;
            complete(session.decode_drafted(&context, &sampling, limit, drafter, on_token))
                .expect("it decodes");
            let rows = context.len() + limit - 1;
            let rows = complete(session.read_rows(0..rows)).expect("they are there");
            (said, rows)
        });
        assert_eq!(answers[0].0, answers[1].0, "{name:?} {sampling:?} {by_lot}");
        assert_eq!(answers[0].0.len(), limit);
        // Rows of the layer for the last tokens are made by the next step.
        let layers = session.batch.recipes.cache().len();
        let blocks = session.model().model.config().block_count;
        for (_, rows) in &mut answers {
            rows.truncate(rows.len() / layers * blocks);
        }
        assert!(
            answers[0].1 == answers[1].1,
            "{name:?} {sampling:?} {by_lot}"
        );
    }
}

#[test]
fn steps_in_flight_leave_what_steps_leave_that_the_host_awaits() {
    compare_in_flight(Tier::Subgroup, 1 + Rng::fresh().below(3));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn they_do_so_with_any_number_of_drafts_in_every_tier() {
    for drafts in 1..=3 {
        compare_in_flight(Tier::Subgroup, drafts);
        compare_in_flight(Tier::Int8, drafts);
    }
}

/// Tells the device to go on behind the drafts that were chosen, and the host that their number was another.
struct Misjudging {
    drafts: usize,
}

impl Drafter for Misjudging {
    fn propose(&mut self, _: &[u32], _: usize) -> Proposal {
        Proposal::Predict(self.drafts)
    }

    fn accepted(&mut self, drafts: &[u32], chosen: &[u32]) -> usize {
        let pairs = drafts.iter().zip(chosen);
        let right = pairs.take_while(|(draft, chosen)| draft == chosen).count();
        (right + 1) % (drafts.len() + 1)
    }

    fn acceptance(&mut self, _: usize) -> Acceptance {
        Acceptance::Chosen
    }

    fn verified(&mut self, _: &Verified) {}
}

#[test]
fn a_step_that_began_elsewhere_than_the_host_says_is_an_error() {
    let mut rng = Rng::fresh();
    let drafts = 1 + rng.below(3);
    let Some(mut session) = session(Tier::Subgroup, ModelName::TinyGlm, Recipe::Q8_0) else {
        return;
    };
    let context = tokens(20 + rng.below(40));
    complete(session.prefill(&context, 0)).expect("it computes");
    let mut said = 0;
    let on_token = &mut |_| {
        said += 1;
        ControlFlow::Continue(())
    };
    let drafter: &mut dyn Drafter = &mut Misjudging { drafts };
    let sampling = Sampling::GREEDY;
    let decoded = complete(session.decode_drafted(&context, &sampling, 30, drafter, on_token));
    let error = match decoded {
        Err(BackendError::Gpu(error)) => *error,
        other => panic!("{other:?}"),
    };
    let GpuError::WorkLost {
        what,
        expected,
        found,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(what, "the position of a step with drafts");
    // The host is one token ahead, or behind by all drafts.
    let apart = i64::from(found) - i64::from(expected);
    assert!([-1, drafts as i64].contains(&apart), "{expected}, {found}");
    // The first step is taken as the host sees it. Mostly the second is in flight by then, and else a later one.
    assert!((2..30).contains(&said), "{said} tokens");
    // The next answer knows nothing of it.
    let mut answers = [false, true].map(|flies| {
        let mut drafter = Forced {
            seed: 0,
            lots: 0,
            drafts,
            by_lot: false,
            flies,
            steps: 0,
        };
        let mut said = vec![];
        let on_token = &mut |id| {
            said.push(id);
            ControlFlow::Continue(())
        };
        complete(session.prefill(&context, 0)).expect("it computes");
        let drafter: &mut dyn Drafter = &mut drafter;
        let decoded = session.decode_drafted(&context, &sampling, 20, drafter, on_token);
        complete(decoded).expect("it decodes");
        said
    });
    let [waited, flown] = &mut answers;
    assert_eq!(flown, waited);
}
