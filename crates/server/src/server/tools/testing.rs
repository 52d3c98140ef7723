//! Tests of calls share this: tools, answers in pieces, and calls that were read of them.

use serde_json::{Value, json};

use super::*;

pub(super) fn tools() -> Vec<Tool> {
    let body = json!({"tools": [
        {"type": "function", "function": {"name": "search", "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["query"],
        }}},
        {"type": "function", "function": {"name": "search_web", "parameters": {"properties": {"url": {"type": "string"}}}}},
        {"type": "function", "function": {"name": "now"}},
    ]});
    let fields = Fields::of_body(&body).expect("it is an object");
    let tools = read(&fields).expect("they are right");
    tools.expect("there are some").all
}

/// An answer as it was read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) thoughts: String,
    pub(super) text: String,
    pub(super) calls: Vec<(String, String)>,
    /// Calls that are whole.
    pub(super) whole: bool,
}

impl Found {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Thought(thought) => self.thoughts += &thought,
                Delta::Text(text) => self.text += &text,
                Delta::Call { index, name } => {
                    assert_eq!(index, self.calls.len());
                    self.calls.push((name, String::new()));
                }
                Delta::Arguments { index, text } => {
                    assert_eq!(index + 1, self.calls.len());
                    self.calls[index].1 += &text;
                }
            }
        }
    }

    /// The calls with their arguments, which must be JSON.
    pub(super) fn calls(&self) -> Vec<(&str, Value)> {
        let calls = self.calls.iter().map(|(name, arguments)| {
            let read = serde_json::from_str(arguments);
            let read = read.unwrap_or_else(|error| panic!("{error}: {arguments:?} of {self:?}"));
            (name.as_str(), read)
        });
        calls.collect()
    }
}

/// Reads thoughts and an answer that come in these pieces. The model ended the answer itself if it is `whole`.
pub(super) fn found(format: Format, thoughts: &[&str], pieces: &[&str], whole: bool) -> Found {
    let mut parser = Parser::new(format, tools(), false);
    let mut found = Found::default();
    for piece in thoughts {
        found.add(parser.think(piece));
    }
    for piece in pieces {
        found.add(parser.push(piece));
    }
    found.add(parser.finish(whole));
    found.whole = parser.ended > 0;
    found
}

/// Cuts a text into pieces of random lengths.
pub(super) fn cut<'a>(text: &'a str, random: &mut Random) -> Vec<&'a str> {
    let most = 1 + random.below(12);
    let (mut pieces, mut rest) = (vec![], text);
    while !rest.is_empty() {
        let length = 1 + random.below(most);
        let end = rest
            .char_indices()
            .nth(length)
            .map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Numbers that are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Holds an answer against what it is: in single characters, and in pieces of other lengths.
#[track_caller]
pub(super) fn is(format: Format, answer: &str, text: &str, calls: &[(&str, Value)]) {
    let single: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
    let first = found(format, &[], &single, true);
    assert_eq!(
        (first.text.as_str(), first.calls()),
        (text, calls.to_vec()),
        "{answer}"
    );
    let mut random = Random(answer.len() as u64);
    for _ in 0..8 {
        let pieces = cut(answer, &mut random);
        assert_eq!(found(format, &[], &pieces, true), first, "{pieces:?}");
    }
    assert_eq!(found(format, &[], &[answer], true), first, "{answer}");
}

pub(super) fn searched(arguments: Value) -> (&'static str, Value) {
    ("search", arguments)
}

pub(super) fn now() -> (&'static str, Value) {
    ("now", json!({}))
}
