//! Finds calls of tools in the text of an answer, however it is cut into pieces.
//!
//! A call is told once its name is known to be a tool of the request and its first key is read. What is damaged before that stays text.
//! Arguments that were told are always closed to valid JSON. Each decision is made on the text alone, and waits where the text does not tell yet, so
//! that an answer is read the same in any pieces.

use std::mem::take;
use std::sync::Arc;

use super::heads::{Head, Heads, first};
use super::known::Known;
use super::literal::{Literal, Reading};
use super::marks::KEY_BEGIN;
use super::quoting::Quoting;
use super::tags::settled;
use super::typed::Kinds;
use super::{Format, Tool};

/// A change to the answer that a token makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server) enum Delta {
    /// A piece of the thoughts.
    Thought(String),
    /// Text of the answer.
    Text(String),
    /// A call begins.
    Call {
        /// The number of the call in the answer.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the arguments of a call, which are JSON.
    Arguments {
        /// The number of the call.
        index: usize,
        /// The text that goes on.
        text: String,
    },
}

/// The place of the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    /// Outside of calls.
    Outside,
    /// The text is behind a mark that begins a call, which is not told yet.
    Head,
    /// The text is in what looks like a call, but is quoted or stands among thoughts.
    Aside,
    /// The text is between the arguments of a tagged call.
    Arguments,
    /// The text is before the value of an argument.
    BeforeValue(String),
    /// The text is in the value of an argument that is a text.
    InText,
    /// The text is in the value of an argument that is told when it is whole.
    InValue(String, Kinds),
    /// The text is in arguments that are one object of JSON.
    InJson,
    /// The text is behind an object of arguments, which tags may go on with.
    BehindJson,
    /// The text is behind arguments that cannot be read further.
    Damaged,
    /// The text is behind a call, before the text or the call that follows.
    Behind,
}

/// A text that looks like a call, where an answer may only speak of calls. It is one if nothing follows.
struct Aside {
    parser: Box<Parser>,
    deltas: Vec<Delta>,
    text: String,
    /// Length of the white space and the mark that it begins with.
    mark: usize,
}

/// Finds calls in the text of an answer.
pub(in crate::server) struct Parser {
    pub(super) format: Format,
    pub(super) known: Arc<Known>,
    tools: Arc<[Tool]>,
    pub(super) state: State,
    /// The text that is not decided yet.
    pub(super) held: String,
    /// The white space and the mark before a call that is not told yet.
    pub(super) before: String,
    aside: Option<Aside>,
    /// White space behind the thoughts, while a call in them may still be one.
    gap: String,
    quoting: Quoting,
    /// Texts that begin a call where they begin a line, such as names with the tag of a key behind them, before which the mark was left out.
    bare: Arc<[String]>,
    /// Whether the text belongs to the thoughts.
    thinking: bool,
    /// Whether the answer is over with its first call.
    one_call: bool,
    /// Whether no text follows.
    pub(super) over: bool,
    /// Whether the model ended the answer itself.
    pub(super) whole: bool,
    /// Calls that have begun.
    calls: usize,
    /// The tool that is called.
    pub(super) tool: usize,
    /// Arguments of the call so far.
    pub(super) arguments: usize,
    /// The arguments of the call, if they are one object of JSON.
    json: Literal,
    /// Whether brackets and fences of that object may follow.
    pub(super) loose: bool,
    /// Bytes of the value that was begun: of what is told, or of what is held and has no tags that end it.
    pub(super) value: usize,
    /// Calls that are whole.
    pub(in crate::server) ended: usize,
    /// The deltas that were found and not told yet.
    deltas: Vec<Delta>,
}

/// The tools and formats that the parsers of all answers to a request share.
#[derive(Clone)]
pub(in crate::server) struct Offered {
    format: Format,
    known: Arc<Known>,
    tools: Arc<[Tool]>,
    bare: Arc<[String]>,
}

impl Offered {
    /// The format's calls of these tools.
    pub(in crate::server) fn new(format: Format, tools: &[Tool]) -> Self {
        let known = Known::new(tools.to_vec());
        let bare = match format {
            Format::Tagged => known.names().map(|n| format!("{n}{KEY_BEGIN}")).collect(),
            Format::Llama => vec!["{".to_owned()],
            _ => vec![],
        };
        Self {
            format,
            known: Arc::new(known),
            tools: tools.into(),
            bare: bare.into(),
        }
    }
}

