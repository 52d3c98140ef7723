//! `glimt tune`: measures which form of each kernel is fastest on a device, and keeps it.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::args::{CacheArgs, DeviceArgs, MeasuredArgs};
use super::error::CliError;
use super::load;
use super::output::{self, note};
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuOptions, tuning};
use crate::plural::count;
use crate::tune::{self, Event, TuneOptions};

const EXAMPLES: &str = "\
Examples:
  glimt tune --synthetic glm-4.7-flash:q4_0
  glimt tune --tier int8 -m GLM-4.7-Flash-Q4_K_M.gguf
  glimt tune --forget

How a product divides its rows among threads is data with a default by shape. This command times every division that \
the device allows as part of whole decoded tokens, and keeps those that are faster than the default in the cache \
folder, by adapter, driver and version of glimt. All commands use them from then on. Choices go by shape and type, so \
one model of each kind is enough; choices of other models are kept. Runs with a cache of either type use them, whichever \
--cache-type they were measured with.";

/// Measure which form of each kernel is fastest on this device, and keep it
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Tune {
    #[command(flatten)]
    model: MeasuredArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Measure for at most so many seconds; products whose turn has not come keep their default
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    seconds: u16,
    /// Print what is found, but do not keep it
    #[arg(long)]
    dry_run: bool,
    /// Delete what was kept for the device, and measure nothing
    #[arg(long, conflicts_with_all = ["dry_run", "seconds"])]
    forget: bool,
    /// Format of the result on standard output
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table in Markdown.
    Md,
    /// One JSON object.
    Json,
}

/// Whether choices can be kept. If not, that is said before anything is measured.
fn can_keep() -> bool {
    let checked = tuning::check_folder();
    if let Err(error) = &checked {
        note(format_args!("what is found will not be kept: {error}"));
    }
    checked.is_ok()
}

impl Tune {
    pub(super) fn run(&self) -> Result<(), CliError> {
        if self.forget {
            return self.forget();
        }
        let options = TuneOptions {
            source: self.model.source()?,
            gpu: self.device.options(),
            cache_type: self.cache.cache_type,
            force: self.model.force,
            time: Duration::from_secs(u64::from(self.seconds)),
        };
        let keeps = !self.dry_run && can_keep();
        let bar = load::progress_bar("loading");
        let tuned = tune::run(&options, &mut |event| {
            match event {
                Event::Partly(found) => load::partly(found),
                Event::Loading(done, total) => load::told(&bar)(done, total),
                Event::Loaded(trial) => {
                    bar.end();
                    if let Some(trial) = trial {
                        note(format_args!("{trial}"));
                    }
                }
                Event::Measuring(i, n, site, candidates) => note(format_args!(
                    "{} of {n}: {}, {}",
                    i + 1,
                    site.key(),
                    count(candidates, "candidate")
                )),
            }
            // Ctrl-C ends the process at once, and nothing is kept.
            ControlFlow::Continue(())
        });
        bar.end();
        let tuned = tuned?;
        if tuned.faster && keeps {
            // The choices for other models stay.
            let (mut all, _) = tuning::load(&tuned.adapter)?.unwrap_or_default();
            for one in &tuned.found {
                all.geometries.remove(&one.site);
                if one.chosen != one.default {
                    all.geometries.insert(one.site.clone(), one.chosen);
                }
            }
            all.merge_up_to.extend(tuned.made.merge_up_to.clone());
            for n in &tuned.numbers {
                all.numbers.remove(&n.name);
            }
            all.numbers.extend(tuned.made.numbers.clone());
            all.repeats_work.extend(tuned.made.repeats_work.clone());
            let path = tuning::save(&tuned.adapter, &all)?;
            note(format_args!("kept in {}", path.display()));
        }
        match self.output {
            Format::Md => output::page(&tune::markdown(&tuned)),
            Format::Json => output::json(&tuned),
        }
    }

    fn forget(&self) -> Result<(), CliError> {
        let gpu = Gpu::open(&GpuOptions {
            device: self.device.options().device,
            ..GpuOptions::default()
        })
        .wait()
        .map_err(tune::TuneError::from)?;
        let deleted = tuning::forget(&gpu.info)?;
        for path in &deleted {
            note(format_args!("deleted {}", path.display()));
        }
        if deleted.is_empty() {
            note(format_args!("nothing was kept for {}", gpu.info.name));
        }
        Ok(())
    }
}
