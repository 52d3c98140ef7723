//! Which requests are answered, and which have to wait.

use web_time::Instant;

use super::Many;
use super::sequence::{Answer, Sequence};
use crate::engine::scheduler::fair::{Held, MUCH_MORE, Owner, Standing, gives_pages};
use crate::engine::scheduler::pages::{ROWS, Table, common};
use crate::engine::scheduler::request::{Event, Told};

/// Rows that are worth copying from a page of others: a few more tokens cost a step less than that.
const WORTH_COPYING: usize = 8;
/// The fewest rows worth copying if steps are slow.
const WORTH_COPYING_OF_SLOW: usize = 1;

impl Many {
    /// Takes up requests while there is room, first of those who have least. Others are in the order in which they came.
    pub(super) fn admit(&mut self, told: &mut Told<'_>) {
        while !self.waiting.is_empty() {
            let held = Held::new(self.running.iter().map(|sequence| sequence.answer.owner));
            let owners = self.waiting.iter().map(|answer| answer.owner);
            let sorted = held.sorted(owners, &self.rounds).into_iter();
            let next = match self.seats.is_empty() {
                true => self.make_way(sorted, &held),
                false => sorted
                    .map(|(next, _)| next)
                    .find(|next| !self.is_being_computed(&self.waiting[*next].tokens)),
            };
            let Some(next) = next else {
                return;
            };
            let tokens = &self.waiting[next].tokens;
            let mut table = self.pages.adopt(tokens);
            let whole = table.pages.len();
            let missing = tokens.len().div_ceil(ROWS) - whole;
            let near = self.near(tokens, &table);
            // Each that runs will need a page soon; taking somebody back for it would be a waste.
            let kept = self.running.len();
            let has_room = missing + kept <= self.pages.available();
            if !has_room || !self.pages.grow(&mut table, tokens.len()) {
                self.pages.release(table.pages);
                return;
            }
            let mut cached = whole * ROWS;
            if let Some((page, rows)) = near {
                let own = table.pages[whole];
                self.batch.copy_rows(page, own, rows as u32);
                cached += rows;
            }
            if let Some(answer) = self.waiting.remove(next) {
                self.take_up(answer, table, cached, told);
            }
        }
    }

    /// Takes a sequence back, where all places are taken, if somebody who waits should have its place. Returned is who that is.
    fn make_way(
        &mut self,
        mut waiting: impl Iterator<Item = (usize, Standing)>,
        held: &Held,
    ) -> Option<usize> {
        let running = self.running.iter();
        let running: Vec<_> = running.map(|s| held.of(s.answer.owner)).collect();
        let (id, victim) = waiting.find_map(|(next, standing)| {
            let wanting = &self.waiting[next];
            let victim = self.gives_way(&running, wanting, &standing)?;
            let is_ready = !self.is_being_computed(&wanting.tokens);
            is_ready.then_some((wanting.id, victim))
        })?;
        let answer = self.remove(victim);
        self.wait_again(answer);
        self.waiting.iter().position(|answer| answer.id == id)
    }

    /// The running sequence that gives its place to one that waits, if one should: the youngest of those who have more than their share, or
    /// the one that has much more of its prompt to compute. The oldest of a peer stays, so that all come to their end.
    fn gives_way(
        &self,
        running: &[Standing],
        wanting: &Answer,
        standing: &Standing,
    ) -> Option<usize> {
        let all = || self.running.iter().zip(running).enumerate();
        let more = all().filter(|(_, (_, holder))| holder.gives_way(standing));
        let most = more.max_by_key(|(index, (_, holder))| (holder.has, *index));
        if let Some((index, _)) = most {
            return Some(index);
        }
        let Owner { peer, order } = wanting.owner;
        let own = all().filter(|(_, (_, holder))| holder.owner.peer == peer);
        let others = own.skip(1).filter(|(_, (sequence, holder))| {
            holder.owner.order != order && sequence.answer.first.is_none()
        });
        let longest = others.max_by_key(|(_, (sequence, _))| sequence.left());
        let (index, (sequence, _)) = longest?;
        (sequence.left() >= MUCH_MORE * wanting.tokens.len()).then_some(index)
    }

