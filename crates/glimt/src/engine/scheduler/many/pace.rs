//! How many tokens of prompts join a step: as many as keep it short for those that wait for the next one, by the times of the last steps.

use web_time::{Duration, Instant};

use crate::engine::gpu::batch::LEAST_RUN;

/// The longest step in which prompts join answers that are read, as far as it can be foretold. People read along.
const BESIDE: f64 = 0.030;
/// The longest step, in seconds, in which prompts join where no answers are read: whoever comes meanwhile waits for it.
const ALONE: f64 = 0.125;
/// An answer counts as read from so long after its first token on. When many requests come at once, those that are served first thus wait
/// for their second token until the others have their first.
const SETTLED: Duration = Duration::from_millis(100);
/// Tokens of prompts that a step has however long it takes, so that every prompt comes to its end.
const LEAST: usize = 32;
/// Tokens of prompts that a step beside answers that are read has at least.
const LEAST_BESIDE: usize = 8;
/// The two numbers above if steps are slow. Then one more token takes nearly as long as the first.
const LEAST_OF_SLOW: [usize; 2] = [8, 1];
/// Tokens of the first step with prompts, of which no time is known, and where steps are slow.
const FIRST: [f64; 2] = [64.0, 4.0];
/// The share of what is known of decoding that a step replaces.
const NEWS: f64 = 0.25;

/// The tokens of a step, and when it was submitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filled {
    /// Tokens of the step in all.
    pub(super) tokens: usize,
    /// Tokens of prompts in the step.
    pub(super) prompts: usize,
    /// Whether the tokens of prompts are a part of one prompt.
    pub(super) is_run: bool,
    /// Whether prompts had more that would not have fit into the pace.
    pub(super) is_full: bool,
    /// When it was submitted.
    pub(super) at: Instant,
}

/// Whether somebody reads an answer at `now`, so that steps with prompts should not hold it up. Its first token came at `first`, if it did.
pub(super) fn is_read(first: Option<Instant>, now: Instant) -> bool {
    first.is_some_and(|first| now.saturating_duration_since(first) >= SETTLED)
}

/// The times of steps as far as they are known.
#[derive(Debug)]
pub(super) struct Pace {
    /// Seconds for each token of a step with prompts, and of a part of one prompt.
    per_token: [f64; 2],
    /// Seconds of a step without.
    decoding: f64,
    /// When the last step had landed.
    landed: Instant,
    /// Tokens of prompts that a step has at least, if nobody reads and if somebody does.
    least: [usize; 2],
    /// The time that every step is told to have taken, for tests of what is decided by times: a busy machine must not decide.
    #[cfg(test)]
    pub(super) steady: Option<Duration>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            per_token: [ALONE / FIRST[0]; 2],
            decoding: 0.0,
            landed: Instant::now(),
            least: [LEAST, LEAST_BESIDE],
            #[cfg(test)]
            steady: None,
        }
    }

    /// The pace where steps are slow.
    pub(super) fn of_slow() -> Self {
        Self {
            per_token: [ALONE / FIRST[1]; 2],
            least: LEAST_OF_SLOW,
            ..Self::new()
        }
    }

    /// Tokens of prompts that join a step which `decoded` tokens are in, if it has `most` at most. `beside` tells whether sequences decode
    /// that [somebody waits for](is_read).
    pub(super) fn room(&self, decoded: usize, beside: bool, most: usize) -> usize {
        // On a slow device decoding alone takes longer than that. Then prompts get half of the time.
        let (target, least) = match beside {
            true => (BESIDE.max(2.0 * self.decoding), self.least[1]),
            false => (ALONE, self.least[0]),
        };
        let all = (target / self.per_token[0]) as usize;
        let left = most.saturating_sub(decoded);
        all.saturating_sub(decoded).max(least).min(left)
    }

    /// Tokens of a part of a prompt that has `left` ones, if there are `most` at most: about the same number for each part. `None` where the
    /// device is too slow for [parts](LEAST_RUN).
    pub(super) fn part(&self, left: usize, most: usize) -> Option<usize> {
        let [of_any, of_one] = self.per_token;
        let fits = (ALONE / of_any.min(of_one)) as usize;
        if fits.min(left) < LEAST_RUN {
            return None;
        }
        let even = left.div_ceil(left.div_ceil(fits.min(most)));
        let even = even.next_multiple_of(LEAST).max(LEAST_RUN);
        Some(even.min(left).min(most))
    }

    /// A step has landed. Returned is how long it took.
    pub(super) fn landed(&mut self, step: Filled) -> Duration {
        let now = Instant::now();
        // The device begins with it when it was submitted and the one before it has ended.
        let began = step.at.max(self.landed);
        self.landed = now;
        let took = now - began;
        #[cfg(test)]
        let took = self.steady.unwrap_or(took);
        self.took(step, took);
        took
    }

    pub(super) fn took(&mut self, step: Filled, time: Duration) {
        let seconds = time.as_secs_f64();
        if step.prompts == 0 {
            self.decoding += NEWS * (seconds - self.decoding);
            return;
        }
        let measured = (seconds / step.tokens as f64).max(1e-7);
        let per_token = &mut self.per_token[usize::from(step.is_run)];
        *per_token = match step.is_full {
            // One step that something else held up says little.
            true => measured.min(2.0 * *per_token),
            // A step of few tokens takes more for each than a full one would.
            false => measured.min(*per_token),
        };
    }
}

#[cfg(test)]
mod tests;
