//! The result of a load, in the names of vLLM's `bench serve`, as a table or a record.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::client::Timed;
use super::load::Came;
use crate::bench::{Format, build, quoted};
use crate::plural::count;

/// Times of one kind, in milliseconds.
pub(super) struct Times {
    /// The name in the names of fields, such as `ttft`.
    name: &'static str,
    /// Sorted.
    ms: Vec<f64>,
}

impl Times {
    fn new(name: &'static str, times: impl Iterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        Self { name, ms }
    }

    /// The percentile of the values, interpolated between two of them; none without values.
    fn percentile(&self, percent: f64) -> Option<f64> {
        let last = self.ms.len().checked_sub(1)?;
        let at = percent / 100.0 * last as f64;
        let (low, high) = (self.ms[at.floor() as usize], self.ms[at.ceil() as usize]);
        Some(low + (high - low) * at.fract())
    }

    fn mean(&self) -> Option<f64> {
        let count = self.ms.len();
        (count > 0).then(|| self.ms.iter().sum::<f64>() / count as f64)
    }

    /// Each figure with its name.
    fn figures(&self) -> [(&'static str, Option<f64>); 5] {
        [
            ("mean", self.mean()),
            ("median", self.percentile(50.0)),
            ("p90", self.percentile(90.0)),
            ("p99", self.percentile(99.0)),
            ("max", self.percentile(100.0)),
        ]
    }
}

/// The result of a load.
pub(super) struct Report {
    /// The flags and what is known of the server, with the names of fields.
    pub(super) asked: Map<String, Value>,
    pub(super) failed: usize,
    completed: usize,
    seconds: f64,
    prompt: u64,
    cached: u64,
    generated: u64,
    times: Vec<Times>,
    /// The time from the long prompt of --join to its first token.
    join_ms: Option<f64>,
    beside: Beside,
}

/// Long prompts beside the others, of which the figures do not tell.
#[derive(Default)]
struct Beside {
    completed: usize,
    failed: usize,
    /// Tokens of those prompts.
    prompt: u64,
}

impl Report {
    /// The report of the answers that came, of which there must be one.
    pub(super) fn new(asked: Map<String, Value>, came: &Came) -> Self {
        let good: Vec<&Timed> = came.answers.iter().flatten().collect();
        let first = |timed: &&Timed| timed.events[0] - timed.sent;
        let last = |timed: &Timed| timed.events[timed.events.len() - 1];
        let per_token = |timed: &&Timed| {
            let others = timed.generated.saturating_sub(1) as f64;
            (others > 0.0).then(|| (last(timed) - timed.events[0]).div_f64(others))
        };
        // Each gap between two events of an answer, as the times of both.
        let all_gaps = || {
            let pairs = good.iter().flat_map(|timed| timed.events.windows(2));
            pairs.map(|two| (two[0], two[1]))
        };
        let length = |(from, to): (Instant, Instant)| to - from;
        let mut times = vec![
            Times::new("ttft", good.iter().map(first)),
            Times::new("tpot", good.iter().filter_map(per_token)),
            Times::new("itl", all_gaps().map(length)),
            Times::new("e2el", good.iter().map(|timed| last(timed) - timed.sent)),
        ];
        let join = came.join.as_ref().and_then(|join| join.as_ref().ok());
        let window = join.map(|join| (join.sent, join.events[0]));
        if let Some((from, to)) = window {
            let beside = all_gaps().filter(|gap| gap.1 > from && gap.0 < to);
            times.push(Times::new("itl_joined", beside.map(length)));
        }
        let beside = || came.beside.iter().flatten();
        let end = good.iter().map(|timed| last(timed)).max();
        Self {
            asked,
            failed: came.answers.len() - good.len(),
            completed: good.len(),
            seconds: end.map_or(0.0, |end| (end - came.began).as_secs_f64()),
            prompt: good.iter().map(|timed| timed.prompt).sum(),
            cached: good.iter().map(|timed| timed.cached).sum(),
            generated: good.iter().map(|timed| timed.generated).sum(),
            times,
            beside: Beside {
                completed: beside().count(),
                failed: came.beside.len() - beside().count(),
                prompt: beside().map(|timed| timed.prompt).sum(),
            },
            join_ms: window.map(|(from, to)| (to - from).as_secs_f64() * 1e3),
        }
    }

