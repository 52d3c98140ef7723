//! Connections: taken while there are places, and brought to their end in order.
//!
//! A connection that makes no progress ends: its head, its bodies and what is written to it have limits of time. Where places are short,
//! a connection that waits for its next request gives its place to a new one, and one address has no more than half of all places. A
//! connection that finds no place is served for a moment: it is told how the server is, or that all places are taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::app::App;
use super::handled::Handled;
use super::line::Line;
use super::patient::Patient;
use super::peer::Peer;

/// Connections at the same time at most, well below what systems let a process open.
const MOST: usize = 768;
/// Connections of one peer at the same time at most. A key is not known yet, so a peer is an address here.
const MOST_OF_PEER: usize = 384;
/// Connections beside these that are served for a moment.
const SPARE: usize = 64;
/// How long such a moment is.
const MOMENT: Duration = Duration::from_secs(5);
/// The head of a request has to come within this time, which is longer than nginx keeps a connection that it does not use.
const HEAD: Duration = Duration::from_secs(75);
/// Bytes of a head at most, with those of its line.
const MOST_HEAD: usize = 64 << 10;
/// How long nothing is taken after the system refused a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// A peer that is silent is asked after this time whether it is still there, and then as often as this.
const SILENT: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(10)];
/// Bytes that the system holds for a client that does not read them.
const UNREAD: usize = 256 << 10;

#[derive(Default)]
struct Taken {
    /// Connections with a place, with the peer of each.
    places: HashMap<u64, (Peer, Arc<Line>)>,
    /// Those that are served for a moment, the oldest first.
    spare: VecDeque<(u64, Arc<Line>)>,
    next: u64,
}

impl Taken {
    /// Ends the connection that waits longest for a request, of those that `may` agrees to. Returns whether there was one.
    fn end_waiting(&mut self, may: impl Fn(Peer) -> bool) -> bool {
        let waiting = self.places.iter().filter(|(_, (peer, _))| may(*peer));
        let waiting = waiting.filter_map(|(id, (_, line))| Some((line.waiting()?, *id)));
        let Some((_, id)) = waiting.min() else {
            return false;
        };
        if let Some((_, line)) = self.places.remove(&id) {
            line.end();
        }
        true
    }

    /// Takes a place for a connection, or a moment if there is none. Returned is its number, and whether it has a place.
    fn take(&mut self, peer: Peer, line: &Arc<Line>) -> (u64, bool) {
        self.next += 1;
        let of_peer = |(known, _): &&(Peer, Arc<Line>)| *known == peer;
        let own = self.places.values().filter(of_peer).count();
        let has_place = match peer {
            Peer::Address(_) if own >= MOST_OF_PEER => self.end_waiting(|known| known == peer),
            _ if self.places.len() >= MOST => self.end_waiting(|_| true),
            _ => true,
        };
        if has_place {
            self.places.insert(self.next, (peer, Arc::clone(line)));
            return (self.next, true);
        }
        if self.spare.len() >= SPARE
            && let Some((_, oldest)) = self.spare.pop_front()
        {
            oldest.end();
        }
        self.spare.push_back((self.next, Arc::clone(line)));
        (self.next, false)
    }

    fn give_back(&mut self, id: u64) {
        if self.places.remove(&id).is_none() {
            self.spare.retain(|(known, _)| *known != id);
        }
    }
}

/// The connections of a server.
#[derive(Clone)]
pub(super) struct Connections {
    taken: Arc<Mutex<Taken>>,
    open: Arc<watch::Sender<usize>>,
}

/// A connection that is open.
struct Open {
    connections: Connections,
    id: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.taken().give_back(self.id);
        self.connections.open.send_modify(|open| *open -= 1);
    }
}

impl Connections {
    pub(super) fn new() -> Self {
        Self {
            taken: Arc::default(),
            open: Arc::new(watch::Sender::new(0)),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
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
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = ending.wait_for(|ending| *ending) => return,
            };
            let Ok((stream, address)) = accepted else {
                // The process may have too many open files.
                self.taken().end_waiting(|_| true);
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let line = Arc::new(Line::new());
            let peer = Peer::of_address(address.ip(), &app.settings);
            let (id, has_place) = self.taken().take(peer, &line);
            self.open.send_modify(|open| *open += 1);
            let open = Open {
                connections: self.clone(),
                id,
            };
            let service = TowerToHyperService::new(router.clone());
            let handled = Handled::new(service, Arc::clone(&line), peer, has_place);
            let ending = ending.clone();
            tokio::spawn(async move {
                if has_place {
                    serve(stream, handled, &line, ending).await;
                } else {
                    let moment = serve(stream, handled, &line, ending);
                    let _ = tokio::time::timeout(MOMENT, moment).await;
                }
                drop(open);
            });
        }
    }

    /// Waits until all have ended.
    pub(super) async fn until_closed(&self) {
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open == 0).await;
    }
}

/// Serves a connection. What goes wrong with it is its client's matter.
async fn serve(
    stream: TcpStream,
    handled: Handled,
    line: &Line,
    mut ending: watch::Receiver<bool>,
) {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let [silent, often] = SILENT;
    let alive = TcpKeepalive::new().with_time(silent).with_interval(often);
    let _ = socket.set_tcp_keepalive(&alive);
    let _ = socket.set_send_buffer_size(UNREAD);
    let stream = Arc::new(stream);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    builder.max_buf_size(MOST_HEAD);
    builder.keep_alive(handled.has_place());
    let patient = TokioIo::new(Patient::new(Arc::clone(&stream)));
    let connection = builder.serve_connection(patient, handled);
    let mut connection = std::pin::pin!(connection);
    let mut over = std::pin::pin!(line.over(&stream));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Peer {
        Peer::Address([10, 0, 0, last].into())
    }

    fn busy() -> Arc<Line> {
        let line = Arc::new(Line::new());
        line.answers();
        line
    }

    #[test]
    fn an_address_has_half_of_the_places_and_one_that_waits_gives_its_place_away() {
        let mut taken = Taken::default();
        let waiting = Arc::new(Line::new());
        assert!(taken.take(address(1), &waiting).1);
        for _ in 1..MOST_OF_PEER {
            assert!(taken.take(address(1), &busy()).1);
        }
        assert!(
            taken.take(address(1), &busy()).1,
            "in place of the one that waits"
        );
        assert!(!taken.take(address(1), &busy()).1);
        assert_eq!(taken.places.len(), MOST_OF_PEER);
        let (id, has_place) = taken.take(address(2), &busy());
        assert!(has_place);
        taken.give_back(id);
        for _ in 0..MOST - MOST_OF_PEER {
            assert!(taken.take(address(2), &busy()).1);
        }
        assert!(!taken.take(address(3), &busy()).1);
        // Moments are given to those that come last.
        for _ in 0..SPARE {
            taken.take(address(3), &busy());
        }
        assert_eq!(taken.spare.len(), SPARE);
        let mut behind_proxy = Taken::default();
        for _ in 0..MOST {
            assert!(behind_proxy.take(Peer::Anybody, &busy()).1);
        }
        assert!(!behind_proxy.take(Peer::Anybody, &busy()).1);
    }
}
