//! When answers are written: as they come, or in the order of their requests.

use std::collections::BTreeMap;

/// Holds back answers until their turn.
pub(super) struct Order<T> {
    /// The items that have come before their turn, where order is kept.
    early: Option<BTreeMap<u64, T>>,
    next: u64,
}

impl<T> Order<T> {
    /// Nothing has come yet.
    pub(super) fn new(ordered: bool) -> Self {
        Self {
            early: ordered.then(BTreeMap::new),
            next: 0,
        }
    }

    /// How far behind the request `number` the oldest is that has not had its turn; 0 where order is not kept.
    pub(super) fn behind(&self, number: u64) -> u64 {
        match self.early {
            Some(_) => number.saturating_sub(self.next),
            None => 0,
        }
    }

    /// Takes what request `number` has come to, and gives to `turn` all whose turn it is.
    pub(super) fn take<E>(
        &mut self,
        number: u64,
        item: T,
        mut turn: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(early) = &mut self.early else {
            return turn(item);
        };
        early.insert(number, item);
        while let Some(item) = early.remove(&self.next) {
            self.next += 1;
            turn(item)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(ordered: bool) -> Vec<u64> {
        let mut order = Order::new(ordered);
        let mut taken = vec![];
        for number in [2, 0, 1, 4, 3] {
            let turn = |number| {
                taken.push(number);
                Ok::<_, ()>(())
            };
            order.take(number, number, turn).expect("it is taken");
        }
        assert_eq!(order.behind(7), if ordered { 2 } else { 0 });
        taken
    }

    #[test]
    fn order_is_kept_where_it_is_asked_for() {
        assert_eq!(taken(false), [2, 0, 1, 4, 3]);
        assert_eq!(taken(true), [0, 1, 2, 3, 4]);
    }
}
