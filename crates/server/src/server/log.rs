//! One line of JSON on standard error for each request, without its text.

use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::peer::Peer;
use crate::engine::gpu::ExpertTraffic;

/// The most lines that wait for standard error. A reader that does not read must not stop a server.
const WAITING: usize = 4096;

/// A message to the thread of the log.
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
    /// The error of the system where it gives no thread.
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

    /// Waits until all lines are written.
    pub(super) fn flush(&self) {
        let (written, wait) = sync_channel(1);
        if self.0.try_send(Entry::Flush(written)).is_ok() {
            let _ = wait.recv_timeout(FLUSH);
        }
    }
}

/// The log's record of a request. The line is written when the record is dropped.
pub(super) struct Record {
    log: Arc<Log>,
    id: String,
    method: String,
    route: String,
    /// When the request came.
    pub(super) began: Instant,
    /// Whether a line is written only if something goes wrong.
    quiet: bool,
    /// The sender.
    pub(super) peer: Peer,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    status: Option<u16>,
    /// Whether an answer has begun that is neither complete nor told to have failed.
    promised: bool,
    prompt: Option<usize>,
    cached: usize,
    generated: usize,
    queued: Option<Duration>,
    first: Option<Duration>,
    finish: Vec<&'static str>,
    experts: Option<ExpertTraffic>,
    error: Option<String>,
    /// Fields that nothing has read.
    ignored: Vec<String>,
    /// The parts of a JSON schema that are not enforced.
    not_enforced: Vec<String>,
    /// A reference that lasts until the request is handed in.
    reading: Weak<()>,
}

/// The header that names fields which nothing has read.
pub(super) const IGNORED: &str = "x-glimt-ignored";
/// The header that names what of a JSON schema is not enforced.
pub(super) const NOT_ENFORCED: &str = "x-glimt-not-enforced";
/// The most characters of such a header, about.
const MOST_HEADER: usize = 2000;

/// The most fields, or what is not enforced, that a line of the log tells, and characters of each.
const MOST_TOLD: usize = 50;
const LONGEST_TOLD: usize = 1000;

/// The status that is logged for a client that went away, as nginx does.
const GONE: u16 = 499;

impl Record {
    pub(super) fn new(log: Arc<Log>, id: &str, method: &str, route: &str, quiet: bool) -> Self {
        Self {
            log,
            id: id.to_owned(),
            method: method.to_owned(),
            route: route.to_owned(),
            began: Instant::now(),
            quiet,
            peer: Peer::Anybody,
            told: Mutex::default(),
        }
    }

