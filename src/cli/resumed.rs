//! A prompt that goes on from a session file (`generate --session`).

use std::path::Path;

use super::error::CliError;
use super::guard::guarded;
use super::kept::{Begun, Kept, reply};
use super::output::note;
use crate::chat::{Conversation, ReplyReader, Turn};
use crate::engine::{Engine, Session};
use crate::gpu::wait::Wait;
use crate::plural::count;

/// The conversation of a session file, and the prompt that goes on with it.
pub(super) struct Resumed {
    kept: Kept,
    conversation: Conversation,
    raw: bool,
    begun: Begun,
    /// Tokens that stay, whatever happens to the prompt.
    reused: usize,
}

/// A prompt with all that goes before it.
pub(super) struct Prompt {
    /// All tokens.
    pub(super) tokens: Vec<u32>,
    /// The prompt as text, where there is a chat template.
    pub(super) rendered: Option<String>,
}

impl Resumed {
    /// Opens the file at `path` for a text that is continued as it is (`raw`) or for a conversation.
    pub(super) fn open(path: &Path, engine: &Engine, raw: bool) -> Result<Self, CliError> {
        let kept = Kept::open(path, engine, raw)?;
        if let Some(text) = &kept.unanswered {
            note(format_args!(
                "session {}: not answered, and left out: {text}",
                kept.name()
            ));
        }
        Ok(Self {
            conversation: kept.conversation().clone(),
            kept,
            raw,
            begun: Begun::default(),
            reused: 0,
        })
    }

    /// The tokens of all that was said with the next prompt.
    ///
    /// # Errors
    /// The refusal of the tokenizer or the template.
    pub(super) fn prompt(
        &mut self,
        engine: &Engine,
        system: Option<&str>,
        prompt: &str,
        think: Option<bool>,
    ) -> Result<Prompt, CliError> {
        let tokenizer = engine.tokenizer();
        if self.raw {
            let said = self.kept.tokens();
            let next = tokenizer.encode(prompt, said.is_empty())?;
            let tokens = [said, &next].concat();
            self.begun.from = tokens.len();
            return Ok(Prompt {
                tokens,
                rendered: None,
            });
        }
        if let Some(system) = system {
            self.conversation.system = Some(system.to_owned());
        }
        self.conversation.turns.push(Turn::User(prompt.to_owned()));
        let prompt = guarded(|| self.conversation.prompt(engine, think))?;
        self.begun = Begun {
            from: prompt.ids.len(),
            thinking: ReplyReader::new(tokenizer, &prompt.text).is_thinking(),
        };
        Ok(Prompt {
            tokens: prompt.ids,
            rendered: Some(prompt.text),
        })
    }

    /// A session that goes on from the file, and what of the tokens of a prompt is left to be evaluated.
    ///
    /// # Errors
    /// Where the file is refused, the prompt has no room, or the file cannot be written.
    pub(super) fn begin(
        &mut self,
        engine: &Engine,
        tokens: &[u32],
    ) -> Result<(Session, Vec<u32>), CliError> {
        let mut session = engine.session().wait()?;
        self.kept.restore(&mut session)?;
        let (said, cached) = (session.position(), session.cached());
        let left = session.sync(tokens).to_vec();
        self.reused = session.position();
        engine.check_tokens(&left, self.reused)?;
        match said {
            0 => note(format_args!("session {}: begun", self.kept.name())),
            _ => note(format_args!(
                "session {}: {}, {cached} of them in the cache; {} reused, {} forgotten",
                self.kept.name(),
                count(said, "token"),
                session.cached(),
                said - self.reused,
            )),
        }
        let (conversation, begun) = (&self.conversation, self.begun);
        self.kept.begin(&mut session, conversation, begun, &left)?;
        Ok((session, left))
    }

    /// Keeps a token of the answer.
    pub(super) fn journal(&mut self, token: u32) -> Result<(), CliError> {
        self.kept.journal(&[token])
    }

    /// Saves the question and its answer. The answer ends before the first text of `stops`. If the prompt was interrupted before it was
    /// evaluated, nothing is added.
    pub(super) fn end(mut self, session: &mut Session, stops: &[String]) -> Result<(), CliError> {
        match session.tokens().get(self.begun.from..) {
            _ if self.raw => {}
            Some(answer) => {
                let engine = session.engine();
                let mut reply = reply(engine, self.begun, answer);
                reply.answer.end_before(stops, engine.tokenizer())?;
                self.conversation.turns.push(Turn::Reply(reply));
            }
            None => {
                self.conversation.take_last();
                session.truncate(self.reused);
            }
        }
        self.kept.save(session, &self.conversation)
    }
}
