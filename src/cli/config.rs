//! The config file and the environment: values for flags that the command line leaves out.
//!
//! A flag takes its value from the first of these that has one: the command line, the environment, the config file's table of the
//! command, the top of the config file. What the last three have becomes the default in the flag's definition. So the parser reads
//! all values alike, and one that was not typed conflicts with nothing.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Id};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::CliError;
use super::output;

const EXAMPLES: &str = "\
Examples:
  glimt config
  GLIMT_CONFIG=work.toml glimt config
  GLIMT_CONFIG= glimt generate \"Hello\"

A config file has values for flags that the command line leaves out. It is written in TOML, and its keys are the long \
names of flags. A key at the top is for all commands that have the flag, a key in a table for the command of that name:

  model = \"/models/GLM-4.7-Flash-Q4_K_M.gguf\"
  device = \"nvidia\"

  [generate]
  temp = 0.5
  stop = [\"THE END\"]

  [bench]
  repetitions = 3

The command line goes before the environment (GLIMT_MODEL, GLIMT_DEVICE), the environment before the file, and the \
file before the defaults that --help shows. A flag without a value is true or false; what is true there is switched \
off by --NAME=false, such as --raw=false. What conflicts with a flag that is typed is left out.

The file is glimt/config.toml in ~/.config (Linux; XDG_CONFIG_HOME, where that is set), in ~/Library/Application \
Support (macOS) or in %APPDATA% (Windows). GLIMT_CONFIG names another one; if it is empty, no file is read.";

/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Show where the config file is and what it sets
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Show {}

impl Show {
    pub(super) fn run(&self, definition: &Command) -> Result<(), CliError> {
        let Some((file, _)) = place() else {
            return output::print(
                "no config file is read: GLIMT_CONFIG is empty, or the system has no folder for it\n",
            );
        };
        let mut text = format!("{}\n", file.display());
        match read(definition)? {
            None => text.push_str("There is no such file: every flag has its own default.\n"),
            Some(entries) if entries.is_empty() => text.push_str("It sets nothing.\n"),
            Some(entries) => {
                for entry in entries {
                    let whose = entry.table.as_deref().unwrap_or("all commands");
                    let values = entry.values.join(", ");
                    text.push_str(&format!("{whose}: {} = {values}\n", entry.key));
                }
            }
        }
        output::print(&text)
    }
}

/// The config file, and whether GLIMT_CONFIG names it; `None` where none is to be read.
fn place() -> Option<(PathBuf, bool)> {
    match std::env::var_os("GLIMT_CONFIG") {
        Some(name) if name.is_empty() => None,
        Some(name) => Some((name.into(), true)),
        None => Some((dirs::config_dir()?.join("glimt").join("config.toml"), false)),
    }
}

/// The entries of the config file, checked for all commands; `None` where there is no such file.
fn read(definition: &Command) -> Result<Option<Vec<Entry>>, CliError> {
    let Some((path, named)) = place() else {
        return Ok(None);
    };
    let file = path.display().to_string();
    let mut text = String::new();
    let read = File::open(path).and_then(|open| open.take(LONGEST).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 == LONGEST => {
            let problem = format!("a config file must be shorter than {LONGEST} bytes");
            return Err(wrong(file, problem));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && !named => return Ok(None),
        Err(source) => return Err(CliError::ReadConfig { path: file, source }),
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let entries = entries(&file, text)?;
    for entry in &entries {
        entry.check(definition)?;
    }
    Ok(Some(entries))
}

/// The error of a setting that is wrong. `origin` names the file, the variable or the command that holds it.
pub(super) fn wrong(origin: impl Into<String>, problem: impl Into<String>) -> CliError {
    let (origin, problem) = (origin.into(), problem.into());
    CliError::Setting { origin, problem }
}

/// A key of the config file with its values.
struct Entry {
    /// The command; `None` at the top of the file.
    table: Option<String>,
    key: String,
    values: Vec<String>,
    /// The file, the line and the key, for errors.
    origin: String,
}

/// The keys of a config file: those at the top first.
fn entries(file: &str, text: &str) -> Result<Vec<Entry>, CliError> {
    let place = |at: usize| {
        let before = text.bytes().take(at);
        format!(
            "{file}, line {}",
            1 + before.filter(|&byte| byte == b'\n').count()
        )
    };
    let all = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        wrong(place(at), error.message().trim())
    })?;
    let entry = |table: Option<&str>, key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>| {
        let inside = table.map_or_else(String::new, |table| format!(" in [{table}]"));
        let at = place(key.span().start);
        let origin = format!("{at}, {}{inside}", key.get_ref());
        Ok::<_, CliError>(Entry {
            table: table.map(str::to_owned),
            key: key.get_ref().to_string(),
            values: texts(value.get_ref()).map_err(|problem| wrong(&origin, problem))?,
            origin,
        })
    };
    let (mut top, mut tables) = (vec![], vec![]);
    for (name, value) in all.get_ref() {
        match value.get_ref() {
            DeValue::Table(keys) => {
                for (key, value) in keys {
                    tables.push(entry(Some(name.get_ref()), key, value)?);
                }
            }
            _ => top.push(entry(None, name, value)?),
        }
    }
    top.append(&mut tables);
    Ok(top)
}

/// The texts that a value of TOML is on the command line: one, or those of a list.
fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let found = match value {
        DeValue::String(text) => return Ok(vec![text.to_string()]),
        DeValue::Integer(number) => return Ok(vec![number.to_string()]),
        DeValue::Float(number) => return Ok(vec![number.to_string()]),
        DeValue::Boolean(on) => return Ok(vec![on.to_string()]),
        DeValue::Array(list) => {
            let nested = |value: &DeValue<'_>| matches!(value, DeValue::Array(_));
            if !list.iter().any(|value| nested(value.get_ref())) {
                let each: Result<Vec<_>, _> = list.iter().map(|v| texts(v.get_ref())).collect();
                return Ok(each?.concat());
            }
            "a list of lists"
        }
        DeValue::Datetime(_) => "a date",
        DeValue::Table(_) => "a table",
    };
    Err(format!(
        "found {found}, expected a text, a number, true, false, or a list of these"
    ))
}

