//! `glimt man`: the manual pages, made from the definitions of the flags.

use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Args, Command};
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
        // Variables are named in the pages; what they are set to is not.
        let mut definition = definition.disable_help_subcommand(true);
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
    if let Some(closing) = command.get_after_help() {
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
    let manual = clap_mangen::Man::new(command.clone().after_help(Resettable::Reset));
    let written = manual.manual("glimt").render(&mut page);
    let written = written.and_then(|()| roff.to_writer(&mut page));
    written.expect("a vector takes everything");
    page
}
