//! The state that changes from one replay of a recording to the next, and the parts of dispatches that depend on it: parameter words,
//! grids, repetitions.

/// The values that change between two replays of the same recording.
#[derive(Debug, Clone, Copy, Default)]
pub struct State {
    /// Position of the first token: rows already in the cache.
    pub pos: u32,
    /// Tokens in this replay.
    pub tokens: u32,
    /// Slices that the attention cuts the context into.
    pub slices: u32,
    /// Cache rows of each slice.
    pub slice_rows: u32,
    /// The entry of the pages with the first page of the sequence, in a step whose tokens all belong to one sequence.
    pub first_page: u32,
    /// The word of the history with its first id.
    pub first_id: u32,
    /// The number of the operation's alternative binding that is used.
    pub slot: usize,
    /// Whether dispatches [for few tokens](When::Few) are encoded, or those for many.
    pub few: bool,
    /// The kernels that some token of the step takes, if its tokens take different ones: the bits of their [numbers](When::Kernel).
    pub kernels: u32,
    /// The slices of each of the first of these kernels, which follow each other in the list of slices.
    pub slices_of: [u32; KERNELS],
    /// Whether dispatches that add [biases](When::Biased) to logits are encoded.
    pub biased: bool,
    /// Sampling parameters, as `kernels::sample` lays them out.
    pub sampling: [u32; 12],
}

/// The most kernels of the attention of a step.
pub const KERNELS: usize = 3;

/// The largest replay that a step is recorded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// The most tokens.
    pub tokens: u32,
    /// Rows of the cache, with those of its own tokens.
    pub context: u32,
}

impl Most {
    /// One token, or none, after up to `context` - 1 rows.
    pub const fn token(context: u32) -> Self {
        Self { tokens: 1, context }
    }

    /// The smallest size of a step that can be replayed for this state.
    pub fn of(state: &State) -> Self {
        Self {
            tokens: state.tokens.max(1),
            context: state.pos + state.tokens.max(1),
        }
    }
}

/// One 32-bit parameter of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Word {
    /// A number known when recording.
    U(u32),
    /// A float known when recording.
    F(f32),
    /// [`State::pos`].
    Pos,
    /// [`State::tokens`].
    Tokens,
    /// (tokens - 1) * n: where the last token's row of width n begins.
    LastTokenTimes(u32),
    /// [`State::slices`].
    Slices,
    /// [`State::slice_rows`].
    SliceRows,
    /// The slices of the kernels before the one of this number ([`State::slices_of`]).
    SlicesBefore(u32),
    /// [`State::first_page`].
    FirstPage,
    /// [`State::first_id`].
    FirstId,
    /// [`State::sampling`] at this index.
    Sampling(usize),
    /// The first context row of the block ([`Call::per_block`](super::Call::per_block)).
    BlockBegin,
    /// Context rows of the block.
    BlockRows,
    /// 1 in the first block, 2 in the last, 3 where there is only one, 0 between.
    BlockEnds,
    /// The number of workgroups along such a dimension.
    Workgroups(Extent),
}

impl From<u32> for Word {
    fn from(value: u32) -> Self {
        Self::U(value)
    }
}

impl From<f32> for Word {
    fn from(value: f32) -> Self {
        Self::F(value)
    }
}

/// How the context, the rows that a step's last token sees, is cut for dispatches that are repeated for each of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Rows of a block; the last one may have fewer.
    pub rows: u32,
    /// Blocks of the longest context.
    pub most: u32,
}

/// One block of a context.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::gpu) struct Block {
    pub(in crate::gpu) begin: u32,
    pub(in crate::gpu) rows: u32,
    ends: u32,
}

impl Blocks {
    /// Blocks of `rows` rows, for contexts of up to `n_ctx` rows.
    pub fn new(rows: u32, n_ctx: u32) -> Self {
        Self {
            rows,
            most: n_ctx.div_ceil(rows),
        }
    }

    /// The number of blocks in the context of a step.
    pub fn count(self, state: &State) -> u32 {
        (state.pos + state.tokens).div_ceil(self.rows)
    }

    pub(in crate::gpu) fn block(self, i: u32, state: &State) -> Block {
        let begin = i * self.rows;
        let last = i + 1 == self.count(state);
        Block {
            begin,
            rows: self.rows.min(state.pos + state.tokens - begin),
            ends: u32::from(i == 0) + 2 * u32::from(last),
        }
    }
}

