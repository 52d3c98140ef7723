//! The requests to the server, and the times when its tokens come.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, RequestBuilder};

use crate::cli::bench_serve_error::LoadError;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// The most bytes of an answer that is no stream.
const MOST_BYTES: u64 = 1 << 20;
/// More tokens than any model knows.
const MOST_TOKENS: u64 = 1 << 22;

/// A server and its model.
pub(super) struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
    /// The name of the model in requests.
    pub(super) model: String,
    /// The most tokens of a request with its answer, where the server tells it.
    pub(super) context: Option<usize>,
}

/// The times at which the tokens of an answer came.
#[derive(Clone)]
pub(super) struct Timed {
    pub(super) sent: Instant,
    /// The events that brought tokens.
    pub(super) events: Vec<Instant>,
    /// Tokens of the prompt.
    pub(super) prompt: u64,
    /// The number of these tokens that had been computed before.
    pub(super) cached: u64,
    /// Tokens of the answer.
    pub(super) generated: u64,
}

/// The message of a response's error, or the response's text.
fn message(response: &mut Response<Body>) -> String {
    let mut text = String::new();
    let read = response.body_mut().as_reader().take(MOST_BYTES);
    // The part that can be read is all that can be told.
    let _ = BufReader::new(read).read_to_string(&mut text);
    let value: Option<Value> = serde_json::from_str(&text).ok();
    let told = value.and_then(|value| Some(value["error"]["message"].as_str()?.to_owned()));
    told.unwrap_or_else(|| text.chars().take(200).collect())
}

impl Client {
    /// Asks a server for its model, unless `model` names it.
    ///
    /// # Errors
    /// [`LoadError::Unreachable`], [`LoadError::Refused`] or [`LoadError::NoModel`].
    pub(super) fn connect(
        url: &str,
        key: Option<String>,
        model: Option<&str>,
        (connections, timeout): (usize, Duration),
    ) -> Result<Self, LoadError> {
        let url = url.trim_end_matches('/').trim_end_matches("/v1");
        let config = Agent::config_builder()
            .tls_config(
                TlsConfig::builder()
                    .root_certs(RootCerts::PlatformVerifier)
                    .build(),
            )
            .user_agent(concat!("glimt/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // The time in a proxy would be measured, too.
            .proxy(None)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(timeout))
            .build();
        let mut client = Self {
            agent: config.new_agent(),
            url: url.to_owned(),
            key,
            model: model.unwrap_or_default().to_owned(),
            context: None,
        };
        let path = "/v1/models";
        let list = client.json(path, None)?;
        let first = &list["data"][0];
        if model.is_none() {
            let id = first["id"].as_str();
            let url = client.at(path);
            client.model = id.ok_or(LoadError::NoModel { url })?.to_owned();
        }
        client.context = first["max_model_len"].as_u64().map(|most| most as usize);
        Ok(client)
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Sends a request.
    fn send(&self, path: &str, body: Option<&str>) -> Result<Response<Body>, ureq::Error> {
        match body {
            Some(body) => {
                let request = self.with_key(self.agent.post(self.at(path)));
                request.content_type("application/json").send(body)
            }
            None => self.with_key(self.agent.get(self.at(path))).call(),
        }
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// The answer to a request that must succeed.
    fn json(&self, path: &str, body: Option<&str>) -> Result<Value, LoadError> {
        let url = self.at(path);
        let unreachable = |problem: String| LoadError::Unreachable {
            url: url.clone(),
            problem,
        };
        let sent = self.send(path, body);
        let mut response = sent.map_err(|error| unreachable(error.to_string()))?;
        let status = response.status().as_u16();
        if status != 200 {
            let message = message(&mut response);
            return Err(LoadError::Refused {
                url,
                status,
                message,
            });
        }
        let reader = response.body_mut().as_reader().take(MOST_BYTES);
        serde_json::from_reader(BufReader::new(reader))
            .map_err(|error| unreachable(format!("it answers no JSON ({error})")))
    }

    /// The number of tokens that the model knows, by asking for the text of some.
    ///
    /// # Errors
    /// [`LoadError::NoVocabulary`] where the server has no `/detokenize`, or takes every token.
    pub(super) fn vocabulary(&self) -> Result<u32, LoadError> {
        let path = "/detokenize";
        let unknown = || LoadError::NoVocabulary { url: self.at(path) };
        let knows = |token: u64| {
            let body = json!({"model": self.model, "tokens": [token]}).to_string();
            match self.json(path, Some(&body)) {
                Ok(_) => Ok(true),
                Err(LoadError::Refused { status: 400, .. }) => Ok(false),
                Err(LoadError::Refused { .. }) => Err(unknown()),
                Err(other) => Err(other),
            }
        };
        if !knows(0)? || knows(MOST_TOKENS)? {
            return Err(unknown());
        }
        let (mut known, mut beyond) = (0, MOST_TOKENS);
        while beyond - known > 1 {
            let middle = (known + beyond) / 2;
            match knows(middle)? {
                true => known = middle,
                false => beyond = middle,
            }
        }
        Ok(beyond as u32)
    }

    /// A request to continue these tokens with exactly `generate` more.
    pub(super) fn body(&self, prompt: &[u32], generate: usize) -> String {
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": generate,
            "ignore_eos": true,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        });
        body.to_string()
    }

    /// Sends a request and reads its answer; `came` is told of each event that brings tokens.
    pub(super) fn stream(&self, body: &str, came: &mut dyn FnMut()) -> Result<Timed, String> {
        let sent = Instant::now();
        let response = self.send("/v1/completions", Some(body));
        let mut response = response.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("status {status}: {}", message(&mut response)));
        }
        let mut lines = BufReader::new(response.body_mut().as_reader());
        let mut timed = Timed::new(sent);
        let mut line = String::new();
        loop {
            line.clear();
            let read = lines.read_line(&mut line);
            let now = Instant::now();
            if read.map_err(|error| error.to_string())? == 0 {
                return Err("the stream ended before its answer".to_owned());
            }
            let Some(data) = line.trim_end().strip_prefix("data:") else {
                continue;
            };
            match data.trim_start() {
                "[DONE]" => return timed.whole(),
                data if timed.take(data, now)? => came(),
                _ => {}
            }
        }
    }
}

