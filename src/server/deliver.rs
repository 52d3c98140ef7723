//! How requests for answers are handed in, and how answers are sent: as a whole, or in events while they come.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::answers::{Answers, Step};
use super::app::{App, number};
use super::ask::{Ask, check_model};
use super::body::away;
use super::desk::{Answering, Order};
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::log::Record;
use super::model::Model;
use super::reader::Reader;
use super::sse::{Gone, Stream, stream};
use super::tools::Delta;
use crate::engine::chooser::TokenLogProbs;

/// A stream that has nothing to send says so after this time.
const SILENT: Duration = Duration::from_secs(15);

/// A request for answers. Its methods are what chats and completions do differently.
pub(super) trait Form: Sized + Send + Sync + 'static {
    /// What the ids of answers begin with.
    const ID: &'static str;

    /// Reads a request. For each prompt there are `n` orders, and these stand together.
    ///
    /// # Errors
    /// What is wrong with it, by its field.
    fn read(fields: &Fields<'_>, model: &Model) -> Result<(Self, Vec<Order>), ApiError>;

    /// What all requests have in common.
    fn ask(&self) -> &Ask;

    /// The field `object` of a body or an event.
    fn object(&self) -> &'static str;

    /// A reader of one answer.
    fn reader<'a>(&self, model: &'a Model) -> Reader<'a>;

    /// An answer as a whole.
    fn choice(&self, model: &Model, index: usize, answer: Collected) -> Value;

    /// What stands before the answers of a stream.
    fn first(&self) -> Vec<Value>;

    /// A function that makes the parts of a stream from a step.
    fn parts(&self, model: &Model) -> impl FnMut(Step) -> Vec<Value> + Send;
}

/// A call of a tool.
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// An answer that is complete.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) thoughts: String,
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
    pub(super) log_probs: Vec<TokenLogProbs>,
    pub(super) reason: &'static str,
}

impl Collected {
    fn add(&mut self, step: Step) {
        self.log_probs.extend(step.log_probs);
        self.reason = step.reason.unwrap_or(self.reason);
        for delta in step.deltas {
            match delta {
                Delta::Thought(text) => self.thoughts += &text,
                Delta::Text(text) => self.text += &text,
                Delta::Call { name, .. } => self.calls.push(Call {
                    name,
                    arguments: String::new(),
                }),
                Delta::Arguments { text, .. } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments += &text;
                    }
                }
            }
        }
    }
}

/// A request whose answers are on their way.
struct Begun<F> {
    form: F,
    model: Arc<Model>,
    record: Arc<Record>,
    id: String,
    created: i64,
    /// How many answers there are.
    count: usize,
    /// Tokens of all prompts.
    prompt: usize,
    timeout: Option<Duration>,
}

impl<F: Form> Begun<F> {
    /// Hands a request in. Unless `streams` is true, one that asks for a stream is refused.
    async fn new(
        app: &App,
        body: Value,
        record: Arc<Record>,
        streams: bool,
    ) -> Result<(Self, Answering), ApiError> {
        let model = Arc::clone(&app.served()?.model);
        let read = away({
            let (model, record) = (Arc::clone(&model), Arc::clone(&record));
            move || {
                let fields = Fields::of_body(&body)?;
                check_model(&fields, &model)?;
                let (form, orders) = F::read(&fields, &model)?;
                let grammar = orders.first().and_then(|order| order.grammar.as_ref());
                let lost = grammar.map_or(&[][..], |grammar| grammar.not_enforced());
                let lost = lost.iter().map(ToString::to_string).collect();
                record.disregarded(fields.unread(), lost);
                match form.ask().stream && !streams {
                    true => Err(fields.wrong("stream", "must be false or left out in a batch")),
                    false => Ok((form, orders)),
                }
            }
        });
        let (form, orders) = read.await?;
        let prompts = orders.iter().step_by(form.ask().n);
        let prompt = prompts.map(|order| order.prompt.len()).sum();
        let count = orders.len();
        let answering = app.hand_in(orders, record.began)?;
        let begun = Self {
            form,
            model,
            record,
            id: format!("{}-{:016x}", F::ID, number()),
            created: jiff::Timestamp::now().as_second(),
            count,
            prompt,
            timeout: app.settings.timeout,
        };
        Ok((begun, answering))
    }

