//! The samplers in the order of llama.cpp's default chain.

use std::sync::Arc;

use super::candidates::{refill, top_p};
use super::mirostat::MirostatState;
use super::typical::typical;
use super::{Chooser, ChooserError, Dry, Mirostat, Sampling, Xtc};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sample::{Candidate, best, draw, min_p, penalise, top_k};
use crate::kernels::sampling::uniform;

/// The least repeat penalty with which the device excludes tokens: it lowers their logits to a number, which a smaller one may bring back.
const LEAST_PENALTY: f32 = 1e-6;

/// All that a choice on the host can take into account.
///
/// In order of application: biases, repeat, presence and frequency penalty, DRY, top-k, typical, top-p, min-p, XTC, temperature, draw.
/// Mirostat takes the place of all between biases and temperature.
#[derive(Debug, Clone)]
pub struct ChainSettings {
    /// The settings that devices take into account, too.
    pub sampling: Sampling,
    /// Added to the logits of tokens; minus infinity excludes one. Other tokens than the vocabulary's are ignored.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// The penalty of repetitions.
    pub dry: Option<Dry>,
    /// Keeps the tokens nearest to the entropy, whose probabilities exceed this; 1 keeps all.
    pub typical_p: f32,
    /// Leaves out the most probable tokens.
    pub xtc: Option<Xtc>,
    /// Draws such that the surprise of the answer stays near a target.
    pub mirostat: Option<Mirostat>,
}

impl ChainSettings {
    /// The settings that a device can follow: `sampling` without biases and without samplers of the host.
    pub fn new(sampling: Sampling) -> Self {
        Self {
            sampling,
            logit_bias: Arc::default(),
            dry: None,
            typical_p: 1.0,
            xtc: None,
            mirostat: None,
        }
    }

    /// The biases, if a device can do all of this. `None` means that the host has to choose: the device lacks one of the samplers, or the
    /// biases are too many for it or would not have the same effect.
    pub fn on_device(&self) -> Option<Biases> {
        let stays = self.dry.is_some() || self.xtc.is_some() || self.mirostat.is_some();
        if stays || self.typical_p < 1.0 {
            return None;
        }
        let biases = Biases::new(&self.logit_bias)?;
        let kept = biases.is_empty() || self.sampling.repeat_penalty >= LEAST_PENALTY;
        kept.then_some(biases)
    }
}

/// Numbers that the seed is mixed with for the draws of XTC and Mirostat, so that they do not follow the draw of the token.
const XTC_STREAM: u64 = 0x9e37_79b9_7f4a_7c15;
const MIROSTAT_STREAM: u64 = 0xd1b5_4a32_d192_ed03;

/// Chooses by [`ChainSettings`].
pub struct Chain {
    settings: ChainSettings,
    mirostat: Option<MirostatState>,
    /// The tokens that are left. Its memory is used again for each choice.
    left: Vec<Candidate>,
}

impl Chain {
    /// The chain of the settings, before the first token.
    pub fn new(settings: ChainSettings) -> Self {
        let mirostat = settings.mirostat.map(MirostatState::new);
        Self {
            settings,
            mirostat,
            left: vec![],
        }
    }
}

impl Chooser for Chain {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        let ChainSettings {
            sampling,
            logit_bias,
            dry,
            typical_p,
            xtc,
            ..
        } = &self.settings;
        let step = context.len() as u64;
        for (token, bias) in &**logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        if self.mirostat.is_none() {
            if sampling.penalises() {
                penalise(logits, sampling.recent(context), sampling);
            }
            if let Some(dry) = dry {
                dry.penalise(logits, context);
            }
        }
        let left = &mut self.left;
        refill(left, logits);
        if let Some(mirostat) = &mut self.mirostat
            && sampling.temperature > 0.0
        {
            let u = uniform(sampling.seed ^ MIROSTAT_STREAM, step);
            let chosen = mirostat.choose(left, sampling.temperature, u);
            return chosen.ok_or(ChooserError::NothingLeft);
        }
        if self.mirostat.is_none() {
            top_k(left, sampling.top_k as usize);
            typical(left, *typical_p);
            top_p(left, sampling.top_p);
            if let Some(best) = best(left) {
                min_p(left, best.logit, sampling.min_p);
            }
            if let Some(xtc) = xtc {
                xtc.apply(left, uniform(sampling.seed ^ XTC_STREAM, step));
            }
        }
        let best = best(left).ok_or(ChooserError::NothingLeft)?;
        if sampling.temperature <= 0.0 {
            return Ok(best.id);
        }
        let u = uniform(sampling.seed, step);
        Ok(draw(left, best, sampling.temperature, u))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::sample::sample;
    use crate::kernels::testing::Rng;

