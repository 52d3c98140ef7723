//! `/v1/chat/completions`: a conversation in, the model's next message out.

use std::mem::take;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answers::{Step, Usage};
use super::app::number;
use super::ask::{Ask, check_prompt, unread};
use super::blocks::Block;
use super::deliver::{Collected, Events, Form, Head, Read};
use super::error::ApiError;
use super::fields::Fields;
use super::kept::Kept;
use super::messages;
use super::model::Model;
use super::openai::{self, Choices};
use super::prediction;
use super::probabilities;
use super::reader::Reader;
use super::sse::Framing;
use super::tools::{self, Delta, Format, Offered, Tools, forced};
use crate::engine::EngineError;
use crate::tokenizer::{Message, Rendering, TokenizerError};

/// A conversation in the model's template.
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) prompt: Vec<u32>,
    tools: Option<(Format, Tools)>,
    /// The tools and the format of their calls, for the readers of all answers.
    offered: Option<Offered>,
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
    // OpenRouter, ollama and others have forms of their own.
    if let Some(reasoning) = fields.object("reasoning")? {
        let effort = reasoning.one_of("effort", &EFFORTS)?;
        think = effort.map(|effort| effort != "none").or(think);
        think = reasoning.flag("enabled")?.or(think);
    }
    for switch in ["think", "enable_thinking"] {
        think = fields.flag(switch)?.or(think);
    }
    // The publishers of GLM and DeepSeek have a form of their own.
    match fields.get("thinking") {
        Some(Value::Bool(on)) => think = Some(*on),
        _ => {
            if let Some(thinking) = fields.object("thinking")? {
                let kind = thinking.one_of("type", &["enabled", "disabled", "adaptive", "auto"])?;
                think = kind.map(|kind| kind != "disabled").or(think);
            }
        }
    }
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

/// The beginning of the answer, where the last message is one that the model is to go on with. It is then no message any more.
fn begun(fields: &Fields<'_>, messages: &mut Vec<Message>) -> Result<Option<String>, ApiError> {
    if fields.flag("continue_final_message")? != Some(true) {
        return Ok(None);
    }
    let is_text =
        |message: &mut Message| message.role == "assistant" && message.tool_calls.is_empty();
    match messages.pop_if(is_text) {
        Some(message) => Ok(Some(message.content)),
        None => {
            let message = "needs a last message of the assistant that calls no tools";
            Err(fields.wrong("continue_final_message", message))
        }
    }
}

/// The conversation of a request in the model's template.
///
/// # Errors
/// The problem with the request, by its field.
pub(super) fn render(fields: &Fields<'_>, model: &Model) -> Result<Rendered, ApiError> {
    let mut messages = messages::read(fields)?;
    let begun = begun(fields, &mut messages)?;
    let tools = tools::read(fields)?;
    let (mut think, variables) = thinking(fields, model)?;
    let engine = &model.engine;
    let template = engine.needed_template().map_err(|error| match error {
        EngineError::UnreadableTemplate { reason } => ApiError::bad(format!(
            "the model cannot chat, because {reason}; use /v1/completions"
        )),
        _ => ApiError::bad("the model has no chat template; use /v1/completions"),
    })?;
    let known = Format::of_template(template.source());
    // A model that was taught calls in an unknown form, or none, is told of one.
    let tools = tools.map(|mut tools| {
        let format = known.unwrap_or(Format::Json);
        tools.parallel &= !format.is_single(template.source());
        (format, tools)
    });
    let is_forced = tools.as_ref().is_some_and(|(_, tools)| tools.forced);
    if (is_forced || begun.is_some()) && model.may_switch_thinking() {
        think = Some(false);
    }
    let mut described = tools
        .as_ref()
        .map_or(vec![], |(_, tools)| tools.described.clone());
    // Before texts are put together, of which some are marks.
    let shield = template.shield(&messages, &described);
    shield.hide(&mut messages);
    shield.hide_tools(&mut described);
    if known == Some(Format::Kimi) {
        tools::number_calls(&mut messages);
    }
    if known.is_none() {
        tools::as_texts(&mut messages);
    }
    if let Some((format, _)) = &tools
        && (known.is_none() || !template.supports_tools())
    {
        tools::describe(&mut messages, &described, *format);
        described.clear();
    }
    let rendering = Rendering {
        add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
        think,
        tools: described,
        variables,
    };
    let wrong = |error: &dyn std::fmt::Display| {
        let message = format!("the model's chat template refuses the messages: {error}");
        ApiError::field("messages", message)
    };
    let rendered = template.render_with(&messages, &rendering);
    let mut text = shield.opened(&rendered.map_err(|error| wrong(&error))?);
    if (is_forced || begun.is_some()) && text.as_str().trim_end().ends_with("<think>") {
        text.push_str("</think>");
    }
    text.push_str(&begun.unwrap_or_default());
    if let Some((format, _)) = tools.as_ref().filter(|_| is_forced) {
        text.push_str(&format.opening());
    }
    let prompt = engine.tokenizer().encode_said(&text);
    let prompt = prompt.map_err(|error| match error {
        TokenizerError::ByteNotInVocabulary { .. } => wrong(&error),
        error => unread(error, "messages", model),
    })?;
    let offered = tools.as_ref();
    let offered = offered.map(|(format, tools)| Offered::new(*format, &tools.all));
    Ok(Rendered {
        text: text.into_string(),
        prompt,
        offered,
        tools,
        no_thoughts: think == Some(false),
    })
}

