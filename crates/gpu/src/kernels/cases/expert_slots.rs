//! Cases of the choice of experts that have places: of one token after the other, whose experts take slots, and of several tokens.

use super::Case;
use super::expert_places;
use super::lab::{Compared, Lab, state};
use super::places::Several;
use super::prepared::Normed;
use super::router::{Choice, experts};
use super::token_gate_up::{choice_of_one, in_parts};
use crate::gpu::GpuError;
use crate::gpu::memory::GpuWeight;
use crate::kernels::expert_slots::{
    Chosen, GpuExpertSlots, Routing, Share, Table, expert_slots, first_words,
};
use crate::kernels::router::{GpuRouter, strided};
use crate::kernels::token_gate_up::GpuTokenGateUp;
use crate::model::Gating;
use crate::quant::GgmlType;

/// Columns of the weights, of which nobody reads any.
const COLS: usize = 256;

/// The product whose choice is made.
fn product<'a>(
    lab: &Lab<'_>,
    pair: &'a [GpuWeight],
    router: GpuRouter<'a>,
    x: &Normed,
    raw_logits: bool,
) -> GpuTokenGateUp<'a> {
    GpuTokenGateUp {
        tokens: router.max_tokens,
        experts: Some(([&pair[0], &pair[1]], router)),
        given: true,
        raw_logits,
        shared: None,
        activation: lab.form(),
        x: x.input(lab),
        h: lab.room(0),
    }
}

/// A pair of weights for `count` experts.
fn pair(lab: &Lab<'_>, count: usize) -> Result<Vec<GpuWeight>, GpuError> {
    let weight = lab.weight(GgmlType::Q4_0, [count, 32, COLS]);
    lab.load_alike(&[&weight, &weight])
}

/// A share of the host, by lot: from none of the missing experts to all of them.
fn split_by_lot(lab: &Lab<'_>, used: usize) -> Option<Vec<u32>> {
    let of = |misses: usize| lab.below(misses + 1) as u32;
    (lab.below(2) == 0).then(|| (0..=used).map(of).collect())
}

/// A trace with other choices than those of `tokens` tokens, by lot. It ends before the tokens do, and begins again.
fn trace_by_lot(
    lab: &Lab<'_>,
    [count, used, flags]: [usize; 3],
    tokens: Option<usize>,
) -> Option<Vec<u32>> {
    let tokens = tokens.filter(|_| lab.below(2) == 0)?;
    let choice = |_| choice_of_one(lab, [count, used, 0], flags).ids;
    Some((0..tokens.div_ceil(2)).flat_map(choice).collect())
}

/// The words of a table of slots, as in the beginning or after some tokens, but that a trace begins with its first choice.
fn words_by_lot(lab: &Lab<'_>, count: usize, slots: Option<usize>, is_traced: bool) -> Vec<u32> {
    let mut words = match slots.filter(|_| lab.below(2) == 0) {
        Some(slots) => expert_places::words(lab, count, slots),
        None => first_words(count as u32, slots.unwrap_or(0) as u32),
    };
    if is_traced {
        words[0] = 0;
    }
    words
}

