//! A summary of times: of dispatches, kernels and layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::engine::HostWork;
use crate::engine::gpu::ExpertTraffic;
use crate::gpu::call::{About, Sublayer, Taken};

/// The device and the model of a profile, and the facts that hold for all of its dispatches.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Head {
    /// Commit of the build.
    pub build_commit: &'static str,
    /// Version of glimt.
    pub version: &'static str,
    /// The adapter's name.
    pub gpu_info: String,
    /// The adapter's driver.
    pub driver: String,
    /// Vulkan, Metal or DX12.
    pub backends: String,
    /// Tier of the kernels.
    pub tier: &'static str,
    /// The type of the cache.
    pub cache_type: &'static str,
    /// The measurements by which the tier was chosen, where that was now.
    pub tier_trial: Option<String>,
    /// The outcome of `--precompose`, where it is not off.
    pub precompose: Option<String>,
    /// The CPU's share of missing experts, where one was asked for and experts lie in host memory.
    pub cpu_share: Option<String>,
    /// The file or the synthetic model.
    pub model_filename: String,
    /// The name of the model.
    pub model_type: String,
    /// Cache rows before what is timed.
    pub n_depth: usize,
    /// The time of the test, in UTC.
    pub test_time: String,
    /// The bandwidth that a plain read of a large buffer reaches, in 10^9 bytes per second.
    pub peak_gb_per_s: f64,
    /// The time of a dispatch that waits for the one before and reads next to nothing, in microseconds.
    pub dispatch_us: f64,
    /// How dispatches were told apart.
    pub separation: &'static str,
    /// The clock that told the times: `gpu`, or `host` where the GPU's timestamps are missing or wrong.
    pub clock: &'static str,
    /// The time of an empty pass, subtracted from each dispatch, where each had a pass.
    pub empty_pass_us: Option<f64>,
}

/// The work that was timed, and its time without timestamps between its dispatches.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Work {
    /// Decoded tokens.
    Token {
        /// The number of tokens, which medians are over.
        tokens: usize,
        /// A token while generating, by the host's clock, without timestamps.
        token_us: f64,
        /// A step on the GPU with timestamps at its two ends only; by the host's clock, a step repeated without a pause.
        step_us: f64,
        /// Dispatches of a token that wait for the one before: others run beside them.
        dependent_dispatches: usize,
    },
    /// Steps with drafts, all of which are taken as accepted.
    Drafted {
        /// The number of steps, which medians are over.
        steps: usize,
        /// The source of the drafts: `mtp` or `ngram`.
        draft: &'static str,
        /// Drafts of each step.
        drafts: usize,
        /// A step while generating, by the host's clock, without timestamps.
        step_us: f64,
        /// A token while generating without drafts, by the same clock.
        token_us: f64,
    },
    /// A prompt.
    Prompt {
        /// The tokens of the prompt.
        n_prompt: usize,
        /// The most tokens computed at once.
        n_ubatch: u32,
        /// Tokens of each piece it was computed in; the last may have fewer.
        piece: usize,
        /// The number of times that it was timed; medians are over them.
        repetitions: usize,
        /// The prompt by the host's clock, without timestamps.
        prompt_us: f64,
        /// Tokens of the prompt per second by the host's clock.
        tokens_per_s: f64,
    },
}

impl Work {
    /// The time that the sum of the dispatches is to be held against, in microseconds: less where dispatches are kept apart.
    pub(super) fn without_us(&self) -> f64 {
        match *self {
            Self::Token { step_us, .. } | Self::Drafted { step_us, .. } => step_us,
            Self::Prompt { prompt_us, .. } => prompt_us,
        }
    }
}

/// The experts of a token or prompt of a model whose experts lie in host memory or in the file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FromHost {
    /// Slots of each layer.
    pub expert_slots: u32,
    /// Experts that steps chose and that had a slot, on average; `None` for prompts where no layer has slots, whose tables count them.
    pub expert_hits: Option<f64>,
    /// Those that had none, on average, with those of the CPU.
    pub expert_misses: Option<f64>,
    /// The experts that the CPU multiplied, if it has a share.
    #[serde(flatten)]
    pub by_cpu: Option<ByCpu>,
    /// The host reads these experts from the file if this is true. Then no dispatch brings any.
    pub from_file: bool,
    /// Bytes that came over the bus or from the file, on average.
    pub bus_bytes: Option<f64>,
    /// Bytes of these that came beside what computes, of all experts without a slot whichever were chosen: hits and misses do not count them.
    pub beside_bytes: f64,
    /// Microseconds of the dispatches that bring experts, the median.
    pub fills_us: f64,
    /// The speed of these, in 10^9 bytes per second.
    pub bus_gb_per_s: Option<f64>,
}

