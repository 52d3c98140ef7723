//! From times of dispatches to times of kernels and layers.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::gpu::record::{About, Part, State};

/// What was profiled, and what the same takes without being profiled.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Head {
    /// Commit of the build.
    pub build_commit: &'static str,
    /// Version of glimt.
    pub version: &'static str,
    /// The adapter's name.
    pub gpu_info: String,
    /// Its driver.
    pub driver: String,
    /// Vulkan, Metal or DX12.
    pub backends: String,
    /// Tier of the kernels.
    pub tier: &'static str,
    /// What became of `--precompose`, where it is not off.
    pub precompose: Option<String>,
    /// The file or the synthetic model.
    pub model_filename: String,
    /// What the model is called.
    pub model_type: String,
    /// Cache rows before the tokens.
    pub n_depth: usize,
    /// Tokens that medians are over.
    pub tokens: usize,
    /// When, in UTC.
    pub test_time: String,
    /// What a plain read of a large buffer reaches.
    pub peak_gb_per_s: f64,
    /// How dispatches were told apart.
    pub separation: &'static str,
    /// What an empty pass takes, subtracted from each dispatch, where each had a pass.
    pub empty_pass_us: Option<f64>,
    /// A token while generating, by the host's clock, without timestamps.
    pub token_us: f64,
    /// A step on the GPU with timestamps at its two ends only.
    pub step_us: f64,
}

/// Dispatches of one kernel and shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kernel {
    /// Kernel, types, shape, flags.
    pub label: String,
    /// The kernel.
    pub kernel: &'static str,
    /// Dispatches per token.
    pub calls: usize,
    /// Microseconds of all of them per token, the median.
    pub us: f64,
    /// Share of the token.
    pub share: f64,
    /// Bytes that all of them read at least.
    pub bytes: u64,
    /// In 10^9 bytes; `None` where no bytes are known.
    pub gb_per_s: Option<f64>,
    /// Share of what a plain read reaches.
    pub of_peak: Option<f64>,
}

/// A layer's medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerTime {
    /// The layer's number.
    pub layer: usize,
    /// Whether its feed-forward part is a mixture of experts.
    pub moe: bool,
    /// Microseconds of the whole layer.
    pub us: f64,
    /// Microseconds of its feed-forward part.
    pub feed_forward_us: f64,
}

/// A dispatch on the timeline of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// What it is.
    pub about: About,
    /// Microseconds from the beginning of the token.
    pub begin: f64,
    /// The same of its end.
    pub end: f64,
}

/// Where the time of a token goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// What was profiled.
    #[serde(flatten)]
    pub head: Head,
    /// All dispatches of a token together, the median.
    pub sum_us: f64,
    /// Dispatches per token.
    pub dispatches: usize,
    /// By kernel and shape, the longest first.
    pub kernels: Vec<Kernel>,
    /// Every layer.
    pub layers: Vec<LayerTime>,
    /// The first layer with experts.
    pub first_moe: Option<LayerTime>,
    /// The layer whose time is the median of the more frequent kind of layer.
    pub typical: Option<LayerTime>,
    /// The token whose time is the median.
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

impl Profile {
    /// From `times`: per token, at positions from `first` on, begin and end of each dispatch of `step` in nanoseconds.
    /// The first `dense` layers have no experts.
    pub(super) fn new(
        head: Head,
        step: &[About],
        first: usize,
        times: &[Vec<[f64; 2]>],
        dense: usize,
    ) -> Self {
        let empty = head.empty_pass_us.unwrap_or(0.0);
        // (tokens, dispatches) in microseconds.
        let spans: Vec<Vec<f64>> = times
            .iter()
            .map(|token| {
                let span = |[begin, end]: &[f64; 2]| ((end - begin) / 1e3 - empty).max(0.0);
                token.iter().map(span).collect()
            })
            .collect();
        // The median over tokens of the sum of the dispatches that `of` picks.
        let sum_of = |of: &dyn Fn(usize) -> bool| {
            let sum = |token: &Vec<f64>| {
                let picked = token.iter().enumerate().filter(|(i, _)| of(*i));
                picked.map(|(_, us)| us).sum()
            };
            median(spans.iter().map(sum).collect())
        };
        let middle = State {
            pos: (first + times.len() / 2) as u32,
            tokens: 1,
            ..State::default()
        };
        let sum_us = sum_of(&|_| true);
        let mut labels: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, about) in step.iter().enumerate() {
            labels.entry(&about.label).or_default().push(i);
        }
        let mut kernels: Vec<_> = labels
            .iter()
            .map(|(label, calls)| {
                let us = sum_of(&|i| step[i].label == *label);
                let bytes = calls.iter().map(|&i| step[i].bytes(&middle)).sum();
                let gb_per_s = (bytes > 0 && us > 0.0).then(|| bytes as f64 / us / 1e3);
                Kernel {
                    label: (*label).to_owned(),
                    kernel: step[calls[0]].kernel,
                    calls: calls.len(),
                    us,
                    share: us / sum_us,
                    bytes,
                    gb_per_s,
                    of_peak: gb_per_s.map(|v| v / head.peak_gb_per_s),
                }
            })
            .collect();
        kernels.sort_by(|a, b| b.us.total_cmp(&a.us));

