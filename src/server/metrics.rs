//! Figures for Prometheus, under the names that vLLM gives them, since routers know these. Where vLLM has changed a name, both are there.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::engine::scheduler::Counts;

/// How many values were at most as great as each bound.
struct Histogram {
    bounds: &'static [f64],
    values: Mutex<Values>,
}

#[derive(Default, Clone)]
struct Values {
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            values: Mutex::default(),
        }
    }

    fn add(&self, time: Duration) {
        let value = time.as_secs_f64();
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.counts.resize(self.bounds.len(), 0);
        for (count, bound) in values.counts.iter_mut().zip(self.bounds) {
            *count += u64::from(value <= *bound);
        }
        values.count += 1;
        values.sum += value;
    }

    fn write(&self, text: &mut Text, name: &str, help: &str) {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let values = values.clone();
        text.head(name, "histogram", help);
        for (i, bound) in self.bounds.iter().enumerate() {
            let count = values.counts.get(i).copied().unwrap_or(0);
            text.line(
                &format!("{name}_bucket"),
                &format!("le=\"{bound}\""),
                count as f64,
            );
        }
        text.line(
            &format!("{name}_bucket"),
            "le=\"+Inf\"",
            values.count as f64,
        );
        text.line(&format!("{name}_sum"), "", values.sum);
        text.line(&format!("{name}_count"), "", values.count as f64);
    }
}

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
];
const PER_TOKEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0,
];

/// Why an answer ended, as vLLM names it.
pub(super) const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// What a server counts.
pub(super) struct Metrics {
    model: OnceLock<String>,
    running: AtomicU64,
    waiting: AtomicU64,
    rows: AtomicU64,
    rows_in_all: AtomicU64,
    prefix_found: AtomicU64,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    ended: [AtomicU64; REASONS.len()],
    refused: AtomicU64,
    first_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queued: Histogram,
}

fn of(value: &AtomicU64) -> f64 {
    value.load(Ordering::Relaxed) as f64
}

impl Metrics {
    pub(super) fn new() -> Self {
        let zero = AtomicU64::default;
        Self {
            model: OnceLock::new(),
            running: zero(),
            waiting: zero(),
            rows: zero(),
            rows_in_all: zero(),
            prefix_found: zero(),
            prompt_tokens: zero(),
            generated_tokens: zero(),
            ended: Default::default(),
            refused: zero(),
            first_token: Histogram::new(FIRST_TOKEN),
            per_token: Histogram::new(PER_TOKEN),
            whole: Histogram::new(WHOLE),
            queued: Histogram::new(WHOLE),
        }
    }

    /// The model that they are of.
    pub(super) fn name_model(&self, name: &str) {
        let _ = self.model.set(name.to_owned());
    }

