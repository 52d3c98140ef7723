//! A conversation as its user steers it: lines are read, messages are answered, and commands are done.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::clipboard;
use super::commands::{self, Command};
use super::line::{Line, Lines};
use super::settings::Settings;
use super::talk::{Talk, Took, is_fatal};
use crate::chat::{Conversation, Turn};
use crate::cli::args::{ContextArgs, EngineArgs, ModelArgs};
use crate::cli::config;
use crate::cli::error::CliError;
use crate::cli::guard::guarded;
use crate::cli::interrupt;
use crate::cli::kept::Kept;
use crate::cli::load;
use crate::cli::output::{complain, detail, note};
use crate::cli::sampling::Choice;
use crate::cli::text::{self, Input};
use crate::cli::tty;
use crate::engine::{Engine, KeepWarm, Opened};
use crate::plural::count;

/// A conversation without the engine that it is held with, which goes on with another one.
pub(super) struct Told {
    lines: Lines,
    conversation: Conversation,
    settings: Settings,
    choice: Choice,
    /// The file in which the conversation is kept.
    file: Option<PathBuf>,
    all: Took,
    last: Option<Took>,
    read: Vec<String>,
    unanswered: Option<(String, bool)>,
    /// The question that is asked before any line is read.
    pub(super) first: Option<String>,
    /// Whether an engine was used before.
    is_begun: bool,
}

impl Told {
    /// A conversation that begins.
    pub(super) fn new(
        lines: Lines,
        conversation: Conversation,
        settings: Settings,
        choice: Choice,
    ) -> Self {
        Self {
            lines,
            conversation,
            settings,
            choice,
            file: None,
            all: Took::default(),
            last: None,
            read: vec![],
            unanswered: None,
            first: None,
            is_begun: false,
        }
    }
}

/// The model that is loaded, and its device: what the flags say.
pub(super) struct Place<'a> {
    pub(super) model: &'a ModelArgs,
    pub(super) engine: &'a EngineArgs,
    pub(super) ctx: &'a ContextArgs,
    /// Whether lines are broken between words.
    pub(super) wrapped: bool,
}

/// How tokens are chosen.
pub(super) fn choice(settings: &Settings, opened: &Opened) -> Result<Choice, CliError> {
    let no_thoughts = settings.thinks(None) == Some(false);
    let mut choice = Choice::new(&settings.sampling, opened, no_thoughts)?;
    choice.host.extend(settings.grammar.flag());
    Ok(choice)
}

/// The number of tokens in `ctx N`, under the names of the flag.
fn context(text: &str) -> Option<&str> {
    let (name, number) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let is_context = ["ctx", "--ctx", "ctx-size", "--ctx-size", "-c", "num_ctx"].contains(&name);
    is_context.then_some(number.trim())
}

/// Whether the chat template can do what is said of thinking.
///
/// # Errors
/// [`TokenizerError::NoThinkingSwitch`](crate::tokenizer::TokenizerError::NoThinkingSwitch), or what the template refuses.
pub(super) fn check_thinking(settings: &Settings, opened: &Opened) -> Result<(), CliError> {
    let mut probe = Conversation::new(None);
    probe.turns.push(Turn::User("Hello".to_owned()));
    let thinks = settings.thinks(opened.chat_template());
    guarded(|| Ok(probe.prompt(opened, thinks).map(drop)?))
}

/// A conversation and where its lines come from.
pub(super) struct Console<'a> {
    place: &'a Place<'a>,
    talk: Talk<'a>,
    lines: Lines,
    /// Texts of files that go with the next message.
    read: Vec<String>,
    /// The last message, if it has no answer: the context had no room for it, or Ctrl-C came first. With it, whether it replaces the
    /// question before.
    unanswered: Option<(String, bool)>,
    /// Whether the next message replaces the last.
    editing: bool,
    /// The question that is asked before any line is read.
    first: Option<String>,
    /// The opened model that the conversation goes on with, if it was given another context.
    next: Option<Opened>,
}

