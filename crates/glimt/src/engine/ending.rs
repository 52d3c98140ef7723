//! Where an answer ends: at a token that says so, or at the end of a sentence before the context is full.

use super::{Opened, StopReason};

/// Tokens whose text tells whether a sentence has ended.
const LOOKED_AT: usize = 8;
/// Words whose full stop ends no sentence.
const SHORTENED: [&str; 4] = ["Mr.", "Mrs.", "Dr.", "St."];

/// A unit of text that ends between two pieces.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Sentence,
    Paragraph,
}

impl Opened {
    /// Why an answer that has the tokens `said` ends before the token `next`, if it does. `left` is how many tokens the context still has
    /// room for, or `None` if the answer may not end in front of any other token than a stop token.
    ///
    /// Some models seldom end an answer by themselves ([`Recommended::ends_sentences`](super::recommended::Recommended::ends_sentences)).
    /// Theirs ends with a paragraph in the last quarter of the context, or with a sentence in its last eighth.
    pub(super) fn end_before(
        &self,
        next: u32,
        said: &[u32],
        left: Option<usize>,
    ) -> Option<StopReason> {
        let tokenizer = self.tokenizer();
        if tokenizer.is_stop(next) {
            return Some(StopReason::StopToken);
        }
        let left = left.filter(|left| *left <= self.n_ctx() / 4)?;
        if !self.recommended().ends_sentences() {
            return None;
        }
        let last = &said[said.len().saturating_sub(LOOKED_AT)..];
        let end = end_between(&tokenizer.decode(last), &tokenizer.piece(next))?;
        let is_wanted = end == End::Paragraph || left <= self.n_ctx() / 8;
        is_wanted.then_some(StopReason::SentenceEnd)
    }
}

/// The unit that ends behind `before` if `after` follows it.
fn end_between(before: &str, after: &str) -> Option<End> {
    let said = before.trim_end();
    let marked = said.trim_end_matches(['"', '\'', '”', '’', ')']);
    let is_shortened = SHORTENED.iter().any(|word| marked.ends_with(word));
    if !marked.ends_with(['.', '!', '?']) || is_shortened {
        return None;
    }
    let white = &after[..after.len() - after.trim_start().len()];
    let gap = [&before[said.len()..], white].concat();
    match gap.contains('\n') {
        true => Some(End::Paragraph),
        false => (!gap.is_empty()).then_some(End::Sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{DeviceChoice, EngineOptions, GpuOptions, ModelSource};
    use crate::gpu::wait::Wait;

    #[test]
    fn a_sentence_ends_at_its_mark_and_quotes_if_white_space_follows() {
        for (before, after, expected) in [
            ("and went home.", " The", Some(End::Sentence)),
            ("and went home.", "\n\n", Some(End::Paragraph)),
            ("and went home.\n\n", "The", Some(End::Paragraph)),
            ("\"Who is there?\"", " said", Some(End::Sentence)),
            ("\u{201c}Come!\u{201d}", "\n", Some(End::Paragraph)),
            ("and went home.", "\"", None),
            ("and went home", " with", None),
            ("cried out,", "\n", None),
            ("good morning, Mr.", " Fox", None),
            ("3.", "5", None),
            ("", " The", None),
        ] {
            assert_eq!(end_between(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn answers_of_the_story_teller_end_with_a_sentence_where_the_context_is_nearly_full() {
        let options = EngineOptions {
            gpu: GpuOptions {
                device: DeviceChoice::Cpu,
                ..GpuOptions::default()
            },
            ctx: Some(800),
            ..EngineOptions::default()
        };
        let opened = Opened::new(&ModelSource::Embedded, &options)
            .wait()
            .expect("it is built in");
        let tokens = |text| {
            let tokens = opened.tokenizer().encode(text, false);
            tokens.expect("it is text")
        };
        let said = tokens("The king was glad.");
        let (sentence, paragraph) = (tokens(" The")[0], tokens("\n")[0]);
        let end = |next, left| opened.end_before(next, &said, left);
        assert_eq!(end(sentence, Some(101)), None);
        assert_eq!(end(sentence, Some(100)), Some(StopReason::SentenceEnd));
        assert_eq!(end(paragraph, Some(201)), None);
        assert_eq!(end(paragraph, Some(200)), Some(StopReason::SentenceEnd));
        assert_eq!(end(paragraph, None), None);
        let stop = opened.tokenizer().stop_tokens()[0];
        assert_eq!(end(stop, None), Some(StopReason::StopToken));
        assert_eq!(
            opened.end_before(sentence, &tokens("The king was"), Some(1)),
            None
        );
    }
}