/// The experts of a token that the CPU multiplies while the bus brings others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ByCpu {
    /// Experts, on average.
    pub cpu_experts: f64,
    /// Bytes of these.
    pub cpu_bytes: f64,
    /// Microseconds in which they were multiplied.
    pub cpu_us: f64,
}

impl ByCpu {
    /// What a token has of this work, if so many layers are answered for each.
    pub(super) fn of(work: HostWork, layers: usize) -> Self {
        let tokens = (work.answers as f64 / layers.max(1) as f64).max(1.0);
        Self {
            cpu_experts: work.experts as f64 / tokens,
            cpu_bytes: work.bytes as f64 / tokens,
            cpu_us: work.seconds * 1e6 / tokens,
        }
    }
}

/// Dispatches of one kernel and shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kernel {
    /// Kernel, types, shape, flags.
    pub label: String,
    /// The kernel.
    pub kernel: &'static str,
    /// Dispatches per token or prompt.
    pub calls: usize,
    /// Microseconds of all of them per token or prompt, the median.
    pub us: f64,
    /// The least time of all of them: their bytes at the speed of a plain read, and the wait of each for the one before.
    pub floor_us: f64,
    /// Share of the time of the token or prompt.
    pub share: f64,
    /// Bytes that all of them read at least.
    pub bytes: u64,
    /// The bandwidth in 10^9 bytes per second; `None` where no bytes are known.
    pub gb_per_s: Option<f64>,
    /// Share of what a plain read reaches.
    pub of_peak: Option<f64>,
    /// Microseconds of all of them with nothing between them, so that none waits but where they write the same buffer; `None`
    /// for a prompt, and for kernels of a few calls.
    pub alone_us: Option<f64>,
    /// The bandwidth of the kernel alone, in 10^9 bytes per second.
    pub alone_gb_per_s: Option<f64>,
    /// Share of what a plain read reaches, so.
    pub alone_of_peak: Option<f64>,
    /// The speed in 10^12 floating-point operations that must be done, per second; `None` where they are not told.
    pub tflop_per_s: Option<f64>,
}

/// A layer's medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerTime {
    /// The layer's number.
    pub layer: usize,
    /// Whether its feed-forward network is a mixture of experts.
    pub moe: bool,
    /// Microseconds of the whole layer.
    pub us: f64,
    /// Microseconds of its feed-forward network.
    pub feed_forward_us: f64,
}

/// A part of a step with drafts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartTime {
    /// The name of the part.
    pub part: String,
    /// Its dispatches.
    pub dispatches: usize,
    /// Microseconds of all of them, the median.
    pub us: f64,
    /// Bytes that they read at least.
    pub bytes: u64,
}

/// A dispatch on the timeline of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// The dispatch.
    pub about: Arc<About>,
    /// Microseconds from the beginning of the token.
    pub begin: f64,
    /// Microseconds from the beginning of the token to the end of the dispatch.
    pub end: f64,
}

/// The time of a token or a prompt, divided among kernels and layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// The device and the model.
    #[serde(flatten)]
    pub head: Head,
    /// The work that was timed.
    #[serde(flatten)]
    pub work: Work,
    /// The experts that came over the bus, where they do.
    #[serde(flatten)]
    pub from_host: Option<FromHost>,
    /// All dispatches of a token or prompt together, the median.
    pub sum_us: f64,
    /// Dispatches per token or prompt.
    pub dispatches: usize,
    /// The parts of a step with drafts, in order; empty for anything else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartTime>,
    /// The kernels by name and shape, the longest first.
    pub kernels: Vec<Kernel>,
    /// Every layer.
    pub layers: Vec<LayerTime>,
    /// The first layer with experts.
    pub first_moe: Option<LayerTime>,
    /// The layer whose time is the median of the more frequent kind of layer.
    pub typical: Option<LayerTime>,
    /// The token or step whose time is the median; empty for a prompt.
    #[serde(skip)]
    pub timeline: Vec<Bar>,
}

/// The median; of an even number the mean of the middle two; 0 of none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The kernel that brings experts which were chosen, as slots and their tables count them.
const CHOSEN: &str = "expert_fill";
/// The kernel that brings all experts of a layer beside what computes.
const BESIDE: &str = "expert_part";

/// The measurements of a profile.
pub(super) struct Measured {
    /// The work that was timed.
    pub(super) work: Work,
    /// The dispatches of a token or prompt.
    pub(super) step: Vec<Taken>,
    /// Begin and end of each of them, in nanoseconds, each time.
    pub(super) times: Vec<Vec<[f64; 2]>>,
    /// Microseconds of all dispatches of a kernel with nothing between them, by label.
    pub(super) alone: BTreeMap<String, f64>,
    /// The experts that were brought meanwhile, where they lie in host memory.
    pub(super) traffic: Option<Traffic>,
    /// The parts of a step with drafts: the name of each, and the dispatches before its end.
    pub(super) parts: Vec<(String, usize)>,
}

