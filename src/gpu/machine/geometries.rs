//! How the products of few tokens are divided among threads by default. It was measured on an NVIDIA H200 through Vulkan (benches/notes.md,
//! "Decoding: products" and "Steps of several sequences"). What is called reckoned has no measurement there.

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

/// Threads that share a row of a decoded token's product at most. `glimt tune` kept them at K = 2048.
pub(crate) const LANES: u32 = 32;
/// The same of tall matrices, of which a subgroup of 32 then has two rows, and of workgroups that share work before they multiply. Of
/// experts that was 3 to 5% of a token of GLM-4.7-Flash Q4_K_M and DeepSeek-V2-Lite.
pub(crate) const NARROW_LANES: u32 = 16;
/// The same where a row's units [divide well](divide_well) among no more. `glimt tune` kept them at K = 768.
pub(crate) const FEW_LANES: u32 = 8;
/// Units of 32 weights of a short row at most. It has a thread for each of them. Reckoned.
pub(crate) const SHORT_UNITS: u32 = 16;
/// Rows that the same threads multiply at once of a tall matrix, whose input they load half as often then, and where a workgroup has too
/// few threads for all its rows.
pub(crate) const ROWS_AT_ONCE: u32 = 2;
/// How many times as many threads a workgroup has at most that shares work before it multiplies, and how many times fewer workgroups are
/// enough then.
pub(crate) const SHARING: u32 = 2;

/// Whether so many units divide well among so many threads: these have room for an eighth more at most. Reckoned.
pub(crate) const fn divide_well(units: u32, lanes: u32) -> bool {
    units.next_multiple_of(lanes) * 8 <= units * 9
}

/// Gate and up of the experts of several tokens, each of which has workgroups of its own, with subgroups of 32.
pub(crate) const GATE_UP_OF_SEVERAL: Geometry = geometry(16, 32, 1, 2);
/// Down of them.
pub(crate) const DOWN_OF_SEVERAL: Geometry = geometry(16, 16, 1, 1);

/// Of several tokens the fewest and the most that a workgroup takes at once, powers of two: registers hold the sums of so many.
pub(crate) const TOKENS_AT_ONCE: [u32; 2] = [2, 8];
/// Threads that add up the squares of a token at most, where no subgroups join their sums. Reckoned.
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
    /// Units of 32 weights of a row.
    pub units: u32,
    /// Rows of a group.
    pub rows: u32,
    /// Tokens that a workgroup takes at once.
    pub places: u32,
}

impl OfSeveral {
    /// Its geometry with subgroups of 32, wide where rows are long or workgroups are few. Without subgroups it is reckoned.
    pub(crate) const fn geometry(self) -> Geometry {
        let Self {
            units,
            rows,
            places,
            ..
        } = self;
        match self {
            Self {
                subgroups: false, ..
            } => geometry(8, 16, 1, 1),
            Self { stream: true, .. } => geometry(32, 4, 1, 1),
            Self { experts: true, .. } => geometry(16, 16, 2, 1),
            _ if units <= 16 && places > 4 => geometry(8, 64, 2, 1),
            _ if units <= 16 => geometry(16, 16, 1, 1),
            _ if units < 32 && places > 4 => geometry(8, 32, 2, 1),
            // No other weight has as many rows as an output head.
            _ if rows > 32_768 => geometry(16, 32, 2, 1),
            // A thread takes one of few rows at once, so that there are more threads.
            _ if rows <= 1024 && places <= 2 => geometry(32, 16, 1, 1),
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
