//! The place of a step that follows one with drafts: found on the device, by the drafts that were accepted.

use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::machine::workgroups::ACCEPT_DRAFTS as THREADS;

/// The most parts of what a step is told.
pub const PARTS: usize = 32;
/// Words before those that tell of the parts.
const HEAD: usize = 8;
/// The word that says that drafts are accepted by what was chosen.
const NONE: u32 = u32::MAX;

/// The words that the host writes for a step that may begin at several positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// The least position at which it may begin.
    pub least: u32,
    /// The drafts of the step before.
    pub drafts: u32,
    /// The drafts that count as accepted whatever was chosen, if a measurement says so.
    pub fixed: Option<u32>,
    /// For the least position and each behind it the words of each part, of which all positions have as many.
    pub positions: Vec<Vec<Vec<u32>>>,
}

impl Candidates {
    /// The words as the kernel reads them.
    ///
    /// # Panics
    /// If there is no position, there are more than [`PARTS`] parts, or positions differ in them.
    pub fn words(&self) -> Vec<u32> {
        let lengths = |parts: &[Vec<u32>]| parts.iter().map(Vec::len).collect::<Vec<_>>();
        let parts = lengths(&self.positions[0]);
        let are_alike = self.positions.iter().all(|of| lengths(of) == parts);
        assert!(are_alike && parts.len() <= PARTS, "{parts:?}");
        let words: usize = parts.iter().sum();
        let count = self.positions.len() as u32;
        let fixed = self.fixed.unwrap_or(NONE);
        let mut all = vec![self.least, count, words as u32, self.drafts, fixed, 0, 0, 0];
        let mut first = 0;
        for length in parts {
            all.extend([first, length as u32]);
            first += length as u32;
        }
        all.resize(words_of(0, 0), 0);
        all.extend(self.positions.iter().flatten().flatten());
        all
    }
}

/// Words of what is written for so many positions, each with so many words.
pub const fn words_of(positions: usize, each: usize) -> usize {
    HEAD + 2 * PARTS + positions * each
}

/// The dispatch that copies part `part` of `candidates` for the step behind one that left `landed`, (1 + drafts, `apart`) results of four words.
pub fn call(landed: &Range, apart: u32, candidates: &Range, part: usize, to: &Range) -> Call {
    let words = |range: &Range| (range.size / 4) as u32;
    Call::new("accept_drafts")
        .number("WG", THREADS)
        .number("PARTS", PARTS as u32)
        .word("part", part as u32)
        .word("most", words(to))
        .word("told", words(candidates))
        .word("results", words(landed) / 4)
        .word("apart", apart)
        .bind("landed", landed)
        .bind("candidates", candidates)
        .bind("to", to)
}

/// Copies part `part` of `candidates` to `to`, for the step behind one that left `landed`.
pub fn accept_drafts(
    landed: &[[u32; 4]],
    apart: usize,
    candidates: &Candidates,
    part: usize,
    to: &mut [u32],
) {
    let drafts = candidates.drafts as usize;
    let is_chosen = |place: &usize| landed[*place][0] == landed[apart * (place + 1)][0];
    let accepted = match candidates.fixed {
        Some(fixed) => drafts.min(fixed as usize),
        None => (0..drafts).take_while(is_chosen).count(),
    };
    let [_, position, ..] = landed[accepted];
    let parts = &candidates.positions[(position - candidates.least) as usize];
    to[..parts[part].len()].copy_from_slice(&parts[part]);
}

#[cfg(test)]
mod tests {
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::accept_drafts::cases;
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn the_words_of_the_right_position_are_copied() {
        agree_everywhere(gpus(), |_| cases());
    }
}
