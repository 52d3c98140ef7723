//! Finds calls of tools in the text of an answer, however it is cut into pieces.

use std::mem::{replace, take};

use serde_json::Value;

use super::typed::{self, Kind};
use super::{
    CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, Format, KEY_BEGIN, KEY_END, SEPARATOR, TAG_BEGIN,
    TAG_END, Tool, VALUE_BEGIN, VALUE_END,
};

/// What a part of an answer has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server) enum Delta {
    /// A piece of the thoughts, which no parser sees.
    Thought(String),
    /// Text of the answer.
    Text(String),
    /// A call begins.
    Call {
        /// Which of the answer's.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the arguments of a call, which are JSON.
    Arguments {
        /// Which call.
        index: usize,
        /// The text that goes on.
        text: String,
    },
}

/// Where the text is.
#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Outside of calls.
    Outside,
    /// Behind the tag that begins a call.
    Tag,
    /// Between the arguments of a tagged call.
    Arguments,
    /// Before the value of an argument.
    BeforeValue(String),
    /// In the value of an argument that is a text.
    InText,
    /// In the value of an argument that is read when it is whole.
    InValue(Kind),
    /// Between DeepSeek's calls.
    Between,
    /// In the name of a call of DeepSeek's.
    Name,
    /// In the line of the name, and the fence below it.
    Fence,
    /// In the JSON of a call of DeepSeek's.
    InJson,
}

/// Finds calls in the text of an answer.
pub(in crate::server) struct Parser {
    format: Format,
    tools: Vec<Tool>,
    state: State,
    /// What is not decided yet.
    held: String,
    /// Calls that have begun.
    pub(in crate::server) calls: usize,
    /// The tool that is called.
    tool: Option<usize>,
    /// Arguments of the call so far.
    arguments: usize,
    /// Calls that are whole.
    pub(in crate::server) ended: usize,
    /// What was found and not told yet.
    deltas: Vec<Delta>,
}

impl Parser {
    /// A parser at the beginning of an answer.
    pub(in crate::server) fn new(format: Format, tools: Vec<Tool>) -> Self {
        Self {
            format,
            tools,
            state: State::Outside,
            held: String::new(),
            calls: 0,
            tool: None,
            arguments: 0,
            ended: 0,
            deltas: vec![],
        }
    }

    /// Takes the next piece of the answer.
    pub(in crate::server) fn push(&mut self, piece: &str) -> Vec<Delta> {
        self.held.push_str(piece);
        while self.step().is_some() {}
        take(&mut self.deltas)
    }

    /// Goes on to the next state; `None` where that needs more text.
    fn step(&mut self) -> Option<()> {
        match self.state.clone() {
            State::Outside => self.outside(),
            State::Tag => self.tag(),
            State::Arguments => self.between_arguments(),
            State::BeforeValue(key) => self.before_value(&key),
            State::InText => self.in_text(),
            State::InValue(kind) => self.in_value(kind),
            State::Between => self.between_calls(),
            State::Name => self.name(),
            State::Fence => self.fence(),
            State::InJson => self.in_json(),
        }
    }

    /// Takes a mark if the text begins with it. Returned is whether it does.
    fn takes(&mut self, mark: &str) -> bool {
        let begins = self.held.starts_with(mark);
        if begins {
            self.held.drain(..mark.len());
        }
        begins
    }

    /// Takes the text up to a mark, and the mark; `None` if there is no mark yet.
    fn take_to(&mut self, mark: &str) -> Option<String> {
        let at = self.held.find(mark)?;
        let text = self.held.drain(..at).collect();
        self.held.drain(..mark.len());
        Some(text)
    }

    fn outside(&mut self) -> Option<()> {
        let marks: &[&str] = match self.format {
            Format::Tagged | Format::Json => &[TAG_BEGIN],
            Format::DeepSeek | Format::DeepSeekFenced => &[CALLS_BEGIN, CALL_BEGIN],
        };
        let found = marks
            .iter()
            .filter_map(|mark| Some((self.held.find(mark)?, *mark)))
            .min();
        if let Some((at, mark)) = found {
            let text = self.held[..at].trim_end().to_owned();
            self.emit_text(text);
            self.held.drain(..at + mark.len());
            self.state = match mark {
                TAG_BEGIN => State::Tag,
                CALLS_BEGIN => State::Between,
                _ => State::Name,
            };
            return Some(());
        }
        // A mark may begin at the end of the text, and the white space before it is none of the answer's.
        let kept = marks.iter().map(|mark| overlap(&self.held, mark)).max();
        let end = self.held.len() - kept.unwrap_or(0);
        let end = self.held[..end].trim_end().len();
        let text = self.held.drain(..end).collect();
        self.emit_text(text);
        None
    }

