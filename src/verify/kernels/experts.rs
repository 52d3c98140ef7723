//! The choice of experts, and the products of those of a decoded token.

use super::lab::{Compared, Lab, state};
use super::prepared::{self, Normed, compared, form, limit, room, stand_for};
use crate::gpu::GpuError;
use crate::kernels::router::{self, GpuRouter};
use crate::kernels::token::Divided;
use crate::kernels::token_gate_up::{GpuTokenGateUp, token_gate_up};
use crate::kernels::token_moe_down::{GpuTokenMoeDown, token_moe_down};
use crate::model::{Experts, Gating};
use crate::quant::GgmlType;

/// What the weights of the chosen experts may differ by: `exp` and division of a GPU may be off by units in the last place.
const LIMIT: f64 = 1e-10;

pub(super) fn config(count: usize, used: usize, gating: Gating) -> Experts {
    Experts {
        count,
        used,
        shared_count: 1,
        feed_forward_length: 32,
        gating,
        weights_norm: gating == Gating::Sigmoid,
        weights_scale: 1.8,
    }
}

/// Logits, and which experts they choose.
pub(super) struct Choice {
    config: Experts,
    logits: Vec<f32>,
    bias: Option<Vec<f32>>,
    pub(super) ids: Vec<u32>,
    weights: Vec<f32>,
}

impl Choice {
    pub(super) fn new(lab: &Lab<'_>, tokens: usize, config: Experts) -> Self {
        let (count, used) = (config.count, config.used);
        let logits: Vec<f32> = (0..tokens).flat_map(|_| lab.distinct(count)).collect();
        // It moves whole ranks, and never to ties.
        let far = lab.distinct(count).into_iter().map(|bias| bias * 14.0);
        let bias = (config.gating == Gating::Sigmoid).then(|| far.collect::<Vec<f32>>());
        let (mut ids, mut weights) = (vec![0; tokens * used], vec![0.0; tokens * used]);
        let bias_of = bias.as_deref();
        router::router(&logits, bias_of, &config, tokens, &mut ids, &mut weights);
        Self {
            config,
            logits,
            bias,
            ids,
            weights,
        }
    }

    /// On the device.
    pub(super) fn router(&self, lab: &Lab<'_>) -> GpuRouter<'_> {
        let slots = self.ids.len();
        GpuRouter {
            logits: lab.given(&self.logits),
            partial_sums: 1,
            bias: self.bias.as_ref().map(|bias| lab.given(bias)),
            experts: &self.config,
            max_tokens: (self.logits.len() / self.config.count) as u32,
            ids: lab.given(&vec![u32::MAX; slots]),
            weights: lab.room(slots),
        }
    }

    pub(super) fn compared(
        &self,
        lab: &Lab<'_>,
        found: &GpuRouter<'_>,
    ) -> Result<Vec<Compared>, GpuError> {
        let ids: Vec<u32> = lab.read(&found.ids, self.ids.len())?;
        let weights = lab.floats(&found.weights, &self.weights, LIMIT)?;
        Ok(vec![Compared::same(&ids, &self.ids), weights])
    }
}

pub(super) fn router(lab: &mut Lab<'_>) {
    for (gating, name) in [
        (Gating::Sigmoid, "sigmoid, bias"),
        (Gating::Softmax, "softmax"),
    ] {
        let (count, used, tokens) = (64, 6, 3);
        lab.check(format!("{used} of {count}, {name}"), |lab| {
            let choice = Choice::new(lab, tokens, config(count, used, gating));
            let on_gpu = choice.router(lab);
            lab.run(vec![router::call(&on_gpu)], state(tokens, 0))?;
            choice.compared(lab, &on_gpu)
        });
    }
}

/// The chosen experts with their choice and the shared one, and a dense block.
pub(super) fn gate_up(lab: &mut Lab<'_>) {
    let (cols, shared) = (256, 64);
    for experts in [Some((6, 2, 96)), None] {
        let case = match experts {
            Some((count, used, rows)) => {
                format!("q4_k, {used} of {count}x{rows}x{cols}, shared q8_0")
            }
            None => format!("dense q8_0 {shared}x{cols}"),
        };
        lab.check(case, |lab| {
            let x = Normed::new(lab, 1, cols);
            let weights = |ty, groups, rows| [(); 2].map(|()| lab.weight(ty, [groups, rows, cols]));
            let beside = weights(GgmlType::Q8_0, 1, shared);
            let routed = experts.map(|(count, used, rows)| {
                let choice = Choice::new(lab, 1, config(count, used, Gating::Softmax));
                (weights(GgmlType::Q4_K, count, rows), choice)
            });
            let of_twin = routed.as_ref();
            let of_twin = of_twin.map(|(pair, choice)| (pair.each_ref(), &choice.ids[..]));
            let twin = token_gate_up(of_twin, Some(beside.each_ref()), &x.values, x.rms());
            let h = room(lab, twin.len(), None);
            let pair = match &routed {
                Some(([gate, up], _)) => Some(lab.load(&[gate, up])?),
                None => None,
            };
            let beside = lab.load(&beside.each_ref())?;
            let call = GpuTokenGateUp {
                experts: routed
                    .as_ref()
                    .zip(pair.as_ref())
                    .map(|((_, choice), pair)| ([&pair[0], &pair[1]], choice.router(lab))),
                raw_logits: false,
                shared: Some([&beside[0], &beside[1]]),
                activation: form(lab),
                x: x.input(lab),
                h: h.values.clone(),
                tokens: 1,
            };
            lab.run(call.calls(lab.gpu)?, state(1, 0))?;
            let mut all = compared(lab, &h, None, &twin)?;
            if let Some(((_, choice), (_, found))) = routed.as_ref().zip(call.experts.as_ref()) {
                all.extend(choice.compared(lab, found)?);
            }
            Ok(all)
        });
    }
}

pub(super) fn moe_down(lab: &mut Lab<'_>) {
    let (count, used, rows, cols, beside) = (6, 2, 96, 256, 512);
    lab.check(
        format!("q6_k, {used} of {count}x{rows}x{cols}, shared q4_0"),
        |lab| {
            let down = lab.weight(GgmlType::Q6_K, [count, rows, cols]);
            let shared = lab.weight(GgmlType::Q4_0, [1, rows, beside]);
            let given = lab.normals(used * cols + beside);
            let h = stand_for(form(lab), &given);
            let ids: Vec<u32> = (0..used).map(|_| lab.below(count) as u32).collect();
            let [weights, residual, g] = [used, rows, rows].map(|n| lab.normals(n));
            let twin = token_moe_down(&down, Some(&shared), &h, &ids, &weights, &residual);
            let left = room(lab, rows, Some(&g));
            let call = GpuTokenMoeDown {
                down: &lab.load(&[&down])?[0],
                shared: Some(&lab.load(&[&shared])?[0]),
                activation: form(lab),
                h: prepared::given(lab, &given),
                ids: lab.given(&ids),
                weights: lab.given(&weights),
                used: used as u32,
                residual: lab.given(&residual),
                y: lab.room(rows),
                prepared: left.clone(),
                tokens: 1,
            };
            lab.run(call.calls(lab.gpu)?, state(1, 0))?;
            let mut all = compared(lab, &left, Some(&g), &twin)?;
            all.push(lab.floats(&call.y, &twin, limit(form(lab)))?);
            Ok(all)
        },
    );
}
