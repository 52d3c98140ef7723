//! Cases of the slots that the experts of a step of several tokens get, in steps one after the other.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::Several;
use crate::gpu::{GpuError, Most};
use crate::kernels::batch_experts::{TILE_WORDS, tiles_of};
use crate::kernels::expert_places::{GpuExpertPlaces, expert_places, most_chosen};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::expert_slots::{NONE, Table};
use crate::kernels::expert_sources::ChosenBy;

/// The words of a table of `slots` slots for `count` experts after some tokens: some slots are empty, and counts are often equal.
pub(super) fn words(lab: &Lab<'_>, count: usize, slots: usize) -> Vec<u32> {
    let mut held: Vec<u32> = (0..count as u32).collect();
    lab.shuffle(&mut held);
    let mut words = vec![0; 4 + 2 * count + slots];
    // A decay comes soon, and the numbers of hits and misses are any.
    words[..3].copy_from_slice(&[50 + lab.below(12) as u32, 9, 7]);
    for (slot, expert) in (0..slots).zip(held) {
        if lab.below(8) > 0 {
            words[4 + 2 * count + slot] = expert + 1;
            words[4 + expert as usize] = slot as u32 + 1;
        }
    }
    words[4 + count..4 + 2 * count].fill_with(|| (lab.below(4) << 16) as u32);
    words
}

/// Some steps of up to `most` tokens, by ids and by tiles in turn.
fn compare(lab: &Lab<'_>, [count, used, most]: [usize; 3]) -> Result<Vec<Compared>, GpuError> {
    let experts = [count, used].map(|n| n as u32);
    let fills = most_chosen(most as u32, experts) as usize;
    let slots = fills + lab.below(count + 1 - fills);
    let mut twin = words(lab, count, slots);
    let table = Table {
        words: lab.given(&twin),
        slots: slots as u32,
    };
    let mut all = vec![];
    for step in 0..6 {
        let here = 1 + lab.below(most);
        let ids = &Several { here, most }.experts(lab, [count, used])[..];
        let places = [2, 4][lab.below(2)];
        let covered = tile_count(here as u32, used as u32, places, count as u32);
        let mut tiles = tiles_of(ids, count, places);
        // Only the number of slots tells that a tile is empty.
        let empty = [count as u32 - 1, 9, 0, 9, 9, 9, 9, 9];
        let made = tile_count(most as u32, used as u32, places, count as u32);
        tiles.resize(made as usize, empty);
        let by_tiles = step % 2 == 1;
        // Nobody reads what tokens that are not there chose.
        let mut padded = ids.to_vec();
        padded.resize(most * used, NONE);
        let chosen = match by_tiles {
            true => ChosenBy::Tiles(lab.given(&tiles.concat()), places),
            false => ChosenBy::Ids(lab.given(&padded)),
        };
        let call = GpuExpertPlaces {
            chosen: chosen.clone(),
            experts,
            most: most as u32,
            table: &table,
            fills: lab.words(2 * fills),
        };
        let most = Most {
            tokens: most as u32,
            context: 1,
        };
        lab.run_of(vec![call.call()], most, state(here, 0))?;
        let (found, mut copied) = expert_places(&mut twin, ids, [count, used]);
        copied.resize(fills, [NONE, 0]);
        all.push(lab.same(&call.fills, copied.as_flattened())?);
        all.push(match &chosen {
            ChosenBy::Ids(ids) => lab.same(ids, &found)?,
            ChosenBy::Tiles(range, _) => {
                for tile in tiles.iter_mut().filter(|tile| tile[2] > 0) {
                    tile[0] = twin[4 + tile[0] as usize] - 1;
                }
                lab.same(range, &tiles.concat()[..(covered * TILE_WORDS) as usize])?
            }
        });
    }
    all.push(lab.same(&table.words, &twin)?);
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let sizes = [
        [64, 4, 2],
        [64, 6, 8],
        [64, 4, 64],
        [256, 8, 8],
        [37, 3, 5],
        [5, 2, 3],
    ];
    let case = |[count, used, most]: [usize; 3]| {
        let name = format!("{used} of {count} experts, up to {most} tokens");
        let case = Case::new(name, move |lab| compare(lab, [count, used, most]));
        case.verified_if(most == 8)
    };
    sizes.map(case).into()
}
