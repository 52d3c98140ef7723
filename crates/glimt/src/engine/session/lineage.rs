//! Which computations the cache rows of a session come from. Rows of the same computation are the same bytes wherever they are kept.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next computation.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The computations of the rows, in order: the first row of each and its number. No number is used for other rows again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Lineage(Vec<(usize, u64)>);

impl Lineage {
    /// The lineage of a cache without rows.
    pub(in crate::engine) fn new() -> Self {
        Self(vec![(0, next())])
    }

    /// Rows from `length` on are computed anew.
    pub(super) fn cut(&mut self, length: usize) {
        self.0.retain(|(first, _)| *first < length);
        self.0.push((length, next()));
    }

    /// The lineage of a copy of the first `length` rows, which goes on by itself.
    pub(super) fn branch(&self, length: usize) -> Self {
        let mut branch = self.clone();
        branch.cut(length);
        branch
    }

    /// The number of rows that are the same, where there are `own` of this and `others` of the other.
    pub(in crate::engine) fn common(&self, own: usize, other: &Self, others: usize) -> usize {
        let mut common = 0;
        for (i, (own_part, other_part)) in self.0.iter().zip(&other.0).enumerate() {
            if own_part != other_part {
                break;
            }
            let end = |lineage: &Self, rows: usize| match lineage.0.get(i + 1) {
                Some((next, _)) => *next,
                None => rows,
            };
            let ends = [end(self, own), end(other, others)];
            common = ends[0].min(ends[1]);
            if ends[0] != ends[1] {
                break;
            }
        }
        common.min(own).min(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_common_up_to_where_one_was_computed_anew() {
        let mut session = Lineage::new();
        let kept = session.clone();
        assert_eq!(kept.common(10, &session, 25), 10);
        assert_eq!(session.common(25, &kept, 10), 10);
        session.cut(7);
        assert_eq!(kept.common(10, &session, 25), 7);
        let kept = session.clone();
        assert_eq!(kept.common(25, &session, 30), 25);
        // The length is the same again, but the rows are others.
        session.cut(20);
        assert_eq!(kept.common(25, &session, 25), 20);
        session.cut(0);
        assert_eq!(kept.common(25, &session, 25), 0);
        assert_eq!(Lineage::new().common(25, &session, 25), 0);
    }

    #[test]
    fn branches_have_in_common_what_was_there_before() {
        let mut trunk = Lineage::new();
        trunk.cut(4);
        let branch = trunk.branch(10);
        let other = trunk.branch(10);
        assert_eq!(trunk.common(12, &branch, 15), 10);
        assert_eq!(other.common(12, &branch, 15), 10);
        assert_eq!(trunk.branch(2).common(9, &branch, 15), 2);
    }
}
