//! A conversation that goes on from a session file (`generate --session`).

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::guard::guarded;
use super::output::note;
use crate::engine::{Engine, Session, SessionFile};
use crate::plural::count;
use crate::tokenizer::Message;

/// What is kept beside the tokens, as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Talk {
    /// Whether the text is continued as it is, so that there are no turns.
    raw: bool,
    messages: Vec<Turn>,
    /// Where the answer begins whose end was not saved, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_from: Option<usize>,
}

/// What somebody said.
#[derive(Debug, Serialize, Deserialize)]
struct Turn {
    role: String,
    content: String,
    /// The thoughts before an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    /// The tokens of an answer, thoughts among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ids: Vec<u32>,
}

/// A session file and the conversation in it.
pub(super) struct Kept {
    file: SessionFile,
    talk: Talk,
    /// Messages and tokens before this prompt.
    earlier: (usize, usize),
}

/// A prompt with all that goes before it.
pub(super) struct Prompt {
    /// All tokens.
    pub(super) tokens: Vec<u32>,
    /// As text, where there is a chat template.
    pub(super) rendered: Option<String>,
}

impl Kept {
    /// Opens the file at `path` for a conversation without a chat template (`raw`) or with one.
    ///
    /// # Errors
    /// Where the file is refused, or holds what something else has kept.
    pub(super) fn open(path: &Path, engine: &Engine, raw: bool) -> Result<Self, CliError> {
        let file = SessionFile::open(path, engine)?;
        let named = || path.display().to_string();
        let mut talk = match file.data() {
            [] => Talk {
                raw,
                ..Talk::default()
            },
            data => serde_json::from_slice(data).map_err(|source| CliError::SessionData {
                path: named(),
                source,
            })?,
        };
        if talk.raw != raw && !file.tokens().is_empty() {
            return Err(match raw {
                true => CliError::SessionHasTurns { path: named() },
                false => CliError::SessionIsRaw { path: named() },
            });
        }
        talk.raw = raw;
        if let Some(begin) = talk.answer_from.take()
            && let Some(answer) = file.tokens().get(begin..)
        {
            talk.end_turn(engine, answer, &[]);
        }
        if let Some(differs) = file.differs() {
            note(format_args!("session {}: {differs}", path.display()));
        }
        let earlier = (talk.messages.len(), file.tokens().len());
        Ok(Self {
            file,
            talk,
            earlier,
        })
    }

    /// The tokens of the conversation with the next prompt.
    ///
    /// # Errors
    /// What the tokenizer or the template refuses.
    pub(super) fn prompt(
        &mut self,
        engine: &Engine,
        system: Option<&str>,
        prompt: &str,
        think: Option<bool>,
    ) -> Result<Prompt, CliError> {
        let tokenizer = engine.tokenizer();
        if self.talk.raw {
            let said = self.file.tokens();
            let next = tokenizer.encode(prompt, said.is_empty())?;
            return Ok(Prompt {
                tokens: [said, &next].concat(),
                rendered: None,
            });
        }
        let messages = &mut self.talk.messages;
        if let Some(system) = system {
            messages.retain(|turn| turn.role != "system");
            messages.insert(0, Turn::new("system", system));
        }
        self.earlier.0 = messages.len();
        messages.push(Turn::new("user", prompt));
        let messages: Vec<_> = (messages.iter())
            .map(|turn| Message::new(&*turn.role, &*turn.content))
            .collect();
        let text = guarded("the chat template", || engine.render_chat(&messages, think))?;
        Ok(Prompt {
            tokens: tokenizer.encode_chat(&text)?,
            rendered: Some(text),
        })
    }

    /// A session that goes on from the file, and what of the tokens of a prompt is left to be evaluated.
    ///
    /// # Errors
    /// Where the file is refused, the prompt has no room, or the file cannot be written.
    pub(super) fn begin<'a>(
        &mut self,
        engine: &'a Engine,
        tokens: &[u32],
    ) -> Result<(Session<'a>, Vec<u32>), CliError> {
        let mut session = engine.session()?;
        self.file.restore(&mut session)?;
        let (said, cached) = (session.position(), session.cached());
        let reused = session.keep_common(tokens);
        self.earlier.1 = reused;
        let left = tokens[reused..].to_vec();
        engine.check_tokens(&left, reused)?;
        note(format_args!(
            "session {}: {}, {cached} of them in the cache; {} reused, {} forgotten",
            self.file.path().display(),
            count(said, "token"),
            session.cached(),
            said - reused,
        ));
        self.talk.answer_from = Some(tokens.len());
        self.save(&mut session)?;
        self.file.journal(&left)?;
        Ok((session, left))
    }

    /// Keeps a token of the answer.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(super) fn journal(&mut self, token: u32) -> Result<(), CliError> {
        Ok(self.file.journal(&[token])?)
    }

    /// Saves the turn, whose answer ends before the first of `stops`. A prompt that was interrupted before it was evaluated has not been
    /// said.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(super) fn end(
        mut self,
        session: &mut Session<'_>,
        stops: &[String],
    ) -> Result<(), CliError> {
        let begin = self.talk.answer_from.take().unwrap_or_default();
        match session.tokens().get(begin..) {
            Some(answer) => self.talk.end_turn(session.engine(), answer, stops),
            None => {
                self.talk.messages.truncate(self.earlier.0);
                session.truncate(self.earlier.1);
            }
        }
        self.save(session)
    }

    fn save(&mut self, session: &mut Session<'_>) -> Result<(), CliError> {
        let data = serde_json::to_vec(&self.talk).map_err(|source| CliError::SessionData {
            path: self.file.path().display().to_string(),
            source,
        })?;
        Ok(self.file.save(session, &data)?)
    }
}

impl Talk {
    /// Takes an answer.
    fn end_turn(&mut self, engine: &Engine, answer: &[u32], stops: &[String]) {
        if self.raw || answer.is_empty() {
            return;
        }
        let text = engine.tokenizer().decode(answer);
        let (reasoning, content) = match text.rsplit_once("</think>") {
            Some((thoughts, content)) => {
                let thoughts = thoughts.trim_start_matches("<think>");
                (Some(thoughts.trim().to_owned()), content.trim_start())
            }
            None => (None, &*text),
        };
        let ends = stops.iter().filter_map(|stop| content.find(stop.as_str()));
        let end = ends.min().unwrap_or(content.len());
        self.messages.push(Turn {
            role: "assistant".to_owned(),
            content: content[..end].to_owned(),
            reasoning,
            ids: answer.to_vec(),
        });
    }
}

impl Turn {
    fn new(role: &str, content: &str) -> Self {
        Self {
            role: role.to_owned(),
            content: content.to_owned(),
            reasoning: None,
            ids: vec![],
        }
    }
}
