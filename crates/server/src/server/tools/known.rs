//! The tools of a request, as a reader of calls knows them.

use super::Tool;
use super::schema::forms;

/// A prefix that some models write before names.
const PREFIX: &str = "functions.";
/// The quotes in which some models write names.
const QUOTES: [char; 3] = ['"', '\'', '`'];
/// The most bytes of a key.
const LONGEST_KEY: usize = 256;

struct One {
    tool: Tool,
    /// The arguments that its schema names.
    keys: Vec<String>,
    /// Whether a call needs arguments.
    needs_keys: bool,
}

/// The tools of a request.
pub(super) struct Known(Vec<One>);

impl Known {
    pub(super) fn new(tools: Vec<Tool>) -> Self {
        let one = |tool: Tool| {
            let forms = forms(&tool.parameters);
            let needs_keys = forms.iter().all(|form| !form.required.is_empty());
            let mut keys: Vec<String> = vec![];
            for (key, _) in forms.into_iter().flat_map(|form| form.properties) {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            One {
                tool,
                keys,
                needs_keys,
            }
        };
        Self(tools.into_iter().map(one).collect())
    }

    pub(super) fn tool(&self, index: usize) -> &Tool {
        &self.0[index].tool
    }

    /// The names of all tools.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|one| one.tool.name.as_str())
    }

    /// The tool that a name means, also with quotes around it, and with a number or brackets behind it.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        let name = name.trim();
        let exact = |name: &str| self.names().position(|known| known == name);
        let bare = || unprefixed(name).trim_end_matches(is_behind_name);
        let numbered = || bare().trim_end_matches(|c: char| c.is_ascii_digit());
        let numbered = || numbered().strip_suffix(':');
        let found = exact(name).or_else(|| exact(unprefixed(name)));
        let found = found.or_else(|| exact(bare()));
        let found = found.or_else(|| exact(numbered()?));
        // It may be written twice.
        found.or_else(|| {
            let (first, rest) = name.split_once(char::is_whitespace)?;
            exact(unprefixed(first)).filter(|_| rest.trim() == first)
        })
    }

    /// The tools whose names a text begins with, and what follows the name.
    fn names_before<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let text = unprefixed(text.trim());
        let names = self.names().enumerate();
        names.filter_map(move |(tool, name)| Some((tool, text.strip_prefix(name)?.trim())))
    }

    /// Whether a text may become a name, or a name and a key behind it, if it goes on.
    pub(super) fn may_be_name(&self, text: &str) -> bool {
        let text = text.trim_start();
        let text = text.strip_prefix(QUOTES).unwrap_or(text);
        let begins_key = |(tool, rest): (usize, &str)| {
            let mut keys = self.0[tool].keys.iter();
            let goes_on = |c: char| is_behind_name(c) || c.is_ascii_digit();
            rest.starts_with(is_behind_name) && rest.chars().all(goes_on)
                || rest.is_empty()
                || self.0[tool].tool.name.starts_with(rest)
                || keys.any(|key| key.starts_with(rest))
        };
        PREFIX.starts_with(text)
            || self.names().any(|name| name.starts_with(unprefixed(text)))
            || self.names_before(text).any(begins_key)
    }

    /// A name and a key that are written without the tag between them.
    pub(super) fn named_with_key(&self, text: &str) -> Option<(usize, String)> {
        let split = self.names_before(text).filter_map(|(tool, rest)| {
            let key = self.key(tool, rest);
            self.has_key(tool, &key).then_some((tool, key))
        });
        split.max_by_key(|(tool, _)| self.tool(*tool).name.len())
    }

    /// Whether a call of a tool needs arguments.
    pub(super) fn needs_keys(&self, tool: usize) -> bool {
        self.0[tool].needs_keys
    }

    /// Whether the schema of a tool names an argument.
    pub(super) fn has_key(&self, tool: usize, key: &str) -> bool {
        self.0[tool].keys.iter().any(|known| known == key)
    }

    /// A key as it is meant: without white space, and without quotes that are none of its own.
    pub(super) fn key(&self, tool: usize, text: &str) -> String {
        let text = text.trim();
        let bare = text.trim_matches(['"', '\'']);
        match self.has_key(tool, bare) {
            true => bare.to_owned(),
            false => text.to_owned(),
        }
    }

    /// The key of the tool that a text begins with, if something stands behind it, and where that begins.
    pub(super) fn key_before(&self, tool: usize, text: &str) -> Option<(String, usize)> {
        let begin = text.trim_start();
        let keys = self.0[tool].keys.iter();
        let key = keys
            .filter(|key| begin.starts_with(key.as_str()))
            .max_by_key(|key| key.len())?;
        let rest = begin[key.len()..]
            .trim_start()
            .trim_start_matches([':', '=']);
        let rest = rest.trim_start();
        (!rest.is_empty()).then(|| (key.clone(), text.len() - rest.len()))
    }

    /// The beginning of a key of the tool at the end of a text, with the white space before it; the end of the text if there is none. Without
    /// `whole`, the key may be a part of one.
    pub(super) fn key_at_end(&self, tool: usize, text: &str, whole: bool) -> usize {
        let word = text
            .rfind(char::is_whitespace)
            .map_or("", |at| text[at..].trim_start());
        let before = &text[..text.len() - word.len()];
        let is_key = |key: &String| match whole {
            true => key == word,
            false => key.starts_with(word),
        };
        let blank = before.trim_end().len();
        match blank < before.len() && self.0[tool].keys.iter().any(is_key) {
            true => blank,
            false => text.len(),
        }
    }

    /// Whether a text is a key although its tag is missing: one of the tool's, or any name if the tool's schema has none.
    pub(super) fn is_likely_key(&self, tool: usize, text: &str) -> bool {
        let text = text.trim();
        match self.0[tool].keys.is_empty() {
            true => !text.is_empty() && is_name(text),
            false => self.has_key(tool, &self.key(tool, text)),
        }
    }

    /// Whether a text may become a likely key if it goes on.
    pub(super) fn may_be_likely_key(&self, tool: usize, text: &str) -> bool {
        let text = text.trim().trim_start_matches(['"', '\'']);
        let keys = &self.0[tool].keys;
        keys.is_empty() && is_name(text)
            || keys
                .iter()
                .any(|key| key.starts_with(text) || text.starts_with(key.as_str()))
    }
}

/// Whether a text is of the characters of names, and not long.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
    text.len() <= LONGEST_KEY && text.chars().all(is_plain)
}

/// Whether a text may be the beginning of a key.
pub(super) fn may_be_key(text: &str) -> bool {
    let text = text.trim();
    text.len() <= LONGEST_KEY && !text.contains(['\n', '{', '}'])
}

/// A name without the quote and the prefix before it.
fn unprefixed(text: &str) -> &str {
    let text = text.strip_prefix(QUOTES).unwrap_or(text);
    text.strip_prefix(PREFIX).unwrap_or(text)
}

/// Whether models write a character behind names, of which it is no part.
fn is_behind_name(c: char) -> bool {
    QUOTES.contains(&c) || "():".contains(c)
}
