//! Keeps an answer to a grammar: tokens that cannot continue it are excluded before another chooser chooses.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::Value;

use super::schema::{self, Lost};
use super::{Chooser, ChooserError, gbnf, size, wait};
use crate::tokenizer::Tokenizer;

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Language {
    /// JSON that the schema accepts.
    JsonSchema(Value),
    /// A text of a grammar in the variant of Lark that llguidance reads.
    Lark(String),
    /// A text of a grammar in GBNF, as llama.cpp has it, but without tokens in angle brackets.
    Gbnf(String),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// An answer that is of a language, or any text that begins with one of these marks.
    Unless {
        /// What the answer is of without a mark.
        answer: Box<Language>,
        /// The marks, which may be special tokens.
        marks: Vec<String>,
    },
}

impl Language {
    /// That of a text, which is GBNF if it has a rule with `::=`, else Lark.
    pub fn of_grammar(text: String) -> Self {
        match gbnf::is_gbnf(&text) {
            true => Self::Gbnf(text),
            false => Self::Lark(text),
        }
    }
}

/// Space between the tokens of JSON, as much as a readable layout takes: without a bound a model may never come to an end.
const SPACE: &str = r"( |\n[ \t]{0,16})";

/// The items that a token may take: a hundred milliseconds or so.
const MOST_ITEMS: usize = 2_000_000;
/// The lines of a grammar that are read: rules which use each other are read one within the other.
const MOST_LINES: usize = 10_000;
/// A grammar with what was said of it so far.
pub struct Grammar {
    matcher: Matcher,
    /// The matcher before anything was said.
    fresh: Matcher,
    /// What is not enforced.
    lost: Arc<[Lost]>,
}

impl Grammar {
    /// The grammar of `language` for the tokens of a vocabulary.
    ///
    /// # Errors
    /// [`ChooserError::Schema`], [`ChooserError::Grammar`] or [`ChooserError::Gbnf`] with what is wrong with it,
    /// [`ChooserError::NoStopToken`].
    pub fn new(tokenizer: &Tokenizer, language: Language) -> Result<Self, ChooserError> {
        Self::with(&tokens(tokenizer)?, language)
    }

    fn with(tokens: &TokEnv, language: Language) -> Result<Self, ChooserError> {
        let read = wait::with_deep_stack(|| {
            let (grammar, lost) = read(tokens, language)?;
            let mut factory = ParserFactory::new_simple(tokens).map_err(refused)?;
            let limits = factory.quiet().limits_mut();
            limits.verbose_errors = false;
            // Ambiguous grammars take long, but they are followed.
            limits.step_max_items = MOST_ITEMS;
            let mut matcher = Matcher::new(factory.create_parser(grammar));
            // A grammar that cannot be read is told of by its first use.
            matcher.is_accepting().map_err(refused)?;
            Ok::<_, ChooserError>((matcher, lost))
        });
        let (matcher, lost) = read.map_err(refused)??;
        let fresh = matcher.deep_clone();
        Ok(Self {
            matcher,
            fresh,
            lost: lost.into(),
        })
    }

    /// The keywords of its JSON schemas that it does not enforce.
    pub fn not_enforced(&self) -> &[Lost] {
        &self.lost
    }

    /// The same grammar, of which nothing was said yet.
    pub fn anew(&self) -> Self {
        Self {
            matcher: self.fresh.deep_clone(),
            fresh: self.fresh.deep_clone(),
            lost: Arc::clone(&self.lost),
        }
    }

    /// Whether these tokens, without one that ends the answer, are all of a text of the grammar.
    pub fn accepts(&self, tokens: &[u32]) -> bool {
        let mut matcher = self.fresh.deep_clone();
        matcher.consume_tokens(tokens).is_ok() && matcher.is_accepting().unwrap_or(false)
    }
}

/// What llguidance is told of a language, and what of it is not enforced.
fn read(tokens: &TokEnv, language: Language) -> Result<(TopLevelGrammar, Vec<Lost>), ChooserError> {
    if let Language::JsonSchema(schema) = language {
        let (schema, lost) = json(&schema)?;
        return Ok((TopLevelGrammar::from_json_schema(schema), lost));
    }
    let (text, lost) = lark(tokens, language)?;
    Ok((TopLevelGrammar::from_lark(text), lost))
}

