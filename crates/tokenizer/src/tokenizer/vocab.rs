//! The vocabulary as the file states it: tokens, types, merges and the tokens that mean something.

use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::TokenizerError;
use super::pre::{self, Extra, PreTokenizer};
use super::scores::Scores;
use crate::gguf::Gguf;
use crate::plural::count;

/// Texts of tokens that end an answer wherever they occur, whether or not the file says so.
///
/// Source: llama.cpp `llama-vocab.cpp`, `special_eog_ids`, without those of models that glimt does not run.
const STOP_TEXTS: &[&str] = &[
    "<|endoftext|>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "[e~[",
];

/// Texts that end an answer of the GLM family: the next speaker's mark. Old files name only the first by a key.
const GLM_STOP_TEXTS: &[&str] = &["<|user|>", "<|observation|>"];

/// Tokens for filling in the middle of code: metadata key, texts to look for where it is absent, and whether the
/// token ends an answer. Source: llama.cpp `llama-vocab.cpp`.
const FILL_IN_TOKENS: &[(&str, &[&str], bool)] = &[
    (
        "tokenizer.ggml.fim_pre_token_id",
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
        ],
        false,
    ),
    (
        "tokenizer.ggml.fim_suf_token_id",
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
        ],
        false,
    ),
    (
        "tokenizer.ggml.fim_mid_token_id",
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
        ],
        false,
    ),
    (
        "tokenizer.ggml.fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        true,
    ),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
        true,
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"], true),
];

/// The type of a token. The numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    /// 1: text in the byte-level alphabet.
    Normal,
    /// 2: stands for what the vocabulary lacks.
    Unknown,
    /// 3: a mark that is not text, such as the end of a turn.
    Control,
    /// 4: matched in the text as it is written, before anything else.
    UserDefined,
    /// 5: a place without a token.
    Unused,
    /// 6: one byte, written `<0xNN>`.
    Byte,
    /// 0 or any other number.
    Undefined,
}

impl TokenType {
    fn from_id(id: u32) -> Self {
        match id {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Undefined,
        }
    }

    /// Whether a token of this type is looked for in texts as it is written.
    pub(super) fn is_written_out(self) -> bool {
        matches!(self, Self::Control | Self::UserDefined | Self::Unknown)
    }
}

/// How texts become tokens of a vocabulary.
#[derive(Debug)]
pub(super) enum Merging {
    /// In each word, pairs of bytes by their rank. Tokens are written in the byte-level alphabet.
    Ranked(PreTokenizer),
    /// In the whole text, pairs of characters by the score of what they make.
    Scored(Scores),
}

/// The vocabulary of a file, checked.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// Finds tokens by text and by id, and merges where merges are ranked.
    pub(super) bpe: BPE,
    pub(super) merging: Merging,
    /// The types of tokens, by id.
    pub(super) types: Vec<TokenType>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    /// Ascending.
    pub(super) stop_tokens: Vec<u32>,
}

impl Vocabulary {
    /// Number of tokens. Ids from here on stand for texts that only merges name.
    pub(super) fn n_tokens(&self) -> usize {
        self.types.len()
    }

    /// The token of this text.
    pub(super) fn id_of(&self, text: &str) -> Option<u32> {
        let id = self.bpe.token_to_id(text);
        id.filter(|&id| (id as usize) < self.n_tokens())
    }

    /// How words are cut; `None` if the vocabulary has scores, and texts are not cut.
    ///
    /// # Errors
    /// If the vocabulary is of a kind that is not known.
    pub(super) fn pre_tokenizer(gguf: &Gguf) -> Result<Option<PreTokenizer>, TokenizerError> {
        match gguf.require_str("tokenizer.ggml.model")? {
            "gpt2" => {}
            "llama" => return Ok(None),
            model => {
                return Err(TokenizerError::Vocabulary(format!(
                    "tokenizer.ggml.model is {model:?}; \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece with scores) are supported"
                )));
            }
        }
        match gguf.get_str("tokenizer.ggml.pre")? {
            Some(name) => Ok(Some(PreTokenizer::named(name)?)),
            None => {
                let known = pre::known_names().join(", ");
                Err(TokenizerError::Vocabulary(format!(
                    "tokenizer.ggml.pre is missing, so how to split words is unknown; convert the model again, or add the key with one of {known}"
                )))
            }
        }
    }

