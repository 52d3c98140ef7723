//! Copies of all experts of a layer to their places on the device, in parts that stand beside other dispatches.

use super::expert_fill::Copies;
use super::expert_slots::Table;
use crate::gpu::call::{Blocks, Call, Extent, Word};
use crate::gpu::machine::workgroups::{
    EXPERT_PART as WG, EXPERT_PART_KEEPING as KEEPING, EXPERT_PART_LOADS as LOADS,
    EXPERT_PART_MISSING as MISSING,
};
use crate::gpu::memory::GpuWeight;
use crate::quant::GgmlType;
use crate::quant::repack::{Planes, head, sections, sub_plane_words};
use std::ops;

/// Bytes of a part, unless it is the last of a plane of an expert.
const PART: u32 = WG * LOADS * 16;

/// The copies of all experts of a weight.
#[derive(Clone, Copy)]
pub struct GpuExpertParts<'a> {
    /// All experts of a layer, in host memory or wherever they lie.
    pub host: &'a GpuWeight,
    /// The slots that keep some of them, and which.
    pub kept: Option<(&'a GpuWeight, &'a Table)>,
    /// The places of all.
    pub to: &'a GpuWeight,
}

impl<'a> GpuExpertParts<'a> {
    fn copies(self) -> Copies<'a> {
        Copies {
            host: self.host,
            kept: self.kept.map(|(kept, _)| kept),
            to: self.to,
        }
    }

    /// The parts of all experts.
    pub fn count(self) -> u32 {
        self.copies().parts(WG * LOADS)[1] * self.host.groups
    }

    /// Bytes that all parts read of host memory, if all slots keep an expert.
    pub fn bytes_of_host(self) -> f64 {
        let kept = self.kept.map_or(0, |(kept, _)| kept.groups);
        let missing = self.host.groups.saturating_sub(kept);
        f64::from(missing) * self.copies().bytes() as f64
    }

    /// The dispatch that copies the parts of these numbers. If it is repeated for `blocks` of the context, each time it copies the share of
    /// a block.
    ///
    /// # Panics
    /// If the weights are not alike, or have more than one piece.
    pub fn call(self, parts: ops::Range<u32>, blocks: Option<Blocks>) -> Call {
        let share = f64::from(parts.end - parts.start) / f64::from(self.count());
        let keeping = match self.kept {
            Some(_) => KEEPING,
            None => 0,
        };
        let call = Call::new("expert_part")
            .number("MISSING", MISSING)
            .number("KEEPING", keeping)
            .number("EXPERTS", self.host.groups)
            .word("first", parts.start)
            .word("behind", parts.end)
            .bind_some("table", self.kept.map(|(_, table)| &table.words));
        let call = self
            .copies()
            .bound(call, [WG, LOADS])
            .grid([MISSING + keeping, 1, 1].map(Extent::N))
            .with_bytes_of_blocks((share * self.bytes_of_host()) as u64);
        match blocks {
            None => call,
            Some(blocks) => call
                .word("block_begin", Word::BlockBegin)
                .word("block_rows", Word::BlockRows)
                .word("pos", Word::Pos)
                .word("tokens", Word::Tokens)
                .per_block(blocks),
        }
    }
}

/// Copies `parts` of all experts, each of `rows` rows of `cols` weights, from the planes of `host` to those of `to`. If there are slots, an
/// expert whose word in their table is 1 + its slot comes from that one, in the planes of `kept`.
pub fn expert_part(
    (ty, [rows, cols]): (GgmlType, [usize; 2]),
    parts: ops::Range<u32>,
    (experts, host): (usize, &Planes),
    kept: Option<(usize, &Planes, &[u32])>,
    to: &mut Planes,
) {
    let of = sections(ty, 2 * rows, cols, 0..rows);
    let [quants, records, subs] = [of.quants, of.records, of.subs].map(|s| s.len());
    let head = head(ty).len();
    // Where a byte of an expert lies in its two planes, if these have so many experts.
    let at = |count: usize, expert: usize, byte: usize| match byte.checked_sub(records) {
        None => head + expert * records + byte,
        Some(byte) => 4 * sub_plane_words(ty, count * rows, cols) + expert * subs + byte,
    };
    let quant_parts = quants.div_ceil(PART as usize);
    for i in parts.map(|i| i as usize) {
        let (part, expert) = (i / experts, i % experts);
        let slot = kept.map_or(0, |(_, _, table)| table[4 + expert] as usize);
        let (count, from, source) = match (kept, slot) {
            (Some((slots, kept, _)), 1..) => (slots, kept, slot - 1),
            _ => (experts, host, expert),
        };
        let own = |part: usize, end: usize| {
            let begin = part * PART as usize;
            begin..end.min(begin + PART as usize)
        };
        match part.checked_sub(quant_parts) {
            None => {
                for byte in own(part, quants) {
                    to.quants[expert * quants + byte] = from.quants[source * quants + byte];
                }
            }
            Some(part) => {
                for byte in own(part, records + subs) {
                    let value = from.scales[at(count, source, byte)];
                    to.scales[at(experts, expert, byte)] = value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::buffer::Range;
    use crate::gpu::testing::{gpus, unmade_weight};
    use crate::kernels::cases::expert_part::cases;
    use crate::kernels::testing::agree_everywhere;
    use crate::kernels::testing::bounds::needs_every_byte;

    #[test]
    fn every_index_lies_in_its_buffer() {
        for ty in [GgmlType::Q4_0, GgmlType::Q6_K, GgmlType::IQ2_XS] {
            let host = unmade_weight(ty, 1, 16, 256).room("host", 8);
            let table = Table {
                words: Range::words("table", 4 + 8),
                slots: 2,
            };
            let all = GpuExpertParts {
                host: &host,
                kept: Some((&host.room("kept", 2), &table)),
                to: &host.room("to", 8),
            };
            let blocks = Some(Blocks::new(64, 100));
            needs_every_byte(&all.call(0..all.count(), blocks), Most::token(1));
        }
    }

    #[test]
    fn the_gpu_copies_what_its_twin_copies() {
        agree_everywhere(gpus(), |_| cases());
    }
}
