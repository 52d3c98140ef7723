//! The command line: one file per subcommand, and beside them what several share.
//!
//! Rules that hold for every command: standard output carries only the text or JSON that was asked for, everything
//! else goes to standard error; the exit code is 0, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C; a reader
//! that closes the pipe early (`| head`) is no failure.

mod answer;
mod args;
mod ask;
mod bars;
mod batch;
mod batch_error;
mod bench;
mod bench_serve;
mod bench_serve_error;
mod chat;
mod completions;
mod config;
mod devices;
mod error;
mod fault;
mod fetch;
mod generate;
mod grammar;
mod guard;
mod inspect;
mod interrupt;
mod kept;
mod list;
mod load;
mod logits;
mod lookup;
mod man;
mod memory;
mod output;
mod perplexity;
mod picture;
mod profile;
mod pull;
mod report;
mod resumed;
mod rm;
mod run;
mod sampling;
mod serve;
mod served;
mod sink;
mod synth;
#[cfg(test)]
mod tests;
mod text;
mod tokenize;
mod told;
mod tty;
mod tune;
mod verify;
mod web;

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use error::CliError;

const EXAMPLES: &str = "\
Examples:
  glimt chat
  glimt generate \"Tell me a story about a fox and a crow.\"
  glimt generate -m GLM-4.7-Flash-Q4_K_M.gguf --think off \"Why is the sky blue?\"
  glimt pull glm-4.7-flash
  glimt devices
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --ctx 32768

Without -m every command uses a small story teller that is compiled into the program.

Flags that are not given take their values from environment variables, then from a config file: glimt config tells \
where it is, and glimt config --help what it may say. GLIMT_CONFIG=FILE names another one.

RUST_LOG=info shows what the program does while it does it. NO_COLOR=1 switches colours off.";

/// Runs GLM-4.7-Flash, DeepSeek-V2-Lite and Youtu-LLM-2B from GGUF files on any GPU that wgpu reaches.
#[derive(Parser)]
#[command(name = "glimt", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Chat(Box<chat::Chat>),
    Generate(Box<generate::Generate>),
    Serve(Box<serve::Serve>),
    Batch(Box<batch::Batch>),
    Web(web::Web),
    Pull(pull::Pull),
    List(list::List),
    Rm(rm::Rm),
    Inspect(inspect::Inspect),
    Devices(devices::Devices),
    Tokenize(tokenize::Tokenize),
    Logits(logits::Logits),
    Perplexity(perplexity::Perplexity),
    Synth(synth::Synth),
    Bench(bench::Bench),
    BenchServe(bench_serve::BenchServe),
    Profile(profile::Profile),
    Tune(tune::Tune),
    Verify(verify::Verify),
    Report(report::Report),
    Config(config::Show),
    Completions(completions::Completions),
    Man(man::Man),
}

/// Keeps Mesa's device-select layer from complaining on standard error, once per instance, that there is no Wayland
/// session: it would only reorder adapters, which glimt sorts itself.
#[cfg(target_os = "linux")]
fn quiet_mesa() {
    // SAFETY: called first in the process, before any thread is started that could read the environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}

/// The process's arguments, with llama.cpp's flags of two letters behind one dash made two dashes: they would be read as two flags
/// otherwise. Those behind `--` are no flags. Without a command, somebody at a terminal talks.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let first = arguments.get(1).map(|first| first.to_string_lossy());
    let has_command = first.is_some_and(|first| {
        !first.starts_with('-') || ["-h", "--help", "-V", "--version"].contains(&&*first)
    });
    if !has_command && chat::at_terminal() {
        arguments.insert(arguments.len().min(1), "chat".into());
    }
    let flags = arguments
        .iter_mut()
        .take_while(|argument| *argument != "--");
    for argument in flags {
        match argument.to_str() {
            Some("-pg") => *argument = "--pg".into(),
            Some("-ub") => *argument = "--ubatch".into(),
            Some("-ngl") => *argument = "--gpu-layers".into(),
            _ => {}
        }
    }
    arguments
}

/// Writes the log to standard error, filtered by `RUST_LOG`. wgpu logs much, so its modules are shown only if `RUST_LOG` names them.
fn log_to_stderr() {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let filters = match asked.as_str() {
        "" => "error,glimt=warn",
        asked => asked,
    };
    let mut logger = env_logger::Builder::new();
    logger.parse_filters(filters);
    for name in ["wgpu_core", "wgpu_hal", "naga"] {
        if !asked.contains(name) {
            logger.filter_module(name, log::LevelFilter::Error);
        }
    }
    // Some commands read a file twice, but what it is warned of is told once.
    let told = Mutex::new(HashSet::new());
    let reads = ["glimt::gguf", "glimt::model", "glimt::tokenizer"];
    logger.format(move |to, record| {
        let (level, text) = (record.level(), record.args().to_string());
        if reads.iter().any(|room| record.target().starts_with(room))
            && told.lock().is_ok_and(|mut told| !told.insert(text.clone()))
        {
            return Ok(());
        }
        writeln!(
            to,
            "{}: {}: {}",
            record.target(),
            level,
            output::clean(&text)
        )
    });
    logger.init();
}

/// Parses the process's arguments, and gives flags that are not among them what the environment and the config file say. Usage
/// errors end the process with exit code 2, `--help` and `--version` with 0.
fn parse() -> Result<Command, CliError> {
    let mut arguments = arguments();
    let definition = Cli::command();
    let off = config::take_switched_off(&definition, &mut arguments);
    let bare = config::without_environment(definition.clone());
    let typed = match bare.try_get_matches_from(&arguments) {
        Ok(typed) => typed,
        Err(error) if error.use_stderr() => error.exit(),
        // The help tells what is in the environment.
        Err(_) => definition.clone().get_matches_from(&arguments),
    };
    let mut definition = config::with_defaults(&definition, &typed, &off)?;
    let all = definition.try_get_matches_from_mut(&arguments);
    let cli = all.and_then(|mut all| Cli::from_arg_matches_mut(&mut all));
    Ok(cli.unwrap_or_else(|error| error.exit()).command)
}

fn run() -> Result<(), CliError> {
    let command = parse()?;
    log_to_stderr();
    fault::install();
    interrupt::install()?;
    match command {
        Command::Chat(command) => command.run(),
        Command::Generate(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Batch(command) => command.run(),
        Command::Web(command) => command.run(),
        Command::Pull(command) => command.run(),
        Command::List(command) => command.run(),
        Command::Rm(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Devices(command) => command.run(),
        Command::Tokenize(command) => command.run(),
        Command::Logits(command) => command.run(),
        Command::Perplexity(command) => command.run(),
        Command::Synth(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::BenchServe(command) => command.run(),
        Command::Profile(command) => command.run(),
        Command::Tune(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Config(command) => command.run(&Cli::command()),
        Command::Completions(command) => command.run(Cli::command()),
        Command::Man(command) => command.run(Cli::command()),
    }
}

/// Runs the command that the process's arguments name and returns the exit code.
pub fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    quiet_mesa();
    match run() {
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