    /// The answers while they come.
    fn answers(&self, answering: Answering) -> Answers<'_> {
        let readers = (0..self.count).map(|_| self.form.reader(&self.model));
        let sizes = (self.prompt, self.form.ask().n);
        let record = Arc::clone(&self.record);
        Answers::new(answering, readers.collect(), sizes, record, self.timeout)
    }

    /// A message with these answers.
    fn around(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": self.form.object(),
            "created": self.created,
            "model": self.model.name,
            "system_fingerprint": concat!("glimt-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// An event of a stream.
    fn event(&self, choices: Vec<Value>) -> Value {
        let mut event = self.around(choices);
        if self.form.ask().include_usage {
            event["usage"] = Value::Null;
        }
        event
    }

    /// The body with all answers and what they took, when they are there.
    async fn whole(&self, answering: Answering) -> Result<Value, ApiError> {
        let mut answers = self.answers(answering);
        let mut all: Vec<Collected> = vec![];
        all.resize_with(self.count, Collected::default);
        while let Some(step) = answers.next().await? {
            if let Some(one) = all.get_mut(step.choice) {
                one.add(step);
            }
        }
        let choices = all.into_iter().enumerate();
        let choices = choices.map(|(i, answer)| self.form.choice(&self.model, i, answer));
        let mut body = self.around(choices.collect());
        body["usage"] = answers.usage();
        self.record.ended();
        Ok(body)
    }

    /// Sends the answers as they come.
    async fn pour(&self, stream: &Stream, answering: Answering) -> Result<(), Gone> {
        let mut answers = self.answers(answering);
        for choice in self.form.first() {
            stream.send(&self.event(vec![choice])).await?;
        }
        let mut parts = self.form.parts(&self.model);
        loop {
            let Ok(next) = tokio::time::timeout(SILENT, answers.next()).await else {
                stream.comment().await?;
                continue;
            };
            match next {
                Ok(Some(step)) => {
                    for choice in parts(step) {
                        let mut event = self.event(vec![choice]);
                        if self.form.ask().usage_with_each {
                            event["usage"] = answers.usage();
                        }
                        stream.send(&event).await?;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.record.failed(error.status.as_str());
                    stream.send(&error.json()).await?;
                    return stream.done().await;
                }
            }
        }
        if self.form.ask().include_usage {
            let mut last = self.event(vec![]);
            last["usage"] = answers.usage();
            stream.send(&last).await?;
        }
        stream.done().await?;
        self.record.ended();
        Ok(())
    }
}

/// The answer to a request that is no stream.
///
/// # Errors
/// Why it is refused, or what went wrong.
pub(super) async fn whole<F: Form>(
    app: &App,
    body: Value,
    record: Arc<Record>,
) -> Result<Value, ApiError> {
    let (begun, answering) = Begun::<F>::new(app, body, record, false).await?;
    begun.whole(answering).await
}

/// Answers a request.
///
/// # Errors
/// Why it is refused, or what went wrong before the answer.
pub(super) async fn answer<F: Form>(
    app: &App,
    body: Value,
    record: Arc<Record>,
) -> Result<Response, ApiError> {
    let (begun, answering) = Begun::<F>::new(app, body, record, true).await?;
    if !begun.form.ask().stream {
        let body = begun.whole(answering).await?;
        return Ok(json_response(StatusCode::OK, body.to_string()));
    }
    let (response, stream) = stream();
    tokio::spawn(async move {
        tokio::select! {
            () = stream.gone() => {}
            _ = begun.pour(&stream, answering) => {}
        }
    });
    Ok(response)
}