    const PLAIN: Sampling = Sampling {
        temperature: 1.0,
        ..Sampling::GREEDY
    };

    /// How often each token is chosen, over many seeds.
    fn shares(settings: &ChainSettings, logits: &[f32], context: &[u32]) -> Vec<f64> {
        let mut shares = vec![0.0; logits.len()];
        let n = 20_000;
        for seed in 0..n {
            let mut settings = settings.clone();
            settings.sampling.seed = seed;
            let chosen = Chain::new(settings).choose(&mut logits.to_vec(), context);
            shares[chosen.expect("something is left") as usize] += 1.0 / n as f64;
        }
        shares
    }

    fn assert_near(found: &[f64], expected: &[f64], what: &str) {
        for (found, expected) in found.iter().zip(expected) {
            // Beyond four standard deviations of so many draws.
            assert!((found - expected).abs() < 0.015, "{what}: {found:?}");
        }
    }

    #[test]
    fn it_chooses_what_the_twin_of_the_kernels_chooses() {
        let mut rng = Rng::fresh();
        let (mut draws, mut others) = (0, 0);
        for _ in 0..400 {
            let vocab = [3, 300, 3000][rng.below(3)];
            let logits: Vec<f32> = rng.normals(vocab).iter().map(|x| x * 4.0).collect();
            let context: Vec<u32> = (0..rng.below(90))
                .map(|_| rng.below(vocab) as u32)
                .collect();
            let sampling = Sampling {
                temperature: [0.0, 0.7, 1.5][rng.below(3)],
                top_k: [0, 5, 40][rng.below(3)],
                top_p: [0.5, 0.95, 1.0][rng.below(3)],
                min_p: [0.0, 0.05][rng.below(2)],
                repeat_penalty: [1.0, 1.2][rng.below(2)],
                presence_penalty: [0.0, 0.4][rng.below(2)],
                frequency_penalty: [0.0, -0.2][rng.below(2)],
                repeat_last_n: [0, 30, u32::MAX][rng.below(3)],
                seed: rng.bits(),
            };
            let step = context.len() as u64;
            let twin = sample(&logits, sampling.recent(&context), &sampling, step);
            let mut chain = Chain::new(ChainSettings::new(sampling));
            let chosen = chain.choose(&mut logits.clone(), &context);
            draws += 1;
            others += u32::from(chosen.expect("something is left") != twin);
        }
        // Sums for top-p are rounded in another way.
        assert!(others * 100 <= draws, "{others} of {draws} differ");
    }

