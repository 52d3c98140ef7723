//! `glimt verify`: whether a device computes what it should.

use std::io::{self, IsTerminal};
use std::time::Instant;

use clap::Args;

use super::args::{CacheArgs, CheckedArgs, GpuMemoryArgs};
use super::error::CliError;
use super::output::{self, note};
use super::run;
use crate::engine::{DeviceChoice, Tier};
use crate::gpu::GpuOptions;
use crate::gpu::wait::Wait;
use crate::pictures::terminal;
use crate::plural::count;
use crate::verify::{Found, Row, verify};

const EXAMPLES: &str = "\
Examples:
  glimt verify
  glimt verify --device 1 --tier subgroup
  glimt verify --device cpu
  glimt verify --seed 7
  glimt verify --cache-type q8_0
  glimt verify --json > verify.json

In each tier that the device runs, every kernel is compared with its twin on the CPU, for random inputs. Then the built-in model and small synthetic ones of every family are computed on the device, token by token, a few tokens at once, and \
all at once. Of one of them the experts lie in the machine's memory, too, with slots on the GPU for half of them, and with \
--gpu-memory those of all for which it is too little. Their logits are compared with those of the CPU reference, and those of the \
built-in model with golden values of llama.cpp, too. The error of a kernel is the NMSE of what it wrote, that of a model is the NMSE of the median position; the worst position may differ by \
more where two experts are as good as equal. Kernels of the cache are compared with both of its types, and models have that of \
--cache-type; the golden values are those of f16. The exit code is 1 if a comparison fails.";

/// Compare what a device computes with the CPU: every kernel, and whole models
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Verify {
    /// The device to verify: auto (the first GPU that glimt devices lists, or the CPU reference where there is none), cpu, or the index or
    /// part of the name of an adapter
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
    /// The seed of the kernels' random inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let began = Instant::now();
        // A device that leaves something unused for models as small as these would say so for each of them.
        if std::env::var_os("RUST_LOG").is_none() {
            log::set_max_level(log::LevelFilter::Error);
        }
        let options = self.options();
        if options.is_none() && !self.tier.is_empty() {
            return Err(CliError::TierOfCpu);
        }
        let tiers = match self.tier.is_empty() {
            true => &Tier::ALL[..],
            false => &self.tier,
        };
        let narrow =
            io::stdout().is_terminal() && terminal::columns().is_none_or(|columns| columns < 104);
        let widths = if narrow { NARROW } else { WIDE };
        let mut written = Ok(());
        if !self.json {
            output::print(&head(widths))?;
        }
        let mut on_row = |row: Row<'_>| {
            if !self.json {
                written = output::print(&line(&row, widths));
            }
            run::flow(written.is_ok())
        };
        let asked = (self.seed, self.cache.cache_type);
        let found = verify(options.as_ref(), tiers, asked, &mut on_row)?;
        written?;
        if self.json {
            output::json(&found)?;
        }
        for line in left_out(&found) {
            note(format_args!("{line}"));
        }
        let verdict = verdict(&found)?;
        if !self.json {
            output::print(&verdict)?;
        }
        let (seed, took) = (self.seed, began.elapsed().as_secs_f64());
        note(format_args!("seed {seed}, it took {took:.0} s"));
        Ok(())
    }

    /// How to open the GPU; `None` for the CPU reference alone.
    fn options(&self) -> Option<GpuOptions> {
        let is_gpu = match &self.device {
            DeviceChoice::Cpu => false,
            DeviceChoice::Auto => !crate::gpu::adapters().wait().is_empty(),
            DeviceChoice::Index(_) | DeviceChoice::Name(_) => true,
        };
        is_gpu.then(|| GpuOptions {
            device: self.device.clone(),
            max_memory: self.memory.most,
            checked: self.checked.checked,
            ..GpuOptions::default()
        })
    }
}