/// Tokens one after the other, in a step. All logits come alike: whole, raw or in parts.
fn compare(
    lab: &Lab<'_>,
    [count, used]: [usize; 2],
    slots: Option<usize>,
    tokens: usize,
) -> Result<Vec<Compared>, GpuError> {
    let (raw, flags) = (lab.below(2) == 1, lab.below(8));
    let partial_sums = match raw && count.is_multiple_of(4) {
        true => 1 + lab.below(20),
        false => 1,
    };
    let x = Normed::new(lab, 1, COLS);
    let factor = if raw { x.root(0) } else { 1.0 };
    let choices: Vec<_> = (0..tokens)
        .map(|_| choice_of_one(lab, [count, used, 0], flags))
        .collect();
    let pair = pair(lab, count)?;
    let trace = trace_by_lot(lab, [count, used, flags], slots.map(|_| tokens));
    let routing = trace.as_ref().map(|trace| Routing::new(trace, used));
    let split = split_by_lot(lab, used);
    let mut words = words_by_lot(lab, count, slots, trace.is_some());
    let table = |slots| Table {
        words: lab.given(&words),
        slots: slots as u32,
    };
    let table = slots.map(table);
    let (mut calls, mut found) = (vec![], vec![]);
    for choice in &choices {
        let logits: Vec<f32> = choice.logits.iter().map(|logit| logit * factor).collect();
        let logits = in_parts(lab, &logits, partial_sums);
        let router = GpuRouter {
            partial_sums: partial_sums as u32,
            ..choice.given(lab, &logits, 1)
        };
        let of = [
            router.ids.clone(),
            router.weights.clone(),
            lab.words(2 * used),
            lab.words(used),
        ];
        let share = split.as_ref().map(|split| Share {
            split: lab.given(split),
            asked: of[3].clone(),
        });
        let gate_up = product(lab, &pair, router, &x, raw);
        let chosen = GpuExpertSlots {
            gate_up: &gate_up,
            table: table.as_ref(),
            routing: routing.as_ref(),
            fills: Some(of[2].clone()),
            share: share.as_ref(),
        };
        calls.push(chosen.call(lab.gpu)?);
        found.push(of);
    }
    lab.run(calls, state(1, 0))?;
    let mut all = vec![];
    for (i, (choice, [ids, weights, fills, asked])) in choices.iter().zip(&found).enumerate() {
        let traced = trace
            .as_ref()
            .map(|trace| &trace[i % (trace.len() / used) * used..][..used]);
        let chosen = traced.unwrap_or(&choice.ids);
        let split = split.as_deref();
        let twin = match slots {
            Some(_) => expert_slots(&mut words, chosen, count, split),
            None => Chosen::in_order(chosen, split.map_or(0, |split| split[used])),
        };
        all.push(lab.same(ids, &twin.places)?);
        all.push(lab.same(fills, &twin.fills)?);
        if split.is_some() {
            all.push(lab.same(asked, &twin.asked)?);
        }
        all.push(lab.floats(weights, &choice.weights, super::router::LIMIT)?);
    }
    if let Some(table) = &table {
        all.push(lab.same(&table.words, &words)?);
    }
    Ok(all)
}

/// Several tokens, whose ids are experts.
fn compare_several(lab: &Lab<'_>, [count, used]: [usize; 2]) -> Result<Vec<Compared>, GpuError> {
    let several = Several::new(lab);
    let Several { here, most } = several;
    let gating = [Gating::Sigmoid, Gating::Softmax][lab.below(2)];
    let config = experts(count, used, gating, lab.below(2) == 0);
    let x = Normed::new(lab, most, COLS);
    let raw = lab.below(2) == 1;
    let choice = Choice::new(&config, here, None, || lab.distinct(count), |_, _| true);
    let mut logits = choice.logits.clone();
    if raw {
        for (t, own) in logits.chunks_mut(count).enumerate() {
            own.iter_mut().for_each(|logit| *logit *= x.root(t));
        }
    }
    let behind = vec![f32::NAN; (most - here) * count];
    let logits = strided(&[logits, behind].concat(), &config);
    let pair = pair(lab, count)?;
    let gate_up = product(lab, &pair, choice.given(lab, &logits, most), &x, raw);
    let chosen = GpuExpertSlots {
        gate_up: &gate_up,
        table: None,
        routing: None,
        fills: None,
        share: None,
    };
    several.run(lab, vec![chosen.call(lab.gpu)?], most)?;
    let router = gate_up.experts.as_ref().map(|(_, router)| router);
    let found = router.map(|router| choice.compared(lab, router));
    Ok(found.transpose()?.into_iter().flatten().collect())
}

pub(crate) fn cases() -> Vec<Case> {
    // GLM-4.7-Flash, DeepSeek-V2-Lite, DeepSeek-V3, and sizes that fill nothing.
    let sizes = [[64, 4], [64, 6], [256, 8], [5, 2]];
    let mut all = vec![];
    for [count, used] in sizes {
        let name = |slots: &str| format!("{used} of {count} experts, {slots}");
        // Enough tokens for a decay.
        let tokens = if count == 64 { 70 } else { 9 };
        let any = Case::new(name("slots"), move |lab| {
            let slots = used + lab.below(count + 1 - used);
            compare(lab, [count, used], Some(slots), tokens)
        });
        all.push(any.verified_if(used == 4));
        let least = Case::new(name("as few slots as can be"), move |lab| {
            compare(lab, [count, used], Some(used), 9)
        });
        all.push(least);
        all.push(Case::new(name("no slots"), move |lab| {
            compare(lab, [count, used], None, 3)
        }));
        all.push(Case::new(name("several tokens"), move |lab| {
            compare_several(lab, [count, used])
        }));
    }
    all
}