    /// Whether nothing was decoded while the long prompt was computed.
    pub(super) fn joined_late(&self) -> bool {
        let joined = |times: &Times| times.name == "itl_joined" && times.ms.is_empty();
        self.times.iter().any(joined)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }

    /// All fields with their values.
    fn record(&self) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("build_commit".to_owned(), build::COMMIT.into());
        record.insert("version".to_owned(), build::VERSION.into());
        record.extend(self.asked.clone());
        let mut put = |name: &str, value: Value| {
            record.insert(name.to_owned(), value);
        };
        put("completed", self.completed.into());
        put("failed", self.failed.into());
        put("duration", self.seconds.into());
        put("total_input_tokens", self.prompt.into());
        put("total_cached_tokens", self.cached.into());
        put("total_output_tokens", self.generated.into());
        let throughput = self.per_second(self.completed as u64);
        put("request_throughput", throughput.into());
        put("output_throughput", self.per_second(self.generated).into());
        let all = self.prompt + self.generated;
        put("total_token_throughput", self.per_second(all).into());
        for times in &self.times {
            for (figure, ms) in times.figures() {
                put(&format!("{figure}_{}_ms", times.name), json!(ms));
            }
        }
        put("join_ttft_ms", json!(self.join_ms));
        put("beside_completed", self.beside.completed.into());
        put("beside_failed", self.beside.failed.into());
        put("beside_input_tokens", self.beside.prompt.into());
        record
    }

    /// The report in a format of `bench`.
    pub(super) fn text(&self, format: Format) -> String {
        match format {
            Format::Md => self.tables(),
            Format::Csv => {
                let record = self.record();
                let names: Vec<_> = record.keys().map(String::as_str).collect();
                let values: Vec<_> = record.values().map(quoted).collect();
                format!("{}\n{}\n", names.join(","), values.join(","))
            }
            Format::Json => format!("{:#}\n", json!([self.record()])),
            Format::Jsonl => format!("{}\n", Value::Object(self.record())),
        }
    }

    /// A table of what was done, and one of the times.
    fn tables(&self) -> String {
        let per_second = |count| format!("{:.2}", self.per_second(count));
        let columns = [
            ("requests", self.completed.to_string()),
            ("errors", self.failed.to_string()),
            ("seconds", format!("{:.2}", self.seconds)),
            ("prompt tokens", self.prompt.to_string()),
            ("of them cached", self.cached.to_string()),
            ("output tokens", self.generated.to_string()),
            ("requests/s", per_second(self.completed as u64)),
            ("output t/s", per_second(self.generated)),
            ("all t/s", per_second(self.prompt + self.generated)),
        ];
        let (mut head, mut rule, mut line) = ("|".to_owned(), "|".to_owned(), "|".to_owned());
        for (name, value) in columns {
            let width = name.len().max(value.len());
            head += &format!(" {name:>width$} |");
            rule += &format!(" {:->width$} |", ":");
            line += &format!(" {value:>width$} |");
        }
        format!("{head}\n{rule}\n{line}\n\n{}", self.table_of_times())
    }

    fn table_of_times(&self) -> String {
        let names: Vec<_> = self.times.iter().map(|times| told(times.name)).collect();
        let wide = names.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut text = format!("| {:wide$} |", "milliseconds");
        let none = Times::new("", std::iter::empty());
        for (figure, _) in none.figures() {
            text += &format!(" {figure:>9} |");
        }
        text += &format!("\n| {} |", "-".repeat(wide));
        text += &" --------: |".repeat(none.figures().len());
        text.push('\n');
        for (times, name) in self.times.iter().zip(names) {
            text += &format!("| {name:wide$} |");
            for (_, ms) in times.figures() {
                let ms = ms.map_or("-".to_owned(), |ms| format!("{ms:.2}"));
                text += &format!(" {ms:>9} |");
            }
            text.push('\n');
        }
        if let Some(ms) = self.join_ms {
            text += &format!("\nThe first token of the long prompt came after {ms:.2} ms.\n");
        }
        let Beside {
            completed,
            failed,
            prompt,
        } = self.beside;
        if completed + failed > 0 {
            text += &format!(
                "\nBeside them {} of {} were answered, and {failed} failed.\n",
                count(completed, "long prompt"),
                count(prompt as usize, "token"),
            );
        }
        text
    }
}

