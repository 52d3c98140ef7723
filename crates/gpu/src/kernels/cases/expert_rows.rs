//! Cases of the slots of prompts, sorted by expert.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::kernels::expert_rows::{GpuExpertRows, TileList, expert_rows, tile_count};

/// Experts of tokens, of which only the first `most` are anywhere the first of a token.
fn compare(
    lab: &Lab<'_>,
    [count, used, tokens]: [usize; 3],
    heights: &[usize],
    most: usize,
) -> Result<Vec<Compared>, GpuError> {
    let of_token = |_| {
        let first = lab.below(most);
        (0..used).map(move |k| ((first + k) % count) as u32)
    };
    let mut ids: Vec<u32> = (0..tokens).flat_map(of_token).collect();
    let (slots, lists) = expert_rows(&ids, count, heights);
    // On the CPU, a read behind buffers that end with the tokens shows.
    let behind = if most == count { 3 } else { 0 };
    let max_tokens = tokens + behind;
    ids.resize(used * max_tokens, u32::MAX);
    let tiles = |tokens: usize, height: usize| {
        let [tokens, used, height, count] = [tokens, used, height, count].map(|n| n as u32);
        tile_count(tokens, used, height, count) as usize
    };
    let list = |&height: &usize| TileList {
        height: height as u32,
        tiles: lab.words(4 * tiles(max_tokens, height)),
    };
    let call = GpuExpertRows {
        ids: lab.given(&ids),
        experts: count as u32,
        used: used as u32,
        slots: lab.words(ids.len()),
        lists: heights.iter().map(list).collect(),
        counts: lab.given(&vec![7u32; 6 * heights.len()]),
    };
    lab.run(vec![call.call()], state(tokens, 0))?;
    let filled = lists.iter().flat_map(|list| [list.len() as u32; 2]);
    let filled: Vec<_> = filled.map(|n| [7, n, 7]).collect();
    let mut all = vec![
        lab.same(&call.slots, &slots)?,
        lab.same(&call.counts, &filled)?,
    ];
    for ((mut expected, found), &height) in lists.into_iter().zip(&call.lists).zip(heights) {
        let covered = tiles(tokens, height);
        let fits = expected.len() <= covered;
        all.push(lab.holds(fits, || format!("{} of {covered} tiles", expected.len())));
        expected.resize(covered, [0; 4]);
        expected.resize(tiles(max_tokens, height), [u32::MAX; 4]);
        all.push(lab.same(&found.tiles, &expected)?);
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let sizes: [([usize; 3], &'static [usize]); 10] = [
        ([64, 4, 2048], &[128]),
        ([64, 6, 100], &[16]),
        ([64, 6, 1], &[64]),
        ([8, 2, 37], &[32]),
        ([256, 8, 511], &[16]),
        ([1, 1, 40], &[16]),
        ([64, 4, 512], &[64, 128]),
        ([64, 4, 1], &[64, 128]),
        ([64, 6, 300], &[32, 64]),
        ([8, 2, 37], &[16, 32]),
    ];
    let case = |(of, heights): ([usize; 3], &'static [usize])| {
        let [count, used, tokens] = of;
        let name = format!("{used} of {count}, {tokens} tokens, tiles of {heights:?}");
        let case = Case::new(name, move |lab| {
            let mut all = vec![];
            // Any choice; the same for all; none for most: an expert with no token and one with all.
            for most in [count, used, used.min(count / 2).max(1)] {
                all.extend(compare(lab, of, heights, most)?);
            }
            Ok(all)
        });
        case.verified_if(tokens == 512)
    };
    sizes.map(case).into()
}
