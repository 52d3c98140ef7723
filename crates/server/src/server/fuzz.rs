//! Opens to the fuzzers what is private here: how a body becomes orders. Builds with the feature `fuzz` alone have it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::ask::check_model;
use super::body::parsed;
use super::chat::Chat;
use super::completions::Completion;
use super::deliver::Form;
use super::error::ApiError;
use super::fields::Fields;
use super::kept::{Answer, Kept};
use super::model::Model;
use super::{anthropic, llama, ollama, responses, text};
use crate::effort::Effort;
use crate::engine::Engine;
use crate::engine::chooser::{ChainSettings, Sampling};
use crate::engine::draft::DraftOptions;

/// How long a body may take to be read.
const TIME: Duration = Duration::from_secs(10);
/// The most tokens of a text that are counted.
const MOST_TOKENS: usize = 1 << 20;

named! {
    /// A route that takes a body.
    pub enum Route {
        /// OpenAI's chats.
        Chat = "/v1/chat/completions",
        /// OpenAI's completions.
        Completion = "/v1/completions",
        /// OpenAI's responses.
        Response = "/v1/responses",
        /// Anthropic's messages.
        Message = "/v1/messages",
        /// llama.cpp's completions.
        Continued = "/completion",
        /// ollama's chats.
        Talk = "/api/chat",
        /// ollama's completions.
        Generate = "/api/generate",
        /// Tokens of a text.
        Tokenize = "/tokenize",
        /// The text of tokens.
        Detokenize = "/detokenize",
        /// Tokens of Anthropic's messages.
        CountTokens = "/v1/messages/count_tokens",
        /// Tokens of OpenAI's responses.
        InputTokens = "/v1/responses/input_tokens",
        /// The text of a conversation.
        ApplyTemplate = "/apply-template",
        /// ollama's account of the model.
        Show = "/api/show",
    }
}

impl Route {
    /// The route with this path.
    pub fn of(path: &str) -> Option<Self> {
        Self::named(path)
    }
}

/// The result of reading a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// The answers that a request orders.
    Orders {
        /// Answers in all.
        answers: usize,
        /// Answers to each prompt.
        each: usize,
        /// Tokens of the longest prompt.
        longest: usize,
    },
    /// The answer itself, as JSON.
    Answer(String),
    /// A refusal: its status and what is said.
    Refused(u16, String),
}

/// A model for which requests are read, and the answers that later ones may go on from.
pub struct Requests {
    model: Model,
    kept: Arc<Kept>,
}

impl Requests {
    /// Requests to `engine`, of which one was answered as `resp_1`.
    pub fn new(engine: Engine) -> Self {
        let settings = ChainSettings::new(Sampling::GREEDY);
        let model = Model {
            engine,
            name: "glimt".to_owned(),
            strict_name: false,
            title: "a model".to_owned(),
            thinking: settings.clone(),
            answering: settings,
            think: None,
            limit: None,
            seed: Some(1),
            penalty_asked: false,
            drafts: DraftOptions::OFF,
            created: 0,
        };
        let kept = Kept::default();
        let message = |role: &str, kind: &str| {
            let content = json!([{"type": kind, "text": "hi"}]);
            json!({"id": format!("msg_{role}"), "type": "message", "role": role, "content": content})
        };
        let output = [message("assistant", "output_text")];
        let answer = Answer {
            previous: None,
            input: vec![message("user", "input_text")],
            body: json!({"id": "resp_1", "output": output}),
        };
        kept.put("resp_1", answer);
        let kept = Arc::new(kept);
        Self { model, kept }
    }

    /// Reads a body as the server does, up to where it would ask for a place.
    pub fn read(&self, route: Route, body: &[u8]) -> Read {
        let limits = Effort::current().within(TIME).of_tokens(MOST_TOKENS);
        let read = limits.on(|| parsed(body).and_then(|body| self.json(route, &body)));
        read.unwrap_or_else(|error| Read::Refused(error.status.as_u16(), error.json().to_string()))
    }

    fn json(&self, route: Route, body: &Value) -> Result<Read, ApiError> {
        let model = &self.model;
        let told = |work: fn(&Fields<'_>, &Model) -> Result<String, ApiError>| {
            let fields = Fields::of_body(body)?;
            check_model(&fields, model)?;
            let found = work(&fields, model)?;
            drop(fields.unread());
            Ok(found)
        };
        let answer = match route {
            Route::Chat => return self.orders::<Chat>(body),
            Route::Completion => return self.orders::<Completion>(body),
            Route::Response => return self.orders::<responses::Response>(body),
            Route::Message => return self.orders::<anthropic::Message>(body),
            Route::Continued => return self.orders::<llama::Continued>(body),
            Route::Talk => return self.orders::<ollama::Talk>(body),
            Route::Generate => return self.orders::<ollama::Generate>(body),
            Route::Tokenize => told(text::tokenize),
            Route::Detokenize => told(text::detokenize),
            Route::CountTokens => told(anthropic::count_tokens),
            Route::InputTokens => {
                responses::input_tokens(&Fields::of_body(body)?, model, &self.kept)
            }
            Route::ApplyTemplate => told(llama::apply_template),
            Route::Show => told(ollama::show),
        };
        answer.map(Read::Answer)
    }

    fn orders<F: Form>(&self, body: &Value) -> Result<Read, ApiError> {
        if let Some(answer) = F::at_once(body, &self.model) {
            return Ok(Read::Answer(answer.to_string()));
        }
        let fields = Fields::of_body(body)?;
        check_model(&fields, &self.model)?;
        let (form, orders) = F::read(&fields, &self.model, &self.kept)?;
        drop(fields.unread());
        // The reader of the answers is made from the request, too.
        drop(form.reader(&self.model));
        let lengths = orders.iter().map(|order| order.prompt.len());
        Ok(Read::Orders {
            answers: orders.iter().map(|order| order.n).sum(),
            each: form.ask().n,
            longest: lengths.max().unwrap_or_default(),
        })
    }
}