/// A schema as llguidance takes it.
fn json(schema: &Value) -> Result<(Value, Vec<Lost>), ChooserError> {
    let mut found = schema::taken(schema)?;
    if found.schema == Value::Bool(true) {
        // What is true accepts everything.
        found.schema = Value::Object(serde_json::Map::new());
    }
    if !found.schema.is_object() {
        return Err(refused("a schema that is false accepts nothing"));
    }
    let options = JsonCompileOptions {
        whitespace_pattern: Some(SPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut found.schema);
    Ok((found.schema, found.lost))
}

/// A language in Lark.
fn lark(tokens: &TokEnv, language: Language) -> Result<(String, Vec<Lost>), ChooserError> {
    match language {
        Language::JsonSchema(schema) => {
            let (schema, lost) = json(&schema)?;
            Ok((format!("start: %json {schema}\n"), lost))
        }
        Language::Lark(text) if text.lines().count() > MOST_LINES => {
            let reason = format!("it has more than {MOST_LINES} lines");
            Err(ChooserError::Grammar { reason })
        }
        Language::Lark(text) => {
            size::of_lark(&text)?;
            Ok(schema::rewritten(&text)?)
        }
        Language::Gbnf(text) => {
            size::of_gbnf(&text)?;
            Ok((gbnf::to_lark(&text)?, vec![]))
        }
        Language::Regex(text) => {
            size::of_regex(&text)?;
            let (regex, lost) = schema::regex(&text);
            let regex = llguidance::regex_to_lark(&regex, "dw");
            Ok((format!("start: TEXT\nTEXT: /{regex}/\n"), lost))
        }
        Language::Unless { answer, marks } => {
            let (answer, lost) = lark(tokens, *answer)?;
            let trie = tokens.tok_trie();
            let mark = |mark: &String| match trie.get_special_token(mark) {
                Some(id) => format!("<[{id}]>"),
                None => Value::from(mark.as_str()).to_string(),
            };
            let marks = marks.iter().map(mark).collect::<Vec<_>>().join(" | ");
            let text = format!(
                "start: answer | marked\nanswer: %lark {{\n{answer}\n}}\nmarked: /[ \\n]+/? ({marks}) <[*]>*\n"
            );
            Ok((text, lost))
        }
    }
}

/// Sentences of llguidance, and what they mean to whoever wrote a schema.
const WORDS: [(&str, &str); 6] = [
    (
        "Unsatisfiable schema: ",
        "no value fulfils the JSON schema: ",
    ),
    (
        "schema too large",
        "the JSON schema has more parts than are read (50000)",
    ),
    (
        "Schema intersection stack level exceeded",
        "the JSON schema has too many schemas that apply to the same value, one within the other",
    ),
    (
        "circular references with sibling keys are not supported",
        "the JSON schema refers to itself within allOf or beside other keywords; move what stands beside the reference into the definition",
    ),
    (
        "min/maxProperties only supported when all keys listed in \"properties\" are required",
        "minProperties and maxProperties are enforced only if all properties are required; leave them out",
    ),
    (
        "Unable to determine if regex is empty",
        "a pattern of the JSON schema is too complex to be followed",
    ),
];

/// The reason in words, without the marks that llguidance puts behind it.
fn refused(reason: impl ToString) -> ChooserError {
    let reason = reason.to_string();
    let reason = reason.split("\n<non-verbose/>").next().unwrap_or_default();
    let mut reason = reason.trim_end().to_owned();
    for (theirs, ours) in WORDS {
        reason = reason.replace(theirs, ours);
    }
    ChooserError::Grammar { reason }
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

    /// Whether the answer may end here: `None` without a grammar.
    pub fn may_end(&mut self) -> Option<bool> {
        let grammar = self.grammar.as_mut()?;
        let begun = self.begins_after.is_none();
        Some(
            begun
                && (grammar.matcher.is_stopped()
                    || grammar.matcher.is_accepting().unwrap_or(false)),
        )
    }

    /// The grammar, where there is one.
    pub fn grammar(&self) -> Option<&Grammar> {
        self.grammar.as_ref()
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
