//! The connections that are open, and which of them has to give its place to a new one.
//!
//! One address has no more than half of all places. Where places are short, a connection whose client lets it wait gives its place away:
//! the one that waits for a request first, then for the end of a head, for the end of a body, and for a client that does not read its
//! answer. Of several it is the one that has waited longest. A connection that makes progress keeps its place.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::line::{Line, Missing};
use super::peer::Peer;

/// The most connections at the same time, well below what systems let a process open.
const MOST: usize = 768;
/// The most connections of one peer at the same time. A key is not known yet, so a peer is an address here.
const MOST_OF_PEER: usize = 384;
/// The most connections beside these, which wait for a place.
const SPARE: usize = 64;
/// How long a request waits for a place, and how often it looks for one.
const PATIENCE: [Duration; 2] = [Duration::from_millis(1900), Duration::from_millis(50)];

/// How long a connection is waited for before another may have its place.
fn grace(missing: Missing) -> Duration {
    match missing {
        // A request follows a new connection at once, and nothing is lost between requests.
        Missing::Request => Duration::from_millis(250),
        Missing::Head | Missing::Body | Missing::Reader => Duration::from_secs(1),
    }
}

#[derive(Default)]
struct Taken {
    /// Connections with a place, with the peer of each.
    places: HashMap<u64, (Peer, Arc<Line>)>,
    /// The connections without a place, the oldest first.
    spare: VecDeque<(u64, Arc<Line>)>,
    next: u64,
}

impl Taken {
    /// Ends the connection that makes no progress and is worth least, of those that `may` agrees to. Returns whether there was one.
    fn end_still(&mut self, may: impl Fn(Peer) -> bool) -> bool {
        let still = self.places.iter().filter(|(_, (peer, _))| may(*peer));
        let still = still.filter_map(|(id, (_, line))| {
            let (missing, time) = line.missing()?;
            (time >= grace(missing)).then_some((missing, Reverse(time), *id))
        });
        let Some((.., id)) = still.min() else {
            return false;
        };
        if let Some((_, line)) = self.places.remove(&id) {
            line.end();
        }
        true
    }

    /// Takes a place for a connection, if there is one.
    fn take_place(&mut self, id: u64, peer: Peer, line: &Arc<Line>) -> bool {
        let of_peer = |(known, _): &&(Peer, Arc<Line>)| *known == peer;
        let own = self.places.values().filter(of_peer).count();
        let has_place = match peer {
            Peer::Address(_) if own >= MOST_OF_PEER => self.end_still(|known| known == peer),
            _ if self.places.len() >= MOST => self.end_still(|_| true),
            _ => true,
        };
        if has_place {
            self.places.insert(id, (peer, Arc::clone(line)));
        }
        has_place
    }

    /// Takes a new connection. Returned is its number, and whether it has a place.
    fn take(&mut self, peer: Peer, line: &Arc<Line>) -> (u64, bool) {
        self.next += 1;
        let id = self.next;
        if self.take_place(id, peer, line) {
            return (id, true);
        }
        if self.spare.len() >= SPARE {
            // Who has sent a request and waits for a place stays longer than who has not.
            let mut lines = self.spare.iter();
            let silent = lines.position(|(_, line)| line.missing().is_some());
            if let Some((_, line)) = self.spare.remove(silent.unwrap_or(0)) {
                line.end();
            }
        }
        self.spare.push_back((id, Arc::clone(line)));
        (id, false)
    }

    /// Gives a place to a connection that has none, if there is one.
    fn promote(&mut self, id: u64, peer: Peer, line: &Arc<Line>) -> bool {
        let place = self.spare.iter().position(|(known, _)| *known == id);
        let Some(place) = place.filter(|_| self.take_place(id, peer, line)) else {
            return false;
        };
        self.spare.remove(place);
        true
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
pub(super) struct Open {
    connections: Connections,
    id: u64,
    pub(super) peer: Peer,
    pub(super) line: Arc<Line>,
    has_place: AtomicBool,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.taken().give_back(self.id);
        self.connections.open.send_modify(|open| *open -= 1);
    }
}

impl Open {
    pub(super) fn has_place(&self) -> bool {
        self.has_place.load(Ordering::Relaxed)
    }

