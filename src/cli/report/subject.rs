//! The device and the model of a report, and the words of a command line that name them.

use super::made::Made;
use crate::bench::Source;
use crate::cli::args::MeasuredArgs;
use crate::cli::error::CliError;
use crate::cli::output::note;
use crate::cli::size;
use crate::engine::{CacheType, DeviceChoice, EngineError, GpuOptions, Tier};
use crate::gpu::wait::Wait;
use crate::gpu::{self, AdapterSummary, Gpu, GpuError};

/// The amount that is measured.
pub(super) struct Sizes {
    /// Tokens of a prompt.
    pub(super) prompt: usize,
    /// Generated tokens.
    pub(super) generated: usize,
    /// Repetitions.
    pub(super) repetitions: usize,
    /// Tokens of a profile.
    pub(super) profiled: usize,
}

impl Sizes {
    /// The sizes for a GPU.
    const HARDWARE: Self = Self {
        prompt: 512,
        generated: 128,
        repetitions: 3,
        profiled: 10,
    };
    /// The sizes for a CPU, which may play a GPU.
    const CPU: Self = Self {
        prompt: 64,
        generated: 16,
        repetitions: 1,
        profiled: 2,
    };
}

/// The device and the model of a report.
pub(super) struct Subject {
    /// The adapter; `None` is the CPU reference.
    pub(super) adapter: Option<Box<AdapterSummary>>,
    /// The choice that names the device.
    pub(super) choice: DeviceChoice,
    /// The tiers that are reported on: all that the device runs, or what was asked for.
    pub(super) tiers: Vec<Tier>,
    /// The tiers that the device does not run, with what it lacks, where none was asked for.
    pub(super) lacking: Vec<(Tier, String)>,
    /// The tiers that were asked for.
    pub(super) asked: Vec<Tier>,
    /// The model.
    pub(super) source: Source,
    /// Whether the model is loaded even if it has no room.
    pub(super) force: bool,
    /// Whether kernels are checked while they run.
    pub(super) checked: bool,
    /// The type of the cache.
    pub(super) cache: CacheType,
    /// The most that is taken of the GPU's memory.
    pub(super) max_memory: Option<u64>,
    /// The flags that name it.
    pub(super) model: Vec<String>,
    /// The amount that is measured.
    pub(super) sizes: Sizes,
}

impl Subject {
    /// The device and the model that the flags name.
    ///
    /// # Errors
    /// A model or a device that is not there, and a tier that the device does not run.
    pub(super) fn of(
        model: &MeasuredArgs,
        device: &DeviceChoice,
        asked: &[Tier],
    ) -> Result<Self, CliError> {
        let source = model.source()?;
        let choice = match device {
            DeviceChoice::Auto if gpu::adapters().wait().is_empty() => {
                note(format_args!("{}", GpuError::NoAdapter.of_gpus_alone()));
                DeviceChoice::Cpu
            }
            DeviceChoice::Auto => DeviceChoice::Index(0),
            other => other.clone(),
        };
        let adapter = match &choice {
            DeviceChoice::Cpu if !asked.is_empty() => return Err(CliError::TierOfCpu),
            DeviceChoice::Cpu => None,
            gpu => Some(Box::new(
                gpu::chosen(gpu, false).wait().map_err(EngineError::from)?,
            )),
        };
        let mut subject = Self {
            sizes: match &adapter {
                Some(adapter) if adapter.kind != "software" => Sizes::HARDWARE,
                _ => Sizes::CPU,
            },
            adapter,
            choice,
            tiers: vec![],
            lacking: vec![],
            asked: asked.to_vec(),
            source,
            force: model.force,
            checked: false,
            cache: CacheType::default(),
            max_memory: None,
            model: model.words(),
        };
        subject.find_tiers().map_err(EngineError::from)?;
        Ok(subject)
    }

    fn find_tiers(&mut self) -> Result<(), GpuError> {
        let Some(adapter) = &self.adapter else {
            return Ok(());
        };
        let wanted = match self.asked.as_slice() {
            [] => &Tier::ALL,
            asked => asked,
        };
        for tier in wanted {
            let missing = gpu::lacks(&self.choice, *tier).wait()?;
            match (missing.is_empty(), self.asked.is_empty()) {
                (true, _) => self.tiers.push(*tier),
                (false, true) => self.lacking.push((*tier, missing)),
                (false, false) => {
                    return Err(GpuError::TierUnsupported {
                        tier: tier.name(),
                        adapter: adapter.name.clone(),
                        missing,
                        remedy: gpu::ANOTHER_TIER,
                    });
                }
            }
        }
        Ok(())
    }

    /// How to open the device in `tier`, or in that which suits it.
    pub(super) fn options(&self, tier: Option<Tier>) -> GpuOptions {
        GpuOptions {
            device: self.choice.clone(),
            tier,
            checked: self.checked,
            max_memory: self.max_memory,
            ..GpuOptions::default()
        }
    }

    /// Opens the device in `tier`, as for a model. If that fails, `made` gets the failure.
    pub(super) fn open(&self, tier: Tier, made: &mut Made) -> Option<Gpu> {
        let opened = Gpu::open(&GpuOptions {
            tuned: true,
            ..self.options(Some(tier))
        })
        .wait();
        let failed = |error| made.failures.push(format!("tier {tier}: {error}"));
        opened.map_err(failed).ok()
    }

    /// The flags of a cache of another type than the usual one.
    pub(super) fn cache_words(&self) -> Vec<String> {
        match self.cache == CacheType::default() {
            true => vec![],
            false => vec!["--cache-type".to_owned(), self.cache.name().to_owned()],
        }
    }

    /// The flags that name the device.
    pub(super) fn device_words(&self) -> Vec<String> {
        let device = match &self.choice {
            DeviceChoice::Auto => "auto".to_owned(),
            DeviceChoice::Cpu => "cpu".to_owned(),
            DeviceChoice::Index(index) => index.to_string(),
            DeviceChoice::Name(name) => name.clone(),
        };
        let checked = self.checked.then(|| "--checked".to_owned());
        let memory = self.max_memory.into_iter();
        let memory = memory.flat_map(|most| ["--gpu-memory".to_owned(), size::written(most)]);
        ["--device".to_owned(), device]
            .into_iter()
            .chain(checked)
            .chain(memory)
            .collect()
    }
}

/// The flags that name these tiers.
pub(super) fn tier_words(tiers: &[Tier]) -> Vec<String> {
    let flags = tiers.iter().flat_map(|tier| ["--tier", tier.name()]);
    flags.map(str::to_owned).collect()
}

/// The command line of these words, and of flags that may need quotes.
pub(super) fn command(words: &str, flags: &[Vec<String>]) -> String {
    let flags = flags.iter().flatten().map(|flag| quoted(flag));
    let all = [format!("glimt {words}")].into_iter().chain(flags);
    all.collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.,:/=+@".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        for (word, expected) in [
            ("glm-4.7-flash:q4_0", "glm-4.7-flash:q4_0"),
            ("Apple M1", "'Apple M1'"),
            ("9070 (dx12)", "'9070 (dx12)'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn tiers_are_flags() {
        let flags = tier_words(&[Tier::Plain, Tier::Int8]);
        assert_eq!(flags, ["--tier", "plain", "--tier", "int8"]);
        assert!(tier_words(&[]).is_empty());
    }
}
