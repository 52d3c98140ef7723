//! Sizes of the workgroups of the attention.
//!
//! They were measured on an NVIDIA H200 through Vulkan, with 16x16 matrices, and without matrices in subgroups of 32. `benches/notes.md` has
//! the measurements, under "Decoding: attention" and "Prompts: attention". A size that is called reckoned was not measured. Neither were
//! the shapes for 8x8 matrices.

use crate::gpu::coop::Coop;

/// Threads of a workgroup of the attention in f32, in the form that runs on every device. Reckoned.
pub(crate) const FLOAT_THREADS: usize = 256;
/// Threads of that workgroup that compute the scores of a cache row together. A power of two. Reckoned.
pub(crate) const FLOAT_LANES: usize = 8;
/// Cache rows whose scores those threads compute at once. Reckoned.
pub(crate) const FLOAT_ROWS: usize = 2;

/// Workgroups that share a core in the forms in f32. Reckoned for devices without subgroups.
pub(crate) const FLOATS_OF_CORE: usize = 2;
/// Workgroups that share a core in the forms by matrices. One for long contexts takes all workgroup memory of a core.
pub(crate) const MATRICES_OF_CORE: usize = 1;

/// The shape of a workgroup of `attention_heads`, which attends with subgroups and without matrices. It has runs of threads. A run computes
/// all columns of some heads and some cache rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadsShape {
    /// Heads of a thread.
    pub(crate) heads: usize,
    /// Runs of threads with heads of their own.
    pub(crate) groups: usize,
    /// Runs of threads with the same heads and rows of their own.
    pub(crate) phases: usize,
    /// Rows of such a run in a tile, a multiple of 8.
    pub(crate) rows: usize,
    /// Whether a tile moves to workgroup memory while the one before is still read there.
    pub(crate) two_buffers: bool,
}

/// The shape that was measured ("The attention of a token without matrices"). Two such workgroups share a core. While one waits for its
/// tile, the other computes, so neither needs a second buffer.
pub(crate) const HEADS: HeadsShape = HeadsShape {
    heads: 5,
    groups: 2,
    phases: 1,
    rows: 16,
    two_buffers: false,
};
/// Choices for the heads of a thread. The one that leaves the fewest threads without a head is taken. All but the first are reckoned.
pub(crate) const HEADS_OF_THREAD: [usize; 4] = [HEADS.heads, 4, 2, 1];
/// Rows of a tile on devices with too little workgroup memory for the rows of [`HEADS`]. Reckoned.
pub(crate) const FEW_ROWS: usize = 8;

/// The shape of a workgroup of `attention_coop`. It has a subgroup for each tile of heads, tile of cache rows and share of the columns. A
/// tile has as many heads or rows as a matrix has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenShape {
    /// The matrices it is for.
    pub(crate) coop: Coop,
    /// Tiles of heads.
    pub(crate) head_tiles: usize,
    /// Tiles of cache rows.
    pub(crate) row_tiles: usize,
    /// Shares of the columns.
    pub(crate) shares: usize,
    /// Whether workgroup memory holds vectors of 4. Metal cannot load matrices from these.
    pub(crate) vectors: bool,
}

const fn of_token(coop: Coop, head_tiles: usize, row_tiles: usize, shares: usize) -> TokenShape {
    TokenShape {
        coop,
        head_tiles,
        row_tiles,
        shares,
        vectors: coop.size == 16,
    }
}

/// Shapes for each kind of matrices. The first that fits is the best for long contexts, the last that fits the best for short ones.
pub(crate) const TOKEN: [TokenShape; 5] = [
    // All heads of GLM-4.7-Flash at once, so that the cache is read once. One workgroup takes all workgroup memory of a core.
    of_token(Coop::NVIDIA, 2, 2, 2),
    // All heads of models of 16 heads at once.
    of_token(Coop::NVIDIA, 1, 2, 4),
    // Little work for each workgroup, so that a short context keeps many of them busy. Two fit into the memory of a core.
    of_token(Coop::NVIDIA, 1, 1, 4),
    // Four small matrices, so that each of the 32 lanes has scores.
    of_token(Coop::APPLE, 2, 2, 1),
    of_token(Coop::LLVMPIPE, 1, 1, 4),
];

/// The most tokens of a sequence whose heads share workgroups in the attention by matrices. All of them get the slices that the context of
/// the last one needs. Reckoned.
pub(crate) const SHARING_TOKENS: usize = 64;

/// Threads of a workgroup of `grouped_attention` with subgroups: several small workgroups share a core.
pub(crate) const GROUPED_THREADS: usize = 128;
/// Most query heads of a workgroup of `grouped_attention`, all of one key head. Larger groups are split evenly. Reckoned.
pub(crate) const GROUPED_HEADS: usize = 8;
/// Most query heads of a thread of `grouped_attention`, with a cache in F16 and in Q8_0. Queries and sums of more heads leave too few registers for
/// loads ahead. Heads of a thread share the conversion of codes, so with these more heads pay.
pub(crate) const GROUPED_HEADS_OF_THREAD: [usize; 2] = [2, 5];
/// Workgroups of `grouped_attention` that share a core, with a cache in F16 and in Q8_0.
pub(crate) const GROUPED_OF_CORE: [usize; 2] = [4, 2];

/// Threads of a workgroup of `grouped_attention` for short contexts, which attends to as many rows at once.
pub(crate) const GROUPED_SHORT_THREADS: usize = 128;
/// The rows of a context up to which that one is faster, for each up to which `attention_short` is.
pub(crate) const GROUPED_SHORT: u32 = 2;

