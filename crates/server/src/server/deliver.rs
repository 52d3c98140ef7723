//! How requests for answers are handed in, and how answers are sent: as a whole, or in events while they come.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::answers::{Answers, Step, Usage};
use super::app::{App, number};
use super::ask::{Ask, check_model};
use super::blocks::Blocks;
use super::body::{self, Body, Texts};
use super::desk::Answering;
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::kept::Kept;
use super::log::Record;
use super::model::Model;
use super::order::Order;
use super::reader::Reader;
use super::sse::{Framing, Gone, Stream, stream};
use crate::engine::chooser::TokenLogProbs;

/// A stream that has nothing to send says so after this time.
const SILENT: Duration = Duration::from_secs(15);

/// A request that was read, with its orders.
pub(super) type Read<F> = Result<(F, Vec<Order>), ApiError>;

/// A request for answers. Its methods are what APIs do differently.
pub(super) trait Form: Sized + Send + Sync + 'static {
    /// The prefix of the ids of answers.
    const ID: &'static str;
    /// How the events of a stream are written.
    const FRAMING: Framing;

    /// Reads a request, which may go on from answers that are kept. There is an order for each prompt.
    ///
    /// # Errors
    /// The problem with the request, by its field.
    fn read(fields: &Fields<'_>, model: &Model, kept: &Arc<Kept>) -> Read<Self>;

    /// The answer to a request for which nothing has to be generated.
    fn at_once(_body: &Value, _model: &Model) -> Option<Value> {
        None
    }

    /// The settings that all requests have in common.
    fn ask(&self) -> &Ask;

    /// The wishes of the request that no answer is kept to, beside the parts of a schema that cannot be enforced.
    fn not_enforced(&self) -> Vec<String> {
        vec![]
    }

    /// A reader of one answer.
    fn reader<'a>(&self, model: &'a Model) -> Reader<'a>;

    /// The body with all answers.
    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value;

    /// The maker of a stream's events.
    fn events<'a>(&'a self, head: &'a Head) -> impl Events + 'a;
}

/// Makes the events of a stream.
pub(super) trait Events: Send {
    /// The events that stand before all answers.
    fn begin(&mut self, usage: &Usage) -> Vec<Value>;

    /// The events of a step.
    fn step(&mut self, step: Step, usage: &Usage) -> Vec<Value>;

    /// The events that stand behind all answers.
    fn end(&mut self, usage: &Usage) -> Vec<Value>;

    /// The events that tell of an error, after which nothing comes.
    fn failed(&mut self, error: &ApiError) -> Vec<Value>;

    /// The event that tells that the stream lives; `None` leaves that to the framing.
    fn alive(&self) -> Option<Value> {
        None
    }
}

/// The id, the time and the model that an answer tells beside its text.
pub(super) struct Head {
    pub(super) id: String,
    /// The time in seconds since 1970.
    pub(super) created: i64,
    pub(super) model: Arc<Model>,
}

/// An answer that is complete.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) blocks: Blocks,
    pub(super) tokens: Vec<u32>,
    pub(super) log_probs: Vec<TokenLogProbs>,
    pub(super) reason: &'static str,
    /// The stop text that has ended it.
    pub(super) stopped_by: Option<String>,
}

impl Collected {
    fn add(&mut self, step: Step) {
        self.tokens.extend(step.token);
        self.log_probs.extend(step.log_probs);
        self.reason = step.reason.unwrap_or(self.reason);
        self.stopped_by = step.stopped_by.or(self.stopped_by.take());
        for delta in step.deltas {
            self.blocks.take(delta, &mut |_, _| {});
        }
    }
}

/// A request whose answers are on their way.
struct Begun<F> {
    form: F,
    head: Head,
    record: Arc<Record>,
    /// The number of answers.
    count: usize,
    /// Tokens of all prompts.
    prompt: usize,
    timeout: Option<Duration>,
}

/// The result of handing a request in.
enum Handed<F> {
    In(Begun<F>, Answering),
    /// The request was answered at once.
    AtOnce(Value),
}

