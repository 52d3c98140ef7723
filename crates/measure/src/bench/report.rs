//! Results as tables and records, in llama-bench's columns and names with glimt's own behind them.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::Test;

/// The source that this program was built from.
pub mod build {
    /// The commit, where the build was told one (`GLIMT_COMMIT`).
    pub const COMMIT: &str = match option_env!("GLIMT_COMMIT") {
        Some(commit) => commit,
        None => "unknown",
    };
    /// The version of the crate.
    pub const VERSION: &str = env!("CARGO_PKG_VERSION");
}

/// Mean and deviation over the repetitions of a test.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Statistics {
    /// Mean time of a repetition, in nanoseconds.
    pub avg_ns: u64,
    /// Standard deviation of the repetitions' times.
    pub stddev_ns: u64,
    /// Mean of the repetitions' tokens per second.
    pub avg_ts: f64,
    /// Standard deviation of the repetitions' tokens per second.
    pub stddev_ts: f64,
    /// The repetitions' times.
    pub samples_ns: Vec<u64>,
    /// The repetitions' tokens per second.
    pub samples_ts: Vec<f64>,
}

impl Statistics {
    /// The statistics of repetitions that took `samples` for `tokens` tokens each.
    pub fn of(samples: &[Duration], tokens: usize) -> Self {
        let ns: Vec<f64> = samples.iter().map(|s| s.as_nanos() as f64).collect();
        let ts: Vec<f64> = ns.iter().map(|ns| tokens as f64 * 1e9 / ns).collect();
        let ((avg_ns, stddev_ns), (avg_ts, stddev_ts)) = (spread(&ns), spread(&ts));
        Self {
            avg_ns: avg_ns.round() as u64,
            stddev_ns: stddev_ns.round() as u64,
            avg_ts,
            stddev_ts,
            samples_ns: ns.iter().map(|ns| *ns as u64).collect(),
            samples_ts: ts,
        }
    }
}

/// Mean and sample standard deviation (0 of a single value).
fn spread(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// A result. Fields that llama-bench has too have its names; those that only a GPU's generation has are empty elsewhere.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Row {
    /// Commit of the build.
    pub build_commit: &'static str,
    /// Version of glimt.
    pub version: &'static str,
    /// The adapter's name.
    pub gpu_info: String,
    /// The adapter's driver.
    pub driver: String,
    /// Vulkan, Metal, DX12 or CPU.
    pub backends: String,
    /// Tier of the kernels.
    pub tier: Option<&'static str>,
    /// The form in which the products of a decoded token leave values for each other: `bytes`, `packed halves` or `halves`; none in tier
    /// `plain` and on the CPU.
    pub activation: Option<&'static str>,
    /// The weights whose products decoding read.
    pub precompose: Option<&'static str>,
    /// The type of the cache.
    pub cache_type: &'static str,
    /// The file or the synthetic model.
    pub model_filename: String,
    /// The model's name.
    pub model_type: String,
    /// Bytes of all tensors.
    pub model_size: u64,
    /// Values of all tensors.
    pub model_n_params: u64,
    /// Tokens of a prompt computed at once.
    pub n_ubatch: Option<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens generated.
    pub n_gen: usize,
    /// Cache rows before them.
    pub n_depth: usize,
    /// The time of the test, in UTC.
    pub test_time: String,
    /// The times.
    #[serde(flatten)]
    pub statistics: Statistics,
    /// Bytes of weights and cache that a token reads.
    pub bytes_per_token: Option<f64>,
    /// `bytes_per_token` times tokens per second, in 10^9 bytes.
    pub gb_per_s: Option<f64>,
    /// The bandwidth that a plain read of a large buffer reaches on the device, in 10^9 bytes per second.
    pub peak_gb_per_s: Option<f64>,
    /// Dispatches of a token.
    pub dispatches_per_token: Option<usize>,
    /// Dispatches of a token that wait for the one before.
    pub dependent_dispatches_per_token: Option<usize>,
    /// Milliseconds that encoding and submitting a token take the host.
    pub host_ms_per_token: Option<f64>,
    /// Share of the time between two tokens in which the GPU does nothing.
    pub gpu_idle: Option<f64>,
    /// The clock that told `peak_gb_per_s` and `gpu_idle`: `gpu`, or `host` where the GPU's timestamps are missing or wrong.
    pub clock: Option<&'static str>,
    /// Milliseconds of the longest submission of a prompt, as far as the host could see.
    pub longest_submission_ms: Option<f64>,
    /// Slots of each layer on the GPU for experts that lie in the machine's memory; none if all experts lie on the GPU.
    pub expert_slots: Option<u32>,
    /// The share of chosen experts that had a slot when decoding them; none without slots.
    pub expert_hits: Option<f64>,
    /// Experts of a layer that the CPU multiplies if a token misses all; none if no share was asked for, or all experts lie on the GPU.
    pub cpu_share: Option<u32>,
    /// The source of drafts, if there were some: `mtp`, with ` forced` where the share that was accepted was given, and ` text` where the
    /// generation followed a text.
    pub draft: Option<String>,
    /// Drafts of all repetitions.
    pub drafted: Option<usize>,
    /// Those of them that were accepted.
    pub accepted: Option<usize>,
}