/// The shape of a workgroup of `grouped_attention_coop`, which attends by matrices for the heads of a key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedTokenShape {
    /// The matrices it is for.
    pub(crate) coop: Coop,
    /// Subgroups with rows of their own.
    pub(crate) groups: usize,
    /// Tiles of cache rows of a subgroup. A tile has as many rows as a matrix.
    pub(crate) row_tiles: usize,
    /// Whether workgroup memory holds vectors of 4. Metal cannot load matrices from these.
    pub(crate) vectors: bool,
}

const fn of_grouped_token(coop: Coop, groups: usize, row_tiles: usize) -> GroupedTokenShape {
    GroupedTokenShape {
        coop,
        groups,
        row_tiles,
        vectors: coop.size == 16 || coop.lanes == 8,
    }
}

/// A shape for each kind of matrices. On an H200 workgroups share a core if their memory is 48 KiB at most in all. One with 6 subgroups takes 44 KiB and
/// leaves the fewest slices ("Grouped queries on an H200" in the notes). The others are reckoned.
pub(crate) const GROUPED_TOKEN: [GroupedTokenShape; 3] = [
    of_grouped_token(Coop::NVIDIA, 6, 1),
    of_grouped_token(Coop::APPLE, 4, 2),
    of_grouped_token(Coop::LLVMPIPE, 4, 1),
];

/// Cache rows of a slice in `attention_short`. Reckoned.
pub const SHORT_ROWS: u32 = 16;

/// Threads that join the slices of a vector of 4 columns: in steps of one token, and in steps of several ("Steps of several sequences").
/// Steps of several have many workgroups, so each needs fewer threads.
pub(crate) const JOINING: [u32; 2] = [16, 4];
/// Vectors of 4 columns that a workgroup joins. They are whole units of 32 columns. Reckoned.
pub(crate) const JOINED_VECTORS: u32 = 16;

/// The shape of a workgroup of `prompt_attention_coop`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptShape {
    /// The matrices it is for.
    pub coop: Coop,
    /// Most values of a head. A subgroup keeps its queries and sums in registers, and these bound it.
    pub widest: usize,
    /// Subgroups. Each computes as many tokens as a matrix has rows.
    pub groups: usize,
    /// Matrices of a tile along the cache rows.
    pub row_tiles: usize,
    /// Whether workgroup memory holds vectors of 4.
    pub vectors: bool,
}

const fn of_prompt(coop: Coop, widest: usize, groups: usize, row_tiles: usize) -> PromptShape {
    PromptShape {
        coop,
        widest,
        groups,
        row_tiles,
        // Metal loads matrices through pointers to numbers. So does one of llvmpipe's shapes, to be tested.
        vectors: coop.size == 16 || coop.lanes == 8 && groups == 8,
    }
}

/// The first that suits a device and a model is used.
pub(crate) const PROMPT: [PromptShape; 4] = [
    // With heads of 256 values, queries take 64 of a thread's 255 registers and sums 128, so a subgroup can own no more.
    of_prompt(Coop::NVIDIA, 256, 8, 1),
    of_prompt(Coop::APPLE, 256, 4, 1),
    of_prompt(Coop::LLVMPIPE, 256, 8, 1),
    of_prompt(Coop::LLVMPIPE, 256, 16, 2),
];

/// Shapes for grouped-query attention. The first that suits a device and a model is used. The first was measured beside the second on an H200. The
/// others are reckoned. The first of each kind of matrices is the one for latent attention, and takes heads of 128 values. For narrower ones a tile
/// has more rows, so that every thread has a load and the queries fit where they pass through.
pub(crate) const GROUPED_PROMPT: [PromptShape; 9] = [
    of_prompt(Coop::NVIDIA, 256, 8, 1),
    of_prompt(Coop::NVIDIA, 256, 4, 2),
    of_prompt(Coop::APPLE, 256, 4, 1),
    of_prompt(Coop::APPLE, 256, 4, 2),
    of_prompt(Coop::APPLE, 256, 4, 4),
    // Heads of 96 values in codes: 4 threads load a row, and 32 rows would not fit.
    of_prompt(Coop::APPLE, 256, 2, 2),
    of_prompt(Coop::LLVMPIPE, 256, 8, 1),
    of_prompt(Coop::LLVMPIPE, 256, 8, 2),
    of_prompt(Coop::LLVMPIPE, 256, 16, 2),
];

/// The shape of a workgroup of `expand_kv_coop`, which computes keys and values from latent rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpansionShape {
    /// The matrices it is for.
    pub coop: Coop,
    /// Subgroups along rows and columns.
    pub groups: [usize; 2],
    /// Matrices of a subgroup along rows and columns.
    pub tiles: [usize; 2],
    /// Values of the latent that pass through workgroup memory at once.
    pub depth: usize,
    /// Whether workgroup memory holds vectors of 4.
    pub vectors: bool,
}

const fn of_expansion(
    coop: Coop,
    groups: [usize; 2],
    tiles: [usize; 2],
    depth: usize,
    vectors: bool,
) -> ExpansionShape {
    ExpansionShape {
        coop,
        groups,
        tiles,
        depth,
        vectors,
    }
}

/// The first of each kind of matrices is used. Larger tiles were slower on NVIDIA's ("The expansion of keys and values").
pub(crate) const EXPANSION: [ExpansionShape; 4] = [
    of_expansion(Coop::NVIDIA, [2, 2], [4, 4], 32, true),
    // Metal loads matrices through pointers to numbers.
    of_expansion(Coop::APPLE, [2, 2], [4, 4], 32, false),
    of_expansion(Coop::LLVMPIPE, [4, 2], [2, 4], 32, true),
    of_expansion(Coop::LLVMPIPE, [2, 4], [4, 2], 16, false),
];
