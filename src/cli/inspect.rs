//! `glimt inspect`: what a model file holds and what it takes to run it.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::{Serialize, Serializer};

use super::args::{ContextArgs, DeviceArgs, ModelArgs};
use super::error::CliError;
use super::load;
use super::lookup;
use super::memory::Uses;
use super::output::{self, bytes};
use super::picture::Picture;
use crate::engine::{self, EngineError, EngineOptions, MemoryPlan};
use crate::gguf::Gguf;
use crate::gpu::{AdapterSummary, Target};
use crate::model::{self, Experts, Gating};
use crate::models::Model;
use crate::pictures::terminal::Terminal;
use crate::plural;
use crate::tokenizer::{ChatTemplate, Tokenizer};

const EXAMPLES: &str = "\
Examples:
  glimt inspect
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --ctx 32768
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --json | jq .memory
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --ctx 32768 --svg memory.svg

The file's weights are not loaded. Memory is compared with that of the device on which generate would run.";

/// Show what a model file holds and the memory it needs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Inspect {
    /// The model, as -m takes it; goes before -m and GLIMT_MODEL
    #[arg(value_name = "MODEL")]
    file: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    ctx: ContextArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Draw bars of the memory by kind of tensor [default: where standard output is a terminal]
    #[arg(long, conflicts_with = "json")]
    bars: bool,
    /// Also draw the memory by kind of tensor into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    file: String,
    gguf_version: u32,
    file_bytes: u64,
    model: Sizes,
    stop_tokens: Vec<String>,
    chat_template: bool,
    thinking: bool,
    parameters: u64,
    tensors: Vec<TypeRow>,
    /// What running takes, or why it cannot.
    memory: Option<MemoryPlan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The adapter that it would run on; `None` is the CPU reference.
    adapter: Option<AdapterSummary>,
    /// Bytes of memory there, where anything tells.
    available: Option<u64>,
}

/// A model's sizes: what all have, and what only its family has.
struct Sizes(Arc<dyn Model>);

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct All<'a> {
            #[serde(flatten)]
            common: &'a model::Config,
            #[serde(flatten, serialize_with = "in_order")]
            own: Vec<(&'static str, Option<usize>)>,
        }
        let own = self.0.sizes();
        let common = self.0.config();
        All { common, own }.serialize(serializer)
    }
}

