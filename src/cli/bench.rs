//! `glimt bench`: speed in llama-bench's terms.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::args::{
    CacheArgs, DEVICE, GpuMemoryArgs, KernelArgs, PrecomposeArgs, ShareArgs, gpu_layers,
};
use super::bars::{Bar, progress_bar, runs_bar};
use super::draft;
use super::error::CliError;
use super::load;
use super::lookup;
use super::output::{self, note, write_error};
use super::picture::Picture;
use super::text::{self, Input};
use crate::bench::{
    self, BenchError, BenchOptions, Columns, Drafting, Event, Format, MOST_PARALLEL,
    ParallelOptions, ParallelRow, Routing, Row, Source, Where, Writer,
};
use crate::engine::draft::{DraftOptions, DraftSource};
use crate::engine::{DeviceChoice, GpuOptions, ModelSource, Tier};
use crate::pictures::terminal::{self, Terminal};
use crate::recipes::MAX_CHUNK;

const EXAMPLES: &str = "\
Examples:
  glimt bench
  glimt bench -m GLM-4.7-Flash-Q4_0.gguf -p 512,2048 -n 128 -d 0,4096
  glimt bench -m GLM-4.7-Flash-Q4_0.gguf -m GLM-4.7-Flash-Q4_K_M.gguf
  glimt bench --synthetic glm-4.7-flash:q4_0 -p 0 -d 0,4096,32768
  glimt bench --synthetic tiny:q4_0 --device all --tier plain --tier subgroup -o jsonl
  glimt bench -d 0,256,512,1024 --svg speed.svg

Tests, flags and columns are llama-bench's: pp is processing a prompt, tg generating one token after the other, @ d is \
the depth of context before that; t/s is the mean of the repetitions and their standard deviation. A run that is not \
counted comes first. Tokens are random, nothing is read or written as text, no token ends a generation; choosing the \
next token (greedily, on the device) is part of its time.

The cache below a depth is filled with random rows instead of computed ones: attention takes the same time over them, \
and a depth of 32768 needs no wait.

A terminal gets the columns that fit, and bars below the table. With --wide, and in a pipe or file, more columns \
follow, for tg: GB/s, the bytes that a token must read times the tokens per second, in \
10^9 bytes; these bytes are the planes of all weights that the dispatches of a token read (of experts, those that are \
used), plus (position + 1) cache rows per layer. Of peak: relative to a plain read of a large buffer, measured on each \
device before the model is loaded. Dispatches per token, and how many of them are dependent: wait for the one before. \
Host ms: what encoding and submitting a token takes the CPU. GPU idle: the share of the time between the first and the \
last token in which no step ran, from timestamps in a run of its own; where these are missing or wrong, from a step \
repeated by the host's clock (field clock).

With --parallel, the test and the columns are llama-batched-bench's: T_PP and T_TG are the seconds for all prompts \
and for all answers, S_PP and S_TG tokens per second in sum, N_KV the rows of the cache. experts are those of a layer \
that the last step touched: random weights choose unevenly, and touch fewer than text does.

For pp, longest ms: what the longest submission took. A prompt is cut into submissions of about 100 ms each, so that a \
display on the same device stays alive; one layer is the first of a session.";

/// The most bytes of `--text`.
const MOST_TEXT: u64 = 64 << 20;