impl Row {
    /// Adds the drafts between two counts of drafts and accepted ones.
    pub(super) fn add_drafts(&mut self, before: [usize; 2], after: [usize; 2]) {
        self.drafted = Some(after[0] - before[0]);
        self.accepted = Some(after[1] - before[1]);
    }

    /// The test.
    pub fn test(&self) -> Test {
        Test {
            prompt: self.n_prompt,
            generate: self.n_gen,
            depth: self.n_depth,
        }
    }
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// A table in Markdown.
    #[default]
    Md,
    /// Comma-separated values with a head.
    Csv,
    /// One JSON list.
    Json,
    /// A JSON object per line.
    Jsonl,
}

/// The columns of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Columns {
    /// All columns.
    #[default]
    All,
    /// The columns that fit into 120 characters, for one device.
    Few,
    /// The columns that fit into 120 characters, for several devices: which one instead of sizes.
    Devices,
    /// The columns that fit into 80 characters, for one device.
    Narrow,
    /// The columns for several devices and one model.
    NarrowDevices,
    /// The columns for several devices and models.
    NarrowBoth,
}

/// Writes rows as they come.
pub struct Writer<W> {
    out: W,
    format: Format,
    columns: Columns,
    rows: usize,
}

impl<W: Write> Writer<W> {
    /// Writes the head.
    pub fn new(mut out: W, format: Format, columns: Columns) -> io::Result<Self> {
        match format {
            Format::Md => {
                line(&mut out, columns, &COLUMNS.map(|(name, _)| name.to_owned()))?;
                let rules = columns
                    .shown()
                    .iter()
                    .map(|&(name, width)| match is_text(name) {
                        true => "-".repeat(width),
                        false => "-".repeat(width - 1) + ":",
                    });
                writeln!(out, "| {} |", Vec::from_iter(rules).join(" | "))?;
            }
            Format::Csv => {
                let names: Vec<_> = fields(&Row::default())?.into_iter().map(|f| f.0).collect();
                writeln!(out, "{}", names.join(","))?;
            }
            Format::Json => writeln!(out, "[")?,
            Format::Jsonl => {}
        }
        out.flush()?;
        Ok(Self {
            out,
            format,
            columns,
            rows: 0,
        })
    }

    /// Writes a row.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        let out = &mut self.out;
        match self.format {
            Format::Md => line(out, self.columns, &cells(row))?,
            Format::Csv => {
                let values: Vec<_> = fields(row)?.values().map(quoted).collect();
                writeln!(out, "{}", values.join(","))?;
            }
            Format::Json => {
                if self.rows > 0 {
                    writeln!(out, ",")?;
                }
                let text = serde_json::to_string_pretty(row)?;
                write!(out, "  {}", text.replace('\n', "\n  "))?;
            }
            Format::Jsonl => writeln!(out, "{}", serde_json::to_string(row)?)?,
        }
        self.rows += 1;
        out.flush()
    }

    /// Writes the end.
    pub fn finish(mut self) -> io::Result<()> {
        if self.format == Format::Json {
            writeln!(self.out, "{}]", if self.rows > 0 { "\n" } else { "" })?;
        }
        self.out.flush()
    }
}

