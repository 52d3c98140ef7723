//! The tokens of a model in the form that grammars are followed in. It takes a while and some memory, so a model has one for all its grammars.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::ChooserError;
use super::quiet::caught;
use super::state::State;
use crate::tokenizer::Tokenizer;

/// The items that a token may take: a hundred milliseconds or so. Ambiguous grammars take long, but they are followed.
const MOST_ITEMS: usize = 2_000_000;
/// The most states of the automaton that reads the terminals of a grammar: 3 kB each, of which large schemas have some thousands.
const MOST_STATES: usize = 50_000;

/// The tokens of a model, for grammars.
pub struct Vocabulary(ParserFactory);

impl Vocabulary {
    /// The vocabulary of a tokenizer.
    ///
    /// # Errors
    /// [`ChooserError::NoStopToken`].
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, ChooserError> {
        let trie = trie(tokenizer)?;
        let made = caught(|| {
            let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new_simple(&tokens)
        });
        let mut factory = made.and_then(Result::ok).ok_or(ChooserError::Panicked)?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        limits.step_max_items = MOST_ITEMS;
        limits.max_lexer_states = MOST_STATES;
        Ok(Self(factory))
    }

    /// The factory that makes parsers of grammars.
    pub(super) fn factory(&self) -> &ParserFactory {
        &self.0
    }

    /// The token of one byte with which an answer has to go on, spaces left out; `None` if it may end or go on otherwise.
    pub(super) fn only_way(&self, state: &State) -> Option<u32> {
        if state.may_end {
            return None;
        }
        let trie = self.0.tok_env().tok_trie();
        let mut only = None;
        for id in 0..trie.vocab_size().min(state.allowed.len()) {
            let first = trie.token(id as u32).first().copied();
            match first.filter(|byte| !byte.is_ascii_whitespace() && state.allowed.get(id)) {
                Some(byte) if only.is_some_and(|other| other != byte) => return None,
                Some(byte) => only = Some(byte),
                None => {}
            }
        }
        let token = trie.token_id_at_bytes(&[only?])?;
        state.allowed.get(token as usize).then_some(token)
    }

    /// The id of the special token of this text.
    pub(super) fn special(&self, text: &str) -> Option<u32> {
        self.0.tok_env().tok_trie().get_special_token(text)
    }
}

/// The bytes of all tokens, in the form that is searched.
fn trie(tokenizer: &Tokenizer) -> Result<TokTrie, ChooserError> {
    let stops = tokenizer.stop_tokens();
    let Some(&stop) = stops.first() else {
        return Err(ChooserError::NoStopToken);
    };
    let word = |id: u32| {
        let mut bytes = tokenizer.token_bytes(id);
        if tokenizer.is_special(id) || tokenizer.is_stop(id) {
            bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
        bytes
    };
    let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32).map(word).collect();
    let info = TokRxInfo::new(words.len() as u32, stop);
    Ok(TokTrie::from(&info, &words).with_eos_tokens(stops))
}
