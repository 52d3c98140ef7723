//! The choice of who is next. Places, tokens of prompts and pages are shared among peers, and the share of a peer among its orders.

use std::collections::{HashMap, HashSet};

/// The fewest tokens of a prompt that are worth a piece of their own.
const PIECE: usize = 8;
/// The factor by which a prompt must be longer than a short one not to keep it waiting.
pub(super) const MUCH_MORE: usize = 4;
/// The most peers that are remembered.
const MOST_PEERS: usize = 4096;

/// The peer and the order that a request belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The peer who asks. All peers get the same share.
    pub peer: u64,
    /// The order: it may ask for several answers, each of which is a request of its own.
    pub order: u64,
}

/// The numbers of requests that are answered, of each peer and of each order.
#[derive(Debug, Default)]
pub(super) struct Held {
    peers: HashMap<u64, usize>,
    orders: HashMap<Owner, usize>,
}

impl Held {
    pub(super) fn new(owners: impl Iterator<Item = Owner>) -> Self {
        let mut held = Self::default();
        for owner in owners {
            *held.peers.entry(owner.peer).or_default() += 1;
            *held.orders.entry(owner).or_default() += 1;
        }
        held
    }

    pub(super) fn of(&self, owner: Owner) -> Standing {
        let peer = self.peers.get(&owner.peer).copied();
        let order = self.orders.get(&owner).copied();
        Standing {
            owner,
            has: (peer.unwrap_or(0), order.unwrap_or(0)),
        }
    }

    /// The waiting requests, in the order in which they begin. The peer with the fewest running requests is first. Among equal
    /// ones it is the peer whose turn was longest ago. A peer's own requests stand in the order in which they came.
    pub(super) fn sorted(
        &self,
        waiting: impl Iterator<Item = Owner>,
        rounds: &Rounds,
    ) -> Vec<(usize, Standing)> {
        let mut all: Vec<_> = waiting.map(|owner| self.of(owner)).enumerate().collect();
        all.sort_by_key(|(index, standing)| {
            let (of_peer, of_order) = standing.has;
            (of_peer, rounds.of(standing.owner), of_order, *index)
        });
        all
    }
}

/// The times at which requests of each peer were taken up last.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    taken: u64,
    last: HashMap<u64, u64>,
}

impl Rounds {
    /// A request has come. A peer that is new stands behind those who have waited for longer, or peers who always come anew could keep
    /// the others waiting.
    pub(super) fn came(&mut self, owner: Owner) {
        self.forget_many();
        self.last.entry(owner.peer).or_insert(self.taken);
    }

    /// A request was taken up.
    pub(super) fn took(&mut self, owner: Owner) {
        self.forget_many();
        self.taken += 1;
        self.last.insert(owner.peer, self.taken);
    }

    /// Forgets the half of the peers whose turn was longest ago, where they are too many. These count as first from then on.
    fn forget_many(&mut self) {
        if self.last.len() >= MOST_PEERS {
            let mut all: Vec<u64> = self.last.values().copied().collect();
            let (_, median, _) = all.select_nth_unstable(MOST_PEERS / 2);
            let median = *median;
            self.last.retain(|_, last| *last > median);
        }
    }

    fn of(&self, owner: Owner) -> u64 {
        self.last.get(&owner.peer).copied().unwrap_or(0)
    }
}

/// The owner of a request, and how many requests of that owner are answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) owner: Owner,
    /// Requests of the peer that are answered, and those of the order.
    pub(super) has: (usize, usize),
}

impl Standing {
    /// Whether one of its requests should make room for one of `wanting`: afterwards, neither its peer nor its order has fewer than the
    /// other.
    pub(super) fn gives_way(&self, wanting: &Self) -> bool {
        match self.owner.peer == wanting.owner.peer {
            true => self.owner.order != wanting.owner.order && self.has.1 > wanting.has.1 + 1,
            false => self.has.0 > wanting.has.0 + 1,
        }
    }
}

/// Divides `room` tokens among prompts, and returns the share of each. A prompt is given as its owner and the tokens that it has left; the
/// oldest stands first. Peers get equal shares, or less where they have fewer tokens left. `turn` counts the steps.
pub(super) fn shares(room: usize, prompts: &[(Owner, usize)], turn: usize) -> Vec<usize> {
    let mut peers: Vec<(u64, Vec<usize>)> = vec![];
    for (index, (owner, _)) in prompts.iter().enumerate() {
        match peers.iter_mut().find(|(peer, _)| *peer == owner.peer) {
            Some((_, own)) => own.push(index),
            None => peers.push((owner.peer, vec![index])),
        }
    }
    // Where pieces would be too small, not all have one in each step.
    let (all, most) = (peers.len(), (room / PIECE).max(1));
    let before = match all > most {
        true => turn.wrapping_mul(most),
        false => turn.wrapping_mul(all),
    };
    peers.rotate_left(before.checked_rem(all).unwrap_or(0));
    peers.truncate(most);
    // Each peer counts the pieces that it had. If all counted the steps, a peer that has a piece in every second step would always be given
    // the same half of its share.
    let pieces = (before..).map(|place| place / all.max(1));
    let mut peers: Vec<_> = peers.into_iter().zip(pieces).collect();
    // Whoever needs least is served first, and leaves the rest of its share to the others.
    let need = |own: &[usize]| own.iter().map(|&index| prompts[index].1).sum::<usize>();
    peers.sort_by_key(|((_, own), _)| need(own));
    let mut given = vec![0; prompts.len()];
    let (mut left, mut others) = (room, peers.len());
    for ((_, own), piece) in &peers {
        let share = (left / others.max(1)).min(need(own));
        among_own(share, own, prompts, *piece, &mut given);
        left -= share;
        others -= 1;
    }
    given
}

