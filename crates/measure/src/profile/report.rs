//! A profile as text; as JSON it is its fields.

use super::summary::{ByCpu, FromHost, LayerTime, Profile, Work};
use crate::bench::rate;
use crate::gpu::clock::Clock;
use crate::plural::count;

/// Head, kernels and layers in Markdown.
pub fn markdown(profile: &Profile) -> String {
    [
        head(profile),
        parts(profile),
        kernels(profile),
        layers(profile),
    ]
    .concat()
}

fn head(profile: &Profile) -> String {
    let h = &profile.head;
    let mut text = format!(
        "{} on {} ({}, tier {}; driver {}), cache in {}, depth {}, ",
        h.model_type, h.gpu_info, h.backends, h.tier, h.driver, h.cache_type, h.n_depth,
    );
    text += &work(profile);
    let more = 100.0 * (profile.sum_us / profile.work.without_us() - 1.0);
    text += &format!(
        "The dispatches below sum up to {:.1} us ({more:+.1}% of that), told apart by {}.\n",
        profile.sum_us, h.separation
    );
    if let Some(from_host) = &profile.from_host {
        let what = match profile.work {
            Work::Token { .. } => "token",
            Work::Drafted { .. } => "step",
            Work::Prompt { .. } => "prompt",
        };
        text += &experts(from_host, what);
    }
    if let Some(empty) = h.empty_pass_us {
        text += &format!("An empty pass takes {empty:.2} us, which is subtracted from each.\n");
    }
    text += &format!(
        "A plain read of a large buffer reaches {} GB/s, a dispatch that waits for the one before and reads 32 KiB takes {:.2} us: \
         the floor of a call is its bytes at that speed and such a wait. Bytes are those of weights and cache that must be read",
        rate(h.peak_gb_per_s),
        h.dispatch_us
    );
    text += match profile.work {
        Work::Token { .. } => {
            ". Alone: all of a kernel's calls of a token with nothing between them, so that none waits unless they write the same buffer.\n\n"
        }
        Work::Drafted { .. } | Work::Prompt { .. } => {
            ", of experts all in a product of several tokens; operations are two for each weight used and token.\n\n"
        }
    };
    text
}

/// The experts of a token or prompt, and those that came over the bus or from the file.
fn experts(of: &FromHost, what: &str) -> String {
    let counted = of.expert_hits.zip(of.expert_misses);
    let counts_nothing = of.beside_bytes > 0.0 && counted.is_none_or(|(h, m)| h + m == 0.0);
    let mut text = match counted {
        _ if counts_nothing => String::new(),
        Some((hits, misses)) => format!(
            "Of {:.1} experts of a {what} {hits:.1} had one of {} slots of their layers ({:.1}%), and {misses:.1} had none. ",
            hits + misses,
            of.expert_slots,
            100.0 * hits / (hits + misses).max(1.0)
        ),
        _ => "No layer has slots for experts. ".to_owned(),
    };
    if of.beside_bytes > 0.0 {
        let without = match of.expert_slots {
            0 => String::new(),
            slots => format!(" without one of the {slots} slots of their layers"),
        };
        text += &format!(
            "Where many tokens are computed at once, all experts{without} were brought beside what computes. "
        );
    }
    let from = match of.from_file {
        true => "from the file",
        false => "over the bus",
    };
    let came = of.bus_bytes;
    let came = came.map(|bytes| format!("{:.2} MB came {from}", bytes / 1e6));
    text += &came.unwrap_or_else(|| format!("What came {from} is not counted"));
    if !of.from_file {
        let fills = of.fills_us;
        text += &format!(", and {fills:.1} us are those of the dispatches that bring experts");
    }
    if let Some(speed) = of.bus_gb_per_s {
        text += &format!(", {} GB/s", rate(speed));
    }
    text += ".\n";
    if let Some(ByCpu {
        cpu_experts,
        cpu_bytes,
        cpu_us,
    }) = of.by_cpu
    {
        text += &format!(
            "The CPU multiplied {cpu_experts:.1} of these experts, {:.2} MB, in {cpu_us:.1} us",
            cpu_bytes / 1e6
        );
        if cpu_us > 0.0 {
            text += &format!(", {} GB/s", rate(cpu_bytes / cpu_us / 1e3));
        }
        text += ", which are not those of the dispatches.\n";
    }
    text
}

