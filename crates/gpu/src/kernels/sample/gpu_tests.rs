//! Protects the choice of a token on the device: it is the one that the twin chooses, or the definition in f64 where
//! sums in another order may decide otherwise.

use super::*;
use crate::gpu::Gpu;
use crate::gpu::Most;
use crate::gpu::buffer::Buffer;
use crate::gpu::call::State;
use crate::gpu::testing::{Recorded, assert_refused, download, gpus, metal, upload};
use crate::kernels::cases::sample::cases;
use crate::kernels::sequences::CHOICE;
use crate::kernels::testing::{Rng, agree_everywhere, drawn, drawn_pairs};

mod batch;
mod cuts;

const N_CTX: usize = 500;
/// A word that no step writes.
const UNTOUCHED: u32 = 0xdead;

/// The vocabulary of a model. On a CPU that runs kernels for Metal it is smaller, but a thread still owns several slices.
fn large(of_a_model: usize) -> usize {
    if metal::wanted().is_some() {
        WG * WG + 5000
    } else {
        of_a_model
    }
}

/// The kernels on one GPU with their buffers.
struct Chooser<'a> {
    gpu: &'a Gpu,
    logits: Buffer,
    history: Buffer,
    /// The beginning of its ids in the history, behind those of other sequences.
    first_id: u32,
    results: [Buffer; 3],
    recording: Recorded,
    /// The word that fills the history behind the context.
    behind: u32,
}

impl<'a> Chooser<'a> {
    /// The chooser of a single sequence without pages.
    fn new(gpu: &'a Gpu, vocab: usize) -> Self {
        Self::of(gpu, vocab, None)
    }

    /// The chooser of the second of two sequences, for steps of a token alone.
    fn in_batch(gpu: &'a Gpu, vocab: usize) -> Self {
        let unused = || Range::words("not read", 8);
        let sequences = Sequences {
            table: unused(),
            pages: Some(unused()),
            work: unused(),
            page: 64,
            rows: 64,
            ids: 2 * (N_CTX as u32 + 1),
            alone: true,
        };
        Self::of(gpu, vocab, Some(&sequences))
    }

    fn of(gpu: &'a Gpu, vocab: usize, sequences: Option<&Sequences>) -> Self {
        let first_id = sequences.map_or(0, |_| N_CTX as u32 + 1);
        let logits = upload(gpu, &vec![0f32; vocab]);
        let history = upload(gpu, &vec![UNTOUCHED; first_id as usize + N_CTX + 1]);
        let results = [(); 3].map(|()| upload(gpu, &[UNTOUCHED; 4]));
        let ranges: Vec<_> = results.iter().map(Range::whole).collect();
        let choices = Range::words("not read", CHOICE as u64);
        let biases = Range::whole(&logit_bias::buffer(1));
        let rows = sequences.map(|sequences| Rows {
            sequences: Some(sequences),
            choices: &choices,
            biases: &biases,
            most: 1,
        });
        let calls = calls(
            rows.as_ref(),
            &Range::whole(&logits),
            vocab as u32,
            &Range::whole(&history),
            &ranges,
        );
        let most = Most::token(N_CTX as u32);
        let recording = Recorded::new(gpu, &calls, most, &State::default());
        Chooser {
            gpu,
            logits,
            history,
            first_id,
            results,
            recording,
            behind: UNTOUCHED,
        }
    }

    fn logits(&self, logits: &[f32]) {
        let bytes = bytemuck::cast_slice(logits);
        self.gpu.queue.write_buffer(self.logits.made(), 0, bytes);
    }

    /// The token after `context`, the last `tokens` of which were one step.
    fn choose(&self, context: &[u32], tokens: usize, sampling: &Sampling, step: u64) -> u32 {
        let (id, broken) = self.told(context, tokens, sampling, step);
        assert!(!broken, "all logits are finite");
        id
    }