impl Entry {
    /// The commands that it is for.
    fn commands<'a>(&self, definition: &'a Command) -> impl Iterator<Item = &'a Command> {
        let table = self.table.as_deref();
        let commands = definition.get_subcommands();
        commands.filter(move |command| table.is_none_or(|name| command.get_name() == name))
    }

    /// Refuses tables and keys that no command has, and values that a command refuses.
    fn check(&self, definition: &Command) -> Result<(), CliError> {
        if let Some(name) = &self.table
            && definition.find_subcommand(name).is_none()
        {
            let names = definition.get_subcommands().map(Command::get_name);
            let names = names.collect::<Vec<_>>().join(", ");
            let problem = format!("no command has this name, expected one of {names}");
            return Err(wrong(&self.origin, problem));
        }
        let with_flag = |command| Some((command, flag(command, &self.key)?));
        let flags: Vec<_> = self.commands(definition).filter_map(with_flag).collect();
        if flags.is_empty() {
            let expected = match &self.table {
                Some(name) => format!("the long name of a flag, as glimt {name} --help lists them"),
                None => "the long name of a flag of some command".to_owned(),
            };
            let similar = self.similar(definition);
            return Err(wrong(
                &self.origin,
                format!("unknown key, expected {expected}{similar}"),
            ));
        }
        for (command, flag) in flags {
            if let Some(problem) = refusal(command, flag, &self.values) {
                let problem = format!("{problem} (in glimt {})", command.get_name());
                return Err(wrong(&self.origin, problem));
            }
        }
        Ok(())
    }

    /// The flag that the parser takes an unknown key for, as the end of a sentence.
    fn similar(&self, definition: &Command) -> String {
        let found = self.commands(definition).find_map(|command| {
            let command = without_environment(command.clone()).no_binary_name(true);
            let error = command
                .try_get_matches_from([format!("--{}", self.key)])
                .err()?;
            let ContextValue::String(flag) = error.get(ContextKind::SuggestedArg)? else {
                return None;
            };
            Some(format!(
                "; a similar one is {}",
                flag.trim_start_matches('-')
            ))
        });
        found.unwrap_or_default()
    }

    /// The entry as a setting for `command`, if that has such a flag.
    fn setting(&self, command: &Command) -> Option<Setting> {
        let flag = flag(command, &self.key)?;
        let values = self.values.iter().map(OsString::from).collect();
        Some(Setting::new(flag, values, &self.origin))
    }
}

