//! Protects the pages of the cache: none is in two hands, none is lost, and what is found holds the rows of the very tokens asked for.

use super::*;
use crate::kernels::testing::Rng;

/// A sequence as the model of the test has it.
struct Sequence {
    table: Table,
    tokens: Vec<u32>,
    /// Rows that are computed.
    rows: usize,
}

/// Pages beside what a simple model knows of them.
struct Beside {
    pages: Pages,
    /// The tokens up to the end of each page, as its rows were computed.
    content: Vec<Vec<u32>>,
    sequences: Vec<Sequence>,
    /// Held by no table any more, but not let go.
    leaving: Vec<u32>,
}

impl Beside {
    fn new(count: u32) -> Self {
        Self {
            pages: Pages::new(count),
            content: vec![vec![]; count as usize],
            sequences: vec![],
            leaving: vec![],
        }
    }

    /// Tokens of few kinds, so that many beginnings are common.
    fn begin(&mut self, rng: &mut Rng) {
        let length = 1 + rng.below(5 * ROWS);
        let mut tokens = vec![];
        while tokens.len() < length {
            tokens.extend([rng.below(2) as u32; ROWS]);
        }
        tokens.truncate(length);
        let known = self.pages.known(&tokens);
        let table = self.pages.adopt(&tokens);
        assert_eq!(known, table.pages.len());
        assert!(known * ROWS < length, "the last token is left");
        let behind = &tokens[known * ROWS..length - 1];
        if let Some((page, rows)) = self.pages.near(table.pages.last().copied(), behind) {
            let content = &self.content[page as usize];
            let expected = &tokens[..known * ROWS + rows];
            assert_eq!(&content[..expected.len()], expected, "page {page}");
        }
        for (i, page) in table.pages.iter().enumerate() {
            let expected = &tokens[..(i + 1) * ROWS];
            assert_eq!(self.content[*page as usize], expected, "page {page}");
        }
        self.sequences.push(Sequence {
            rows: known * ROWS,
            table,
            tokens,
        });
    }

    /// Computes some rows of a sequence.
    fn compute(&mut self, rng: &mut Rng, which: usize) {
        let sequence = &mut self.sequences[which];
        if sequence.rows == sequence.tokens.len() {
            sequence.tokens.push(rng.below(2) as u32);
        }
        let most = sequence.tokens.len() - sequence.rows;
        let rows = sequence.rows + 1 + rng.below(most);
        let (before, available) = (sequence.table.pages.len(), self.pages.available());
        let grown = self.pages.grow(&mut sequence.table, rows);
        let missing = rows.div_ceil(ROWS).saturating_sub(before);
        assert_eq!(grown, missing <= available);
        if !grown {
            assert_eq!(sequence.table.pages.len(), before);
            return;
        }
        for row in sequence.rows..rows {
            let page = sequence.table.pages[row / ROWS] as usize;
            self.content[page] = sequence.tokens[..row + 1].to_vec();
        }
        sequence.rows = rows;
        let computed = &sequence.tokens[..rows];
        for Swap { index, old } in self.pages.register(&mut sequence.table, computed) {
            let new = sequence.table.pages[index] as usize;
            assert_eq!(self.content[new], self.content[old as usize]);
            self.leaving.push(old);
        }
    }

    /// Lets a sequence go. The rows behind its full pages are kept, too.
    fn end(&mut self, gone: Sequence) {
        let computed = &gone.tokens[..gone.rows];
        self.pages.register_rest(&gone.table, computed);
        self.pages.release(gone.table.pages);
    }

    /// Forgets what is known of the tokens of a sequence, of which the pages held by others stay.
    fn drop_known(&mut self, which: usize) {
        let tokens = self.sequences[which].tokens.clone();
        let (pages, rows) = self.pages.covered(&tokens);
        assert_eq!(pages.len(), rows.div_ceil(ROWS));
        for (i, page) in pages.iter().enumerate() {
            let expected = &tokens[..rows.min((i + 1) * ROWS)];
            assert_eq!(&self.content[*page as usize][..expected.len()], expected);
        }
        let available = self.pages.available();
        self.pages.drop_known(&tokens);
        assert_eq!(self.pages.available(), available);
        for (i, page) in self.pages.covered(&tokens).0.into_iter().enumerate() {
            let page = &self.pages.all[page as usize];
            let children = page.known.as_ref().map_or(0, |known| known.children);
            let is_other = |known: &Known| !tokens[i * ROWS..].starts_with(&known.key.tokens);
            assert!(page.holders > 0 || children > 0 || page.known.as_ref().is_some_and(is_other));
        }
    }

    fn check(&self) {
        let mut holders = vec![0; self.content.len()];
        let tables = self.sequences.iter().flat_map(|s| &s.table.pages);
        for page in tables.chain(&self.leaving) {
            holders[*page as usize] += 1;
        }
        for (number, page) in self.pages.all.iter().enumerate() {
            assert_eq!(page.holders, holders[number], "page {number}");
        }
        let held = holders.iter().filter(|holders| **holders > 0).count();
        assert_eq!(self.pages.held(), held);
        for sequence in &self.sequences {
            for row in 0..sequence.rows {
                let page = sequence.table.pages[row / ROWS];
                let content = &self.content[page as usize];
                assert_eq!(content[row], sequence.tokens[row]);
            }
            // Only full pages are in several hands.
            let own = &sequence.table.pages[sequence.rows / ROWS..];
            assert!(own.iter().all(|page| holders[*page as usize] == 1));
        }
    }
}