/// The number of log-probabilities that a request asks for.
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
    const ID: &'static str = "chatcmpl-";
    const FRAMING: Framing = Framing::Marked;

    fn read(fields: &Fields<'_>, model: &Model, _: &Arc<Kept>) -> Read<Self> {
        let log_probs = log_probs(fields)?;
        let rendered = render(fields, model)?;
        let mut ask = Ask::read(fields, model, rendered.no_thoughts, log_probs)?;
        check_prompt("messages", &rendered.prompt, model)?;
        ask.expected = prediction::read(fields, model, &ask)?;
        match &rendered.tools {
            Some((format, tools)) if tools.forced => {
                let form = forced(*format, tools, model.engine.tokenizer());
                ask.demand("tool_choice", form)?;
            }
            Some((format, _)) => ask.or_call(format.marks()),
            None => {}
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

    fn not_enforced(&self) -> Vec<String> {
        let tools = self.rendered.tools.as_ref();
        tools.map_or(vec![], |(format, tools)| {
            tools::not_enforced(*format, tools)
        })
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        let tokenizer = model.engine.tokenizer();
        let Rendered { text, tools, .. } = &self.rendered;
        let tools = tools.as_ref().zip(self.rendered.offered.as_ref());
        let tools = tools.map(|((format, tools), offered)| (tools, offered, *format));
        Reader::new(tokenizer, Some(text), &self.ask.stops, tools)
    }

    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value {
        openai::whole(self, head, answers, usage)
    }

    fn events<'a>(&'a self, head: &'a Head) -> impl Events + 'a {
        openai::events(self, head)
    }
}

impl Choices for Chat {
    fn object(&self) -> &'static str {
        match self.ask.stream {
            true => "chat.completion.chunk",
            false => "chat.completion",
        }
    }

    fn choice(&self, head: &Head, index: usize, answer: Collected) -> Value {
        let blocks = &answer.blocks;
        let (text, thoughts) = (blocks.text(), blocks.thoughts());
        let calls: Vec<_> = blocks.calls().map(called).collect();
        let content = match text.is_empty() && !(calls.is_empty() && thoughts.is_empty()) {
            true => Value::Null,
            false => Value::from(text),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let log_probs = probabilities::list(head.model.engine.tokenizer(), &answer.log_probs);
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

    fn parts(&self, head: &Head) -> impl FnMut(Step) -> Vec<Value> + Send {
        let tokenizer = head.model.engine.tokenizer();
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

/// A call that is whole.
fn called((call, name): (&Block, &str)) -> Value {
    json!({
        "id": format!("call_{}", call.id),
        "type": "function",
        "function": {"name": name, "arguments": call.text},
    })
}

/// A part of an answer.
fn part(index: usize, delta: &Value, log_probs: Option<Value>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": null})
}

/// The delta of a message, in the form of OpenAI's API.
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