/// The work that was timed, and its time without timestamps between the dispatches.
fn work(profile: &Profile) -> String {
    let dispatches = count(profile.dispatches, "dispatch");
    match profile.work {
        Work::Token {
            tokens,
            token_us,
            step_us,
            dependent_dispatches,
        } => {
            let tokens = count(tokens, "token");
            let times = match profile.head.clock == Clock::Host.name() {
                true => format!(
                    "By the host's clock a token takes {token_us:.1} us while generating; its step repeated without a pause {step_us:.1} us."
                ),
                false => format!(
                    "Without timestamps a token takes {token_us:.1} us while generating; with two, at the ends of its pass, {step_us:.1} us of GPU time."
                ),
            };
            format!(
                "medians over {tokens}, {dispatches} each, {dependent_dispatches} of them dependent.\n{times}\n"
            )
        }
        Work::Drafted {
            steps,
            draft,
            drafts,
            step_us,
            token_us,
        } => format!(
            "steps with {} by {draft}, all taken as accepted, medians over {}, {dispatches} each.\n\
             By the host's clock a step takes {step_us:.1} us while generating, {:.2} times a token without drafts ({token_us:.1} us).\n",
            count(drafts, "draft"),
            count(steps, "step"),
            step_us / token_us.max(1e-3)
        ),
        Work::Prompt {
            n_prompt,
            piece,
            repetitions,
            prompt_us,
            tokens_per_s,
            ..
        } => format!(
            "a prompt of {}, {} at once, medians over {}, {dispatches} each.\n\
             Without timestamps the prompt takes {:.2} ms, {} tokens/s.\n",
            count(n_prompt, "token"),
            piece.min(n_prompt),
            count(repetitions, "repetition"),
            prompt_us / 1e3,
            rate(tokens_per_s)
        ),
    }
}

/// The parts of a step with drafts.
fn parts(profile: &Profile) -> String {
    if profile.parts.is_empty() {
        return String::new();
    }
    let width = profile.parts.iter().map(|part| part.part.len()).max();
    let width = width.unwrap_or(0).max("part of a step".len());
    let mut text = format!(
        "| {:width$} | dispatches |      us |  share |       MB |\n\
         | {} | ---------: | ------: | -----: | -------: |\n",
        "part of a step",
        "-".repeat(width)
    );
    for part in &profile.parts {
        text += &format!(
            "| {:width$} | {:>10} | {:>7.1} | {:>5.1}% | {:>8.2} |\n",
            part.part,
            part.dispatches,
            part.us,
            100.0 * part.us / profile.sum_us.max(1e-3),
            part.bytes as f64 / 1e6
        );
    }
    text + "\n"
}