    /// Whether tokens are written in the byte-level alphabet.
    pub(super) fn is_byte_level(&self) -> bool {
        matches!(self.merging, Merging::Ranked(_))
    }

    /// Reads the `tokenizer.ggml.*` keys.
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let pre = Self::pre_tokenizer(gguf)?;
        let tokens = gguf.require_str_array("tokenizer.ggml.tokens")?;
        let mut types = token_types(gguf, tokens.len())?;
        let has = |extra| pre.as_ref().is_some_and(|pre| pre.has(extra));
        let merges = match pre.is_some() {
            true => gguf.require_str_array("tokenizer.ggml.merges")?,
            false => &[],
        };
        let bpe = build_bpe(tokens, merges, has(Extra::IgnoreMerges))?;

        // Texts that only merges name are no tokens.
        let id_of = |text: &str| {
            bpe.token_to_id(text)
                .filter(|id| (*id as usize) < tokens.len())
        };
        let token_id = |key: &str| token_id(gguf, key, tokens.len());
        // Old files with scores do not say which tokens begin and end a text, since these are always the same.
        let usual = |id: u32| Some(id).filter(|id| pre.is_none() && (*id as usize) < tokens.len());
        let bos = token_id("tokenizer.ggml.bos_token_id")?.or(usual(1));
        let eos = token_id("tokenizer.ggml.eos_token_id")?.or(usual(2));
        let mut stop_tokens = Vec::new();
        stop_tokens.extend(eos);
        stop_tokens.extend(token_id("tokenizer.ggml.eot_token_id")?);
        stop_tokens.extend(token_id("tokenizer.ggml.eom_token_id")?);
        for &(key, texts, stops) in FILL_IN_TOKENS {
            let mut id = token_id(key)?;
            if id.is_none() {
                id = texts.iter().find_map(|text| id_of(text));
                mark_control(&mut types, id);
            }
            stop_tokens.extend(id.filter(|_| stops));
        }
        let glm_texts = if has(Extra::StopsOnRoles) {
            GLM_STOP_TEXTS
        } else {
            &[]
        };
        for text in STOP_TEXTS.iter().chain(glm_texts) {
            let id = id_of(text);
            mark_control(&mut types, id);
            stop_tokens.extend(id);
        }
        stop_tokens.sort_unstable();
        stop_tokens.dedup();

        let adds_bos = pre.is_none() || has(Extra::AddBos);
        let add_bos = ("tokenizer.ggml.add_bos_token", adds_bos);
        let add_eos = ("tokenizer.ggml.add_eos_token", false);
        Ok(Vocabulary {
            add_bos: is_added(gguf, add_bos, "tokenizer.ggml.bos_token_id", bos)?,
            add_eos: is_added(gguf, add_eos, "tokenizer.ggml.eos_token_id", eos)?,
            merging: match pre {
                Some(pre) => Merging::Ranked(pre),
                None => Merging::Scored(Scores::from_gguf(gguf, tokens.len())?),
            },
            bpe,
            types,
            bos,
            eos,
            stop_tokens,
        })
    }
}

/// The type of each of `n_tokens` tokens: text where the file does not say.
fn token_types(gguf: &Gguf, n_tokens: usize) -> Result<Vec<TokenType>, TokenizerError> {
    let Some(ids) = gguf.get_u32_array("tokenizer.ggml.token_type")? else {
        return Ok(vec![TokenType::Normal; n_tokens]);
    };
    if ids.len() != n_tokens {
        return Err(TokenizerError::Vocabulary(format!(
            "tokenizer.ggml.token_type has {}; tokenizer.ggml.tokens has {n_tokens}: they must be equally many",
            count(ids.len(), "entry")
        )));
    }
    Ok(ids.into_iter().map(TokenType::from_id).collect())
}

