//! The blocks of an answer in the order in which the model writes them: thoughts, texts and calls of tools.

use super::app::number;
use super::tools::Delta;

/// A part of an answer that is all of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// Tells it from other blocks of all answers.
    pub(super) id: String,
    pub(super) kind: Kind,
    /// The text of the block; of a call, the arguments as JSON.
    pub(super) text: String,
}

/// The kind of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Thoughts,
    Text,
    /// A call of the tool with this name.
    Call(String),
}

/// A change that a step makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A block begins behind the others.
    Begins,
    /// The last block goes on with this text.
    More(String),
    /// The last block has ended.
    Ends,
}

/// The blocks of an answer so far.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    is_open: bool,
}

impl Blocks {
    /// All blocks.
    pub(super) fn all(&self) -> &[Block] {
        &self.all
    }

    /// The last block with its place.
    pub(super) fn last(&self) -> Option<(usize, &Block)> {
        self.all.iter().enumerate().next_back()
    }

    /// Takes what a token has come to. `change` is told of each change when it is made.
    pub(super) fn take(&mut self, delta: Delta, change: &mut impl FnMut(&Self, Change)) {
        let (kind, text) = match delta {
            Delta::Thought(text) => (Some(Kind::Thoughts), text),
            Delta::Text(text) => (Some(Kind::Text), text),
            Delta::Call { name, .. } => (Some(Kind::Call(name)), String::new()),
            Delta::Arguments { text, .. } => (None, text),
        };
        if let Some(kind) = kind {
            let is_call = matches!(kind, Kind::Call(_));
            let goes_on = self.is_open && self.all.last().is_some_and(|last| last.kind == kind);
            if is_call || !goes_on {
                self.end(change);
                self.all.push(Block {
                    id: format!("{:016x}", number()),
                    kind,
                    text: String::new(),
                });
                self.is_open = true;
                change(self, Change::Begins);
            }
        }
        if let Some(last) = self.all.last_mut().filter(|_| !text.is_empty()) {
            last.text += &text;
            change(self, Change::More(text));
        }
    }

    /// Ends the last block, if it has not ended yet.
    pub(super) fn end(&mut self, change: &mut impl FnMut(&Self, Change)) {
        if std::mem::take(&mut self.is_open) {
            change(self, Change::Ends);
        }
    }

    /// The thoughts, joined.
    pub(super) fn thoughts(&self) -> String {
        self.joined(&Kind::Thoughts)
    }

    /// The text, joined.
    pub(super) fn text(&self) -> String {
        self.joined(&Kind::Text)
    }

    fn joined(&self, kind: &Kind) -> String {
        let blocks = self.all.iter().filter(|block| block.kind == *kind);
        blocks.map(|block| block.text.as_str()).collect()
    }

    /// The calls: the block and the name of the tool of each.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&Block, &str)> {
        self.all.iter().filter_map(|block| match &block.kind {
            Kind::Call(name) => Some((block, name.as_str())),
            Kind::Thoughts | Kind::Text => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lasts_until_another_kind_or_call_begins() {
        let call = |index| Delta::Call {
            index,
            name: "f".to_owned(),
        };
        let arguments = |index, text: &str| Delta::Arguments {
            index,
            text: text.to_owned(),
        };
        let deltas = [
            Delta::Thought("a".to_owned()),
            Delta::Thought("b".to_owned()),
            Delta::Text("c".to_owned()),
            call(0),
            arguments(0, "{"),
            arguments(0, "}"),
            call(1),
            arguments(1, "{}"),
            Delta::Text("d".to_owned()),
        ];
        let mut blocks = Blocks::default();
        let mut told = String::new();
        let mut change = |blocks: &Blocks, change| {
            let at = blocks.last().expect("there is one").0;
            told += &match change {
                Change::Begins => format!("[{at}"),
                Change::More(text) => format!(" {text}"),
                Change::Ends => "] ".to_owned(),
            };
        };
        for delta in deltas {
            blocks.take(delta, &mut change);
        }
        blocks.end(&mut change);
        blocks.end(&mut change);
        assert_eq!(told, "[0 a b] [1 c] [2 { }] [3 {}] [4 d] ");
        assert_eq!(
            (blocks.thoughts(), blocks.text()),
            ("ab".to_owned(), "cd".to_owned())
        );
        let calls: Vec<_> = blocks
            .calls()
            .map(|(call, name)| (name, call.text.as_str()))
            .collect();
        assert_eq!(calls, [("f", "{}"), ("f", "{}")]);
    }
}
