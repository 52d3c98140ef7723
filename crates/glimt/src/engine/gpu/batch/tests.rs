//! Protects steps of several sequences: each gets the logits that it gets alone, whatever stands beside it and wherever its pages lie.

mod answered;
mod as_one;
mod drafted;
mod predicted;
mod shared;
mod slots;

use super::*;
use crate::engine::backend::Backend;
use crate::engine::gpu::GpuBackend;
use crate::engine::gpu::tests::{backend, backend_of, cut_everywhere, kept, tokens};
use crate::gpu::machine::Machine;
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::gpu::{GpuOptions, Tier};
use crate::kernels::sampling::Sampling;
use crate::kernels::testing::{Rng, nmse};
use crate::testing::some;
use half::f16;
use std::ops::ControlFlow;
use std::task::{Context, Poll, Waker};

const N_CTX: usize = 200;

/// Sequences in a batch, as the tests drive them.
struct Run {
    batch: GpuBatch,
    /// The tokens of each sequence, and how many of them are computed.
    sequences: Vec<(Vec<u32>, usize)>,
    free: Vec<u32>,
    pages: Vec<Vec<u32>>,
}

impl Run {
    /// A run in steps of up to `tokens` tokens.
    fn new(rng: &mut Rng, model: &Arc<GpuModel>, prompts: &[Vec<u32>], tokens: u32) -> Self {
        let per_sequence = N_CTX.div_ceil(PAGE as usize);
        let pages = (prompts.len() * per_sequence) as u32;
        let sizes = BatchSizes {
            n_ctx: N_CTX,
            pages,
            sequences: prompts.len() as u32,
            tokens,
            chunk: 0,
            drafts: 0,
        };
        let batch = complete(GpuBatch::new(Arc::clone(model), sizes)).expect("it fits");
        let mut free: Vec<u32> = (0..pages).collect();
        rng.shuffle(&mut free);
        for (sequence, prompt) in prompts.iter().enumerate() {
            batch.write_ids(sequence as u32, 0, prompt);
        }
        Self {
            batch,
            sequences: prompts.iter().map(|p| (p.clone(), 0)).collect(),
            free,
            pages: vec![vec![]; prompts.len()],
        }
    }

    /// Gives a sequence the page of a position.
    fn make_room(&mut self, sequence: usize, position: usize) {
        let own = &mut self.pages[sequence];
        while own.len() * PAGE as usize <= position {
            let page = self.free.pop().expect("there is one");
            self.batch.write_pages(sequence as u32, own.len(), &[page]);
            own.push(page);
        }
    }

    /// The cache rows of a sequence, as they lie in each layer of a session.
    fn rows(&self, sequence: usize, count: usize) -> Vec<f16> {
        let cache = self.batch.recipes.cache();
        let layer = |cache: &Range| {
            let all: Vec<u16> = (self.batch.gpu())
                .read(&cache.buffer, cache.offset, cache.size)
                .wait()
                .expect("it reads");
            let row = all.len() / (self.batch.sizes.pages * PAGE) as usize;
            let place = |position: usize| {
                let page = self.pages[sequence][position / PAGE as usize] as usize;
                page * PAGE as usize + position % PAGE as usize
            };
            let rows = (0..count).flat_map(|position| &all[place(position) * row..][..row]);
            rows.map(|bits| f16::from_bits(*bits)).collect::<Vec<_>>()
        };
        cache.iter().flat_map(layer).collect()
    }

    /// A step of `counts` tokens of the sequences, where these have some left, after the last of which a token is chosen and kept where it
    /// has none left. The logits of those, by sequence.
    fn step(&mut self, counts: &[usize]) -> Vec<(usize, Vec<f32>)> {
        let (mut drawn, mut others) = (vec![], vec![]);
        for (sequence, count) in counts.iter().enumerate() {
            let (ids, done) = &self.sequences[sequence];
            let end = (done + count).min(ids.len());
            let (done, all) = (*done, ids.len());
            for position in done..end {
                self.make_room(sequence, position);
                let token = BatchToken {
                    sequence: sequence as u32,
                    position: position as u32,
                };
                match position + 1 == all {
                    true => drawn.push(token),
                    false => others.push(token),
                }
            }
            self.sequences[sequence].1 = end;
        }
        let choices = vec![Sampling::GREEDY; drawn.len()];
        let all = [&drawn[..], &others].concat();
        let rows: Vec<usize> = (0..drawn.len()).collect();
        let flight = complete(self.batch.submit(BatchStep {
            tokens: &all,
            choices: &choices,
            biases: &[],
            logits: &rows,
            predictions: &[],
        }));
        let landing = flight.map(|flight| complete(self.batch.land(flight)));
        let landing = landing.expect("it runs").expect("it lands");
        assert_eq!(landing.ids.len(), drawn.len());
        let vocab = landing.logits.len() / drawn.len().max(1);
        let mut found = vec![];
        for (i, token) in drawn.iter().enumerate() {
            let sequence = token.sequence as usize;
            self.sequences[sequence].0.push(landing.ids[i]);
            found.push((sequence, landing.logits[i * vocab..][..vocab].to_vec()));
        }
        found
    }
}

