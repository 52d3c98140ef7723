//! The tokens of a conversation.
//!
//! The template is rendered with a mark in place of each generated passage. The texts between the marks are made into tokens, and at each
//! mark the generated tokens are put in. Templates may leave out passages (earlier thoughts), remove the white space around them, or write
//! white space that the model also generated. What a template changes in another way is made into tokens from its text.

use super::conversation::{Conversation, Passage, Turn};
use crate::engine::{EngineError, Opened};
use crate::tokenizer::{ChatTemplate, Message, Shield, Tokenizer, TokenizerError};

/// A conversation as tokens, up to where the model is to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// All tokens.
    pub ids: Vec<u32>,
    /// The number of the tokens that belong to earlier turns: those up to the end of the last answer.
    pub earlier: usize,
    /// The rendered template. Its end tells whether thoughts are open, see [`ReplyReader::new`](super::ReplyReader::new).
    pub text: String,
}

/// Whether the template is given the white space around a passage.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    AsGenerated,
    Trimmed,
}

impl Conversation {
    /// The tokens of this conversation in the chat template of `model`. `think` switches thinking on or off, `None` leaves it to the
    /// template. Wherever the template repeats an answer as it was, its tokens are the generated ones.
    ///
    /// # Errors
    /// The errors of [`Opened::needed_template`], of the template and of the tokenizer.
    pub fn prompt(&self, model: &Opened, think: Option<bool>) -> Result<Prompt, EngineError> {
        let template = model.needed_template()?;
        Ok(self.in_template(model.tokenizer(), template, think)?)
    }

    /// The tokens of this conversation in `template`, with the text that they were made from.
    pub(super) fn in_template(
        &self,
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
        think: Option<bool>,
    ) -> Result<Prompt, TokenizerError> {
        let (passages, marks) = (self.passages(), Marks::new(self));
        let mut form = Form::AsGenerated;
        // Marks in what the user says stay hidden until the tokens are made.
        let shield = template.shield(&self.messages(form, None), &[]);
        let render = |form: Form, marks: Option<&Marks>, begins: bool| {
            let mut messages = self.messages(form, marks);
            shield.hide(&mut messages);
            template.render(&messages, begins, think)
        };
        let mut text = render(form, None, true)?;
        let before = render(form, None, false)?;
        // The text that the template writes where the model is to answer; empty if it cannot be told.
        let ending = text.strip_prefix(&before).unwrap_or_default().to_owned();
        let marked = loop {
            let marked = render(form, Some(&marks), true)?;
            let marked = marks.split(&marked, passages.len());
            // A template that changes passages is not one that writes them where the marks are.
            let marked = marked.filter(|marked| marked.filled(&passages) == text);
            let continues = marked
                .as_ref()
                .is_some_and(|marked| marked.continues(&passages, &ending));
            if continues || form == Form::Trimmed {
                break marked;
            }
            form = Form::Trimmed;
            text = render(form, None, true)?;
        };
        let (ids, earlier) = match marked {
            Some(marked) => marked.ids(tokenizer, shield, &passages)?,
            None => {
                let ids = tokenizer.encode_said(&shield.opened(&text))?;
                let last = self.last_text().unwrap_or_default();
                let new = tokenizer.encode(&[last, &ending].concat(), false)?;
                let earlier = ids.len().saturating_sub(new.len());
                (ids, earlier)
            }
        };
        let text = shield.opened(&text).into_string();
        Ok(Prompt { ids, earlier, text })
    }

    /// All generated passages, in order.
    fn passages(&self) -> Vec<&Passage> {
        let replies = self.turns.iter().filter_map(|turn| match turn {
            Turn::Reply(reply) => Some(reply),
            Turn::User(_) => None,
        });
        replies
            .flat_map(|reply| reply.thoughts.iter().chain([&reply.answer]))
            .collect()
    }

    /// The messages that the template is given: all turns, with marks in place of passages if there are `marks`.
    fn messages(&self, form: Form, marks: Option<&Marks>) -> Vec<Message> {
        let mut numbers = 0..;
        let mut given = |passage: &Passage| {
            let number = numbers.next().unwrap_or_default();
            let parts = Parts::new(&passage.text);
            let core = match marks {
                Some(marks) => marks.mark(number),
                None => parts.core.to_owned(),
            };
            match form {
                Form::AsGenerated => [parts.before, &core, parts.after].concat(),
                Form::Trimmed => core,
            }
        };
        let system = self.system.iter().map(|text| Message::new("system", text));
        let turns = self.turns.iter().map(|turn| match turn {
            Turn::User(text) => Message::new("user", text),
            Turn::Reply(reply) => {
                let reasoning_content = reply.thoughts.as_ref().map(&mut given);
                Message {
                    reasoning_content,
                    ..Message::new("assistant", given(&reply.answer))
                }
            }
        });
        system.chain(turns).collect()
    }
}

/// A text and the white space around it.
struct Parts<'a> {
    before: &'a str,
    core: &'a str,
    after: &'a str,
}

impl<'a> Parts<'a> {
    fn new(text: &'a str) -> Self {
        let from_core = text.trim_start();
        let core = from_core.trim_end();
        Self {
            before: &text[..text.len() - from_core.len()],
            core,
            after: &from_core[core.len()..],
        }
    }
}

/// Texts that stand for passages, and that no turn contains.
struct Marks {
    frame: String,
}