    /// How many requests are answered, and how many wait.
    pub(super) fn set_requests(&self, running: usize, waiting: usize) {
        self.running.store(running as u64, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// Rows of the cache that requests hold.
    pub(super) fn set_rows(&self, rows: usize) {
        self.rows.store(rows as u64, Ordering::Relaxed);
    }

    /// What the scheduler counts.
    pub(super) fn set_counts(&self, counts: &Counts) {
        self.set_rows(counts.rows);
        let rows_in_all = counts.rows_in_all as u64;
        self.rows_in_all.store(rows_in_all, Ordering::Relaxed);
    }

    /// A request has waited so long; its prompt has so many tokens, and so many of their rows were there.
    pub(super) fn begun(&self, queued: Duration, prompt: usize, cached: usize) {
        self.queued.add(queued);
        for (counter, tokens) in [(&self.prompt_tokens, prompt), (&self.prefix_found, cached)] {
            counter.fetch_add(tokens as u64, Ordering::Relaxed);
        }
    }

    /// A token was generated: the first of its answer, so long after the request, or another, so long after the one before.
    pub(super) fn token(&self, first: bool, time: Duration) {
        self.generated_tokens.fetch_add(1, Ordering::Relaxed);
        let histogram = if first {
            &self.first_token
        } else {
            &self.per_token
        };
        histogram.add(time);
    }

    /// Tokens that were generated.
    pub(super) fn generated_tokens(&self) -> u64 {
        self.generated_tokens.load(Ordering::Relaxed)
    }

    /// An answer ended, so long after its request.
    pub(super) fn ended(&self, reason: &str, time: Duration) {
        let ended = REASONS.iter().zip(&self.ended);
        for (_, count) in ended.filter(|(name, _)| **name == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.whole.add(time);
    }

    /// A request found no place in the queue.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// All of it as text.
    pub(super) fn text(&self) -> String {
        let model = self.model.get().map_or("", String::as_str);
        let mut text = Text {
            text: String::new(),
            labels: format!("model_name=\"{}\",engine=\"0\"", escaped(model)),
        };
        self.gauges(&mut text);
        self.counters(&mut text);
        let help = "From the request to its first token.";
        let name = "vllm:time_to_first_token_seconds";
        self.first_token.write(&mut text, name, help);
        for name in [
            "vllm:time_per_output_token_seconds",
            "vllm:inter_token_latency_seconds",
        ] {
            let help = "From a token of an answer to the next.";
            self.per_token.write(&mut text, name, help);
        }
        let help = "From the request to the end of its answer.";
        let name = "vllm:e2e_request_latency_seconds";
        self.whole.write(&mut text, name, help);
        let help = "From the request to the beginning of its prompt.";
        let name = "vllm:request_queue_time_seconds";
        self.queued.write(&mut text, name, help);
        text.text
    }

    fn gauges(&self, text: &mut Text) {
        let (rows, all) = (of(&self.rows), of(&self.rows_in_all));
        let used = if all > 0.0 { rows / all } else { 0.0 };
        let (asked, found) = (of(&self.prompt_tokens), of(&self.prefix_found));
        let rate = if asked > 0.0 { found / asked } else { 0.0 };
        let running = of(&self.running);
        for (name, value, help) in [
            (
                "num_requests_running",
                running,
                "Requests that are answered.",
            ),
            (
                "num_requests_waiting",
                of(&self.waiting),
                "Requests that wait.",
            ),
            (
                "kv_cache_usage_perc",
                used,
                "Share of the cache that requests hold, from 0 to 1.",
            ),
            (
                "gpu_cache_usage_perc",
                used,
                "The same under its older name.",
            ),
            (
                "gpu_prefix_cache_hit_rate",
                rate,
                "Share of the tokens of prompts that had rows.",
            ),
        ] {
            let name = format!("vllm:{name}");
            text.head(&name, "gauge", help);
            text.line(&name, "", value);
        }
        let name = "vllm:cache_config_info";
        text.head(name, "gauge", "Rows of the cache, as blocks of one row.");
        text.line(
            name,
            &format!("block_size=\"1\",num_gpu_blocks=\"{all}\""),
            1.0,
        );
    }

    fn counters(&self, text: &mut Text) {
        let found = of(&self.prefix_found);
        let (prompt, generated) = (of(&self.prompt_tokens), of(&self.generated_tokens));
        for (name, value, help) in [
            (
                "prefix_cache_queries_total",
                prompt,
                "Tokens of prompts that rows were looked for.",
            ),
            (
                "prefix_cache_hits_total",
                found,
                "Tokens of prompts that had rows.",
            ),
            (
                "gpu_prefix_cache_queries_total",
                prompt,
                "Queries under their older name.",
            ),
            (
                "gpu_prefix_cache_hits_total",
                found,
                "Hits under their older name.",
            ),
            ("prompt_tokens_total", prompt, "Tokens of prompts."),
            ("generation_tokens_total", generated, "Generated tokens."),
        ] {
            let name = format!("vllm:{name}");
            text.head(&name, "counter", help);
            text.line(&name, "", value);
        }
        let name = "vllm:request_success_total";
        text.head(name, "counter", "Answers that ended, by what ended them.");
        for (reason, count) in REASONS.iter().zip(&self.ended) {
            text.line(name, &format!("finished_reason=\"{reason}\""), of(count));
        }
        let name = "glimt:requests_refused_total";
        text.head(
            name,
            "counter",
            "Requests that found no place in the queue.",
        );
        text.line(name, "", of(&self.refused));
    }
}

/// A value of a label.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// Text in Prometheus' format.
struct Text {
    text: String,
    labels: String,
}

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, more: &str, value: f64) {
        let comma = if more.is_empty() { "" } else { "," };
        let labels = &self.labels;
        let _ = writeln!(self.text, "{name}{{{labels}{comma}{more}}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_vllms_names_and_the_models_label() {
        let metrics = Metrics::new();
        metrics.name_model("a \"model\"");
        metrics.set_requests(1, 3);
        metrics.set_counts(&Counts {
            rows: 25,
            rows_in_all: 100,
            ..Counts::default()
        });
        metrics.begun(Duration::from_millis(2), 40, 10);
        metrics.token(true, Duration::from_millis(15));
        metrics.token(false, Duration::from_millis(3));
        metrics.ended("length", Duration::from_secs(1));
        let text = metrics.text();
        let labels = r#"model_name="a \"model\"",engine="0""#;
        for line in [
            format!("vllm:num_requests_running{{{labels}}} 1"),
            format!("vllm:num_requests_waiting{{{labels}}} 3"),
            format!("vllm:kv_cache_usage_perc{{{labels}}} 0.25"),
            format!("vllm:gpu_cache_usage_perc{{{labels}}} 0.25"),
            format!("vllm:prefix_cache_hits_total{{{labels}}} 10"),
            format!("vllm:gpu_prefix_cache_queries_total{{{labels}}} 40"),
            format!("vllm:prompt_tokens_total{{{labels}}} 40"),
            format!("vllm:generation_tokens_total{{{labels}}} 2"),
            format!("vllm:request_success_total{{{labels},finished_reason=\"length\"}} 1"),
            format!("vllm:request_success_total{{{labels},finished_reason=\"stop\"}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.01\"}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.02\"}} 1"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
            format!("vllm:inter_token_latency_seconds_count{{{labels}}} 1"),
            format!("vllm:e2e_request_latency_seconds_sum{{{labels}}} 1"),
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} in:\n{text}"
            );
        }
    }
}