/// The logits of every position of `ids`, computed one after another in the same tier.
fn alone(session: &mut GpuBackend, ids: &[u32]) -> Vec<Vec<f32>> {
    let row = |(position, id): (usize, &u32)| {
        session
            .prefill(&[*id], position)
            .wait()
            .expect("it computes");
        kept(session).into_iter().map(f32::from_bits).collect()
    };
    ids.iter().enumerate().map(row).collect()
}

#[test]
#[ignore = "long: scripts/test --all"]
fn each_sequence_gets_the_logits_that_it_gets_alone() {
    let mut rng = Rng::fresh();
    let tiers = [
        (Tier::Plain, 1e-8),
        (Tier::Subgroup, 1e-4),
        (Tier::Int8, 1e-3),
    ];
    for (tier, limit) in some(&tiers, 1) {
        let Some(mut session) = backend(tier, N_CTX, 8) else {
            continue;
        };
        let model = Arc::clone(&session.batch.model);
        let prompts: Vec<Vec<u32>> = [1, 30, 70, 5]
            .iter()
            .map(|n| tokens(*n + rng.below(8))[..].to_vec())
            .collect();
        let mut run = Run::new(&mut rng, &model, &prompts, 16);
        let mut found: Vec<Vec<(usize, Vec<f32>)>> = vec![vec![]; prompts.len()];
        while found.iter().any(|rows| rows.len() < 5) {
            let mut counts: Vec<usize> = prompts.iter().map(|_| rng.below(5)).collect();
            if rng.below(3) == 0 {
                // A step of one sequence, often of one token.
                let only = rng.below(counts.len());
                counts = (0..counts.len())
                    .map(|i| if i == only { 1 + rng.below(2) } else { 0 })
                    .collect();
            }
            if counts.iter().all(|count| *count == 0) {
                continue;
            }
            for (sequence, row) in run.step(&counts) {
                let at = run.sequences[sequence].1 - 1;
                found[sequence].push((at, row));
            }
        }
        for (sequence, found) in found.iter().enumerate() {
            assert_alone(&run, sequence, found, &mut session, limit);
        }
    }
}

/// Asserts that a sequence has the rows of the cache and the logits that it has alone.
fn assert_alone(
    run: &Run,
    sequence: usize,
    found: &[(usize, Vec<f32>)],
    session: &mut GpuBackend,
    limit: f64,
) {
    let (ids, done) = &run.sequences[sequence];
    let expected = alone(session, &ids[..*done]);
    let mut errors = vec![];
    for (at, row) in found {
        let exact: Vec<f64> = expected[*at].iter().map(|v| f64::from(*v)).collect();
        errors.push(nmse(row, &exact));
    }
    // Sums in another order may turn a near tie of experts. Such a row differs by any amount, and those that read it by less.
    errors.sort_by(f64::total_cmp);
    let most = errors[errors.len() / 2];
    let turned = errors.len().div_ceil(8);
    let tier = run.batch.gpu().tier.name();
    let told: Vec<String> = errors.iter().map(|error| format!("{error:.1e}")).collect();
    assert!(
        most <= limit && errors[errors.len() - 1 - turned] < 0.1,
        "{tier} of {} tokens: NMSE {}, in the middle above {limit:.0e} or more than {turned} above 0.1",
        ids.len(),
        told.join(", ")
    );
    let rows = complete(session.read_rows(0..*done)).expect("they are there");
    let halves = rows.as_chunks::<2>().0.iter();
    let exact: Vec<f64> = halves.map(|h| f16::from_le_bytes(*h).to_f64()).collect();
    let own: Vec<f32> = run
        .rows(sequence, *done)
        .iter()
        .map(|v| v.to_f32())
        .collect();
    let error = nmse(&own, &exact);
    assert!(
        error < 0.01,
        "{tier}, rows of {} tokens: NMSE {error:.1e}",
        ids.len()
    );
}