/// The columns of the table by name, with their widths. The first six are llama-bench's, in its widths.
const COLUMNS: [(&str, usize); 16] = [
    ("model", 30),
    ("size", 10),
    ("params", 10),
    ("backend", 10),
    ("test", 15),
    ("t/s", 20),
    ("device", 24),
    ("tier", 8),
    ("GB/s", 7),
    ("of peak", 7),
    ("dispatches", 10),
    ("dependent", 9),
    ("host ms", 7),
    ("GPU idle", 8),
    ("longest ms", 10),
    ("accepted", 9),
];

/// The columns of a table of 120 characters by name, with their widths in it.
const FEW: [(&str, usize); 7] = [
    ("model", 28),
    ("size", 10),
    ("params", 9),
    ("backend", 7),
    ("tier", 8),
    ("test", 19),
    ("t/s", 17),
];
const DEVICES: [(&str, usize); 6] = [
    ("model", 28),
    ("device", 22),
    ("backend", 7),
    ("tier", 8),
    ("test", 19),
    ("t/s", 17),
];

/// The columns of tables of 80 characters.
const NARROW: [(&str, usize); 4] = [("model", 22), ("tier", 8), ("test", 19), ("t/s", 17)];
const NARROW_DEVICES: [(&str, usize); 4] = [("device", 22), ("tier", 8), ("test", 19), ("t/s", 17)];
const NARROW_BOTH: [(&str, usize); 5] = [
    ("model", 10),
    ("device", 10),
    ("tier", 8),
    ("test", 19),
    ("t/s", 17),
];

/// Whether a column has texts. All others have numbers, which stand to the right.
fn is_text(name: &str) -> bool {
    ["model", "backend", "device", "tier"].contains(&name)
}

impl Columns {
    /// The columns that fit into lines of `width` characters, for several devices and models or one of each.
    pub fn fitting(width: usize, devices: bool, models: bool) -> Self {
        match (width >= 120, devices, models) {
            (true, false, _) => Self::Few,
            (true, true, _) => Self::Devices,
            (false, false, _) => Self::Narrow,
            (false, true, false) => Self::NarrowDevices,
            (false, true, true) => Self::NarrowBoth,
        }
    }

    /// The columns in order, with their widths.
    fn shown(self) -> &'static [(&'static str, usize)] {
        match self {
            Self::All => &COLUMNS,
            Self::Few => &FEW,
            Self::Devices => &DEVICES,
            Self::Narrow => &NARROW,
            Self::NarrowDevices => &NARROW_DEVICES,
            Self::NarrowBoth => &NARROW_BOTH,
        }
    }
}

/// A line of the table; `cells` are those of all columns.
fn line(out: &mut impl Write, columns: Columns, cells: &[String; COLUMNS.len()]) -> io::Result<()> {
    for &(name, width) in columns.shown() {
        let mut all = COLUMNS.iter().zip(cells);
        let cell = all.find(|((other, _), _)| *other == name);
        let cell = cell.map_or("", |(_, cell)| cell);
        if !is_text(name) {
            write!(out, "| {cell:>width$} ")?;
        } else if columns == Columns::All || cell.chars().count() <= width {
            write!(out, "| {cell:width$} ")?;
        } else {
            let cut: String = cell.chars().take(width - 1).collect();
            write!(out, "| {cut}… ")?;
        }
    }
    writeln!(out, "|")
}

fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let accepted = row.accepted.zip(row.drafted);
    let of_peak = row.gb_per_s.zip(row.peak_gb_per_s);
    [
        row.model_type.clone(),
        size(row.model_size),
        params(row.model_n_params),
        row.backends.clone(),
        match &row.draft {
            Some(draft) => format!("{} {draft}", row.test().name()),
            None => row.test().name(),
        },
        format!(
            "{:.2} ± {:.2}",
            row.statistics.avg_ts, row.statistics.stddev_ts
        ),
        row.gpu_info.clone(),
        row.tier.unwrap_or("-").to_owned(),
        or_dash(row.gb_per_s.map(rate)),
        or_dash(of_peak.map(|(v, peak)| format!("{:.1}%", 100.0 * v / peak))),
        or_dash(row.dispatches_per_token.map(|v| v.to_string())),
        or_dash(row.dependent_dispatches_per_token.map(|v| v.to_string())),
        or_dash(row.host_ms_per_token.map(|v| format!("{v:.3}"))),
        or_dash(row.gpu_idle.map(|v| format!("{:.1}%", 100.0 * v))),
        or_dash(row.longest_submission_ms.map(|v| format!("{v:.1}"))),
        or_dash(accepted.map(|(some, all)| format!("{some}/{all}"))),
    ]
}