    /// The token that [`choose`](Self::choose) gives, and whether a logit is told not to be finite.
    fn told(&self, context: &[u32], tokens: usize, sampling: &Sampling, step: u64) -> (u32, bool) {
        // Penalties find no ids of others.
        let first = self.first_id as usize;
        let mut history = vec![7; first];
        history.extend(context);
        history.resize(first + N_CTX + 1, self.behind);
        let bytes = bytemuck::cast_slice(&history);
        self.gpu.queue.write_buffer(self.history.made(), 0, bytes);
        let slot = step as usize % 3;
        let mut sampling = words(sampling, step);
        let number = 0xabc0_0000 + step as u32;
        sampling[NUMBER] = number;
        let state = State {
            pos: (context.len() - tokens) as u32,
            tokens: tokens as u32,
            slot,
            sampling,
            first_id: self.first_id,
            ..Default::default()
        };
        self.recording.submit(self.gpu, &state);
        let [id, told, proof, broken]: [u32; 4] = download(self.gpu, &self.results[slot], 4)
            .try_into()
            .expect("four words");
        assert_eq!((told, proof), (step as u32, number), "result");
        assert!(broken <= 1, "{broken}");
        history[first + context.len()] = id;
        let found: Vec<u32> = download(self.gpu, &self.history, history.len());
        assert_eq!(found, history, "the id follows the context");
        (id, broken == 1)
    }
}

/// Every token that the definition allows if sums may be off by `eps` of the whole.
fn admissible(
    logits: &[f32],
    recent: &[u32],
    sampling: &Sampling,
    step: u64,
    eps: f64,
) -> Vec<u32> {
    let mut logits = logits.to_vec();
    for (i, id) in recent.iter().enumerate() {
        if let Some(l) = logits.get_mut(*id as usize)
            && !recent[..i].contains(id)
        {
            *l = if *l > 0.0 {
                *l / sampling.repeat_penalty
            } else {
                *l * sampling.repeat_penalty
            };
            let count = recent.iter().filter(|other| *other == id).count();
            *l -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
        }
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k as usize);
    }
    let best = logits[order[0]];
    let weigh = |ids: &[usize], t: f32| -> Vec<f64> {
        ids.iter()
            .map(|i| (f64::from(logits[*i] - best) / f64::from(t)).exp())
            .collect()
    };
    // Lengths of the prefix that top-p may keep.
    let mut lengths = vec![order.len()];
    if sampling.top_p < 1.0 {
        let masses = weigh(&order, 1.0);
        let total: f64 = masses.iter().sum();
        let mut sum = 0.0;
        let p = f64::from(sampling.top_p);
        lengths.clear();
        for (i, mass) in masses.iter().enumerate() {
            let before = sum;
            sum += mass / total;
            if (i == 0 || before < p + eps) && sum >= p - eps {
                lengths.push(i + 1);
            }
        }
    }
    let mut allowed = vec![];
    for n in lengths {
        let mut kept = order[..n].to_vec();
        if sampling.min_p > 0.0 {
            kept.retain(|i| logits[*i] >= best + sampling.min_p.ln());
        }
        kept.sort_unstable();
        let weights = weigh(&kept, sampling.temperature);
        let total: f64 = weights.iter().sum();
        let drawn = f64::from(uniform(sampling.seed, step)) * total;
        let mut sum = 0.0;
        for (id, weight) in kept.iter().zip(weights) {
            let before = sum;
            sum += weight;
            if before <= drawn + eps * total && sum > drawn - eps * total {
                allowed.push(*id as u32);
            }
        }
    }
    allowed.sort_unstable();
    allowed.dedup();
    allowed
}

const PLAIN: Sampling = Sampling {
    temperature: 1.0,
    ..Sampling::GREEDY
};

#[test]
fn the_kernels_agree_with_their_twin() {
    agree_everywhere(gpus(), |_| cases());
}

