//! `/v1/completions`: a text in, what continues it out.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::answers::{Answers, Step};
use super::app::App;
use super::ask::{Ask, Streams, check_model, check_prompt};
use super::body::away;
use super::deliver::{Envelope, collect, pour};
use super::desk::{Answering, Order};
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::log::Record;
use super::model::Model;
use super::probabilities;
use super::reader::{Delta, Reader};
use super::sse::stream;
use super::tools;

/// Prompts of a request at most.
const MOST_PROMPTS: usize = 128;

/// What a request comes to.
struct Prepared {
    ask: Ask,
    orders: Vec<Order>,
    /// Tokens of all prompts.
    tokens: usize,
    /// What stands before each answer, where that is asked for.
    echoes: Vec<String>,
}

/// The prompts of a request, as tokens.
fn prompts(fields: &Fields<'_>, model: &Model) -> Result<Vec<Vec<u32>>, ApiError> {
    let wrong = || {
        fields.wrong(
            "prompt",
            "must be a text, a list of texts, a list of tokens, or a list of such lists",
        )
    };
    let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let one = |value: &Value| -> Result<Vec<u32>, ApiError> {
        match value {
            Value::String(text) => {
                let encoded = model.engine.tokenizer().encode(text, true);
                encoded.map_err(|error| fields.wrong("prompt", &format!("cannot be read: {error}")))
            }
            Value::Array(ids) => ids
                .iter()
                .map(token)
                .collect::<Option<_>>()
                .ok_or_else(wrong),
            _ => Err(wrong()),
        }
    };
    let Some(prompt) = fields.get("prompt") else {
        return Err(fields.wrong("prompt", "is missing"));
    };
    match prompt {
        Value::Array(items) if !items.first().is_some_and(Value::is_number) => {
            if items.is_empty() || items.len() > MOST_PROMPTS {
                let message = format!("must hold 1 to {MOST_PROMPTS} prompts");
                return Err(fields.wrong("prompt", &message));
            }
            items.iter().map(one).collect()
        }
        other => Ok(vec![one(other)?]),
    }
}

fn prepare(body: &Value, model: &Model, streams: Streams) -> Result<Prepared, ApiError> {
    let fields = Fields::of_body(body)?;
    check_model(&fields, model)?;
    if fields
        .text("suffix")?
        .is_some_and(|suffix| !suffix.is_empty())
    {
        return Err(fields.wrong(
            "suffix",
            "is not supported: the model only continues a text",
        ));
    }
    let log_probs = fields.count("logprobs", 0..=20)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && log_probs.is_some() {
        let message = "cannot be given together with logprobs: those of prompts are not computed";
        return Err(fields.wrong("echo", message));
    }
    let prompts = prompts(&fields, model)?;
    for prompt in &prompts {
        check_prompt("prompt", prompt, model)?;
    }
    let ask = Ask::read(&fields, model, false, log_probs.map(|most| most as usize))?;
    ask.check_stream(&fields, streams)?;
    let tokenizer = model.engine.tokenizer();
    let text = |ids: &Vec<u32>| {
        // What was added in front is none of the text.
        let added = usize::from(ids.first().copied() == tokenizer.bos());
        tokenizer.decode(&ids[added..])
    };
    let orders = ask.orders(&prompts, model, None)?;
    let echoes = match echo {
        true => prompts.iter().map(text).collect(),
        false => vec![String::new(); prompts.len()],
    };
    Ok(Prepared {
        orders,
        tokens: prompts.iter().map(Vec::len).sum(),
        echoes,
        ask,
    })
}

/// A request whose answers are on their way.
struct Begun {
    ask: Ask,
    /// Tokens of all prompts.
    tokens: usize,
    echoes: Vec<String>,
    model: Arc<Model>,
    envelope: Envelope,
}

impl Begun {
    /// How many answers there are.
    fn count(&self) -> usize {
        self.ask.n * self.echoes.len()
    }

    /// The answers while they come.
    fn answers(&self, app: &App, answering: Answering, record: &Record) -> Answers<'_> {
        let readers = readers(&self.model, &self.ask, self.count());
        let timeout = app.settings.timeout;
        let sizes = (self.tokens, self.ask.n);
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
        let collected = collect(&mut answers, self.count()).await?;
        let choices = collected.into_iter().enumerate().map(|(i, answer)| {
            let text = format!("{}{}", self.echoes[i / self.ask.n], answer.text);
            let tokenizer = self.model.engine.tokenizer();
            let table = || probabilities::table(tokenizer, &answer.log_probs, &mut 0);
            let log_probs = self.ask.log_probs.map(|_| table());
            choice(i, text, log_probs, Some(answer.reason))
        });
        let body = self.envelope.whole(choices.collect(), answers.usage());
        record.ended();
        Ok(body)
    }

    /// What stands before the answers of a stream.
    fn first(&self) -> Vec<Value> {
        let n = self.ask.n;
        let echoed = self.echoes.iter().enumerate();
        let echoed = echoed.flat_map(|(p, text)| (0..n).map(move |i| (p * n + i, text)));
        echoed
            .filter(|(_, text)| !text.is_empty())
            .map(|(i, text)| choice(i, text.clone(), None, None))
            .collect()
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
        orders,
        tokens,
        echoes,
    } = prepared.await?;
    let answering = app.hand_in(orders, record.began())?;
    let envelope = Envelope {
        id: format!("cmpl-{:016x}", app.number()),
        object: "text_completion",
        created: jiff::Timestamp::now().as_second(),
        model: model.name.clone(),
        include_usage: ask.include_usage,
        usage_with_each: ask.usage_with_each,
    };
    let begun = Begun {
        ask,
        tokens,
        echoes,
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
        let first = begun.first();
        let mut offsets = vec![0; begun.count()];
        let parts = &mut |step| parts(&begun.model, &begun.ask, &mut offsets, step);
        tokio::select! {
            () = stream.gone() => {}
            _ = pour(&stream, &mut answers, &begun.envelope, &record, first, parts) => {}
        }
    });
    Ok(response)
}

fn readers<'a>(model: &'a Model, ask: &Ask, count: usize) -> Vec<Reader<'a>> {
    let tokenizer = model.engine.tokenizer();
    let reader = || Reader::new(tokenizer, None, &ask.stops, None);
    std::iter::repeat_with(reader).take(count).collect()
}

/// An answer, or a part of one.
fn choice(
    index: usize,
    text: String,
    log_probs: Option<Value>,
    reason: Option<&'static str>,
) -> Value {
    json!({"index": index, "text": text, "logprobs": log_probs, "finish_reason": reason})
}

/// The parts of answers that a step makes.
fn parts(model: &Model, ask: &Ask, offsets: &mut [usize], step: Step) -> Vec<Value> {
    let mut text = String::new();
    for delta in step.deltas {
        if let Delta::Said(tools::Delta::Text(more)) = delta {
            text += &more;
        }
    }
    let offset = &mut offsets[step.choice];
    let tokenizer = model.engine.tokenizer();
    let found = step.log_probs.filter(|_| ask.log_probs.is_some());
    let log_probs = found.map(|found| probabilities::table(tokenizer, &[found], offset));
    let is_empty = text.is_empty() && log_probs.is_none() && step.reason.is_none();
    if is_empty && !ask.usage_with_each {
        return vec![];
    }
    vec![choice(step.choice, text, log_probs, step.reason)]
}