impl Marks {
    fn new(conversation: &Conversation) -> Self {
        let messages = conversation.messages(Form::AsGenerated, None);
        let mut frame = "\u{10f8ff}".to_owned();
        let holds = |text: &str, frame: &str| text.contains(frame);
        while messages.iter().any(|message| {
            holds(&message.content, &frame)
                || (message.reasoning_content.as_deref()).is_some_and(|text| holds(text, &frame))
        }) {
            frame.push('\u{10f8fe}');
        }
        Self { frame }
    }

    fn mark(&self, number: usize) -> String {
        format!("{0}{number}{0}", self.frame)
    }

    /// Cuts a rendered template at the marks of `count` passages. `None` if one is there twice, or before an earlier one.
    fn split(&self, text: &str, count: usize) -> Option<Marked> {
        let mut marked = Marked::default();
        let mut rest = text;
        for number in 0..count {
            if let Some((before, after)) = rest.split_once(&self.mark(number)) {
                marked.passages.push((before.to_owned(), number));
                rest = after;
            }
        }
        marked.end = rest.to_owned();
        let texts = marked.passages.iter().map(|(before, _)| before.as_str());
        let whole = texts.chain([rest]).all(|text| !text.contains(&self.frame));
        whole.then_some(marked)
    }
}

/// A rendered template, cut where passages stand.
#[derive(Default)]
struct Marked {
    /// The text before a passage, and its number.
    passages: Vec<(String, usize)>,
    /// The text behind the last.
    end: String,
}

impl Marked {
    /// The text with the passages put in.
    fn filled(&self, passages: &[&Passage]) -> String {
        let mut text = String::new();
        for (before, number) in &self.passages {
            text += before;
            text += Parts::new(&passages[*number].text).core;
        }
        text + &self.end
    }

    /// Whether the model had the same text before each passage when it generated it: one that ends with `ending`. White space at the
    /// beginning of a passage is not part of that text.
    fn continues(&self, passages: &[&Passage], ending: &str) -> bool {
        self.passages.iter().all(|(text, number)| {
            let before = Parts::new(&passages[*number].text).before;
            let had = text.strip_suffix(before);
            before.is_empty() || had.is_some_and(|text| text.ends_with(ending))
        })
    }

    /// The tokens, and how many of them there are up to the end of the last passage.
    fn ids(
        &self,
        tokenizer: &Tokenizer,
        shield: Shield<'_>,
        passages: &[&Passage],
    ) -> Result<(Vec<u32>, usize), TokenizerError> {
        let mut ids = Ids {
            tokenizer,
            shield,
            ids: Vec::new(),
            text: String::new(),
        };
        let behind = self.passages.iter().skip(1).map(|(text, _)| text);
        let mut written = 0;
        for ((text, number), behind) in self.passages.iter().zip(behind.chain([&self.end])) {
            ids.text += &text[written..];
            written = ids.passage(passages[*number], behind)?;
        }
        let earlier = ids.ids.len();
        ids.text += &self.end[written..];
        ids.flush()?;
        Ok((ids.ids, earlier))
    }
}

/// Tokens while they are put together.
struct Ids<'a> {
    tokenizer: &'a Tokenizer,
    /// The shield that hides marks in the text.
    shield: Shield<'a>,
    ids: Vec<u32>,
    /// Text behind them that is not made into tokens yet.
    text: String,
}

impl Ids<'_> {
    /// Adds a passage that is followed by the text `behind`. Returned is how many bytes of that its tokens hold already.
    fn passage(&mut self, passage: &Passage, behind: &str) -> Result<usize, TokenizerError> {
        let parts = Parts::new(&passage.text);
        // White space that the template writes is in the tokens already. White space that it removes must not be in them.
        let removed_before = !self.text.ends_with(parts.before);
        let removed_after = !behind.starts_with(parts.after);
        let from = match removed_before {
            true => self.tokens_of(parts.before, passage.ids.iter()),
            false => Some(0),
        };
        let left_out = match removed_after {
            true => self.tokens_of(parts.after, passage.ids.iter().rev()),
            false => Some(0),
        };
        match (from, left_out) {
            (Some(from), Some(left_out)) if from + left_out <= passage.ids.len() => {
                if !removed_before {
                    self.text.truncate(self.text.len() - parts.before.len());
                }
                self.flush()?;
                let ids = &passage.ids[from..passage.ids.len() - left_out];
                self.ids.extend_from_slice(ids);
                Ok(if removed_after { 0 } else { parts.after.len() })
            }
            // A token holds both white space and text.
            _ => {
                self.text += parts.core;
                self.flush()?;
                Ok(0)
            }
        }
    }

    /// How many of the first `ids` stand for the white space `space`. `None` if it ends within a token.
    fn tokens_of<'b>(&self, space: &str, ids: impl Iterator<Item = &'b u32>) -> Option<usize> {
        let mut bytes = 0;
        let lengths = ids.map(|&id| self.tokenizer.token_bytes(id).len());
        let ends = lengths.map(|length| {
            bytes += length;
            bytes
        });
        let (mut count, mut reached) = (0, 0);
        for end in ends.take_while(|&end| end <= space.len()) {
            (count, reached) = (count + 1, end);
        }
        (reached == space.len()).then_some(count)
    }

    /// Makes the text into tokens.
    fn flush(&mut self) -> Result<(), TokenizerError> {
        let text = self.shield.opened(&self.text);
        let new = match self.ids.last() {
            None => self.tokenizer.encode_said(&text)?,
            last => self.tokenizer.encode_part(last.copied(), &text)?,
        };
        self.ids.extend(new);
        self.text.clear();
        Ok(())
    }
}
