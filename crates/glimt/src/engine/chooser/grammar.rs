//! Keeps an answer to a grammar: tokens that cannot continue it are excluded before another chooser chooses.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{JsonCompileOptions, Matcher};
use serde_json::Value;
use web_time::Duration;

use super::follower::{Follower, too_slow};
use super::quiet::caught;
use super::refused::refused;
use super::schema::{self, Lost};
use super::state::State;
use super::{Chooser, ChooserError, Vocabulary, gbnf, size, threads};

/// A language that answers have to be of.
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
        /// The language of an answer that does not begin with a mark.
        answer: Box<Language>,
        /// The marks, which may be special tokens.
        marks: Vec<String>,
    },
}

impl Language {
    /// The language of a grammar's text: GBNF if the text has a rule with `::=`, else Lark.
    pub fn of_grammar(text: String) -> Self {
        match gbnf::is_gbnf(&text) {
            true => Self::Gbnf(text),
            false => Self::Lark(text),
        }
    }
}

/// A regular expression of the regex crate between the slashes of Lark.
fn in_lark(regex: &str) -> String {
    llguidance::regex_to_lark(regex, "dw")
}

/// A regular expression between the slashes of Lark, without what cannot be enforced.
#[cfg(not(target_arch = "wasm32"))]
pub fn regex_in_lark(regex: &str) -> String {
    in_lark(&schema::regex(regex).0)
}

/// Space between the tokens of JSON, as much as a readable layout takes: without a bound a model may never come to an end.
const SPACE: &str = r"( |\n[ \t]{0,16})";

/// The lines of a grammar that are read: rules which use each other are read one within the other.
const MOST_LINES: usize = 10_000;

/// Time that the tokens of a beginning may take to find.
const BEGINNING: Duration = Duration::from_secs(1);

/// The most tokens at the beginning of an answer for which a grammar is followed ahead.
const MOST_FORCED: usize = 16;

/// A grammar, for as many answers as are wanted.
#[derive(Clone)]
pub struct Grammar {
    /// A matcher that has read no token.
    fresh: Arc<Matcher>,
    /// The state at the beginning of an answer.
    first: Arc<State>,
    /// The parts of the language that are not enforced.
    lost: Arc<[Lost]>,
}

impl Grammar {
    /// The grammar of `language` for the tokens of a vocabulary. What an answer may begin with is computed, so a grammar that cannot be
    /// followed from its start is refused here.
    ///
    /// # Errors
    /// [`ChooserError::Schema`], [`ChooserError::Grammar`] or [`ChooserError::Gbnf`] with what is wrong with it,
    /// [`ChooserError::GrammarTooSlow`].
    pub fn new(vocabulary: &Vocabulary, language: Language) -> Result<Self, ChooserError> {
        let read = threads::with_deep_stack(|| {
            let (grammar, lost) = read(vocabulary, language)?;
            let parser = vocabulary.factory().create_parser(grammar);
            let mut matcher = Matcher::new(parser).into_cancellable();
            // A grammar that cannot be read is told of by its first use.
            matcher.is_accepting().map_err(refused)?;
            Ok::<_, ChooserError>((matcher, lost))
        });
        let read = read.map_err(refused)?;
        let (fresh, lost) = read.ok_or(ChooserError::Panicked)??;
        // It shares what it finds with the one that is kept.
        let mut matcher = fresh.clone();
        let cancellation = matcher.cancellation_handle();
        let cancellation = cancellation.as_ref();
        let first = threads::within(BEGINNING, cancellation, || begun(&mut matcher, vocabulary));
        let first = first.map_err(refused)?.ok_or(ChooserError::Panicked)?;
        if matcher.is_cancelled() {
            crate::effort::check()?;
            return Err(too_slow(BEGINNING));
        }
        Ok(Self {
            fresh: Arc::new(fresh),
            first: Arc::new(first?),
            lost: lost.into(),
        })
    }

    /// The grammar of `language` for the tokens of a tokenizer that has one.
    #[cfg(any(test, feature = "testing"))]
    pub fn of(
        tokenizer: &crate::tokenizer::Tokenizer,
        language: Language,
    ) -> Result<Self, ChooserError> {
        Self::new(&Vocabulary::new(tokenizer)?, language)
    }

    /// The keywords of its JSON schemas that it does not enforce.
    pub fn not_enforced(&self) -> &[Lost] {
        &self.lost
    }

    /// Whether these tokens, without one that ends the answer, are all of a text of the grammar.
    pub fn accepts(&self, tokens: &[u32]) -> bool {
        let accepts = || {
            let mut matcher = self.fresh.deep_clone();
            matcher.consume_tokens(tokens).is_ok() && matcher.is_accepting().unwrap_or(false)
        };
        caught(accepts).unwrap_or(false)
    }
}