#[test]
fn greedy_is_what_the_twin_chooses() {
    let mut rng = Rng::fresh();
    let of_a_model = [154_880, 102_400][rng.below(2)];
    for (gpu, &vocab) in drawn_pairs(gpus(), &[large(of_a_model), 300, 256, 1]) {
        let plain = rng.normals(vocab);
        // Few values make ties; NaN and infinities must not win or crash, and are told of.
        let odd = [1.0, 2.0, -0.0, 0.0, f32::NAN, f32::NEG_INFINITY];
        let tied: Vec<f32> = (0..vocab).map(|_| odd[rng.below(6)]).collect();
        let low: Vec<f32> = tied.iter().map(|x| x.min(0.0) - 3.0).collect();
        let nothing = vec![f32::NAN; vocab];
        let mut choosers = vec![Chooser::new(gpu, vocab)];
        choosers.extend((vocab == 300).then(|| Chooser::in_batch(gpu, vocab)));
        let all = [&plain, &tied, &low, &nothing];
        for (chooser, logits) in choosers.iter().flat_map(|c| all.map(|logits| (c, logits))) {
            chooser.logits(logits);
            // Presence and frequency whose sums are exact, so that nothing depends on how they are rounded.
            for (repeat, presence, frequency) in [
                (1.0, 0.0, 0.0),
                (1.3, 0.0, 0.0),
                (1.0, 0.5, 0.25),
                (1.3, -0.5, 0.0),
            ] {
                let mut context: Vec<u32> = (0..40).map(|_| rng.below(vocab + 5) as u32).collect();
                let sampling = Sampling {
                    repeat_penalty: repeat,
                    presence_penalty: presence,
                    frequency_penalty: frequency,
                    repeat_last_n: if presence < 0.0 { u32::MAX } else { 30 },
                    ..Sampling::GREEDY
                };
                // The best tokens are recent ones. Some lie beyond the reach of the penalty.
                let steps = if vocab > 1000 { 2 } else { 9 };
                for step in 0..steps {
                    let found = chooser.told(&context, 1 + step as usize % 3, &sampling, step);
                    let id = sample(logits, sampling.recent(&context), &sampling, step);
                    let twin = (id, !all_finite(logits));
                    assert_eq!(found, twin, "{vocab} tokens, {}", gpu.tier.name());
                    context.push(id);
                }
            }
        }
    }
}

