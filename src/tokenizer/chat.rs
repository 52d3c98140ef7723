//! Chat templates: from the turns of a conversation to the text a model expects.
//!
//! The templates are Jinja, written for Hugging Face's `apply_chat_template`.

use std::collections::BTreeMap;

use minijinja::{Error, ErrorKind, Value, context};
use serde_json::{Map, Value as Json};

use super::TokenizerError;
use super::jinja::{FUEL, Program, mapping, value_of};
use crate::gguf::Gguf;

/// The key of the template used by default, and the stem of the keys of named ones (`tokenizer.chat_template.tool_use`).
const TEMPLATE_KEY: &str = "tokenizer.chat_template";
/// The variables by which templates switch thinking: GLM and Qwen, then DeepSeek.
const THINKING_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant` in every template, others (`tool`) in some.
    pub role: String,
    /// What is said.
    pub content: String,
    /// The thoughts before an answer, as templates know them. Most leave out those of earlier answers.
    pub reasoning_content: Option<String>,
    /// The calls of tools that an answer consists of.
    pub tool_calls: Vec<ToolCall>,
    /// Which call the result of a tool belongs to.
    pub tool_call_id: Option<String>,
}

/// A call of a tool in an earlier answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// What the result names the call by.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments: JSON.
    pub arguments: Map<String, Json>,
}

impl ToolCall {
    /// What templates read. Most want the arguments as a mapping, some as a text.
    fn value(&self, as_text: bool) -> Value {
        let Self { id, name, .. } = self;
        let arguments = match as_text {
            true => Value::from(Json::Object(self.arguments.clone()).to_string()),
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

    /// What templates read. A key without a value is not there.
    fn value(&self, arguments_as_text: bool) -> Value {
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

/// What a template is told beside the conversation.
#[derive(Clone, Debug, Default)]
pub struct Rendering {
    /// Whether the text ends where the assistant is to answer.
    pub add_generation_prompt: bool,
    /// Switches thinking on or off; `None` leaves it to the template.
    pub think: Option<bool>,
    /// The tools that the assistant may call, each as OpenAI's API describes it.
    pub tools: Vec<Json>,
    /// Variables of the caller's, which templates may know.
    pub variables: Map<String, Json>,
}

/// A chat template, parsed, with the tokens of its file.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    /// The metadata key: the template's name in messages.
    key: String,
    bos_token: String,
    eos_token: String,
    /// Which of [`THINKING_SWITCHES`] the template uses.
    switches: Vec<&'static str>,
    /// Whether it knows tools.
    tools: bool,
    /// The text of the template.
    source: String,
}

impl ChatTemplate {
    /// The template under `tokenizer.chat_template`, or `None` if the file has none.
    ///
    /// # Errors
    /// [`TokenizerError::TemplateSyntax`] if it cannot be parsed.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>, TokenizerError> {
        match gguf.get_str(TEMPLATE_KEY)? {
            Some(source) => Self::from_key(gguf, TEMPLATE_KEY, source).map(Some),
            None => Ok(None),
        }
    }

    /// The template under `tokenizer.chat_template.NAME`, such as `tool_use`.
    ///
    /// # Errors
    /// [`TokenizerError::NoSuchTemplate`] if there is none of that name, [`TokenizerError::TemplateSyntax`] if it
    /// cannot be parsed.
    pub fn named(gguf: &Gguf, name: &str) -> Result<Self, TokenizerError> {
        let key = format!("{TEMPLATE_KEY}.{name}");
        match gguf.get_str(&key)? {
            Some(source) => Self::from_key(gguf, &key, source),
            None => {
                let names = gguf
                    .metadata()
                    .filter_map(|(key, _)| key.strip_prefix(TEMPLATE_KEY)?.strip_prefix('.'));
                let names: Vec<_> = names.collect();
                let known = match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                };
                Err(TokenizerError::NoSuchTemplate {
                    name: name.to_owned(),
                    known,
                })
            }
        }
    }

    fn from_key(gguf: &Gguf, key: &str, source: &str) -> Result<Self, TokenizerError> {
        let tokens = gguf
            .get_str_array("tokenizer.ggml.tokens")?
            .unwrap_or_default();
        let text_of = |key: &str| -> Result<&str, TokenizerError> {
            let id = gguf.get_u32(key)?;
            Ok(id
                .and_then(|id| tokens.get(id as usize))
                .map_or("", String::as_str))
        };
        let (bos, eos) = (
            text_of("tokenizer.ggml.bos_token_id")?,
            text_of("tokenizer.ggml.eos_token_id")?,
        );
        Self::parse(key, source, bos, eos)
    }

    /// Parses `source`; `key` names it in messages.
    pub(crate) fn parse(
        key: &str,
        source: &str,
        bos_token: &str,
        eos_token: &str,
    ) -> Result<Self, TokenizerError> {
        let unreadable = |error: Error| TokenizerError::TemplateSyntax {
            key: key.to_owned(),
            line: line_of(&error),
            detail: detail_of(&error),
        };
        let program = Program::parse(key, source).map_err(unreadable)?;
        let variables = program.variables().map_err(unreadable)?;
        let switches = THINKING_SWITCHES
            .into_iter()
            .filter(|&switch| variables.contains(switch))
            .collect();
        Ok(ChatTemplate {
            program,
            key: key.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            switches,
            tools: variables.contains("tools"),
            source: source.to_owned(),
        })
    }

    /// Whether the template tells the model of tools.
    pub fn supports_tools(&self) -> bool {
        self.tools
    }

    /// The text of the template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template lets the caller switch thinking on and off.
    pub fn supports_thinking(&self) -> bool {
        !self.switches.is_empty()
    }

    /// The text of a conversation. With `add_generation_prompt` it ends where the assistant is to answer; `think`
    /// switches thinking on or off, `None` leaves it to the template.
    ///
    /// # Errors
    /// [`TokenizerError::TemplateRender`] if the template refuses the messages (a role it does not know, turns that
    /// do not alternate), [`TokenizerError::TemplateStopped`] if it takes more than templates may,
    /// [`TokenizerError::NoThinkingSwitch`] if `think` is given and it has no such switch.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        think: Option<bool>,
    ) -> Result<String, TokenizerError> {
        self.render_with(
            messages,
            &Rendering {
                add_generation_prompt,
                think,
                ..Rendering::default()
            },
        )
    }

    /// As [`render`](Self::render), with all that a template may be told. Arguments of tools are given as mappings, or as texts if the
    /// template fails on mappings.
    ///
    /// # Errors
    /// As for [`render`](Self::render).
    pub fn render_with(
        &self,
        messages: &[Message],
        rendering: &Rendering,
    ) -> Result<String, TokenizerError> {
        if rendering.think.is_some() && !self.supports_thinking() {
            return Err(TokenizerError::NoThinkingSwitch {
                key: self.key.clone(),
            });
        }
        let rendered = self.rendered(messages, rendering, false);
        let calls = messages
            .iter()
            .any(|message| !message.tool_calls.is_empty());
        match rendered {
            Err(error) if calls && !matches!(error, TokenizerError::TemplateStopped { .. }) => {
                self.rendered(messages, rendering, true).map_err(|_| error)
            }
            rendered => rendered,
        }
    }

    fn rendered(
        &self,
        messages: &[Message],
        rendering: &Rendering,
        arguments_as_text: bool,
    ) -> Result<String, TokenizerError> {
        let turns = messages
            .iter()
            .map(|message| message.value(arguments_as_text));
        let mut variables: BTreeMap<&str, Value> = rendering
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), value_of(value)))
            .collect();
        variables.extend([
            ("messages", turns.collect::<Value>()),
            (
                "add_generation_prompt",
                Value::from(rendering.add_generation_prompt),
            ),
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
        ]);
        if !rendering.tools.is_empty() {
            variables.insert("tools", rendering.tools.iter().map(value_of).collect());
        }
        if let Some(think) = rendering.think {
            let switches = self.switches.iter();
            variables.extend(switches.map(|&switch| (switch, Value::from(think))));
        }
        let rendered = self.program.render(Value::from(variables));
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => TokenizerError::TemplateStopped {
                key: self.key.clone(),
                line: line_of(&error),
                reason: match error.detail() {
                    Some(reason) => reason.to_owned(),
                    None => format!("it did not come to an end within {FUEL} instructions"),
                },
            },
            _ => TokenizerError::TemplateRender {
                key: self.key.clone(),
                line: line_of(&error),
                detail: detail_of(&error),
            },
        })
    }
}

/// The line of the innermost place that the error names; 1 if it names none.
fn line_of(error: &Error) -> usize {
    error.line().unwrap_or(1)
}

/// What went wrong, in words.
fn detail_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
#[path = "chat_constructs.rs"]
mod constructs;
#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
