//! How much of a prompt one submission takes: about as much as the device computes in a tenth of a second.
//!
//! A display that shares the device waits for a submission, systems end what keeps it waiting, and Ctrl-C is looked for
//! between two. What work takes is measured while prompts run, for each kernel.

use crate::gpu::Gpu;
use crate::gpu::record::Cost;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The time that a submission is to take.
const BUDGET: Duration = Duration::from_millis(100);
/// The factor by which a kernel that never ran is expected to be slower than others.
const UNKNOWN: f64 = 4.0;
/// A submission is ended where a pass ends anyway if it takes this share of what it could.
const ENOUGH: f64 = 0.5;
/// The time of a submission in nanoseconds: at least and at most, where the host did not see it begin or end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub least: f64,
    pub most: f64,
}

/// The kind of a step, by the tokens that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Several tokens of a prompt, or the head behind them.
    Several,
    /// One token with its logits, by the kernels of decoding: it says nothing about what many take.
    Single,
}

/// The device's speed as far as it is known, for each kind of steps.
pub(super) struct Paces {
    several: Pace,
    single: Pace,
}

impl Paces {
    /// The paces of a device nothing is known of. Software has no display that waits, and smaller chunks would only be slower.
    pub(super) fn new(gpu: &Gpu) -> Self {
        let halves = gpu.info.device_type != wgpu::DeviceType::Cpu;
        Self::with_budget(BUDGET, halves)
    }

    pub(super) fn with_budget(budget: Duration, halves: bool) -> Self {
        Self {
            several: Pace::with_budget(budget, halves),
            // One token is the least there is.
            single: Pace::with_budget(budget, false),
        }
    }

    /// The pace of steps of a kind.
    pub(super) fn of(&mut self, kind: Kind) -> &mut Pace {
        match kind {
            Kind::Several => &mut self.several,
            Kind::Single => &mut self.single,
        }
    }

    /// The time of the longest submission since the last call; nothing where there was none.
    pub(super) fn take_longest(&mut self) -> Option<Duration> {
        let [several, single] = [&mut self.several, &mut self.single].map(Pace::take_longest);
        several.max(single)
    }
}

/// The device's speed as far as it is known, in steps of one kind.
pub(super) struct Pace {
    /// The longest submission in nanoseconds.
    budget: f64,
    /// Whether chunks, and slices of the head, are halved where one dispatch takes longer.
    halves: bool,
    /// Nanoseconds for a unit of work, by kernel.
    rates: HashMap<&'static str, f64>,
    /// Nanoseconds for a unit of work in the first submission, all kernels together.
    first: Option<f64>,
    /// Kernels of which a dispatch took longer alone than a submission should, and the work of that.
    too_long: HashMap<&'static str, f64>,
    /// Nanoseconds of the longest submission since they were last asked for.
    longest: f64,
}

impl Pace {
    fn with_budget(budget: Duration, halves: bool) -> Self {
        Self {
            budget: budget.as_nanos() as f64,
            halves,
            rates: HashMap::new(),
            first: None,
            too_long: HashMap::new(),
            longest: 0.0,
        }
    }

    /// Whether anything was measured.
    pub(super) fn is_known(&self) -> bool {
        self.first.is_some()
    }

    /// The time of the longest submission since the last call; nothing where there was none.
    fn take_longest(&mut self) -> Option<Duration> {
        let longest = std::mem::take(&mut self.longest);
        (longest > 0.0).then(|| Duration::from_nanos(longest as u64))
    }

    /// Nanoseconds that a dispatch is expected to take.
    fn expected(&self, cost: &Cost) -> f64 {
        let unknown = || self.first.unwrap_or(0.0) * UNKNOWN;
        cost.work * self.rates.get(cost.kernel).copied().unwrap_or_else(unknown)
    }

    /// Whether a head of these `costs` is short enough: together its dispatches are expected to take no more than a submission, or
    /// nothing is halved.
    pub(super) fn fits(&self, costs: &[Cost]) -> bool {
        !self.halves || costs.iter().map(|c| self.expected(c)).sum::<f64>() <= self.budget
    }

    /// The number of dispatches of the rest of a piece that the next submission takes: at least one.
    pub(super) fn cut(&self, costs: &[Cost]) -> usize {
        if !self.is_known() {
            return first_layer(costs);
        }
        let all: f64 = costs.iter().map(|c| self.expected(c)).sum();
        // Submissions of about equal length, instead of a rest.
        let target = match (all / self.budget).ceil() {
            count if count.is_finite() => all / count.max(1.0),
            _ => 0.0,
        };
        let (mut sum, mut best) = (0.0, 0);
        for (i, cost) in costs.iter().enumerate() {
            if i > 0 && cost.begins && sum >= ENOUGH * target {
                best = i;
            }
            sum += self.expected(cost);
            // Rounding must not leave a rest behind.
            if i > 0 && sum > target * (1.0 + 1e-6) {
                return if best > 0 { best } else { i };
            }
        }
        costs.len()
    }