fn kernels(profile: &Profile) -> String {
    let width = profile.kernels.iter().map(|k| k.label.len()).max();
    let width = width.unwrap_or(0).max("kernel".len());
    let (all, last) = match profile.work {
        // A token's operations are few: what it reads tells more.
        Work::Token { .. } => (
            "us/token",
            [
                " us alone |  GB/s | of peak |",
                " -------: | ----: | ------: |",
            ],
        ),
        Work::Drafted { .. } => ("us/step", [" TFLOP/s |", " ------: |"]),
        Work::Prompt { .. } => ("us/prompt", [" TFLOP/s |", " ------: |"]),
    };
    let all_width = all.len();
    let mut text = format!(
        "| {:width$} | calls | us/call | floor us | {all} |  share |       MB |  GB/s | of peak |{}\n\
         | {} | ----: | ------: | -------: | {}: | -----: | -------: | ----: | ------: |{}\n",
        "kernel",
        last[0],
        "-".repeat(width),
        "-".repeat(all_width - 1),
        last[1]
    );
    for k in &profile.kernels {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let of_peak = |v: f64| format!("{:.1}%", 100.0 * v);
        let last = match profile.work {
            Work::Token { .. } => format!(
                " {:>8} | {:>5} | {:>7} |",
                or_dash(k.alone_us.map(|us| format!("{:.2}", us / k.calls as f64))),
                or_dash(k.alone_gb_per_s.map(rate)),
                or_dash(k.alone_of_peak.map(of_peak)),
            ),
            _ => format!(" {:>7} |", or_dash(k.tflop_per_s.map(rate))),
        };
        text += &format!(
            "| {:width$} | {:>5} | {:>7.2} | {:>8.2} | {:>all_width$.1} | {:>5.1}% | {:>8} | {:>5} | {:>7} |{last}\n",
            k.label,
            k.calls,
            k.us / k.calls as f64,
            k.floor_us / k.calls as f64,
            k.us,
            100.0 * k.share,
            or_dash((k.bytes > 0).then(|| format!("{:.2}", k.bytes as f64 / 1e6))),
            or_dash(k.gb_per_s.map(rate)),
            or_dash(k.of_peak.map(of_peak)),
        );
    }
    text + "\n"
}

