//! How the products of few tokens are divided among threads by default.
//!
//! The numbers were measured on an NVIDIA H200 through Vulkan. `benches/notes.md` has the measurements, under "Decoding: products" and "Steps
//! of several sequences". A number that is called reckoned was not measured.

use serde::{Deserialize, Serialize};

/// How a workgroup divides its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// Threads that share a row: a power of two, at most [`Machine::lanes`](super::Machine::lanes), or 64 where
    /// [`Site::two_runs`](crate::gpu::geometry::Site::two_runs) says so.
    pub lanes: u32,
    /// Rows of a workgroup.
    pub tile: u32,
    /// Rows that the same threads multiply at once, so that they load the input once for all of them.
    pub at_once: u32,
    /// Units of 32 weights of a row that a thread asks for at once.
    pub unroll: u32,
}

impl Geometry {
    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.lanes * self.tile / self.at_once
    }
}

/// The most threads that share a row in a product of a decoded token.
pub(crate) const LANES: u32 = 32;
/// The most threads that share a row of a tall matrix, so that a subgroup of 32 has two rows. Workgroups that share work before they multiply
/// take as few.
pub(crate) const NARROW_LANES: u32 = 16;
/// The threads that share a row whose units do not [divide well](divide_well) among more.
pub(crate) const FEW_LANES: u32 = 8;
/// The most units of 32 weights of a row that gets a thread for each unit. Reckoned.
pub(crate) const SHORT_UNITS: u32 = 16;
/// Rows of a tall matrix that the same threads multiply at once, so that they load the input half as often. Workgroups with too few threads
/// for their rows do the same.
pub(crate) const ROWS_AT_ONCE: u32 = 2;
/// The gain of a workgroup that shares work before it multiplies. It may have this factor more threads, and this factor fewer
/// workgroups are enough.
pub(crate) const SHARING: u32 = 2;

/// Whether `units` units divide well among `lanes` threads: whole rounds of all threads have room for at most an eighth more. Reckoned.
pub(crate) const fn divide_well(units: u32, lanes: u32) -> bool {
    units.next_multiple_of(lanes) * 8 <= units * 9
}

/// The fewest and the most of several tokens that a workgroup takes at once. Both are powers of two. Registers hold the sums of each token.
pub(crate) const TOKENS_AT_ONCE: [u32; 2] = [2, 8];
/// The most threads that add up the squares of a token on devices without subgroups. Reckoned.
pub(crate) const SQUARE_THREADS: u32 = 16;

/// A product that reads a weight once for several tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfSeveral {
    /// Whether the sums of the threads of a row meet in subgroups.
    pub subgroups: bool,
    /// Whether the input is the residual stream in f32.
    pub stream: bool,
    /// Whether the weight is that of experts.
    pub experts: bool,
    /// Whether there are two weights, gate and up.
    pub pair: bool,
    /// Whether the input is bytes.
    pub bytes: bool,
    /// Whether the output leaves prepared.
    pub prepared: bool,
    /// Units of 32 weights of a row.
    pub units: u32,
    /// Rows of a group.
    pub rows: u32,
    /// Tokens that a workgroup takes at once.
    pub places: u32,
}

impl OfSeveral {
    /// The geometry with subgroups of 32: more threads share a row where rows are long or workgroups are few. Reckoned for devices without
    /// subgroups.
    pub(crate) const fn geometry(self) -> Geometry {
        let many_places = self.places > 4;
        match self.units {
            _ if !self.subgroups => geometry(8, 16, 1, 1),
            _ if self.stream && self.places > 1 => geometry(16, 8, 1, 1),
            _ if self.stream => geometry(32, 4, 1, 1),
            _ if self.experts && self.bytes && self.places > 2 => geometry(8, 16, 2, 1),
            _ if self.experts => geometry(16, 16, 2, 1),
            ..=8 if many_places => geometry(4, 64, 1, 1),
            ..=16 if many_places => geometry(8, 64, 2, 1),
            ..=16 => geometry(16, 16, 1, 1),
            17..=31 => geometry(8, 32, 1, 1),
            // No other weight has as many rows as an output head.
            _ if self.rows > 32_768 => geometry(16, 32, 2, 1),
            // Gate and up of a shared expert.
            _ if self.pair && self.rows <= 4096 && self.places <= 2 => geometry(16, 16, 1, 2),
            _ if self.pair && self.rows <= 4096 => geometry(16, 16, 1, 1),
            // A thread takes one of few rows at once, so that there are more threads. Prepared rows need tiles of 16.
            _ if self.rows <= 1024 && self.places <= 2 && self.prepared => geometry(32, 16, 1, 1),
            _ if self.rows <= 1024 && self.places <= 2 => geometry(32, 4, 1, 1),
            _ => geometry(32, 16, 2, 1),
        }
    }
}

const fn geometry(lanes: u32, tile: u32, at_once: u32, unroll: u32) -> Geometry {
    Geometry {
        lanes,
        tile,
        at_once,
        unroll,
    }
}