/// The name of a kind of times in the table.
fn told(name: &str) -> &'static str {
    match name {
        "ttft" => "TTFT: to the first token",
        "tpot" => "TPOT: per token after that",
        "itl" => "ITL: between two tokens",
        "itl_joined" => "ITL beside the long prompt",
        _ => "E2EL: to the last token",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(began: Instant, sent: u64, events: &[u64]) -> Timed {
        let at = |ms: u64| began + Duration::from_millis(ms);
        Timed {
            sent: at(sent),
            events: events.iter().map(|ms| at(*ms)).collect(),
            prompt: 10,
            cached: 4,
            generated: events.len() as u64,
        }
    }

    fn report(join: Option<Timed>) -> Report {
        let began = Instant::now();
        let answers = vec![
            Ok(answer(began, 0, &[100, 110, 130])),
            Ok(answer(began, 50, &[250, 450, 1000])),
            Err("status 429".to_owned()),
        ];
        let came = Came {
            began,
            answers,
            join: join.map(|mut join| {
                join.sent = began + Duration::from_millis(120);
                join.events = vec![began + Duration::from_millis(300)];
                Ok(join)
            }),
            beside: vec![Ok(answer(began, 0, &[900])), Err("status 503".to_owned())],
        };
        Report::new(Map::new(), &came)
    }

    #[test]
    fn figures_are_those_of_the_times() {
        let record = report(None).record();
        let number = |name: &str| record[name].as_f64().unwrap_or_else(|| panic!("{name}"));
        let close = |name: &str, expected: f64| {
            let found = number(name);
            assert!((found - expected).abs() < 1e-6, "{name}: {found}");
        };
        close("completed", 2.0);
        close("failed", 1.0);
        close("duration", 1.0);
        close("total_cached_tokens", 8.0);
        close("output_throughput", 6.0);
        close("total_token_throughput", 26.0);
        close("mean_ttft_ms", 150.0);
        close("max_ttft_ms", 200.0);
        close("median_ttft_ms", 150.0);
        // 15 and 375.
        close("mean_tpot_ms", 195.0);
        // 10, 20, 200 and 550.
        close("median_itl_ms", 110.0);
        close("p99_itl_ms", 200.0 + 0.97 * 350.0);
        close("mean_e2el_ms", 540.0);
        assert_eq!(record["join_ttft_ms"], Value::Null);
        close("beside_completed", 1.0);
        close("beside_failed", 1.0);
        close("beside_input_tokens", 10.0);
    }

    #[test]
    fn beside_a_long_prompt_count_the_gaps_that_it_may_have_made_longer() {
        let long = answer(Instant::now(), 0, &[1]);
        let joined = report(Some(long));
        let record = joined.record();
        assert_eq!(record["join_ttft_ms"].as_f64().map(f64::round), Some(180.0));
        // The gap that had begun, and the one that ended later.
        assert_eq!(
            record["mean_itl_joined_ms"].as_f64().map(f64::round),
            Some(110.0)
        );
        assert!(!joined.joined_late());
        assert!(
            joined
                .text(Format::Md)
                .contains("ITL beside the long prompt")
        );
    }

    #[test]
    fn formats_hold_the_same() {
        let report = report(None);
        let record = Value::Object(report.record());
        let list: Value = serde_json::from_str(&report.text(Format::Json)).expect("JSON");
        let line: Value = serde_json::from_str(&report.text(Format::Jsonl)).expect("JSON");
        assert_eq!((&list[0], &line), (&record, &record));
        let csv = report.text(Format::Csv);
        let lines: Vec<_> = csv.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        let table = report.text(Format::Md);
        let first: Vec<_> = table.lines().take(3).map(|l| l.chars().count()).collect();
        assert!(
            first[0] <= 120 && first.iter().all(|n| *n == first[0]),
            "{table}"
        );
    }
}