/// Measure a model's speed, in llama-bench's tests and columns
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Bench {
    /// The model: a GGUF file, or a name; may be repeated [default: the built-in story teller]
    ///
    /// A split model is named by its first shard. `glimt list` and `glimt pull --help` show names.
    #[arg(short, long = "model", value_name = "MODEL", env = "GLIMT_MODEL")]
    models: Vec<PathBuf>,
    /// Measure random weights of real shapes instead of a file, such as glm-4.7-flash:q4_0; may be repeated
    ///
    /// They are made on the device, by a model and a recipe of glimt synth.
    #[arg(long, value_name = "MODEL:RECIPE", conflicts_with = "models")]
    synthetic: Vec<Source>,
    /// Tokens of prompts; 0 is off [default: 512]
    #[arg(short = 'p', long = "n-prompt", value_name = "N,..", value_parser = bench::counts)]
    prompts: Vec<Numbers>,
    /// Tokens to generate; 0 is off [default: 128]
    #[arg(short = 'n', long = "n-gen", value_name = "N,..", value_parser = bench::counts)]
    generations: Vec<Numbers>,
    /// A prompt of P tokens and N generated ones, timed together; also -pg
    #[arg(long = "pg", value_name = "P,N", value_parser = bench::pair)]
    pairs: Vec<(usize, usize)>,
    /// Instead measure N sequences at once, as llama-batched-bench does: N prompts of -p tokens, then -n tokens of each
    #[arg(long, value_name = "N,..", value_parser = bench::counts, conflicts_with_all = ["pairs", "depths", "svg", "bars", "choice", "chunks", "repetitions", "routing"])]
    parallel: Vec<Numbers>,
    /// Depths: tokens in the context before each test [default: 0]
    #[arg(short = 'd', long = "n-depth", value_name = "N,..", value_parser = bench::counts)]
    depths: Vec<Numbers>,
    /// Have decoded tokens choose experts by this trace: an array (tokens, layers, used) of bytes, as numpy.save writes it
    ///
    /// Random weights choose experts as if by dice. The choices of a real router repeat more, and then slots of --gpu-memory hold
    /// more of them. Layers of the trace repeat, each time later in the text. Prompts choose experts themselves, and so would steps of
    /// several tokens: --parallel and --draft are refused with it.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    routing: Option<PathBuf>,
    /// Repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Format of the results on standard output
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Show all columns of the table; without it a terminal gets those that fit, and a pipe or file gets all
    #[arg(long)]
    wide: bool,
    /// Draw bars of tokens/s below the table [default: where standard output is a terminal]
    #[arg(long)]
    bars: bool,
    /// Also draw tokens/s over the depth of the context into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Where to run: as for generate, or all for every GPU; may be repeated [default: auto]
    #[arg(long = "device", value_name = "DEVICE", env = "GLIMT_DEVICE", help_heading = DEVICE)]
    devices: Vec<Where>,
    /// Layers on the GPU, as llama-bench has it: 0 is --device cpu, all or 99 and more is the GPU; a model is never divided
    #[arg(long, value_name = "N,..", value_parser = gpu_layers, value_delimiter = ',', conflicts_with = "devices", hide_short_help = true, allow_negative_numbers = true)]
    gpu_layers: Vec<bool>,
    /// Load the model even if it and the context need more memory than there is
    #[arg(long, hide_short_help = true, help_heading = DEVICE)]
    force: bool,
    /// A tier of GPU kernels; may be repeated [default: subgroup where the adapter runs it, or int8 where that is measured to
    /// be at least 1% faster]
    #[arg(long = "tier", value_name = "TIER", help_heading = DEVICE)]
    tiers: Vec<Tier>,
    #[command(flatten)]
    memory: GpuMemoryArgs,
    #[command(flatten)]
    share: ShareArgs,
    #[command(flatten)]
    kernels: KernelArgs,
    /// Generate with drafts: off, mtp (by the prediction layer; a synthetic model has one), ngram (by what followed the last tokens), or auto
    #[arg(long, value_name = "auto|off|mtp|ngram", value_parser = draft::source, default_value = DraftSource::Off.name(), hide_short_help = true)]
    draft: DraftSource,
    /// Propose at most N tokens for a step [default: as many as pay]
    #[arg(long, value_name = "N", hide_short_help = true)]
    draft_max: Option<usize>,
    /// Take the prediction layer from this file
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    draft_model: Option<PathBuf>,
    /// Have the first, the second, ... draft accepted in such shares of steps, such as 0.83,0.65,0.49, whatever the model chooses
    ///
    /// Weights of a synthetic model are random, and its drafts are hardly ever accepted. Rows say that this was forced.
    #[arg(long, value_name = "SHARE,..", value_parser = bench::shares, requires = "draft", hide_short_help = true)]
    accept: Option<Shares>,
    /// Have generations follow the text of this file, whatever the model chooses: for the drafts of n-grams
    #[arg(
        long,
        value_name = "FILE",
        requires = "draft",
        conflicts_with = "accept",
        hide_short_help = true
    )]
    text: Option<PathBuf>,
    #[command(flatten)]
    precompose: PrecomposeArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Tokens of a prompt computed at once; also -ub [default: 2048, on software 512, or what its
    /// bindings have room for]
    #[arg(long = "ubatch", value_name = "N,..", value_parser = ubatch, hide_short_help = true, help_heading = DEVICE)]
    chunks: Vec<Chunks>,
}

