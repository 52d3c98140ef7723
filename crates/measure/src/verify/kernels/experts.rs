//! The choice of experts, and the products of those of a decoded token or of each token in a step of a few.

use super::lab::{Compared, Lab, state};
use super::prepared::{self, Normed, compared, form, limit, room, stand_for};
use crate::gpu::GpuError;
use crate::kernels::router::{self, GpuRouter};
use crate::kernels::token::Divided;
use crate::kernels::token_gate_up::{GpuTokenGateUp, token_gate_up};
use crate::kernels::token_moe_down::{GpuTokenMoeDown, token_moe_down};
use crate::model::{Experts, Gating};
use crate::quant::GgmlType;

/// The error that the weights of the chosen experts may have: `exp` and division of a GPU may be off by units in the last place.
const LIMIT: f64 = 1e-10;

fn config(count: usize, used: usize, gating: Gating) -> Experts {
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
struct Choice {
    config: Experts,
    logits: Vec<f32>,
    bias: Option<Vec<f32>>,
    ids: Vec<u32>,
    weights: Vec<f32>,
}

impl Choice {
    fn new(lab: &Lab<'_>, tokens: usize, config: Experts) -> Self {
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
    fn router(&self, lab: &Lab<'_>) -> GpuRouter<'_> {
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

    fn compared(&self, lab: &Lab<'_>, found: &GpuRouter<'_>) -> Result<[Compared; 2], GpuError> {
        let weights = lab.floats(&found.weights, &self.weights, LIMIT)?;
        Ok([lab.same(&found.ids, &self.ids)?, weights])
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
            Ok(choice.compared(lab, &on_gpu)?.to_vec())
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
            let (values, rms) = x.token(0);
            let twin = token_gate_up(of_twin, Some(beside.each_ref()), values, rms);
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

/// Tokens of a step of several.
const SEVERAL: usize = 3;

/// Gate and up of the experts that each of several tokens chooses.
pub(super) fn gate_up_of_several(lab: &mut Lab<'_>) {
    let (count, used, rows, cols) = (6, 2, 96, 256);
    let case = format!("q4_k, {used} of {count}x{rows}x{cols}, {SEVERAL} tokens");
    lab.check(case, |lab| {
        let pair = [(); 2].map(|()| lab.weight(GgmlType::Q4_K, [count, rows, cols]));
        let x = Normed::new(lab, SEVERAL, cols);
        let choice = Choice::new(lab, SEVERAL, config(count, used, Gating::Softmax));
        let of_token = |t: usize| {
            let ids = &choice.ids[t * used..][..used];
            let (x, rms) = x.token(t);
            token_gate_up(Some((pair.each_ref(), ids)), None, x, rms)
        };
        let twin: Vec<f32> = (0..SEVERAL).flat_map(of_token).collect();
        let h = room(lab, twin.len(), None);
        let weights = lab.load(&pair.each_ref())?;
        let router = GpuRouter {
            logits: lab.given(&router::strided(&choice.logits, &choice.config)),
            ..choice.router(lab)
        };
        let call = GpuTokenGateUp {
            experts: Some(([&weights[0], &weights[1]], router)),
            raw_logits: false,
            shared: None,
            activation: form(lab),
            x: x.input(lab),
            h: h.values.clone(),
            tokens: SEVERAL as u32,
        };
        lab.run(call.calls(lab.gpu)?, state(SEVERAL, 0))?;
        let mut all = compared(lab, &h, None, &twin)?;
        if let Some((_, found)) = &call.experts {
            all.extend(choice.compared(lab, found)?);
        }
        Ok(all)
    });
}

/// Down of the chosen experts and of the shared one.
pub(super) fn moe_down(lab: &mut Lab<'_>) {
    down(lab, "shared q4_0", 1, Some(512));
}

/// Down of the experts of each of several tokens.
pub(super) fn moe_down_of_several(lab: &mut Lab<'_>) {
    down(lab, "3 tokens", SEVERAL, None);
}

/// Down of the experts of `tokens`, and of a shared one of `beside` columns.
fn down(lab: &mut Lab<'_>, case: &str, tokens: usize, beside: Option<usize>) {
    let (count, used, rows, cols) = (6, 2, 96, 256);
    let case = format!("q6_k, {used} of {count}x{rows}x{cols}, {case}");
    lab.check(case, |lab| {
        let down = lab.weight(GgmlType::Q6_K, [count, rows, cols]);
        let shared = beside.map(|beside| lab.weight(GgmlType::Q4_0, [1, rows, beside]));
        let (slots, width) = (tokens * used, used * cols + beside.unwrap_or(0));
        let given = lab.normals(tokens * width);
        let h = stand_for(form(lab), &given);
        let ids: Vec<u32> = (0..slots).map(|_| lab.below(count) as u32).collect();
        let sizes = [slots, tokens * rows, rows];
        let [weights, residual, g] = sizes.map(|n| lab.normals(n));
        let of_token = |t: usize| {
            let (h, residual) = (&h[t * width..][..width], &residual[t * rows..][..rows]);
            let (ids, weights) = (&ids[t * used..][..used], &weights[t * used..][..used]);
            token_moe_down(&down, shared.as_ref(), h, ids, weights, residual)
        };
        let twin: Vec<f32> = (0..tokens).flat_map(of_token).collect();
        let left = room(lab, twin.len(), Some(&g));
        let on_gpu = shared.as_ref().map(|shared| lab.load(&[shared]));
        let on_gpu = on_gpu.transpose()?;
        let call = GpuTokenMoeDown {
            down: &lab.load(&[&down])?[0],
            shared: on_gpu.as_ref().map(|shared| &shared[0]),
            activation: form(lab),
            h: prepared::given(lab, &given),
            ids: lab.given(&ids),
            weights: lab.given(&weights),
            used: used as u32,
            residual: lab.given(&residual),
            y: lab.room(twin.len()),
            prepared: left.clone(),
            tokens: tokens as u32,
        };
        lab.run(call.calls(lab.gpu)?, state(tokens, 0))?;
        let mut all = compared(lab, &left, Some(&g), &twin)?;
        all.push(lab.floats(&call.y, &twin, limit(form(lab)))?);
        Ok(all)
    });
}