impl<F: Form> Begun<F> {
    /// Hands a request in, unless it is answered at once. Unless `streams` is true, one that asks for a stream is refused.
    async fn hand_in(
        app: &App,
        body: Body,
        record: Arc<Record>,
        streams: bool,
    ) -> Result<Handed<F>, ApiError> {
        let model = Arc::clone(&app.served()?.model);
        let read = body::read(app, body, Texts::Answered, {
            let (model, record) = (Arc::clone(&model), Arc::clone(&record));
            let kept = Arc::clone(&app.kept);
            move |body| {
                if let Some(answer) = F::at_once(body, &model) {
                    return Ok(Err(answer));
                }
                let fields = Fields::of_body(body)?;
                check_model(&fields, &model)?;
                let (form, orders) = F::read(&fields, &model, &kept)?;
                let lost = orders.first().map(|order| order.wish.not_enforced());
                let lost = lost.unwrap_or_default();
                let lost = lost.into_iter().chain(form.not_enforced()).collect();
                record.disregarded(fields.unread(), lost);
                match form.ask().stream && !streams {
                    true => Err(fields.wrong("stream", "must be false or left out in a batch")),
                    false => Ok(Ok((form, orders))),
                }
            }
        });
        let (form, orders) = match read.await? {
            Ok(read) => read,
            Err(answer) => return Ok(Handed::AtOnce(answer)),
        };
        let prompt = orders.iter().map(|order| order.prompt.len()).sum();
        let count = orders.iter().map(|order| order.n).sum();
        let answering = app.hand_in(orders, record.peer, record.began)?;
        let head = Head {
            id: format!("{}{:016x}", F::ID, number()),
            created: jiff::Timestamp::now().as_second(),
            model,
        };
        let begun = Self {
            form,
            head,
            record,
            count,
            prompt,
            timeout: app.settings.timeout,
        };
        Ok(Handed::In(begun, answering))
    }

    /// The answers while they come.
    fn answers(&self, answering: Answering) -> Answers<'_> {
        let readers = (0..self.count).map(|_| self.form.reader(&self.head.model));
        let sizes = (self.prompt, self.form.ask().n);
        let record = Arc::clone(&self.record);
        Answers::new(answering, readers.collect(), sizes, record, self.timeout)
    }

    /// The body with all answers, when they are there.
    async fn whole(&self, answering: Answering) -> Result<Value, ApiError> {
        let mut answers = self.answers(answering);
        let mut all: Vec<Collected> = vec![];
        all.resize_with(self.count, Collected::default);
        while let Some(step) = answers.next().await? {
            if let Some(one) = all.get_mut(step.choice) {
                one.add(step);
            }
        }
        let body = self.form.whole(&self.head, all, &answers.usage());
        self.record.ended();
        Ok(body)
    }

    /// Sends the answers as they come.
    async fn pour(&self, stream: &Stream, answering: Answering) -> Result<(), Gone> {
        let mut answers = self.answers(answering);
        let mut events = self.form.events(&self.head);
        stream.send(events.begin(&answers.usage())).await?;
        loop {
            let Ok(next) = tokio::time::timeout(SILENT, answers.next()).await else {
                match events.alive() {
                    Some(event) => stream.send(vec![event]).await?,
                    None => stream.comment().await?,
                }
                continue;
            };
            match next {
                Ok(Some(step)) => stream.send(events.step(step, &answers.usage())).await?,
                Ok(None) => break,
                Err(error) => {
                    self.record.failed(error.status.as_str());
                    stream.send(events.failed(&error)).await?;
                    return stream.done().await;
                }
            }
        }
        stream.send(events.end(&answers.usage())).await?;
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
    match Begun::<F>::hand_in(app, body.into(), record, false).await? {
        Handed::In(begun, answering) => begun.whole(answering).await,
        Handed::AtOnce(body) => Ok(body),
    }
}

/// Answers a request.
///
/// # Errors
/// Why it is refused, or what went wrong before the answer.
pub(super) async fn answer<F: Form>(
    app: &App,
    body: Body,
    record: Arc<Record>,
) -> Result<Response, ApiError> {
    let (begun, answering) = match Begun::<F>::hand_in(app, body, record, true).await? {
        Handed::In(begun, answering) => (begun, answering),
        Handed::AtOnce(body) => return Ok(json_response(StatusCode::OK, body.to_string())),
    };
    if !begun.form.ask().stream {
        let body = begun.whole(answering).await?;
        return Ok(json_response(StatusCode::OK, body.to_string()));
    }
    let (response, stream) = stream(F::FRAMING);
    tokio::spawn(async move {
        tokio::select! {
            () = stream.gone() => {}
            _ = begun.pour(&stream, answering) => {}
        }
    });
    Ok(response)
}