/// The experts that were brought while dispatches were timed.
pub(super) struct Traffic {
    /// Slots of each layer.
    pub(super) slots: u32,
    /// Whether experts stay in the file.
    pub(super) from_file: bool,
    /// The counts of the device, where it has slots.
    pub(super) counted: Option<ExpertTraffic>,
    /// What the CPU multiplied of a token, if it has a share.
    pub(super) by_cpu: Option<ByCpu>,
    /// Bytes of the experts of a token, of all layers.
    pub(super) of_token: u64,
    /// Experts of a token, of all layers.
    pub(super) chosen: usize,
    /// The number of times that the work was done.
    pub(super) times: usize,
}

impl Traffic {
    /// The experts of one token or prompt with these dispatches, of which those that bring experts take `fills_us`.
    fn of_work(&self, work: &Work, step: &[Taken], fills_us: f64) -> FromHost {
        let is_token = matches!(work, Work::Token { .. });
        let chosen = self.chosen as f64;
        let counted = self.counted.map(|counted| {
            // Where dispatches are repeated to be timed, experts are chosen more often: the counts are those of more tokens.
            let times = match is_token {
                true => (counted.hits + counted.misses) as f64 / chosen,
                false => self.times as f64,
            };
            [counted.hits, counted.misses, counted.bytes].map(|n| n as f64 / times.max(1.0))
        });
        let counted = counted.or(is_token.then_some([0.0, chosen, self.of_token as f64]));
        let [hits, misses, of_chosen] = [0, 1, 2].map(|i| counted.map(|counted| counted[i]));
        let of = |kernel| {
            step.iter()
                .filter(move |taken| taken.about.kernel == kernel)
        };
        let beside: u64 = of(BESIDE).map(|taken| taken.bytes).sum();
        // Without slots nobody counts what prompts choose.
        let of_chosen = of_chosen.or(of(CHOSEN).next().is_none().then_some(0.0));
        // What the CPU multiplies does not come over the bus.
        let of_cpu = self.by_cpu.map_or(0.0, |by_cpu| by_cpu.cpu_bytes);
        let bytes = of_chosen.map(|bytes| (bytes - of_cpu).max(0.0) + beside as f64);
        let rate = bytes.filter(|_| fills_us > 0.0);
        FromHost {
            expert_slots: self.slots,
            expert_hits: hits,
            expert_misses: misses,
            by_cpu: self.by_cpu,
            from_file: self.from_file,
            bus_bytes: bytes,
            beside_bytes: beside as f64,
            fills_us,
            bus_gb_per_s: rate.map(|bytes| bytes / fills_us / 1e3),
        }
    }
}

impl Profile {
    /// A profile of what was measured. The first `dense` layers have no experts.
    pub(super) fn new(
        head: Head,
        Measured {
            work,
            step,
            times,
            alone,
            traffic,
            parts,
        }: Measured,
        dense: usize,
    ) -> Self {
        let (step, times) = (&step[..], &times[..]);
        let spans = Spans::of(times, head.empty_pass_us.unwrap_or(0.0));
        let count = step.iter().filter_map(|t| t.about.sublayer.layer()).max();
        let layers: Vec<_> = (0..count.map_or(0, |last| last + 1))
            .map(|layer| LayerTime {
                layer,
                moe: layer >= dense,
                us: spans.sum_of(|i| step[i].about.sublayer.layer() == Some(layer)),
                feed_forward_us: spans
                    .sum_of(|i| step[i].about.sublayer == Sublayer::FeedForward(layer)),
            })
            .collect();
        let fills_us = spans.sum_of(|i| [CHOSEN, BESIDE].contains(&step[i].about.kernel));
        Self {
            from_host: traffic.map(|traffic| traffic.of_work(&work, step, fills_us)),
            sum_us: spans.sum_of(|_| true),
            dispatches: step.len(),
            parts: part_times(parts, step, &spans),
            kernels: kernels(&head, step, &spans, &alone),
            first_moe: layers.iter().copied().find(|l| l.moe),
            typical: typical(&layers),
            layers,
            timeline: match work {
                Work::Prompt { .. } => vec![],
                _ => timeline(step, times, &spans.0, head.empty_pass_us.is_some()),
            },
            head,
            work,
        }
    }
}

/// The times of the dispatches, (tokens or repetitions, dispatches) in microseconds.
struct Spans(Vec<Vec<f64>>);

