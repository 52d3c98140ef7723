//! Protects the places of a choice where one token more or less would be kept, and draws that hit a running sum exactly. What is kept has a
//! number of tokens that is a power of two, and all have the same weight. So every sum is exact, and the device must agree with the twin.

use super::*;

/// A temperature so high that all that is kept has the same weight.
const EVEN: f32 = 1e30;
/// Tokens of a quarter of a slice, which the kernel reads as a whole.
const QUARTER: usize = 64;

const EVENLY: Sampling = Sampling {
    temperature: EVEN,
    ..Sampling::GREEDY
};

/// `low` for each token, but `high` where `chosen` says.
fn two_levels(vocab: usize, low: f32, high: f32, chosen: impl Fn(usize) -> bool) -> Vec<f32> {
    let logit = |id| if chosen(id) { high } else { low };
    (0..vocab).map(logit).collect()
}

/// Seeds for `steps` steps, with draws that `suits` takes by their step.
fn seeds(rng: &mut Rng, steps: u64, suits: impl Fn(u64, f32) -> bool) -> Vec<u64> {
    let seed = |step| {
        let mut seeds = std::iter::repeat_with(|| rng.bits());
        let seed = seeds.find(|seed| suits(step, uniform(*seed, step)));
        seed.expect("a draw that suits")
    };
    (0..steps).map(seed).collect()
}

/// Compares a choice for each seed, from one step to the next.
fn agrees(chooser: &Chooser<'_>, seeds: &[u64], logits: &[f32], setting: Sampling) {
    chooser.logits(logits);
    for (step, seed) in (0..).zip(seeds) {
        let sampling = Sampling {
            seed: *seed,
            ..setting
        };
        let found = chooser.choose(&[0], 1, &sampling, step);
        let twin = sample(logits, &[], &sampling, step);
        let draw = uniform(*seed, step);
        let tier = chooser.gpu.tier.name();
        assert_eq!(found, twin, "draw {draw}, {sampling:?}, tier {tier}");
    }
}

/// Whether a draw is an exact multiple of 1 / 16, odd and even ones in turn, but not 0.
fn sixteenth(step: u64, draw: f32) -> bool {
    let place = draw * 16.0;
    place > 0.0 && place.fract() == 0.0 && place as u64 % 2 == step % 2
}

#[test]
fn few_candidates_are_kept_to_the_last() {
    let mut rng = Rng::fresh();
    let any = seeds(&mut rng, 12, |_, _| true);
    let exact = seeds(&mut rng, 6, sixteenth);
    for gpu in drawn(gpus(), 1) {
        let chooser = Chooser::new(gpu, 2048);
        let best_only = Sampling {
            min_p: 1.0,
            ..EVENLY
        };
        // The best tokens are as many as threads, then half of them, in the last vector of each quarter. All of them are the best.
        let many = two_levels(2048, -20.0, 0.0, |id| id % QUARTER >= 56);
        agrees(&chooser, &any, &many, best_only);
        let half = two_levels(2048, -20.0, 0.0, |id| id % QUARTER >= 60);
        agrees(&chooser, &exact, &half, best_only);
        // The second of four reaches one half exactly.
        let four = two_levels(2048, -20.0, 0.0, |id| id % 512 == 300);
        let halves = Sampling {
            top_k: 4,
            top_p: 0.5,
            ..EVENLY
        };
        agrees(&chooser, &any, &four, halves);
        // The best is in the last slice. Its maximum must count once.
        let mut two = vec![-20.0; 2048];
        (two[2000], two[100]) = (1.0, 0.5);
        agrees(&chooser, &any, &two, Sampling { top_k: 2, ..EVENLY });
    }
}

#[test]
fn a_limit_of_the_whole_vocabulary_keeps_all_for_top_p() {
    let any = seeds(&mut Rng::fresh(), 6, |_, _| true);
    let sampling = Sampling {
        top_k: 256,
        top_p: 0.5,
        ..EVENLY
    };
    for gpu in drawn(gpus(), 1) {
        agrees(&Chooser::new(gpu, 256), &any, &[0.0; 256], sampling);
    }
}