/// Steps of many tokens take the kernels of prompts, and those of few others; both leave the same rows and logits.
#[test]
#[ignore = "long: scripts/test --all"]
fn pieces_of_several_prompts_in_one_step_are_what_they_are_alone() {
    let mut rng = Rng::fresh();
    let tiers = [
        // The kernels of prompts add in another order.
        (Tier::Plain, Tier::Plain, 1e-7),
        (Tier::Subgroup, Tier::Subgroup, 1e-4),
        // Steps of prompts round nothing to bytes. A session in int8 does, and near ties of experts that turn in it show in all later logits.
        (Tier::Int8, Tier::Subgroup, 5e-4),
    ];
    for (tier, alone_in, limit) in some(&tiers, 1) {
        let Some(session) = backend(tier, N_CTX, 8) else {
            continue;
        };
        let model = session.batch.model;
        let mut session = backend(alone_in, N_CTX, 8).expect("a tier that int8 includes");
        let lengths = [20, 3, 150, 1].map(|n| n + rng.below(8));
        let prompts = lengths.map(|n| tokens(n)[..].to_vec());
        let mut run = Run::new(&mut rng, &model, &prompts, 256);
        let few = model.gpu.machine.tuned.few_of_batch as usize;
        let mut found: Vec<Vec<(usize, Vec<f32>)>> = vec![vec![]; prompts.len()];
        // The first step ends three prompts, and the second begins in the middle of the fourth beside the others' next tokens.
        for counts in [[80, 10, 70, 10], [1, 1, 90, 1], [1; 4], [1; 4]] {
            let before: usize = run.sequences.iter().map(|s| s.1).sum();
            for (sequence, row) in run.step(&counts) {
                let at = run.sequences[sequence].1 - 1;
                found[sequence].push((at, row));
            }
            let after: usize = run.sequences.iter().map(|s| s.1).sum();
            assert_eq!(after - before > few, counts != [1; 4]);
        }
        for (sequence, found) in found.iter().enumerate() {
            assert!(found.len() >= 3);
            assert_alone(&run, sequence, found, &mut session, limit);
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_sequence_alone_gets_the_logits_of_a_session_to_the_bit() {
    let mut rng = Rng::fresh();
    // The device decides whether one dispatch does the work of several, and which contexts are short.
    let mut either = || rng.below(2) == 0;
    let ways = [
        (Tier::Plain, false, false),
        (Tier::Subgroup, either(), either()),
        (Tier::Int8, either(), either()),
    ];
    for (tier, serial, repeats) in some(&ways, 1) {
        let options = GpuOptions {
            tier: Some(tier),
            serial_passes: Some(serial),
            repeats_work: Some(repeats),
            ..GpuOptions::default()
        };
        let shorten = |machine: &mut Machine| {
            machine.tuned.short_attention_rows = 5 * u32::from(repeats);
        };
        let Some(mut session) = backend_of(&options, &shorten, N_CTX, 8) else {
            continue;
        };
        let model = Arc::clone(&session.batch.model);
        let prompts = [tokens(3), tokens(1), tokens(2)];
        let mut run = Run::new(&mut rng, &model, &prompts, 16);
        // Pages of others lie between its own.
        run.step(&[3, 0, 2]);
        let mut found = vec![];
        // The rows of this sequence end in the second page.
        while found.len() < PAGE as usize + 20 {
            found.extend(run.step(&[0, 1, 0]));
        }
        let (ids, done) = &run.sequences[1];
        for (at, row) in alone(&mut session, &ids[..*done]).iter().enumerate() {
            let bits = |row: &[f32]| -> Vec<u32> { row.iter().map(|v| v.to_bits()).collect() };
            let same = bits(row) == bits(&found[at].1);
            assert!(same, "position {at}, {options:?}");
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn rows_come_back_through_kept_memory_whatever_became_of_others() {
    let Some(session) = backend(Tier::Subgroup, N_CTX, 8) else {
        return;
    };
    let mut rng = Rng::fresh();
    let prompts = [tokens(9), tokens(5), tokens(7), tokens(3)];
    let mut run = Run::new(&mut rng, &session.batch.model, &prompts, 32);
    run.step(&[8, 4, 6, 2]);
    let lasts: Vec<BatchToken> = (run.sequences.iter().zip(0..))
        .map(|((ids, _), sequence)| BatchToken {
            sequence,
            position: ids.len() as u32 - 1,
        })
        .collect();
    let batch = &mut run.batch;
    let submit = |batch: &mut GpuBatch, rows: &[usize]| {
        let step = BatchStep {
            tokens: &lasts,
            choices: &[Sampling::GREEDY; 4],
            biases: &[],
            logits: rows,
            predictions: &[],
        };
        complete(batch.submit(step)).expect("it runs")
    };
    // Small ones first, so that both buffers grow.
    for rows in [&[0][..], &[0], &[0, 1, 2, 3], &[0, 1, 2, 3]] {
        let flight = submit(batch, rows);
        let landing = complete(batch.land(flight)).expect("it lands");
        batch.take_back(landing.logits);
    }
    let buffers = batch.rows.staging.clone();
    let memory = batch.rows.spare.as_ptr();
    for _ in 0..6 {
        for rows in [&[2][..], &[0, 3], &[], &[3, 1, 0, 2], &[1]] {
            let mut flight = submit(batch, rows);
            match rng.below(3) {
                // Two are in flight, of which one is forgotten before it lands, or while it does.
                0 => drop(submit(batch, &[0, 1])),
                1 => {
                    let other = submit(batch, &[0, 1]);
                    let forgotten = std::mem::replace(&mut flight, other);
                    let mut landing = Box::pin(batch.land(forgotten));
                    let mut context = Context::from_waker(Waker::noop());
                    let polled = landing.as_mut().poll(&mut context);
                    drop(landing);
                    if let Poll::Ready(landing) = polled {
                        batch.take_back(landing.expect("it lands").logits);
                    }
                    let other = complete(batch.land(flight)).expect("it lands");
                    batch.take_back(other.logits);
                    flight = submit(batch, rows);
                }
                _ => {}
            }
            let landing = complete(batch.land(flight)).expect("it lands");
            let vocab = session.batch.model.model.config().vocab_size;
            assert_eq!(landing.logits.len(), rows.len() * vocab);
            for (row, of) in landing.logits.chunks_exact(vocab).zip(rows) {
                let best = sample::sample(row, &[], &Sampling::GREEDY, 0);
                assert_eq!(best, landing.ids[*of], "rows {rows:?}");
            }
            batch.take_back(landing.logits);
        }
    }
    assert!(batch.rows.staging == buffers && batch.rows.spare.as_ptr() == memory);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn biases_change_the_choices_of_their_own_rows_alone() {
    let Some(session) = backend(Tier::Subgroup, N_CTX, 8) else {
        return;
    };
    let mut rng = Rng::fresh();
    let prompts = [tokens(9), tokens(5), tokens(7)];
    let mut run = Run::new(&mut rng, &session.batch.model, &prompts, 32);
    run.step(&[8, 4, 6]);
    let last = |run: &Run, sequence: usize| BatchToken {
        sequence: sequence as u32,
        position: run.sequences[sequence].0.len() as u32 - 1,
    };
    let lasts: Vec<BatchToken> = (0..3).map(|sequence| last(&run, sequence)).collect();
    let mut choose = |tokens: &[BatchToken], biases: &[Biases]| {
        let step = BatchStep {
            tokens,
            choices: &vec![Sampling::GREEDY; tokens.len()],
            biases,
            logits: &[],
            predictions: &[],
        };
        let flight = complete(run.batch.submit(step)).expect("it runs");
        let landing = complete(run.batch.land(flight)).expect("it lands");
        assert!(!landing.broken.contains(&true));
        landing.ids
    };
    let plain = choose(&lasts, &[]);
    let only = |token: u32| Biases::new(&[(token, f32::INFINITY)]).expect("one");
    let none = Biases::default();
    assert_eq!(
        choose(&lasts, &[none.clone(), only(77)]),
        [plain[0], 77, plain[2]]
    );
    assert_eq!(choose(&lasts, &[only(78), only(77)]), [78, 77, plain[2]]);
    assert_eq!(
        choose(&lasts, &[none.clone(), none.clone(), only(79)]),
        [plain[0], plain[1], 79]
    );
    assert_eq!(choose(&lasts, &[]), plain);
    // A token alone.
    assert_eq!(choose(&lasts[1..2], &[only(80)]), [80]);
    let without = Biases::new(&[(plain[1], f32::NEG_INFINITY)]).expect("one");
    let other = choose(&lasts[1..2], std::slice::from_ref(&without));
    assert_ne!(other[0], plain[1]);
    assert_eq!(
        choose(&lasts, &[none, without]),
        [plain[0], other[0], plain[2]]
    );
    assert_eq!(choose(&lasts[1..2], &[]), plain[1..2]);
}