    fn emit_text(&mut self, text: String) {
        if !text.is_empty() {
            self.deltas.push(Delta::Text(text));
        }
    }

    /// Begins a call.
    fn call(&mut self, name: &str) {
        self.tool = self.tools.iter().position(|tool| tool.name == name);
        self.arguments = 0;
        self.deltas.push(Delta::Call {
            index: self.calls,
            name: name.to_owned(),
        });
        self.calls += 1;
    }

    /// More arguments of the last call.
    fn more(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            let index = self.calls.saturating_sub(1);
            self.deltas.push(Delta::Arguments { index, text });
        }
    }

    fn tag(&mut self) -> Option<()> {
        trim_start(&mut self.held);
        if self.held.starts_with('{') {
            let whole = self.take_to(TAG_END)?;
            self.state = State::Outside;
            if !self.json_call(&whole) {
                self.emit_text(format!("{TAG_BEGIN}{whole}{TAG_END}"));
            }
            return Some(());
        }
        let end = self.held.find(['<', '\n'])?;
        let name: String = self.held.drain(..end).collect();
        self.call(name.trim());
        self.state = State::Arguments;
        Some(())
    }

    /// A call that is one object of JSON; whether it is one.
    fn json_call(&mut self, text: &str) -> bool {
        let call = serde_json::from_str(text.trim()).unwrap_or(Value::Null);
        let Some(name) = call["name"].as_str() else {
            return false;
        };
        let arguments = match &call["arguments"] {
            Value::Null => "{}".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.call(name);
        self.more(arguments);
        self.ended += 1;
        true
    }

    fn between_arguments(&mut self) -> Option<()> {
        trim_start(&mut self.held);
        if self.held.starts_with(KEY_BEGIN) {
            let key = self.take_to(KEY_END)?;
            self.state = State::BeforeValue(key[KEY_BEGIN.len()..].trim().to_owned());
            return Some(());
        }
        if self.takes(TAG_END) {
            self.end_arguments();
            return Some(());
        }
        self.skip_to(&[KEY_BEGIN, TAG_END])
    }

    fn end_arguments(&mut self) {
        let end = if self.arguments == 0 { "{}" } else { "}" };
        self.more(end);
        self.ended += 1;
        self.state = State::Outside;
    }

    /// Leaves out what stands before the next of the marks, where nothing should stand. The text must not begin with a mark.
    fn skip_to(&mut self, marks: &[&str]) -> Option<()> {
        let may_begin = |text: &str| {
            let mut marks = marks.iter();
            marks.any(|mark| mark.starts_with(text) || text.starts_with(mark))
        };
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let next = starts.find(|at| may_begin(&self.held[*at..]));
        self.held.drain(..next.unwrap_or(self.held.len()));
        let mut marks = marks.iter();
        marks.any(|mark| self.held.starts_with(mark)).then_some(())
    }

    fn before_value(&mut self, key: &str) -> Option<()> {
        trim_start(&mut self.held);
        if !self.takes(VALUE_BEGIN) {
            return self.skip_to(&[VALUE_BEGIN]);
        }
        let parameters = self.tool.map(|tool| &self.tools[tool].parameters);
        let kind = parameters.map_or(Kind::Either, |parameters| typed::kind(parameters, key));
        let before = if self.arguments == 0 { "{" } else { ", " };
        let quote = if kind == Kind::Text { "\"" } else { "" };
        self.arguments += 1;
        self.more(format!("{before}{}: {quote}", Value::from(key)));
        self.state = match kind {
            Kind::Text => State::InText,
            other => State::InValue(other),
        };
        Some(())
    }

    fn in_text(&mut self) -> Option<()> {
        if let Some(text) = self.take_to(VALUE_END) {
            self.more(format!("{}\"", inside_quotes(&text)));
            self.state = State::Arguments;
            return Some(());
        }
        let end = self.held.len() - overlap(&self.held, VALUE_END);
        let text: String = self.held.drain(..end).collect();
        self.more(inside_quotes(&text));
        None
    }

    fn in_value(&mut self, kind: Kind) -> Option<()> {
        let text = self.take_to(VALUE_END)?;
        self.more(typed::json(&text, kind));
        self.state = State::Arguments;
        Some(())
    }

    fn between_calls(&mut self) -> Option<()> {
        trim_start(&mut self.held);
        for (mark, state) in [(CALL_BEGIN, State::Name), (CALLS_END, State::Outside)] {
            if self.takes(mark) {
                self.state = state;
                return Some(());
            }
        }
        self.skip_to(&[CALL_BEGIN, CALLS_END])
    }

    fn name(&mut self) -> Option<()> {
        let name = self.take_to(SEPARATOR)?;
        let name = name.trim();
        // The older form names the kind of the call here.
        if name == "function" && !self.knows(name) {
            self.state = State::Fence;
        } else {
            self.call(name);
            self.state = State::InJson;
        }
        Some(())
    }

    fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    fn fence(&mut self) -> Option<()> {
        let at = self.held.find('{')?;
        let before: String = self.held.drain(..at).collect();
        let name = before.lines().next().unwrap_or_default();
        self.call(name.trim().trim_end_matches("```json"));
        self.state = State::InJson;
        Some(())
    }

    fn in_json(&mut self) -> Option<()> {
        if self.arguments == 0 {
            trim_start(&mut self.held);
        }
        let found = self.held.find(CALL_END);
        let end = found.unwrap_or(self.held.len() - overlap(&self.held, CALL_END));
        let json = without_fence(&self.held[..end]);
        let (end, text) = (json.len(), json.to_owned());
        self.arguments += text.len();
        self.more(text);
        let Some(at) = found else {
            self.held.drain(..end);
            return None;
        };
        self.held.drain(..at + CALL_END.len());
        self.end_json();
        self.state = State::Between;
        Some(())
    }

    fn end_json(&mut self) {
        if self.arguments == 0 {
            self.more("{}");
        }
        self.ended += 1;
    }

    /// Takes what is left at the end of the answer, which the model has ended itself if it is `whole`.
    pub(in crate::server) fn finish(&mut self, whole: bool) -> Vec<Delta> {
        let held = take(&mut self.held);
        match replace(&mut self.state, State::Outside) {
            // White space behind calls is none of the answer's.
            State::Outside if self.calls > 0 && held.trim().is_empty() => {}
            State::Outside => self.emit_text(held),
            State::Tag => {
                let name = held.trim();
                if whole && self.knows(name) {
                    self.call(name);
                    self.end_arguments();
                } else if !self.json_call(held.trim_end_matches(TAG_END)) {
                    self.emit_text(format!("{TAG_BEGIN}{held}"));
                }
            }
            State::Arguments if whole => self.end_arguments(),
            State::InText => self.more(inside_quotes(&held)),
            State::InJson => {
                let json = without_fence(&held).to_owned();
                self.arguments += json.len();
                self.more(json);
                if whole {
                    self.end_json();
                }
            }
            State::Name | State::Fence => self.emit_text(held),
            State::Arguments | State::BeforeValue(_) | State::InValue(_) | State::Between => {}
        }
        take(&mut self.deltas)
    }
}

fn trim_start(text: &mut String) {
    let blank = text.len() - text.trim_start().len();
    text.drain(..blank);
}

/// JSON without white space behind it, and without the fence that may close it.
fn without_fence(text: &str) -> &str {
    let text = text.trim_end();
    text.trim_end_matches('`').trim_end()
}

/// A text as it stands between the quotes of JSON.
fn inside_quotes(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Length in bytes of the longest end of `text` that is a beginning of `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let from = text.len().saturating_sub(mark.len());
    let ends = text.char_indices().filter(|(at, _)| *at >= from);
    let ends = ends.map(|(at, _)| &text[at..]);
    ends.map(|end| if mark.starts_with(end) { end.len() } else { 0 })
        .max()
        .unwrap_or(0)
}
