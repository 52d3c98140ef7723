//! Keeps an answer to a grammar: tokens that cannot continue it are excluded before another chooser chooses.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Map, Value};

use super::{Chooser, ChooserError};
use crate::tokenizer::Tokenizer;

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Language {
    /// JSON that the schema accepts.
    JsonSchema(Value),
    /// A text of a grammar in the variant of Lark that llguidance reads.
    Lark(String),
}

/// Space between the tokens of JSON, as much as a readable layout takes: without a bound a model may never come to an end.
const SPACE: &str = r"( |\n[ \t]{0,16})";

/// A grammar with what was said of it so far.
pub struct Grammar {
    matcher: Matcher,
}

impl Grammar {
    /// The grammar of `language` for the tokens of a vocabulary.
    ///
    /// # Errors
    /// [`ChooserError::Grammar`] with what is wrong with it.
    pub fn new(tokenizer: &Tokenizer, language: Language) -> Result<Self, ChooserError> {
        let grammar = match language {
            Language::JsonSchema(schema) => {
                // What is true accepts everything.
                let mut schema = match schema {
                    Value::Bool(true) => Value::Object(Map::new()),
                    schema => schema,
                };
                if !schema.is_object() {
                    return Err(refused("a JSON schema is an object, or true"));
                }
                let options = JsonCompileOptions {
                    whitespace_pattern: Some(SPACE.to_owned()),
                    ..JsonCompileOptions::default()
                };
                options.apply_to(&mut schema);
                TopLevelGrammar::from_json_schema(schema)
            }
            Language::Lark(text) => TopLevelGrammar::from_lark(text),
        };
        let mut factory = ParserFactory::new_simple(&tokens(tokenizer)?).map_err(refused)?;
        factory.quiet().limits_mut().verbose_errors = false;
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        // A grammar that cannot be read is told of by its first use.
        matcher.is_accepting().map_err(refused)?;
        Ok(Self { matcher })
    }
}

/// The reason without the marks that llguidance puts behind it.
fn refused(reason: impl ToString) -> ChooserError {
    let reason = reason.to_string();
    let reason = reason.split("\n<non-verbose/>").next().unwrap_or_default();
    ChooserError::Grammar {
        reason: reason.trim_end().to_owned(),
    }
}

/// The bytes of all tokens, in the form that llguidance searches.
fn tokens(tokenizer: &Tokenizer) -> Result<TokEnv, ChooserError> {
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
    let trie = TokTrie::from(&info, &words).with_eos_tokens(stops);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// A chooser that leaves to another one only what a grammar allows.
pub struct Constrained<C> {
    inner: C,
    grammar: Option<Grammar>,
    /// The token behind which the grammar begins, where it has not.
    begins_after: Option<u32>,
}

impl<C: Chooser> Constrained<C> {
    /// Keeps what `inner` chooses to `grammar`, from the start or from behind the token `begins_after`, with which thoughts end.
    pub fn new(inner: C, grammar: Option<Grammar>, begins_after: Option<u32>) -> Self {
        Self {
            inner,
            grammar,
            begins_after,
        }
    }
}

impl<C: Chooser> Chooser for Constrained<C> {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        if let Some(grammar) = &mut self.grammar
            && self.begins_after.is_none()
        {
            let allowed = grammar.matcher.compute_mask_or_eos().map_err(refused)?;
            for (id, logit) in logits.iter_mut().enumerate() {
                if id >= allowed.len() || !allowed.get(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        self.inner.choose(logits, context)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        if let Some(grammar) = &mut self.grammar {
            match self.begins_after {
                Some(end) if end == token => self.begins_after = None,
                Some(_) => {}
                // Behind its end comes only the token that ends the answer.
                None if grammar.matcher.is_stopped() => {}
                None => grammar.matcher.consume_token(token).map_err(refused)?,
            }
        }
        self.inner.accept(token)
    }
}
