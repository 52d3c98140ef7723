//! Figures for Prometheus, under the names that vLLM gives them, since routers know these. Where vLLM has changed a name, both are there.

use std::fmt::{Display, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::gpu::ExpertTraffic;
use crate::engine::scheduler::DraftCounts;

/// The numbers of values that were at most as great as each bound.
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            count: 0,
            sum: 0.0,
        }
    }

    fn add(&mut self, time: Duration) {
        let value = time.as_secs_f64();
        for (count, bound) in self.counts.iter_mut().zip(self.bounds) {
            *count += u64::from(value <= *bound);
        }
        self.count += 1;
        self.sum += value;
    }

    fn write(&self, text: &mut Text, name: &str, help: &str) {
        text.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            text.line(&bucket, &format!("le=\"{bound}\""), count);
        }
        text.line(&bucket, "le=\"+Inf\"", self.count);
        text.line(&format!("{name}_sum"), "", self.sum);
        text.line(&format!("{name}_count"), "", self.count);
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
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// The figures that a server counts.
pub(super) struct Metrics(Mutex<Figures>);

/// The counts so far.
pub(super) struct Figures {
    /// The name of the model.
    pub(super) model: String,
    /// Requests that are answered.
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// Rows of the cache that requests hold.
    pub(super) rows: usize,
    pub(super) rows_in_all: usize,
    /// Requests that found no place in the queue.
    pub(super) refused: u64,
    pub(super) generated_tokens: u64,
    /// The drafts of all answers.
    pub(super) drafts: DraftCounts,
    /// The traffic of experts that lie in the machine's memory, where they have slots.
    pub(super) experts: Option<ExpertTraffic>,
    prefix_found: usize,
    prompt_tokens: usize,
    ended: [u64; REASONS.len()],
    first_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queued: Histogram,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Figures {
            model: String::new(),
            running: 0,
            waiting: 0,
            rows: 0,
            rows_in_all: 0,
            refused: 0,
            generated_tokens: 0,
            drafts: DraftCounts::default(),
            experts: None,
            prefix_found: 0,
            prompt_tokens: 0,
            ended: [0; REASONS.len()],
            first_token: Histogram::new(FIRST_TOKEN),
            per_token: Histogram::new(PER_TOKEN),
            whole: Histogram::new(WHOLE),
            queued: Histogram::new(WHOLE),
        }))
    }

    pub(super) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `part` as a share of `all`; 0 if there is nothing.
fn share(part: usize, all: usize) -> f64 {
    if all > 0 {
        part as f64 / all as f64
    } else {
        0.0
    }
}

impl Figures {
    /// Notes that a request has waited for `queued`. Its prompt has `prompt` tokens, and `cached` of their rows were there.
    pub(super) fn begun(&mut self, queued: Duration, prompt: usize, cached: usize) {
        self.queued.add(queued);
        self.prompt_tokens += prompt;
        self.prefix_found += cached;
    }

    /// A token was generated: the first of its answer, so long after the request, or another, so long after the one before.
    pub(super) fn token(&mut self, first: bool, time: Duration) {
        self.generated_tokens += 1;
        match first {
            true => self.first_token.add(time),
            false => self.per_token.add(time),
        }
    }

    /// An answer ended, so long after its request.
    pub(super) fn ended(&mut self, reason: &str, time: Duration) {
        if let Some(place) = REASONS.iter().position(|name| *name == reason) {
            self.ended[place] += 1;
        }
        self.whole.add(time);
    }

