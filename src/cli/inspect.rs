//! `glimt inspect`: what a model file holds and what it takes to run it.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::args::{ContextArgs, DeviceArgs, ModelArgs};
use super::error::CliError;
use super::load;
use super::lookup;
use super::machine::{Answered, MachineArgs, Subject};
use super::memory::Uses;
use super::output::{self, bytes};
use super::picture::Picture;
use crate::engine::{
    self, CacheType, ComputedShare, EngineError, EngineOptions, Holds, MemoryPlan, Partly, Place,
};
use crate::gguf::Gguf;
use crate::gpu::{AdapterSummary, Target};
use crate::model::tensors::block_of;
use crate::model::{self, Experts, Gating, has_nextn};
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
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --gpu \"RTX 4070\" --gpu-memory 12G --host-memory 32G --bus 4x16

The file's weights are not loaded. Memory is compared with that of the device on which generate would run, or of the \
machine that --gpu names. Speeds are computed, not measured (docs/expected.md).";

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
    machine: MachineArgs,
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
    #[serde(serialize_with = "sizes")]
    model: Arc<dyn Model>,
    stop_tokens: Vec<String>,
    chat_template: bool,
    /// The type of the cache.
    cache_type: &'static str,
    /// The longest context with each type of cache that the model can have.
    longest: Vec<Longest>,
    /// Why the file answers raw prompts alone, although it has a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_refused: Option<String>,
    thinking: bool,
    parameters: u64,
    tensors: Vec<TypeRow>,
    /// The memory that running takes; `None` where the model cannot run.
    memory: Option<MemoryPlan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Where the experts lie, if the device has no room for all of them.
    partly: Option<Partly>,
    /// The CPU's share of missing experts that should pay, if one should.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_share: Option<ComputedShare>,
    /// Tokens per second, computed; `None` on the CPU, or where the speed of the device's memory is not known.
    computed_tokens_per_s: Option<f64>,
    /// The GPU that was named, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
    /// The name of the CPU, as it multiplies.
    #[serde(skip)]
    cpu: String,
    /// The adapter that it would run on; `None` is the CPU.
    adapter: Option<AdapterSummary>,
    /// Bytes of memory there, where anything tells.
    available: Option<u64>,
}

/// A model's sizes: what all have, and behind it what only its family has.
fn sizes<S: Serializer>(model: &Arc<dyn Model>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct All<'a> {
        #[serde(flatten)]
        common: &'a model::Config,
        #[serde(flatten)]
        own: Map<String, Value>,
    }
    let named = |(name, size): (&str, Option<usize>)| (name.to_owned(), size.into());
    let own = model.sizes().into_iter().map(named).collect();
    let common = model.config();
    All { common, own }.serialize(serializer)
}

impl Report {
    /// The device on which the model would run.
    fn device(&self) -> &str {
        let adapter = self.adapter.as_ref().map(|adapter| &adapter.name);
        self.gpu.as_ref().or(adapter).map_or(&self.cpu, |name| name)
    }
}

/// The longest context that has room with a cache of one type.
#[derive(Serialize)]
struct Longest {
    cache_type: &'static str,
    /// Tokens; `None` where not even the shortest context has room.
    ctx: Option<usize>,
    /// Whether all of the model lies on the device then.
    whole: bool,
}

impl Longest {
    /// Nothing where loading would fail for another reason, which is told as such.
    fn of(place: Place<'_>) -> Option<Self> {
        let found = place.longest_context().ok()?;
        Some(Self {
            cache_type: place.model.cache_type().name(),
            ctx: found.map(|(ctx, _)| ctx),
            whole: found.is_some_and(|(_, holds)| holds == Holds::All),
        })
    }
}

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ctx {
            None => write!(f, "none")?,
            Some(ctx) => write!(f, "{ctx}")?,
        }
        write!(f, " in {}", self.cache_type)?;
        match (self.ctx, self.whole) {
            (Some(_), false) => write!(f, " with experts elsewhere"),
            _ => Ok(()),
        }
    }
}

