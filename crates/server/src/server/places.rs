//! The places of a server. Each request has one from when it is handed in until its last answer has ended. Where places are scarce, they
//! are shared among peers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::peer::Peer;

/// The share of the time between two places that become free that a further one replaces.
const NEWS: f64 = 0.25;
/// Whoever is refused is never told to wait for longer than this.
const LONGEST: Duration = Duration::from_secs(300);

/// The places of a server.
pub(super) struct Places {
    /// The most places of one peer. All together have up to twice as many.
    capacity: usize,
    state: Mutex<State>,
    /// The number of places that are taken.
    taken: watch::Sender<usize>,
}

struct State {
    held: HashMap<Peer, usize>,
    total: usize,
    /// Seconds between two places that became free, while some were taken.
    between: Option<f64>,
    /// When a place became free last, or was taken when all were free.
    since: Instant,
}

impl State {
    /// Whether one more of `peer` has a place. If all are taken, this is so only for a peer that has less than its share.
    fn has_place(&self, peer: Peer, capacity: usize) -> bool {
        if self.total < capacity {
            return true;
        }
        let own = self.held.get(&peer).copied().unwrap_or(0);
        let peers = self.held.len() + usize::from(own == 0);
        let share = (capacity / peers).max(1);
        own < share && self.total < 2 * capacity
    }
}

/// A place, which is free again when this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    peer: Peer,
}

impl Places {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::new(State {
                held: HashMap::new(),
                total: 0,
                between: None,
                since: Instant::now(),
            }),
            taken: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most places of one peer.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether one more request of `peer` finds a place now.
    pub(super) fn has_place(&self, peer: Peer) -> bool {
        self.state().has_place(peer, self.capacity)
    }

    /// A place for a request of `peer`, if there is one.
    pub(super) fn take(self: &Arc<Self>, peer: Peer) -> Option<Place> {
        let mut state = self.state();
        if !state.has_place(peer, self.capacity) {
            return None;
        }
        if state.total == 0 {
            state.since = Instant::now();
        }
        state.total += 1;
        *state.held.entry(peer).or_default() += 1;
        self.taken.send_replace(state.total);
        let places = Arc::clone(self);
        Some(Place { places, peer })
    }

    /// The time after which a place is likely to be free: as long as it took between the last ones, or longer if none has come for longer.
    pub(super) fn retry_after(&self) -> Duration {
        let state = self.state();
        let between = Duration::try_from_secs_f64(state.between.unwrap_or(0.0));
        let waited = state.since.elapsed();
        between.unwrap_or(LONGEST).max(waited).min(LONGEST)
    }

    /// Waits until all are free.
    pub(super) async fn until_empty(&self) {
        let mut taken = self.taken.subscribe();
        let _ = taken.wait_for(|taken| *taken == 0).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        state.total -= 1;
        if let Some(own) = state.held.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                state.held.remove(&self.peer);
            }
        }
        let now = Instant::now();
        let seconds = (now - state.since).as_secs_f64();
        let before = state.between.unwrap_or(seconds);
        state.between = Some(before + NEWS * (seconds - before));
        state.since = now;
        self.places.taken.send_replace(state.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::Address([10, 0, 0, last].into())
    }

    #[test]
    fn a_peer_has_as_many_places_as_there_are_and_others_still_have_their_share() {
        let places = Arc::new(Places::new(4));
        let mut taken: Vec<_> = (0..4).map(|_| places.take(peer(1))).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(places.take(peer(1)).is_none() && !places.has_place(peer(1)));
        // Half of four for each of two, a third for each of three.
        taken.extend((0..2).map(|_| places.take(peer(2))));
        assert!(taken.iter().all(Option::is_some));
        assert!(places.take(peer(2)).is_none());
        taken.push(places.take(peer(3)));
        assert!(taken[6].is_some() && places.take(peer(3)).is_none());
        // Twice as many is the end for everybody.
        taken.push(places.take(peer(4)));
        assert!(taken[7].is_some() && places.take(peer(5)).is_none());
        taken.truncate(3);
        assert!(places.take(peer(1)).is_some());
        drop(taken);
        assert_eq!(places.state().total, 0);
        assert!(places.state().held.is_empty());
    }

    #[test]
    fn whoever_is_refused_is_told_how_long_places_take() {
        let places = Arc::new(Places::new(1));
        let place = places.take(peer(1));
        places.state().since -= Duration::from_secs(8);
        assert_eq!(places.retry_after().as_secs(), 8, "none has come yet");
        drop(place);
        let place = places.take(peer(1));
        assert_eq!(places.retry_after().as_secs(), 8, "as long as the last");
        places.state().since -= Duration::from_secs(4);
        drop(place);
        assert_eq!(places.retry_after().as_secs(), 7);
        let place = places.take(peer(1));
        places.state().since -= Duration::from_secs(1000);
        assert_eq!(places.retry_after(), LONGEST);
        drop(place);
    }
}