/// The token that `key` names, if the file has the key.
fn token_id(gguf: &Gguf, key: &str, vocab_size: usize) -> Result<Option<u32>, TokenizerError> {
    match gguf.get_u32(key)? {
        Some(id) if id as usize >= vocab_size => Err(TokenizerError::Vocabulary(format!(
            "{key} is {id}; the vocabulary has {}, so at most {} was expected",
            count(vocab_size, "token"),
            vocab_size.saturating_sub(1)
        ))),
        id => Ok(id),
    }
}

/// Whether the token of `key` is added to texts: what `flag` says, or else `default`.
fn is_added(
    gguf: &Gguf,
    (flag, default): (&str, bool),
    key: &str,
    id: Option<u32>,
) -> Result<bool, TokenizerError> {
    let added = gguf.get_bool(flag)?.unwrap_or(default);
    if added && id.is_none() {
        let problem = format!("{flag} is true, but {key} is missing");
        return Err(TokenizerError::Vocabulary(problem));
    }
    Ok(added)
}

/// A token known by its text to be a mark is one even where the file calls it text, as in llama.cpp.
fn mark_control(types: &mut [TokenType], id: Option<u32>) {
    if let Some(id) = id {
        types[id as usize] = TokenType::Control;
    }
}

/// The byte-pair model over the given tokens and merges.
///
/// A merge may name a text that is no token, as in llama.cpp. It gets an id behind those of all tokens, so that merges can go on from it.
/// Whoever tokenizes writes what is left of such a text byte by byte ([`Vocabulary::n_tokens`]).
fn build_bpe(
    tokens: &[String],
    merges: &[String],
    ignore_merges: bool,
) -> Result<BPE, TokenizerError> {
    let (vocab, pairs) = rayon::join(|| index_tokens(tokens), || split_merges(merges));
    let (mut vocab, pairs) = (vocab?, pairs?);
    let (mut first, mut whole) = (None, String::new());
    for (left, right) in &pairs {
        whole.clear();
        whole.extend([left.as_str(), right]);
        for text in [left, right, &whole] {
            if !vocab.contains_key(text) {
                first.get_or_insert_with(|| text.clone());
                vocab.insert(text.clone(), vocab.len() as u32);
            }
        }
    }
    if let Some(first) = first {
        let absent = count(vocab.len() - tokens.len(), "text");
        log::warn!(
            "tokenizer.ggml.merges name {absent} that are no tokens, such as {first:?}: these are written byte by byte"
        );
    }
    let builder = BPE::builder()
        .vocab_and_merges(vocab, pairs)
        .ignore_merges(ignore_merges);
    builder
        .build()
        .map_err(|error| TokenizerError::Vocabulary(format!("tokenizer.ggml.merges: {error}")))
}

/// The id of each token.
fn index_tokens(tokens: &[String]) -> Result<Vocab, TokenizerError> {
    let mut vocab = Vocab::with_capacity(tokens.len());
    for (id, text) in (0..).zip(tokens) {
        // Converters leave holes as empty strings; llama.cpp names them like this.
        let key = if text.is_empty() {
            format!("[EMPTY_{id}]")
        } else {
            text.clone()
        };
        if let Some(first) = vocab.insert(key, id) {
            return Err(TokenizerError::Vocabulary(format!(
                "tokens {first} and {id} of tokenizer.ggml.tokens are both {text:?}; every token must differ"
            )));
        }
    }
    Ok(vocab)
}

/// The two parts of each merge, best first.
fn split_merges(merges: &[String]) -> Result<Merges, TokenizerError> {
    let mut pairs = Merges::with_capacity(merges.len());
    let mut seen = HashSet::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let (left, right) = split_merge(merge).ok_or_else(|| {
            let reason = "two tokens separated by a space were expected";
            unusable_merge(index, merge, reason)
        })?;
        // The first of equal entries ranks, as in llama.cpp; the builder would take the last.
        if seen.insert(merge.as_str()) {
            pairs.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(pairs)
}

/// The parts of a merge. A space inside a token is written `Ġ`, so the first one behind the first character separates.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge[first..].find(' ')?;
    Some((&merge[..space], &merge[space + 1..]))
}

fn unusable_merge(index: usize, merge: &str, reason: &str) -> TokenizerError {
    TokenizerError::Vocabulary(format!(
        "entry {index} of tokenizer.ggml.merges, {merge:?}, is unusable: {reason}"
    ))
}