/// All tensors of one type.
#[derive(Default, Serialize)]
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
        let (gguf, models) = load::described(&source, self.ctx.cache_type)?;
        let tokenizer = Tokenizer::from_gguf(&gguf);
        let tokenizer = tokenizer.map_err(|error| CliError::from(error).in_file(&source))?;
        let template = ChatTemplate::from_gguf(&gguf).ok().flatten();
        let tensors = tensor_rows(&gguf);
        let ctx = self.ctx.for_answers(&source, true);
        let usual = engine::context_length(ctx.ctx, models[0].config().context_length)?;
        let stop_tokens = tokenizer.stop_tokens().iter();
        let stop_tokens = stop_tokens.map(|&id| tokenizer.piece(id)).collect();
        let machine = self.machine.machine(&self.device)?;
        let thinks = template.as_ref();
        let thinks = thinks.is_some_and(ChatTemplate::supports_thinking);
        let subject = |model| Subject {
            source: &source,
            model,
            machine: &machine,
            thinks,
        };
        let places = models
            .iter()
            .map(|model| subject(&**model).place(self.ctx.ubatch));
        let longest = places.filter_map(Longest::of).collect();
        let model = self.taken(&models, &ctx, &subject);
        let subject = subject(&**model);
        let options = self.options(&ctx, model.cache_type());
        let Answered {
            tried,
            n_ctx,
            partly,
        } = subject.answered(options, usual);
        let no_chat = tried.as_ref().ok().and_then(|tried| tried.no_chat.as_ref());
        let no_chat = no_chat.filter(|error| !matches!(error, EngineError::NoChatTemplate));
        let at_once = partly.and_then(|partly| partly.at_once);
        let place = subject.place(at_once.or(self.ctx.ubatch));
        let plan = place.plan(Partly::residence_of(partly.as_ref()), n_ctx);
        // Kinds of tensors are much the same everywhere.
        let target = machine.target().cloned().unwrap_or_else(Target::h200);
        let plan = plan.and_then(|plan| Ok((plan, Uses::new(&target, &**model, &plan)?)));
        let (memory, uses) = match plan {
            Ok((plan, uses)) => (Some(plan), Some(uses)),
            Err(error) if self.svg.is_some() => return Err(error.into()),
            Err(_) => (None, None),
        };
        let computed = match (&partly, tried.is_ok()) {
            (_, false) => None,
            (Some(partly), _) => Some(partly.tokens_per_s),
            (None, true) => place.computed(n_ctx)?,
        };
        let report = Report {
            file: gguf.path().display().to_string(),
            gguf_version: gguf.version(),
            file_bytes: gguf.file_size(),
            parameters: tensors.iter().map(|row| row.parameters).sum(),
            memory,
            refused: tried.as_ref().err().map(CliError::to_string),
            tensors,
            cache_type: model.cache_type().name(),
            longest,
            model: Arc::clone(model),
            stop_tokens,
            chat_refused: no_chat.map(EngineError::to_string),
            chat_template: template.is_some(),
            thinking: template.is_some_and(|template| template.supports_thinking()),
            available: place.site.has(),
            cpu_share: self.machine.share(&machine, partly.as_ref()),
            partly,
            computed_tokens_per_s: computed,
            gpu: machine.name().map(str::to_owned),
            cpu: self.device.cpu_products().device(),
            adapter: machine.adapter(),
        };
        self.show(&report, uses.as_ref())?;
        tried.map(drop)
    }

    /// The options of an answer with a cache of this type.
    fn options(&self, ctx: &ContextArgs, cache: CacheType) -> EngineOptions {
        EngineOptions {
            gpu: self.device.options(),
            ctx: ctx.ctx,
            cache_type: Some(cache),
            ubatch: ctx.ubatch,
            may_think: ctx.may_think,
            force: ctx.force,
            ..EngineOptions::default()
        }
    }

    /// The model with the cache that is asked for. If none is asked for, the cache is the one that an answer would take.
    fn taken<'a>(
        &self,
        models: &'a [Arc<dyn Model>],
        ctx: &ContextArgs,
        subject: &dyn Fn(&'a dyn Model) -> Subject<'a>,
    ) -> &'a Arc<dyn Model> {
        let first = &models[0];
        let is_asked = |model: &&Arc<dyn Model>| Some(model.cache_type()) == self.ctx.cache_type;
        if self.ctx.cache_type.is_some() || ctx.force {
            return models.iter().find(is_asked).unwrap_or(first);
        }
        let holds = |model: &'a Arc<dyn Model>| subject(&**model).holds(ctx.ctx, ctx.ubatch);
        let of_first = holds(first);
        let mut others = models[1..].iter().filter(|_| of_first < Holds::All);
        others
            .find(|other| holds(other) > of_first)
            .unwrap_or(first)
    }

    /// Shows the report and the uses of the memory, as the flags ask for them.
    fn show(&self, report: &Report, uses: Option<&Uses>) -> Result<(), CliError> {
        if let (Some(path), Some(uses)) = (&self.svg, uses) {
            let has = report.available.map(|has| (report.device(), has));
            let picture = uses.svg(&report.model.config().name, has);
            Picture::begin(path)?.finish(&picture, "memory by kind of tensor")?;
        }
        if self.json {
            return output::json(report);
        }
        output::page(&page(report))?;
        if let Some(uses) = uses
            && (self.bars || io::stdout().is_terminal())
        {
            // They are coloured, and their names are glimt's own.
            output::print(&format!("\n{}", uses.bars(&Terminal::of_stdout())))?;
        }
        Ok(())
    }
}