    /// A page of others that begins as the next page of `table` will, and how many rows these are: a sequence's, or one that is known.
    fn near(&self, tokens: &[u32], table: &Table) -> Option<(u32, usize)> {
        let (whole, last) = (table.pages.len(), tokens.len() - 1);
        let begin = whole * ROWS;
        let of_sequence = |sequence: &Sequence| {
            let same = common(&sequence.answer.tokens, &tokens[..last]);
            let rows = same.min(sequence.landed).saturating_sub(begin);
            let page = sequence.table.pages.get(whole)?;
            Some((*page, rows.min(ROWS)))
        };
        let near = self.running.iter().filter_map(of_sequence);
        let near = near.chain(
            self.pages
                .near(table.pages.last().copied(), &tokens[begin..last]),
        );
        let near = near.max_by_key(|(_, rows)| *rows);
        let least = match self.is_slow() {
            true => WORTH_COPYING_OF_SLOW,
            false => WORTH_COPYING,
        };
        near.filter(|(_, rows)| *rows >= least)
    }

    /// Whether a sequence computes more of the beginning of `tokens` than is known. It is worth waiting for.
    fn is_being_computed(&self, tokens: &[u32]) -> bool {
        let most = tokens.len() - 1;
        let rows =
            |sequence: &Sequence| common(&sequence.answer.tokens, &tokens[..most]) / ROWS * ROWS;
        let computed = |sequence: &&Sequence| rows(sequence) > sequence.landed;
        let longest = self.running.iter().filter(computed).map(rows).max();
        longest.is_some_and(|rows| rows > self.pages.known(tokens) * ROWS)
    }

    /// Begins with a request, or goes on with one that was taken back.
    fn take_up(&mut self, mut answer: Answer, table: Table, cached: usize, told: &mut Told<'_>) {
        if answer.begun.is_none() {
            answer.begun = Some(Instant::now());
            // It keeps the number where it is taken up again with another seat.
            let seat = self.seats.last().copied().unwrap_or_default();
            let slot = *answer.slot.get_or_insert(seat as usize);
            (answer.cached, answer.told) = (cached, cached);
            self.prefix_asked += answer.prompt as u64;
            self.prefix_found += cached as u64;
            let done = cached;
            if told(answer.id, Event::Prompt { done, cached, slot }).is_break() {
                return self.pages.release(table.pages);
            }
            if answer.limit == 0 {
                self.pages.release(table.pages);
                let _ = told(answer.id, Event::Ended(answer.stats(answer.at_limit)));
                return;
            }
        }
        let Some(seat) = self.seats.pop() else {
            // Nobody is taken up without one.
            self.pages.release(table.pages);
            return self.wait_again(answer);
        };
        if answer.drafter.is_none() {
            answer.drafter = self.drafter(&answer.drafts);
            if let Some(drafter) = &mut answer.drafter {
                drafter.expect(&answer.tokens[..answer.prompt], &answer.expected);
            }
        }
        self.batch.write_ids(seat, 0, &answer.tokens);
        self.batch.write_pages(seat, 0, &table.pages);
        self.runs += 1;
        self.rounds.took(answer.owner);
        let after = |sequence: &Sequence| sequence.answer.id > answer.id;
        let place = self.running.iter().position(after);
        let place = place.unwrap_or(self.running.len());
        self.running.insert(
            place,
            Sequence {
                answer,
                run: self.runs,
                seat,
                table,
                submitted: cached,
                landed: cached,
                drawn: 0,
                drafts: 0,
                predicted: cached,
                verified: None,
                held: None,
            },
        );
    }

    /// Has an answer wait, before those that came later.
    fn wait_again(&mut self, answer: Answer) {
        let after = |waiting: &Answer| waiting.id > answer.id;
        let place = self.waiting.iter().position(after);
        self.waiting
            .insert(place.unwrap_or(self.waiting.len()), answer);
    }

    /// Gives a sequence pages for `rows` rows, where none of the next step is planned yet. If there are none, a sequence of the peer that
    /// holds most is taken back, which may be the one itself. Whether it has them now; otherwise it may have them when a step has landed.
    pub(super) fn make_room(&mut self, run: u64, rows: usize) -> bool {
        while let Some(index) = self.find(run) {
            let sequence = &mut self.running[index];
            let before = sequence.table.pages.len();
            if self.pages.grow(&mut sequence.table, rows) {
                let new = &sequence.table.pages[before..];
                self.batch.write_pages(sequence.seat, before, new);
                return true;
            }
            if !self.leaving.is_empty() {
                return false;
            }
            let running = self.running.iter();
            let running = running.map(|s| (s.answer.owner, &s.table.pages[..]));
            let answer = self.remove(gives_pages(running).unwrap_or(index));
            self.wait_again(answer);
        }
        false
    }
}