impl Spans {
    /// The spans between begins and ends in nanoseconds, less the `empty` pass that each had.
    fn of(times: &[Vec<[f64; 2]>], empty: f64) -> Self {
        let span = |[begin, end]: &[f64; 2]| ((end - begin) / 1e3 - empty).max(0.0);
        let spans = |token: &Vec<[f64; 2]>| token.iter().map(span).collect();
        Self(times.iter().map(spans).collect())
    }

    /// The median over tokens of the sum of the dispatches that `of` picks.
    fn sum_of(&self, of: impl Fn(usize) -> bool) -> f64 {
        let sum = |token: &Vec<f64>| {
            let picked = token.iter().enumerate().filter(|(i, _)| of(*i));
            // The sum of no floats is -0.
            picked.fold(0.0, |sum, (_, us)| sum + us)
        };
        median(self.0.iter().map(sum).collect())
    }
}

/// The times of the parts of a step.
fn part_times(parts: Vec<(String, usize)>, step: &[Taken], spans: &Spans) -> Vec<PartTime> {
    let mut begin = 0;
    let times = parts.into_iter().map(|(part, end)| {
        let own = std::mem::replace(&mut begin, end)..end;
        PartTime {
            part,
            dispatches: own.len(),
            us: spans.sum_of(|i| own.contains(&i)),
            bytes: step[own.clone()].iter().map(|taken| taken.bytes).sum(),
        }
    });
    times.collect()
}

/// The dispatches by kernel and shape, the longest first.
fn kernels(
    head: &Head,
    step: &[Taken],
    spans: &Spans,
    alone: &BTreeMap<String, f64>,
) -> Vec<Kernel> {
    let sum_us = spans.sum_of(|_| true);
    let mut labels: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (i, taken) in step.iter().enumerate() {
        labels.entry(&taken.about.label).or_default().push(i);
    }
    let mut kernels: Vec<_> = labels
        .iter()
        .map(|(label, calls)| {
            let us = spans.sum_of(|i| step[i].about.label == *label);
            let bytes = calls.iter().map(|&i| step[i].bytes).sum();
            let flops: u64 = calls.iter().map(|&i| step[i].flops).sum();
            let rate = |us: f64| (bytes > 0 && us > 0.0).then(|| bytes as f64 / us / 1e3);
            let gb_per_s = rate(us);
            let alone_us = alone.get(*label).copied();
            let alone_gb_per_s = alone_us.and_then(rate);
            Kernel {
                label: (*label).to_owned(),
                kernel: step[calls[0]].about.kernel,
                calls: calls.len(),
                us,
                floor_us: bytes as f64 / head.peak_gb_per_s / 1e3
                    + calls.len() as f64 * head.dispatch_us,
                share: us / sum_us,
                bytes,
                gb_per_s,
                of_peak: gb_per_s.map(|v| v / head.peak_gb_per_s),
                alone_us,
                alone_gb_per_s,
                alone_of_peak: alone_gb_per_s.map(|v| v / head.peak_gb_per_s),
                tflop_per_s: (flops > 0 && us > 0.0).then(|| flops as f64 / us / 1e6),
            }
        })
        .collect();
    kernels.sort_by(|a, b| b.us.total_cmp(&a.us));
    kernels
}

fn typical(layers: &[LayerTime]) -> Option<LayerTime> {
    let (moe, dense): (Vec<_>, Vec<_>) = layers.iter().copied().partition(|l| l.moe);
    let mut kind = if moe.len() >= dense.len() { moe } else { dense };
    kind.sort_by(|a, b| a.us.total_cmp(&b.us));
    kind.get(kind.len() / 2).copied()
}

/// The dispatches of the token of median length; end to end where each had a pass, since the gaps are the passes'.
fn timeline(
    step: &[Taken],
    times: &[Vec<[f64; 2]>],
    spans: &[Vec<f64>],
    end_to_end: bool,
) -> Vec<Bar> {
    let mut order: Vec<_> = (0..times.len()).collect();
    order.sort_by(|&a, &b| {
        let sum = |i: usize| spans[i].iter().sum::<f64>();
        sum(a).total_cmp(&sum(b))
    });
    let Some(&token) = order.get(order.len() / 2) else {
        return vec![];
    };
    let origin = times[token].first().map_or(0.0, |t| t[0]);
    let mut at = 0.0;
    step.iter()
        .zip(&times[token])
        .zip(&spans[token])
        .map(|((taken, [begin, _]), span)| {
            let begin = if end_to_end {
                at
            } else {
                (begin - origin) / 1e3
            };
            at = begin + span;
            Bar {
                about: Arc::clone(&taken.about),
                begin,
                end: at,
            }
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests;