    /// All figures as text.
    pub(super) fn text(&self) -> String {
        let mut text = Text {
            text: String::new(),
            labels: format!("model_name=\"{}\",engine=\"0\"", escaped(&self.model)),
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
        let used = share(self.rows, self.rows_in_all);
        let rate = share(self.prefix_found, self.prompt_tokens);
        let help = "Requests that are answered.";
        text.figure("gauge", "num_requests_running", self.running, help);
        let help = "Requests that wait.";
        text.figure("gauge", "num_requests_waiting", self.waiting, help);
        let help = "Share of the cache that requests hold, from 0 to 1.";
        text.figure("gauge", "kv_cache_usage_perc", used, help);
        let help = "The same under its older name.";
        text.figure("gauge", "gpu_cache_usage_perc", used, help);
        let help = "Share of the tokens of prompts that had rows.";
        text.figure("gauge", "gpu_prefix_cache_hit_rate", rate, help);
        let name = "vllm:cache_config_info";
        text.head(name, "gauge", "Rows of the cache, as blocks of one row.");
        let all = self.rows_in_all;
        let blocks = format!("block_size=\"1\",num_gpu_blocks=\"{all}\"");
        text.line(name, &blocks, 1);
    }

    fn counters(&self, text: &mut Text) {
        let (prompt, found) = (self.prompt_tokens, self.prefix_found);
        let generated = self.generated_tokens;
        let help = "Tokens of prompts that rows were looked for.";
        text.figure("counter", "prefix_cache_queries_total", prompt, help);
        let help = "Tokens of prompts that had rows.";
        text.figure("counter", "prefix_cache_hits_total", found, help);
        let help = "Queries under their older name.";
        text.figure("counter", "gpu_prefix_cache_queries_total", prompt, help);
        let help = "Hits under their older name.";
        text.figure("counter", "gpu_prefix_cache_hits_total", found, help);
        let help = "Tokens of prompts.";
        text.figure("counter", "prompt_tokens_total", prompt, help);
        let help = "Generated tokens.";
        text.figure("counter", "generation_tokens_total", generated, help);
        let name = "vllm:request_success_total";
        text.head(name, "counter", "Answers that ended, by what ended them.");
        for (reason, count) in REASONS.iter().zip(&self.ended) {
            text.line(name, &format!("finished_reason=\"{reason}\""), count);
        }
        self.drafts(text);
        let name = "glimt:requests_refused_total";
        let help = "Requests that found no place in the queue.";
        text.head(name, "counter", help);
        text.line(name, "", self.refused);
        if let Some(experts) = &self.experts {
            let ExpertTraffic {
                hits,
                misses,
                bytes,
            } = experts;
            let chosen = "Experts that steps chose";
            for (name, value, help) in [
                ("cache_queries", hits + misses, format!("{chosen}.")),
                (
                    "cache_hits",
                    *hits,
                    format!("{chosen} and that had a slot on the GPU."),
                ),
                (
                    "cache_misses",
                    *misses,
                    format!("{chosen} and that had none."),
                ),
                (
                    "bytes",
                    *bytes,
                    "Bytes of experts that were brought to the GPU.".to_owned(),
                ),
            ] {
                let name = format!("glimt:expert_{name}_total");
                text.head(&name, "counter", &help);
                text.line(&name, "", value);
            }
        }
    }
}

impl Figures {
    fn drafts(&self, text: &mut Text) {
        let DraftCounts {
            steps,
            drafted,
            accepted,
        } = &self.drafts;
        let all: u64 = accepted.iter().sum();
        let help = "Steps in which an answer had drafts.";
        text.figure("counter", "spec_decode_num_drafts_total", steps, help);
        let help = "Drafts.";
        let name = "spec_decode_num_draft_tokens_total";
        text.figure("counter", name, drafted, help);
        let help = "Drafts that were accepted.";
        let name = "spec_decode_num_accepted_tokens_total";
        text.figure("counter", name, all, help);
        let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
        let help = "Drafts that were accepted, by their position in the step.";
        text.head(name, "counter", help);
        let used = accepted.iter().rposition(|count| *count > 0);
        for (position, count) in accepted[..=used.unwrap_or(0)].iter().enumerate() {
            text.line(name, &format!("position=\"{position}\""), count);
        }
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

    fn figure(&mut self, kind: &str, name: &str, value: impl Display, help: &str) {
        let name = format!("vllm:{name}");
        self.head(&name, kind, help);
        self.line(&name, "", value);
    }

    fn line(&mut self, name: &str, more: &str, value: impl Display) {
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
        let mut figures = metrics.figures();
        figures.model = "a \"model\"".to_owned();
        (figures.running, figures.waiting) = (1, 3);
        (figures.rows, figures.rows_in_all) = (25, 100);
        figures.begun(Duration::from_millis(2), 40, 10);
        figures.token(true, Duration::from_millis(15));
        figures.token(false, Duration::from_millis(3));
        figures.ended("length", Duration::from_secs(1));
        assert!(!figures.text().contains("expert"));
        figures.drafts.steps = 3;
        figures.drafts.drafted = 9;
        figures.drafts.accepted[..2].copy_from_slice(&[2, 1]);
        figures.experts = Some(ExpertTraffic {
            hits: 30,
            misses: 10,
            bytes: 700,
        });
        let text = figures.text();
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
            format!("vllm:spec_decode_num_drafts_total{{{labels}}} 3"),
            format!("vllm:spec_decode_num_draft_tokens_total{{{labels}}} 9"),
            format!("vllm:spec_decode_num_accepted_tokens_total{{{labels}}} 3"),
            format!(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position=\"1\"}} 1"
            ),
            format!("glimt:expert_cache_queries_total{{{labels}}} 40"),
            format!("glimt:expert_cache_hits_total{{{labels}}} 30"),
            format!("glimt:expert_cache_misses_total{{{labels}}} 10"),
            format!("glimt:expert_bytes_total{{{labels}}} 700"),
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} in:\n{text}"
            );
        }
    }
}