/// The flag of this long name or alias.
pub(super) fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|flag| {
        let aliases = flag.get_all_aliases().unwrap_or_default();
        flag.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// Why a flag does not take these values; `None` where it takes them.
fn refusal(command: &Command, flag: &Arg, values: &[impl AsRef<OsStr>]) -> Option<String> {
    if is_switch(flag) {
        let found = match values {
            [value] if value.as_ref() == "true" || value.as_ref() == "false" => return None,
            [value] => value.as_ref().to_string_lossy(),
            _ => "a list".into(),
        };
        return Some(format!("found {found}, expected true or false"));
    }
    if values.len() != 1 && !matches!(flag.get_action(), ArgAction::Append) {
        return Some(format!(
            "found a list of {} values, expected one value",
            values.len()
        ));
    }
    values.iter().find_map(|value| {
        // The parser itself judges the value, as if it stood alone on the command line.
        let mut typed = OsString::from(format!("--{}=", flag.get_long()?));
        typed.push(value);
        let command = without_environment(command.clone()).no_binary_name(true);
        let error = command.try_get_matches_from([typed]).err()?;
        match error.kind() {
            ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => None,
            _ => Some(told(&error)),
        }
    })
}

/// The problem that clap found, in one line. This is the first paragraph of clap's message; the others tell how to call the program.
pub(super) fn told(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let told = lines.take_while(|line| !line.is_empty());
    let told = told.collect::<Vec<_>>().join(" ");
    told.trim_start_matches("error: ").to_owned()
}

/// Whether a flag takes no value.
pub(super) fn is_switch(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
}

/// A value of the environment or the config file for a flag of the command.
struct Setting {
    flag: Id,
    values: Vec<OsString>,
    /// Whether the setting only says that a switch is off, which conflicts with nothing.
    off: bool,
    /// The name of the setting in errors.
    origin: String,
}

impl Setting {
    fn new(flag: &Arg, values: Vec<OsString>, origin: impl Into<String>) -> Self {
        let off = is_switch(flag) && values.iter().any(|value| value == "false");
        let (flag, origin) = (flag.get_id().clone(), origin.into());
        Self {
            flag,
            values,
            off,
            origin,
        }
    }
}

/// The settings of the environment for `command`. An empty variable is none.
fn environment(command: &Command) -> Result<Vec<Setting>, CliError> {
    let mut settings = vec![];
    for flag in command.get_arguments() {
        let Some(name) = flag.get_env() else { continue };
        let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        let origin = name.to_string_lossy().into_owned();
        let values = vec![value];
        if let Some(problem) = refusal(command, flag, &values) {
            return Err(wrong(origin, problem));
        }
        settings.push(Setting::new(flag, values, origin));
    }
    Ok(settings)
}

/// The definition without the variables that flags name: what these say comes in with [`with_defaults`].
pub(super) fn without_environment(definition: Command) -> Command {
    let each = |command: Command| command.mut_args(|flag| flag.env(Resettable::Reset));
    each(definition).mut_subcommands(each)
}

/// The definition with what the environment and the config file say as the defaults of the command that was typed.
///
/// # Errors
/// [`CliError::ReadConfig`] and [`CliError::Setting`].
pub(super) fn with_defaults(
    definition: &Command,
    typed: &ArgMatches,
    off: &[Id],
) -> Result<Command, CliError> {
    let bare = without_environment(definition.clone());
    let Some((name, typed)) = typed.subcommand() else {
        return Ok(bare);
    };
    let command = definition.find_subcommand(name);
    // Commands without flags of their own work even if the config file is broken.
    let of_all = |flag: &Arg| ["quiet", "verbose"].contains(&flag.get_id().as_str());
    let Some(command) = command.filter(|c| c.get_opts().any(|flag| !of_all(flag))) else {
        return Ok(bare);
    };
    let entries = read(definition)?.unwrap_or_default();
    let of = |table: Option<&str>| {
        let entries = entries
            .iter()
            .filter(move |entry| entry.table.as_deref() == table);
        entries.filter_map(|entry| entry.setting(command)).collect()
    };
    let layers = [environment(command)?, of(Some(name)), of(None)];
    let chosen = choose(command, typed, off, layers)?;
    Ok(bare.mut_subcommand(name, |command| {
        chosen.into_iter().fold(command, |command, setting| {
            command.mut_arg(setting.flag, |flag| flag.default_values(setting.values))
        })
    }))
}

/// The settings that count: those of flags that neither the command line nor an earlier layer sets, and that conflict with no flag
/// that one of these sets.
fn choose(
    command: &Command,
    typed: &ArgMatches,
    off: &[Id],
    layers: [Vec<Setting>; 3],
) -> Result<Vec<Setting>, CliError> {
    let mut taken: Vec<Setting> = vec![];
    for argument in command.get_arguments() {
        let values = match off.contains(argument.get_id()) {
            true => vec!["false".into()],
            false => vec![],
        };
        let source = typed.value_source(argument.get_id().as_str());
        if source == Some(ValueSource::CommandLine) || !values.is_empty() {
            taken.push(Setting::new(argument, values, "the command line"));
        }
    }
    let typed = taken.len();
    for layer in layers {
        let above = taken.len();
        for setting in layer {
            let against = |other: &&Setting| {
                other.flag == setting.flag
                    || !other.off && !setting.off && conflict(command, &other.flag, &setting.flag)
            };
            if taken[..above].iter().any(|other| against(&other)) {
                continue;
            }
            if let Some(other) = taken[above..].iter().find(against) {
                let problem = format!("cannot be used together with {}", other.origin);
                return Err(wrong(&setting.origin, problem));
            }
            taken.push(setting);
        }
    }
    Ok(taken.split_off(typed))
}

/// Whether the definition lets only one of two flags be used.
fn conflict(command: &Command, one: &Id, other: &Id) -> bool {
    let declared = |one: &Id, other: &Id| {
        let mut flags = command.get_arguments();
        let flag = flags.find(|flag| flag.get_id() == one);
        let excluded = flag.map(|flag| command.get_arg_conflicts_with(flag));
        excluded.is_some_and(|excluded| excluded.iter().any(|flag| flag.get_id() == other))
    };
    declared(one, other) || declared(other, one)
}
