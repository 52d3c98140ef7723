//! How many tokens of prompts join a step: as many as keep it short for those that wait for the next one, by the times of the last steps.

use std::time::{Duration, Instant};

/// What a step takes at most in which prompts join sequences that decode, as far as it can be foretold: people read along.
const BESIDE: f64 = 0.030;
/// The same where none decodes: whoever comes meanwhile waits for it.
const ALONE: f64 = 0.100;
/// Tokens of prompts that join a step however long it takes, so that every prompt comes to its end.
const LEAST: usize = 32;
/// Tokens of the first step with prompts, of which no time is known.
const FIRST: f64 = 64.0;
/// How much of what is known of decoding a step replaces.
const NEWS: f64 = 0.25;

/// What a step was for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filled {
    /// Its tokens.
    pub(super) tokens: usize,
    /// Those of them that are no decoded ones.
    pub(super) prompts: usize,
    /// Whether prompts had more that would not have fit into the pace.
    pub(super) is_full: bool,
    /// When it was submitted.
    pub(super) at: Instant,
}

/// What is known of the times of steps.
#[derive(Debug)]
pub(super) struct Pace {
    /// Seconds for each token of a step with prompts.
    per_token: f64,
    /// Seconds of a step without.
    decoding: f64,
    /// When the last step had landed.
    landed: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            per_token: ALONE / FIRST,
            decoding: 0.0,
            landed: Instant::now(),
        }
    }

    /// Tokens of prompts that join a step which `decoded` tokens are in, if it has `most` at most. `beside` tells whether sequences decode
    /// that may wait for its end.
    pub(super) fn room(&self, decoded: usize, beside: bool, most: usize) -> usize {
        // On a slow device decoding alone takes longer than that. Then prompts get half of the time.
        let target = match beside {
            true => BESIDE.max(2.0 * self.decoding),
            false => ALONE,
        };
        let all = (target / self.per_token) as usize;
        let left = most.saturating_sub(decoded);
        all.saturating_sub(decoded).max(LEAST).min(left)
    }

    /// A step has landed.
    pub(super) fn landed(&mut self, step: Filled) {
        let now = Instant::now();
        // The device begins with it when it was submitted and the one before it has ended.
        let began = step.at.max(self.landed);
        self.landed = now;
        self.took(step, now - began);
    }

    pub(super) fn took(&mut self, step: Filled, time: Duration) {
        let seconds = time.as_secs_f64();
        if step.prompts == 0 {
            self.decoding += NEWS * (seconds - self.decoding);
            return;
        }
        let measured = (seconds / step.tokens as f64).max(1e-7);
        self.per_token = match step.is_full {
            // One step that something else held up says little.
            true => measured.min(2.0 * self.per_token),
            // A step of few tokens takes more for each than a full one would.
            false => measured.min(self.per_token),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a device, until the times settle; the tokens of prompts in the last and the seconds that it took.
    fn settled(pace: &mut Pace, decoded: usize, seconds: impl Fn(usize) -> f64) -> (usize, f64) {
        let mut last = (0, 0.0);
        for _ in 0..20 {
            let prompts = pace.room(decoded, decoded > 0, 512);
            let took = seconds(decoded + prompts);
            let step = Filled {
                tokens: decoded + prompts,
                prompts,
                is_full: true,
                at: Instant::now(),
            };
            pace.took(step, Duration::from_secs_f64(took));
            last = (prompts, took);
        }
        last
    }

    #[test]
    fn a_step_beside_others_takes_its_time_and_no_more() {
        let mut pace = Pace::new();
        // A fast device, at the beginning of a prompt and deep in one.
        for per_token in [60e-6, 90e-6, 150e-6] {
            let seconds = |tokens: usize| 0.008 + per_token * tokens as f64;
            let (prompts, took) = settled(&mut pace, 16, seconds);
            assert!((0.026..0.034).contains(&took), "{prompts} in {took} s");
        }
        let (prompts, _) = settled(&mut pace, 0, |tokens| 0.008 + 90e-6 * tokens as f64);
        assert_eq!(prompts, 512, "alone it takes all");
    }

    #[test]
    fn prompts_come_to_their_end_on_a_slow_device() {
        let mut pace = Pace::new();
        let decoding = Filled {
            tokens: 4,
            prompts: 0,
            is_full: false,
            at: Instant::now(),
        };
        for _ in 0..40 {
            pace.took(decoding, Duration::from_millis(200));
        }
        let (prompts, took) = settled(&mut pace, 4, |tokens| 0.1 + 0.002 * tokens as f64);
        assert!(prompts > 100 && took < 0.45, "{prompts} in {took} s");
        let (prompts, _) = settled(&mut pace, 0, |tokens| 0.02 * tokens as f64);
        assert_eq!(prompts, LEAST);
    }

    #[test]
    fn a_step_that_was_held_up_and_one_of_few_tokens_say_little() {
        let mut pace = Pace::new();
        let seconds = |tokens: usize| 0.008 + 60e-6 * tokens as f64;
        let (prompts, _) = settled(&mut pace, 16, seconds);
        let step = |tokens, is_full| Filled {
            tokens,
            prompts: tokens,
            is_full,
            at: Instant::now(),
        };
        pace.took(step(3, false), Duration::from_millis(9));
        assert!(pace.room(16, true, 512).abs_diff(prompts) < prompts / 4);
        pace.took(step(300, true), Duration::from_secs(3));
        assert!(pace.room(16, true, 512) > prompts / 3);
        assert_eq!(
            pace.room(500, true, 512),
            12,
            "no more than there is room for"
        );
        assert_eq!(pace.room(512, true, 512), 0);
    }
}