impl Timed {
    fn new(sent: Instant) -> Self {
        Self {
            sent,
            events: vec![],
            prompt: 0,
            cached: 0,
            generated: 0,
        }
    }

    /// Whether an event brings tokens.
    fn take(&mut self, data: &str, now: Instant) -> Result<bool, String> {
        let event: Value =
            serde_json::from_str(data).map_err(|error| format!("an event is no JSON: {error}"))?;
        if let Some(error) = event.get("error") {
            return Err(error["message"].as_str().unwrap_or(data).to_owned());
        }
        let usage = &event["usage"];
        let before = self.generated;
        match usage["completion_tokens"].as_u64() {
            Some(generated) => {
                self.generated = generated;
                self.prompt = usage["prompt_tokens"].as_u64().unwrap_or(self.prompt);
                let cached = &usage["prompt_tokens_details"]["cached_tokens"];
                self.cached = cached.as_u64().unwrap_or(self.cached);
            }
            // A server that tells the sum at the end alone sends an event for a token.
            None => {
                let text = event["choices"][0]["text"].as_str();
                self.generated += u64::from(text.is_some_and(|text| !text.is_empty()));
            }
        }
        // The sum at the end comes without a choice.
        let brings = self.generated > before && event["choices"].get(0).is_some();
        if brings {
            self.events.push(now);
        }
        Ok(brings)
    }

    fn whole(self) -> Result<Self, String> {
        match self.events.is_empty() {
            true => Err("the answer has no tokens".to_owned()),
            false => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(events: &[&str]) -> Timed {
        let now = Instant::now();
        let mut timed = Timed::new(now);
        for event in events {
            timed.take(event, now).expect("it is an event");
        }
        timed
    }

    #[test]
    fn tokens_are_counted_with_and_without_what_each_event_tells() {
        let told = |tokens: u64, text: &str| {
            format!(
                r#"{{"choices": [{{"text": "{text}"}}], "usage": {{"prompt_tokens": 7, "completion_tokens": {tokens}}}}}"#
            )
        };
        let found = timed(&[&told(1, ""), &told(2, "a"), &told(4, "bc"), &told(4, "")]);
        assert_eq!(
            (found.events.len(), found.generated, found.prompt),
            (3, 4, 7)
        );
        let plain = |text: &str| format!(r#"{{"choices": [{{"text": "{text}"}}], "usage": null}}"#);
        let sum = r#"{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}}}"#;
        let found = timed(&[&plain("a"), &plain("b"), &plain(""), sum]);
        assert_eq!(
            (found.events.len(), found.generated, found.cached),
            (2, 3, 6)
        );
        let failed = timed(&[]).take(r#"{"error": {"message": "no"}}"#, Instant::now());
        assert_eq!(failed, Err("no".to_owned()));
        assert!(timed(&[]).whole().is_err());
    }
}
