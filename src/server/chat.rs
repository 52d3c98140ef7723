//! `/v1/chat/completions`: a conversation in, the model's next message out.

use std::mem::take;

use serde_json::{Map, Value, json};

use super::answers::Step;
use super::app::number;
use super::ask::{Ask, check_prompt};
use super::deliver::{Collected, Form};
use super::desk::Order;
use super::error::ApiError;
use super::fields::Fields;
use super::messages;
use super::model::Model;
use super::probabilities;
use super::reader::Reader;
use super::tools::{self, Delta, Format, Tools, forced};
use crate::engine::EngineError;
use crate::tokenizer::{ChatTemplate, Rendering};

/// A conversation in the model's template.
pub(super) struct Rendered {
    text: String,
    pub(super) prompt: Vec<u32>,
    tools: Option<(Format, Tools)>,
    /// Whether the model is told not to think.
    no_thoughts: bool,
}

/// A request for the next message of a conversation.
pub(super) struct Chat {
    ask: Ask,
    rendered: Rendered,
}

const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Whether a request wants thoughts, and the other variables that it gives the template.
fn thinking(
    fields: &Fields<'_>,
    model: &Model,
) -> Result<(Option<bool>, Map<String, Value>), ApiError> {
    let effort = fields.one_of("reasoning_effort", &EFFORTS)?;
    let mut think = effort.map(|effort| effort != "none").or(model.think);
    let mut variables = Map::new();
    if let Some(given) = fields.object("chat_template_kwargs")? {
        for switch in ["thinking", "enable_thinking"] {
            think = given.flag(switch)?.or(think);
        }
        variables.clone_from(given.all());
        variables.retain(|name, _| !["thinking", "enable_thinking"].contains(&name.as_str()));
    }
    // Without a switch there is nothing to switch, which is what clients of several models expect.
    Ok((think.filter(|_| model.may_switch_thinking()), variables))
}

/// The conversation of a request in the model's template.
///
/// # Errors
/// What is wrong with it, by its field.
pub(super) fn render(fields: &Fields<'_>, model: &Model) -> Result<Rendered, ApiError> {
    let messages = messages::read(fields)?;
    let tools = tools::read(fields)?;
    let (mut think, variables) = thinking(fields, model)?;
    let engine = &model.engine;
    let template = engine.needed_template().map_err(|error| match error {
        EngineError::UnreadableTemplate { reason } => ApiError::bad(format!(
            "the model cannot chat, because {reason}; use /v1/completions"
        )),
        _ => ApiError::bad("the model has no chat template; use /v1/completions"),
    })?;
    let with_format = |tools| Ok((format(template)?, tools));
    let tools = tools.map(with_format).transpose()?;
    let is_forced = tools.as_ref().is_some_and(|(_, tools)| tools.forced);
    if is_forced && model.may_switch_thinking() {
        think = Some(false);
    }
    let described = tools.as_ref().map(|(_, tools)| tools.described.clone());
    let rendering = Rendering {
        add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
        think,
        tools: described.unwrap_or_default(),
        variables,
    };
    let wrong = |error: &dyn std::fmt::Display| {
        let message = format!("the model's chat template refuses the messages: {error}");
        ApiError::field("messages", message)
    };
    let rendered = template.render_with(&messages, &rendering);
    let mut text = rendered.map_err(|error| wrong(&error))?;
    if let Some((format, _)) = tools.as_ref().filter(|_| is_forced) {
        if text.trim_end().ends_with("<think>") {
            text += "</think>";
        }
        text += &format.opening();
    }
    let prompt = engine.tokenizer().encode_chat(&text);
    let prompt = prompt.map_err(|error| wrong(&error))?;
    Ok(Rendered {
        text,
        prompt,
        tools,
        no_thoughts: think == Some(false),
    })
}

/// How a model with this template writes calls.
fn format(template: &ChatTemplate) -> Result<Format, ApiError> {
    if !template.supports_tools() {
        let message =
            "the model's chat template knows no tools; leave them out, or give tool_choice none";
        return Err(ApiError::field("tools", message));
    }
    Format::of_template(template.source()).ok_or_else(|| {
        let message =
            "the model's chat template writes calls of tools in a form that is not known here";
        ApiError::field("tools", message)
    })
}

/// How many log-probabilities a request asks for.
fn log_probs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let asked = fields.flag("logprobs")?.unwrap_or(false);
    match fields.count("top_logprobs", 0..=20)? {
        Some(most) if asked => Ok(Some(most as usize)),
        Some(1..) => Err(fields.wrong("top_logprobs", "means something only with logprobs true")),
        _ => Ok(asked.then_some(0)),
    }
}

