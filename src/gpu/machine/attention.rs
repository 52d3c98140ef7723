//! How the workgroups of the attention are made. It was measured on an NVIDIA H200 through Vulkan, for 16x16 matrices and for subgroups of
//! 32 without matrices (benches/notes.md, "Decoding: attention" and "Prompts: attention"). What is called reckoned has no measurement there,
//! and shapes for 8x8 matrices are reckoned from the others.

use crate::gpu::coop::Coop;

/// Threads of a workgroup of the attention in f32 that every device has. Reckoned.
pub(crate) const FLOAT_THREADS: usize = 256;
/// Threads of it that share cache rows when scoring, a power of two. Reckoned.
pub(crate) const FLOAT_LANES: usize = 8;
/// Cache rows that such threads score at a time. Reckoned.
pub(crate) const FLOAT_ROWS: usize = 2;

/// Workgroups that share a core in f32. Without subgroups it is reckoned.
pub(crate) const FLOATS_OF_CORE: usize = 2;
/// The same by matrices, where one for long contexts has all workgroup memory of a core.
pub(crate) const MATRICES_OF_CORE: usize = 1;

/// How a workgroup of the attention of a token is made where there are subgroups and no matrices: runs of threads, each with all columns of
/// some heads and rows.
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

/// Faster than one with all heads of GLM-4.7-Flash from 512 rows on ("The attention of a token without matrices"): two such workgroups share
/// a core, which hides what a second buffer would.
pub(crate) const HEADS: HeadsShape = HeadsShape {
    heads: 5,
    groups: 2,
    phases: 1,
    rows: 16,
    two_buffers: false,
};
/// Heads of a thread, of which those are taken that leave the fewest threads without a head. Reckoned, but for the first.
pub(crate) const HEADS_OF_THREAD: [usize; 4] = [HEADS.heads, 4, 2, 1];
/// Rows of a tile where workgroup memory has no room for more. Reckoned.
pub(crate) const FEW_ROWS: usize = 8;

/// How a workgroup of the attention of a token is made by matrices: a subgroup for each tile of heads, tile of rows and share of the
/// columns, where a tile has as many as a matrix has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenShape {
    /// The matrices it is for.
    pub(crate) coop: Coop,
    pub(crate) head_tiles: usize,
    pub(crate) row_tiles: usize,
    pub(crate) shares: usize,
    /// Whether workgroup memory holds vectors, which Metal cannot load matrices from.
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

/// The shapes by falling worth for long contexts, of which the last suits short ones.
pub(crate) const TOKEN: [TokenShape; 5] = [
    // All heads of GLM-4.7-Flash at once, so the cache is read once; one workgroup has all the memory of a core.
    of_token(Coop::NVIDIA, 2, 2, 2),
    // The same for models of 16 heads.
    of_token(Coop::NVIDIA, 1, 2, 4),
    // Little work per workgroup, so that a context of some hundred rows already keeps many busy, and room for two of them.
    of_token(Coop::NVIDIA, 1, 1, 4),
    // Small matrices over many lanes: four of them, so that every lane has scores.
    of_token(Coop::APPLE, 2, 2, 1),
    of_token(Coop::LLVMPIPE, 1, 1, 4),
];

/// Tokens of a sequence that share workgroups by matrices at most. The first of them have slices of the last one's context, though they see
/// less. Reckoned.
pub(crate) const SHARING_TOKENS: usize = 64;

/// Cache rows of a slice of a short context, which has a workgroup for each head. Reckoned.
pub const SHORT_ROWS: u32 = 16;

/// Threads that join the slices of a vector of 4 columns: of one token, and of each of several, whose workgroups are many ("Steps
/// of several sequences").
pub(crate) const JOINING: [u32; 2] = [16, 4];
/// Vectors of 4 columns that a workgroup joins: whole units of 32. Reckoned.
pub(crate) const JOINED_VECTORS: u32 = 16;

/// How a workgroup of the attention of prompts is made by matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptShape {
    /// The matrices it is for.
    pub coop: Coop,
    /// The widest value head it is for: sums and queries stay in registers.
    pub widest: usize,
    /// Subgroups, each for as many tokens as a matrix has rows.
    pub groups: usize,
    /// Matrices of a tile along context rows.
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
        // Metal loads matrices through pointers to numbers; one of llvmpipe's shapes does as it does.
        vectors: coop.size == 16 || coop.lanes == 8 && groups == 8,
    }
}

/// The first that suits a device and a model is used.
pub(crate) const PROMPT: [PromptShape; 4] = [
    // Of 255 registers queries take 64 and sums 128 for heads of 256/256: what a subgroup owns is as large as it can be.
    of_prompt(Coop::NVIDIA, 256, 8, 1),
    of_prompt(Coop::APPLE, 256, 4, 1),
    of_prompt(Coop::LLVMPIPE, 256, 8, 1),
    of_prompt(Coop::LLVMPIPE, 256, 16, 2),
];

/// How a workgroup of the expansion of keys and values is made by matrices.
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

/// The first of each kind of matrices is used. Of NVIDIA's, tiles of 128x256 were slower ("The expansion of keys and values").
pub(crate) const EXPANSION: [ExpansionShape; 4] = [
    of_expansion(Coop::NVIDIA, [2, 2], [4, 4], 32, true),
    // Metal loads matrices through pointers to numbers.
    of_expansion(Coop::APPLE, [2, 2], [4, 4], 32, false),
    of_expansion(Coop::LLVMPIPE, [4, 2], [2, 4], 32, true),
    of_expansion(Coop::LLVMPIPE, [2, 4], [4, 2], 16, false),
];