/// The tiers and models that were left out, each with the reason.
pub(super) fn left_out(found: &Found) -> impl Iterator<Item = String> {
    let tiers = found.lacking.iter().map(|lacking| {
        let (tier, missing) = (lacking.tier, &lacking.missing);
        format!("tier {tier} was left out: the device lacks {missing}")
    });
    let models = found.without.iter().map(|without| {
        let (model, reason) = (&without.model, &without.reason);
        format!("{model} was left out: {reason}")
    });
    tiers.chain(models)
}

/// The line that says that all has passed.
///
/// # Errors
/// [`CliError::Unverified`].
pub(super) fn verdict(found: &Found) -> Result<String, CliError> {
    let device = found.device.as_deref().unwrap_or("the CPU reference");
    let (failed, all) = (found.failed(), found.all());
    let all = count(all, "comparison");
    if failed == 0 {
        let cache = found.cache_type;
        return Ok(format!(
            "{device}: {all} passed; models had a cache in {cache}\n"
        ));
    }
    let wrong: Vec<_> = found.wrong_kernels().into_iter().collect();
    Err(CliError::Unverified {
        device: device.to_owned(),
        failed,
        all: all.to_string(),
        kernels: match wrong.is_empty() {
            true => String::new(),
            false => format!(", with wrong kernels: {}", wrong.join(", ")),
        },
    })
}

/// Columns of the tier, the kernel, the case, the error and the limit.
pub(super) type Widths = [usize; 5];
pub(super) const WIDE: Widths = [9, 26, 42, 8, 9];
/// The widths of a table of 80 columns, with the verdict.
const NARROW: Widths = [9, 22, 23, 8, 9];

/// The head of the table, above the cells of [`row`].
pub(super) fn head([tier, what, how, error, limit]: Widths) -> String {
    let names = ["tier", "kernel or model", "case", "error", "limit"];
    format!(
        "{:<tier$}{:<what$}{:<how$}{:>error$}{:>limit$}  verdict\n",
        names[0], names[1], names[2], names[3], names[4]
    )
}

/// A line of the table. A comparison that failed is told in full, whatever room there is.
fn row(texts: [&str; 3], nmse: Option<f64>, limit: f64, verdict: &str, widths: Widths) -> String {
    let whole = verdict != PASSED;
    let [tier, what, how] = [0, 1, 2].map(|i| {
        let (text, width) = (texts[i], widths[i]);
        match text.chars().count() < width || whole {
            true => format!("{text:<0$} ", width - 1),
            false => text.chars().take(width - 2).collect::<String>() + "… ",
        }
    });
    let [error, limit] = [(nmse, widths[3]), (Some(limit), widths[4])]
        .map(|(value, width)| format!("{:>width$}", number(value)));
    format!("{tier}{what}{how}{error}{limit}  {verdict}\n")
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => format!("{value:.1e}"),
    }
}

/// The line of a comparison.
pub(super) fn line(of: &Row<'_>, widths: Widths) -> String {
    match of {
        Row::Kernel(check) => {
            let what = [check.tier, &check.kernel, &check.case];
            let verdict = outcome(check.passed(), check.error.as_deref(), "");
            row(what, check.nmse, check.limit, &verdict, widths)
        }
        Row::Model(check) => {
            let slots = check.expert_slots.map(|slots| format!(", {slots} slots"));
            let how = [check.way, ", ", check.against, &slots.unwrap_or_default()].concat();
            let what = [check.tier.unwrap_or("CPU"), &check.model, &how];
            let worst = format!(", worst position {}", number(check.worst));
            let verdict = outcome(check.passed(), check.error.as_deref(), &worst);
            row(what, check.nmse, check.limit, &verdict, widths)
        }
    }
}

/// The verdict on a comparison that agrees.
const PASSED: &str = "passed";

/// The verdict on a comparison. One that failed ends with the device's `error`, or else with `worst`.
fn outcome(passed: bool, error: Option<&str>, worst: &str) -> String {
    match error {
        Some(error) => format!("FAILED: {error}"),
        None if passed => PASSED.to_owned(),
        None => format!("FAILED{worst}"),
    }
}
