//! Which pages of the cache belong to which sequence, and which rows are kept for later ones.
//!
//! A page that is full is known by its tokens and by the page before it, which is known as well. So two sequences find the same page only
//! if all their tokens up to its end are equal: the table of known pages compares them. What nobody holds stays known until memory is
//! needed. Then the page goes that was used longest ago, and never one that a known page follows.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::kernels::sequences::PAGE;

/// Rows of a page.
pub(super) const ROWS: usize = PAGE as usize;

/// The key that tells a known page from all others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// The page before it. It stays known for as long as this one.
    parent: Option<u32>,
    tokens: Arc<[u32]>,
}

#[derive(Debug)]
struct Known {
    key: Key,
    /// Known pages that follow it.
    children: u32,
    /// When it was let go last.
    used: u64,
}

#[derive(Debug, Default)]
struct Page {
    /// Tables that hold it.
    holders: u32,
    known: Option<Known>,
}

/// The pages of a sequence, in the order of its positions.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) pages: Vec<u32>,
    /// The number of pages at the beginning that are known.
    known: usize,
    /// The epoch in which the table was made. In a later one its pages do not become known.
    epoch: u64,
}

/// A page of a table that gave way to one with the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Swap {
    /// The index of the page in the table.
    pub(super) index: usize,
    /// The page that stands there no more. It is still held.
    pub(super) old: u32,
}

/// All pages of a cache.
#[derive(Debug)]
pub(super) struct Pages {
    all: Vec<Page>,
    /// Pages that nobody holds and nothing is known of.
    free: Vec<u32>,
    index: HashMap<Key, u32>,
    /// Known pages that nobody holds and no known page follows, by their last use.
    leaves: BTreeSet<(u64, u32)>,
    /// Known pages that nobody holds.
    idle: usize,
    clock: u64,
    epoch: u64,
}

impl Pages {
    /// `count` free pages.
    pub(super) fn new(count: u32) -> Self {
        Self {
            all: (0..count).map(|_| Page::default()).collect(),
            // The first page is given first.
            free: (0..count).rev().collect(),
            index: HashMap::new(),
            leaves: BTreeSet::new(),
            idle: 0,
            clock: 0,
            epoch: 0,
        }
    }

    /// Pages in all.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Pages that can be had: free ones, and those that are only kept.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    /// Pages that are held.
    pub(super) fn held(&self) -> usize {
        self.count() - self.available()
    }

    /// The number of full pages at the beginning of `tokens` that are known, without the last token.
    pub(super) fn known(&self, tokens: &[u32]) -> usize {
        self.find(tokens).len()
    }

    fn find(&self, tokens: &[u32]) -> Vec<u32> {
        let mut found = vec![];
        let most = tokens.len().saturating_sub(1);
        for page in tokens[..most].chunks_exact(ROWS) {
            let key = Key {
                parent: found.last().copied(),
                tokens: page.into(),
            };
            match self.index.get(&key) {
                Some(page) => found.push(*page),
                None => break,
            }
        }
        found
    }

    /// A table that holds the known pages of the beginning of `tokens`. At least the last token is left to compute.
    pub(super) fn adopt(&mut self, tokens: &[u32]) -> Table {
        let pages = self.find(tokens);
        for page in &pages {
            self.hold(*page);
        }
        Table {
            known: pages.len(),
            pages,
            epoch: self.epoch,
        }
    }

    /// The known page behind `parent`, the last of those just [adopted](Self::adopt), with the most first tokens in common with `rest`, and
    /// how many these are.
    pub(super) fn near(&self, parent: Option<u32>, rest: &[u32]) -> Option<(u32, usize)> {
        let behind = self.index.iter().filter(|(key, _)| key.parent == parent);
        let near = behind.map(|(key, page)| (*page, common(&key.tokens, rest)));
        near.max_by_key(|(page, rows)| (*rows, *page))
    }

    /// The known pages that hold the rows of the beginning of `tokens`, and how many rows these are. Nobody holds the pages for that.
    pub(super) fn covered(&self, tokens: &[u32]) -> (Vec<u32>, usize) {
        // The last token is not left out where another one follows it.
        let mut pages = self.find(&[tokens, &[0]].concat());
        let rows = pages.len() * ROWS;
        match self.near(pages.last().copied(), &tokens[rows..]) {
            Some((page, more)) if more > 0 => {
                pages.push(page);
                (pages, rows + more)
            }
            _ => (pages, rows),
        }
    }

    /// Forgets the known pages whose tokens are all among the first of `tokens`, but those that somebody holds or that something else follows.
    pub(super) fn drop_known(&mut self, tokens: &[u32]) {
        let pages = self.find(&[tokens, &[0]].concat());
        for index in (0..=pages.len()).rev() {
            let parent = index.checked_sub(1).map(|before| pages[before]);
            let rest = &tokens[index * ROWS..];
            let is_own = |key: &Key| key.parent == parent && rest.starts_with(&key.tokens);
            let own = self.index.iter().filter(|(key, _)| is_own(key));
            for number in own.map(|(_, number)| *number).collect::<Vec<_>>() {
                let page = &self.all[number as usize];
                let known = page.known.as_ref().filter(|_| page.holders == 0);
                let Some(known) = known.filter(|known| known.children == 0) else {
                    continue;
                };
                self.leaves.remove(&(known.used, number));
                self.forget_leaf(number);
                self.free.push(number);
            }
        }
    }

