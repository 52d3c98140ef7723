//! Cases of the choice of experts, and choices for other kernels that make them.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::kernels::router::{GpuRouter, call, router};
use crate::model::{Experts, Gating};

/// The error that the weights of the chosen experts may have: `exp` and division of a GPU may be off by a few units in the last place.
pub(crate) const LIMIT: f64 = 1e-11;
/// The share of two scores by which they must differ, so that rounding swaps none.
const APART: f32 = 1e-5;

/// Experts of which each token chooses `used`.
pub(crate) fn experts(count: usize, used: usize, gating: Gating, weights_norm: bool) -> Experts {
    Experts {
        count,
        used,
        shared_count: 1,
        feed_forward_length: 32,
        gating,
        weights_norm,
        weights_scale: 1.8,
    }
}

/// Logits, and which experts they choose.
pub(crate) struct Choice {
    pub config: Experts,
    pub logits: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
}

impl Choice {
    /// The choices by these logits, whatever they are.
    pub fn of(config: Experts, logits: Vec<f32>, bias: Option<Vec<f32>>) -> Self {
        let tokens = logits.len() / config.count;
        let n = tokens * config.used;
        let (mut ids, mut weights) = (vec![0; n], vec![0.0; n]);
        router(
            &logits,
            bias.as_deref(),
            &config,
            tokens,
            &mut ids,
            &mut weights,
        );
        Self {
            config,
            logits,
            bias,
            ids,
            weights,
        }
    }

    /// The choices of tokens with logits that `draw` gives. It is asked again where rounding may change a choice, and where `accepts` refuses
    /// the choice of a token after those of the tokens before.
    pub fn new(
        config: &Experts,
        tokens: usize,
        bias: Option<&[f32]>,
        draw: impl Fn() -> Vec<f32>,
        accepts: impl Fn(&[u32], &[u32]) -> bool,
    ) -> Self {
        let (mut logits, mut ids) = (vec![], vec![]);
        for _ in 0..tokens {
            let own = loop {
                let own = Self::of(config.clone(), draw(), bias.map(<[f32]>::to_vec));
                if own.is_clear() && accepts(&ids, &own.ids) {
                    break own;
                }
            };
            logits.extend(own.logits);
            ids.extend(own.ids);
        }
        Self::of(config.clone(), logits, bias.map(<[f32]>::to_vec))
    }

    /// Whether no two of the scores that decide are so near that rounding can swap them. It is for one token.
    fn is_clear(&self) -> bool {
        let ranked = Experts {
            used: self.config.count,
            weights_norm: false,
            weights_scale: 1.0,
            ..self.config.clone()
        };
        let all = Self::of_ranked(ranked, &self.logits, self.bias.as_deref());
        let decide = &all[..all.len().min(self.config.used + 1)];
        let apart = |pair: &[[f32; 2]]| {
            let [prob, bias] = pair[0];
            prob + bias - pair[1][0] - pair[1][1] > APART * (prob + bias.abs())
        };
        decide.windows(2).all(apart)
    }

    /// The probability and the bias of each expert, from the best to the worst.
    fn of_ranked(config: Experts, logits: &[f32], bias: Option<&[f32]>) -> Vec<[f32; 2]> {
        let all = Self::of(config, logits.to_vec(), bias.map(<[f32]>::to_vec));
        let pairs = all.ids.iter().zip(&all.weights);
        let bias_of = |id: u32| bias.map_or(0.0, |bias| bias[id as usize]);
        pairs.map(|(id, prob)| [*prob, bias_of(*id)]).collect()
    }

