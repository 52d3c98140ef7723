//! `glimt chat`: a conversation in the terminal, or line by line through a pipe.

mod commands;
mod line;
mod settings;
mod show;
mod talk;

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;

use self::commands::Command;
use self::line::{Line, Lines};
use self::settings::Settings;
use self::talk::{Talk, is_fatal};
use super::args::{ContextArgs, EngineArgs, ModelArgs};
use super::config;
use super::error::CliError;
use super::guard::guarded;
use super::interrupt;
use super::kept::Kept;
use super::load;
use super::output::{complain, note};
use super::sampling::Choice;
use super::text::{self, Input};
use super::tty;
use crate::chat::{Conversation, Turn};
use crate::engine::{KeepWarm, ModelSource, Opened, SessionFile};
use crate::plural::count;

const EXAMPLES: &str = "\
Examples:
  glimt chat
  glimt chat -m GLM-4.7-Flash-Q4_K_M.gguf --think hide
  glimt chat --system \"Answer in one sentence.\" < questions.txt > answers.txt

In a terminal glimt without a command does the same. /help lists what can be done while talking. Ctrl-C stops an answer, \
Ctrl-D leaves. Through a pipe each line is a message; several lines are one between \"\"\" and \"\"\".";

/// Talk with a model
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Chat {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    ctx: ContextArgs,
    #[command(flatten)]
    settings: Settings,
    /// System prompt, put before the conversation by the model's chat template
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Keep the conversation in a file, or go on with the one that it holds, without computing it again
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
}

impl Chat {
    pub(super) fn run(self) -> Result<(), CliError> {
        let source = self.model.source()?;
        let may_think = self.settings.thinks(None) != Some(false);
        let ctx = self.ctx.for_answers(&source, may_think);
        let opened = load::open(&self.model, &self.engine, &ctx)?;
        opened.needed_template()?;
        let choice = choice(&self.settings, &source, &opened)?;
        check_thinking(&self.settings, &opened)?;
        if let Some(path) = &self.session {
            // Before the weights, which may take many seconds to load.
            SessionFile::check(path, &opened)?;
        }
        let engine = load::weights(opened)?;
        choice.tell();
        let lines = Lines::new(text::most_bytes(engine.n_ctx()));
        if lines.is_terminal() {
            tty::remember();
            note(format_args!("/help lists the commands, Ctrl-D leaves"));
        }
        let conversation = Conversation::new(self.system.clone());
        let mut console = Console {
            talk: Talk::new(&engine, conversation, self.settings, choice)?,
            source: &source,
            lines,
            read: Vec::new(),
            unanswered: None,
            editing: false,
        };
        if let Some(path) = &self.session {
            console.go_on(path)?;
            if self.system.is_some() {
                console.talk.conversation.system = self.system;
            }
        }
        console.run()
    }
}

/// How tokens are chosen.
fn choice(settings: &Settings, source: &ModelSource, opened: &Opened) -> Result<Choice, CliError> {
    Choice::new(
        &settings.sampling,
        source,
        opened,
        settings.thinks(None) == Some(false),
    )
}

/// Whether the chat template can do what is said of thinking.
///
/// # Errors
/// [`TokenizerError::NoThinkingSwitch`](crate::tokenizer::TokenizerError::NoThinkingSwitch), or what the template refuses.
fn check_thinking(settings: &Settings, opened: &Opened) -> Result<(), CliError> {
    let mut probe = Conversation::new(None);
    probe.turns.push(Turn::User("Hello".to_owned()));
    let thinks = settings.thinks(opened.chat_template());
    guarded(|| Ok(probe.prompt(opened, thinks).map(drop)?))
}

/// A conversation and where its lines come from.
struct Console<'a> {
    talk: Talk<'a>,
    source: &'a ModelSource,
    lines: Lines,
    /// Texts of files that go with the next message.
    read: Vec<String>,
    /// The last message, if it has no answer: the context had no room for it, or Ctrl-C came first. With it, whether it replaces the
    /// question before.
    unanswered: Option<(String, bool)>,
    /// Whether the next message replaces the last.
    editing: bool,
}