    fn hold(&mut self, number: u32) {
        let page = &mut self.all[number as usize];
        page.holders += 1;
        if page.holders == 1
            && let Some(known) = &page.known
        {
            self.idle -= 1;
            self.leaves.remove(&(known.used, number));
        }
    }

    /// Gives `table` pages until it has room for `rows` rows. `false` if there are not enough; nothing is changed then.
    pub(super) fn grow(&mut self, table: &mut Table, rows: usize) -> bool {
        let missing = rows.div_ceil(ROWS).saturating_sub(table.pages.len());
        if missing > self.available() {
            return false;
        }
        for _ in 0..missing {
            let Some(page) = self.free.pop().or_else(|| self.evict()) else {
                return false;
            };
            self.all[page as usize].holders = 1;
            table.pages.push(page);
        }
        true
    }

    /// Forgets the page that was used longest ago.
    fn evict(&mut self) -> Option<u32> {
        let (_, number) = self.leaves.pop_first()?;
        self.forget_leaf(number);
        Some(number)
    }

    /// Forgets a page that is no longer among the leaves.
    fn forget_leaf(&mut self, number: u32) {
        let Some(known) = self.all[number as usize].known.take() else {
            return;
        };
        self.index.remove(&known.key);
        self.idle -= 1;
        if let Some(parent) = known.key.parent {
            let page = &mut self.all[parent as usize];
            if let Some(known) = &mut page.known {
                known.children -= 1;
                if known.children == 0 && page.holders == 0 {
                    self.leaves.insert((known.used, parent));
                }
            }
        }
    }

    /// Makes the full pages of `table` known, whose rows of `tokens` are computed. Where a page with the same rows is known already, the
    /// table takes that one, and the other is the caller's to [let go](Self::release).
    pub(super) fn register(&mut self, table: &mut Table, tokens: &[u32]) -> Vec<Swap> {
        let mut swaps = vec![];
        if table.epoch != self.epoch {
            return swaps;
        }
        for index in table.known..tokens.len() / ROWS {
            let page = table.pages[index];
            let parent = index.checked_sub(1).map(|before| table.pages[before]);
            let key = Key {
                parent,
                tokens: tokens[index * ROWS..][..ROWS].into(),
            };
            if let Some(&there) = self.index.get(&key) {
                self.hold(there);
                table.pages[index] = there;
                swaps.push(Swap { index, old: page });
            } else {
                self.name(key, page);
            }
            table.known = index + 1;
        }
        swaps
    }

    /// Makes the rows behind the known pages of `table` known, which do not fill a page: `tokens` are all that are computed. Nobody finds
    /// them as a page, but they can be [copied](Self::near).
    pub(super) fn register_rest(&mut self, table: &Table, tokens: &[u32]) {
        let rest = &tokens[(table.known * ROWS).min(tokens.len())..];
        if table.epoch != self.epoch || rest.is_empty() || rest.len() >= ROWS {
            return;
        }
        let key = Key {
            parent: table.known.checked_sub(1).map(|before| table.pages[before]),
            tokens: rest.into(),
        };
        if !self.index.contains_key(&key) {
            self.name(key, table.pages[table.known]);
        }
    }

    /// Makes a page known that was not.
    fn name(&mut self, key: Key, page: u32) {
        let parent = key.parent;
        self.index.insert(key.clone(), page);
        self.all[page as usize].known = Some(Known {
            key,
            children: 0,
            used: 0,
        });
        let parent = parent.and_then(|parent| self.all[parent as usize].known.as_mut());
        if let Some(known) = parent {
            known.children += 1;
        }
    }

    /// Lets pages go that a table held. Those that are known stay so.
    pub(super) fn release(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.clock += 1;
        for number in pages {
            let page = &mut self.all[number as usize];
            page.holders -= 1;
            if page.holders > 0 {
                continue;
            }
            let Some(known) = &mut page.known else {
                self.free.push(number);
                continue;
            };
            known.used = self.clock;
            self.idle += 1;
            if known.children == 0 {
                self.leaves.insert((known.used, number));
            }
        }
    }

    /// Forgets what is known. Tables keep their pages.
    pub(super) fn forget(&mut self) {
        for (number, page) in (0..).zip(&mut self.all) {
            if page.known.take().is_some() && page.holders == 0 {
                self.free.push(number);
            }
        }
        self.index.clear();
        self.leaves.clear();
        self.idle = 0;
        self.epoch += 1;
    }
}

/// The number of first tokens that are the same.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
