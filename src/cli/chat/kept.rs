//! Conversations in session files.

use std::path::Path;

use crate::chat::{Conversation, ReplyReader, Turn};
use crate::cli::error::CliError;
use crate::cli::guard::guarded;
use crate::cli::output::note;
use crate::engine::{Engine, Session, SessionFile};
use crate::plural::count;

/// A conversation that a session file holds.
pub(super) struct Kept {
    pub(super) file: SessionFile,
    pub(super) conversation: Conversation,
    /// A question that was not answered before the program ended.
    pub(super) unanswered: Option<String>,
}

impl Kept {
    /// Opens the file at `path`, or begins it, and puts what it holds into `session`.
    ///
    /// # Errors
    /// [`CliError::NoConversation`], or what the file refuses.
    pub(super) fn open(
        path: &Path,
        engine: &Engine,
        session: &mut Session<'_>,
    ) -> Result<Self, CliError> {
        let mut file = SessionFile::open(path, engine)?;
        let mut conversation = match (file.data(), file.tokens()) {
            ([], []) => Conversation::default(),
            (data, _) => Conversation::from_json(data).ok_or_else(|| CliError::NoConversation {
                path: path.display().to_string(),
            })?,
        };
        let unanswered = match conversation.turns().last() {
            Some(Turn::User(_)) => finish(&mut conversation, engine, file.tokens())?,
            _ => None,
        };
        file.restore(session)?;
        tell(&file, &conversation);
        Ok(Self {
            file,
            conversation,
            unanswered,
        })
    }
}

/// Makes a turn of the answer to the last question that the journal holds. If it holds none, the question is returned.
fn finish(
    conversation: &mut Conversation,
    engine: &Engine,
    tokens: &[u32],
) -> Result<Option<String>, CliError> {
    let reply = guarded("the chat template", || {
        // Which of them was asked for then is not kept.
        [None, Some(true), Some(false)]
            .into_iter()
            .find_map(|think| {
                let prompt = conversation.prompt(engine, think).ok()?;
                let answer = tokens.strip_prefix(&*prompt.ids)?;
                let mut reader = ReplyReader::new(engine.tokenizer(), &prompt.text);
                for &token in answer {
                    reader.push(token);
                }
                (!answer.is_empty()).then(|| reader.finish().0)
            })
    });
    match reply {
        Some(reply) => {
            conversation.push(Turn::Reply(reply));
            Ok(None)
        }
        None => Ok(conversation.take_last()),
    }
}

/// Says what was found.
fn tell(file: &SessionFile, conversation: &Conversation) {
    let path = file.path().display();
    if file.tokens().is_empty() {
        return note(format_args!("the conversation is kept in {path}"));
    }
    let missing = file.tokens().len() - file.cached();
    note(format_args!(
        "going on with {path}: {}, {}{}",
        count(conversation.turns().len(), "turn"),
        count(file.tokens().len(), "token"),
        match missing {
            0 | 1 => String::new(),
            missing => format!(", of which {missing} are computed again"),
        }
    ));
    if let Some(differs) = file.differs() {
        note(format_args!(
            "{differs}, so answers may differ from those that would have followed there"
        ));
    }
}
