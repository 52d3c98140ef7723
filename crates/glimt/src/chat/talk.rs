//! Text in, text out: a conversation with its session.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::conversation::{Conversation, Turn};
use super::reply::{Piece, ReplyReader};
use crate::engine::{Engine, EngineError, GenerateStats, Sampling, Session};
use crate::gpu::pending::giving_way;

/// A conversation that is answered: text in, text out.
///
/// ```
/// use glimt::chat::{Chat, Piece};
/// use glimt::engine::{Engine, EngineError, ModelSource, Wait};
///
/// # fn main() -> Result<(), EngineError> {
/// let engine = Engine::open(ModelSource::Embedded)?;
/// let mut chat = Chat::new(&engine).wait()?;
/// chat.limit = 20;
/// for piece in chat.stream("Tell me a story about a king.") {
///     if let Piece::Answer(text) = piece? {
///         print!("{text}");
///     }
/// }
/// let answer = chat.say("And what did the queen say?").wait()?;
/// # assert!(!answer.is_empty());
/// # Ok(())
/// # }
/// ```
pub struct Chat {
    engine: Engine,
    session: Session,
    /// The turns so far. It may be changed: what of it was computed is computed only once.
    pub conversation: Conversation,
    /// How tokens are chosen: at first as it is recommended for the model, with a random seed.
    pub sampling: Sampling,
    /// Whether the model thinks before it answers; `None` leaves it to its chat template.
    pub think: Option<bool>,
    /// The most tokens of an answer and its thoughts: at first what the context has room for.
    pub limit: usize,
    stats: Option<GenerateStats>,
}

impl Chat {
    /// A conversation without turns.
    ///
    /// # Errors
    /// The error that its cache does not fit.
    pub async fn new(engine: &Engine) -> Result<Self, EngineError> {
        Ok(Self::of(engine.session().await?))
    }

    /// A conversation without turns, in `session`. What that has computed already is kept as far as the conversation begins with it.
    pub fn of(session: Session) -> Self {
        let recommended = session.engine().recommended();
        Self {
            conversation: Conversation::default(),
            sampling: recommended.sampling(false).with_random_seed(),
            think: None,
            limit: usize::MAX,
            stats: None,
            engine: session.engine().clone(),
            session,
        }
    }

    /// The times and counts of the last answer that came to its end, and why it ended.
    pub fn stats(&self) -> Option<&GenerateStats> {
        self.stats.as_ref()
    }

    /// Asks the model, and gives its thoughts and its answer as they are generated.
    ///
    /// Nothing is computed before the first piece is asked for. What was given is a turn of the conversation from then on, also if the
    /// stream is dropped before its end. A question without any answer is no turn.
    pub fn stream(&mut self, text: impl Into<String>) -> Pieces<'_> {
        let engine = &self.engine;
        self.conversation.turns.push(Turn::User(text.into()));
        let (begun, thinks) = match self.conversation.prompt(engine, self.think) {
            Ok(prompt) => (Ok(prompt.ids), prompt.text),
            Err(error) => (Err(error), String::new()),
        };
        let heard = Arc::new(Mutex::new(Heard {
            reader: ReplyReader::new(engine.tokenizer(), &thinks),
            pieces: VecDeque::new(),
        }));
        let hears = Arc::clone(&heard);
        let (session, sampling, limit) = (&mut self.session, self.sampling, self.limit);
        let answer = async move {
            let prompt = begun?;
            let rest = session.sync(&prompt);
            let on_prompt = &mut |_| ControlFlow::Continue(());
            let on_token = &mut |token| {
                lock(&hears).token(token);
                ControlFlow::Continue(())
            };
            let answer = session.generate_watched(rest, &sampling, limit, on_prompt, on_token);
            answer.await
        };
        Pieces {
            answer: Some(Box::pin(answer)),
            heard,
            conversation: &mut self.conversation,
            stats: &mut self.stats,
        }
    }

    /// Asks the model, and gives its answer without the thoughts. These are in the conversation.
    ///
    /// # Errors
    /// The errors of the chat template and the device. The conversation is then as it was, with what was answered so far.
    pub async fn say(&mut self, text: impl Into<String>) -> Result<String, EngineError> {
        let mut answer = String::new();
        let mut pieces = self.stream(text);
        while let Some(piece) = pieces.next_piece().await {
            if let Piece::Answer(text) = piece? {
                answer += &text;
            }
        }
        Ok(answer)
    }
}

/// The generated part of an answer.
struct Heard<'a> {
    reader: ReplyReader<'a>,
    /// The text that nobody has asked for yet.
    pieces: VecDeque<Piece>,
}

impl Heard<'_> {
    fn token(&mut self, token: u32) {
        let piece = self.reader.push(token);
        self.pieces.extend(piece);
    }
}

fn lock<'h, 'c>(heard: &'h Mutex<Heard<'c>>) -> MutexGuard<'h, Heard<'c>> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

type Generating<'c> = Pin<Box<dyn Future<Output = Result<GenerateStats, EngineError>> + Send + 'c>>;

/// The pieces of an answer, as they are generated: an iterator that waits for them, and [`next_piece`](Self::next_piece), which never
/// blocks. [`Chat::stream`] begins it.
pub struct Pieces<'c> {
    /// The answer, until it has ended.
    answer: Option<Generating<'c>>,
    heard: Arc<Mutex<Heard<'c>>>,
    conversation: &'c mut Conversation,
    stats: &'c mut Option<GenerateStats>,
}

impl Pieces<'_> {
    /// The next piece, or `None` at the end. Dropped before it is there it loses nothing.
    ///
    /// # Errors
    /// The errors of the chat template and the device; no piece follows.
    pub async fn next_piece(&mut self) -> Option<Result<Piece, EngineError>> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, EngineError>>> {
        loop {
            if let Some(piece) = lock(&self.heard).pieces.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let Some(answer) = &mut self.answer else {
                return Poll::Ready(None);
            };
            // Between two tokens, also where a thread waits: their pieces are wanted, and the answer may be dropped.
            match giving_way(|| answer.as_mut().poll(context)) {
                Poll::Ready(Ok(stats)) => {
                    *self.stats = Some(stats);
                    self.end();
                }
                Poll::Ready(Err(error)) => {
                    self.end();
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Pending if lock(&self.heard).pieces.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }

    /// Ends the answer. What was generated of it becomes a turn.
    fn end(&mut self) {
        // It holds the session.
        if self.answer.take().is_none() {
            return;
        }
        let mut heard = lock(&self.heard);
        let (reply, rest) = heard.reader.take();
        heard.pieces.extend(rest);
        let is_empty = reply.thoughts.is_none() && reply.answer.ids.is_empty();
        match is_empty {
            true => drop(self.conversation.take_last()),
            false => self.conversation.turns.push(Turn::Reply(reply)),
        }
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