#[test]
fn random_operations_agree_with_a_simple_model() {
    let mut rng = Rng::fresh();
    for count in [1, 4, 12, 40] {
        let mut beside = Beside::new(count);
        for _ in 0..600 {
            let some = beside.sequences.len();
            match rng.below(9) {
                0 | 1 => beside.begin(&mut rng),
                2..=5 if some > 0 => {
                    let which = rng.below(some);
                    beside.compute(&mut rng, which);
                }
                6 if some > 0 => {
                    let gone = beside.sequences.swap_remove(rng.below(some));
                    beside.end(gone);
                }
                7 => beside.pages.release(std::mem::take(&mut beside.leaving)),
                8 if some > 0 => {
                    let which = rng.below(some);
                    beside.drop_known(which);
                }
                _ => {}
            }
            if rng.below(200) == 0 {
                beside.pages.forget();
            }
            beside.check();
        }
        beside.pages.release(std::mem::take(&mut beside.leaving));
        for gone in std::mem::take(&mut beside.sequences) {
            beside.end(gone);
        }
        assert_eq!(beside.pages.available(), count as usize);
        // All of them can be had at once.
        let mut all = beside.pages.adopt(&[]);
        assert!(beside.pages.grow(&mut all, count as usize * ROWS));
        let mut sorted = all.pages.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..count).collect::<Vec<_>>());
        assert!(!beside.pages.grow(&mut all, count as usize * ROWS + 1));
    }
}

/// A sequence of `count` full pages of `token`, computed and let go.
fn kept(pages: &mut Pages, token: u32, count: usize) -> Vec<u32> {
    let tokens = vec![token; count * ROWS];
    let mut table = pages.adopt(&[]);
    assert!(pages.grow(&mut table, tokens.len()));
    assert!(pages.register(&mut table, &tokens).is_empty());
    pages.release(table.pages);
    tokens
}

#[test]
fn what_was_used_longest_ago_goes_first_and_children_before_parents() {
    let mut pages = Pages::new(6);
    let with_end = |tokens: &[u32]| [tokens, &[9]].concat();
    let first = with_end(&kept(&mut pages, 1, 3));
    let second = with_end(&kept(&mut pages, 2, 3));
    // The first is used again, so the second goes from its end.
    let table = pages.adopt(&first);
    pages.release(table.pages);
    let mut table = pages.adopt(&[]);
    for (rows, expected) in [(1, [3, 2]), (2, [3, 1]), (3, [3, 0]), (4, [2, 0])] {
        assert!(pages.grow(&mut table, rows * ROWS));
        assert_eq!([pages.known(&first), pages.known(&second)], expected);
    }
    // Pages that are held do not go.
    let held = pages.adopt(&first);
    assert_eq!(held.pages.len(), 2);
    assert!(!pages.grow(&mut table, 5 * ROWS));
    pages.release(held.pages);
    assert!(pages.grow(&mut table, 5 * ROWS));
    assert_eq!(pages.known(&first), 1);
}

#[test]
fn the_last_token_and_pages_that_are_not_full_are_left_out() {
    let mut pages = Pages::new(4);
    let tokens = kept(&mut pages, 1, 2);
    assert_eq!(pages.known(&tokens), 1, "the last token is to be computed");
    assert_eq!(pages.known(&tokens[..ROWS]), 0);
    assert_eq!(pages.known(&tokens[..ROWS + 1]), 1);
    let other = [&tokens[..2 * ROWS - 1], &[2, 1]].concat();
    assert_eq!(pages.known(&other), 1, "the second page differs");
    let second_only = [vec![3; ROWS], vec![1; ROWS + 1]].concat();
    assert_eq!(pages.known(&second_only), 0, "the page before differs");
}

#[test]
fn the_known_page_with_the_most_in_common_is_near() {
    let mut pages = Pages::new(8);
    let first = kept(&mut pages, 1, 2);
    let begun = |own: usize| [vec![1; ROWS + own], vec![2; ROWS - own]].concat();
    for tokens in [begun(20), begun(40)] {
        let mut table = pages.adopt(&tokens);
        assert!(pages.grow(&mut table, tokens.len()));
        pages.register(&mut table, &tokens);
        pages.release(table.pages);
    }
    let near = |pages: &mut Pages, tokens: &[u32]| {
        let table = pages.adopt(tokens);
        let near = pages.near(
            table.pages.last().copied(),
            &tokens[table.pages.len() * ROWS..],
        );
        pages.release(table.pages);
        near.map(|(_, rows)| rows)
    };
    let three = [vec![1; ROWS + 30], vec![3]].concat();
    assert_eq!(near(&mut pages, &three), Some(30));
    assert_eq!(near(&mut pages, &begun(30)), Some(30));
    let fifty = [vec![1; ROWS], vec![7; 50], vec![3]].concat();
    let mut table = pages.adopt(&fifty);
    assert!(pages.grow(&mut table, ROWS + 45));
    pages.register_rest(&table, &fifty[..ROWS + 45]);
    pages.release(table.pages);
    assert_eq!(
        near(&mut pages, &fifty),
        Some(45),
        "a page that is not full"
    );
    assert_eq!(pages.known(&fifty), 1, "it is not found as one");
    let forty = [begun(40), vec![5]].concat();
    assert_eq!(near(&mut pages, &forty), None, "nothing is behind it");
    assert_eq!(
        near(&mut pages, &first),
        Some(ROWS),
        "all but the last token"
    );
    pages.forget();
    assert_eq!(near(&mut pages, &three), None);
}