    /// Corrects the rates by the time that a submission of dispatches with these `costs` took. Returns whether chunks should be halved.
    pub(super) fn learn(&mut self, costs: &[Cost], took: Took) -> bool {
        let work: f64 = costs.iter().map(|c| c.work).sum();
        let known = self.is_known();
        let expected: f64 = costs.iter().map(|c| self.expected(c)).sum();
        // The host knows only the least and the most that it took. The expected time is kept if it lies between them.
        let taken = match known && !costs.is_empty() {
            true => expected.min(took.most).max(took.least),
            false => took.most,
        };
        self.longest = self.longest.max(taken);
        if costs.is_empty() || taken <= 0.0 {
            return false;
        }
        let typical = *self.first.get_or_insert(taken / work);
        let factor = if known { taken / expected } else { 1.0 };
        let unknown = if known { typical * UNKNOWN } else { typical };
        let kernels: HashSet<_> = costs.iter().map(|c| c.kernel).collect();
        for kernel in kernels {
            *self.rates.entry(kernel).or_insert(unknown) *= factor;
        }
        match costs {
            // Shorter chunks help only what stands in the layers.
            [alone] if alone.layer.is_some() => self.is_too_long(alone, took) && self.halves,
            _ => false,
        }
    }

    /// Whether a dispatch that was submitted alone took too long, as one of its kernel did before: a single one may have waited
    /// for something else.
    fn is_too_long(&mut self, alone: &Cost, took: Took) -> bool {
        let before = self.too_long.get(alone.kernel).copied();
        if took.least >= self.budget {
            self.too_long.insert(alone.kernel, alone.work);
            if before.is_some() {
                self.too_long.clear();
            }
            return before.is_some();
        }
        if before.is_some_and(|work| alone.work >= work) && took.most <= self.budget {
            self.too_long.remove(alone.kernel);
        }
        false
    }
}