impl Chat {
    /// Log-probabilities in the form of OpenAI's API; `None` if they are not asked for.
    fn log_probs(&self, content: Vec<Value>) -> Option<Value> {
        let asked = self.ask.log_probs;
        asked.map(|_| json!({"content": content, "refusal": null}))
    }
}

impl Form for Chat {
    const ID: &'static str = "chatcmpl";

    fn read(fields: &Fields<'_>, model: &Model) -> Result<(Self, Vec<Order>), ApiError> {
        let log_probs = log_probs(fields)?;
        let rendered = render(fields, model)?;
        let mut ask = Ask::read(fields, model, rendered.no_thoughts, log_probs)?;
        check_prompt("messages", &rendered.prompt, model)?;
        if let Some((format, tools)) = rendered.tools.as_ref().filter(|(_, tools)| tools.forced) {
            ask.demand("tool_choice", forced(*format, tools))?;
        }
        let chat = Self { ask, rendered };
        let begins_after = chat.reader(model).begins_after();
        let prompts = std::slice::from_ref(&chat.rendered.prompt);
        let orders = chat.ask.orders(prompts, model, begins_after)?;
        Ok((chat, orders))
    }

    fn ask(&self) -> &Ask {
        &self.ask
    }

    fn object(&self) -> &'static str {
        match self.ask.stream {
            true => "chat.completion.chunk",
            false => "chat.completion",
        }
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        let tokenizer = model.engine.tokenizer();
        let Rendered { text, tools, .. } = &self.rendered;
        Reader::new(tokenizer, Some(text), &self.ask.stops, tools.as_ref())
    }

    fn choice(&self, model: &Model, index: usize, answer: Collected) -> Value {
        let text_is_all = answer.calls.is_empty() && answer.thoughts.is_empty();
        let content = match answer.text.is_empty() && !text_is_all {
            true => Value::Null,
            false => Value::from(answer.text),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !answer.thoughts.is_empty() {
            message["reasoning_content"] = answer.thoughts.into();
        }
        if !answer.calls.is_empty() {
            let calls = answer.calls.into_iter().map(|call| {
                json!({
                    "id": call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            });
            message["tool_calls"] = calls.collect();
        }
        let log_probs = probabilities::list(model.engine.tokenizer(), &answer.log_probs);
        json!({
            "index": index,
            "message": message,
            "logprobs": self.log_probs(log_probs),
            "finish_reason": answer.reason,
        })
    }

    fn first(&self) -> Vec<Value> {
        let begun = json!({"role": "assistant", "content": ""});
        (0..self.ask.n).map(|i| part(i, &begun, None)).collect()
    }

    fn parts(&self, model: &Model) -> impl FnMut(Step) -> Vec<Value> + Send {
        let tokenizer = model.engine.tokenizer();
        // Of each answer, the log-probabilities that are not sent yet.
        let mut unsent = vec![vec![]; self.ask.n];
        move |step| {
            let (choice, unsent) = (step.choice, &mut unsent[step.choice]);
            unsent.extend(probabilities::list(tokenizer, step.log_probs.as_slice()));
            let mut made = |delta: &Value| part(choice, delta, self.log_probs(take(unsent)));
            let deltas = step.deltas.into_iter();
            let mut parts: Vec<Value> = deltas.map(|delta| made(&told(delta))).collect();
            if let Some(reason) = step.reason {
                let mut last = made(&json!({}));
                last["finish_reason"] = reason.into();
                parts.push(last);
            }
            if parts.is_empty() && self.ask.usage_with_each {
                // A token that comes to nothing yet has a part, too.
                parts.push(part(choice, &json!({"content": ""}), None));
            }
            parts
        }
    }
}

fn call_id() -> String {
    format!("call_{:016x}", number())
}

/// A part of an answer.
fn part(index: usize, delta: &Value, log_probs: Option<Value>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": null})
}

/// What a token has come to, in the form of OpenAI's API.
fn told(delta: Delta) -> Value {
    match delta {
        Delta::Thought(text) => json!({ "reasoning_content": text }),
        Delta::Text(text) => json!({ "content": text }),
        Delta::Call { index, name } => json!({"tool_calls": [{
            "index": index,
            "id": call_id(),
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}),
        Delta::Arguments { index, text } => json!({"tool_calls": [{
            "index": index,
            "function": {"arguments": text},
        }]}),
    }
}