impl Parser {
    /// A parser of an answer to a request with these tools.
    #[cfg(test)]
    pub(in crate::server) fn new(format: Format, tools: Vec<Tool>, one_call: bool) -> Self {
        Self::of(Offered::new(format, &tools), one_call)
    }

    fn offered(&self) -> Offered {
        Offered {
            format: self.format,
            known: Arc::clone(&self.known),
            tools: Arc::clone(&self.tools),
            bare: Arc::clone(&self.bare),
        }
    }

    /// A parser at the beginning of an answer, which is over with its first call if `one_call` is true.
    pub(in crate::server) fn of(offered: Offered, one_call: bool) -> Self {
        let Offered {
            format,
            known,
            tools,
            bare,
        } = offered;
        Self {
            format,
            known,
            tools,
            state: State::Outside,
            held: String::new(),
            before: String::new(),
            aside: None,
            gap: String::new(),
            quoting: Quoting::new(),
            bare,
            thinking: false,
            one_call,
            over: false,
            whole: false,
            calls: 0,
            tool: 0,
            arguments: 0,
            json: Literal::new(),
            loose: false,
            value: 0,
            ended: 0,
            deltas: vec![],
        }
    }

    /// Whether nothing of the answer is taken any more.
    pub(in crate::server) fn is_over(&self) -> bool {
        self.one_call && self.ended > 0
    }

    /// Takes the next piece of the thoughts. A call among them is one only if nothing follows.
    pub(in crate::server) fn think(&mut self, piece: &str) -> Vec<Delta> {
        self.thinking = true;
        self.held.push_str(piece);
        self.advance()
    }

    /// Takes the next piece of the answer.
    pub(in crate::server) fn push(&mut self, piece: &str) -> Vec<Delta> {
        match self.thinking {
            false => self.held.push_str(piece),
            // A call among them may still be one.
            true if self.aside.is_some() && piece.trim().is_empty() => self.gap.push_str(piece),
            true => self.end_thoughts(piece),
        }
        self.advance()
    }

    /// Takes what is left at the end of the answer, which the model has ended itself if it is `whole`.
    pub(in crate::server) fn finish(&mut self, whole: bool) -> Vec<Delta> {
        (self.over, self.whole) = (true, whole);
        while self.step().is_some() {}
        if self.calls == 0 {
            self.thinking = false;
            let gap = take(&mut self.gap);
            self.emit_text(gap);
        }
        take(&mut self.deltas)
    }

    fn advance(&mut self) -> Vec<Delta> {
        while self.step().is_some() {}
        take(&mut self.deltas)
    }

    /// Ends the thoughts, behind which the answer begins with a piece.
    fn end_thoughts(&mut self, piece: &str) {
        let aside = self.aside.take();
        let thought = aside.map(|aside| aside.text).unwrap_or_default();
        let held = take(&mut self.held);
        self.emit_text(thought + &held);
        self.held = take(&mut self.gap) + piece;
        self.thinking = false;
        self.quoting = Quoting::new();
        self.state = State::Outside;
    }

    /// Goes on to the next state; `None` where that needs more text.
    fn step(&mut self) -> Option<()> {
        if self.is_over() {
            self.held.clear();
            return None;
        }
        match self.state.clone() {
            State::Outside => self.outside(),
            State::Head => self.head(),
            State::Aside => self.aside(),
            State::Arguments => self.between_arguments(),
            State::BeforeValue(key) => self.before_value(&key),
            State::InText => self.in_text(),
            State::InValue(key, kinds) => self.in_value(&key, kinds),
            State::InJson => self.in_json(),
            State::BehindJson => self.behind_json(),
            State::Damaged => self.damaged(),
            State::Behind => self.behind(),
        }
    }

