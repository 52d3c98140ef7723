//! Connections: taken while there are not too many, and brought to their end in order.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::app::App;
use super::peer::Peer;

/// Connections at the same time at most, well below what systems let a process open.
const MOST: u32 = 768;
/// The head of a request has to come within this time, which is longer than nginx keeps a connection that it does not use.
const HEAD: Duration = Duration::from_secs(75);
/// How long nothing is taken after the system refused a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a server.
#[derive(Clone)]
pub(super) struct Connections(Arc<Semaphore>);

impl Connections {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MOST as usize)))
    }

    /// Takes connections until `ending` says true.
    pub(super) async fn take(
        self,
        listener: TcpListener,
        router: Router,
        app: Arc<App>,
        mut ending: watch::Receiver<bool>,
    ) {
        loop {
            let Ok(place) = Arc::clone(&self.0).acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = ending.wait_for(|ending| *ending) => return,
            };
            let Ok((stream, address)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let peer = Peer::of_address(address.ip(), &app.settings);
            let (router, ending) = (router.clone(), ending.clone());
            tokio::spawn(async move {
                serve(stream, peer, router, ending).await;
                drop(place);
            });
        }
    }

    /// Waits until all have ended.
    pub(super) async fn until_closed(&self) {
        drop(self.0.acquire_many(MOST).await);
    }
}

/// Serves a connection. What goes wrong with it is its client's matter.
async fn serve(stream: TcpStream, peer: Peer, router: Router, mut ending: watch::Receiver<bool>) {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.wait_for(|ending| *ending) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
