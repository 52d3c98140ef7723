//! Descriptions of dispatches, with their work in bytes and operations, for those who measure them.

use super::{Block, State};
use crate::gpu::buffer::Range;
use std::sync::Arc;

/// The half of a layer that a dispatch belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sublayer {
    /// None of the layers: the embedding, the head, the choice of a token.
    #[default]
    Outside,
    /// The attention of the layer of this number.
    Attention(usize),
    /// The feed-forward network of the layer of this number.
    FeedForward(usize),
}

impl Sublayer {
    /// The layer's number.
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Outside => None,
            Self::Attention(layer) | Self::FeedForward(layer) => Some(layer),
        }
    }
}

/// Floating-point operations of a product or an attention that must be done: two for each weight used, none for what is
/// masked or pads a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flops {
    /// Operations in every replay.
    pub once: u64,
    /// Operations for each token.
    pub per_token: u64,
    /// Operations for each row of the cache.
    pub per_row: u64,
    /// Operations for each token and each row that it sees.
    pub per_pair: u64,
}

/// Tiles of experts that a dispatch leaves. The first word of a tile is the expert, the third one the number of its slots. Tiles of one word are
/// the experts of each token.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The tiles.
    pub tiles: Range,
    /// Words of a tile.
    pub words: u32,
}

/// The description of a dispatch, for those who measure it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// The kernel.
    pub kernel: &'static str,
    /// Kernel, weight types, shape and flags, such as `matvec Q4_0 2048x5120 +residual`.
    pub label: String,
    /// The half of a layer.
    pub sublayer: Sublayer,
    /// Bytes of weights it reads at least (where a token is chosen: of logits).
    pub bytes: u64,
    /// Bytes it reads at least for each row of the cache.
    pub bytes_per_row: u64,
    /// Bytes it reads at least for the whole context, of which each block has a share.
    pub bytes_of_blocks: u64,
    /// Floating-point operations; none where they are not told.
    pub flops: Flops,
}

/// A dispatch that a replay has; one that is repeated for each block of the context is there as often.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taken {
    /// The dispatch's number in the recording.
    pub dispatch: usize,
    /// The description of the dispatch.
    pub about: Arc<About>,
    /// Bytes of weights and of its cache rows that it reads at least.
    pub bytes: u64,
    /// Floating-point operations; 0 where they are not told.
    pub flops: u64,
}

impl Taken {
    /// Dispatch number `dispatch` in a replay for `state`, over `block` where it is repeated.
    pub(in crate::gpu) fn new(
        dispatch: usize,
        about: &Arc<About>,
        state: &State,
        block: Option<Block>,
    ) -> Self {
        let context = state.pos + state.tokens;
        let (begin, rows) = block.map_or((0, context), |b| (b.begin, b.rows));
        let flops = about.flops;
        let shared = about.bytes_of_blocks * u64::from(rows) / u64::from(context.max(1));
        Self {
            dispatch,
            about: Arc::clone(about),
            bytes: about.bytes + about.bytes_per_row * u64::from(rows) + shared,
            flops: flops.once
                + flops.per_token * u64::from(state.tokens)
                + flops.per_row * u64::from(rows)
                + flops.per_pair * pairs(state, begin, rows),
        }
    }
}

/// The number of the `rows` cache rows from `begin` on that the tokens see, summed over the tokens: each sees the rows up to its own.
fn pairs(state: &State, begin: u32, rows: u32) -> u64 {
    // The sum of min(j, rows) for j from 1 to n.
    let sum = |n: u64| {
        let (few, rows) = (n.min(u64::from(rows)), u64::from(rows));
        few * (few + 1) / 2 + (n - few) * rows
    };
    let seen = |end: u32| u64::from(end.saturating_sub(begin));
    sum(seen(state.pos + state.tokens)) - sum(seen(state.pos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_the_rows_that_each_token_sees() {
        for (pos, tokens, begin, rows) in [
            (0, 5, 0, 5),
            (4, 3, 5, 2),
            (100, 7, 0, 64),
            (60, 9, 64, 5),
            (10, 20, 16, 8),
            (3, 4, 200, 6),
        ] {
            let state = State {
                pos,
                tokens,
                ..State::default()
            };
            let seen = |i: u32| (pos + i + 1).saturating_sub(begin).min(rows);
            let expected: u64 = (0..tokens).map(|i| u64::from(seen(i))).sum();
            assert_eq!(
                pairs(&state, begin, rows),
                expected,
                "{pos} {tokens} {begin} {rows}"
            );
        }
    }
}
