//! Flags that several commands share, each defined once.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::error::CliError;
use super::lookup;
use super::size::size;
use crate::bench::Source;
use crate::engine::draft::DraftOptions;
use crate::engine::{
    CpuShare, DeviceChoice, GpuOptions, ModelSource, PrecomposeChoice, Products, Tier,
};
use crate::gpu::behind::ExpertsFrom;
use crate::kernels::CacheType;
use crate::recipes::MAX_CHUNK;

/// Under what the help lists flags of sampling, and those of devices and memory.
pub(super) const SAMPLING: &str = "Sampling";
pub(super) const DEVICE: &str = "Device";

/// Which model.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// The model: a GGUF file, or a name [default: the built-in story teller]
    ///
    /// A split model is named by its first shard. `glimt list` and `glimt pull --help` show names.
    #[arg(short, long, value_name = "MODEL", env = "GLIMT_MODEL")]
    model: Option<PathBuf>,
    /// The source that was found: a name is looked up once.
    #[arg(skip)]
    found: OnceLock<ModelSource>,
}

impl ModelArgs {
    /// The file that is named or that a name means, or the model compiled into the program.
    pub(super) fn source(&self) -> Result<ModelSource, CliError> {
        let Some(model) = &self.model else {
            return Ok(ModelSource::Embedded);
        };
        if let Some(found) = self.found.get() {
            return Ok(found.clone());
        }
        let found = lookup::source(model)?;
        Ok(self.found.get_or_init(|| found).clone())
    }

    /// The name that was given, or of a file its name without the folder.
    fn shown(&self) -> Option<String> {
        let model = self.model.as_ref()?;
        let is_file = self.found.get() == Some(&ModelSource::File(model.clone()));
        let name = model.file_name().filter(|_| is_file);
        let shown = name.unwrap_or(model.as_os_str());
        Some(shown.to_string_lossy().into_owned())
    }
}

/// Which model to measure.
#[derive(Args)]
pub(super) struct MeasuredArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Measure random weights of real shapes instead of a file, such as glm-4.7-flash:q4_0
    ///
    /// They are made on the device, by a model and a recipe of glimt synth.
    #[arg(long, value_name = "MODEL:RECIPE", conflicts_with = "model")]
    synthetic: Option<Source>,
    /// Load the model even if it and the context need more memory than there is
    #[arg(long, hide_short_help = true, help_heading = DEVICE)]
    pub(super) force: bool,
}

impl MeasuredArgs {
    /// The source that the flags name.
    pub(super) fn source(&self) -> Result<Source, CliError> {
        match &self.synthetic {
            Some(synthetic) => Ok(synthetic.clone()),
            None => Ok(Source::Model(self.model.source()?)),
        }
    }

    /// The words of a command line that mean the same, without the folder of a file. [`source`](Self::source) goes before.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = match (&self.synthetic, self.model.shown()) {
            (Some(synthetic), _) => vec!["--synthetic".to_owned(), synthetic.name()],
            (None, Some(model)) => vec!["-m".to_owned(), model],
            (None, None) => vec![],
        };
        if self.force {
            words.push("--force".to_owned());
        }
        words
    }
}

/// The flag that limits the memory of a GPU.
#[derive(Args)]
pub(super) struct GpuMemoryArgs {
    /// Take at most so much of the GPU's memory for weights, cache and scratch, such as 8G or 10.5GiB [default: what is free]
    ///
    /// Experts that have no room there lie in the machine's memory, and the GPU reads them over the bus, or they stay in the file (see
    /// --experts). M, MiB, G and GiB are powers of
    /// 1024, MB and GB of 1000.
    #[arg(long = "gpu-memory", value_name = "SIZE", value_parser = size, hide_short_help = true, help_heading = DEVICE)]
    pub(super) most: Option<u64>,
    /// Where experts come from that have no room on the GPU: host (the machine's memory, over the bus), file (the model's file, by reads of
    /// missing experts), or auto (host where it has room for them, else file)
    #[arg(long, value_name = "FROM", value_parser = experts(), default_value = ExpertsFrom::Auto.name(), hide_short_help = true, help_heading = DEVICE)]
    pub(super) experts: ExpertsFrom,
}

