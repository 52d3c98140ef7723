//! The turns of a conversation, as chat templates read them.

use minijinja::{Value, context};
use serde_json::{Map, Value as Json};

use super::exact;
use super::jinja::mapping;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The speaker: `system`, `user` or `assistant` in every template, others (`tool`) in some.
    pub role: String,
    /// The text of the turn.
    pub content: String,
    /// The thoughts before an answer, as templates know them. Most leave out those of earlier answers.
    pub reasoning_content: Option<String>,
    /// The calls of tools that an answer consists of.
    pub tool_calls: Vec<ToolCall>,
    /// The call that the result of a tool belongs to.
    pub tool_call_id: Option<String>,
}

/// A call of a tool in an earlier answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id by which the result names the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments of the call: JSON.
    pub arguments: Map<String, Json>,
}

impl ToolCall {
    /// The call as templates read it. Most want the arguments as a mapping, some as a text.
    fn value(&self, as_text: bool) -> Value {
        let Self { id, name, .. } = self;
        let arguments = match as_text {
            true => Value::from(exact::json(&Json::Object(self.arguments.clone()))),
            false => mapping(&self.arguments),
        };
        context! { id, type => "function", function => context! { name, arguments } }
    }
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message {
            role: role.into(),
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// The turn as templates read it. A key without a value is not there.
    pub(super) fn value(&self, arguments_as_text: bool) -> Value {
        let mut value = vec![
            ("role", Value::from(self.role.as_str())),
            ("content", Value::from(self.content.as_str())),
        ];
        if let Some(thoughts) = &self.reasoning_content {
            value.push(("reasoning_content", Value::from(thoughts.as_str())));
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter();
            let calls = calls.map(|call| call.value(arguments_as_text));
            value.push(("tool_calls", calls.collect()));
        }
        if let Some(id) = &self.tool_call_id {
            value.push(("tool_call_id", Value::from(id.as_str())));
        }
        Value::from_pairs(value)
    }
}
