//! The tags of GLM's calls in a text.

use super::marks::{KEY_BEGIN, KEY_END, TAG_BEGIN, TAG_END, VALUE_BEGIN, VALUE_END};

/// A tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Call,
    CallEnd,
    Key,
    KeyEnd,
    Value,
    ValueEnd,
}

const TAGS: [(Tag, &str); 6] = [
    (Tag::Call, TAG_BEGIN),
    (Tag::CallEnd, TAG_END),
    (Tag::Key, KEY_BEGIN),
    (Tag::KeyEnd, KEY_END),
    (Tag::Value, VALUE_BEGIN),
    (Tag::ValueEnd, VALUE_END),
];

/// The next part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// This text, and no tag yet. The beginning of a tag at its end is left out.
    Open(&'a str),
    /// This text, and a tag behind it.
    Tag {
        text: &'a str,
        tag: Tag,
        /// The beginning and the end of the tag.
        at: usize,
        end: usize,
    },
}

/// The next part of `text` from `from` on.
pub(super) fn next(text: &str, from: usize) -> Next<'_> {
    let rest = &text[from..];
    for (place, _) in rest.match_indices('<') {
        let here = TAGS.iter().find(|(_, tag)| rest[place..].starts_with(tag));
        if let Some((tag, name)) = here {
            return Next::Tag {
                text: &rest[..place],
                tag: *tag,
                at: from + place,
                end: from + place + name.len(),
            };
        }
    }
    Next::Open(&rest[..settled(rest, &TAGS.map(|(_, name)| name))])
}

/// The end of a text without a mark that begins there. One character of a mark may be text.
pub(super) fn without_begun(text: &str, marks: &[&str]) -> usize {
    let end = settled(text, marks);
    match text[end..].chars().count() {
        0 | 1 => text.len(),
        _ => end,
    }
}

/// Length of the text in which none of the marks can begin any more.
pub(super) fn settled(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let from = text.len().saturating_sub(longest);
    let mut ends = text.char_indices().map(|(at, _)| at);
    let begins = |at: &usize| {
        let end = &text[*at..];
        *at >= from && marks.iter().any(|mark| mark.starts_with(end))
    };
    ends.find(begins).unwrap_or(text.len())
}
