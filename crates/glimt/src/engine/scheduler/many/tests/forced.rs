//! Protects the choices of those who share a GPU: led along the text that each has alone, all would choose the same tokens, but for those
//! that are as good as equal.

use std::sync::Mutex;

use super::*;

/// A chooser that keeps the logits of each token. It chooses the best one, or the next of a text that it is given.
#[derive(Debug, Clone, Default)]
pub(super) struct Led {
    text: Option<Vec<u32>>,
    rows: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl Led {
    fn along(text: Vec<u32>) -> Self {
        Self {
            text: Some(text),
            ..Self::default()
        }
    }

    fn rows(&self) -> Vec<Vec<f32>> {
        self.rows.lock().expect("nobody panicked").clone()
    }
}

impl Chooser for Led {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        let mut rows = self.rows.lock().expect("nobody panicked");
        let next = rows.len();
        rows.push(logits.to_vec());
        drop(rows);
        assert!(context.len() >= next, "a token is asked for once");
        Ok(match &self.text {
            Some(text) => text[next],
            None => best(logits),
        })
    }

    fn accept(&mut self, _: u32) -> Result<(), ChooserError> {
        Ok(())
    }
}

fn best(logits: &[f32]) -> u32 {
    let better = |a: usize, b: usize| if logits[b] > logits[a] { b } else { a };
    (0..logits.len()).reduce(better).expect("a vocabulary") as u32
}

/// The squares of the differences, divided by those of the values around their mean.
fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    let mean = exact.iter().map(|v| f64::from(*v)).sum::<f64>() / exact.len() as f64;
    let pairs = found.iter().zip(exact);
    let errors: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let values: f64 = exact.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum();
    errors / values
}

/// The logits in a mix differ by less from those alone, where only the order of sums is another.
const LIMIT: f64 = 1e-5;
/// The limit for most tokens where that order has chosen another expert of two that are as good as equal.
const OTHER_EXPERT: f64 = 0.05;
/// The limit that no token reaches, whatever its experts.
const ANY_EXPERT: f64 = 0.5;

/// The counts of jobs and tokens in mixes.
#[derive(Default)]
struct Found {
    jobs: usize,
    /// Jobs in which an expert was another one.
    parted: usize,
    tokens: usize,
    /// Tokens that would have been others.
    others: usize,
}

/// Leads `jobs` along their texts alone, all at once.
fn lead(many: &mut Many, jobs: &[Job], all: &mut Found) {
    let mut alone = vec![];
    let mut led = vec![];
    for job in jobs {
        many.pages.forget();
        let by = Led::default();
        let lonely = Job {
            comes: 0,
            led: Some(by.clone()),
            ..job.clone()
        };
        run(many, &[lonely]);
        let rows = by.rows();
        let text: Vec<u32> = rows.iter().map(|row| best(row)).collect();
        led.push(Job {
            led: Some(Led::along(text.clone())),
            ..job.clone()
        });
        alone.push((text, rows));
    }
    many.pages.forget();
    // Whoever has biases beside them changes nothing for them.
    let stops = many.engine.tokenizer().stop_tokens();
    led.push(Job::new(vec![9; 20], 30).without(stops));
    run(many, &led);
    for (job, (text, alone)) in led.iter().zip(alone) {
        let found = job.led.as_ref().expect("it is led").rows();
        assert_eq!(found.len(), alone.len(), "{} tokens", job.prompt.len());
        let pairs = || found.iter().zip(&alone);
        let errors: Vec<f64> = pairs().map(|(found, alone)| nmse(found, alone)).collect();
        let above = |limit| errors.iter().filter(|error| **error >= limit).count();
        assert!(
            above(OTHER_EXPERT) <= 1 + errors.len() / 16 && above(ANY_EXPERT) == 0,
            "after {} tokens: {errors:?}",
            job.prompt.len()
        );
        all.jobs += 1;
        all.parted += usize::from(errors.iter().any(|error| *error >= LIMIT));
        all.tokens += text.len();
        for (i, (found, alone)) in pairs().enumerate() {
            let other = best(found);
            if other == text[i] {
                continue;
            }
            all.others += 1;
            let errors = found.iter().zip(alone).map(|(a, b)| (a - b).abs());
            let error = errors.fold(0.0, f32::max);
            let margin = alone[text[i] as usize] - alone[other as usize];
            assert!(
                margin <= 2.0 * error,
                "token {i} after {} tokens: {other} instead of {}, margin {margin:.1e}, error {error:.1e}",
                job.prompt.len(),
                text[i]
            );
        }
    }
}

fn assert_led(tiers: &[Tier], mixes: usize) {
    let mut rng = Rng::fresh();
    let mut all = Found::default();
    for tier in tiers {
        for rows in some(&[4 * N_CTX, 3 * ROWS], 1) {
            let Some(engine) = engine(*tier, rows) else {
                continue;
            };
            let mut many = many(&engine);
            for _ in 0..mixes {
                let count = 2 + rng.below(6);
                let job = |rng: &mut Rng| Job {
                    sampling: Sampling::GREEDY,
                    ..random_job(rng, 150)
                };
                let jobs: Vec<Job> = (0..count).map(|_| job(&mut rng)).collect();
                lead(&mut many, &jobs, &mut all);
            }
        }
    }
    let Found {
        jobs,
        parted,
        tokens,
        others,
    } = all;
    // Experts that are as good as equal turn in few requests. The share varies more where there are few requests.
    assert!(parted <= 2 + jobs / 5, "{parted} of {jobs} requests");
    assert!(others <= 1 + tokens / 1000, "{others} of {tokens} tokens");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn led_along_its_text_alone_nobody_chooses_otherwise_in_a_mix() {
    assert_led(&some(&[Tier::Subgroup, Tier::Plain], 1), rounds(1));
}