/// The number of workgroups along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A number known when recording.
    N(u32),
    /// One workgroup per token.
    Tokens,
    /// One workgroup per n tokens, rounded up.
    TokensBy(u32),
    /// One workgroup per block of the context.
    Slices,
    /// One workgroup per slice of the kernel of this number ([`State::slices_of`]).
    SlicesOf(u32),
    /// One workgroup per n context rows of the block, rounded up.
    BlockRowsBy(u32),
    /// One workgroup per `by` slots of the tokens, which have `used` each, rounded up, and `more`.
    Slots {
        /// Slots of a token.
        used: u32,
        /// Slots of a workgroup.
        by: u32,
        /// Workgroups beyond.
        more: u32,
    },
}

impl Default for Extent {
    fn default() -> Self {
        Self::N(1)
    }
}

/// The replays in which a dispatch takes part. That is how a recording holds two ways of doing the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// In every replay.
    #[default]
    Always,
    /// If [`State::slices`] is at most this.
    SlicesUpTo(u32),
    /// If [`State::slices`] is greater than this.
    SlicesAbove(u32),
    /// If the context with the step's tokens has more rows than the first and at most as many as the second.
    Rows(u32, u32),
    /// If the step has at most this many tokens.
    TokensUpTo(u32),
    /// If the step has more tokens than this.
    TokensAbove(u32),
    /// If [`State::few`] holds.
    Few,
    /// If [`State::few`] does not hold.
    Many,
    /// If [`State::biased`] holds.
    Biased,
    /// If [`State::kernels`] has the bit of this number.
    Kernel(u32),
}

impl When {
    /// Over contexts of more than `above` rows and at most `most`.
    pub const fn rows(above: u32, most: u32) -> Self {
        match (above, most) {
            (0, u32::MAX) => Self::Always,
            _ => Self::Rows(above, most),
        }
    }

    /// Whether a replay for `state` has the dispatch.
    pub fn holds(self, state: &State) -> bool {
        match self {
            Self::Always => true,
            Self::SlicesUpTo(most) => state.slices <= most,
            Self::SlicesAbove(most) => state.slices > most,
            Self::Rows(above, most) => {
                let rows = state.pos + state.tokens;
                above < rows && rows <= most
            }
            Self::TokensUpTo(most) => state.tokens <= most,
            Self::TokensAbove(most) => state.tokens > most,
            Self::Few => state.few,
            Self::Many => !state.few,
            Self::Biased => state.biased,
            Self::Kernel(number) => state.kernels >> number & 1 == 1,
        }
    }
}

/// The words of a dispatch's parameters, in bytes.
pub(in crate::gpu) fn fill(params: &[Word], state: &State, block: Block, out: &mut [u8]) {
    for (word, bytes) in params.iter().zip(out.chunks_exact_mut(4)) {
        let value = match *word {
            Word::U(v) => v,
            Word::F(v) => v.to_bits(),
            Word::Pos => state.pos,
            Word::Tokens => state.tokens,
            Word::LastTokenTimes(n) => (state.tokens - 1) * n,
            Word::Slices => state.slices,
            Word::SliceRows => state.slice_rows,
            Word::SlicesBefore(number) => state.slices_of[..number as usize].iter().sum(),
            Word::FirstPage => state.first_page,
            Word::FirstId => state.first_id,
            Word::Sampling(i) => state.sampling[i],
            Word::BlockBegin => block.begin,
            Word::BlockRows => block.rows,
            Word::BlockEnds => block.ends,
            Word::Workgroups(along) => extent(along, state, block),
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Workgroups along one dimension.
pub(in crate::gpu) fn extent(extent: Extent, state: &State, block: Block) -> u32 {
    match extent {
        Extent::N(n) => n,
        Extent::Tokens => state.tokens,
        Extent::TokensBy(n) => state.tokens.div_ceil(n),
        Extent::Slices => state.slices,
        Extent::SlicesOf(number) => state.slices_of[number as usize],
        Extent::BlockRowsBy(n) => block.rows.div_ceil(n),
        Extent::Slots { used, by, more } => (state.tokens * used).div_ceil(by) + more,
    }
}
