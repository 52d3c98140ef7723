//! Conversations and texts in session files.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::output::note;
use crate::chat::{Conversation, Reply, ReplyReader, Turn};
use crate::engine::{Engine, Session, SessionFile};
use crate::gpu::wait::Wait;

/// The data that is kept beside the tokens, as JSON.
#[derive(Default, Serialize, Deserialize)]
struct Data {
    /// Whether a text is continued as it is, so that there are no turns.
    raw: bool,
    conversation: Conversation,
    /// The answer whose end was not saved yet.
    begun: Option<Begun>,
}

/// An answer while it is generated.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Begun {
    /// Tokens before it.
    pub(super) from: usize,
    /// Whether the template has opened thoughts.
    pub(super) thinking: bool,
}

/// A session file and what is said in it.
pub(super) struct Kept {
    file: SessionFile,
    data: Data,
    /// A question that had no answer when the program ended.
    pub(super) unanswered: Option<String>,
}

impl Kept {
    /// Opens the file at `path`, or begins it, for a text that is continued as it is (`raw`) or for a conversation.
    ///
    /// # Errors
    /// Where the file is refused, or holds what something else has kept.
    pub(super) fn open(path: &Path, engine: &Engine, raw: bool) -> Result<Self, CliError> {
        Self::of(SessionFile::open(path, engine)?, engine, raw)
    }

    /// This session as the file held it at its last save.
    pub(super) fn again(self, engine: &Engine) -> Result<Self, CliError> {
        let raw = self.data.raw;
        Self::of(self.file, engine, raw)
    }

    fn of(file: SessionFile, engine: &Engine, raw: bool) -> Result<Self, CliError> {
        let named = || file.path().display().to_string();
        let mut data = match file.data() {
            [] => Data {
                raw,
                ..Data::default()
            },
            data => serde_json::from_slice(data).map_err(|source| CliError::SessionData {
                path: named(),
                source,
            })?,
        };
        if data.raw != raw && !file.tokens().is_empty() {
            return Err(match raw {
                true => CliError::SessionHasTurns { path: named() },
                false => CliError::SessionIsRaw { path: named() },
            });
        }
        data.raw = raw;
        let begun = data.begun.take().filter(|_| !raw);
        let reply = begun.and_then(|begun| {
            let answer = file.tokens().get(begun.from..)?;
            (!answer.is_empty()).then(|| reply(engine, begun, answer))
        });
        if let Some(reply) = reply {
            data.conversation.turns.push(Turn::Reply(reply));
        }
        let unanswered = match data.conversation.turns.last() {
            Some(Turn::User(_)) => data.conversation.take_last(),
            _ => None,
        };
        Ok(Self {
            file,
            data,
            unanswered,
        })
    }

    /// The conversation in the file, as turns.
    pub(super) fn conversation(&self) -> &Conversation {
        &self.data.conversation
    }

    /// The tokens in it.
    pub(super) fn tokens(&self) -> &[u32] {
        self.file.tokens()
    }

    /// Whether the file has neither tokens nor turns.
    pub(super) fn is_new(&self) -> bool {
        self.file.tokens().is_empty() && self.conversation().turns.is_empty()
    }

    /// Whether the session's file is the one at `path`.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().ok();
        real(path).is_some_and(|path| Some(path) == real(self.file.path()))
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file's name.
    pub(super) fn name(&self) -> String {
        self.file.path().display().to_string()
    }

    /// Puts what it holds into `session`, and says what differs between here and where it was computed.
    pub(super) fn restore(&mut self, session: &mut Session) -> Result<(), CliError> {
        self.file.restore(session).wait()?;
        if let Some(differs) = self.file.differs() {
            note(format_args!("session {}: {differs}", self.name()));
        }
        Ok(())
    }

    /// Saves what is said before an answer, and where that answer begins (`begun`). Then it journals the tokens that are `left` to be
    /// evaluated before the answer.
    pub(super) fn begin(
        &mut self,
        session: &mut Session,
        conversation: &Conversation,
        begun: Begun,
        left: &[u32],
    ) -> Result<(), CliError> {
        self.data.begun = Some(begun);
        self.write(session, conversation)?;
        self.journal(left)
    }

    /// Keeps tokens that follow.
    pub(super) fn journal(&mut self, tokens: &[u32]) -> Result<(), CliError> {
        Ok(self.file.journal(tokens)?)
    }

    /// Saves what is said, of which nothing is unfinished.
    pub(super) fn save(
        &mut self,
        session: &mut Session,
        conversation: &Conversation,
    ) -> Result<(), CliError> {
        self.data.begun = None;
        self.write(session, conversation)
    }

    fn write(
        &mut self,
        session: &mut Session,
        conversation: &Conversation,
    ) -> Result<(), CliError> {
        self.data.conversation.clone_from(conversation);
        let data = serde_json::to_vec(&self.data).map_err(|source| CliError::SessionData {
            path: self.name(),
            source,
        })?;
        Ok(self.file.save(session, &data).wait()?)
    }
}

/// The reply that the tokens of `answer` are.
pub(super) fn reply(engine: &Engine, begun: Begun, answer: &[u32]) -> Reply {
    let opened = if begun.thinking { "<think>" } else { "" };
    let mut reader = ReplyReader::new(engine.tokenizer(), opened);
    for &token in answer {
        reader.push(token);
    }
    reader.finish().0
}
