//! One line of JSON on standard error for each request, without its text.

use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::arriving::Reading;

/// Lines that wait for standard error at most. A reader that does not read must not stop a server.
const WAITING: usize = 4096;

/// What the thread of the log is told.
enum Entry {
    Line(String),
    /// Everything before is written when this is dropped.
    Flush(SyncSender<()>),
}

/// Writes lines from a thread of its own.
pub(super) struct Log(SyncSender<Entry>);

/// How long the last lines may take.
const FLUSH: Duration = Duration::from_secs(1);

impl Log {
    /// A log on standard error.
    ///
    /// # Errors
    /// What the system says where it gives no thread.
    pub(super) fn new() -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel::<Entry>(WAITING);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            for entry in waiting {
                match entry {
                    Entry::Line(line) => {
                        let _ = writeln!(std::io::stderr().lock(), "{line}");
                    }
                    Entry::Flush(written) => drop(written),
                }
            }
        })?;
        Ok(Self(lines))
    }

    fn line(&self, line: String) {
        // A line for which there is no place is left out.
        let _ = self.0.try_send(Entry::Line(line));
    }

    /// Waits until all lines are written.
    pub(super) fn flush(&self) {
        let (written, wait) = sync_channel(1);
        if self.0.try_send(Entry::Flush(written)).is_ok() {
            let _ = wait.recv_timeout(FLUSH);
        }
    }
}

/// What is told of a request.
struct Told {
    id: String,
    method: String,
    route: String,
    began: Instant,
    status: Option<u16>,
    /// Whether what was promised is sent: the answer is whole, or the reason why not is told.
    finished: bool,
    prompt: Option<usize>,
    cached: usize,
    generated: usize,
    queued: Option<Duration>,
    first: Option<Duration>,
    finish: Vec<&'static str>,
    error: Option<String>,
    /// Until it is handed in.
    reading: Option<Reading>,
}

/// What is told of a request. The line is written when the last of its clones is gone.
#[derive(Clone)]
pub(super) struct Record(Arc<Line>);

struct Line {
    told: Mutex<Told>,
    log: Arc<Log>,
    /// Whether it is written at all, if nothing goes wrong.
    quiet: bool,
}

/// What is logged for a client that went away, as nginx does.
const GONE: u16 = 499;

impl Record {
    pub(super) fn new(log: Arc<Log>, id: &str, method: &str, route: &str, quiet: bool) -> Self {
        let told = Told {
            id: id.to_owned(),
            method: method.to_owned(),
            route: route.to_owned(),
            began: Instant::now(),
            status: None,
            finished: true,
            prompt: None,
            cached: 0,
            generated: 0,
            queued: None,
            first: None,
            finish: vec![],
            error: None,
            reading: None,
        };
        Self(Arc::new(Line {
            told: Mutex::new(told),
            log,
            quiet,
        }))
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is read until it is [asked](Self::asked) for an answer.
    pub(super) fn reading(&self, reading: Reading) {
        self.told().reading = Some(reading);
    }

    /// When the request came.
    pub(super) fn began(&self) -> Instant {
        self.told().began
    }

    /// The status that it is answered with.
    pub(super) fn status(&self, status: u16) {
        self.told().status = Some(status);
    }

    /// An answer begins, which is whole only when [`ended`](Self::ended) says so.
    pub(super) fn asked(&self, prompt: usize) {
        let mut told = self.told();
        told.reading = None;
        told.prompt = Some(told.prompt.unwrap_or(0) + prompt);
        told.finished = false;
    }

    /// The computation of a prompt began.
    pub(super) fn begun(&self, cached: usize) {
        let mut told = self.told();
        let queued = told.began.elapsed();
        told.queued.get_or_insert(queued);
        told.cached += cached;
    }

    /// A token came.
    pub(super) fn token(&self) {
        let mut told = self.told();
        let first = told.began.elapsed();
        told.first.get_or_insert(first);
        told.generated += 1;
    }

    /// One of its answers ended.
    pub(super) fn finish(&self, reason: &'static str) {
        self.told().finish.push(reason);
    }

    /// All was sent.
    pub(super) fn ended(&self) {
        self.told().finished = true;
    }

    /// It was refused, or failed.
    pub(super) fn failed(&self, code: &str) {
        let mut told = self.told();
        told.error = Some(code.to_owned());
        told.finished = true;
    }
}

fn seconds(time: Duration) -> Value {
    // Microseconds are enough.
    Value::from((time.as_secs_f64() * 1e6).round() / 1e6)
}

impl Told {
    fn line(&self) -> String {
        let status = match (self.status, self.finished) {
            (Some(status), true) => status,
            _ => GONE,
        };
        let now = jiff::Timestamp::now().to_string();
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| {
            line.insert(name.to_owned(), value);
        };
        put("time", now.into());
        put("id", self.id.as_str().into());
        put("method", self.method.as_str().into());
        put("route", self.route.as_str().into());
        put("status", status.into());
        put("seconds", seconds(self.began.elapsed()));
        if let Some(prompt) = self.prompt {
            put("prompt_tokens", prompt.into());
            put("cached_tokens", self.cached.into());
            put("generated_tokens", self.generated.into());
            put("queue_seconds", self.queued.map_or(Value::Null, seconds));
            put(
                "first_token_seconds",
                self.first.map_or(Value::Null, seconds),
            );
            put("finish_reasons", json!(self.finish));
        }
        if let Some(error) = &self.error {
            put("error", error.as_str().into());
        }
        Value::Object(line).to_string()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.quiet && told.status.is_some_and(|status| status < 400) {
            return;
        }
        self.log.line(told.line());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_of_a_request_that_was_answered_and_of_one_whose_client_went_away() {
        let log = Arc::new(Log::new().expect("there are threads"));
        let record = Record::new(log, "r-1", "POST", "/v1/completions", true);
        let line = |record: &Record| -> Value {
            serde_json::from_str(&record.told().line()).expect("it is JSON")
        };
        record.status(200);
        assert_eq!(line(&record)["status"], 200);
        record.asked(7);
        record.begun(3);
        record.token();
        assert_eq!(line(&record)["status"], GONE);
        record.finish("stop");
        record.ended();
        let found = line(&record);
        assert_eq!(found["status"], 200);
        assert_eq!(found["prompt_tokens"], 7);
        assert_eq!(found["cached_tokens"], 3);
        assert_eq!(found["generated_tokens"], 1);
        assert_eq!(found["finish_reasons"], json!(["stop"]));
        assert!(found["first_token_seconds"].is_f64(), "{found}");
        assert_eq!(found["id"], "r-1");
    }
}