/// A rate in three digits or more.
pub fn rate(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Bytes as llama-bench writes them.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b < f64::from(1 << 30) => format!("{:.2} MiB", b / f64::from(1 << 20)),
        b => format!("{:.2} GiB", b / f64::from(1 << 30)),
    }
}

/// Numbers of parameters as llama-bench writes them.
fn params(n: u64) -> String {
    let n = n as f64;
    match n {
        n if n < 1e9 => format!("{:.2} M", n / 1e6),
        n => format!("{:.2} B", n / 1e9),
    }
}

/// The fields of CSV with their values: those of a [`Row`] but the samples.
fn fields(row: &Row) -> io::Result<Map<String, Value>> {
    let mut fields: Map<_, _> = serde_json::from_value(serde_json::to_value(row)?)?;
    fields.retain(|name: &String, _| !name.starts_with("samples_"));
    Ok(fields)
}

/// A value of CSV.
pub fn quoted(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".to_owned(),
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        other => format!("\"{other}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let times = [200, 250].map(Duration::from_millis);
        Row {
            build_commit: "abc",
            version: "0.1.0",
            gpu_info: "NVIDIA \"H200\"".to_owned(),
            driver: "NVIDIA 580".to_owned(),
            backends: "Vulkan".to_owned(),
            tier: Some("subgroup"),
            activation: Some("halves"),
            cache_type: "q8_0",
            model_filename: "glm-4.7-flash:q4_0".to_owned(),
            model_type: "synthetic glm-4.7-flash q4_0".to_owned(),
            model_size: 17 << 30,
            model_n_params: 29_900_000_000,
            n_ubatch: Some(64),
            n_gen: 100,
            n_depth: 4096,
            test_time: "2026-11-20T08:00:00Z".to_owned(),
            statistics: Statistics::of(&times, 100),
            bytes_per_token: Some(2e9),
            gb_per_s: Some(900.0),
            peak_gb_per_s: Some(4500.0),
            dispatches_per_token: Some(700),
            dependent_dispatches_per_token: Some(450),
            host_ms_per_token: Some(0.5),
            gpu_idle: Some(0.0125),
            clock: Some("gpu"),
            ..Row::default()
        }
    }

    fn written(format: Format, rows: &[Row]) -> String {
        written_in(format, Columns::All, rows)
    }

    fn written_in(format: Format, columns: Columns, rows: &[Row]) -> String {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, format, columns).unwrap();
        for row in rows {
            writer.row(row).unwrap();
        }
        writer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_has_llama_benchs_columns_then_ours() {
        let prompt = Row {
            n_prompt: 512,
            n_gen: 0,
            n_depth: 0,
            gpu_info: "CPU reference".to_owned(),
            tier: None,
            activation: None,
            gb_per_s: None,
            dispatches_per_token: None,
            dependent_dispatches_per_token: None,
            host_ms_per_token: None,
            gpu_idle: None,
            longest_submission_ms: Some(98.76),
            model_size: 5 << 20,
            model_n_params: 16_000_000,
            ..row()
        };
        let expected = "\
| model                          |       size |     params | backend    |            test |                  t/s | device                   | tier     |    GB/s | of peak | dispatches | dependent | host ms | GPU idle | longest ms |  accepted |
| ------------------------------ | ---------: | ---------: | ---------- | --------------: | -------------------: | ------------------------ | -------- | ------: | ------: | ---------: | --------: | ------: | -------: | ---------: | --------: |
| synthetic glm-4.7-flash q4_0   |  17.00 GiB |    29.90 B | Vulkan     |   tg100 @ d4096 |       450.00 ± 70.71 | NVIDIA \"H200\"            | subgroup |     900 |   20.0% |        700 |       450 |   0.500 |     1.2% |          - |         - |
| synthetic glm-4.7-flash q4_0   |   5.00 MiB |    16.00 M | Vulkan     |           pp512 |       450.00 ± 70.71 | CPU reference            | -        |       - |       - |          - |         - |       - |        - |       98.8 |         - |
";
        assert_eq!(written(Format::Md, &[row(), prompt]), expected);
    }

    #[test]
    fn few_columns_fit_into_120_characters() {
        let long = Row {
            model_type: "a model with a name of many words".to_owned(),
            gpu_info: "an adapter with a name of many words".to_owned(),
            ..row()
        };
        let expected = "\
| model                        |       size |    params | backend | tier     |                test |               t/s |
| ---------------------------- | ---------: | --------: | ------- | -------- | ------------------: | ----------------: |
| synthetic glm-4.7-flash q4_0 |  17.00 GiB |   29.90 B | Vulkan  | subgroup |       tg100 @ d4096 |    450.00 ± 70.71 |
| a model with a name of many… |  17.00 GiB |   29.90 B | Vulkan  | subgroup |       tg100 @ d4096 |    450.00 ± 70.71 |
";
        let table = written_in(Format::Md, Columns::Few, &[row(), long.clone()]);
        assert_eq!(table, expected);
        let devices = written_in(Format::Md, Columns::Devices, &[row(), long]);
        for line in table.lines().chain(devices.lines()) {
            assert_eq!(line.chars().count(), 120, "{line}");
        }
        assert!(
            devices.contains("| NVIDIA \"H200\"          |"),
            "{devices}"
        );
        assert!(devices.contains("| an adapter with a nam… |"), "{devices}");
    }

    #[test]
    fn csv_quotes_every_field_and_leaves_the_absent_empty() {
        let text = written(
            Format::Csv,
            &[Row {
                tier: None,
                activation: None,
                ..row()
            }],
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        let names = "build_commit,version,gpu_info,driver,backends,tier,activation,precompose,cache_type,model_filename,model_type,model_size,\
            model_n_params,n_ubatch,n_prompt,n_gen,n_depth,test_time,avg_ns,stddev_ns,avg_ts,stddev_ts,bytes_per_token,gb_per_s,\
            peak_gb_per_s,dispatches_per_token,dependent_dispatches_per_token,host_ms_per_token,gpu_idle,clock,longest_submission_ms,\
            expert_slots,expert_hits,cpu_share,draft,drafted,accepted";
        assert_eq!(lines[0], names);
        let expected = "\"abc\",\"0.1.0\",\"NVIDIA \"\"H200\"\"\",\"NVIDIA 580\",\"Vulkan\",\"\",\"\",\"\",\"q8_0\",\"glm-4.7-flash:q4_0\",\
            \"synthetic glm-4.7-flash q4_0\",\"18253611008\",\"29900000000\",\"64\",\"0\",\"100\",\"4096\",\
            \"2026-11-20T08:00:00Z\",\"225000000\",\"35355339\",\"450.0\",\"70.71067811865476\",\"2000000000.0\",\
            \"900.0\",\"4500.0\",\"700\",\"450\",\"0.5\",\"0.0125\",\"gpu\",\"\",\"\",\"\",\"\",\"\",\"\",\"\"";
        assert_eq!(lines[1], expected);
    }

    #[test]
    fn a_row_with_drafts_tells_how_many_were_accepted_and_if_that_was_forced() {
        let drafted = Row {
            draft: Some("mtp forced".to_owned()),
            drafted: Some(63),
            accepted: Some(52),
            n_depth: 0,
            ..row()
        };
        let table = written(Format::Md, std::slice::from_ref(&drafted));
        assert!(table.contains("| tg100 mtp forced |"), "{table}");
        assert!(table.ends_with("|     52/63 |\n"), "{table}");
        let csv = written(Format::Csv, &[drafted]);
        assert!(csv.ends_with(",\"mtp forced\",\"63\",\"52\"\n"), "{csv}");
    }

    #[test]
    fn json_is_a_list_of_what_jsonl_has_in_lines() {
        let rows = [row(), Row { n_gen: 7, ..row() }];
        let list: Value = serde_json::from_str(&written(Format::Json, &rows)).unwrap();
        let lines = written(Format::Jsonl, &rows);
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(list, Value::Array(lines));
        assert_eq!(
            list[0]["samples_ns"],
            serde_json::json!([200_000_000, 250_000_000])
        );
        assert_eq!(list[1]["n_gen"], 7);
        assert_eq!(written(Format::Json, &[]), "[\n]\n");
    }

    #[test]
    fn a_single_repetition_has_no_deviation() {
        let one = Statistics::of(&[Duration::from_secs(2)], 100);
        assert_eq!((one.avg_ts, one.stddev_ts, one.stddev_ns), (50.0, 0.0, 0));
    }
}