/// The numbers of one flag. The type has a name because clap would take a bare `Vec` for a flag that is repeated.
type Numbers = Vec<usize>;
/// The values of one `--ubatch`.
type Chunks = Vec<u32>;
/// The shares of `--accept`.
type Shares = Arc<[f64]>;

fn ubatch(text: &str) -> Result<Chunks, String> {
    let each = bench::counts(text)?.into_iter().map(|n| match n {
        1.. if n <= MAX_CHUNK as usize => Ok(n as u32),
        _ => Err(format!("{n} is not from 1 to {MAX_CHUNK}")),
    });
    each.collect()
}

fn all(flags: &[Numbers], default: usize) -> Vec<usize> {
    match flags.is_empty() {
        true => vec![default],
        false => flags.concat(),
    }
}

impl Bench {
    /// The models that the flags name.
    fn sources(&self) -> Result<Vec<Source>, CliError> {
        if !self.synthetic.is_empty() {
            return Ok(self.synthetic.clone());
        }
        if self.models.is_empty() {
            return Ok(vec![Source::Model(ModelSource::Embedded)]);
        }
        let found = |model: &PathBuf| lookup::source(model).map(Source::Model);
        self.models.iter().map(found).collect()
    }

    /// The devices that the flags name.
    fn devices(&self) -> Vec<Where> {
        let layers = self.gpu_layers.iter().map(|on_gpu| match on_gpu {
            true => DeviceChoice::Auto,
            false => DeviceChoice::Cpu,
        });
        let named = self.devices.iter().cloned();
        let devices: Vec<_> = named.chain(layers.map(Where::Device)).collect();
        match devices.is_empty() {
            true => vec![Where::Device(DeviceChoice::default())],
            false => devices,
        }
    }

    /// The drafts of generations.
    fn drafting(&self) -> Result<Drafting, CliError> {
        let model = self
            .draft_model
            .as_deref()
            .map(lookup::source)
            .transpose()?;
        let text = self
            .text
            .clone()
            .map(|path| text::read_all(&[Input::File(path)], MOST_TEXT));
        Ok(Drafting {
            options: DraftOptions {
                source: self.draft,
                most: self.draft_max,
            },
            model,
            accept: self.accept.clone(),
            text: text.transpose()?.map(Arc::from),
        })
    }

    /// How to open each GPU.
    fn gpu_options(&self) -> GpuOptions {
        GpuOptions {
            max_memory: self.memory.most,
            experts: self.memory.experts,
            ..self.kernels.options()
        }
    }

