//! A server with OpenAI's API on top of the scheduler.
//!
//! [`Server::bind`] opens the socket, behind which `/health` tells that the model is still loaded. [`Server::run`] answers until it is asked to
//! end. A thread of its own drives the scheduler (`desk`); requests reach it through a channel, and its events come back through another,
//! which nobody waits for. What users send is checked away from the threads that serve others, and a panic there refuses one request.

mod answers;
mod anthropic;
mod app;
mod around;
mod ask;
mod batch;
mod blocks;
mod body;
mod chat;
mod completions;
mod connections;
mod deliver;
mod desk;
mod error;
mod experts;
mod fields;
mod folder;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handled;
mod host;
mod kept;
mod keys;
mod known;
mod line;
mod listen;
mod llama;
mod log;
mod memory;
mod messages;
mod metrics;
mod missing;
mod model;
mod names;
mod ollama;
mod openai;
mod orders;
mod page;
mod patient;
mod peer;
mod places;
mod pool;
mod prediction;
mod probabilities;
mod reader;
mod reading;
mod responses;
mod routes;
mod samplers;
mod sampling;
mod settings;
mod sse;
mod text;
mod tools;
mod translated;
mod tree;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

pub use batch::{Answered, Batch, Endpoint};
pub use error::ServerError;
pub use folder::Folder;
pub use host::name as host_name;
pub use keys::Keys;
pub use model::Model;
pub use settings::Settings;
pub use work::Start;

use app::{App, Phase, Served};
use connections::Connections;
use work::{LAST_STEP, Worked};

/// How long responses may take that say that the server ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server whose socket is open.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    connections: Connections,
    ending: watch::Sender<bool>,
    /// Dropped last: it ends all of the above.
    runtime: Runtime,
}

/// How a server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Whether answers were cut, since they took too long.
    pub cut: bool,
    /// Whether nothing uses the device any more.
    pub idle: bool,
}

impl Server {
    /// Opens the socket. Until [`run`](Self::run) all but the page, `/health`, `/metrics` and `/version` is refused.
    ///
    /// # Errors
    /// [`ServerError::Bind`] or [`ServerError::System`].
    pub fn bind(settings: Settings) -> Result<Self, ServerError> {
        let address = settings.address;
        let runtime = work::runtime("serve")?;
        let app = Arc::new(App::new(settings)?);
        let bound = runtime.block_on(TcpListener::bind(address));
        let listener = bound.map_err(|source| ServerError::Bind { address, source })?;
        let address = listener.local_addr()?;
        let (connections, ending) = (Connections::new(), watch::Sender::new(false));
        let router = routes::router(Arc::clone(&app));
        let (taken, ended) = (connections.clone(), ending.subscribe());
        runtime.spawn(listen::take(
            taken,
            listener,
            router,
            Arc::clone(&app),
            ended,
        ));
        let (tidy, metrics) = (Arc::clone(&app.tidy), Arc::clone(&app.metrics));
        runtime.spawn(async move { tidy.keep(&metrics).await });
        Ok(Self {
            app,
            address,
            connections,
            ending,
            runtime,
        })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A function that asks the server to end in order.
    pub fn drainer(&self) -> impl Fn() + Send + Sync + 'static {
        let app = Arc::clone(&self.app);
        move || {
            app.phase.send_replace(Phase::Draining);
        }
    }

    /// Answers requests with `model` until the server is asked to end, and those that have come by then. `told` hears how
    /// far it is before it takes them.
    ///
    /// # Errors
    /// [`ServerError::Engine`] where the device fails, from the start or later.
    pub fn run(
        self,
        model: Model,
        told: impl Fn(Start) + Send + Sync + 'static,
    ) -> Result<Ended, ServerError> {
        let worked = work::start(&self.app, model, Some(Box::new(told)))?;
        let ended = self.runtime.block_on(self.serve(worked));
        // A task that is left may be the last to hold the device.
        self.runtime.shutdown_timeout(LAST_WORDS);
        self.app.reading.end(LAST_WORDS);
        self.app.log.flush();
        ended
    }

    async fn serve(&self, mut worked: Worked) -> Result<Ended, ServerError> {
        let mut phase = self.app.phase.subscribe();
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Draining) => {}
            result = &mut worked => {
                // Nothing is answered any more.
                self.app.phase.send_replace(Phase::Draining);
                self.close(Instant::now() + LAST_WORDS).await;
                return Err(work::why(result));
            }
        }
        let until = Instant::now() + self.app.settings.drain;
        let mut cut = false;
        if let Some(Served { desk, .. }) = self.app.served.get() {
            cut = timeout_at(until, desk.until_empty()).await.is_err();
            desk.end();
        }
        self.close(until.max(Instant::now() + LAST_WORDS)).await;
        let idle = timeout(LAST_STEP, worked).await.is_ok();
        Ok(Ended { cut, idle })
    }

    /// Brings all connections to their end.
    async fn close(&self, until: Instant) {
        self.ending.send_replace(true);
        // A reader that does not read keeps nobody waiting.
        let _ = timeout_at(until, self.connections.until_closed()).await;
    }
}
