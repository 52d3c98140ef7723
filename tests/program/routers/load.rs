//! Protects what the tests of routers go by: clients that ask again and again know a whole answer from one that was cut.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

pub const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A client that takes any status as an answer, and no proxy.
fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_global(Some(PATIENCE))
        .build()
        .into()
}

/// The body of what is at an address, if its status is 200.
pub fn get(url: &str) -> Option<String> {
    let mut response = agent().get(url).call().ok()?;
    let body = response.body_mut().read_to_string().ok()?;
    (response.status() == 200).then_some(body)
}

/// Where requests go.
#[derive(Clone)]
pub struct Target {
    pub url: String,
    pub key: Option<String>,
}

/// A question whose answer is known.
#[derive(Clone)]
pub struct Question {
    path: &'static str,
    body: Value,
    expected: String,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// It is all that a server says alone.
    Whole,
    /// It failed so that the client knows.
    Failed(String),
    /// It looks whole, or went on, but is not what a server says alone.
    Wrong(String),
}

/// The outcome of a request.
#[derive(Debug, Clone)]
pub struct Answer {
    pub path: &'static str,
    pub began: Instant,
    pub streams: bool,
    pub end: End,
}

/// Questions of several lengths for both routes, with the answers of a server.
pub fn questions(target: &Target) -> Vec<Question> {
    let animals = ["a fox", "a crow", "a king", "an old woman"];
    let questions = animals.iter().enumerate().map(|(i, animal)| {
        let (path, mut body) = match i % 2 {
            0 => (
                COMPLETIONS,
                json!({"prompt": format!("Once upon a time there was {animal} who")}),
            ),
            _ => {
                let content = format!("Tell me a story about {animal}.");
                let messages = json!([{"role": "user", "content": content}]);
                (CHAT, json!({"messages": messages}))
            }
        };
        body["model"] = json!("glimt");
        body["temperature"] = json!(0);
        body["max_tokens"] = json!(14 + 6 * i);
        let mut question = Question {
            path,
            body,
            expected: String::new(),
        };
        let (status, text) = sent(target, &question, false).expect("the server answers");
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("it is JSON");
        question.expected = said(&answer["choices"][0]).to_owned();
        assert!(question.expected.len() > 30, "{answer}");
        question
    });
    questions.collect()
}

/// The text of a choice, or of a piece of one.
fn said(choice: &Value) -> &str {
    let places = [
        &choice["message"]["content"],
        &choice["delta"]["content"],
        &choice["text"],
    ];
    let mut texts = places.iter().filter_map(|place| place.as_str());
    texts.next().unwrap_or_default()
}

/// Sends a question; the status, and as much of the body as came.
///
/// # Errors
/// The error, with the body so far.
fn sent(
    target: &Target,
    question: &Question,
    streams: bool,
) -> Result<(u16, String), (String, String)> {
    let mut body = question.body.clone();
    body["stream"] = json!(streams);
    let mut request = agent()
        .post(format!("{}{}", target.url, question.path))
        .header("Content-Type", "application/json");
    if let Some(key) = &target.key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let response = request.send(body.to_string());
    let response = response.map_err(|error| (error.to_string(), String::new()))?;
    let status = response.status().as_u16();
    let mut bytes = vec![];
    let read = response.into_body().into_reader().read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match read {
        Ok(_) => Ok((status, text)),
        Err(error) => Err((error.to_string(), text)),
    }
}

/// Asks a question and judges the answer.
pub fn ask(target: &Target, question: &Question, streams: bool) -> Answer {
    let began = Instant::now();
    let end = match sent(target, question, streams) {
        Ok((status, text)) if status != 200 => End::Failed(format!("status {status}: {text}")),
        Ok((_, text)) if streams => judge_stream(&text, &question.expected, None),
        Ok((_, text)) => judge_whole(&text, &question.expected),
        Err((error, text)) if streams => judge_stream(&text, &question.expected, Some(&error)),
        Err((error, _)) => End::Failed(error),
    };
    Answer {
        path: question.path,
        began,
        streams,
        end,
    }
}

/// The verdict on an answer that came as one.
fn judge_whole(text: &str, expected: &str) -> End {
    match serde_json::from_str::<Value>(text) {
        Ok(answer) if said(&answer["choices"][0]) == expected => End::Whole,
        Ok(_) => End::Wrong(text.to_owned()),
        Err(error) => End::Failed(error.to_string()),
    }
}

