//! Chat templates: from the turns of a conversation to the text a model expects.
//!
//! The templates are Jinja, written for Hugging Face's `apply_chat_template`.

use std::collections::BTreeMap;

use minijinja::{Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::jinja::{FUEL, Program, value_of};
use super::message::Message;
use super::shield::{ChatText, KNOWN, Marks, Shield};
use super::{Tokenizer, TokenizerError};
use crate::gguf::Gguf;

/// The key of the template used by default, and the stem of the keys of named ones (`tokenizer.chat_template.tool_use`).
const TEMPLATE_KEY: &str = "tokenizer.chat_template";
/// The variables by which templates switch thinking: GLM and Qwen, then DeepSeek.
const THINKING_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// The options and variables that a template is given beside the conversation.
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
    /// The [`THINKING_SWITCHES`] that the template uses.
    switches: Vec<&'static str>,
    /// Whether the template knows tools.
    tools: bool,
    /// The text of the template.
    source: String,
    /// The marks of the template, which are no marks where users or tools write them.
    marks: Marks,
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
    pub fn parse(
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
            marks: Marks::default(),
        })
    }

    /// The template for a conversation in which what users and tools say is text, also where it has the form of marks in the vocabulary.
    /// A template that looks for marks in such texts is told of once.
    #[must_use]
    pub fn with_marks_as_text(mut self, tokenizer: &Tokenizer) -> Self {
        self.marks = tokenizer.marks(&self.source);
        self.warn_of_searches();
        self
    }

    /// Warns if the template looks for marks in texts of users or tools, or changes these texts. Marks in them are hidden from it.
    fn warn_of_searches(&self) {
        for role in ["user", "tool"] {
            let said = KNOWN.map(|mark| format!("a {mark} b")).concat();
            let turns = ["user", "assistant"].map(|role| Message::new(role, "Hello"));
            let seen: Vec<_> = turns
                .into_iter()
                .chain([Message::new(role, said)])
                .collect();
            // One that refuses the roles, or takes too much, is not tried again.
            let Ok(before) = self.render(&seen, true, None) else {
                return;
            };
            let now = self.render_said(&seen, true, None);
            if now.is_ok_and(|now| now.as_str() != before) {
                log::warn!(
                    "{} looks for marks such as </think> in what a {role} says: it finds none there, because these texts have no marks; --parse-special has them read",
                    self.key
                );
                return;
            }
        }
    }

    /// The shield that hides the marks in the texts of users and tools and in the descriptions of tools, if this template has marks as
    /// text. It hides them before the conversation is rendered, and opens the rendered text.
    pub fn shield(&self, messages: &[Message], tools: &[Json]) -> Shield<'_> {
        Shield::new(&self.marks, messages, tools)
    }

    /// Renders like [`render`](Self::render), a conversation as it is said: ready for [`Tokenizer::encode_said`].
    ///
    /// # Errors
    /// As for [`render`](Self::render).
    pub fn render_said(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        think: Option<bool>,
    ) -> Result<ChatText, TokenizerError> {
        let shield = self.shield(messages, &[]);
        let mut hidden = messages.to_vec();
        shield.hide(&mut hidden);
        let rendered = self.render(&hidden, add_generation_prompt, think)?;
        Ok(shield.opened(&rendered))
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

    /// Renders like [`render`](Self::render), with all that a template may be told. Arguments of tools are given as mappings, or as texts
    /// if the template fails on mappings.
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

/// The detail of an error, or its kind in words.
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
#[cfg(test)]
#[path = "chat_values.rs"]
mod values;