/// A parser of the places that experts come from.
fn experts() -> impl TypedValueParser<Value = ExpertsFrom> {
    PossibleValuesParser::new(ExpertsFrom::ALL.map(ExpertsFrom::name)).map(|word| {
        let named = ExpertsFrom::ALL
            .into_iter()
            .find(|from| from.name() == word);
        named.unwrap_or_default()
    })
}

/// Which device, and how to use it.
#[derive(Args)]
pub(super) struct DeviceArgs {
    /// Where to run: auto, cpu, or a GPU's index or name
    ///
    /// `glimt devices` lists them, and a part of a name is enough.
    /// auto is the best GPU, or the CPU where there is none but software. cpu is the reference implementation.
    #[arg(
        long,
        value_name = "DEVICE",
        env = "GLIMT_DEVICE",
        default_value = "auto", help_heading = DEVICE)]
    device: DeviceChoice,
    /// Layers on the GPU, as llama.cpp has it: 0 is --device cpu, all or 99 and more is the GPU; a model is never divided
    #[arg(long, value_name = "N", value_parser = gpu_layers, conflicts_with = "device", hide_short_help = true, allow_negative_numbers = true, help_heading = DEVICE)]
    gpu_layers: Option<bool>,
    /// Force a tier of GPU kernels: plain, subgroup or int8 (activations rounded to bytes) [default: subgroup where the
    /// adapter runs it, or int8 where that is measured to be at least 1% faster]
    #[arg(long, value_name = "TIER", hide_short_help = true)]
    tier: Option<Tier>,
    #[command(flatten)]
    pub(super) memory: GpuMemoryArgs,
    #[command(flatten)]
    kernels: KernelArgs,
}

impl DeviceArgs {
    /// How the CPU multiplies.
    pub(super) fn cpu_products(&self) -> Products {
        self.kernels.cpu_products()
    }

    /// Whether the device was named by `--gpu-layers`, beside which there can be no `--device`.
    pub(super) fn is_by_layers(&self) -> bool {
        self.gpu_layers.is_some()
    }

    pub(super) fn options(&self) -> GpuOptions {
        GpuOptions {
            device: match self.gpu_layers {
                Some(false) => DeviceChoice::Cpu,
                Some(true) | None => self.device.clone(),
            },
            tier: self.tier,
            max_memory: self.memory.most,
            experts: self.memory.experts,
            ..self.kernels.options()
        }
    }
}

/// A parser of the values `on` and `off`.
pub(super) fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

/// Reads the value of `--gpu-layers`: whether the layers are on the GPU. They are never divided.
pub(super) fn gpu_layers(text: &str) -> Result<bool, String> {
    match (text, text.parse::<i64>()) {
        ("all" | "auto" | "-1", _) | (_, Ok(99..)) => Ok(true),
        (_, Ok(0)) => Ok(false),
        _ => Err(
            "glimt runs all layers in one place: 0 is the CPU, all or 99 and more is the GPU"
                .to_owned(),
        ),
    }
}

/// Where and how to run.
#[derive(Args)]
pub(super) struct EngineArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) precompose: PrecomposeArgs,
}

impl EngineArgs {
    /// How the CPU multiplies.
    pub(super) fn cpu_products(&self) -> Products {
        self.device.cpu_products()
    }

    /// These with exact products on the CPU, unless others are asked for.
    pub(super) fn be_exact(&mut self) {
        self.device.kernels.exact = true;
    }

    /// Whether `--cpu-products` was given.
    pub(super) fn asks_for_products(&self) -> bool {
        self.device.kernels.asks_for_products()
    }