impl<'a> Console<'a> {
    /// Goes on with what was told before.
    pub(super) fn new(
        place: &'a Place<'a>,
        engine: &'a Engine,
        before: Told,
    ) -> Result<Self, CliError> {
        let (settings, choice) = (before.settings, before.choice);
        let talk = Talk::new(engine, before.conversation, settings, choice, place.wrapped)?;
        let mut console = Self {
            place,
            talk,
            lines: before.lines,
            read: before.read,
            unanswered: before.unanswered,
            editing: false,
            first: before.first,
            next: None,
        };
        console.talk.all = before.all;
        console.talk.last = before.last;
        if let Some(path) = before.file {
            let mut kept = Kept::open(&path, engine, false)?;
            kept.restore(&mut console.talk.session)?;
            console.talk.kept = Some(kept);
        }
        console.talk.measure();
        if !before.is_begun {
            detail(format_args!("{}", load::context(engine)));
            console.talk.choice.tell(detail);
            if console.lines.is_terminal() {
                tty::remember();
                note(format_args!("/help lists the commands, Ctrl-D leaves"));
            }
        } else {
            note(format_args!("{}", load::context(engine)));
        }
        Ok(console)
    }

    /// The state that goes on without this engine.
    pub(super) fn told(self) -> Told {
        let talk = self.talk;
        Told {
            lines: self.lines,
            conversation: talk.conversation,
            settings: talk.settings,
            choice: talk.choice,
            file: talk.kept.map(|kept| kept.path().to_owned()),
            all: talk.all,
            last: talk.last,
            read: self.read,
            unanswered: self.unanswered,
            first: self.first,
            is_begun: true,
        }
    }

    /// Changes the system prompt.
    pub(super) fn system(&mut self, text: Option<String>) {
        self.talk.conversation.system = text;
        self.talk.measure();
    }