/// The verdict on an answer that came in events.
fn judge_stream(text: &str, expected: &str, error: Option<&str>) -> End {
    let (mut got, mut reason, mut done, mut failed) = (String::new(), false, false, None);
    // The last line may have been cut.
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        let Some(data) = line.trim_end().strip_prefix("data: ") else {
            continue;
        };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        match serde_json::from_str::<Value>(data) {
            Ok(event) if event["error"].is_object() => failed = Some(data.to_owned()),
            Ok(event) => {
                let choice = &event["choices"][0];
                got += said(choice);
                reason |= choice["finish_reason"].is_string();
            }
            Err(error) => return End::Wrong(format!("{error} in {data}")),
        }
    }
    if !expected.starts_with(&got) {
        return End::Wrong(format!("{got:?} instead of {expected:?}"));
    }
    match (error, failed) {
        (Some(error), _) => End::Failed(format!("cut: {error}")),
        (None, Some(failed)) => End::Failed(format!("event: {failed}")),
        (None, None) if !done => End::Failed("ended without [DONE]".to_owned()),
        (None, None) if got == expected && reason => End::Whole,
        (None, None) => End::Wrong(format!("complete, but {got:?}")),
    }
}

/// Clients that ask until they are stopped.
pub struct Load {
    clients: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    whole: Arc<AtomicUsize>,
    answers: Arc<Mutex<Vec<Answer>>>,
}

impl Load {
    /// Starts `clients` clients. Two of three want streams.
    pub fn start(target: &Target, questions: &[Question], clients: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let whole = Arc::new(AtomicUsize::new(0));
        let answers = Arc::new(Mutex::new(vec![]));
        let client = |i: usize| {
            let (target, questions) = (target.clone(), questions.to_vec());
            let (stop, whole) = (Arc::clone(&stop), Arc::clone(&whole));
            let answers = Arc::clone(&answers);
            std::thread::spawn(move || {
                let mut asked = i;
                while !stop.load(Ordering::Relaxed) {
                    let question = &questions[asked % questions.len()];
                    let answer = ask(&target, question, !i.is_multiple_of(3));
                    whole.fetch_add(usize::from(answer.end == End::Whole), Ordering::Relaxed);
                    answers.lock().expect("nobody panics").push(answer);
                    asked += 1;
                }
            })
        };
        let clients = (0..clients).map(client).collect();
        Self {
            clients,
            stop,
            whole,
            answers,
        }
    }

    /// Answers that were whole until now.
    pub fn whole(&self) -> usize {
        self.whole.load(Ordering::Relaxed)
    }

    /// Waits for the answers under way; all that there were.
    pub fn stop(self) -> Vec<Answer> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().expect("clients do not panic");
        }
        std::mem::take(&mut self.answers.lock().expect("nobody panics"))
    }
}

#[test]
fn a_client_knows_a_cut_answer() {
    let event = |text: &str, reason: Value| {
        let choice = json!({"text": text, "finish_reason": reason});
        format!("data: {}\n\n", json!({"choices": [choice]}))
    };
    let (first, last) = (event("a fox", Value::Null), event(" ran", json!("stop")));
    let done = "data: [DONE]\n\n";
    let failed = "data: {\"error\": {\"message\": \"no\"}}\n\n";
    let judge = |text: String, error| judge_stream(&text, "a fox ran", error);
    assert_eq!(judge(format!("{first}{last}{done}"), None), End::Whole);
    for cut in [
        judge(format!("{first}{last}"), None),
        judge(format!("{first}{}", &last[..20]), None),
        judge(format!("{first}{failed}{done}"), None),
        judge(first.clone(), Some("reset")),
    ] {
        assert!(matches!(cut, End::Failed(_)), "{cut:?}");
    }
    for wrong in [
        judge(format!("{first}{done}"), None),
        judge(format!("{last}{done}"), None),
        judge(format!("{first}{first}"), Some("reset")),
    ] {
        assert!(matches!(wrong, End::Wrong(_)), "{wrong:?}");
    }
    let whole = |text: &str| json!({"choices": [{"text": text}]}).to_string();
    assert_eq!(judge_whole(&whole("a fox ran"), "a fox ran"), End::Whole);
    let cut = judge_whole(&whole("a fox"), "a fox ran");
    assert!(matches!(cut, End::Wrong(_)), "{cut:?}");
    let cut = judge_whole(&whole("a fox ran")[..20], "a fox ran");
    assert!(matches!(cut, End::Failed(_)), "{cut:?}");
}