    #[test]
    fn distributions_are_those_computed_by_hand() {
        let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
        let with = |change: &dyn Fn(&mut ChainSettings)| {
            let mut settings = ChainSettings::new(PLAIN);
            change(&mut settings);
            shares(&settings, &logits, &[0, 0, 1])
        };
        assert_near(&with(&|_| {}), &[0.4, 0.3, 0.2, 0.1], "as it is");
        let biased = with(&|s| s.logit_bias = vec![(3, 2f32.ln()), (0, f32::NEG_INFINITY)].into());
        assert_near(&biased, &[0.0, 3.0 / 7.0, 2.0 / 7.0, 2.0 / 7.0], "biases");
        let ahead = with(&|s| {
            s.logit_bias = vec![(0, f32::NEG_INFINITY), (9, 1.0)].into();
            s.sampling.top_k = 2;
        });
        assert_near(&ahead, &[0.0, 0.6, 0.4, 0.0], "biases come before top-k");
        let present = with(&|s| {
            s.sampling.repeat_last_n = 64;
            s.sampling.presence_penalty = 2f32.ln();
        });
        assert_near(
            &present,
            &[0.2 / 0.65, 0.15 / 0.65, 0.2 / 0.65, 0.1 / 0.65],
            "presence",
        );
        let frequent = with(&|s| {
            s.sampling.repeat_last_n = 64;
            s.sampling.frequency_penalty = 2f32.ln();
        });
        assert_near(
            &frequent,
            &[0.1 / 0.55, 0.15 / 0.55, 0.2 / 0.55, 0.1 / 0.55],
            "frequency",
        );
        // Top-p sees what typical left: of 0.3 and 0.2 the first has 0.6.
        let typical = with(&|s| {
            s.typical_p = 0.45;
            s.sampling.top_p = 0.5;
        });
        assert_near(&typical, &[0.0, 1.0, 0.0, 0.0], "typical before top-p");
        let xtc = with(&|s| {
            s.xtc = Some(Xtc {
                probability: 0.5,
                threshold: 0.15,
            });
        });
        // Half of the choices are among 0.2 and 0.1.
        let third = 1.0 / 3.0;
        assert_near(&xtc, &[0.2, 0.15, 0.1 + third, 0.05 + third / 2.0], "XTC");
        let hot = with(&|s| s.sampling.temperature = 0.5);
        assert_near(&hot, &[16.0 / 30.0, 0.3, 4.0 / 30.0, 1.0 / 30.0], "hot");
        let mirostat = with(&|s| {
            s.sampling.top_k = 1;
            s.mirostat = Some(Mirostat { tau: 1.0, eta: 0.1 });
        });
        // At most two bits: probabilities from a quarter on.
        assert_near(&mirostat, &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0], "mirostat");
    }

    #[test]
    fn dry_comes_before_the_cuts_and_greedy_takes_the_best_that_is_left() {
        let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
        let mut settings = ChainSettings::new(Sampling::GREEDY);
        let mut chosen = |change: &dyn Fn(&mut ChainSettings)| {
            change(&mut settings);
            let mut chain = Chain::new(settings.clone());
            let token = chain.choose(&mut logits.clone(), &[2, 3, 0, 2, 3]);
            token.expect("something is left")
        };
        assert_eq!(chosen(&|_| {}), 0);
        let dry = Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            last_n: 64,
            breakers: Default::default(),
        };
        assert_eq!(chosen(&|s| s.dry = Some(dry.clone())), 1);
        assert_eq!(chosen(&|s| s.sampling.top_k = 1), 1);
        let always = Xtc {
            probability: 1.0,
            threshold: 0.15,
        };
        let xtc = chosen(&|s| {
            s.sampling.top_k = 0;
            s.dry = None;
            s.xtc = Some(always);
        });
        assert_eq!(xtc, 2, "the last of those that XTC counts");
        let mirostat = Mirostat { tau: 5.0, eta: 0.1 };
        assert_eq!(chosen(&|s| s.mirostat = Some(mirostat)), 0);
    }

    #[test]
    fn a_seed_repeats_a_choice_and_streams_differ() {
        let mut rng = Rng::fresh();
        let logits = rng.normals(500);
        let mut settings = ChainSettings::new(PLAIN);
        settings.mirostat = Some(Mirostat { tau: 5.0, eta: 0.1 });
        let answer = |seed| -> Vec<u32> {
            let mut settings = settings.clone();
            settings.sampling.seed = seed;
            let mut chain = Chain::new(settings);
            let mut context = vec![];
            for _ in 0..20 {
                let chosen = chain.choose(&mut logits.clone(), &context);
                context.push(chosen.expect("something is left"));
            }
            context
        };
        assert_eq!(answer(1), answer(1));
        assert_ne!(answer(1), answer(2));
    }

    #[test]
    fn excluding_all_is_an_error() {
        let mut settings = ChainSettings::new(PLAIN);
        settings.logit_bias = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)].into();
        for mirostat in [None, Some(Mirostat { tau: 5.0, eta: 0.1 })] {
            settings.mirostat = mirostat;
            let mut chain = Chain::new(settings.clone());
            let chosen = chain.choose(&mut [1.0, 2.0], &[]);
            assert!(matches!(chosen, Err(ChooserError::NothingLeft)));
        }
    }
}
