//! `glimt man`: the manual pages, made from the definitions of the flags.

use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Arg, Args, Command};
use clap_mangen::roff::{Roff, roman};

use super::error::CliError;
use super::output::{self, file_error, note};

const EXAMPLES: &str = "\
Examples:
  glimt man | man -l -
  glimt man ~/.local/share/man/man1";

/// Print the manual page, or write those of all commands
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Man {
    /// Write a page for each command into this folder [default: the page of glimt goes to standard output]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(&self, definition: Command) -> Result<(), CliError> {
        // A page has the long text of a flag, or else the short one only if that is not hidden.
        let explained = |flag: Arg| match (flag.get_long_help(), flag.get_help().cloned()) {
            (None, Some(help)) => flag.long_help(help),
            _ => flag,
        };
        let each = |command: Command| command.mut_args(explained);
        let mut definition = definition
            .disable_help_subcommand(true)
            .mut_subcommands(each);
        definition.build();
        let Some(folder) = &self.dir else {
            return output::print(&String::from_utf8_lossy(&page(&definition)));
        };
        std::fs::create_dir_all(folder).map_err(|error| file_error(folder, error))?;
        let commands = definition.get_subcommands();
        for command in std::iter::once(&definition).chain(commands) {
            let name = command.get_display_name().unwrap_or("glimt");
            let path = folder.join(format!("{name}.1"));
            crate::files::replace(&path, page(command))
                .map_err(|error| file_error(&path, error))?;
        }
        let pages = 1 + definition.get_subcommands().count();
        note(format_args!("{pages} pages in {}", folder.display()));
        Ok(())
    }
}

/// The page of a command. Its closing text is a section whose indented lines stay as they are.
fn page(command: &Command) -> Vec<u8> {
    let mut roff = Roff::new();
    if let Some(closing) = command.get_after_long_help() {
        roff.control("SH", ["EXAMPLES"]);
        let mut verbatim = false;
        for line in closing
            .to_string()
            .lines()
            .filter(|line| *line != "Examples:")
        {
            let indented = line.starts_with("  ");
            if indented != verbatim && !line.is_empty() {
                roff.control(if indented { "nf" } else { "fi" }, []);
                verbatim = indented;
            }
            match line {
                "" => roff.control("PP", []),
                _ => roff.text([roman(line)]),
            };
        }
    }
    let mut page = Vec::new();
    let without_closing = command
        .clone()
        .after_help(Resettable::Reset)
        .after_long_help(Resettable::Reset);
    let manual = clap_mangen::Man::new(without_closing);
    let written = manual.manual("glimt").render(&mut page);
    let written = written.and_then(|()| roff.to_writer(&mut page));
    written.expect("a vector takes everything");
    page
}