/// The state at the beginning of an answer. From there the answer is followed for as long as it can go only one way, spaces left out. So an
/// obstacle to every answer, such as more properties than can be told apart, is found here.
fn begun(matcher: &mut Matcher, vocabulary: &Vocabulary) -> Result<State, ChooserError> {
    let first = State::of(matcher)?;
    let mut next = vocabulary.only_way(&first);
    for _ in 0..MOST_FORCED {
        let Some(token) = next else {
            break;
        };
        matcher.consume_token(token).map_err(refused)?;
        next = vocabulary.only_way(&State::of(matcher)?);
    }
    Ok(first)
}

/// The grammar that llguidance reads for a language, and the parts of the language that are not enforced.
fn read(
    vocabulary: &Vocabulary,
    language: Language,
) -> Result<(TopLevelGrammar, Vec<Lost>), ChooserError> {
    if let Language::JsonSchema(schema) = language {
        let (schema, lost) = json(&schema)?;
        return Ok((TopLevelGrammar::from_json_schema(schema), lost));
    }
    let (text, lost) = lark(vocabulary, language)?;
    Ok((TopLevelGrammar::from_lark(text), lost))
}

/// A schema as llguidance takes it.
fn json(schema: &Value) -> Result<(Value, Vec<Lost>), ChooserError> {
    let mut found = schema::taken(schema)?;
    if found.schema == Value::Bool(true) {
        // A schema that is true accepts everything.
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
fn lark(vocabulary: &Vocabulary, language: Language) -> Result<(String, Vec<Lost>), ChooserError> {
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
            let regex = in_lark(&regex);
            Ok((format!("start: TEXT\nTEXT: /{regex}/\n"), lost))
        }
        Language::Unless { answer, marks } => {
            let (answer, lost) = lark(vocabulary, *answer)?;
            let mark = |mark: &String| match vocabulary.special(mark) {
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

/// The state of an answer in its grammar.
pub(super) struct Following {
    grammar: Grammar,
    /// The follower of the answer, once a token was said.
    pub(super) follower: Option<Follower>,
}

impl Following {
    fn state(&mut self) -> Result<&State, ChooserError> {
        match &mut self.follower {
            None => Ok(&self.grammar.first),
            Some(follower) => follower.state(),
        }
    }

    fn token(&mut self, token: u32) -> Result<(), ChooserError> {
        let follower = match self.follower.take() {
            None => Follower::new(&self.grammar.fresh)?,
            Some(follower) => follower,
        };
        self.follower.insert(follower).token(token);
        Ok(())
    }

    fn wait(&mut self, most: Duration) -> bool {
        let follower = self.follower.as_mut();
        follower.is_none_or(|follower| follower.wait(most))
    }
}

/// A chooser that leaves to another one only what a grammar allows.
pub struct Constrained<C> {
    inner: C,
    pub(super) following: Option<Following>,
    /// The token behind which the grammar begins, where it has not.
    begins_after: Option<u32>,
}

impl<C: Chooser> Constrained<C> {
    /// Keeps what `inner` chooses to `grammar`, from the start or from behind the token `begins_after`, with which thoughts end.
    pub fn new(inner: C, grammar: Option<Grammar>, begins_after: Option<u32>) -> Self {
        let following = |grammar| Following {
            grammar,
            follower: None,
        };
        Self {
            inner,
            following: grammar.map(following),
            begins_after,
        }
    }

    /// Whether the answer may end here: `None` without a grammar.
    pub fn may_end(&mut self) -> Option<bool> {
        let following = self.following.as_mut()?;
        let begun = self.begins_after.is_none();
        Some(begun && following.state().is_ok_and(|state| state.may_end))
    }

    /// The grammar, where there is one.
    pub fn grammar(&self) -> Option<&Grammar> {
        Some(&self.following.as_ref()?.grammar)
    }
}

impl<C: Chooser> Chooser for Constrained<C> {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        if let Some(following) = &mut self.following
            && self.begins_after.is_none()
        {
            let allowed = &following.state()?.allowed;
            for (id, logit) in logits.iter_mut().enumerate() {
                if id >= allowed.len() || !allowed.get(id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        self.inner.choose(logits, context)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        if let Some(following) = &mut self.following {
            match self.begins_after {
                Some(end) if end == token => self.begins_after = None,
                Some(_) => {}
                None => following.token(token)?,
            }
        }
        self.inner.accept(token)
    }

    fn is_ready(&mut self, most: Duration) -> bool {
        let following = self.following.as_mut();
        following.is_none_or(|following| following.wait(most)) && self.inner.is_ready(most)
    }
}