    /// Waits for a place, for a while. Returns whether it has one.
    pub(super) async fn place(&self) -> bool {
        let [patience, often] = PATIENCE;
        let until = Instant::now() + patience;
        while !self.has_place() {
            if self.promote() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(often).await;
        }
        true
    }

    /// Takes a place, if there is one now.
    fn promote(&self) -> bool {
        let mut taken = self.connections.taken();
        let has_place = taken.promote(self.id, self.peer, &self.line);
        self.has_place.store(has_place, Ordering::Relaxed);
        has_place
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

    /// A new connection of a peer.
    pub(super) fn open(&self, peer: Peer) -> Open {
        let line = Arc::new(Line::new());
        let (id, has_place) = self.taken().take(peer, &line);
        self.open.send_modify(|open| *open += 1);
        Open {
            connections: self.clone(),
            id,
            peer,
            line,
            has_place: AtomicBool::new(has_place),
        }
    }

    /// Ends one that makes no progress, since the system gives no more.
    pub(super) fn end_still(&self) {
        self.taken().end_still(|_| true);
    }

    /// Waits until all have ended.
    pub(super) async fn until_closed(&self) {
        let mut open = self.open.subscribe();
        let _ = open.wait_for(|open| *open == 0).await;
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
    fn an_address_has_half_of_the_places_and_moments_are_given_to_those_that_come_last() {
        let mut taken = Taken::default();
        for _ in 0..MOST_OF_PEER {
            assert!(taken.take(address(1), &busy()).1);
        }
        assert!(!taken.take(address(1), &busy()).1);
        assert_eq!(taken.places.len(), MOST_OF_PEER);
        let (id, has_place) = taken.take(address(2), &busy());
        assert!(has_place);
        taken.give_back(id);
        for _ in 0..MOST - MOST_OF_PEER {
            assert!(taken.take(address(2), &busy()).1);
        }
        let (waits, has_place) = taken.take(address(3), &busy());
        assert!(!has_place);
        for _ in 0..SPARE {
            taken.take(address(3), &Arc::new(Line::new()));
        }
        assert_eq!(taken.spare.len(), SPARE);
        let is_there = |(id, _): &(u64, _)| *id == waits;
        assert!(taken.spare.iter().any(is_there), "it has sent its request");
        let mut behind_proxy = Taken::default();
        for _ in 0..MOST {
            assert!(behind_proxy.take(Peer::Anybody, &busy()).1);
        }
        assert!(!behind_proxy.take(Peer::Anybody, &busy()).1);
    }

    #[test]
    fn who_is_waited_for_longest_gives_its_place_to_others_of_its_address_and_idle_ones_go_first() {
        let mut taken = Taken::default();
        for _ in 4..MOST_OF_PEER {
            assert!(taken.take(address(1), &busy()).1);
        }
        let lines: Vec<_> = (0..4).map(|_| busy()).collect();
        let ids: Vec<_> = lines
            .iter()
            .map(|line| taken.take(address(1), line).0)
            .collect();
        let [unread, body, head, idle] = lines.as_slice() else {
            panic!("there are four");
        };
        unread.is_unread();
        body.wants_body(true);
        head.waits();
        head.has_sent(1);
        idle.waits();
        assert!(
            !taken.take(address(1), &busy()).1,
            "none has waited for long"
        );
        std::thread::sleep(Duration::from_millis(1050));
        let foreign = busy();
        assert!(taken.take(address(2), &foreign).1);
        foreign.is_unread();
        for expected in ids.iter().rev() {
            assert!(taken.take(address(1), &busy()).1);
            assert!(!taken.places.contains_key(expected), "{ids:?} {expected}");
        }
        assert_eq!(taken.places.len(), MOST_OF_PEER + 1);
        assert!(!taken.take(address(1), &busy()).1, "the others are busy");
        // A connection that waits has a place as soon as there is one.
        let line = busy();
        let (waits, _) = taken.take(address(1), &line);
        assert!(!taken.promote(waits, address(1), &line));
        let other = taken.places.keys().next().copied();
        taken.give_back(other.expect("there are some"));
        assert!(taken.promote(waits, address(1), &line));
        assert!(taken.spare.iter().all(|(id, _)| *id != waits));
    }
}
