//! Finds calls of tools in the text of an answer, however it is cut into pieces.

use serde_json::Value;

use super::typed::{self, Kind};
use super::{
    CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, Format, KEY_BEGIN, KEY_END, SEPARATOR, TAG_BEGIN,
    TAG_END, Tool, VALUE_BEGIN, VALUE_END,
};

/// What a piece of text has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::server) enum Delta {
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
    /// Calls so far.
    calls: usize,
    /// The tool that is called.
    tool: Option<usize>,
    /// Arguments of the call so far.
    arguments: usize,
    /// Calls that are whole.
    ended: usize,
}

/// What a step needs to go on.
enum Step {
    Again,
    More,
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
        }
    }

    /// Calls that have come to their end.
    pub(in crate::server) fn ended(&self) -> usize {
        self.ended
    }

    /// Calls that have begun.
    pub(in crate::server) fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next piece of the answer.
    pub(in crate::server) fn push(&mut self, piece: &str) -> Vec<Delta> {
        self.held.push_str(piece);
        let mut deltas = vec![];
        while let Step::Again = self.step(&mut deltas) {}
        deltas
    }

    fn step(&mut self, deltas: &mut Vec<Delta>) -> Step {
        match self.state.clone() {
            State::Outside => self.outside(deltas),
            State::Tag => self.tag(deltas),
            State::Arguments => self.between_arguments(deltas),
            State::BeforeValue(key) => self.before_value(&key, deltas),
            State::InText => self.in_text(deltas),
            State::InValue(kind) => self.in_value(kind, deltas),
            State::Between => self.between_calls(),
            State::Name => self.name(deltas),
            State::Fence => self.fence(deltas),
            State::InJson => self.in_json(deltas),
        }
    }

    fn outside(&mut self, deltas: &mut Vec<Delta>) -> Step {
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
            self.emit_text(text, deltas);
            self.held.drain(..at + mark.len());
            self.state = match mark {
                TAG_BEGIN => State::Tag,
                CALLS_BEGIN => State::Between,
                _ => State::Name,
            };
            return Step::Again;
        }
        // A mark may begin at the end of the text, and the white space before it is none of the answer's.
        let kept = marks.iter().map(|mark| overlap(&self.held, mark)).max();
        let end = self.held.len() - kept.unwrap_or(0);
        let end = self.held[..end].trim_end().len();
        let text = self.held.drain(..end).collect();
        self.emit_text(text, deltas);
        Step::More
    }

    fn emit_text(&self, text: String, deltas: &mut Vec<Delta>) {
        if !text.is_empty() {
            deltas.push(Delta::Text(text));
        }
    }

    /// Begins a call.
    fn call(&mut self, name: &str, deltas: &mut Vec<Delta>) {
        self.tool = self.tools.iter().position(|tool| tool.name == name);
        self.arguments = 0;
        deltas.push(Delta::Call {
            index: self.calls,
            name: name.to_owned(),
        });
        self.calls += 1;
    }

    /// More arguments of the last call.
    fn more(&self, text: impl Into<String>, deltas: &mut Vec<Delta>) {
        let text = text.into();
        if !text.is_empty() {
            let index = self.calls.saturating_sub(1);
            deltas.push(Delta::Arguments { index, text });
        }
    }

    fn tag(&mut self, deltas: &mut Vec<Delta>) -> Step {
        trim_start(&mut self.held);
        if self.held.starts_with('{') {
            let Some(at) = self.held.find(TAG_END) else {
                return Step::More;
            };
            let whole: String = self.held.drain(..at).collect();
            self.held.drain(..TAG_END.len());
            self.state = State::Outside;
            if !self.json_call(&whole, deltas) {
                self.emit_text(format!("{TAG_BEGIN}{whole}{TAG_END}"), deltas);
            }
            return Step::Again;
        }
        let Some(end) = self.held.find(['<', '\n']) else {
            return Step::More;
        };
        let name: String = self.held.drain(..end).collect();
        self.call(name.trim(), deltas);
        self.state = State::Arguments;
        Step::Again
    }

    /// A call that is one object of JSON; whether it is one.
    fn json_call(&mut self, text: &str, deltas: &mut Vec<Delta>) -> bool {
        let Ok(call) = serde_json::from_str::<Value>(text.trim()) else {
            return false;
        };
        let Some(name) = call["name"].as_str() else {
            return false;
        };
        let arguments = match &call["arguments"] {
            Value::Null => "{}".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.call(name, deltas);
        self.more(arguments, deltas);
        self.ended += 1;
        true
    }

    fn between_arguments(&mut self, deltas: &mut Vec<Delta>) -> Step {
        trim_start(&mut self.held);
        if self.held.starts_with(KEY_BEGIN) {
            let Some(at) = self.held.find(KEY_END) else {
                return Step::More;
            };
            let key = self.held[KEY_BEGIN.len()..at].trim().to_owned();
            self.held.drain(..at + KEY_END.len());
            self.state = State::BeforeValue(key);
            return Step::Again;
        }
        if self.held.starts_with(TAG_END) {
            self.held.drain(..TAG_END.len());
            self.end_arguments(deltas);
            return Step::Again;
        }
        self.skip_to(&[KEY_BEGIN, TAG_END])
    }

    fn end_arguments(&mut self, deltas: &mut Vec<Delta>) {
        let end = if self.arguments == 0 { "{}" } else { "}" };
        self.more(end, deltas);
        self.ended += 1;
        self.state = State::Outside;
    }

    /// Leaves out what should not be there before one of the marks.
    fn skip_to(&mut self, marks: &[&str]) -> Step {
        let may_begin = |text: &str| {
            marks
                .iter()
                .any(|mark| mark.starts_with(text) || text.starts_with(mark))
        };
        let starts = self.held.char_indices().map(|(at, _)| at);
        let next = starts.into_iter().find(|at| may_begin(&self.held[*at..]));
        match next {
            Some(0) | None => {
                if next.is_none() {
                    self.held.clear();
                }
                Step::More
            }
            Some(at) => {
                self.held.drain(..at);
                match marks.iter().any(|mark| self.held.starts_with(mark)) {
                    true => Step::Again,
                    false => Step::More,
                }
            }
        }
    }

    fn before_value(&mut self, key: &str, deltas: &mut Vec<Delta>) -> Step {
        trim_start(&mut self.held);
        if !self.held.starts_with(VALUE_BEGIN) {
            return self.skip_to(&[VALUE_BEGIN]);
        }
        self.held.drain(..VALUE_BEGIN.len());
        let parameters = self.tool.map(|tool| &self.tools[tool].parameters);
        let kind = parameters.map_or(Kind::Either, |parameters| typed::kind(parameters, key));
        let before = if self.arguments == 0 { "{" } else { ", " };
        let quote = if kind == Kind::Text { "\"" } else { "" };
        self.arguments += 1;
        self.more(format!("{before}{}: {quote}", Value::from(key)), deltas);
        self.state = match kind {
            Kind::Text => State::InText,
            other => State::InValue(other),
        };
        Step::Again
    }

    fn in_text(&mut self, deltas: &mut Vec<Delta>) -> Step {
        let Some(at) = self.held.find(VALUE_END) else {
            let end = self.held.len() - overlap(&self.held, VALUE_END);
            let text: String = self.held.drain(..end).collect();
            self.more(inside_quotes(&text), deltas);
            return Step::More;
        };
        let text = format!("{}\"", inside_quotes(&self.held[..at]));
        self.held.drain(..at + VALUE_END.len());
        self.more(text, deltas);
        self.state = State::Arguments;
        Step::Again
    }

    fn in_value(&mut self, kind: Kind, deltas: &mut Vec<Delta>) -> Step {
        let Some(at) = self.held.find(VALUE_END) else {
            return Step::More;
        };
        let json = typed::json(&self.held[..at], kind);
        self.held.drain(..at + VALUE_END.len());
        self.more(json, deltas);
        self.state = State::Arguments;
        Step::Again
    }

    fn between_calls(&mut self) -> Step {
        trim_start(&mut self.held);
        for (mark, state) in [(CALL_BEGIN, State::Name), (CALLS_END, State::Outside)] {
            if self.held.starts_with(mark) {
                self.held.drain(..mark.len());
                self.state = state;
                return Step::Again;
            }
        }
        self.skip_to(&[CALL_BEGIN, CALLS_END])
    }

    fn name(&mut self, deltas: &mut Vec<Delta>) -> Step {
        let Some(at) = self.held.find(SEPARATOR) else {
            return Step::More;
        };
        let name = self.held[..at].trim().to_owned();
        self.held.drain(..at + SEPARATOR.len());
        // The older form names the kind of the call here.
        let is_tool = self.tools.iter().any(|tool| tool.name == name);
        if name == "function" && !is_tool {
            self.state = State::Fence;
        } else {
            self.call(&name, deltas);
            self.state = State::InJson;
        }
        Step::Again
    }

    fn fence(&mut self, deltas: &mut Vec<Delta>) -> Step {
        let Some(at) = self.held.find('{') else {
            return Step::More;
        };
        let name = self.held[..at].lines().next().unwrap_or_default();
        let name = name.trim().trim_end_matches("```json").to_owned();
        self.held.drain(..at);
        self.call(&name, deltas);
        self.state = State::InJson;
        Step::Again
    }

    fn in_json(&mut self, deltas: &mut Vec<Delta>) -> Step {
        if self.arguments == 0 {
            trim_start(&mut self.held);
        }
        let found = self.held.find(CALL_END);
        let end = found.unwrap_or(self.held.len() - overlap(&self.held, CALL_END));
        let json = without_fence(&self.held[..end]);
        let (end, text) = (json.len(), json.to_owned());
        self.arguments += text.len();
        self.more(text, deltas);
        let Some(at) = found else {
            self.held.drain(..end);
            return Step::More;
        };
        self.held.drain(..at + CALL_END.len());
        self.end_json(deltas);
        self.state = State::Between;
        Step::Again
    }

    fn end_json(&mut self, deltas: &mut Vec<Delta>) {
        if self.arguments == 0 {
            self.more("{}", deltas);
        }
        self.ended += 1;
    }

    /// Takes what is left at the end of the answer, which the model has ended itself if it is `whole`.
    pub(in crate::server) fn finish(&mut self, whole: bool) -> Vec<Delta> {
        let mut deltas = vec![];
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Outside) {
            // White space behind calls is none of the answer's.
            State::Outside if self.calls > 0 && held.trim().is_empty() => {}
            State::Outside => self.emit_text(held, &mut deltas),
            State::Tag => {
                let name = held.trim();
                if whole && self.tools.iter().any(|tool| tool.name == name) {
                    self.call(name, &mut deltas);
                    self.end_arguments(&mut deltas);
                } else if !self.json_call(held.trim_end_matches(TAG_END), &mut deltas) {
                    self.emit_text(format!("{TAG_BEGIN}{held}"), &mut deltas);
                }
            }
            State::Arguments if whole => self.end_arguments(&mut deltas),
            State::InText => self.more(inside_quotes(&held), &mut deltas),
            State::InJson => {
                let json = without_fence(&held).to_owned();
                self.arguments += json.len();
                self.more(json, &mut deltas);
                if whole {
                    self.end_json(&mut deltas);
                }
            }
            State::Name | State::Fence => self.emit_text(held, &mut deltas),
            State::Arguments | State::BeforeValue(_) | State::InValue(_) | State::Between => {}
        }
        deltas
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
