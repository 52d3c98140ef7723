//! The errors of a vocabulary, a text or a chat template.

use crate::effort::Stopped;
use crate::gguf::GgufError;

/// Everything that building or using a tokenizer or a chat template can fail with.
///
/// Every message names the key, token or template line, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A tokenizer key of the file is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The vocabulary is of an unknown kind, or contradicts itself.
    #[error("{0}")]
    Vocabulary(String),
    /// A byte of the text has no token.
    #[error(
        "the text holds byte 0x{byte:02X}, for which the vocabulary has no token (expected one with the text {token:?})"
    )]
    ByteNotInVocabulary {
        /// The byte.
        byte: u8,
        /// The text that its token would have.
        token: String,
    },
    /// The text has more tokens than are wanted of it. Those behind are not counted.
    #[error("the text has more than {most} tokens; shorten it")]
    TooMany {
        /// The most that are wanted.
        most: usize,
    },
    /// The work on the text was stopped.
    #[error("the text was not read to its end: {0}")]
    Stopped(#[from] Stopped),
    /// The file has no chat template of the name asked for.
    #[error("there is no chat template named {name:?} in the file; it has {known}")]
    NoSuchTemplate {
        /// The name asked for.
        name: String,
        /// The names there are, separated by commas, or "none".
        known: String,
    },
    /// A chat template that cannot be parsed.
    #[error("{key} cannot be parsed, line {line}: {detail}")]
    TemplateSyntax {
        /// The metadata key of the template.
        key: String,
        /// Line of the template, counted from 1.
        line: usize,
        /// The error there.
        detail: String,
    },
    /// A chat template that refused the messages or failed on them.
    #[error("{key} failed, line {line}: {detail}")]
    TemplateRender {
        /// The metadata key of the template.
        key: String,
        /// Line of the template, counted from 1.
        line: usize,
        /// The error there; for `raise_exception` the template's own words.
        detail: String,
    },
    /// A chat template that was stopped, because it takes more work, time or memory than templates may.
    #[error(
        "{key} was stopped at line {line}: {reason}; give the prompt without it (glimt generate --raw), or use a file with another template"
    )]
    TemplateStopped {
        /// The metadata key of the template.
        key: String,
        /// Line of the template where it was stopped, counted from 1.
        line: usize,
        /// The limit that it exceeds.
        reason: String,
    },
    /// Thinking was switched on or off, but the template has no such switch.
    #[error(
        "{key} has no switch for thinking (it uses neither enable_thinking nor thinking); leave out --think"
    )]
    NoThinkingSwitch {
        /// The metadata key of the template.
        key: String,
    },
}
