//! Cases of copies of experts, of every type.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::kernels::expert_fill::{GpuExpertFill, expert_fill};
use crate::kernels::expert_slots::NONE;
use crate::kernels::expert_sources::KEPT;
use crate::quant::GgmlType;
use crate::quant::repack::Planes;

/// Copies to places in any order, from anywhere, beside entries that copy nothing; or to every place of a new room.
fn compare(
    lab: &Lab<'_>,
    ty: GgmlType,
    [count, rows, cols]: [usize; 3],
) -> Result<Vec<Compared>, GpuError> {
    let weight = |groups: usize| lab.weight(ty, [groups, rows, cols]);
    let (slots, places) = (1 + lab.below(3), 1 + lab.below(count));
    let (host, kept, before) = (weight(count), weight(slots), weight(places));
    let (has_slots, is_room) = (lab.below(2) == 1, lab.below(2) == 1);
    let mut free: Vec<u32> = (0..places as u32).collect();
    lab.shuffle(&mut free);
    // At least the first one copies something.
    let entry = |(i, place): (usize, u32)| match lab.below(3) {
        0 if !is_room && i > 0 => [NONE, place],
        1 if has_slots => [KEPT + lab.below(slots) as u32, place],
        _ => [lab.below(count) as u32, place],
    };
    let fills: Vec<[u32; 2]> = free.into_iter().enumerate().map(entry).collect();
    let [on_host, on_kept, to] = [&host, &kept, &before].map(|w| lab.load(w));
    let (on_host, on_kept) = (on_host?, on_kept?);
    let to = match is_room {
        true => on_host.room("places", places as u32),
        false => to?,
    };
    let fill = GpuExpertFill {
        host: &on_host,
        kept: has_slots.then_some(&on_kept),
        to: &to,
        fills: lab.given(fills.as_flattened()),
        entries: fills.len() as u32,
        expected: 0.0,
    };
    lab.run(vec![fill.call()], state(1, 0))?;
    let own = |place: usize| before.rows_bytes(place, 0..rows).to_vec();
    let mut twin: Vec<_> = (0..places).map(own).collect();
    expert_fill(&fills, &host, has_slots.then_some(&kept), &mut twin);
    let twin = Planes::new(ty, places * rows, cols, &twin.concat());
    let piece = &to.pieces[0];
    Ok(vec![
        lab.same(&piece.quants, &twin.quants)?,
        lab.same(&piece.scales, &twin.scales)?,
    ])
}

pub(crate) fn cases() -> Vec<Case> {
    of_shapes(compare)
}

/// A comparison of a kernel that copies experts of a type and of these sizes, (experts, rows, cols), with its twin.
type Compare = fn(&Lab<'_>, GgmlType, [usize; 3]) -> Result<Vec<Compared>, GpuError>;

/// Cases of a kernel that copies experts, of every type and in several sizes.
pub(super) fn of_shapes(compare: Compare) -> Vec<Case> {
    let case = |ty: GgmlType, sizes: [usize; 3]| {
        let [count, rows, cols] = sizes;
        let name = format!("{ty} {count}x{rows}x{cols}");
        Case::new(name, move |lab| compare(lab, ty, sizes))
    };
    let of_types = GgmlType::ALL.iter().map(|ty| {
        let case = case(*ty, [5, 48, 256]);
        case.verified_if(*ty == GgmlType::Q6_K)
    });
    let mut all: Vec<_> = of_types.collect();
    // Experts of several parts in each plane, more parts than workgroups, and an odd number of rows of 32 weights.
    all.push(case(GgmlType::Q8_0, [6, 144, 2048]).verified());
    all.push(case(GgmlType::Q4_K, [64, 64, 2048]));
    all.push(case(GgmlType::Q4_0, [4, 16, 96]));
    all
}