    /// The reader of beginnings of calls.
    pub(super) fn heads(&self) -> Heads<'_> {
        Heads {
            format: self.format,
            known: &self.known,
            over: self.over,
            whole: self.whole,
        }
    }

    fn outside(&mut self) -> Option<()> {
        let mark = first(&self.held, self.format.begins()).map(|(at, mark)| (at, mark.len()));
        let bare = self.bare_call().map(|at| (at, 0));
        let Some((at, length)) = mark.into_iter().chain(bare).min() else {
            self.outside_of_marks();
            return None;
        };
        let text_end = self.held[..at].trim_end().len();
        let text = self.held.drain(..text_end).collect();
        self.emit_text(text);
        let before: String = self.held.drain(..at - text_end + length).collect();
        // A line break ends the line of a fence.
        let mut quoting = self.quoting.clone();
        quoting.push(&before[..at - text_end]);
        let is_quoted = quoting.behind_backtick();
        let in_fence = quoting.in_fence() && self.format != Format::Json;
        self.state = State::Head;
        if self.thinking || is_quoted || in_fence {
            let mut parser = Self::of(self.offered(), self.one_call);
            self.aside = Some(Aside {
                deltas: parser.push(before.trim_start()),
                parser: Box::new(parser),
                mark: before.len(),
                text: before,
            });
            self.state = State::Aside;
        } else {
            self.before = before;
        }
        Some(())
    }

    /// The beginning of a line that begins with a call without the mark of one.
    fn bare_call(&self) -> Option<usize> {
        let places = self
            .bare
            .iter()
            .flat_map(|bare| self.held.match_indices(bare.as_str()));
        let places = places.map(|(at, _)| at);
        places.filter(|at| self.is_line_start(*at)).min()
    }

    /// Whether only white space stands before a place in its line.
    fn is_line_start(&self, at: usize) -> bool {
        let before = &self.held[..at];
        match before.rfind('\n') {
            Some(line) => before[line..].trim().is_empty(),
            None => before.trim().is_empty() && self.quoting.at_line_start(),
        }
    }

    /// Tells the text in which no call can begin any more. The white space before a mark is none of the answer's.
    fn outside_of_marks(&mut self) {
        if self.over {
            let held = take(&mut self.held);
            // White space behind calls is none of the answer's.
            if self.calls == 0 || !held.trim().is_empty() {
                self.emit_text(held);
            }
            return;
        }
        let mut end = settled(&self.held, self.format.begins());
        let line = self.held.rfind('\n').map_or(0, |at| at + 1);
        let start = self.held.len() - self.held[line..].trim_start().len();
        let may_be_call = |bare: &String| bare.starts_with(&self.held[start..]);
        if self.is_line_start(start) && self.bare.iter().any(may_be_call) {
            end = end.min(start);
        }
        let end = self.held[..end].trim_end().len();
        let text = self.held.drain(..end).collect();
        self.emit_text(text);
    }

    fn emit_text(&mut self, text: String) {
        if !text.is_empty() {
            self.quoting.push(&text);
            self.deltas.push(match self.thinking {
                true => Delta::Thought(text),
                false => Delta::Text(text),
            });
        }
    }

    /// Tells what looked like the beginning of a call, whose rest is held, as text.
    fn no_call(&mut self, mut begun: String) -> Option<()> {
        if begun.trim().is_empty() {
            // The mark was missing, and the name must not be taken for a call again.
            let length = self.held.chars().next().map_or(0, char::len_utf8);
            begun.extend(self.held.drain(..length));
        }
        self.emit_text(begun);
        self.state = State::Outside;
        Some(())
    }

    fn head(&mut self) -> Option<()> {
        let head = self.heads().read(&self.held);
        match head {
            Head::More => return None,
            Head::Text => {
                let before = take(&mut self.before);
                return self.no_call(before);
            }
            Head::Bare { tool, used } => {
                self.held.drain(..used);
                self.call(tool);
                self.end_arguments(true);
            }
            Head::Key { tool, key, used } => {
                self.held.drain(..used);
                self.call(tool);
                self.state = State::BeforeValue(key);
            }
            Head::Json { tool, used } => {
                self.held.drain(..used);
                self.call(tool);
                self.json = Literal::new();
                self.state = State::InJson;
            }
            Head::Calls { calls, used, whole } => {
                self.held.drain(..used);
                for (tool, arguments) in calls {
                    self.call(tool);
                    self.more(arguments);
                    self.ended += usize::from(whole);
                }
                (self.state, self.loose) = (State::Behind, true);
            }
        }
        self.before.clear();
        Some(())
    }

    /// Goes on in what looks like a call and is one only if nothing follows.
    fn aside(&mut self) -> Option<()> {
        let aside = self.aside.as_mut()?;
        let held = take(&mut self.held);
        aside.deltas.extend(aside.parser.push(&held));
        aside.text += &held;
        if self.over {
            aside.deltas.extend(aside.parser.finish(self.whole));
        }
        let texts = aside.deltas.iter().filter_map(|delta| match delta {
            Delta::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let texts: String = texts.collect();
        // A call in a fence is not quoted where the answer has nothing else.
        let is_fence = || self.quoting.is_only_fence() && texts.trim().trim_matches('`').is_empty();
        let has_text = !texts.is_empty() && (self.thinking || !is_fence());
        if !has_text && !self.over {
            return None;
        }
        let Aside {
            parser,
            deltas,
            mut text,
            mark,
            ..
        } = self.aside.take()?;
        if has_text || parser.ended == 0 {
            self.held = text.split_off(mark);
            return self.no_call(text);
        }
        let calls = self.calls;
        self.deltas
            .extend(deltas.into_iter().map(|delta| match delta {
                Delta::Call { index, name } => Delta::Call {
                    index: index + calls,
                    name,
                },
                Delta::Arguments { index, text } => Delta::Arguments {
                    index: index + calls,
                    text,
                },
                other => other,
            }));
        self.calls += parser.calls;
        self.ended += parser.ended;
        self.state = State::Behind;
        Some(())
    }

    /// Begins a call.
    fn call(&mut self, tool: usize) {
        (self.tool, self.arguments) = (tool, 0);
        self.deltas.push(Delta::Call {
            index: self.calls,
            name: self.known.tool(tool).name.clone(),
        });
        self.calls += 1;
    }

    /// More arguments of the last call.
    pub(super) fn more(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            let index = self.calls.saturating_sub(1);
            self.deltas.push(Delta::Arguments { index, text });
        }
    }

    /// Ends a call whose arguments are told one by one.
    pub(super) fn end_arguments(&mut self, whole: bool) {
        self.more(if self.arguments == 0 { "{}" } else { "}" });
        self.ended += usize::from(whole);
        (self.state, self.loose) = (State::Behind, false);
    }

    /// Whether a mark in quotes ends the arguments, because nothing that belongs to the quotes follows it.
    fn ends_in_quotes(&self, behind: &str) -> Option<bool> {
        let rest = behind.trim_start();
        let mut marks = self.format.begins().iter().chain(self.format.ends());
        if rest.is_empty() {
            return self.over.then_some(true);
        }
        if marks.clone().any(|mark| rest.starts_with(mark)) {
            return Some(true);
        }
        let may_be = !self.over && marks.any(|mark| mark.starts_with(rest));
        (!may_be).then_some(false)
    }

    fn in_json(&mut self) -> Option<()> {
        let held = take(&mut self.held);
        let marks = [self.format.begins(), self.format.ends()].concat();
        let end = match self.over {
            true => held.len(),
            false => settled(&held, &marks),
        };
        let (mut at, mut reading, mut is_ended) = (0, Reading::Open, Some(false));
        while let Some(c) = held[at..end].chars().next() {
            let mark = marks.iter().find(|mark| held[at..].starts_with(*mark));
            if let Some(mark) = mark {
                is_ended = match self.json.in_text() {
                    true => self.ends_in_quotes(&held[at + mark.len()..]),
                    false => Some(true),
                };
                if is_ended != Some(false) {
                    break;
                }
            }
            reading = self.json.push(c);
            at += c.len_utf8();
            if reading != Reading::Open {
                break;
            }
        }
        self.held = held[at..].to_owned();
        let is_cut = self.over && at == held.len();
        let is_marked = is_ended == Some(true);
        if reading == Reading::Wrong || reading == Reading::Open && (is_cut || is_marked) {
            self.json.close();
        }
        let mut json = self.json.take();
        if reading == Reading::Done && self.format == Format::Tagged {
            json.pop();
            self.arguments = usize::from(self.json.has_key());
            if self.arguments > 0 {
                self.more(json);
            }
            self.state = State::BehindJson;
            return Some(());
        }
        self.more(json);
        self.ended += usize::from(reading == Reading::Done || is_marked);
        self.loose = true;
        self.state = match reading {
            Reading::Wrong => State::Damaged,
            Reading::Open if !is_cut && !is_marked => return None,
            _ => State::Behind,
        };
        Some(())
    }
}
