//! Copies of experts that lie in host memory to their places on the device.

use super::MAX_GRID;
use super::expert_slots::NONE;
use super::expert_sources::KEPT;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::{EXPERT_FILL as WG, EXPERT_FILL_LOADS as LOADS};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::model::Weight;
use crate::quant::repack::{head, sections};

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

impl GpuExpertFill<'_> {
    /// The dispatch.
    ///
    /// # Panics
    /// If the weights are not alike, or have more than one piece.
    pub fn call(&self) -> Call {
        let (host, to) = (self.host, self.to);
        for other in self.kept.into_iter().chain([to]) {
            let form = |w: &GpuWeight| (w.ty, w.rows, w.cols);
            assert_eq!(form(host), form(other), "{} and {}", host.name, other.name);
        }
        // The vectors of an expert: the run of the first of two, which has no padding behind it.
        let (rows, cols) = (host.rows as usize, host.cols as usize);
        let of = sections(host.ty, 2 * rows, cols, 0..rows);
        let vectors = |bytes: usize| (bytes / 16) as u32;
        let [quants, records, subs] = [of.quants, of.records, of.subs].map(|s| vectors(s.len()));
        let sub = |weight: &GpuWeight| piece(weight).sub / 4;
        let parts = |vectors: u32| vectors.div_ceil(WG * LOADS);
        let all_parts = parts(quants) + parts(records + subs);
        assert!(all_parts <= MAX_GRID, "{all_parts} parts of an expert");
        let [host_q, host_s] = planes(host);
        let [to_q, to_s] = planes(to);
        let mut call = Call::new("expert_fill")
            .number("WG", WG)
            .number("LOADS", LOADS)
            .word("quants", quants)
            .word("head", vectors(head(host.ty).len()))
            .word("records", records)
            .word("subs", subs)
            .word("quant_parts", parts(quants))
            .word("experts", host.groups)
            .word("places", to.groups)
            .word("host_sub", sub(host))
            .word("to_sub", sub(to))
            .bind("fills", &self.fills)
            .bind("host_q", &host_q)
            .bind("host_s", &host_s)
            .bind("to_q", &to_q)
            .bind("to_s", &to_s);
        if let Some(kept) = self.kept {
            let [kept_q, kept_s] = planes(kept);
            call = call
                .word("slots", kept.groups)
                .word("kept_sub", sub(kept))
                .bind("kept_q", &kept_q)
                .bind("kept_s", &kept_s);
        }
        let bytes = self.expected * 16.0 * f64::from(quants + records + subs);
        call.grid([all_parts, self.entries, 1].map(Extent::N))
            .with_bytes(bytes as u64)
            .with_shape(format!("{}x{}", host.rows, host.cols))
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
