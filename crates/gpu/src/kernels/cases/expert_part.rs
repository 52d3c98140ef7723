//! Cases of copies of all experts in parts, of every type.

use super::lab::{Compared, Lab, state};
use super::{Case, expert_fill};
use crate::gpu::GpuError;
use crate::gpu::call::Blocks;
use crate::kernels::expert_part::{GpuExpertParts, expert_part};
use crate::kernels::expert_slots::Table;
use crate::quant::GgmlType;
use crate::quant::repack::Planes;

/// Copies some runs of parts, one of them for each block of a context, and leaves all else as it was.
fn compare(
    lab: &Lab<'_>,
    ty: GgmlType,
    [count, rows, cols]: [usize; 3],
) -> Result<Vec<Compared>, GpuError> {
    let slots = 1 + lab.below(count);
    let weights = [count, slots, count].map(|groups| lab.weight(ty, [groups, rows, cols]));
    let [host, kept, before] = &weights;
    let planes = |w: &crate::model::Weight| {
        let bytes: Vec<u8> = (0..w.groups)
            .flat_map(|g| w.rows_bytes(g, 0..rows).to_vec())
            .collect();
        Planes::new(ty, w.groups * rows, cols, &bytes)
    };
    let [on_host, on_kept, to] = [host, kept, before].map(|w| lab.load(w));
    let (on_host, on_kept, to) = (on_host?, on_kept?, to?);
    // Some slots are empty, the others keep any experts.
    let mut words = vec![0; 4 + 2 * count + slots];
    let mut experts: Vec<usize> = (0..count).collect();
    lab.shuffle(&mut experts);
    for (slot, expert) in experts.into_iter().take(slots).enumerate() {
        if lab.below(3) > 0 {
            words[4 + expert] = 1 + slot as u32;
            words[4 + 2 * count + slot] = 1 + expert as u32;
        }
    }
    let table = Table {
        words: lab.given(&words),
        slots: slots as u32,
    };
    let has_slots = lab.below(3) > 0;
    let all = GpuExpertParts {
        host: &on_host,
        kept: has_slots.then_some((&on_kept, &table)),
        to: &to,
    };
    let mut ends: Vec<u32> = (0..4)
        .map(|_| lab.below(all.count() as usize + 1) as u32)
        .collect();
    ends.sort_unstable();
    let context = 1 + lab.below(300);
    let tokens = 1 + lab.below(context);
    let blocks = Blocks::new(64, 512);
    let calls = vec![
        all.call(ends[0]..ends[1], None),
        all.call(ends[2]..ends[3], Some(blocks)),
    ];
    lab.run(calls, state(tokens, context - tokens))?;
    let mut twin = planes(before);
    let (host, kept) = (planes(host), planes(kept));
    let kept = has_slots.then_some((slots, &kept, &words[..]));
    for parts in [ends[0]..ends[1], ends[2]..ends[3]] {
        expert_part((ty, [rows, cols]), parts, (count, &host), kept, &mut twin);
    }
    let piece = &to.pieces[0];
    Ok(vec![
        lab.same(&piece.quants, &twin.quants)?,
        lab.same(&piece.scales, &twin.scales)?,
    ])
}

pub(crate) fn cases() -> Vec<Case> {
    expert_fill::of_shapes(compare)
}
