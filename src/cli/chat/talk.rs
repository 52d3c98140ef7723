//! A conversation as it goes on: the turns, what of them is computed, and the answers.

use std::time::Duration;

use super::settings::{Settings, Think};
use super::show::Show;
use crate::chat::{Conversation, Prompt, ReplyReader, Turn};
use crate::cli::answer::rate;
use crate::cli::draft;
use crate::cli::error::{CliError, MORE_ROOM};
use crate::cli::guard::guarded;
use crate::cli::interrupt;
use crate::cli::kept::{Begun, Kept};
use crate::cli::output::note;
use crate::cli::run::{self, Ran};
use crate::cli::sampling::Choice;
use crate::engine::chooser::{Chain, ChainSettings, Chooser, Constrained, Grammar};
use crate::engine::{Engine, EngineError, Session, StopReason};
use crate::gpu::wait::Wait;
use crate::plural::count;

/// The tokens and the time that an answer took.
#[derive(Clone, Copy, Default)]
pub(super) struct Took {
    /// Tokens of the conversation up to the answer.
    pub(super) prompt: usize,
    /// Tokens of the prompt that were computed before.
    pub(super) kept: usize,
    /// Tokens of earlier turns that were computed again, since the template changed what stands before them.
    pub(super) changed: usize,
    /// Tokens of thoughts and answer.
    pub(super) generated: usize,
    /// Tokens that were computed one by one.
    pub(super) steps: usize,
    pub(super) prompt_time: Duration,
    pub(super) generate_time: Duration,
    /// Drafts, and those of them that were accepted.
    pub(super) drafted: usize,
    pub(super) accepted: usize,
}

impl Took {
    /// The tokens and the time of the answer, in three lines.
    pub(super) fn lines(&self) -> String {
        let new = self.prompt - self.kept;
        let changed = match self.changed {
            0 => String::new(),
            changed => format!(
                "; what stands before earlier turns has changed, so {changed} of their tokens again"
            ),
        };
        format!(
            "prompt: {}, of which {} computed before\n\
             computed: {}{}{changed}\n\
             generated: {}{}{}",
            count(self.prompt, "token"),
            self.kept,
            count(new, "token"),
            rate(new, self.prompt_time),
            count(self.generated, "token"),
            rate(self.steps, self.generate_time),
            draft::told(self.drafted, self.accepted),
        )
    }
}

/// How an answer ended.
enum Ended {
    /// The session ended it.
    By(StopReason),
    Interrupted,
    /// The thoughts were as many as they may be.
    ThoughtLimit,
    /// A text of `--stop` came.
    StopText,
}

/// A conversation with its session.
pub(super) struct Talk<'a> {
    pub(super) engine: &'a Engine,
    pub(super) session: Session,
    pub(super) conversation: Conversation,
    pub(super) settings: Settings,
    pub(super) choice: Choice,
    /// The grammar of answers.
    pub(super) grammar: Option<Grammar>,
    /// Whether lines are broken between words.
    wrapped: bool,
    /// The file in which the conversation is kept.
    pub(super) kept: Option<Kept>,
    /// Tokens of the conversation as it is.
    pub(super) used: usize,
    /// Whether Ctrl-C stopped the last answer.
    pub(super) interrupted: bool,
    /// How often an answer was asked for again: each time draws differ.
    again: u64,
    /// The tokens and the time of the last answer; `all` sums them up over all answers.
    pub(super) last: Option<Took>,
    pub(super) all: Took,
}

