//! A profile as text; as JSON it is its fields.

use std::fmt::Write;

use super::summary::{LayerTime, Profile};
use crate::bench::rate;

/// Head, kernels and layers in Markdown.
pub fn markdown(profile: &Profile) -> String {
    let mut text = String::new();
    // Writing into a `String` cannot fail.
    let _ = head(&mut text, profile)
        .and_then(|()| kernels(&mut text, profile))
        .and_then(|()| layers(&mut text, profile));
    text
}

fn head(text: &mut String, profile: &Profile) -> std::fmt::Result {
    let h = &profile.head;
    writeln!(
        text,
        "{} on {} ({}, tier {}; driver {}), depth {}, medians over {} tokens, {} dispatches each.",
        h.model_type,
        h.gpu_info,
        h.backends,
        h.tier,
        h.driver,
        h.n_depth,
        h.tokens,
        profile.dispatches
    )?;
    writeln!(
        text,
        "Without timestamps a token takes {:.1} us while generating; with two, at the ends of its pass, {:.1} us of GPU time.",
        h.token_us, h.step_us
    )?;
    let more = 100.0 * (profile.sum_us / h.step_us - 1.0);
    writeln!(
        text,
        "The dispatches below sum up to {:.1} us ({more:+.1}% of that), told apart by {}.",
        profile.sum_us, h.separation
    )?;
    if let Some(empty) = h.empty_pass_us {
        writeln!(
            text,
            "An empty pass takes {empty:.2} us, which is subtracted from each."
        )?;
    }
    writeln!(
        text,
        "A plain read of a large buffer reaches {} GB/s. Bytes are those of weights and cache that must be read.\n",
        rate(h.peak_gb_per_s)
    )
}

fn kernels(text: &mut String, profile: &Profile) -> std::fmt::Result {
    let width = profile.kernels.iter().map(|k| k.label.len()).max();
    let width = width.unwrap_or(0).max("kernel".len());
    writeln!(
        text,
        "| {:width$} | calls | us/call | us/token |  share |       MB |  GB/s | of peak |",
        "kernel"
    )?;
    writeln!(
        text,
        "| {} | ----: | ------: | -------: | -----: | -------: | ----: | ------: |",
        "-".repeat(width)
    )?;
    for k in &profile.kernels {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        writeln!(
            text,
            "| {:width$} | {:>5} | {:>7.2} | {:>8.1} | {:>5.1}% | {:>8} | {:>5} | {:>7} |",
            k.label,
            k.calls,
            k.us / k.calls as f64,
            k.us,
            100.0 * k.share,
            or_dash((k.bytes > 0).then(|| format!("{:.2}", k.bytes as f64 / 1e6))),
            or_dash(k.gb_per_s.map(rate)),
            or_dash(k.of_peak.map(|v| format!("{:.1}%", 100.0 * v))),
        )?;
    }
    writeln!(text)
}

fn layers(text: &mut String, profile: &Profile) -> std::fmt::Result {
    writeln!(
        text,
        "| layer                   | us full | us feed-forward |"
    )?;
    writeln!(
        text,
        "| ----------------------- | ------: | --------------: |"
    )?;
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
            writeln!(text, "| {name:23} | {us:>7.1} | {feed_forward_us:>15.1} |")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::example;
    use super::*;

    #[test]
    fn the_text_tells_what_timestamps_cost_then_kernels_then_layers() {
        let expected = "\
a model on a GPU (, tier plain; driver ), depth 0, medians over 3 tokens, 6 dispatches each.
Without timestamps a token takes 30.0 us while generating; with two, at the ends of its pass, 20.0 us of GPU time.
The dispatches below sum up to 24.0 us (+20.0% of that), told apart by timestamps between dispatches.
A plain read of a large buffer reaches 10.0 GB/s. Bytes are those of weights and cache that must be read.

| kernel              | calls | us/call | us/token |  share |       MB |  GB/s | of peak |
| ------------------- | ----: | ------: | -------: | -----: | -------: | ----: | ------: |
| matvec Q6_K <64x32> |     1 |   10.00 |     10.0 |  41.7% |     0.01 |  1.00 |   10.0% |
| attention           |     2 |    4.50 |      9.0 |  37.5% |     0.00 |  0.24 |    2.4% |
| matvec Q4_0 8x32    |     2 |    2.00 |      4.0 |  16.7% |     0.01 |  2.00 |   20.0% |
| embed Q4_0          |     1 |    1.00 |      1.0 |   4.2% |        - |     - |       - |

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
    fn json_has_the_same_figures() {
        let value: serde_json::Value = serde_json::to_value(example(None)).unwrap();
        assert_eq!(value["sum_us"], 24.0);
        assert_eq!(value["step_us"], 20.0);
        assert_eq!(value["kernels"][0]["label"], "matvec Q6_K <64x32>");
        assert_eq!(value["typical"]["layer"], 1);
        assert_eq!(value["layers"].as_array().map(Vec::len), Some(2));
        assert!(value.get("timeline").is_none());
    }
}