        let count = step.iter().filter_map(|a| a.part.layer()).max();
        let layers: Vec<_> = (0..count.map_or(0, |last| last + 1))
            .map(|layer| LayerTime {
                layer,
                moe: layer >= dense,
                us: sum_of(&|i| step[i].part.layer() == Some(layer)),
                feed_forward_us: sum_of(&|i| step[i].part == Part::FeedForward(layer)),
            })
            .collect();
        Self {
            sum_us,
            dispatches: step.len(),
            kernels,
            first_moe: layers.iter().copied().find(|l| l.moe),
            typical: typical(&layers),
            layers,
            timeline: timeline(step, times, &spans, head.empty_pass_us.is_some()),
            head,
        }
    }
}

fn typical(layers: &[LayerTime]) -> Option<LayerTime> {
    let (moe, dense): (Vec<_>, Vec<_>) = layers.iter().copied().partition(|l| l.moe);
    let mut kind = if moe.len() >= dense.len() { moe } else { dense };
    kind.sort_by(|a, b| a.us.total_cmp(&b.us));
    kind.get(kind.len() / 2).copied()
}

/// The dispatches of the token of median length; end to end where each had a pass, since the gaps are the passes'.
fn timeline(
    step: &[About],
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
        .map(|((about, [begin, _]), span)| {
            let begin = if end_to_end {
                at
            } else {
                (begin - origin) / 1e3
            };
            at = begin + span;
            Bar {
                about: about.clone(),
                begin,
                end: at,
            }
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn about(kernel: &'static str, label: &str, part: Part, bytes: u64) -> About {
        About {
            kernel,
            label: label.to_owned(),
            part,
            bytes,
            bytes_per_row: if kernel == "attention" { 100 } else { 0 },
        }
    }

    /// Embedding, two layers of attention and a product, head; 3 tokens, of which one is slow.
    pub(in crate::profile) fn example(empty_pass_us: Option<f64>) -> Profile {
        let step = [
            about("embed", "embed Q4_0", Part::Outside, 0),
            about("attention", "attention", Part::Attention(0), 0),
            about("matvec", "matvec Q4_0 8x32", Part::FeedForward(0), 4000),
            about("attention", "attention", Part::Attention(1), 0),
            about("matvec", "matvec Q4_0 8x32", Part::FeedForward(1), 4000),
            about("matvec", "matvec Q6_K <64x32>", Part::Outside, 10_000),
        ];
        let token = |factor: f64| {
            let lengths = [1.0, 4.0, 2.0, 5.0, 2.0, 10.0];
            let mut at = 500.0;
            lengths
                .map(|us| {
                    let begin = at;
                    at += us * factor * 1e3;
                    [begin, at]
                })
                .to_vec()
        };
        let head = Head {
            gpu_info: "a GPU".to_owned(),
            tier: "plain",
            model_type: "a model".to_owned(),
            tokens: 3,
            peak_gb_per_s: 10.0,
            separation: "timestamps between dispatches",
            empty_pass_us,
            token_us: 30.0,
            step_us: 20.0,
            ..Head::default()
        };
        let times = [token(1.0), token(3.0), token(1.0)];
        Profile::new(head, &step, 9, &times, 1)
    }

    #[test]
    fn kernels_are_grouped_by_label_with_medians_over_tokens() {
        let profile = example(None);
        assert_eq!((profile.sum_us, profile.dispatches), (24.0, 6));
        let found: Vec<_> = profile
            .kernels
            .iter()
            .map(|k| (k.label.as_str(), k.calls, k.us, k.bytes))
            .collect();
        // Attention at position 10, the middle of 9, 10, 11, reads 11 rows of 100 bytes.
        let expected = [
            ("matvec Q6_K <64x32>", 1, 10.0, 10_000),
            ("attention", 2, 9.0, 2200),
            ("matvec Q4_0 8x32", 2, 4.0, 8000),
            ("embed Q4_0", 1, 1.0, 0),
        ];
        assert_eq!(found, expected);
        let head = &profile.kernels[0];
        assert_eq!(head.gb_per_s, Some(1.0));
        assert_eq!(head.of_peak, Some(0.1));
        assert_eq!(profile.kernels[3].gb_per_s, None);
        let shares: f64 = profile.kernels.iter().map(|k| k.share).sum();
        assert!((shares - 1.0).abs() < 1e-12);
    }

    #[test]
    fn layers_have_their_feed_forward_part_and_kind() {
        let profile = example(None);
        let layer = |layer, moe, us| LayerTime {
            layer,
            moe,
            us,
            feed_forward_us: 2.0,
        };
        assert_eq!(profile.layers, [layer(0, false, 6.0), layer(1, true, 7.0)]);
        assert_eq!(profile.first_moe, Some(profile.layers[1]));
        assert_eq!(profile.typical, Some(profile.layers[1]));
    }

    #[test]
    fn an_empty_pass_is_subtracted_and_the_timeline_closed() {
        let profile = example(Some(1.0));
        assert_eq!(profile.sum_us, 24.0 - 6.0);
        let bars: Vec<_> = profile.timeline.iter().map(|b| (b.begin, b.end)).collect();
        let expected = [
            (0.0, 0.0),
            (0.0, 3.0),
            (3.0, 4.0),
            (4.0, 8.0),
            (8.0, 9.0),
            (9.0, 18.0),
        ];
        assert_eq!(bars, expected);
        let open = example(None);
        assert_eq!((open.timeline[5].begin, open.timeline[5].end), (14.0, 24.0));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