impl<'a> Talk<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        conversation: Conversation,
        settings: Settings,
        choice: Choice,
        wrapped: bool,
    ) -> Result<Self, CliError> {
        Ok(Self {
            engine,
            session: engine.session().wait()?,
            conversation,
            grammar: settings.grammar.grammar(engine)?,
            settings,
            choice,
            wrapped,
            kept: None,
            used: 0,
            interrupted: false,
            again: 0,
            last: None,
            all: Took::default(),
        })
    }

    /// Says `text` to the model and shows the answer. It takes the place of the last question if it `replaces` that. Returned is whether
    /// there is an answer: Ctrl-C may come before. Without one the conversation is as it was.
    ///
    /// # Errors
    /// [`CliError::ContextFull`], or what the template or the device refuses.
    pub(super) fn ask(&mut self, text: String, replaces: bool) -> Result<bool, CliError> {
        let before = self.conversation.clone();
        if replaces {
            self.conversation.take_last();
        }
        self.conversation.turns.push(Turn::User(text));
        let answered = self.answer();
        let is_answered = self.conversation.last_reply().is_some();
        if !is_answered {
            self.conversation = before;
        }
        self.measure();
        let saved = self.save();
        answered.and(saved).map(|()| is_answered)
    }

    /// Counts the tokens of the conversation as it is.
    pub(super) fn measure(&mut self) {
        self.used = match self.conversation.last_reply() {
            None => 0,
            // Where the template refuses, the next question tells why.
            Some(_) => match self.prompt() {
                Ok(prompt) => prompt.earlier,
                Err(_) => self.session.position(),
            },
        };
    }

    /// The tokens of the conversation in the chat template.
    fn prompt(&self) -> Result<Prompt, CliError> {
        let thinks = self.settings.thinks(self.engine.chat_template());
        guarded(|| Ok(self.conversation.prompt(self.engine, thinks)?))
    }

    /// Saves the conversation as it is, where it is kept.
    ///
    /// # Errors
    /// The refusal of the file. The conversation goes on all the same.
    pub(super) fn save(&mut self) -> Result<(), CliError> {
        match &mut self.kept {
            Some(kept) => kept.save(&mut self.session, &self.conversation),
            None => Ok(()),
        }
    }

    /// Lets the next answers be drawn otherwise.
    pub(super) fn draw_anew(&mut self) {
        self.again += 1;
    }

    /// The last question is answered.
    fn answer(&mut self) -> Result<(), CliError> {
        let engine = self.engine;
        self.interrupted = false;
        let prompt = self.prompt()?;
        let n_ctx = engine.n_ctx();
        // An answer needs a place of its own.
        if prompt.ids.len() >= n_ctx {
            return Err(CliError::ContextFull {
                needed: prompt.ids.len(),
                n_ctx,
            });
        }
        let left = self.session.sync(&prompt.ids);
        let kept = self.session.position();
        let mut took = Took {
            prompt: prompt.ids.len(),
            kept,
            changed: prompt.earlier.saturating_sub(kept),
            ..Took::default()
        };
        let mut reader = ReplyReader::new(engine.tokenizer(), &prompt.text);
        if let Some(file) = &mut self.kept {
            // If the program is ended, question and answer are in the file up to there.
            let begun = Begun {
                from: prompt.ids.len(),
                thinking: reader.is_thinking(),
            };
            file.begin(&mut self.session, &self.conversation, begun, left)?;
        }
        let folded = self.settings.think == Some(Think::Hide);
        let mut show = Show::new(folded, self.wrapped, &self.settings.stop);
        let ended = self.generate(&prompt, &mut reader, &mut show, &mut took);
        interrupt::end_answer();
        self.interrupted = matches!(ended, Ok(Ended::Interrupted));
        let (mut reply, rest) = reader.finish();
        show.token(rest, false)?;
        show.end()?;
        if matches!(ended, Ok(Ended::StopText)) {
            let stops = &self.settings.stop;
            reply.answer.end_before(stops, engine.tokenizer())?;
        }
        let is_empty = reply.answer.text.trim().is_empty();
        let passages = reply.thoughts.iter().chain([&reply.answer]);
        let said = passages.map(|passage| passage.ids.len()).sum::<usize>() > 0;
        // A question whose evaluation was stopped has no answer.
        if said || matches!(ended, Ok(Ended::By(_) | Ended::StopText)) {
            self.conversation.turns.push(Turn::Reply(reply));
        }
        self.last = Some(took);
        self.all.kept += took.kept;
        self.all.changed += took.changed;
        self.all.generated += took.generated;
        self.all.drafted += took.drafted;
        self.all.accepted += took.accepted;
        tell(ended?, is_empty, &self.settings, n_ctx);
        Ok(())
    }

    /// Generates thoughts and answer. The mark that ends the thoughts is put in where they are as many as they may be.
    fn generate(
        &mut self,
        prompt: &Prompt,
        reader: &mut ReplyReader<'_>,
        show: &mut Show,
        took: &mut Took,
    ) -> Result<Ended, CliError> {
        let mut chain = self.choice.chain.clone();
        chain.sampling.seed = chain.sampling.seed.wrapping_add(self.again);
        let grammar = self.grammar.clone();
        // Thoughts are free.
        let end = reader.closing_mark().filter(|_| reader.is_thinking());
        let constrained = || Constrained::new(Chain::new(chain.clone()), grammar, end);
        let mut host = (!self.choice.host.is_empty()).then(constrained);
        let mut tokens = prompt.ids[took.kept..].to_vec();
        if reader.is_thinking() && self.settings.think_limit == Some(0) {
            tokens.extend(self.close(reader, host.as_mut())?);
        }
        loop {
            let left = self.settings.limit().saturating_sub(took.generated);
            let chooser = host.as_mut().map(|host| host as &mut dyn Chooser);
            let ended = self.run(&tokens, (&chain, chooser), left, reader, show, took)?;
            let full = self.session.position() + 2 > self.engine.n_ctx();
            let ended = match ended {
                Ended::ThoughtLimit if left > 1 && !full => {
                    tokens = self.close(reader, host.as_mut())?;
                    continue;
                }
                Ended::ThoughtLimit if full => Ended::By(StopReason::ContextFull),
                Ended::ThoughtLimit => Ended::By(StopReason::Limit),
                ended => ended,
            };
            let is_cut = host.as_mut().and_then(Constrained::may_end) == Some(false);
            if is_cut && !matches!(ended, Ended::Interrupted) {
                note(format_args!("the answer ends before its grammar does"));
            }
            return Ok(ended);
        }
    }

    /// Has the thoughts end. Returned is the token that does it.
    fn close(
        &mut self,
        reader: &mut ReplyReader<'_>,
        host: Option<&mut Constrained<Chain>>,
    ) -> Result<Vec<u32>, CliError> {
        let mark: Vec<_> = reader.closing_mark().into_iter().collect();
        for &mark in &mark {
            reader.push(mark);
        }
        if let (Some(host), &[mark]) = (host, &mark[..]) {
            host.accept(mark).map_err(EngineError::from)?;
        }
        if let Some(kept) = &mut self.kept {
            kept.journal(&mark)?;
        }
        Ok(mark)
    }

    /// Evaluates `tokens` and takes up to `limit` tokens of the answer.
    fn run(
        &mut self,
        tokens: &[u32],
        (chain, host): (&ChainSettings, Option<&mut dyn Chooser>),
        limit: usize,
        reader: &mut ReplyReader<'_>,
        show: &mut Show,
        took: &mut Took,
    ) -> Result<Ended, CliError> {
        let think_limit = self.settings.think_limit.unwrap_or(usize::MAX);
        let kept = &mut self.kept;
        let take = &mut |token| {
            let piece = reader.push(token);
            let thinking = reader.is_thinking();
            let thoughts = reader.reply().thoughts.as_ref();
            let thought = thoughts.map_or(0, |thoughts| thoughts.ids.len());
            kept.as_mut()
                .map_or(Ok(()), |kept| kept.journal(&[token]))?;
            Ok(match show.token(piece, thinking)? {
                true => Some(Ended::StopText),
                false => (thinking && thought >= think_limit).then_some(Ended::ThoughtLimit),
            })
        };
        let how = (chain, host);
        let Ran { stats, ended } = run::run(&mut self.session, tokens, how, limit, take)?;
        // The mark that ended the thoughts counts as generated.
        let mark = usize::from(took.generated > 0);
        if mark == 0 {
            took.prompt_time = stats.prompt_time;
        } else {
            took.generate_time += stats.prompt_time;
        }
        took.generated += mark + stats.generated;
        took.steps += mark + stats.steps;
        took.generate_time += stats.generate_time;
        took.drafted += stats.drafted;
        took.accepted += stats.accepted;
        Ok(match interrupt::requested() {
            true => Ended::Interrupted,
            false => ended.unwrap_or(Ended::By(stats.stop)),
        })
    }
}

/// Tells why an answer ended, unless the model ended it.
fn tell(ended: Ended, is_empty: bool, settings: &Settings, n_ctx: usize) {
    match ended {
        Ended::Interrupted => note(format_args!("stopped")),
        Ended::By(StopReason::ContextFull) => note(format_args!(
            "the context of {} is full, so the answer is cut; {MORE_ROOM}",
            count(n_ctx, "token")
        )),
        Ended::By(StopReason::SentenceEnd) => note(format_args!(
            "the context of {} is nearly full, so the answer ends here; {MORE_ROOM}",
            count(n_ctx, "token")
        )),
        Ended::By(StopReason::Limit) => note(format_args!(
            "stopped at the limit of {} (/set n-predict)",
            count(settings.limit(), "token")
        )),
        Ended::By(StopReason::StopToken) if is_empty => {
            note(format_args!("the model ended its answer without a text"));
        }
        Ended::By(_) | Ended::ThoughtLimit | Ended::StopText => {}
    }
}

/// Whether the conversation cannot go on after `error`.
pub(super) fn is_fatal(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Write(_)
            | CliError::BrokenPipe
            | CliError::Input(_)
            | CliError::Engine(EngineError::Gpu(_) | EngineError::Backend(_))
    )
}