/// Divides the share of a peer. One half is for the prompts of the order that has the fewest tokens left, so that a short one does not wait
/// for long ones or for many. The other is for the oldest ones, so that all come to their end. Where the halves would be too small, pieces
/// of the peer go to either in turn.
fn among_own(
    share: usize,
    own: &[usize],
    prompts: &[(Owner, usize)],
    piece: usize,
    given: &mut [usize],
) {
    let mut orders = HashMap::new();
    for (owner, left) in own.iter().map(|&index| prompts[index]) {
        *orders.entry(owner.order).or_insert(0) += left;
    }
    let mut shortest = own.to_vec();
    shortest.sort_by_key(|&index| (orders.get(&prompts[index].0.order), index));
    let half = match share < 2 * PIECE {
        true if piece.is_multiple_of(2) => share,
        true => 0,
        false => share / 2,
    };
    let mut left = share;
    let mut fill = |order: &[usize], most: usize| {
        let mut most = most.min(left);
        for &index in order {
            let more = most.min(prompts[index].1 - given[index]);
            given[index] += more;
            most -= more;
            left -= more;
        }
    };
    fill(&shortest, half);
    fill(own, share);
}

/// Which of those that run gives its pages back, if there are none left: the youngest of the peer that holds most of them. They are given
/// with their owners and pages, the oldest first. A page that several of a peer share counts once.
pub(super) fn gives_pages<'p>(running: impl Iterator<Item = (Owner, &'p [u32])>) -> Option<usize> {
    let mut peers: HashMap<u64, (HashSet<u32>, usize)> = HashMap::new();
    for (index, (owner, pages)) in running.enumerate() {
        let (held, youngest) = peers.entry(owner.peer).or_default();
        held.extend(pages);
        *youngest = index;
    }
    let most = peers.into_values();
    let most = most.max_by_key(|(held, youngest)| (held.len(), *youngest));
    most.map(|(_, youngest)| youngest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(peer: u64, order: u64) -> Owner {
        Owner { peer, order }
    }

    #[test]
    fn whoever_has_least_is_next() {
        let running = [owner(1, 1), owner(1, 1), owner(1, 2), owner(2, 3)];
        let held = Held::new(running.into_iter());
        let waiting = [owner(1, 1), owner(1, 4), owner(2, 5), owner(3, 6)];
        let mut rounds = Rounds::default();
        let sorted = |held: &Held, rounds: &Rounds| -> Vec<usize> {
            let sorted = held.sorted(waiting.into_iter(), rounds).into_iter();
            sorted.map(|(index, _)| index).collect()
        };
        assert_eq!(sorted(&held, &rounds), [3, 2, 1, 0]);
        assert_eq!(sorted(&Held::default(), &rounds), [0, 1, 2, 3]);
        rounds.took(owner(2, 5));
        rounds.took(owner(1, 1));
        assert_eq!(sorted(&Held::default(), &rounds), [3, 2, 0, 1], "in rounds");
    }

    #[test]
    fn one_gives_way_only_if_it_then_has_no_less() {
        let running = [owner(1, 1), owner(1, 1), owner(1, 2), owner(2, 3)];
        let held = Held::new(running.into_iter());
        let gives_way = |holder, wanting| held.of(holder).gives_way(&held.of(wanting));
        assert!(gives_way(owner(1, 1), owner(3, 9)), "3 to 0");
        assert!(gives_way(owner(1, 1), owner(2, 9)), "3 to 1");
        assert!(!gives_way(owner(2, 3), owner(3, 9)), "1 to 0");
        assert!(gives_way(owner(1, 1), owner(1, 9)), "2 to 0 of a peer");
        assert!(!gives_way(owner(1, 2), owner(1, 9)), "1 to 0 of a peer");
        assert!(!gives_way(owner(1, 1), owner(1, 1)), "its own");
    }

    #[test]
    fn peers_get_the_same_as_far_as_they_need_it() {
        let prompts = [(owner(1, 1), 8000), (owner(2, 2), 100), (owner(3, 3), 8000)];
        assert_eq!(shares(512, &prompts, 0), [206, 100, 206]);
        assert_eq!(shares(512, &prompts[..1], 0), [512], "alone it takes all");
        assert_eq!(shares(0, &prompts, 0), [0, 0, 0]);
        assert!(shares(512, &[], 3).is_empty());
    }

    #[test]
    fn a_short_prompt_does_not_wait_for_long_ones_which_go_on() {
        let long = |order| (owner(1, order), 700);
        let mut prompts: Vec<_> = (0..12).map(long).collect();
        prompts.push((owner(1, 99), 6));
        let found = shares(32, &prompts, 0);
        assert_eq!((found[12], found[0]), (6, 26));
        // Many short ones of one order are as a long one.
        let mut prompts = vec![(owner(1, 1), 30); 20];
        prompts.push((owner(1, 2), 50));
        assert_eq!(shares(64, &prompts, 0)[20], 32);
        // The oldest gets half, also where shorter ones never end.
        let prompts = [(owner(1, 1), 700), (owner(1, 2), 300), (owner(1, 3), 40)];
        assert_eq!(shares(64, &prompts, 0), [32, 0, 32]);
        let mut oldest = 0;
        for turn in 0..10 {
            oldest += shares(8, &prompts, turn)[0];
        }
        assert_eq!(oldest, 40, "every second step");
    }

    #[test]
    fn all_have_their_turn_where_there_are_more_than_pieces() {
        let prompts: Vec<_> = (0..9).map(|peer| (owner(peer, peer), 500)).collect();
        let mut sums = [0; 9];
        for turn in 0..9 {
            for (sum, more) in sums.iter_mut().zip(shares(16, &prompts, turn)) {
                *sum += more;
            }
        }
        assert_eq!(sums, [16; 9]);
    }
    #[test]
    fn peers_that_always_come_anew_keep_nobody_waiting() {
        let mut rounds = Rounds::default();
        rounds.came(owner(1, 1));
        rounds.took(owner(1, 1));
        rounds.came(owner(1, 2));
        let held = Held::default();
        let mut waiting = vec![owner(1, 2)];
        for stranger in 2..9 {
            rounds.came(owner(stranger, stranger));
            waiting.push(owner(stranger, stranger));
            let (next, standing) = held.sorted(waiting.iter().copied(), &rounds)[0];
            rounds.took(standing.owner);
            waiting.remove(next);
            if standing.owner.peer == 1 {
                return;
            }
        }
        panic!("{waiting:?} are behind all who came later");
    }

    #[test]
    fn peers_whose_turn_was_long_ago_are_forgotten_first() {
        let mut rounds = Rounds::default();
        for peer in 0..2 * MOST_PEERS as u64 {
            rounds.took(owner(peer, 0));
        }
        assert!(rounds.last.len() <= MOST_PEERS);
        let last = 2 * MOST_PEERS as u64 - 1;
        assert!(rounds.of(owner(last, 0)) > rounds.of(owner(0, 0)));
        // Whoever only waits may be all of them.
        let mut rounds = Rounds::default();
        (0..2 * MOST_PEERS as u64).for_each(|peer| rounds.came(owner(peer, 0)));
        assert!(rounds.last.len() <= MOST_PEERS);
    }

    #[test]
    fn the_halves_of_small_shares_change_for_each_peer() {
        let own = |peer: u64| [(owner(peer, peer), 500), (owner(peer, peer + 10), 300)];
        for peers in 1..7 {
            let prompts: Vec<_> = (1..=peers).flat_map(own).collect();
            for room in [8, 15, 16, 24, 31] {
                let mut sums = vec![0; prompts.len()];
                for turn in 0..4 * peers as usize {
                    for (sum, more) in sums.iter_mut().zip(shares(room, &prompts, turn)) {
                        *sum += more;
                    }
                }
                let least = sums.iter().min().copied();
                let most = sums.iter().max().copied();
                assert!(
                    least > Some(0) && most <= least.map(|least| least + least / 2 + 8),
                    "{peers} peers, {room} tokens: {sums:?}"
                );
            }
        }
    }

    #[test]
    fn the_peer_with_most_pages_gives_back_those_of_its_youngest() {
        let find = |running: &[(u64, &[u32])]| {
            let running = running.iter();
            gives_pages(running.map(|(peer, pages)| (owner(*peer, 0), *pages)))
        };
        assert_eq!(find(&[]), None);
        let of_greedy: [(u64, &[u32]); 2] = [(1, &[0, 1, 2]), (1, &[3, 4])];
        let [first, second] = of_greedy;
        assert_eq!(find(&[first, second, (2, &[5])]), Some(1));
        assert_eq!(find(&[first, (2, &[5]), second, (3, &[6, 7])]), Some(2));
        assert_eq!(
            find(&[(1, &[0]), (2, &[1])]),
            Some(1),
            "the youngest of equal ones"
        );
        // Pages that its own share are held once.
        let shared: [(u64, &[u32]); 3] = [(1, &[0, 1]), (1, &[0, 1]), (2, &[2, 3, 4])];
        assert_eq!(find(&shared), Some(2));
    }
}