    /// The columns that fit into the terminal; a file has room for all.
    fn columns(&self, sources: usize, devices: &[Where]) -> Columns {
        if self.wide || !io::stdout().is_terminal() {
            return Columns::All;
        }
        let several = !matches!(devices, [Where::Device(_)]);
        Columns::fitting(terminal::columns().unwrap_or(80), several, sources > 1)
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        if !self.parallel.is_empty() {
            return self.run_parallel();
        }
        if self.bars && self.output != Format::Md {
            return Err(CliError::BarsWithoutTable);
        }
        let tests = bench::tests(
            &all(&self.prompts, 512),
            &all(&self.generations, 128),
            &self.pairs,
            &all(&self.depths, 0),
        )?;
        let (sources, devices) = (self.sources()?, self.devices());
        let columns = self.columns(sources.len(), &devices);
        let picture = self.svg.as_deref().map(Picture::begin).transpose()?;
        let routing = self.routing.as_deref().map(Routing::read).transpose()?;
        let routing = routing.map(Arc::new);
        let drafting = self.drafting()?;
        let repetitions = u64::from(self.repetitions);
        let mut shown = Shown::new(io::stdout(), self.output, columns, repetitions);
        shown.by_layers = !self.gpu_layers.is_empty();
        let is_auto = devices == [Where::Device(DeviceChoice::Auto)];
        if is_auto && self.synthetic.is_empty() {
            let tier = self.tiers.first().copied();
            shown.for_gpu = self.kernels.asks_for_gpu(tier, &self.precompose);
        }
        let on_cpu = |device: &Where| *device == Where::Device(DeviceChoice::Cpu);
        if self.kernels.asks_for_products() && !is_auto && !devices.iter().any(on_cpu) {
            load::idle_products("what --device names");
        }
        for source in sources {
            let options = BenchOptions {
                source,
                tests: tests.clone(),
                devices: devices.clone(),
                tiers: self.tiers.clone(),
                gpu: self.gpu_options(),
                precompose: self.precompose.choice.unwrap_or_default(),
                cache_type: self.cache.cache_type,
                cpu_products: self.kernels.cpu_products(),
                cpu_share: self.share.asked(),
                chunks: self.chunks.concat(),
                routing: routing.clone(),
                draft: drafting.clone(),
                force: self.force,
                repetitions: usize::from(self.repetitions),
            };
            let run = bench::run(&options, &mut |event| shown.take(&event));
            run.map_err(|error| CliError::from(error).in_source(&options.source))?;
            if shown.has_failed() {
                break;
            }
        }
        let rows = shown.finish()?;
        if let Some(picture) = picture {
            picture.finish(&bench::svg(&rows), "tokens/s over depth")?;
        }
        let terminal = self.output == Format::Md && io::stdout().is_terminal();
        if self.bars || terminal {
            output::print(&bench::bars(&rows, &Terminal::of_stdout()))?;
        }
        Ok(())
    }

    /// Several sequences at once.
    fn run_parallel(&self) -> Result<(), CliError> {
        let parallel = all(&self.parallel, 1);
        if let Some(wrong) = parallel.iter().find(|n| !(1..=MOST_PARALLEL).contains(n)) {
            return Err(CliError::Parallel {
                found: *wrong,
                most: MOST_PARALLEL,
            });
        }
        let prompts = all(&self.prompts, 128);
        let generations = all(&self.generations, 128);
        let json = match self.output {
            Format::Md => false,
            Format::Jsonl => true,
            Format::Csv | Format::Json => return Err(CliError::ParallelFormat),
        };
        let devices = self.devices();
        let devices = devices.iter().map(one_device);
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let tiers: Vec<_> = match self.tiers.as_slice() {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        let narrow = !self.wide && io::stdout().is_terminal();
        let narrow = narrow && terminal::columns().is_none_or(|columns| columns < 120);
        let mut table = ParallelTable {
            json,
            narrow,
            head: true,
        };
        let sources = self.sources()?;
        let each = sources
            .iter()
            .flat_map(|source| devices.iter().map(move |device| (source, device)));
        for (source, device) in each {
            for tier in &tiers {
                let options = ParallelOptions {
                    source: source.clone(),
                    gpu: GpuOptions {
                        device: device.clone(),
                        tier: *tier,
                        ..self.gpu_options()
                    },
                    force: self.force,
                    on_partly: load::partly,
                    prompts: prompts.clone(),
                    generations: generations.clone(),
                    parallel: parallel.clone(),
                };
                let bar = progress_bar("loading");
                let mut failed = None;
                let measured = bench::parallel(&options, &mut load::told(&bar), &mut |row| {
                    bar.end();
                    let printed = table.print(row);
                    failed = printed.err();
                    match failed {
                        Some(_) => Err(BenchError::NoTests),
                        None => Ok(()),
                    }
                });
                bar.end();
                if let Some(error) = failed {
                    return Err(error);
                }
                measured.map_err(|error| CliError::from(error).in_source(&options.source))?;
            }
        }
        Ok(())
    }
}

/// The one device that is meant.
fn one_device(device: &Where) -> Result<DeviceChoice, CliError> {
    match device {
        Where::Device(DeviceChoice::Cpu) => Err(CliError::ParallelOnCpu),
        Where::Device(choice) => Ok(choice.clone()),
        Where::All => Err(CliError::ParallelOnAll),
    }
}

/// How rows of several sequences are printed.
struct ParallelTable {
    json: bool,
    /// Whether a terminal has no room for all columns.
    narrow: bool,
    /// Whether the head is still to come.
    head: bool,
}

impl ParallelTable {
    fn print(&mut self, row: &ParallelRow) -> Result<(), CliError> {
        if self.json {
            return output::json(row);
        }
        let head = match std::mem::take(&mut self.head) {
            true => bench::parallel_head(self.narrow),
            false => String::new(),
        };
        output::print(&(head + &bench::parallel_line(row, self.narrow)))
    }
}

/// The results that runs have written so far.
pub(super) struct Shown<W> {
    /// The output of the results, until the head is written.
    out: Option<W>,
    format: Format,
    columns: Columns,
    repetitions: u64,
    /// Whether devices were named by `--gpu-layers`.
    by_layers: bool,
    /// The flag that leaves the CPU reference where there is no GPU.
    for_gpu: Option<String>,
    bar: Option<Bar>,
    /// The head is written with the first row, so that a refusal leaves standard output empty.
    writer: Option<Writer<W>>,
    rows: Vec<Row>,
    failed: Option<io::Error>,
}

impl<W: Write> Shown<W> {
    /// Results go to `out`, all else to standard error.
    pub(super) fn new(out: W, format: Format, columns: Columns, repetitions: u64) -> Self {
        Self {
            out: Some(out),
            format,
            columns,
            repetitions,
            by_layers: false,
            for_gpu: None,
            bar: None,
            writer: None,
            rows: vec![],
            failed: None,
        }
    }

