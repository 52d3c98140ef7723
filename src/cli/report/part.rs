//! The parts of a report: what they are called, which command repeats each, and what makes it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::ValueEnum;

use super::made::{Generated, Made};
use super::subject::{Sizes, Subject, command, tier_words};
use super::{device, expected, machine, measured};
use crate::cli::error::CliError;

/// A part of a report.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// The program, the system and the processor.
    Machine,
    /// All adapters.
    Devices,
    /// The device that is reported on, and its tiers.
    Device,
    /// The check that the device computes what it should.
    Verify,
    /// The speed of the device.
    Bench,
    /// The time of a token, divided among its parts.
    Token,
    /// The time of a prompt, divided among its parts.
    Prompt,
    /// The speed that was expected of the device.
    Expected,
}

impl Part {
    /// The name that `--only` takes, and what the part tells.
    const fn words(self) -> [&'static str; 2] {
        match self {
            Self::Machine => ["machine", "the program, the system and the processor"],
            Self::Devices => ["devices", "all adapters"],
            Self::Device => ["device", "the device of this report, and its tiers"],
            Self::Verify => ["verify", "whether it computes what it should"],
            Self::Bench => ["bench", "its speed"],
            Self::Token => ["token", "where the time of a token goes"],
            Self::Prompt => ["prompt", "where the time of a prompt goes"],
            Self::Expected => ["expected", "what was expected of such a device"],
        }
    }

    /// The name of the part for `--only`.
    pub(super) const fn name(self) -> &'static str {
        self.words()[0]
    }

    pub(super) fn heading(self) -> String {
        self.words().join(": ")
    }

    /// The command line that repeats it alone.
    pub(super) fn command(self, subject: &Subject) -> String {
        let Sizes {
            prompt,
            generated,
            repetitions,
            profiled,
        } = &subject.sizes;
        let first = &subject.asked[..subject.asked.len().min(1)];
        let [asked, all, first] = [&subject.asked, &subject.tiers, first].map(tier_words);
        let (device, model) = (subject.device_words(), subject.model.clone());
        let cache = subject.cache_words();
        let report = format!("report - --only {}", self.name());
        let bench = format!("bench -p {prompt} -n {generated} -r {repetitions}");
        let token = format!("profile -n {profiled}");
        let prompt = format!("profile --prompt {prompt} -r {repetitions}");
        match self {
            Self::Machine => command(&report, &[]),
            Self::Devices => command("devices", &[]),
            Self::Device => command(&report, &[device, asked]),
            Self::Verify => command("verify", &[device, asked, cache]),
            Self::Bench => command(&bench, &[device, all, cache, model]),
            Self::Token => command(&token, &[device, first, cache, model]),
            Self::Prompt => command(&prompt, &[device, first, cache, model]),
            Self::Expected => command(&report, &[device, asked, cache, model]),
        }
    }

    /// Makes it. What goes wrong, also in a driver that brings wgpu to panic, is a failure of this part alone.
    pub(super) fn make(self, subject: &Subject, generated: &mut Generated) -> Made {
        let mut made = Made::default();
        let make = AssertUnwindSafe(|| self.fill(subject, generated, &mut made));
        let result = catch_unwind(make);
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => made.failures.push(error.to_string()),
            Err(panic) => made
                .failures
                .push(format!("it panicked: {}", told(&*panic))),
        }
        made
    }

    fn fill(
        self,
        subject: &Subject,
        generated: &mut Generated,
        made: &mut Made,
    ) -> Result<(), CliError> {
        match self {
            Self::Machine => machine::tell(made),
            Self::Devices => device::list(made),
            Self::Device => device::tell(subject, made),
            Self::Verify => measured::verify(subject, made)?,
            Self::Bench => measured::bench(subject, generated, made)?,
            Self::Token => measured::token(subject, made)?,
            Self::Prompt => measured::prompt(subject, made)?,
            Self::Expected => expected::tell(subject, generated, made)?,
        }
        Ok(())
    }
}

/// The message of a panic.
fn told(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no reason was given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_names_that_only_takes() {
        for part in Part::value_variants() {
            let value = part.to_possible_value().expect("no part is hidden");
            assert_eq!(value.get_name(), part.name());
        }
    }

    #[test]
    fn a_panic_is_told_by_its_reason() {
        for (panic, expected) in [
            (catch_unwind(|| panic!("of {}", 1)), "of 1"),
            (catch_unwind(|| panic!("a plain one")), "a plain one"),
            (
                catch_unwind(|| std::panic::panic_any(1)),
                "no reason was given",
            ),
        ] {
            let panic = panic.expect_err("it panics");
            assert_eq!(told(&*panic), expected);
        }
    }
}
