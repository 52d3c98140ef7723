//! Connections: taken while there are places, and brought to their end in order.
//!
//! A connection that makes no progress ends: its head, its bodies and what is written to it have limits of time. One that finds no place
//! ([`connections`](super::connections)) is served for a moment: it is told how the server is, and its request waits for a place.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::app::App;
use super::connections::{Connections, Open};
use super::handled::Handled;
use super::patient::Patient;
use super::peer::Peer;

/// How long a connection without a place is served.
const MOMENT: Duration = Duration::from_secs(5);
/// The head of a request has to come within this time, which is longer than nginx keeps a connection that it does not use.
const HEAD: Duration = Duration::from_secs(75);
/// The most bytes of a head, with those of its line.
const MOST_HEAD: usize = 64 << 10;
/// How long nothing is taken after the system refused a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// A peer that is silent is asked after this time whether it is still there, and then as often as this.
const SILENT: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(10)];
/// Bytes that the system holds for a client that does not read them.
const UNREAD: usize = 256 << 10;
/// Bytes of these that it may not have sent yet. With more, it is not seen for seconds that a slow client reads.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNSENT: u32 = 32 << 10;

/// Takes connections until `ending` says true.
pub(super) async fn take(
    connections: Connections,
    listener: TcpListener,
    router: Router,
    app: Arc<App>,
    mut ending: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ending.wait_for(|ending| *ending) => return,
        };
        let Ok((stream, address)) = accepted else {
            // The process may have too many open files.
            connections.end_still();
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let open = connections.open(Peer::of_address(address.ip(), &app.settings));
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(serve(stream, service, Arc::new(open), ending.clone()));
    }
}

/// Serves a connection. What goes wrong with it is its client's matter.
async fn serve(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    open: Arc<Open>,
    mut ending: watch::Receiver<bool>,
) {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let [silent, often] = SILENT;
    let alive = TcpKeepalive::new().with_time(silent).with_interval(often);
    let _ = socket.set_tcp_keepalive(&alive);
    let _ = socket.set_send_buffer_size(UNREAD);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
    let stream = Arc::new(stream);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    builder.max_buf_size(MOST_HEAD);
    builder.keep_alive(open.has_place());
    let patient = Patient::new(Arc::clone(&stream), Arc::clone(&open.line));
    let handled = Handled::new(service, Arc::clone(&open));
    let connection = builder.serve_connection(TokioIo::new(patient), handled);
    let mut connection = std::pin::pin!(connection);
    let over = async {
        tokio::select! {
            () = open.line.over(&stream) => {}
            () = moment(&open) => {}
        }
    };
    let mut over = std::pin::pin!(over);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = over.as_mut() => return,
        _ = ending.wait_for(|ending| *ending) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = over => {}
    }
}

/// Waits until a connection without a place has been served for a moment. One with a place stays.
async fn moment(open: &Open) {
    tokio::time::sleep(MOMENT).await;
    if open.has_place() {
        std::future::pending::<()>().await;
    }
}
