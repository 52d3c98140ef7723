//! `/v1/chat/completions`: a conversation in, the model's next message out.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::answers::{Answers, Step};
use super::app::App;
use super::ask::{Ask, Streams, check_model, check_prompt};
use super::body::away;
use super::deliver::{Collected, Envelope, collect, pour};
use super::desk::{Answering, Order};
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::log::Record;
use super::messages;
use super::model::Model;
use super::probabilities;
use super::reader::{Delta, Reader};
use super::sse::stream;
use super::tools::{self, Format, Tools, forced};
use crate::tokenizer::{ChatTemplate, Rendering};

/// A conversation in the model's template.
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) prompt: Vec<u32>,
    tools: Option<(Format, Tools)>,
}

/// What a request comes to.
struct Prepared {
    ask: Ask,
    rendered: Rendered,
    orders: Vec<Order>,
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

/// The conversation of a request in the model's template, and whether the model is told not to think.
///
/// # Errors
/// What is wrong with it, by its field.
pub(super) fn render(fields: &Fields<'_>, model: &Model) -> Result<(Rendered, bool), ApiError> {
    let messages = messages::read(fields)?;
    let tools = tools::read(fields)?;
    let (mut think, variables) = thinking(fields, model)?;
    let engine = &model.engine;
    let no_template = || ApiError::bad("the model has no chat template; use /v1/completions");
    let template = engine.chat_template().ok_or_else(no_template)?;
    let tools = match tools {
        None => None,
        Some(tools) => Some((format(template)?, tools)),
    };
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
    let rendered = Rendered {
        text,
        prompt,
        tools,
    };
    Ok((rendered, think == Some(false)))
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

fn prepare(body: &Value, model: &Model, streams: Streams) -> Result<Prepared, ApiError> {
    let fields = Fields::of_body(body)?;
    check_model(&fields, model)?;
    let log_probs = log_probs(&fields)?;
    let (rendered, no_thoughts) = render(&fields, model)?;
    let mut ask = Ask::read(&fields, model, no_thoughts, log_probs)?;
    ask.check_stream(&fields, streams)?;
    check_prompt("messages", &rendered.prompt, model)?;
    if let Some((format, tools)) = rendered.tools.as_ref().filter(|(_, tools)| tools.forced) {
        ask.demand("tool_choice", forced(*format, tools))?;
    }
    let reader = reader(&rendered, &ask, model);
    let begins_after = reader.closing_mark().filter(|_| reader.is_thinking());
    let orders = ask.orders(std::slice::from_ref(&rendered.prompt), model, begins_after)?;
    Ok(Prepared {
        ask,
        rendered,
        orders,
    })
}

fn reader<'a>(rendered: &Rendered, ask: &Ask, model: &'a Model) -> Reader<'a> {
    let tokenizer = model.engine.tokenizer();
    let tools = rendered.tools.as_ref();
    Reader::new(tokenizer, Some(&rendered.text), &ask.stops, tools)
}

/// A request whose answers are on their way.
struct Begun {
    ask: Ask,
    rendered: Rendered,
    model: Arc<Model>,
    envelope: Envelope,
}

impl Begun {
    /// The answers while they come.
    fn answers(&self, app: &App, answering: Answering, record: &Record) -> Answers<'_> {
        let readers = (0..self.ask.n).map(|_| reader(&self.rendered, &self.ask, &self.model));
        let (readers, sizes) = (readers.collect(), (self.rendered.prompt.len(), self.ask.n));
        let timeout = app.settings.timeout;
        Answers::new(answering, readers, sizes, record.clone(), timeout)
    }

    /// All answers, when they are there.
    async fn whole(
        &self,
        app: &App,
        answering: Answering,
        record: &Record,
    ) -> Result<Value, ApiError> {
        let mut answers = self.answers(app, answering, record);
        let collected = collect(&mut answers, self.ask.n).await?;
        let choices = collected.into_iter().enumerate();
        let choices = choices.map(|(i, answer)| choice(app, &self.model, &self.ask, i, answer));
        let body = self.envelope.whole(choices.collect(), answers.usage());
        record.ended();
        Ok(body)
    }
}

/// Hands a request in.
async fn begin(
    app: &App,
    body: Value,
    record: &Record,
    streams: Streams,
) -> Result<(Begun, Answering), ApiError> {
    let model = Arc::clone(&app.served()?.model);
    let prepared = away({
        let model = Arc::clone(&model);
        move || prepare(&body, &model, streams)
    });
    let Prepared {
        ask,
        rendered,
        orders,
    } = prepared.await?;
    let answering = app.hand_in(orders, record.began())?;
    let envelope = Envelope {
        id: format!("chatcmpl-{:016x}", app.number()),
        object: match ask.stream {
            true => "chat.completion.chunk",
            false => "chat.completion",
        },
        created: jiff::Timestamp::now().as_second(),
        model: model.name.clone(),
        include_usage: ask.include_usage,
        usage_with_each: ask.usage_with_each,
    };
    let begun = Begun {
        ask,
        rendered,
        model,
        envelope,
    };
    Ok((begun, answering))
}