    /// Takes lines until the end. Returned is what the conversation goes on with, if it does not end.
    pub(super) fn run(&mut self) -> Result<Option<Opened>, CliError> {
        loop {
            let line = match self.first.take() {
                Some(text) => {
                    if self.lines.is_terminal() {
                        interrupt::at_prompt();
                        note(format_args!("> {text}"));
                    }
                    Line::Message(text)
                }
                None => self.line()?,
            };
            let unseen = tty::Unseen::new();
            let done = match line {
                Line::End => return Ok(None),
                Line::Cancelled => {
                    self.editing = false;
                    note(format_args!("Ctrl-D leaves"));
                    continue;
                }
                Line::Message(text) => self.say(text).map(ControlFlow::Continue),
                Line::Text(text) if text.trim().is_empty() => continue,
                Line::Text(text) => self.take(text),
            };
            drop(unseen);
            match done {
                Ok(ControlFlow::Break(())) => return Ok(self.next.take()),
                Ok(ControlFlow::Continue(())) => {}
                // Who types sees it and goes on; a script has failed.
                Err(error) if self.lines.is_terminal() && !is_fatal(&error) => {
                    complain(format_args!("{error}"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next line.
    fn line(&mut self) -> Result<Line, CliError> {
        let is_terminal = self.lines.is_terminal();
        let warm = self.talk.session.warm().filter(|_| is_terminal);
        // Without a thread for it, the next answer only begins later.
        let _warm = warm.and_then(|touch| KeepWarm::new(touch).ok());
        if is_terminal {
            interrupt::at_prompt();
        }
        let line = self.lines.next(self.meter())?;
        if is_terminal {
            // Ctrl-C while a plain line is typed stops nothing that follows.
            interrupt::at_prompt();
        }
        Ok(line)
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
        self.say(commands::message(&text).to_owned())?;
        Ok(ControlFlow::Continue(()))
    }

    /// Says `text` behind the files that go with it.
    fn say(&mut self, text: String) -> Result<(), CliError> {
        let mut texts = std::mem::take(&mut self.read);
        texts.push(text);
        let replaces = std::mem::take(&mut self.editing);
        self.ask(texts.join("\n\n"), replaces)
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
                self.system(None);
                note(format_args!("the system prompt is removed"));
            }
            Command::System(text) => {
                self.system(Some(text.to_owned()));
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
            Command::Copy => {
                let reply = self.talk.conversation.last_reply();
                let reply = reply.ok_or(CliError::NothingAsked)?;
                let way = clipboard::copy(reply.answer.text.trim())?;
                note(format_args!("the last answer is copied {way}"));
            }
            Command::Stats => self.stats(),
            Command::Set("") => self.show_settings(),
            Command::Set(text) => match context(text) {
                Some(number) => return self.take_context(number),
                None => self.set(text)?,
            },
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
            if !self.lines.put(&last) {
                note(format_args!("your next message takes the place of: {last}"));
            }
            return Ok(());
        }
        self.ask(text.to_owned(), replaces)
    }

    /// Goes on with the conversation of a session file, and keeps it there.
    pub(super) fn go_on(&mut self, path: &Path) -> Result<(), CliError> {
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
        let is_question = |turn: &&Turn| matches!(turn, Turn::User(_));
        let questions = |conversation: &Conversation| {
            let turns = conversation.turns.iter();
            turns.filter(is_question).count()
        };
        let mut dropped = (0..wanted).filter(|_| conversation.drop_oldest()).count();
        if dropped < wanted && questions(conversation) == 1 {
            conversation.turns.clear();
            dropped += 1;
        }
        let left = questions(conversation);
        self.talk.measure();
        if dropped == 0 {
            note(format_args!("there is no question to forget"));
            return self.ask_unanswered();
        }
        let answers = if dropped == 1 {
            "its answer"
        } else {
            "their answers"
        };
        let kept = self.talk.kept.as_ref();
        let kept = kept.map_or_else(String::new, |kept| {
            let name = kept.name();
            format!("; the session file {name} keeps them until your next message, and /load {name} brings them back")
        });
        note(format_args!(
            "forgot {}, the oldest, and {answers}; {} left, {}{kept}",
            count(dropped, "question"),
            count(left, "question"),
            self.meter()
        ));
        self.ask_unanswered()
    }

    /// Asks what has no answer, if there is something.
    fn ask_unanswered(&mut self) -> Result<(), CliError> {
        match self.unanswered.take() {
            Some((text, replaces)) => self.ask(text, replaces),
            None => Ok(()),
        }
    }

    /// Has the conversation go on with a context of `number` tokens. The model is loaded again for it.
    fn take_context(&mut self, number: &str) -> Result<ControlFlow<()>, CliError> {
        let ctx = number.parse::<usize>().map_err(|_| {
            let found = if number.is_empty() { "nothing" } else { number };
            config::wrong(
                "/set ctx",
                format!("found {found}, expected a number of tokens, or 0 for all of the model"),
            )
        })?;
        let wanted = ContextArgs {
            ctx: Some(ctx),
            ..self.place.ctx.clone()
        };
        let opened = load::open(self.place.model, self.place.engine, &wanted)?;
        if opened.n_ctx() == self.talk.engine.n_ctx() {
            note(format_args!(
                "the context is {} already",
                count(ctx, "token")
            ));
            return Ok(ControlFlow::Continue(()));
        }
        if self.talk.used >= opened.n_ctx() {
            note(format_args!(
                "the conversation has {}, so /drop or /clear has to make room in that context",
                count(self.talk.used, "token")
            ));
        }
        self.talk.save()?;
        self.next = Some(opened);
        Ok(ControlFlow::Break(()))
    }

    /// Changes a setting.
    fn set(&mut self, text: &str) -> Result<(), CliError> {
        let mut settings = self.talk.settings.clone();
        settings.set(text)?;
        let engine = self.talk.engine;
        let mut choice = choice(&settings, engine)?;
        check_thinking(&settings, engine)?;
        let grammar = settings.grammar.grammar(engine)?;
        if !text.trim_start_matches('-').starts_with("seed") {
            choice.keep_seed(&self.talk.choice);
        }
        self.talk.choice = choice;
        self.talk.grammar = grammar;
        self.talk.settings = settings;
        self.show_settings();
        Ok(())
    }

    /// Tells how answers are generated.
    fn show_settings(&self) {
        let choice = &self.talk.choice;
        choice.tell(note);
        let line = self.talk.settings.line(choice.sampling().seed);
        note(format_args!("{line}; ctx: {}", self.talk.engine.n_ctx()));
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