    /// The router on the device with these logits, for up to `most` tokens.
    pub fn given(&self, lab: &Lab<'_>, logits: &[f32], most: usize) -> GpuRouter<'_> {
        let n = most * self.config.used;
        GpuRouter {
            logits: lab.given(logits),
            partial_sums: 1,
            bias: self.bias.as_ref().map(|bias| lab.given(bias)),
            experts: &self.config,
            max_tokens: most as u32,
            ids: lab.words(n),
            weights: lab.room(n),
        }
    }

    /// The choices of a kernel beside those of the twin.
    pub fn compared(
        &self,
        lab: &Lab<'_>,
        found: &GpuRouter<'_>,
    ) -> Result<[Compared; 2], GpuError> {
        let ids = lab.same(&found.ids, &self.ids)?;
        Ok([ids, lab.floats(&found.weights, &self.weights, LIMIT)?])
    }

    /// Runs the kernel alone, with logits in `partial_sums` partial sums. Behind several tokens the buffers have room for one more. Behind
    /// a single token they end, so that a read behind it shows on the CPU.
    fn run(&self, lab: &Lab<'_>, partial_sums: usize) -> Result<GpuRouter<'_>, GpuError> {
        let (tokens, count) = (self.logits.len() / self.config.count, self.config.count);
        let most = tokens + usize::from(tokens > 1);
        let behind = vec![f32::NAN; (most - tokens) * count];
        // The last partial sum has it all, so that adding up is exact.
        let before = vec![0.0; (partial_sums - 1) * most * count];
        let logits = [&before, &self.logits[..], &behind].concat();
        let on_gpu = GpuRouter {
            partial_sums: partial_sums as u32,
            ..self.given(lab, &logits, most)
        };
        lab.run(vec![call(&on_gpu)], state(tokens, 0))?;
        Ok(on_gpu)
    }

    fn compare(&self, lab: &Lab<'_>, partial_sums: usize) -> Result<Vec<Compared>, GpuError> {
        Ok(self.compared(lab, &self.run(lab, partial_sums)?)?.to_vec())
    }
}

/// The cases of the choice of experts.
pub fn cases() -> Vec<Case> {
    let sizes = [
        // GLM-4.7-Flash, DeepSeek-V2-Lite, DeepSeek-V3 without groups, and sizes that fill no workgroup.
        (64, 4, Gating::Sigmoid, true, true, 1.8),
        (64, 6, Gating::Softmax, false, false, 1.0),
        (256, 8, Gating::Sigmoid, true, true, 2.5),
        (160, 6, Gating::Softmax, true, true, 16.0),
        (7, 7, Gating::Softmax, false, true, 1.0),
        (1, 1, Gating::Sigmoid, false, false, 1.0),
    ];
    let mut all = vec![];
    for (count, used, gating, with_bias, norm, weights_scale) in sizes {
        let config = Experts {
            weights_scale,
            ..experts(count, used, gating, norm)
        };
        for tokens in [1, 3, 64] {
            let config = config.clone();
            let how = if with_bias { ", bias" } else { "" };
            let name = format!("{used} of {count}, {gating:?}{how}, {tokens} tokens");
            let case = Case::new(name, move |lab| {
                let bias = with_bias.then(|| lab.normals(count));
                let draw = || lab.normals(count);
                let choice = Choice::new(&config, tokens, bias.as_deref(), draw, |_, _| true);
                choice.compare(lab, [1, 3][tokens % 2])
            });
            all.push(case.verified_if(count == 64 && tokens == 3));
        }
    }
    for (gating, with_bias) in [Gating::Sigmoid, Gating::Softmax]
        .into_iter()
        .flat_map(|gating| [false, true].map(|bias| (gating, bias)))
    {
        all.push(Case::new(
            format!("ties, {gating:?}, bias: {with_bias}"),
            move |lab| {
                // Few values: nearly every place is a tie. Zeros of both signs are one value.
                let few = |n: usize, values: &[f32]| (0..n).map(|_| lab.one_of(values)).collect();
                let logits = few(40 * 96, &[0.0, -0.0, 1.5, -2.0]);
                let bias = with_bias.then(|| few(96, &[2.0, 0.0]));
                let config = Experts {
                    weights_scale: 1.5,
                    ..experts(96, 12, gating, true)
                };
                Choice::of(config, logits, bias).compare(lab, 1)
            },
        ));
    }
    let odd = |name, logits: [f32; 4], config: Experts| {
        Case::new(name, move |lab| {
            let choice = Choice::of(config.clone(), logits.to_vec(), None);
            let found = choice.run(lab, 1)?;
            let ids = lab.same(&found.ids, &choice.ids)?;
            // Weights that are no numbers are equal to none.
            match choice.weights.iter().any(|weight| weight.is_nan()) {
                true => Ok(vec![ids]),
                false => Ok(choice.compared(lab, &found)?.to_vec()),
            }
        })
    };
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let three = experts(4, 3, Gating::Sigmoid, false);
    all.extend([
        odd("no numbers", [nan, nan, 1.0, nan], three.clone()),
        odd("infinite", [-infinity, 0.0, infinity, -1.0], three),
        odd("clamped", [-20.0; 4], experts(4, 2, Gating::Sigmoid, true)),
    ]);
    all
}