/// The answer to a request that is no stream.
///
/// # Errors
/// Why it is refused, or what went wrong.
pub(super) async fn whole(app: &App, body: Value, record: Record) -> Result<Value, ApiError> {
    let (begun, answering) = begin(app, body, &record, Streams::Refused).await?;
    begun.whole(app, answering, &record).await
}

/// Answers a request.
///
/// # Errors
/// Why it is refused, or what went wrong before the answer.
pub(super) async fn answer(
    app: &Arc<App>,
    body: Value,
    record: Record,
) -> Result<Response, ApiError> {
    let (begun, answering) = begin(app, body, &record, Streams::Sent).await?;
    if !begun.ask.stream {
        let body = begun.whole(app, answering, &record).await?;
        return Ok(json_response(StatusCode::OK, &body));
    }
    let (response, stream) = stream();
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let mut answers = begun.answers(&app, answering, &record);
        let Begun { ask, model, .. } = &begun;
        let first =
            (0..ask.n).map(|i| part(i, &json!({"role": "assistant", "content": ""}), Value::Null));
        let first = first.collect();
        let mut parts = Parts::new(&app, model, ask);
        let parts = &mut |step| parts.of(step);
        tokio::select! {
            () = stream.gone() => {}
            _ = pour(&stream, &mut answers, &begun.envelope, &record, first, parts) => {}
        }
    });
    Ok(response)
}

/// An answer as a whole.
fn choice(app: &App, model: &Model, ask: &Ask, index: usize, answer: Collected) -> Value {
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
                "id": call_id(app),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        message["tool_calls"] = calls.collect();
    }
    let tokenizer = model.engine.tokenizer();
    let log_probs = ask.log_probs.map(|_| {
        let content = probabilities::list(tokenizer, &answer.log_probs);
        json!({"content": content, "refusal": null})
    });
    json!({
        "index": index,
        "message": message,
        "logprobs": log_probs,
        "finish_reason": answer.reason,
    })
}

fn call_id(app: &App) -> String {
    format!("call_{:016x}", app.number())
}

/// A part of an answer.
fn part(index: usize, delta: &Value, log_probs: Value) -> Value {
    json!({"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": null})
}

/// Makes the parts of answers.
struct Parts<'a> {
    app: &'a App,
    model: &'a Model,
    /// Of each answer, the log-probabilities that are not sent yet; `None` if they are not asked for.
    log_probs: Option<Vec<Vec<Value>>>,
    /// Whether a token that comes to nothing yet has a part, too.
    each: bool,
}

impl<'a> Parts<'a> {
    fn new(app: &'a App, model: &'a Model, ask: &Ask) -> Self {
        Self {
            app,
            model,
            log_probs: ask.log_probs.map(|_| vec![vec![]; ask.n]),
            each: ask.usage_with_each,
        }
    }

    /// The log-probabilities that are sent with the next part.
    fn take(&mut self, choice: usize) -> Value {
        match &mut self.log_probs {
            Some(all) => json!({"content": std::mem::take(&mut all[choice]), "refusal": null}),
            None => Value::Null,
        }
    }

    fn of(&mut self, step: Step) -> Vec<Value> {
        let choice = step.choice;
        if let (Some(all), Some(found)) = (&mut self.log_probs, step.log_probs) {
            all[choice].extend(probabilities::list(self.model.engine.tokenizer(), &[found]));
        }
        let mut parts = vec![];
        for delta in step.deltas {
            let delta = match delta {
                Delta::Thought(text) => json!({ "reasoning_content": text }),
                Delta::Said(tools::Delta::Text(text)) => json!({ "content": text }),
                Delta::Said(tools::Delta::Call { index, name }) => json!({"tool_calls": [{
                    "index": index,
                    "id": call_id(self.app),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }]}),
                Delta::Said(tools::Delta::Arguments { index, text }) => json!({"tool_calls": [{
                    "index": index,
                    "function": {"arguments": text},
                }]}),
            };
            let log_probs = self.take(choice);
            parts.push(part(choice, &delta, log_probs));
        }
        if let Some(reason) = step.reason {
            let log_probs = self.take(choice);
            let mut last = part(choice, &json!({}), log_probs);
            last["finish_reason"] = reason.into();
            parts.push(last);
        }
        if parts.is_empty() && self.each {
            parts.push(part(choice, &json!({"content": ""}), Value::Null));
        }
        parts
    }
}