/// The tensors of each type, the type with the most bytes first.
fn tensor_rows(gguf: &Gguf) -> Vec<TypeRow> {
    let mut rows: Vec<TypeRow> = Vec::new();
    for tensor in gguf.tensors() {
        let name = tensor.ty.name();
        let index = rows.iter().position(|row| row.name == name);
        let index = index.unwrap_or(rows.len());
        if index == rows.len() {
            rows.push(TypeRow {
                name,
                ..TypeRow::default()
            });
        }
        let row = &mut rows[index];
        row.tensors += 1;
        row.parameters += tensor.element_count();
        row.bytes += tensor.byte_len();
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

/// The report for people.
fn page(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in model_lines(report) {
        text += &format!("{name:<12} {value}\n");
    }
    text += "\ntype      tensors       parameters         size\n";
    for row in &report.tensors {
        let (name, tensors, parameters) = (row.name, row.tensors, row.parameters);
        let size = bytes(row.bytes);
        text += &format!("{name:<8} {tensors:>8} {parameters:>16} {size:>12}\n");
    }
    text + &memory_lines(report)
}

/// The file and the sizes of its model, by name.
fn model_lines(report: &Report) -> [(&'static str, String); 11] {
    let model = report.model.config();
    let (path, version) = (&report.file, report.gguf_version);
    let file = bytes(report.file_bytes);
    let nextn = match model.nextn_predict_layers {
        0 => String::new(),
        n => format!(", {n} more for prediction{}", layer_size(report)),
    };
    let (blocks, dense) = (model.block_count, model.leading_dense_block_count);
    let context = plural::count(model.context_length, "token");
    let heads = plural::count(model.head_count, "head");
    let embedding = format!("{} wide, {heads}", model.embedding_length);
    // Files whose layers all have experts may leave the size out.
    let dense_ff = match dense {
        0 => "none".to_owned(),
        _ => model.feed_forward_length.to_string(),
    };
    let experts = model.experts.as_ref().map(experts);
    let vocabulary = plural::count(model.vocab_size, "token");
    let stops = report.stop_tokens.join(" ");
    let template = match (&report.chat_refused, report.chat_template, report.thinking) {
        (Some(reason), ..) => format!("cannot be used, so only --raw is answered: {reason}"),
        (None, false, _) => "none".to_owned(),
        (None, true, false) => "yes, without thinking".to_owned(),
        (None, true, true) => "yes, with thinking".to_owned(),
    };
    [
        ("file", format!("{path}, GGUF version {version}, {file}")),
        ("model", format!("{} ({})", model.name, model.architecture)),
        ("parameters", count(report.parameters)),
        ("context", context.to_string()),
        ("blocks", format!("{blocks} ({dense} dense){nextn}")),
        ("embedding", embedding),
        ("attention", report.model.attention()),
        ("dense ff", dense_ff),
        ("experts", experts.unwrap_or_else(|| "none".to_owned())),
        ("vocabulary", format!("{vocabulary}; stops at {stops}")),
        ("template", template),
    ]
}

/// How much the prediction layer holds, and when it is loaded.
fn layer_size(report: &Report) -> String {
    let gguf = report.model.gguf();
    if !has_nextn(gguf) {
        return " that are not in the file".to_owned();
    }
    let first = report.model.config().block_count;
    let of_layer = |name: &str| block_of(name).is_some_and(|n| n >= first);
    let tensors = gguf.tensors().iter().filter(|t| of_layer(&t.name));
    let size = bytes(tensors.map(|t| t.byte_len()).sum());
    format!(" (MTP, {size}), loaded if drafts by it are asked for")
}

/// The sizes of a mixture of experts and how they are chosen.
fn experts(experts: &Experts) -> String {
    let gating = match experts.gating {
        Gating::Softmax => "softmax",
        Gating::Sigmoid => "sigmoid",
    };
    let normalised = match experts.weights_norm {
        true => "normalised",
        false => "not normalised",
    };
    format!(
        "{}, {} used, {} shared, {} wide; {gating} gating, weights {normalised} and scaled by {}",
        experts.count,
        experts.used,
        experts.shared_count,
        experts.feed_forward_length,
        experts.weights_scale,
    )
}

/// The memory that running takes, and whether the device has it.
fn memory_lines(report: &Report) -> String {
    let mut text = String::new();
    if let Some(reason) = &report.refused {
        text += &format!("\ncannot run: {reason}\n");
    }
    let Some(memory) = &report.memory else {
        return text;
    };
    let longest: Vec<_> = report.longest.iter().map(Longest::to_string).collect();
    let total = memory.total();
    let on_gpu = report.adapter.is_some() || report.gpu.is_some();
    let in_place = match on_gpu {
        true => "",
        false => "   (read in the file, in place)",
    };
    let cache = format!(
        "   ({} a token, in {})",
        bytes(memory.cache_per_token),
        report.cache_type
    );
    let at_once = plural::count(memory.ubatch, "token");
    let scratch = format!("   (prompts {at_once} at once)");
    let ctx = plural::count(memory.ctx, "token");
    text += &format!("\nmemory at a context of {ctx}\n");
    for (name, size, remark) in [
        ("weights", memory.weights, in_place),
        ("cache", memory.cache, &cache),
        ("scratch", memory.scratch, &scratch),
        ("together", total, ""),
    ] {
        text += &format!("{name:<12} {:>12}{remark}\n", bytes(size));
    }
    let device = report.device();
    let available = match report.available {
        Some(has) => {
            let verdict = if total <= has { "enough" } else { "NOT enough" };
            format!("{:>12}   on {device}: {verdict}", bytes(has))
        }
        None => format!("not told by {device}"),
    };
    text += &format!("available    {available}\n{}", verdict(report));
    text + &format!("longest ctx  {}\n", longest.join(", "))
}

/// Where the model lies and how fast it should be; nothing where it is refused or on the CPU.
fn verdict(report: &Report) -> String {
    let speed = report.computed_tokens_per_s;
    let found = match (&report.partly, speed) {
        _ if report.refused.is_some() => return String::new(),
        (Some(partly), _) => format!("partly: {partly}"),
        (None, Some(speed)) => format!("all of it; computed: {speed:.0} tokens/s"),
        (None, None) => return String::new(),
    };
    let share = report.cpu_share.as_ref();
    let share = share.map(|share| format!("shared       {share}\n"));
    format!("resident     {found}\n{}", share.unwrap_or_default())
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