    /// Takes what a run tells.
    pub(super) fn take(&mut self, event: &Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Device {
                name,
                backend,
                is_software,
            } => {
                self.bar = Some(progress_bar("loading"));
                if let Some(flag) = self.for_gpu.take_if(|_| *is_software) {
                    load::leaves_cpu(&flag, name);
                }
                note(format_args!("device: {name} ({backend})"));
            }
            Event::Loading(done, total) => {
                if let Some(bar) = &self.bar {
                    bar.at_of(*done, *total);
                }
            }
            Event::Partly(found) => load::partly(found),
            Event::Loaded => self.bar = None,
            Event::Share(share) => load::share(share),
            Event::Tier(trial) => note(format_args!("{trial}")),
            Event::Precomposed(precomposed) => note(format_args!("{}", precomposed.line)),
            Event::NoGpu(error) => note(format_args!("{}", load::no_gpu(error, self.by_layers))),
            Event::Skipped(reason) => note(format_args!("left out: {reason}")),
            Event::Test { test, number, of } => {
                let what = format!("{} ({number} of {of})", test.name());
                self.bar = Some(runs_bar(what, self.repetitions));
            }
            Event::Repetition(done) => {
                if let Some(bar) = &self.bar {
                    bar.at(*done as u64);
                }
            }
            Event::Row(row) => {
                self.bar = None;
                self.rows.push(Row::clone(row));
                if let Err(error) = self.write(row) {
                    self.failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn write(&mut self, row: &Row) -> io::Result<()> {
        if let Some(out) = self.out.take() {
            self.writer = Some(Writer::new(out, self.format, self.columns)?);
        }
        match &mut self.writer {
            Some(writer) => writer.row(row),
            // The head could not be written, which was told then.
            None => Ok(()),
        }
    }

    /// Whether a row could not be written.
    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Ends the table; returns its rows.
    pub(super) fn finish(self) -> Result<Vec<Row>, CliError> {
        drop(self.bar);
        match (self.failed, self.writer) {
            (Some(error), _) => return Err(write_error(error)),
            (None, Some(writer)) => writer.finish().map_err(write_error)?,
            (None, None) => {}
        }
        Ok(self.rows)
    }
}