    /// A flag that only kernels of a GPU can follow, if one was given.
    pub(super) fn asks_for_gpu(&self) -> Option<String> {
        let kernels = &self.device.kernels;
        kernels.asks_for_gpu(self.device.tier, &self.precompose)
    }
}

/// Which of several kernels.
#[derive(Args)]
pub(super) struct KernelArgs {
    /// Do without cooperative matrices, on GPUs that have them: to compare, or where a driver's are wrong
    #[arg(long, hide_short_help = true, help_heading = DEVICE)]
    no_matrices: bool,
    /// Generate for GPUs where every dispatch waits for the one before it: fewer dispatches, with work that could stand side by
    /// side in one grid [default: on by Metal, else off]
    #[arg(long, value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true, hide_short_help = true, help_heading = DEVICE)]
    serial_passes: Option<bool>,
    /// In tier subgroup, multiply activations in pairs of f16 (on), or each widened to f32 (off), which is more exact [default: on
    /// for GPUs of NVIDIA, AMD and Apple, else off]
    #[arg(long, value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true, hide_short_help = true, help_heading = DEVICE)]
    packed_halves: Option<bool>,
    /// How the CPU multiplies: exact (f32, the reference of the tests and of verify) or quick (activations rounded to bytes) [default:
    /// quick where the processor has AVX2 or NEON, else exact; of logits: exact]
    #[arg(long, value_name = "PRODUCTS", hide_short_help = true, help_heading = DEVICE)]
    cpu_products: Option<Products>,
    /// Whether products are exact where nothing is asked for.
    #[arg(skip)]
    exact: bool,
    #[command(flatten)]
    checked: CheckedArgs,
}

/// Whether kernels are checked while they run.
#[derive(Args)]
pub(super) struct CheckedArgs {
    /// Have the driver and the shaders check each access to memory, which is slower: to tell a wrong kernel from a wrong device, for a
    /// report
    #[arg(long, hide_short_help = true, help_heading = DEVICE)]
    pub(super) checked: bool,
}

impl KernelArgs {
    /// How the CPU multiplies.
    pub(super) fn cpu_products(&self) -> Products {
        let usual = match self.exact {
            true => Products::Exact,
            false => Products::default(),
        };
        self.cpu_products.unwrap_or(usual)
    }

    /// Whether `--cpu-products` was given.
    pub(super) fn asks_for_products(&self) -> bool {
        self.cpu_products.is_some()
    }

    /// The first of these flags that was given, of which only kernels of a GPU can follow any.
    pub(super) fn asks_for_gpu(
        &self,
        tier: Option<Tier>,
        precompose: &PrecomposeArgs,
    ) -> Option<String> {
        let flags = [
            (self.no_matrices, "--no-matrices"),
            (self.serial_passes.is_some(), "--serial-passes"),
            (self.packed_halves.is_some(), "--packed-halves"),
            (precompose.choice.is_some(), "--precompose"),
        ];
        let tier = tier.map(|tier| format!("--tier {tier}"));
        let flag = flags.into_iter().find(|(given, _)| *given);
        tier.or_else(|| flag.map(|(_, flag)| flag.to_owned()))
    }

    pub(super) fn options(&self) -> GpuOptions {
        GpuOptions {
            no_matrices: self.no_matrices,
            serial_passes: self.serial_passes,
            packed_halves: self.packed_halves,
            checked: self.checked.checked,
            ..GpuOptions::default()
        }
    }
}

/// The weights to multiply at load.
#[derive(Args)]
pub(super) struct PrecomposeArgs {
    /// Multiply weights that follow one another at load, for fewer but larger steps while generating: qk (query
    /// projection and attn_k_b), vo (attn_v_b and attn_output), both, off, or auto (measure and keep the fastest); prompts
    /// never use them [default: off]
    #[arg(long = "precompose", value_name = "WHICH", hide_short_help = true, help_heading = DEVICE)]
    pub(super) choice: Option<PrecomposeChoice>,
}

