//! What can be wrong with a vocabulary, a text or a chat template.

use crate::gguf::GgufError;
use crate::plural::count;

/// Everything that building or using a tokenizer or a chat template can fail with.
///
/// Every message names the key, token or template line, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A tokenizer key of the file is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// `tokenizer.ggml.model` is not `gpt2`.
    #[error("tokenizer.ggml.model is {found:?}; only \"gpt2\" (byte-level BPE) is supported")]
    UnsupportedModel {
        /// The value found.
        found: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not known.
    #[error("tokenizer.ggml.pre is {found:?}, an unknown pre-tokenizer; known are {known}")]
    UnknownPre {
        /// The value found.
        found: String,
        /// The known values, separated by commas.
        known: String,
    },
    /// The file has no `tokenizer.ggml.pre`.
    #[error(
        "tokenizer.ggml.pre is missing, so how to split words is unknown; convert the model again, or add the key with one of {known}"
    )]
    MissingPre {
        /// The known values, separated by commas.
        known: String,
    },
    /// `tokenizer.ggml.token_type` does not have one entry per token.
    #[error(
        "tokenizer.ggml.token_type has {}; tokenizer.ggml.tokens has {tokens}: they must be equally many",
        count(*types, "entry")
    )]
    TokenTypeCount {
        /// Entries of `tokenizer.ggml.token_type`.
        types: usize,
        /// Entries of `tokenizer.ggml.tokens`.
        tokens: usize,
    },
    /// Two tokens have the same text.
    #[error(
        "tokens {first} and {second} of tokenizer.ggml.tokens are both {text:?}; every token must differ"
    )]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// An entry of `tokenizer.ggml.merges` is not two tokens whose concatenation is a token.
    #[error("entry {index} of tokenizer.ggml.merges, {merge:?}, is unusable: {reason}")]
    BadMerge {
        /// Position in the array.
        index: usize,
        /// The entry.
        merge: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A special token id is not in the vocabulary.
    #[error("{key} is {found}; the vocabulary has {}, so at most {} was expected", count(*vocab_size, "token"), .vocab_size.saturating_sub(1))]
    IdOutOfRange {
        /// The metadata key.
        key: String,
        /// The id found.
        found: u32,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// The file asks for a token before or behind every text but does not say which.
    #[error("{flag} is true, but {key} is missing")]
    MissingAddedToken {
        /// The key that asks for the token.
        flag: &'static str,
        /// The key that should name it.
        key: &'static str,
    },
    /// A byte of the text has no token.
    #[error(
        "the text holds byte 0x{byte:02X}, for which the vocabulary has no token (expected one with the text {token:?})"
    )]
    ByteNotInVocabulary {
        /// The byte.
        byte: u8,
        /// The text its token would have in the byte-level alphabet.
        token: char,
    },
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
        /// What is wrong there.
        detail: String,
    },
    /// A chat template that refused the messages or failed on them.
    #[error("{key} failed, line {line}: {detail}")]
    TemplateRender {
        /// The metadata key of the template.
        key: String,
        /// Line of the template, counted from 1.
        line: usize,
        /// What went wrong there; for `raise_exception` the template's own words.
        detail: String,
    },
    /// A chat template that was stopped because it did not come to an end.
    #[error(
        "{key} did not come to an end within {fuel} instructions, line {line}; give the prompt without it (--raw), or use a file with another template"
    )]
    TemplateEndless {
        /// The metadata key of the template.
        key: String,
        /// Line of the template where it was stopped, counted from 1.
        line: usize,
        /// Instructions that were allowed.
        fuel: u64,
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
