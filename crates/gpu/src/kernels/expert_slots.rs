//! The choice of a token's experts, where each has its place among the slots of a layer, and what must be copied there.

use crate::gpu::buffer::Range;

/// The table of `slots` slots for `experts` experts. It begins with zeros: no slot has an expert.
pub fn table(experts: u32, slots: u32) -> Range {
    Range::words("table of slots", u64::from(4 + 2 * experts + slots))
}