/// The type of the cache, for commands that measure or compare.
#[derive(Args, Clone)]
pub(super) struct CacheArgs {
    /// Have the cache in f16, or in q8_0: codes of 8 bits with scales, so that 1.7 to 1.9 times the context has room in the same memory
    #[arg(long, value_name = "f16|q8_0", default_value_t, hide_short_help = true, help_heading = DEVICE)]
    pub(super) cache_type: CacheType,
}

/// How much context.
#[derive(Args, Clone)]
pub(super) struct ContextArgs {
    /// Context in tokens; 0 is all that the model has [default: the model's, at most 4096]
    ///
    /// For an answer of a model that thinks the default is 32768 as far as memory allows, for one of the built-in model 1024.
    #[arg(short = 'c', long, alias = "ctx-size", value_name = "N")]
    pub(super) ctx: Option<usize>,
    /// Tokens of a prompt that the GPU computes at once, at most; more take more memory [default: 2048, on software 512, or
    /// what its bindings have room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHUNK)), hide_short_help = true, help_heading = DEVICE)]
    pub(super) ubatch: Option<u32>,
    /// Have the cache in f16, or in q8_0: codes of 8 bits with scales, so that 1.7 to 1.9 times the context has room in the same memory [default: f16, or
    /// q8_0 where the model has no room with f16, or experts lie outside of the GPU's memory with f16 and none with q8_0]
    #[arg(long, value_name = "f16|q8_0", hide_short_help = true, help_heading = DEVICE)]
    pub(super) cache_type: Option<CacheType>,
    /// Load the model even if it and the context need more memory than there is
    #[arg(long, hide_short_help = true, help_heading = DEVICE)]
    pub(super) force: bool,
    /// Whether the answer may begin with thoughts.
    #[arg(skip)]
    pub(super) may_think: bool,
    /// Whether marks are also read in what users and tools say.
    #[arg(skip)]
    pub(super) parse_special: bool,
    /// The CPU's share of missing experts.
    #[arg(skip)]
    pub(super) cpu_share: CpuShare,
    /// The drafts of answers, and the file of the layer that makes them, if it is not the model's.
    #[arg(skip = DraftOptions::OFF)]
    pub(super) draft: DraftOptions,
    #[arg(skip)]
    pub(super) draft_model: Option<ModelSource>,
}

/// The flag of the CPU's share of missing experts.
#[derive(Args)]
pub(super) struct ShareArgs {
    /// Have the CPU multiply some of the experts that a generated token misses on the GPU: auto (as many as is measured to be fastest, if
    /// that saves 5%), off, or how many of a layer if all are missing [default: auto]
    ///
    /// It matters only where experts have no room on the GPU. Text is then not to the bit what it is with off.
    #[arg(long = "cpu-share", value_name = "auto|off|N", hide_short_help = true, help_heading = DEVICE)]
    asked: Option<CpuShare>,
}

impl ShareArgs {
    /// The share that is asked for.
    pub(super) fn asked(&self) -> CpuShare {
        self.asked.unwrap_or(CpuShare::Auto)
    }
}

impl ContextArgs {
    /// The context for answers of `source`, where nothing else is asked for: the built-in model was trained on 1024 tokens and rambles
    /// behind them, though its file says 2048.
    pub(super) fn for_answers(&self, source: &ModelSource, may_think: bool) -> Self {
        Self {
            ctx: self.ctx.or_else(|| source.is_built_in().then_some(1024)),
            may_think,
            ..self.clone()
        }
    }
}

/// How what users say is read.
#[derive(Args)]
pub(super) struct SaidArgs {
    /// Read marks such as <|user|> also in what users and tools say, as if the chat template wrote them; without this they are text
    #[arg(long, hide_short_help = true)]
    pub(super) parse_special: bool,
}
