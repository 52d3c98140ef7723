//! `glimt report`: all that a machine can tell of glimt on it, in one text file.

mod device;
mod expected;
mod machine;
mod made;
mod measured;
mod part;
mod private;
mod subject;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::args::{CacheArgs, CheckedArgs, GpuMemoryArgs, MeasuredArgs};
use super::error::CliError;
use super::output::{self, clean, note};
use super::picture::Picture;
use crate::engine::{DeviceChoice, Tier};
use crate::plural::count;
use crate::tokenizer::strftime_now;
use part::Part;
use private::Private;
use subject::Subject;

const EXAMPLES: &str = "\
Examples:
  glimt report
  glimt report --synthetic glm-4.7-flash:q4_0 glm.txt
  glimt report --device 1 --tier subgroup
  glimt report - --only device --only verify

The file is made to be attached to an issue. It tells the machine, its devices with their limits and features, whether the device \
computes what it should, how fast it is in each tier that it runs, where the time goes, and what was expected of such a device. Each \
part begins with the command line that repeats it alone. A part that fails is told, and the others follow. The exit code is 0 if all \
parts ran and all comparisons passed.

The file names no users and hosts, and no folders. It has the name of the model and of its file.

On a GPU that hangs or takes the process down, - shows the parts before that on standard output.";

/// Write what this machine tells into one file, to attach to an issue
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Report {
    /// The file to write, or - for standard output
    #[arg(value_name = "FILE", default_value = "glimt-report.txt")]
    file: PathBuf,
    #[command(flatten)]
    model: MeasuredArgs,
    /// The device to report on: auto (the first GPU that glimt devices lists, or the CPU reference where there is none), cpu, or the index
    /// or part of the name of an adapter
    #[arg(
        long,
        value_name = "DEVICE",
        env = "GLIMT_DEVICE",
        default_value = "auto"
    )]
    device: DeviceChoice,
    /// Which tier, plain, subgroup or int8; may be repeated [default: all that the device runs]
    #[arg(long, value_name = "TIER")]
    tier: Vec<Tier>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    memory: GpuMemoryArgs,
    #[command(flatten)]
    checked: CheckedArgs,
    /// Only this part; may be repeated [default: all]
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
}

impl Report {
    pub(super) fn run(&self) -> Result<(), CliError> {
        // A name that cannot be written costs nothing.
        let file = match self.file == Path::new("-") {
            true => None,
            false => Some(Picture::begin(&self.file)?),
        };
        let subject = Subject {
            checked: self.checked.checked,
            cache: self.cache.cache_type,
            max_memory: self.memory.most,
            ..Subject::of(&self.model, &self.device, &self.tier)?
        };
        let private = Private::of(&subject.source);
        let all = Part::value_variants().iter().copied();
        let parts: Vec<_> = all
            .filter(|part| self.only.is_empty() || self.only.contains(part))
            .collect();
        let failed = write(file, &subject, &private, &parts)?;
        match failed.is_empty() {
            true => Ok(()),
            false => Err(CliError::Unreported {
                failed,
                all: count(parts.len(), "part").to_string(),
            }),
        }
    }
}

/// Writes the parts into `file`, or to standard output; returns the names of those that failed.
fn write(
    mut file: Option<Picture>,
    subject: &Subject,
    private: &Private,
    parts: &[Part],
) -> Result<Vec<&'static str>, CliError> {
    let now = strftime_now("%Y-%m-%dT%H:%M:%SZ").unwrap_or_default();
    let mut add = |text: &str| match &mut file {
        None => output::page(text),
        Some(file) => file.add(&clean(text)),
    };
    add(&format!("glimt report, {now}\n"))?;
    let mut generated = vec![];
    let mut failed = vec![];
    for (i, part) in parts.iter().enumerate() {
        let began = Instant::now();
        note(format_args!(
            "part {} of {}: {}",
            i + 1,
            parts.len(),
            part.name()
        ));
        let made = part.make(subject, &mut generated);
        let took = began.elapsed().as_secs_f64();
        if !made.failures.is_empty() {
            failed.push(part.name());
        }
        for failure in &made.failures {
            note(format_args!("{} failed: {failure}", part.name()));
        }
        let text = made.page(&part.heading(), &part.command(subject), took);
        add(&private.hide(&text))?;
    }
    let verdict = verdict(&failed, parts.len());
    match file {
        None => output::page(&verdict)?,
        Some(file) => file.finish(&clean(&verdict), "report")?,
    }
    Ok(failed)
}

/// The last section.
fn verdict(failed: &[&str], all: usize) -> String {
    let all = count(all, "part");
    let verdict = match failed.len() {
        0 => format!("{all} ran, none failed."),
        some => format!("{some} of {all} failed: {}.", failed.join(", ")),
    };
    format!("\n## verdict\n\n{verdict}\n")
}