#[test]
fn many_candidates_are_cut_at_the_exact_token() {
    let mut rng = Rng::fresh();
    let any = seeds(&mut rng, 12, |_, _| true);
    let exact = seeds(&mut rng, 6, sixteenth);
    for gpu in drawn(gpus(), 1) {
        let chooser = Chooser::new(gpu, 2048);
        let mut near = two_levels(2048, -12.0, 0.0, |id| id % QUARTER >= 56);
        for logit in near.iter_mut().filter(|logit| **logit == 0.0) {
            *logit = -0.1 * rng.uniform();
        }
        let check = |logits: &[f32], top_k, top_p, min_p| {
            let setting = Sampling {
                top_k,
                top_p,
                min_p,
                ..EVENLY
            };
            agrees(&chooser, &any, logits, setting);
        };
        // Min-p excludes none, so those that top-k left out by their ids must stay out.
        check(&[0.0; 2048], 1024, 1.0, 1.0);
        // The best alone reaches top-p, and the second alone would not.
        let mut pair = vec![-12.0; 2048];
        (pair[700], pair[300]) = (0.0, -0.1);
        check(&pair, 0, 0.4955, 0.0);
        // There are as many tokens to sort as threads.
        check(&near, 128, 1.0, 0.0);
        // Top-p counts what top-k keeps, also what min-p takes away: 100 of mass 1 and 74 of mass 1 / e.
        let mut levels = two_levels(2048, -12.0, 0.0, |id| id % 20 == 0 && id < 2000);
        (1000..2000).step_by(5).for_each(|id| levels[id + 1] = -1.0);
        check(&levels, 174, 0.5, 0.5);
        // Min-p excludes 400 tokens just below those that top-p cuts. All 206 of mass 1 are kept, and 50 of 100 of mass 0.9.
        let least = 20.0 + 0.9f32.ln();
        let mut crowd = vec![8.0; 2048];
        crowd[..400].fill(f32::from_bits(least.to_bits() - 1));
        crowd[400..500].fill(least);
        crowd[500..706].fill(20.0);
        check(&crowd, 0, 0.381_93, 0.9);
        // Top-p needs the last one that top-k keeps.
        let mut last = vec![0.0; 2048];
        last[0] = 3.0;
        check(&last, 4, 0.97, 0.0);
        // Draws that hit the end of a slice, or a token within it.
        agrees(&chooser, &exact, &[0.0; 2048], EVENLY);
    }
}

#[test]
fn slices_of_one_thread_end_at_the_exact_token() {
    let mut rng = Rng::fresh();
    let vocab = large(154_880);
    // A draw that hits the end of a slice behind which the same thread has another one, whether it has two or three.
    let within = |_, draw: f32| {
        let slice = draw * 256.0;
        slice.fract() == 0.0 && slice % 2.0 == 1.0 && slice % 3.0 == 1.0
    };
    let within = seeds(&mut rng, 4, within);
    // One token of each of more quarters than the kernel lists.
    let spread = two_levels(vocab, -20.0, 1.0, |id| {
        id % QUARTER == 0 && id < 300 * QUARTER
    });
    let of_256 = Sampling {
        top_p: 0.8517,
        ..EVENLY
    };
    for gpu in drawn(gpus(), 1) {
        let chooser = Chooser::new(gpu, vocab);
        let even = two_levels(vocab, -1000.0, 0.0, |id| id < WG * WG);
        agrees(&chooser, &within, &even, PLAIN);
        agrees(&chooser, &within, &spread, of_256);
        the_last_draw_takes_a_token_with_a_share(&chooser, vocab);
    }
}

/// The greatest draw below 1, where running sums of threads without tokens are rounded to more than those of threads with some.
fn the_last_draw_takes_a_token_with_a_share(chooser: &Chooser<'_>, vocab: usize) {
    let last = Sampling {
        seed: 26_204_472,
        ..PLAIN
    };
    assert_eq!(uniform(last.seed, 0), 1.0f32.next_down());
    // Threads with their slices, and shares in units of 2^-24. In `ends` no running sum of a thread with a share exceeds the
    // draw, but those of the empty threads behind them do. In `gap` that of an empty thread exceeds it, before the last share.
    let small = |units: f32| units.ln() - 24.0 * std::f32::consts::LN_2;
    let ends: Vec<_> = (1..18).map(|thread| (thread, 0, small(0.9))).collect();
    let mut gap: Vec<_> = (1..5).map(|thread| (thread, 0, small(0.6))).collect();
    gap.push((7, 1, small(1.5)));
    let slices_of_thread = vocab.div_ceil(WG).div_ceil(WG);
    for shares in [ends, gap] {
        let mut logits = vec![-1000.0; vocab];
        logits[5] = 0.0;
        let mut ids = vec![5];
        for (thread, slice, logit) in shares {
            let id = (thread * slices_of_thread + slice) * WG + 77;
            logits[id] = logit;
            ids.push(id);
        }
        chooser.logits(&logits);
        let id = chooser.choose(&[0], 1, &last, 0) as usize;
        assert!(
            ids.contains(&id),
            "{id} has no share, {}",
            chooser.gpu.tier.name()
        );
    }
}
