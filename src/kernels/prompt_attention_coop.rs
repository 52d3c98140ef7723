//! [`prompt_attention`](super::prompt_attention) by cooperative matrices, for devices that have them.

use super::coop;
use super::expand_kv::KvDims;
use super::prompt_attention::numbers;
use crate::gpu::Coop;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::accesses;

/// How a workgroup is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// The matrices it is for.
    pub coop: Coop,
    /// The widest value head it is for: sums and queries stay in registers.
    pub widest: usize,
    /// Subgroups along tokens.
    pub groups: usize,
    /// Subgroups that share a group's rows, and then its columns.
    pub shares: usize,
    /// Matrices of a group along tokens.
    pub token_tiles: usize,
    /// Matrices of a share along rows.
    pub row_tiles: usize,
    /// Columns of the queries that pass through workgroup memory at once.
    pub query_columns: usize,
    /// Whether workgroup memory holds vectors of 4.
    pub vectors: bool,
}

const NVIDIA: Coop = Coop {
    size: 16,
    lanes: 32,
};
const APPLE: Coop = Coop { size: 8, lanes: 32 };
const LLVMPIPE: Coop = Coop { size: 8, lanes: 8 };

/// The first that suits a device and a model is used. Queries and sums of a lane are 32-bit registers, 112 in the first shape for
/// heads of 192/128, 128 in the second for 256/256, and a tile of keys and one of values are on their way in registers, too: shapes
/// of 128 threads for heads of 256 have too few (on the H200 one with two subgroups of tokens, two shares, gave wrong numbers).
pub(super) const SHAPES: [Shape; 7] = [
    // One subgroup makes all scores and sums of its 16 tokens.
    shape(NVIDIA, 128, [4, 1], [1, 2], 64),
    shape(NVIDIA, 256, [4, 2], [1, 1], 32),
    // More tokens that share a loaded tile, twice as many tiles.
    shape(NVIDIA, 128, [8, 1], [1, 1], 32),
    shape(APPLE, 256, [4, 1], [1, 4], 64),
    shape(LLVMPIPE, 256, [4, 2], [1, 2], 32),
    shape(LLVMPIPE, 256, [8, 1], [1, 2], 16),
    shape(LLVMPIPE, 256, [2, 4], [2, 1], 16),
];

const fn shape(
    coop: Coop,
    widest: usize,
    [groups, shares]: [usize; 2],
    [token_tiles, row_tiles]: [usize; 2],
    query_columns: usize,
) -> Shape {
    Shape {
        coop,
        widest,
        groups,
        shares,
        token_tiles,
        row_tiles,
        query_columns,
        // Metal loads matrices through pointers to numbers; one of llvmpipe's shapes does as it does.
        vectors: coop.size == 16 || coop.lanes == 8 && groups != 8,
    }
}

impl Shape {
    fn threads(self) -> usize {
        self.groups * self.shares * self.coop.lanes as usize
    }

    /// Tokens of a workgroup.
    pub fn tokens(self) -> usize {
        self.groups * self.token_tiles * self.coop.size as usize
    }

    /// Context rows of its tile.
    fn rows(self) -> usize {
        self.shares * self.row_tiles * self.coop.size as usize
    }

    /// Bytes of workgroup memory.
    fn bytes(self, dims: KvDims) -> usize {
        let size = self.coop.size as usize;
        let subgroups = self.groups * self.shares;
        let rows = self.rows() * (dims.mla.head().max(dims.v) + 8);
        let queries = subgroups * self.token_tiles * size * (self.query_columns + 8);
        let scores = (self.tokens() * (self.rows() + 4)).max(subgroups * size * size);
        rows.max(queries) * 2 + scores * 4 + self.tokens() * ((self.rows() + 8) * 2 + 4) + 16
    }

    /// Whether the kernel can work on these sizes: whole tiles for every subgroup, whole loads for every thread.
    pub fn fits(self, dims: KvDims) -> bool {
        let size = self.coop.size as usize;
        let (threads, lanes) = (self.threads(), self.coop.lanes as usize);
        let columns = [dims.mla.nope, dims.mla.rope, dims.v];
        dims.v <= self.widest
            && self.bytes(dims) <= 32 << 10
            && threads <= 256
            && columns
                .iter()
                .all(|n| n.is_multiple_of(4) && (self.rows() * n / 4).is_multiple_of(threads))
            && [dims.mla.nope, dims.mla.rope]
                .iter()
                .all(|n| n.is_multiple_of(self.query_columns))
            && self.query_columns.is_multiple_of(size)
            && (self.token_tiles * size * self.query_columns / 4).is_multiple_of(lanes)
            && dims.v.is_multiple_of(size * self.shares)
            && dims.mla.kv_lora.is_multiple_of(4)
    }

    pub fn spec(self, dims: KvDims) -> Spec {
        assert!(self.fits(dims), "prompt_attention_coop: {self:?}, {dims:?}");
        let size = self.coop.size as usize;
        let (threads, lanes) = (self.threads(), self.coop.lanes as usize);
        let loads = |columns: usize| self.rows() * columns / 4 / threads;
        let spread = threads / self.tokens();
        let variant = [
            ("WG", threads),
            ("LANES", lanes),
            ("MAT", size),
            ("GROUPS", self.groups),
            ("SHARES", self.shares),
            ("TOKEN_TILES", self.token_tiles),
            ("ROW_TILES", self.row_tiles),
            ("VALUE_TILES", dims.v / size / self.shares),
            ("QUERY_COLUMNS", self.query_columns),
            ("QUERY_PARTS", dims.mla.head() / self.query_columns),
            ("QUERY_STEPS", self.query_columns / size),
            (
                "QUERY_LOADS",
                self.token_tiles * size * self.query_columns / 4 / lanes,
            ),
            ("KEY_LOADS", loads(dims.mla.nope)),
            ("ROPE_LOADS", loads(dims.mla.rope)),
            ("VALUE_LOADS", loads(dims.v)),
            ("SQUARE_LOADS", size * size / lanes),
            ("THREAD_ROWS", self.rows() / spread),
            ("WEIGHT_STEPS", self.rows() / size),
        ]
        .into_iter()
        .fold(numbers(dims), |v, (name, n)| v.number(name, n as u32))
        .module("MATRICES", coop::module(size))
        .flag("VECTORS", self.vectors);
        Spec {
            kernel: "prompt_attention_coop",
            source: include_str!("../../wgsl/prompt_attention_coop.wgsl"),
            variant,
            access: accesses("rrrrww"),
        }
    }
}

/// The shape for a device's matrices, where one suits the sizes.
pub(super) fn best(dims: KvDims, coop: Coop) -> Option<Shape> {
    SHAPES
        .into_iter()
        .find(|shape| shape.coop == coop && shape.fits(dims))
}
