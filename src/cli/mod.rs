//! The command line: one file per subcommand, and beside them what several share.
//!
//! Rules that hold for every command: standard output carries only the text or JSON that was asked for, everything
//! else goes to standard error; the exit code is 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C; a reader
//! that closes the pipe early (`| head`) is no failure.

mod args;
mod bench;
mod devices;
mod error;
mod generate;
mod grammar;
mod inspect;
mod interrupt;
mod load;
mod logits;
mod output;
mod perplexity;
mod profile;
mod report;
mod sampling;
mod sink;
mod stop;
mod synth;
mod tokenize;
mod tune;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::CliError;

const EXAMPLES: &str = "\
Examples:
  glimt generate \"Tell me a story about a fox and a crow.\"
  glimt generate -m GLM-4.7-Flash-Q4_K_M.gguf --think off \"Why is the sky blue?\"
  glimt devices
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --ctx 32768

Without -m every command uses a small story teller that is compiled into the program.
RUST_LOG=info shows what the program does while it does it.";

/// Runs GLM-4.7-Flash, DeepSeek-V2-Lite and Youtu-LLM-2B from GGUF files on any GPU that wgpu reaches.
#[derive(Parser)]
#[command(name = "glimt", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Generate(Box<generate::Generate>),
    Inspect(inspect::Inspect),
    Devices(devices::Devices),
    Tokenize(tokenize::Tokenize),
    Logits(logits::Logits),
    Perplexity(perplexity::Perplexity),
    Synth(synth::Synth),
    Bench(bench::Bench),
    Profile(profile::Profile),
    Tune(tune::Tune),
}

/// Keeps Mesa's device-select layer from complaining on standard error, once per instance, that there is no Wayland
/// session: it would only reorder adapters, which glimt sorts itself.
#[cfg(target_os = "linux")]
fn quiet_mesa() {
    // SAFETY: called first in the process, before any thread is started that could read the environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}

/// The process's arguments, with llama-bench's flags of two letters behind one dash made two dashes for `bench` and
/// `profile`: they would be read as two flags otherwise.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments
        .get(1)
        .is_some_and(|command| command == "bench" || command == "profile")
    {
        for argument in &mut arguments {
            match argument.to_str() {
                Some("-pg") => *argument = "--pg".into(),
                Some("-ub") => *argument = "--ubatch".into(),
                _ => {}
            }
        }
    }
    arguments
}

/// Parses the process's arguments, runs the command and returns the exit code. Usage errors found by the argument
/// parser end the process with exit code 2, `--help` and `--version` with 0.
pub fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    quiet_mesa();
    let cli = Cli::parse_from(arguments());
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error,glimt=warn"))
        .init();
    let result = interrupt::install().and_then(|()| match cli.command {
        Command::Generate(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Devices(command) => command.run(),
        Command::Tokenize(command) => command.run(),
        Command::Logits(command) => command.run(),
        Command::Perplexity(command) => command.run(),
        Command::Synth(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Profile(command) => command.run(),
        Command::Tune(command) => command.run(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is no failure, and an interrupted answer has printed its statistics: nothing more to say.
        Err(error @ (CliError::BrokenPipe | CliError::Interrupted)) => {
            ExitCode::from(error.exit_code())
        }
        Err(error) => {
            output::complain(format_args!("glimt: error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_argument_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