fn layers(profile: &Profile) -> String {
    let mut text = "\
| layer                   | us full | us feed-forward |
| ----------------------- | ------: | --------------: |
"
    .to_owned();
    let rows = [
        ("first with experts", profile.first_moe),
        ("typical", profile.typical),
    ];
    for (what, layer) in rows {
        if let Some(LayerTime {
            layer,
            us,
            feed_forward_us,
            ..
        }) = layer
        {
            let name = format!("{what} ({layer})");
            text += &format!("| {name:23} | {us:>7.1} | {feed_forward_us:>15.1} |\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::{example, example_drafted, example_prompt};
    use super::*;

    #[test]
    fn the_text_tells_what_timestamps_cost_then_kernels_then_layers() {
        let expected = "\
a model on a GPU (, tier plain; driver ), cache in q8_0, depth 0, medians over 3 tokens, 6 dispatches each, 5 of them dependent.
Without timestamps a token takes 30.0 us while generating; with two, at the ends of its pass, 20.0 us of GPU time.
The dispatches below sum up to 24.0 us (+20.0% of that), told apart by timestamps between dispatches.
A plain read of a large buffer reaches 10.0 GB/s, a dispatch that waits for the one before and reads 32 KiB takes 0.50 us: \
the floor of a call is its bytes at that speed and such a wait. Bytes are those of weights and cache that must be read. \
Alone: all of a kernel's calls of a token with nothing between them, so that none waits unless they write the same buffer.

| kernel              | calls | us/call | floor us | us/token |  share |       MB |  GB/s | of peak | us alone |  GB/s | of peak |
| ------------------- | ----: | ------: | -------: | -------: | -----: | -------: | ----: | ------: | -------: | ----: | ------: |
| matvec Q6_K <64x32> |     1 |   10.00 |     1.50 |     10.0 |  41.7% |     0.01 |  1.00 |   10.0% |        - |     - |       - |
| attention           |     2 |    4.50 |     0.61 |      9.0 |  37.5% |     0.00 |  0.24 |    2.4% |        - |     - |       - |
| matvec Q4_0 8x32    |     2 |    2.00 |     0.90 |      4.0 |  16.7% |     0.01 |  2.00 |   20.0% |     1.00 |  4.00 |   40.0% |
| embed Q4_0          |     1 |    1.00 |     0.50 |      1.0 |   4.2% |        - |     - |       - |        - |     - |       - |

| layer                   | us full | us feed-forward |
| ----------------------- | ------: | --------------: |
| first with experts (1)  |     7.0 |             2.0 |
| typical (1)             |     7.0 |             2.0 |
";
        assert_eq!(markdown(&example(None)), expected);
        let passes = markdown(&example(Some(1.0)));
        assert!(passes.contains("An empty pass takes 1.00 us, which is subtracted from each."));
    }

    #[test]
    fn a_prompt_is_told_in_tokens_per_second_and_operations() {
        let expected = "\
a model on a GPU (, tier plain; driver ), cache in q8_0, depth 0, a prompt of 70 tokens, 64 at once, medians over 3 repetitions, 6 dispatches each.
Without timestamps the prompt takes 0.02 ms, 3500000 tokens/s.
The dispatches below sum up to 24.0 us (+20.0% of that), told apart by timestamps between dispatches.
A plain read of a large buffer reaches 10.0 GB/s, a dispatch that waits for the one before and reads 32 KiB takes 0.50 us: \
the floor of a call is its bytes at that speed and such a wait. Bytes are those of weights and cache that must be read, of experts all \
in a product of several tokens; operations are two for each weight used and token.

| kernel              | calls | us/call | floor us | us/prompt |  share |       MB |  GB/s | of peak | TFLOP/s |
| ------------------- | ----: | ------: | -------: | --------: | -----: | -------: | ----: | ------: | ------: |
| matvec Q6_K <64x32> |     1 |   10.00 |     1.50 |      10.0 |  41.7% |     0.01 |  1.00 |   10.0% |    0.00 |
| attention           |     2 |    4.50 |     0.61 |       9.0 |  37.5% |     0.00 |  0.24 |    2.4% |       - |
| matvec Q4_0 8x32    |     2 |    2.00 |     0.90 |       4.0 |  16.7% |     0.01 |  2.00 |   20.0% |    0.01 |
| embed Q4_0          |     1 |    1.00 |     0.50 |       1.0 |   4.2% |        - |     - |       - |       - |
";
        let text = markdown(&example_prompt());
        assert!(text.starts_with(expected), "{text}");
        let value: serde_json::Value = serde_json::to_value(example_prompt()).unwrap();
        assert_eq!(
            (&value["n_prompt"], &value["piece"]),
            (&70.into(), &64.into())
        );
        assert_eq!(value["tokens_per_s"], 3.5e6);
        assert_eq!(value["kernels"][0]["tflop_per_s"], 0.004);
        assert!(value.get("step_us").is_none());
    }

    #[test]
    fn a_step_with_drafts_is_told_by_its_parts() {
        let expected = "\
a model on a GPU (, tier plain; driver ), cache in q8_0, depth 0, steps with 2 drafts by mtp, all taken as accepted, medians over 3 steps, 6 dispatches each.
By the host's clock a step takes 20.0 us while generating, 1.25 times a token without drafts (16.0 us).
";
        let text = markdown(&example_drafted());
        assert!(text.starts_with(expected), "{text}");
        let expected = "
| part of a step      | dispatches |      us |  share |       MB |
| ------------------- | ---------: | ------: | -----: | -------: |
| rows of the layer   |          2 |     5.0 |  20.8% |     0.00 |
| 3 rows of the model |          4 |    19.0 |  79.2% |     0.02 |

| kernel              | calls | us/call | floor us | us/step |";
        assert!(text.contains(expected), "{text}");
        let value: serde_json::Value = serde_json::to_value(example_drafted()).unwrap();
        assert_eq!(
            (&value["drafts"], &value["token_us"]),
            (&2.into(), &16.0.into())
        );
        assert_eq!(value["parts"][1]["us"], 19.0);
        let value: serde_json::Value = serde_json::to_value(example(None)).unwrap();
        assert!(value.get("parts").is_none());
    }

    #[test]
    fn the_text_tells_which_experts_came_over_the_bus() {
        let mut profile = example(None);
        profile.from_host = Some(FromHost {
            expert_slots: 20,
            expert_hits: Some(6.0),
            expert_misses: Some(2.0),
            by_cpu: None,
            from_file: false,
            bus_bytes: Some(1.5e6),
            beside_bytes: 0.0,
            fills_us: 30.0,
            bus_gb_per_s: Some(50.0),
        });
        let text = markdown(&profile);
        let expected = "Of 8.0 experts of a token 6.0 had one of 20 slots of their layers (75.0%), and 2.0 had none. \
                        1.50 MB came over the bus, and 30.0 us are those of the dispatches that bring experts, 50.0 GB/s.\n";
        assert!(text.contains(expected), "{text}");
        let value: serde_json::Value = serde_json::to_value(&profile).unwrap();
        assert_eq!(
            (&value["expert_hits"], &value["bus_bytes"]),
            (&6.0.into(), &1.5e6.into())
        );
        assert!(value.get("cpu_experts").is_none());
        let by_cpu = ByCpu {
            cpu_experts: 1.5,
            cpu_bytes: 6e5,
            cpu_us: 40.0,
        };
        let of = profile.from_host.as_mut().expect("it is there");
        of.by_cpu = Some(by_cpu);
        let text = markdown(&profile);
        let expected = "\nThe CPU multiplied 1.5 of these experts, 0.60 MB, in 40.0 us, 15.0 GB/s, which are not those of the dispatches.\n";
        assert!(text.contains(expected), "{text}");
        let value: serde_json::Value = serde_json::to_value(&profile).unwrap();
        assert_eq!(
            (&value["cpu_us"], &value["cpu_bytes"]),
            (&40.0.into(), &6e5.into())
        );
    }

    #[test]
    fn the_text_tells_of_experts_from_the_file() {
        let mut profile = example(None);
        profile.from_host = Some(FromHost {
            expert_slots: 20,
            expert_hits: Some(6.0),
            expert_misses: Some(2.0),
            by_cpu: None,
            from_file: true,
            bus_bytes: Some(1.5e6),
            beside_bytes: 0.0,
            fills_us: 0.0,
            bus_gb_per_s: None,
        });
        let text = markdown(&profile);
        let expected = "(75.0%), and 2.0 had none. 1.50 MB came from the file.\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn the_text_tells_of_experts_that_came_beside_what_computes() {
        let mut profile = example_prompt();
        let of = FromHost {
            expert_slots: 20,
            expert_hits: Some(0.0),
            expert_misses: Some(0.0),
            by_cpu: None,
            from_file: false,
            bus_bytes: Some(1.5e6),
            beside_bytes: 1.5e6,
            fills_us: 30.0,
            bus_gb_per_s: Some(50.0),
        };
        profile.from_host = Some(of);
        let text = markdown(&profile);
        let expected = "\nWhere many tokens are computed at once, all experts without one of the 20 slots of their layers were brought beside what computes. \
                        1.50 MB came over the bus, and 30.0 us are those of the dispatches that bring experts, 50.0 GB/s.\n";
        assert!(text.contains(expected), "{text}");
        // The last tokens of a prompt are few.
        profile.from_host = Some(FromHost {
            expert_hits: Some(3.0),
            expert_misses: Some(1.0),
            ..of
        });
        let text = markdown(&profile);
        assert!(
            text.contains("Of 4.0 experts of a prompt 3.0 had"),
            "{text}"
        );
        profile.from_host = Some(FromHost {
            expert_slots: 0,
            expert_hits: None,
            ..of
        });
        let text = markdown(&profile);
        let expected = "\nWhere many tokens are computed at once, all experts were brought beside what computes. ";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn json_has_the_same_figures() {
        let value: serde_json::Value = serde_json::to_value(example(None)).unwrap();
        assert_eq!(value["sum_us"], 24.0);
        assert_eq!(value["step_us"], 20.0);
        assert_eq!(value["dependent_dispatches"], 5);
        assert_eq!(value["kernels"][0]["label"], "matvec Q6_K <64x32>");
        assert_eq!(value["typical"]["layer"], 1);
        assert_eq!(value["layers"].as_array().map(Vec::len), Some(2));
        assert!(value.get("timeline").is_none());
    }
}