#[test]
fn penalties_reach_the_whole_context_and_no_further() {
    let sampling = Sampling {
        presence_penalty: 1.0,
        repeat_last_n: u32::MAX,
        ..Sampling::GREEDY
    };
    let mut logits = [0.0; 300];
    (logits[7], logits[11]) = (3.0, 2.5);
    // The context has more tokens than a workgroup has threads, and the best is its last. The second best lies behind the context.
    let mut context = [50; 400];
    context[399] = 7;
    for gpu in drawn(gpus(), 1) {
        let mut chooser = Chooser::new(gpu, 300);
        chooser.behind = 11;
        chooser.logits(&logits);
        assert_eq!(chooser.choose(&context, 1, &sampling, 0), 11);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn draws_are_those_of_the_definition() {
    let mut rng = Rng::fresh();
    let settings = [
        PLAIN,
        Sampling { top_k: 40, ..PLAIN },
        Sampling {
            top_p: 0.9,
            ..PLAIN
        },
        Sampling {
            min_p: 0.05,
            ..PLAIN
        },
        // llama.cpp's defaults.
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.1,
            ..PLAIN
        },
        Sampling {
            top_k: 40,
            presence_penalty: 1.5,
            frequency_penalty: 0.75,
            ..PLAIN
        },
        Sampling {
            temperature: 3.0,
            top_k: 1000,
            top_p: 0.7,
            ..PLAIN
        },
        Sampling {
            top_p: 0.0,
            ..PLAIN
        },
        Sampling { top_k: 1, ..PLAIN },
    ];
    let (mut draws, mut unsure) = (0, 0);
    for (vocab, n) in [(large(154_880), 3), (2000, 12), (7, 12)] {
        for gpu in drawn(gpus(), 1) {
            let chooser = Chooser::new(gpu, vocab);
            for setting in settings {
                let logits: Vec<f32> = rng.normals(vocab).iter().map(|x| x * 5.0).collect();
                chooser.logits(&logits);
                for step in 0..n {
                    let context: Vec<u32> = (0..70).map(|_| rng.below(vocab) as u32).collect();
                    let sampling = Sampling {
                        seed: rng.bits(),
                        ..setting
                    };
                    let id = chooser.choose(&context, 1, &sampling, step);
                    let recent = sampling.recent(&context);
                    let allowed = admissible(&logits, recent, &sampling, step, 3e-6);
                    assert!(
                        allowed.contains(&id),
                        "{id} is not one of {allowed:?}: {vocab} tokens, {sampling:?}, {}",
                        gpu.tier.name()
                    );
                    draws += 1;
                    unsure += u32::from(allowed.len() > 1);
                }
            }
        }
    }
    assert!(
        unsure * 10 <= draws,
        "{unsure} of {draws} draws lie at the boundary of two tokens and test little"
    );
}

/// The tokens seen in draws that are nearly even over what is kept.
fn kept(chooser: &Chooser<'_>, logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    chooser.logits(logits);
    let hot = Sampling {
        temperature: 1000.0,
        ..*sampling
    };
    let mut seen: Vec<u32> = (0..80)
        .map(|step| chooser.choose(&[0], 1, &hot, step))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
#[ignore = "long: scripts/test --all"]
fn ties_at_a_threshold_go_to_the_lower_ids() {
    for gpu in drawn(gpus(), 1) {
        let vocab = 700;
        let chooser = Chooser::new(gpu, vocab);
        // Ties lie in three slices; the others are never drawn.
        let mut logits = vec![f32::MIN; vocab];
        for id in [5, 300, 301, 650] {
            logits[id] = 2.0;
        }
        logits[699] = 3.0;
        logits[0] = 1.0;
        let top_k = |top_k| kept(&chooser, &logits, &Sampling { top_k, ..PLAIN });
        assert_eq!(top_k(1), [699]);
        assert_eq!(top_k(3), [5, 300, 699]);
        assert_eq!(top_k(4), [5, 300, 301, 699]);
        assert_eq!(top_k(5), [5, 300, 301, 650, 699]);
        assert_eq!(top_k(6), [0, 5, 300, 301, 650, 699]);
        assert_eq!(top_k(500), [0, 5, 300, 301, 650, 699]);
        // Masses relative to the best: 1, four of e^-1, e^-2; the second of the ties crosses 0.6 of the whole.
        let top_p = |top_p| kept(&chooser, &logits, &Sampling { top_p, ..PLAIN });
        assert_eq!(top_p(0.6), [5, 300, 699]);
        assert_eq!(top_p(0.99), [0, 5, 300, 301, 650, 699]);
        let both = Sampling {
            top_k: 3,
            min_p: 0.3,
            ..PLAIN
        };
        assert_eq!(kept(&chooser, &logits, &both), [5, 300, 699]);
        assert_eq!(
            kept(&chooser, &logits, &Sampling { min_p: 0.4, ..both }),
            [699]
        );
    }
}

#[test]
fn a_logit_that_is_not_finite_is_told() {
    let mut rng = Rng::fresh();
    // Infinities, quiet and signalling NaN of both signs; then the greatest and the least numbers.
    let broken = [
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f80_0001,
        0xffff_ffff,
        0xff80_0001,
    ];
    let finite = [0x7f7f_ffff, 0xff7f_ffff, 1, 0x8000_0001, 0x8000_0000];
    for gpu in drawn(gpus(), 1) {
        for vocab in [700, large(102_400)] {
            let chooser = Chooser::new(gpu, vocab);
            let random = rng.normals(vocab);
            for (i, bits) in broken.into_iter().chain(finite).enumerate() {
                let mut logits = random.clone();
                let at = rng.below(vocab);
                logits[at] = f32::from_bits(bits);
                chooser.logits(&logits);
                let sampling = [Sampling::GREEDY, PLAIN][i % 2];
                let (_, told) = chooser.told(&[1, 2], 1, &sampling, i as u64);
                let what = format!("{bits:#x} at {at} of {vocab}, tier {}", gpu.tier.name());
                assert_eq!(told, i < broken.len(), "{what}");
                assert_eq!(all_finite(&logits), !told, "{what}");
            }
        }
    }
}

#[test]
fn even_draws_hit_the_exact_token_on_every_device() {
    let mut rng = Rng::fresh();
    for gpu in gpus() {
        // 512 equal weights: every sum is exact, so the kernel must agree with its twin to the token.
        let chooser = Chooser::new(gpu, 512);
        let logits = [0.5f32; 512];
        chooser.logits(&logits);
        for step in 0..40 {
            let sampling = Sampling {
                seed: rng.bits(),
                ..PLAIN
            };
            let id = chooser.choose(&[1, 2], 1, &sampling, step);
            assert_eq!(id, sample(&logits, &[], &sampling, step));
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn many_candidates_are_cut_where_the_definition_cuts() {
    let mut rng = Rng::fresh();
    let settings = [
        (256, 1.0, 0.0, 1.0),
        (257, 1.0, 0.0, 1.0),
        (3000, 0.9, 0.0, 1.0),
        (0, 0.5, 0.0, 1.0),
        (0, 0.999, 0.3, 2.0),
        (0, 0.95, 0.05, 0.8),
        (0, 1.0, 0.01, 1.0),
    ]
    .map(|(top_k, top_p, min_p, temperature)| Sampling {
        top_k,
        top_p,
        min_p,
        temperature,
        ..PLAIN
    });
    let (mut draws, mut unsure) = (0, 0);
    for (vocab, n) in [(large(154_880), 1), (5003, 4)] {
        // Even, so that all are candidates; on both sides of 0, where keys jump; few values, so that more tie than can be sorted;
        // few values among which most have no mass.
        let kinds: [&dyn Fn(f32) -> f32; 4] = [
            &|x| 20.0 + x * 0.2,
            &|x| x,
            &|x| (x * 2.0).round() * 0.5 + 10.0,
            &|x| {
                if x > 1.0 {
                    -1.0
                } else {
                    x.round() * 60.0 - 120.0
                }
            },
        ];
        for gpu in drawn(gpus(), 1) {
            let chooser = Chooser::new(gpu, vocab);
            for (kind, of) in kinds.iter().enumerate() {
                let logits: Vec<f32> = rng.normals(vocab).into_iter().map(of).collect();
                chooser.logits(&logits);
                for setting in settings {
                    for step in 0..n {
                        let sampling = Sampling {
                            seed: rng.bits(),
                            ..setting
                        };
                        let id = chooser.choose(&[0], 1, &sampling, step);
                        let allowed = admissible(&logits, &[], &sampling, step, 1e-6);
                        assert!(
                            allowed.contains(&id),
                            "{id} is not one of {allowed:?}: kind {kind} of {vocab} tokens, {sampling:?}, {}",
                            gpu.tier.name()
                        );
                        draws += 1;
                        unsure += u32::from(allowed.len() > 4);
                    }
                }
            }
        }
    }
    assert!(
        unsure * 2 <= draws,
        "{unsure} of {draws} draws lie at the boundary of several tokens and test little"
    );
}

#[test]
fn a_history_that_ends_with_the_context_is_refused() {
    let range = |name, n| Range::words(name, n);
    let calls = calls(
        None,
        &Range::floats("logits", 1000),
        1000,
        &range("history", 8),
        &[range("result", 4), Range::floats("result", 4)],
    );
    // The chosen id follows the context.
    assert_refused(&calls, 8, "sample_pick", "history");
    assert_refused(&calls, 9, "sample_scan", "history");
    // One of the alternatives.
    assert_refused(&calls, 7, "sample_pick", "chosen");
}
