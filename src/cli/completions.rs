//! `glimt completions`: what makes a shell complete commands and flags.

use clap::{Args, Command};
use clap_complete::Shell;

use super::error::CliError;
use super::output;

const EXAMPLES: &str = "\
Examples:
  glimt completions bash > ~/.local/share/bash-completion/completions/glimt
  glimt completions zsh > ~/.zfunc/_glimt
  glimt completions fish > ~/.config/fish/completions/glimt.fish
  glimt completions powershell >> $PROFILE

For zsh, the folder must be in fpath, as with fpath=(~/.zfunc $fpath) before compinit.";

/// Print a script that completes commands and flags in a shell
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, mut definition: Command) -> Result<(), CliError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut definition, "glimt", &mut script);
        output::print(&String::from_utf8_lossy(&script))
    }
}