impl Console<'_> {
    fn run(mut self) -> Result<(), CliError> {
        loop {
            let line = {
                let warm = self.talk.session.warm();
                let warm = warm.filter(|_| self.lines.is_terminal());
                // Without a thread for it, the next answer only begins later.
                let _warm = warm.and_then(|touch| KeepWarm::new(touch).ok());
                if self.lines.is_terminal() {
                    interrupt::at_prompt();
                }
                self.lines.next(self.meter())?
            };
            let unseen = tty::Unseen::new();
            let done = match line {
                Line::End => return Ok(()),
                Line::Cancelled => {
                    self.editing = false;
                    note(format_args!("Ctrl-D leaves"));
                    continue;
                }
                Line::Text(text) if text.trim().is_empty() => continue,
                Line::Text(text) => self.take(text),
            };
            drop(unseen);
            match done {
                Ok(ControlFlow::Break(())) => return Ok(()),
                Ok(ControlFlow::Continue(())) => {}
                // Who types sees it and goes on; a script has failed.
                Err(error) if self.lines.is_terminal() && !is_fatal(&error) => {
                    complain(format_args!("{error}"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// How full the context is.
    fn meter(&self) -> String {
        let n_ctx = self.talk.engine.n_ctx();
        format!("{} of {}", self.talk.used, count(n_ctx, "token"))
    }

    /// Takes a message or a command. A break leaves.
    fn take(&mut self, text: String) -> Result<ControlFlow<()>, CliError> {
        match commands::parse(&text) {
            Some(Ok(command)) => return self.command(command),
            Some(Err(name)) => {
                let name = name.to_owned();
                return Err(CliError::UnknownCommand { name });
            }
            None => {}
        }
        let mut texts = std::mem::take(&mut self.read);
        texts.push(commands::message(&text).to_owned());
        let replaces = std::mem::take(&mut self.editing);
        self.ask(texts.join("\n\n"), replaces)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Says `text`, in place of the last question if it `replaces` that, and keeps it until it has an answer.
    fn ask(&mut self, text: String, replaces: bool) -> Result<(), CliError> {
        self.unanswered = Some((text.clone(), replaces));
        match self.talk.ask(text, replaces)? {
            true => self.unanswered = None,
            false => note(format_args!("it has no answer yet; /regen asks it again")),
        }
        // The rest of what is piped is not asked for either.
        match self.talk.interrupted && !self.lines.is_terminal() {
            true => Err(CliError::Interrupted),
            false => Ok(()),
        }
    }

    /// Asks the last question again: the one without an answer, if there is one.
    fn ask_again(&mut self) -> Result<(), CliError> {
        if let Some((text, replaces)) = self.unanswered.take() {
            return self.ask(text, replaces);
        }
        let last = self.talk.conversation.last_text();
        let last = last.ok_or(CliError::NothingAsked)?.to_owned();
        self.talk.draw_anew();
        self.ask(last, true)
    }

    /// Does what a command says. A break leaves.
    fn command(&mut self, command: Command<'_>) -> Result<ControlFlow<()>, CliError> {
        match command {
            Command::Leave => return Ok(ControlFlow::Break(())),
            Command::Help => {
                let columns = terminal_size::terminal_size().map_or(80, |(width, _)| width.0);
                note(format_args!(
                    "{}",
                    commands::help(columns.into()).trim_end()
                ));
            }
            Command::Clear => {
                self.talk.conversation.turns.clear();
                self.talk.measure();
                self.unanswered = None;
                self.read.clear();
                match &self.talk.kept {
                    Some(kept) => note(format_args!(
                        "the conversation is forgotten; {0} has it until your next message, and /load {0} brings it back",
                        kept.name()
                    )),
                    None => note(format_args!("the conversation is forgotten")),
                }
            }
            Command::Regenerate => self.ask_again()?,
            Command::Edit(text) => self.edit(text)?,
            Command::System("") => match &self.talk.conversation.system {
                Some(system) => note(format_args!("{system}")),
                None => note(format_args!("there is no system prompt")),
            },
            Command::System("\"\"") => {
                self.talk.conversation.system = None;
                self.talk.measure();
                note(format_args!("the system prompt is removed"));
            }
            Command::System(text) => {
                self.talk.conversation.system = Some(text.to_owned());
                self.talk.measure();
                note(format_args!("the system prompt is changed"));
            }
            Command::Read(path) => self.read(path)?,
            Command::Save(path) => self.save(path)?,
            Command::Load("") => return Err(CliError::NoFileNamed { command: "/load" }),
            Command::Load(path) => {
                // A file that is not there would be begun.
                let path = commands::file(path);
                path.metadata().map_err(CliError::unread(path.display()))?;
                self.go_on(&path)?;
            }
            Command::Drop(number) => self.forget(number)?,
            Command::Thoughts => {
                let reply = self.talk.conversation.last_reply();
                match reply.and_then(|reply| reply.thoughts.as_ref()) {
                    Some(thoughts) => note(format_args!("{}", thoughts.text.trim())),
                    None => note(format_args!("the last answer came without thoughts")),
                }
            }
            Command::Stats => self.stats(),
            Command::Set("") => self.show_settings(),
            Command::Set(text) => self.set(text)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Asks the last question with another text: `text`, or what is typed next.
    fn edit(&mut self, text: &str) -> Result<(), CliError> {
        let unanswered = self.unanswered.as_ref().map(|(text, _)| text.as_str());
        let asked = self.talk.conversation.last_text();
        let last = asked.or(unanswered).ok_or(CliError::NothingAsked)?;
        let replaces = asked.is_some();
        if text.is_empty() {
            self.editing = replaces;
            let last = last.to_owned();
            self.lines.put(last);
            return Ok(());
        }
        self.ask(text.to_owned(), replaces)
    }

    /// Goes on with the conversation of a session file, and keeps it there.
    fn go_on(&mut self, path: &Path) -> Result<(), CliError> {
        let engine = self.talk.engine;
        let mut kept = match self.talk.kept.take_if(|kept| kept.is_at(path)) {
            Some(kept) => kept.again(engine)?,
            None => Kept::open(path, engine, false)?,
        };
        kept.restore(&mut self.talk.session)?;
        self.talk.conversation = kept.conversation().clone();
        self.talk.measure();
        self.unanswered = None;
        match kept.is_new() {
            true => note(format_args!("session {}: begun", kept.name())),
            false => note(format_args!(
                "session {}: {}, {} of them computed before",
                kept.name(),
                count(self.talk.session.position(), "token"),
                self.talk.session.cached(),
            )),
        }
        if self.lines.is_terminal() {
            self.recall();
        }
        if let Some(text) = kept.unanswered.take() {
            note(format_args!(
                "not answered yet: {text}; /regen asks it again"
            ));
            self.unanswered = Some((text, false));
        }
        self.talk.kept = Some(kept);
        Ok(())
    }

    /// Shows the last question and its answer.
    fn recall(&self) {
        let turns = &self.talk.conversation.turns;
        for turn in &turns[turns.len().saturating_sub(2)..] {
            match turn {
                Turn::User(text) => note(format_args!("> {text}")),
                Turn::Reply(reply) => note(format_args!("{}", reply.answer.text.trim())),
            }
        }
    }

    /// Keeps the conversation in a session file from here on.
    fn save(&mut self, path: &str) -> Result<(), CliError> {
        let kept = self.talk.kept.as_ref();
        let file = commands::file(path);
        let is_here = kept.is_some_and(|kept| kept.is_at(&file));
        if !path.is_empty() && !is_here {
            let kept = Kept::open(&file, self.talk.engine, false)?;
            if !kept.is_new() {
                return Err(CliError::HoldsAnother { path: kept.name() });
            }
            self.talk.kept = Some(kept);
        }
        self.talk.save()?;
        match &self.talk.kept {
            Some(kept) => note(format_args!("kept in {}", kept.name())),
            None => return Err(CliError::NoFileNamed { command: "/save" }),
        }
        Ok(())
    }

    /// Has the text of a file go with the next message.
    fn read(&mut self, path: &str) -> Result<(), CliError> {
        if path.is_empty() {
            return Err(CliError::NoFileNamed { command: "/read" });
        }
        let engine = self.talk.engine;
        let file = Input::File(commands::file(path));
        let text = file.read(text::most_bytes(engine.n_ctx()))?;
        if text.trim().is_empty() {
            return Err(CliError::EmptyText { what: "file" });
        }
        let tokens = engine.tokenizer().encode(&text, false)?.len();
        if tokens >= engine.n_ctx() {
            return Err(CliError::FileTooLong {
                path: path.to_owned(),
                tokens,
                n_ctx: engine.n_ctx(),
            });
        }
        note(format_args!(
            "{path}: {}; it goes with your next message",
            count(tokens, "token")
        ));
        self.read.push(text);
        Ok(())
    }

    /// Forgets the oldest questions, and asks what there was no room for.
    fn forget(&mut self, number: &str) -> Result<(), CliError> {
        let wanted = match number {
            "" => 1,
            number => number
                .parse::<usize>()
                .map_err(|_| config::wrong("/drop", format!("{number} is not a whole number")))?,
        };
        let conversation = &mut self.talk.conversation;
        let all = |turn: &&Turn| matches!(turn, Turn::User(_));
        let mut dropped = (0..wanted).filter(|_| conversation.drop_oldest()).count();
        if dropped < wanted && conversation.turns.iter().filter(all).count() == 1 {
            conversation.turns.clear();
            dropped += 1;
        }
        self.talk.measure();
        note(format_args!("forgot {}", count(dropped, "question")));
        match self.unanswered.take() {
            Some((text, replaces)) => self.ask(text, replaces),
            None => Ok(()),
        }
    }

    /// Changes a setting.
    fn set(&mut self, text: &str) -> Result<(), CliError> {
        let mut settings = self.talk.settings.clone();
        settings.set(text)?;
        let engine = self.talk.engine;
        let mut choice = choice(&settings, self.source, engine)?;
        check_thinking(&settings, engine)?;
        if !text.trim_start_matches('-').starts_with("seed") {
            choice.keep_seed(&self.talk.choice);
        }
        self.talk.choice = choice;
        self.talk.settings = settings;
        self.show_settings();
        Ok(())
    }

    /// Tells how answers are generated.
    fn show_settings(&self) {
        let choice = &self.talk.choice;
        choice.tell_sampling();
        let line = self.talk.settings.line(choice.sampling().seed);
        note(format_args!("{line}"));
    }

    /// Tells what the last answer took, and all of them.
    fn stats(&self) {
        let Some(last) = &self.talk.last else {
            return note(format_args!("nothing was answered yet"));
        };
        note(format_args!("{}", last.lines()));
        let all = &self.talk.all;
        note(format_args!(
            "in all: {} generated; of prompts, {} had been computed before and {} of earlier turns were computed again\ncontext: {}",
            count(all.generated, "token"),
            all.kept,
            all.changed,
            self.meter()
        ));
    }
}

/// Whether somebody sits at a terminal.
pub(super) fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}