    /// Notes that the request is of this peer, which the log does not tell.
    pub(super) fn of(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request is being read until [`asked`](Self::asked) is called. It holds `reading` until then.
    pub(super) fn reading(&self, reading: Weak<()>) {
        self.told().reading = reading;
    }

    /// The status that it is answered with.
    pub(super) fn status(&self, status: u16) {
        self.told().status = Some(status);
    }

    /// An answer begins, which is whole only when [`ended`](Self::ended) says so.
    pub(super) fn asked(&self, prompt: usize) {
        let mut told = self.told();
        told.reading = Weak::new();
        told.prompt = Some(prompt);
        told.promised = true;
    }

    /// The computation of a prompt began.
    pub(super) fn begun(&self, cached: usize) {
        let mut told = self.told();
        told.queued.get_or_insert(self.began.elapsed());
        told.cached += cached;
    }

    /// A token came.
    pub(super) fn token(&self) {
        let mut told = self.told();
        told.first.get_or_insert(self.began.elapsed());
        told.generated += 1;
    }

    /// Notes the traffic of experts until one of the request's answers ended, which others before it do not tell.
    pub(super) fn experts(&self, traffic: ExpertTraffic) {
        let mut told = self.told();
        let sum = told.experts.unwrap_or_default();
        told.experts = Some(sum.and(&traffic));
    }

    /// Notes that one of the request's answers ended.
    pub(super) fn finish(&self, reason: &'static str) {
        self.told().finish.push(reason);
    }

    /// Notes that the whole answer was sent.
    pub(super) fn ended(&self) {
        self.told().promised = false;
    }

    /// Notes that the request was refused, or failed.
    pub(super) fn failed(&self, code: &str) {
        let mut told = self.told();
        told.error = Some(code.to_owned());
        told.promised = false;
    }

    /// Notes what the answer does not take into account: fields that nothing has read, and parts of a JSON schema that are not enforced.
    pub(super) fn disregarded(&self, ignored: Vec<String>, not_enforced: Vec<String>) {
        let mut told = self.told();
        told.ignored = some(ignored);
        told.not_enforced = some(not_enforced);
    }

    /// The headers of the answer that tell what it does not take into account.
    pub(super) fn notes(&self) -> Vec<(&'static str, String)> {
        let told = self.told();
        let notes = [(IGNORED, &told.ignored), (NOT_ENFORCED, &told.not_enforced)];
        let some = notes.into_iter().filter(|(_, texts)| !texts.is_empty());
        some.map(|(name, texts)| (name, header(texts))).collect()
    }

    fn line(&self) -> Value {
        let told = self.told();
        let mut line = json!({
            "time": jiff::Timestamp::now().to_string(),
            "id": self.id,
            "method": self.method,
            "route": self.route,
            "status": told.status.filter(|_| !told.promised).unwrap_or(GONE),
            "seconds": seconds(self.began.elapsed()),
        });
        if let Some(prompt) = told.prompt {
            line["prompt_tokens"] = prompt.into();
            line["cached_tokens"] = told.cached.into();
            line["generated_tokens"] = told.generated.into();
            line["queue_seconds"] = told.queued.map(seconds).into();
            line["first_token_seconds"] = told.first.map(seconds).into();
            line["finish_reasons"] = json!(told.finish);
        }
        if let Some(experts) = told.experts {
            line["expert_hits"] = experts.hits.into();
            line["expert_misses"] = experts.misses.into();
            line["expert_bytes"] = experts.bytes.into();
        }
        for (name, texts) in [
            ("ignored", &told.ignored),
            ("not_enforced", &told.not_enforced),
        ] {
            if !texts.is_empty() {
                line[name] = json!(texts);
            }
        }
        if let Some(error) = &told.error {
            line["error"] = error.as_str().into();
        }
        line
    }
}

/// The first of many texts, each shortened, and how many more there are.
fn some(mut texts: Vec<String>) -> Vec<String> {
    let more = texts.len().saturating_sub(MOST_TOLD);
    texts.truncate(MOST_TOLD);
    for text in &mut texts {
        if let Some((end, _)) = text.char_indices().nth(LONGEST_TOLD) {
            text.truncate(end);
            text.push_str("...");
        }
    }
    if more > 0 {
        texts.push(format!("{more} more"));
    }
    texts
}

/// Texts as the value of a header, which has room for the first of them.
fn header(texts: &[String]) -> String {
    let mut value = String::new();
    for (i, text) in texts.iter().enumerate() {
        if value.len() + text.len() > MOST_HEADER {
            value += &format!("; and {} more", texts.len() - i);
            break;
        }
        if i > 0 {
            value += "; ";
        }
        value.extend(text.chars().map(|c| match c {
            ' '..='~' => c,
            _ => '?',
        }));
    }
    value
}

fn seconds(time: Duration) -> f64 {
    // Microseconds are enough.
    (time.as_secs_f64() * 1e6).round() / 1e6
}

impl Drop for Record {
    fn drop(&mut self) {
        let is_well = self.told().status.is_some_and(|status| status < 400);
        if !(self.quiet && is_well) {
            // A line for which there is no place is left out.
            let _ = self.log.0.try_send(Entry::Line(self.line().to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_of_a_request_that_was_answered_and_of_one_whose_client_went_away() {
        let log = Arc::new(Log::new().expect("there are threads"));
        let record = Record::new(log, "r-1", "POST", "/v1/completions", true);
        record.status(200);
        assert_eq!(record.line()["status"], 200);
        record.asked(7);
        record.begun(3);
        record.token();
        assert_eq!(record.line()["status"], GONE);
        record.finish("stop");
        record.ended();
        let found = record.line();
        assert_eq!(found["status"], 200);
        assert_eq!(found["prompt_tokens"], 7);
        assert_eq!(found["cached_tokens"], 3);
        assert_eq!(found["generated_tokens"], 1);
        assert_eq!(found["finish_reasons"], json!(["stop"]));
        assert!(found["first_token_seconds"].is_f64(), "{found}");
        assert_eq!(found["id"], "r-1");
        assert_eq!(found["ignored"], Value::Null);
        assert_eq!(found["expert_hits"], Value::Null);
        let traffic = ExpertTraffic {
            hits: 5,
            misses: 2,
            bytes: 700,
        };
        record.experts(traffic);
        record.experts(traffic);
        assert_eq!(record.line()["expert_hits"], 10);
        assert_eq!(record.line()["expert_misses"], 4);
        assert_eq!(record.line()["expert_bytes"], 1400);
        record.disregarded(vec!["fo\u{f6}".to_owned(), "b".to_owned()], vec![]);
        assert_eq!(record.line()["ignored"], json!(["fo\u{f6}", "b"]));
        assert_eq!(record.notes(), [(IGNORED, "fo?; b".to_owned())]);
        record.disregarded(vec![], vec!["x".repeat(999); 5]);
        let (name, value) = &record.notes()[0];
        assert_eq!(*name, NOT_ENFORCED);
        assert!(
            value.len() < 2100 && value.ends_with("; and 3 more"),
            "{value}"
        );
    }
}
