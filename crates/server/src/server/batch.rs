//! Requests that come from elsewhere than a socket, answered by the code that answers those over HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::app::{App, Phase, number};
use super::ask::MOST_IN_ALL;
use super::chat::Chat;
use super::completions::Completion;
use super::deliver::whole;
use super::error::ServerError;
use super::keys::Keys;
use super::log::Record;
use super::model::Model;
use super::peer::Peer;
use super::settings::Settings;
use super::work::{self, LAST_STEP, Worked};

/// Places beside those that are answered, which who hands requests in cannot use up: more than twice as many requests as can be answered
/// at once, and at least as many as a request may ask for answers.
const PLACES: usize = MOST_IN_ALL;

/// The endpoint that a request of a batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// A conversation.
    Chat,
    /// A text to be continued.
    Completions,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 2] = [Self::Chat, Self::Completions];

    /// The path at which HTTP serves it.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The status that it would have over HTTP: 200 for an answer.
    pub status: u16,
    /// Names the request.
    pub request_id: String,
    /// The answer, or the error in the form of OpenAI's API.
    pub body: Value,
    /// Headers that it would have over HTTP and that tell what was not taken into account.
    pub notes: Vec<(&'static str, String)>,
}

/// A model that answers requests without a socket.
pub struct Batch {
    app: Arc<App>,
    worked: Worked,
    slots: usize,
    /// Dropped last: it ends all of the above.
    runtime: Runtime,
}

/// No socket is opened with these, and no answer is given up.
fn settings() -> Settings {
    Settings {
        address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
        keys: Keys::default(),
        behind_proxy: false,
        guard_all: false,
        page: false,
        cors: vec![],
        hosts: Default::default(),
        queue: PLACES,
        timeout: None,
        max_body: usize::MAX,
        drain: Duration::ZERO,
        slots: None,
    }
}

impl Batch {
    /// Begins to compute with `model`, which takes as long as its kernels are compiled.
    ///
    /// # Errors
    /// [`ServerError::Engine`] where its cache does not fit, or [`ServerError::System`].
    pub fn start(model: Model) -> Result<Self, ServerError> {
        let runtime = work::runtime("batch")?;
        let app = Arc::new(App::new(settings())?);
        let mut worked = work::start(&app, model, None)?;
        let mut phase = app.phase.subscribe();
        runtime.block_on(async {
            tokio::select! {
                _ = phase.wait_for(|phase| *phase == Phase::Ready) => Ok(()),
                result = &mut worked => Err(work::why(result)),
            }
        })?;
        let capacity = app.served.get().map(|served| served.desk.capacity());
        let slots = capacity.unwrap_or_default().saturating_sub(PLACES).max(1);
        Ok(Self {
            app,
            worked,
            slots,
            runtime,
        })
    }

    /// The most requests that are answered at the same time.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Tokens that were generated so far.
    pub fn generated_tokens(&self) -> u64 {
        self.app.metrics.figures().generated_tokens
    }

    /// Has a request answered, and tells what became of it, from another thread. `None` is told where nothing can be computed any more, of
    /// which [`end`](Self::end) gives the reason. At most two times [`slots`](Self::slots) should be asked at the same time.
    pub fn ask(
        &self,
        endpoint: Endpoint,
        body: Value,
        told: impl FnOnce(Option<Answered>) + Send + 'static,
    ) {
        let app = Arc::clone(&self.app);
        self.runtime.spawn(async move {
            let request_id = format!("req_{:016x}", number());
            let log = Arc::clone(&app.log);
            let record = Record::new(log, &request_id, "POST", endpoint.path(), true);
            let record = Arc::new(record.of(Peer::File));
            // The log is for servers.
            record.status(200);
            let told_of = Arc::clone(&record);
            let answer = match endpoint {
                Endpoint::Chat => whole::<Chat>(&app, body, record).await,
                Endpoint::Completions => whole::<Completion>(&app, body, record).await,
            };
            let notes = told_of.notes();
            let (status, body) = match answer {
                Ok(body) => (200, body),
                Err(error) if error.is_of_all() => return told(None),
                Err(error) => (error.status.as_u16(), error.json()),
            };
            told(Some(Answered {
                status,
                request_id,
                body,
                notes,
            }));
        });
    }

    /// Ends, with all that is not answered yet. Returns whether nothing uses the device any more.
    ///
    /// # Errors
    /// Why nothing could be computed any more, if that is so.
    pub fn end(self) -> Result<bool, ServerError> {
        if let Some(served) = self.app.served.get() {
            served.desk.end();
        }
        let worked = async { timeout(LAST_STEP, self.worked).await };
        let worked = self.runtime.block_on(worked);
        // A task that is left may be the last to hold the device.
        self.runtime.shutdown_timeout(LAST_STEP);
        self.app.reading.end(LAST_STEP);
        match worked {
            Ok(Ok(Ok(()))) => Ok(true),
            Ok(result) => Err(work::why(result)),
            Err(_) => Ok(false),
        }
    }
}
