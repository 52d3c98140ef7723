//! `glimt chat`: a conversation in the terminal, or line by line through a pipe.

mod clipboard;
mod commands;
mod console;
mod line;
mod settings;
mod show;
mod talk;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;

use self::console::{Console, Place, Told};
use self::line::Lines;
use self::settings::Settings;
use super::args::{ContextArgs, EngineArgs, ModelArgs, SaidArgs, ShareArgs};
use super::draft::DraftArgs;
use super::error::CliError;
use super::load;
use super::text::{self, FileArgs, Input};
use crate::chat::Conversation;
use crate::engine::SessionFile;

const EXAMPLES: &str = "\
Examples:
  glimt chat
  glimt chat -m GLM-4.7-Flash-Q4_K_M.gguf --think hide
  glimt chat -p \"Tell me a story about a king.\"
  glimt chat --system \"Answer in one sentence.\" < questions.txt > answers.txt

In a terminal glimt without a command does the same. /help lists what can be done while talking. Ctrl-C stops an answer, \
Ctrl-D leaves. Through a pipe each line is a message; several lines are one between \"\"\" and \"\"\".";

/// Talk with a model
#[derive(Args)]
#[command(after_help = EXAMPLES, mut_arg("file", file_argument))]
pub(super) struct Chat {
    /// Ask this first, and go on from its answer
    #[arg(short = 'p', long, value_name = "PROMPT", allow_hyphen_values = true)]
    prompt: Option<String>,
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// System prompt, put before the conversation by the model's chat template
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Keep the conversation in a file, or go on with the one that it holds, without computing it again
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    /// Break lines in a terminal wherever they end there, and not between words
    #[arg(long, hide_short_help = true)]
    no_wrap: bool,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    ctx: ContextArgs,
    #[command(flatten)]
    said: SaidArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    share: ShareArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn file_argument(argument: clap::Arg) -> clap::Arg {
    argument
        .help("Ask the text of a file first; with -p it stands before that text")
        .long_help(None)
}

impl Chat {
    pub(super) fn run(mut self) -> Result<(), CliError> {
        let source = self.model.source()?;
        let may_think = self.settings.thinks(None) != Some(false);
        self.ctx = self.ctx.for_answers(&source, may_think);
        self.ctx.parse_special = self.said.parse_special;
        self.ctx.cpu_share = self.share.asked();
        self.draft.ask(&mut self.ctx)?;
        let mut opened = load::open(&self.model, &self.engine, &self.ctx)?;
        opened.needed_template()?;
        let choice = console::choice(&self.settings, &opened)?;
        console::check_thinking(&self.settings, &opened)?;
        // Before the weights, which may take many seconds to load.
        self.settings.grammar.grammar(&opened)?;
        if let Some(path) = &self.session {
            SessionFile::check(path, &opened)?;
        }
        let most = text::most_bytes(opened.n_ctx());
        let first = self.file.input().into_iter();
        let first = first.chain(self.prompt.take().map(Input::Text));
        let first: Vec<_> = first.collect();
        let first = match first.is_empty() {
            true => None,
            false => Some(text::read_all(&first, most)?),
        };
        let place = Place {
            model: &self.model,
            engine: &self.engine,
            ctx: &self.ctx,
            wrapped: !self.no_wrap,
        };
        let conversation = Conversation::new(self.system.clone());
        let mut told = Told::new(
            Lines::new(most),
            conversation,
            self.settings.clone(),
            choice,
        );
        told.first = first;
        let mut session = self.session.as_deref();
        loop {
            let engine = load::weights(opened)?;
            let mut console = Console::new(&place, &engine, told)?;
            if let Some(path) = session.take() {
                console.go_on(path)?;
                if self.system.is_some() {
                    console.system(self.system.clone());
                }
            }
            let Some(next) = console.run()? else {
                return Ok(());
            };
            opened = next;
            told = console.told();
        }
    }
}

/// Whether somebody sits at a terminal.
pub(super) fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}
