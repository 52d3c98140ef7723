//! Copies of experts that lie in host memory to their places on the device.

use super::MAX_GRID;
use super::expert_slots::NONE;
use super::expert_sources::KEPT;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::{EXPERT_FILL as WG, EXPERT_FILL_LOADS as LOADS};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::model::Weight;
use crate::quant::repack::{Sections, head, sections};

/// The copies of a list.
pub struct GpuExpertFill<'a> {
    /// All experts of a layer, in host memory or wherever they lie.
    pub host: &'a GpuWeight,
    /// The slots that keep some of them, where the list names any.
    pub kept: Option<&'a GpuWeight>,
    /// The places.
    pub to: &'a GpuWeight,
    /// The pairs (source, place), (entries, 2) u32.
    pub fills: Range,
    /// Entries of the list.
    pub entries: u32,
    /// Entries that are expected to copy an expert, for profiles: which ones do is known on the device alone.
    pub expected: f64,
}

/// The planes of a weight in one piece, as vectors that mean nothing.
fn planes(weight: &GpuWeight) -> [Range; 2] {
    let Piece { quants, scales, .. } = piece(weight);
    [quants, scales].map(|plane| plane.clone().holding(Role::Words))
}

/// The only piece of a weight.
fn piece(weight: &GpuWeight) -> &Piece {
    match &weight.pieces[..] {
        [piece] => piece,
        pieces => panic!("{} in {} pieces", weight.name, pieces.len()),
    }
}

/// Copies of experts of one weight to places on the device, whole or in parts.
#[derive(Clone, Copy)]
pub(super) struct Copies<'a> {
    pub host: &'a GpuWeight,
    pub kept: Option<&'a GpuWeight>,
    pub to: &'a GpuWeight,
}

impl Copies<'_> {
    /// Bytes of an expert.
    pub(super) fn bytes(self) -> usize {
        self.sections().bytes()
    }

    /// The parts of an expert: of its quants, and of all planes. Each has `vectors` vectors.
    ///
    /// # Panics
    /// If they are more than a grid has workgroups.
    pub(super) fn parts(self, vectors: u32) -> [u32; 2] {
        let of = self.sections();
        let parts = |bytes: usize| (bytes / 16).div_ceil(vectors as usize) as u32;
        let quants = parts(of.quants.len());
        let all = quants + parts(of.records.len() + of.subs.len());
        assert!(all <= MAX_GRID, "{all} parts of an expert");
        [quants, all]
    }

    /// The run of the first of two experts, which has no padding behind it.
    fn sections(self) -> Sections {
        let (rows, cols) = (self.host.rows as usize, self.host.cols as usize);
        sections(self.host.ty, 2 * rows, cols, 0..rows)
    }

    /// `call` with all that `shared/expert_copy.wgsl` declares, for workgroups of `wg` threads, of which each requests `loads` vectors at once.
    ///
    /// # Panics
    /// If the weights are not alike, or have more than one piece.
    pub(super) fn bound(self, call: Call, [wg, loads]: [u32; 2]) -> Call {
        let Self { host, kept, to } = self;
        for other in kept.into_iter().chain([to]) {
            let form = |w: &GpuWeight| (w.ty, w.rows, w.cols);
            assert_eq!(form(host), form(other), "{} and {}", host.name, other.name);
        }
        let of = self.sections();
        let [quants, records, subs] =
            [of.quants, of.records, of.subs].map(|s| (s.len() / 16) as u32);
        let sub = |weight: &GpuWeight| piece(weight).sub / 4;
        let [host_q, host_s] = planes(host);
        let [to_q, to_s] = planes(to);
        let call = call
            .number("WG", wg)
            .number("LOADS", loads)
            .word("quants", quants)
            .word("head", (head(host.ty).len() / 16) as u32)
            .word("records", records)
            .word("subs", subs)
            .word("quant_parts", self.parts(wg * loads)[0])
            .word("experts", host.groups)
            .word("places", to.groups)
            .word("host_sub", sub(host))
            .word("to_sub", sub(to))
            .bind("host_q", &host_q)
            .bind("host_s", &host_s)
            .bind("to_q", &to_q)
            .bind("to_s", &to_s)
            .with_shape(format!("{}x{}", host.rows, host.cols));
        let Some(kept) = kept else {
            return call;
        };
        let [kept_q, kept_s] = planes(kept);
        call.word("slots", kept.groups)
            .word("kept_sub", sub(kept))
            .bind("kept_q", &kept_q)
            .bind("kept_s", &kept_s)
    }
}

impl GpuExpertFill<'_> {
    /// The dispatch.
    ///
    /// # Panics
    /// If the weights are not alike, or have more than one piece.
    pub fn call(&self) -> Call {
        let copies = Copies {
            host: self.host,
            kept: self.kept,
            to: self.to,
        };
        let [_, parts] = copies.parts(WG * LOADS);
        let bytes = self.expected * copies.bytes() as f64;
        let call = Call::new("expert_fill").bind("fills", &self.fills);
        copies
            .bound(call, [WG, LOADS])
            .grid([parts, self.entries, 1].map(Extent::N))
            .with_bytes(bytes as u64)
    }
}

/// Copies experts of `host` and slots of `kept` to `places`, as pairs (source, place) tell: the rows of each as the file has them.
///
/// # Panics
/// If a source or a place is out of range.
pub fn expert_fill(
    fills: &[[u32; 2]],
    host: &Weight,
    kept: Option<&Weight>,
    places: &mut [Vec<u8>],
) {
    for &[source, place] in fills.iter().filter(|[source, _]| *source != NONE) {
        let of = |weight: &Weight, group: u32| {
            weight.rows_bytes(group as usize, 0..weight.rows).to_vec()
        };
        places[place as usize] = match (source.checked_sub(KEPT), kept) {
            (Some(slot), Some(kept)) => of(kept, slot),
            _ => of(host, source),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::testing::gpus;
    use crate::gpu::testing::unmade_weight;
    use crate::kernels::cases::expert_fill::cases;
    use crate::kernels::testing::agree_everywhere;
    use crate::kernels::testing::bounds::needs_every_byte;
    use crate::quant::GgmlType;

    #[test]
    fn every_index_lies_in_its_buffer() {
        for ty in [
            GgmlType::Q4_0,
            GgmlType::Q6_K,
            GgmlType::Q8_0,
            GgmlType::IQ1_S,
            GgmlType::IQ2_XS,
            GgmlType::IQ3_S,
        ] {
            let host = unmade_weight(ty, 1, 16, 256).room("host", 5);
            let fill = GpuExpertFill {
                host: &host,
                kept: Some(&host.room("kept", 2)),
                to: &host.room("to", 3),
                fills: Range::words("fills", 2 * 6),
                entries: 6,
                expected: 0.0,
            };
            needs_every_byte(&fill.call(), Most::token(1));
        }
    }

    #[test]
    fn the_gpu_copies_what_its_twin_copies() {
        agree_everywhere(gpus(), |_| cases());
    }
}
