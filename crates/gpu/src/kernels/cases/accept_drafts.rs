//! Cases of steps that follow others with drafts.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::kernels::accept_drafts::{Candidates, accept_drafts, call};

/// A step behind one with so many drafts, told in parts of so many words.
fn compare(lab: &Lab<'_>, drafts: usize, lengths: &[usize]) -> Result<Vec<Compared>, GpuError> {
    let apart = drafts + 1 + lab.below(5);
    let position = 1 + lab.below(1000) as u32;
    let mut landed = vec![[7; 4]; apart * (drafts + 1)];
    // Up to a random one the drafts are those that were chosen.
    let right = lab.below(drafts + 1);
    for place in 0..=drafts {
        let id = lab.below(1000) as u32;
        landed[place] = [id, position + place as u32, 5, 0];
        if place < drafts {
            landed[apart * (place + 1)][0] = id + u32::from(place >= right);
        }
    }
    let earlier = lab.below(position as usize).min(3);
    let random = |length: &usize| (0..*length).map(|_| lab.below(1 << 20) as u32).collect();
    let parts = |_| lengths.iter().map(random).collect();
    let fixed = [None, None, Some(lab.below(drafts + 1) as u32)];
    let candidates = Candidates {
        least: position - earlier as u32,
        drafts: drafts as u32,
        fixed: lab.one_of(&fixed),
        positions: (0..earlier + drafts + 1 + lab.below(3))
            .map(parts)
            .collect(),
    };
    let (left, told) = (
        lab.given(landed.as_flattened()),
        lab.given(&candidates.words()),
    );
    let (mut calls, mut results) = (vec![], vec![]);
    for (part, length) in lengths.iter().enumerate() {
        let mut twin: Vec<u32> = random(&(length + lab.below(40)));
        let to = lab.given(&twin);
        accept_drafts(&landed, apart, &candidates, part, &mut twin);
        calls.push(call(&left, apart as u32, &told, part, &to));
        results.push((to, twin));
    }
    lab.run(calls, state(1, 0))?;
    let compared = results.iter().map(|(to, twin)| lab.same(to, twin));
    compared.collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |(drafts, lengths): (usize, &'static [usize])| {
        let name = format!("{drafts} drafts, parts of {lengths:?} words");
        Case::new(name, move |lab| compare(lab, drafts, lengths)).verified_if(drafts == 3)
    };
    [
        (1, &[8, 16, 24][..]),
        (3, &[32, 2048, 48, 32, 256, 12, 8, 8, 12, 8, 300, 12]),
        (8, &[1, 700]),
    ]
    .map(case)
    .into()
}