/// The dispatches up to the end of the first layer.
fn first_layer(costs: &[Cost]) -> usize {
    let first = costs.iter().find_map(|c| c.layer);
    let next = costs
        .iter()
        .position(|c| c.layer.is_some() && c.layer != first);
    next.unwrap_or(costs.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    /// Costs of `count` layers. A layer has an attention of 3 ms for each of `blocks` blocks and a product of 4 ms, if a unit of work takes
    /// a nanosecond.
    fn layers(count: usize, blocks: usize) -> Vec<Cost> {
        let layer = |layer| {
            let block = (0..blocks).map(move |_| ("attention", 3.0 * MS, true, layer));
            block.chain([
                ("norm", 1.0, true, layer),
                ("product", 4.0 * MS, false, layer),
            ])
        };
        let all = (0..count).flat_map(layer);
        all.map(|(kernel, work, begins, layer)| Cost {
            kernel,
            work,
            begins,
            layer: Some(layer),
        })
        .collect()
    }

    fn exactly(ms: f64) -> Took {
        let ns = ms * MS;
        Took {
            least: ns,
            most: ns,
        }
    }

    fn pace() -> Pace {
        Pace::with_budget(BUDGET, true)
    }

    /// Submissions of a piece on a device where each unit takes `ns` of its kernel, in milliseconds, and their lengths.
    fn submit(pace: &mut Pace, costs: &[Cost], ns: fn(&str) -> f64) -> Vec<(f64, usize)> {
        let (mut begin, mut all) = (0, vec![]);
        while begin < costs.len() {
            let part = &costs[begin..][..pace.cut(&costs[begin..])];
            let took: f64 = part.iter().map(|c| c.work * ns(c.kernel)).sum();
            assert!(!pace.learn(part, exactly(took / MS)));
            all.push((took / MS, part.len()));
            begin += part.len();
        }
        all
    }

    #[test]
    fn a_fast_device_takes_one_layer_and_the_rest_then_everything() {
        let mut pace = pace();
        let costs = layers(40, 1);
        let fast = |_: &str| 0.3;
        let first = submit(&mut pace, &costs, fast);
        assert_eq!(first.iter().map(|s| s.1).collect::<Vec<_>>(), [3, 117]);
        assert_eq!(submit(&mut pace, &costs, fast).len(), 1);
        assert_eq!(pace.take_longest().map(|t| t.as_millis()), Some(84));
        assert_eq!(pace.take_longest(), None);
    }

    #[test]
    fn submissions_of_a_slow_device_take_a_tenth_of_a_second_at_any_depth() {
        let mut pace = pace();
        // Kernels of different speed, so that the first estimates are wrong.
        let slow = |kernel: &str| if kernel == "product" { 9.0 } else { 4.0 };
        for blocks in [1, 3, 40] {
            let costs = layers(20, blocks);
            let all = submit(&mut pace, &costs, slow);
            let settled = &all[all.len() / 2..];
            for (ms, _) in &settled[..settled.len() - 1] {
                assert!((45.0..=115.0).contains(ms), "{blocks} blocks: {all:?}");
            }
        }
    }

    #[test]
    fn ends_of_passes_are_preferred() {
        let mut pace = pace();
        let costs = layers(20, 1);
        let all = submit(&mut pace, &costs, |_| 5.0);
        let mut begin = 0;
        for (_, count) in &all {
            assert!(costs[begin].begins, "{all:?}");
            begin += count;
        }
        assert!((7..=10).contains(&all.len()), "700 ms: {all:?}");
    }

    #[test]
    fn what_the_host_saw_late_only_bounds() {
        let mut pace = pace();
        let costs = layers(1, 1);
        pace.learn(&costs, exactly(10.0));
        let expected = |pace: &Pace| costs.iter().map(|c| pace.expected(c)).sum::<f64>() / MS;
        let took = |least, most| Took {
            least: least * MS,
            most: most * MS,
        };
        for (least, most, now) in [(0.0, 500.0, 10.0), (0.0, 8.0, 8.0), (9.0, 500.0, 9.0)] {
            pace.learn(&costs, took(least, most));
            assert!((expected(&pace) - now).abs() < 1e-6, "{least} to {most}");
        }
        assert_eq!(pace.take_longest().map(|t| t.as_millis()), Some(10));
    }

    #[test]
    fn chunks_halve_where_a_dispatch_alone_takes_too_long_twice() {
        let costs = layers(2, 1);
        let [small, large] = [costs[1], costs[2]];
        let mut pace = pace();
        pace.learn(&costs, exactly(900.0));
        assert_eq!(pace.cut(&costs), 1, "each alone");
        assert!(!pace.learn(&[large], exactly(150.0)), "once may be chance");
        assert!(!pace.learn(&[small], exactly(1.0)));
        assert!(!pace.learn(&costs[..2], exactly(300.0)), "not alone");
        assert!(pace.learn(&[large], exactly(150.0)));
        assert!(!pace.learn(&[large], exactly(150.0)), "counted anew");
        assert!(!pace.learn(&[large], exactly(60.0)), "it was chance");
        assert!(!pace.learn(&[large], exactly(150.0)));
        let mut software = Pace::with_budget(BUDGET, false);
        software.learn(&costs, exactly(900.0));
        software.learn(&[large], exactly(150.0));
        assert!(!software.learn(&[large], exactly(150.0)));
    }

    #[test]
    fn a_head_that_takes_too_long_halves_no_chunks_but_its_slices() {
        let mut costs = layers(2, 1);
        let head = Cost {
            layer: None,
            ..costs[2]
        };
        costs.push(head);
        for halves in [true, false] {
            let mut pace = Pace::with_budget(BUDGET, halves);
            pace.learn(&costs, exactly(18.0));
            assert!(pace.fits(&[head]));
            for _ in 0..3 {
                assert!(!pace.learn(&[head], exactly(150.0)));
            }
            assert_eq!(pace.fits(&[head]), !halves);
            let half = Cost {
                work: head.work / 2.0,
                ..head
            };
            assert!(pace.fits(&[half]));
        }
    }

    #[test]
    fn one_token_says_nothing_about_several() {
        let mut paces = Paces::with_budget(BUDGET, true);
        let costs = layers(3, 1);
        assert!(!paces.of(Kind::Single).learn(&costs, exactly(300.0)));
        assert!(paces.of(Kind::Single).is_known() && !paces.of(Kind::Several).is_known());
        assert_eq!(paces.of(Kind::Several).cut(&costs), 3, "one layer");
        paces.of(Kind::Several).learn(&costs, exactly(30.0));
        assert_eq!(paces.of(Kind::Several).cut(&costs), costs.len());
        assert_eq!(paces.take_longest().map(|t| t.as_millis()), Some(300));
        assert_eq!(paces.take_longest(), None);
    }

    #[test]
    fn without_a_budget_every_dispatch_is_submitted_alone() {
        let mut pace = Pace::with_budget(Duration::ZERO, false);
        let costs = layers(3, 2);
        let all = submit(&mut pace, &costs, |_| 1.0);
        let lengths: Vec<_> = all.iter().map(|s| s.1).collect();
        assert_eq!(
            lengths,
            [vec![4], vec![1; 8]].concat(),
            "after the first layer"
        );
    }
}