/// Names and numbers as a map that keeps their order.
fn in_order<S: Serializer>(
    sizes: &[(&'static str, Option<usize>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(sizes.iter().copied())
}

impl Report {
    /// What the model would run on.
    fn device(&self) -> &str {
        let adapter = self.adapter.as_ref();
        adapter.map_or("CPU reference", |adapter| adapter.name.as_str())
    }
}

/// All tensors of one type.
#[derive(Serialize)]
struct TypeRow {
    #[serde(rename = "type")]
    name: &'static str,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

impl Inspect {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let source = match &self.file {
            Some(file) => lookup::source(file)?,
            None => self.model.source()?,
        };
        let (gguf, model) = load::described(&source)?;
        let (tokenizer, template) = text_of(&gguf).map_err(|error| error.in_file(&source))?;
        let tensors = tensor_rows(&gguf);
        let ctx = self.ctx.for_answers(&source, true);
        let usual = engine::context_length(ctx.ctx, model.config().context_length)?;
        let stop_tokens = tokenizer
            .stop_tokens()
            .iter()
            .map(|&id| tokenizer.piece(id))
            .collect();
        let options = EngineOptions {
            gpu: self.device.options(),
            ctx: ctx.ctx,
            ubatch: ctx.ubatch,
            may_think: ctx.may_think,
            force: ctx.force,
            ..EngineOptions::default()
        };
        let tried = load::try_answer(&source, &options);
        let n_ctx = *tried.as_ref().unwrap_or(&usual);
        let adapter = engine::adapter(&options)?;
        let plan = match &adapter {
            None => Ok(MemoryPlan::on_cpu(&*model, n_ctx)),
            Some(on) => MemoryPlan::new(&on.target, &*model, n_ctx, self.ctx.ubatch),
        };
        // Kinds of tensors are much the same everywhere.
        let target = adapter.as_ref().map(|adapter| adapter.target.clone());
        let target = target.unwrap_or_else(Target::h200);
        let plan = plan.and_then(|plan| Ok((plan, Uses::new(&target, &*model, &plan)?)));
        let (memory, uses) = match plan {
            Ok((plan, uses)) => (Some(plan), Some(uses)),
            Err(error) if self.svg.is_some() => return Err(EngineError::from(error).into()),
            Err(_) => (None, None),
        };
        let report = Report {
            file: gguf.path().display().to_string(),
            gguf_version: gguf.version(),
            file_bytes: gguf.file_size(),
            parameters: tensors.iter().map(|row| row.parameters).sum(),
            memory,
            refused: tried.as_ref().err().map(CliError::to_string),
            tensors,
            model: Sizes(model),
            stop_tokens,
            chat_template: template.is_some(),
            thinking: template.is_some_and(|template| template.supports_thinking()),
            available: engine::available(adapter.as_ref().and_then(|adapter| adapter.memory)),
            adapter,
        };
        if let (Some(path), Some(uses)) = (&self.svg, &uses) {
            let has = report.available.map(|has| (report.device(), has));
            let picture = uses.svg(&report.model.0.config().name, has);
            Picture::begin(path)?.finish(&picture, "memory by kind of tensor")?;
        }
        if self.json {
            output::json(&report)?;
            return tried.map(drop);
        }
        let mut text = page(&report);
        if let Some(uses) = uses
            && (self.bars || io::stdout().is_terminal())
        {
            text += &format!("\n{}", uses.bars(&Terminal::of_stdout()));
        }
        output::page(&text)?;
        tried.map(drop)
    }
}

/// The vocabulary of a file and its chat template.
fn text_of(gguf: &Gguf) -> Result<(Tokenizer, Option<ChatTemplate>), CliError> {
    Ok((Tokenizer::from_gguf(gguf)?, ChatTemplate::from_gguf(gguf)?))
}

/// The tensors of each type, the type with the most bytes first.
fn tensor_rows(gguf: &Gguf) -> Vec<TypeRow> {
    let mut rows: Vec<TypeRow> = Vec::new();
    for tensor in gguf.tensors() {
        let name = tensor.ty.name();
        let index = rows
            .iter()
            .position(|row| row.name == name)
            .unwrap_or_else(|| {
                rows.push(TypeRow {
                    name,
                    tensors: 0,
                    parameters: 0,
                    bytes: 0,
                });
                rows.len() - 1
            });
        let row = &mut rows[index];
        row.tensors += 1;
        row.parameters += tensor.element_count();
        row.bytes += tensor.byte_len();
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

/// The report for people. Writing into a `String` cannot fail.
fn page(report: &Report) -> String {
    let mut text = String::new();
    model_lines(&mut text, report);
    let _ = writeln!(
        text,
        "\n{:<8} {:>8} {:>16} {:>12}",
        "type", "tensors", "parameters", "size"
    );
    for row in &report.tensors {
        let _ = writeln!(
            text,
            "{:<8} {:>8} {:>16} {:>12}",
            row.name,
            row.tensors,
            row.parameters,
            bytes(row.bytes)
        );
    }
    memory_lines(&mut text, report);
    text
}

/// Appends the file and the sizes of its model.
fn model_lines(text: &mut String, report: &Report) {
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    let model = report.model.0.config();
    line(
        "file",
        format!(
            "{}, GGUF version {}, {}",
            report.file,
            report.gguf_version,
            bytes(report.file_bytes)
        ),
    );
    line("model", format!("{} ({})", model.name, model.architecture));
    line("parameters", count(report.parameters));
    line(
        "context",
        plural::count(model.context_length, "token").to_string(),
    );
    let nextn = match model.nextn_predict_layers {
        0 => String::new(),
        n => format!(", {n} more for prediction that are not used"),
    };
    line(
        "blocks",
        format!(
            "{} ({} dense){nextn}",
            model.block_count, model.leading_dense_block_count
        ),
    );
    line(
        "embedding",
        format!(
            "{} wide, {}",
            model.embedding_length,
            plural::count(model.head_count, "head")
        ),
    );
    line("attention", report.model.0.attention());
    line("dense ff", model.feed_forward_length.to_string());
    let experts = model.experts.as_ref().map(experts);
    line("experts", experts.unwrap_or_else(|| "none".to_owned()));
    line(
        "vocabulary",
        format!(
            "{}; stops at {}",
            plural::count(model.vocab_size, "token"),
            report.stop_tokens.join(" ")
        ),
    );
    let template = match (report.chat_template, report.thinking) {
        (false, _) => "none",
        (true, false) => "yes, without thinking",
        (true, true) => "yes, with thinking",
    };
    line("template", template.to_owned());
}

/// The sizes of a mixture of experts and how they are chosen.
fn experts(experts: &Experts) -> String {
    format!(
        "{}, {} used, {} shared, {} wide; {} gating, weights {} and scaled by {}",
        experts.count,
        experts.used,
        experts.shared_count,
        experts.feed_forward_length,
        match experts.gating {
            Gating::Softmax => "softmax",
            Gating::Sigmoid => "sigmoid",
        },
        if experts.weights_norm {
            "normalised"
        } else {
            "not normalised"
        },
        experts.weights_scale,
    )
}

/// Appends what running takes, and whether the device has it.
fn memory_lines(text: &mut String, report: &Report) {
    if let Some(reason) = &report.refused {
        let _ = writeln!(text, "\ncannot run: {reason}");
    }
    let Some(memory) = &report.memory else {
        return;
    };
    let total = memory.total();
    let in_place = match &report.adapter {
        Some(_) => "",
        None => "   (read in the file, in place)",
    };
    let rows = [
        ("weights", memory.weights, in_place.to_owned()),
        (
            "cache",
            memory.cache,
            format!("   ({} a token)", bytes(memory.cache_per_token)),
        ),
        (
            "scratch",
            memory.scratch,
            format!(
                "   (prompts {} at once)",
                plural::count(memory.ubatch, "token")
            ),
        ),
        ("together", total, String::new()),
    ];
    let ctx = plural::count(memory.ctx, "token");
    let _ = writeln!(text, "\nmemory at a context of {ctx}");
    for (name, size, remark) in rows {
        let _ = writeln!(text, "{name:<12} {:>12}{remark}", bytes(size));
    }
    let device = report.device();
    let _ = match report.available {
        Some(has) => {
            let verdict = if total <= has { "enough" } else { "NOT enough" };
            let has = bytes(has);
            writeln!(
                text,
                "{:<12} {has:>12}   on {device}: {verdict}",
                "available"
            )
        }
        None => writeln!(text, "available    not told by {device}"),
    };
}

/// `number` with a unit of thousands, and exactly.
fn count(number: u64) -> String {
    let value = number as f64;
    match number {
        1_000_000_000.. => format!("{:.2} billion ({number})", value / 1e9),
        1_000_000.. => format!("{:.2} million ({number})", value / 1e6),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_a_readable_unit() {
        assert_eq!(count(999_999), "999999");
        assert_eq!(count(15_900_000), "15.90 million (15900000)");
        assert_eq!(count(29_943_000_000), "29.94 billion (29943000000)");
    }
}
