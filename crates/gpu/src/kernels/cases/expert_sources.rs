//! Cases of the experts that a step of several tokens needs.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::kernels::batch_experts::{TILE_WORDS, tiles_of};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::expert_slots::Table;
use crate::kernels::expert_sources::{ChosenBy, GpuExpertSources, count_fills, expert_sources};

/// Experts of `tokens` tokens, by ids and by tiles, with and without slots.
fn compare(lab: &Lab<'_>, [count, used, tokens]: [usize; 3]) -> Result<Vec<Compared>, GpuError> {
    // Some experts are no token's.
    let most = 1 + lab.below(count);
    let ids: Vec<u32> = (0..tokens * used).map(|_| lab.below(most) as u32).collect();
    let slots = 1 + lab.below(count);
    let mut words: Vec<u32> = vec![7; 4 + 2 * count + slots];
    words[4..4 + count].fill_with(|| lab.below(slots + 1) as u32);
    let places = [2, 4][lab.below(2)];
    let mut tiles = tiles_of(&ids, count, places).concat();
    let covered = tile_count(tokens as u32, used as u32, places, count as u32);
    // Only the number of slots tells that a tile is empty.
    let empty = [count as u32 - 1, 9, 0, 9, 9, 9, 9, 9];
    while tiles.len() < (covered * TILE_WORDS) as usize {
        tiles.extend(empty);
    }
    let mut all = vec![];
    for has_table in [true, false] {
        let table = has_table.then(|| Table {
            words: lab.given(&words),
            slots: slots as u32,
        });
        let twin = expert_sources(&ids, count, has_table.then_some(&mut words[..]));
        for chosen in [
            ChosenBy::Ids(lab.given(&ids)),
            ChosenBy::Tiles(lab.given(&tiles), places),
        ] {
            let sources = GpuExpertSources {
                chosen,
                experts: count as u32,
                used: used as u32,
                table: table.as_ref(),
                fills: lab.words(2 * count),
            };
            lab.run(vec![sources.call()], state(tokens, 0))?;
            all.push(lab.same(&sources.fills, &twin)?);
        }
        if let Some(table) = &table {
            // Both calls have counted.
            count_fills(&mut words, &twin);
            all.push(lab.same(&table.words, &words)?);
        }
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let sizes = [
        [64, 4, 2],
        [64, 6, 64],
        [64, 4, 777],
        [256, 8, 9],
        [5, 2, 3],
    ];
    let case = |[count, used, tokens]: [usize; 3]| {
        let name = format!("{used} of {count} experts, {tokens} tokens");
        let case = Case::new(name, move |lab| compare(lab, [count, used, tokens]));
        case.verified_if(tokens == 64)
    };
    sizes.map(case).into()
}
