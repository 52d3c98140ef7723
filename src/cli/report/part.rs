//! The parts of a report: what they are called, which command repeats each, and what makes it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::ValueEnum;

use super::made::{Findings, Made};
use super::subject::Subject;
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
    /// Whether it computes what it should.
    Verify,
    /// Its speed.
    Bench,
    /// Where the time of a token goes.
    Token,
    /// Where the time of a prompt goes.
    Prompt,
    /// What was expected.
    Expected,
}

impl Part {
    /// In the order of the report.
    pub(super) const ALL: [Self; 8] = [
        Self::Machine,
        Self::Devices,
        Self::Device,
        Self::Verify,
        Self::Bench,
        Self::Token,
        Self::Prompt,
        Self::Expected,
    ];

    /// What `--only` takes.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Devices => "devices",
            Self::Device => "device",
            Self::Verify => "verify",
            Self::Bench => "bench",
            Self::Token => "token",
            Self::Prompt => "prompt",
            Self::Expected => "expected",
        }
    }

    /// What it tells.
    const fn about(self) -> &'static str {
        match self {
            Self::Machine => "the program, the system and the processor",
            Self::Devices => "all adapters",
            Self::Device => "the device of this report, and its tiers",
            Self::Verify => "whether it computes what it should",
            Self::Bench => "its speed",
            Self::Token => "where the time of a token goes",
            Self::Prompt => "where the time of a prompt goes",
            Self::Expected => "what was expected of such a device",
        }
    }

    /// Its heading.
    pub(super) fn heading(self) -> String {
        format!("{}: {}", self.name(), self.about())
    }

    /// The command line that repeats it alone.
    pub(super) fn command(self, subject: &Subject) -> String {
        let sizes = &subject.sizes;
        let prompt = sizes.prompt.to_string();
        let repetitions = sizes.repetitions.to_string();
        match self {
            Self::Machine => subject.command(&["report", "-", "--only", self.name()], &[]),
            Self::Devices => subject.command(&["devices"], &[]),
            Self::Device => {
                let words = ["report", "-", "--only", self.name()];
                subject.command(&words, &[subject.device_words(), subject.asked_words()])
            }
            Self::Verify => {
                let flags = [subject.device_words(), subject.asked_words()];
                subject.command(&["verify"], &flags)
            }
            Self::Bench => {
                let generated = sizes.generated.to_string();
                let words = ["bench", "-p", &prompt, "-n", &generated, "-r", &repetitions];
                let tiers = subject.tier_words();
                subject.command(
                    &words,
                    &[subject.device_words(), tiers, subject.model_words()],
                )
            }
            Self::Token => {
                let words = ["profile", "-n", &sizes.profiled.to_string()];
                subject.command(&words, &subject.profile_words())
            }
            Self::Prompt => {
                let words = ["profile", "--prompt", &prompt, "-r", &repetitions];
                subject.command(&words, &subject.profile_words())
            }
            Self::Expected => {
                let words = ["report", "-", "--only", self.name()];
                let model = subject.model_words();
                subject.command(
                    &words,
                    &[subject.device_words(), subject.asked_words(), model],
                )
            }
        }
    }

    /// Makes it. What goes wrong, also in a driver that brings wgpu to panic, is a failure of this part alone.
    pub(super) fn make(self, subject: &Subject, findings: &mut Findings) -> Made {
        let mut made = Made::default();
        let make = AssertUnwindSafe(|| self.fill(subject, findings, &mut made));
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
        findings: &mut Findings,
        made: &mut Made,
    ) -> Result<(), CliError> {
        match self {
            Self::Machine => machine::tell(made),
            Self::Devices => device::list(made),
            Self::Device => device::tell(subject, made),
            Self::Verify => measured::verify(subject, made),
            Self::Bench => measured::bench(subject, findings, made),
            Self::Token => measured::token(subject, made),
            Self::Prompt => measured::prompt(subject, made),
            Self::Expected => expected::tell(subject, findings, made),
        }
    }
}

/// What a panic says.
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
        for part in Part::ALL {
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
