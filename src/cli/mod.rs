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
mod draft;
mod error;
mod fault;
mod fetch;
mod generate;
mod grammar;
mod guard;
mod habits;
mod help;
mod inspect;
mod interrupt;
mod kept;
mod lines;
mod list;
mod load;
mod logits;
mod lookup;
mod machine;
mod man;
mod memory;
mod output;
mod perplexity;
mod picture;
mod piece;
mod profile;
mod pull;
mod renamed;
mod report;
mod resumed;
mod rm;
mod run;
mod sampling;
mod screen;
mod serve;
mod served;
mod sink;
mod size;
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
mod words;

use std::borrow::Cow;
use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use error::CliError;

const EXAMPLES: &str = "\
Examples:
  glimt chat
  glimt generate --raw \"Once upon a time there was a king, and one day the king said:\"
  glimt generate -m GLM-4.7-Flash-Q4_K_M.gguf --think off \"Why is the sky blue?\"
  glimt pull glm-4.7-flash
  glimt devices
  glimt inspect GLM-4.7-Flash-Q4_K_M.gguf --ctx 32768

Without -m every command uses a small story teller that is compiled into the program. Flags of llama.cpp and commands of ollama, as \
run, show and ps, are understood, or the error names what to use instead (docs/cli.md).

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

/// The definitions of all commands and flags. Help that is asked for by `-h` ends with the examples, and what follows them stands in the
/// longer one. All commands know the flags of [`everywhere`].
fn definition() -> clap::Command {
    let each = |command: clap::Command| {
        let runs = command
            .get_arguments()
            .any(|flag| flag.get_long() == Some("device"));
        let [quiet, verbose, threads] = everywhere();
        let command = command
            .arg(quiet)
            .arg(verbose)
            .args(runs.then_some(threads));
        let brief = |flag: Arg| help::brief(flag.hide_env_values(true));
        help::with_short_ending(command).mut_args(brief)
    };
    help::with_groups(help::with_short_ending(Cli::command())).mut_subcommands(each)
}

/// Flags of all commands, and that of those which compute.
fn everywhere() -> [Arg; 3] {
    let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    [
        switch("quiet")
            .short('q')
            .help("Leave out notes, thoughts and progress")
            .long_help("Leave out notes, thoughts and progress: standard error has errors and warnings alone; serve still has a line for each request"),
        switch("verbose").short('v').hide_short_help(true).help(
            "Show on standard error what the program does while it does it, as RUST_LOG=info does",
        ),
        Arg::new("threads")
            .short('t')
            .long("threads")
            .value_name("N")
            .value_parser(threads)
            .allow_negative_numbers(true)
            .help_heading(args::DEVICE)
            .help("CPU threads; -1 is one for each core [default: -1]"),
    ]
}

/// The value of `--threads`; 0 is one for each core.
fn threads(text: &str) -> Result<usize, String> {
    match (text, text.parse()) {
        ("-1", _) => Ok(0),
        (_, Ok(threads @ 1..=1024)) => Ok(threads),
        _ => Err("must be from 1 to 1024, or -1 (one for each core)".to_owned()),
    }
}

/// The module that logs, as it is named in the library.
fn room(target: &str) -> Cow<'_, str> {
    match target.split_once("::") {
        Some((package, module)) if package.starts_with("glimt_") => {
            format!("glimt::{module}").into()
        }
        _ => target.into(),
    }
}

/// Writes the log to standard error, filtered by `RUST_LOG`. wgpu logs much, so its modules are shown only if `RUST_LOG` names them.
fn log_to_stderr(verbose: bool) {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let filters = match asked.as_str() {
        "" if verbose => "error,glimt=info",
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
    // Some commands read a file twice, and trials of a device begin several sessions. Each of their warnings is told once.
    let told = Mutex::new(HashSet::new());
    let repeating = [
        "glimt::gguf",
        "glimt::model",
        "glimt::tokenizer",
        "glimt::kernels::coop",
    ];
    logger.format(move |_, record| {
        let (level, text) = (record.level(), record.args().to_string());
        let target = room(record.target());
        if repeating.iter().any(|room| target.starts_with(room))
            && told.lock().is_ok_and(|mut told| !told.insert(text.clone()))
        {
            return Ok(());
        }
        output::complain(format_args!("{target}: {level}: {text}"));
        Ok(())
    });
    logger.init();
}

/// A command and the flags that all commands have.
struct Parsed {
    command: Command,
    quiet: bool,
    verbose: bool,
    /// Threads of the CPU, if they are not one for each core.
    threads: Option<usize>,
}

/// Parses the process's arguments, and gives flags that are not among them what the environment and the config file say. Usage
/// errors end the process with exit code 2, `--help` and `--version` with 0.
fn parse() -> Result<Parsed, CliError> {
    let definition = definition();
    let typed = std::env::args_os().collect();
    let typed = renamed::command(&definition, typed, chat::at_terminal())?;
    let words::Words { all, off } = words::read(&definition, typed)?;
    let bare = config::without_environment(definition.clone());
    let typed = match bare.try_get_matches_from(&all) {
        Ok(typed) => typed,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => help::tell(definition, &all),
        Err(error) => output::end(&words::with_tip(error, &all)),
    };
    let mut definition = config::with_defaults(&definition, &typed, &off)?;
    let mut matches = definition
        .try_get_matches_from_mut(&all)
        .unwrap_or_else(|error| output::end(&error));
    let typed = matches.subcommand();
    let is = |name| typed.is_some_and(|(_, typed)| typed.get_flag(name));
    let threads = typed.and_then(|(_, typed)| typed.try_get_one("threads").ok().flatten());
    let (quiet, verbose, threads) = (is("quiet"), is("verbose"), threads.copied());
    let cli = Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| output::end(&error));
    Ok(Parsed {
        command: cli.command,
        quiet,
        verbose,
        threads,
    })
}

fn run() -> Result<(), CliError> {
    let Parsed {
        command,
        quiet,
        verbose,
        threads,
    } = parse()?;
    log_to_stderr(verbose);
    if quiet {
        output::be_quiet();
    }
    if let Some(threads) = threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build_global().map_err(CliError::Pool)?;
    }
    fault::install();
    interrupt::install()?;
    bars::show_compiling();
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
        Command::Logits(mut command) => command.run(),
        Command::Perplexity(command) => command.run(),
        Command::Synth(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::BenchServe(command) => command.run(),
        Command::Profile(command) => command.run(),
        Command::Tune(command) => command.run(),
        Command::Verify(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Config(command) => command.run(&definition()),
        Command::Completions(command) => command.run(definition()),
        Command::Man(command) => command.run(definition()),
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
