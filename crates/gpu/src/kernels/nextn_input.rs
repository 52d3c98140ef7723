//! The input of the prediction layer's `eh_proj`: of each token the normed embedding and the normed state of the position before.

use super::keep_states::States;
use super::linear::rms_norm_rows;
use super::sequences::Sequences;
use super::token;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::workgroups::NEXTN_INPUT as WG;
use crate::quant::activation::Activation;

/// Where the states lie that are paired with tokens.
#[derive(Clone)]
pub enum StatesFrom<'a> {
    /// Those of the layer itself, for drafts: the token's own row, (max_tokens, width) f32.
    Own(Range),
    /// Those of the positions before, which were kept, for tokens at these places.
    Kept(Option<&'a Sequences>, &'a States),
    /// The row of the token before in the same step, (max_tokens, width) f32, and where there is none the state as it was kept. Tokens that have a
    /// table may lie in any order.
    Before(Option<&'a Sequences>, &'a States, Range),
}

/// [e / rms(e) * enorm; h / rms(h) * hnorm] of each token, on the device. h is s / rms(s) * `state_norm`.
pub struct GpuNextnInput<'a> {
    /// The embedding of each token, (max_tokens, width) f32.
    pub embedding: Range,
    /// The states s before their norm.
    pub states: StatesFrom<'a>,
    /// The weights of the norms: of the embedding, of the state, and that which ends the states, (width) each.
    pub norms: [Range; 3],
    /// The epsilon of all of them.
    pub eps: f32,
    /// The result prepared as `activation` says, (max_tokens, 2 * width).
    pub prepared: Range,
    /// The format of prepared values.
    pub activation: Activation,
    /// Values of a row, a multiple of 32.
    pub width: u32,
}

impl GpuNextnInput<'_> {
    /// The dispatch.
    ///
    /// # Panics
    /// If a row is not whole units.
    pub fn call(&self) -> Call {
        assert!(self.width.is_multiple_of(32), "rows of {}", self.width);
        let vectors = self.width / 4;
        let [enorm, hnorm, state_norm] = &self.norms;
        let call = token::kernel("nextn_input", self.activation)
            .number("WG", WG)
            .number("LANES", 1)
            .number("LOADS", vectors.div_ceil(WG))
            .number("VECTORS", vectors)
            .bind("embedding", &self.embedding)
            .bind("enorm", enorm)
            .bind("hnorm", hnorm)
            .bind("state_norm", state_norm)
            .bind("prepared", &self.prepared)
            .word("eps", self.eps)
            .grid([Extent::Tokens, Extent::N(2), Extent::N(1)]);
        match &self.states {
            StatesFrom::Own(states) => call.bind("states", states),
            StatesFrom::Kept(sequences, kept) => kept.bind(*sequences, call.flag("RING", true)),
            StatesFrom::Before(sequences, kept, states) => {
                let has_table = sequences.is_some_and(|sequences| !sequences.alone);
                let call = call.flag("RING", true).flag("SEARCHED", has_table);
                let tokens = has_table.then_some(Word::Tokens);
                let call = call.bind("states", states).word_some("tokens", tokens);
                kept.bind(*sequences, call)
            }
        }
    }
}

/// The rows (tokens, 2 * width) of embeddings and of states before their norm, (tokens, width) each. `norms` are the weights of the norms of the
/// embedding, of the state, and of the one that ends the states.
pub fn nextn_input(embedding: &[f32], states: &[f32], norms: [&[f32]; 3], eps: f32) -> Vec<f32> {
    let [enorm, hnorm, state_norm] = norms;
    let states = rms_norm_rows(states, state_norm, eps);
    let [e, h] = [(embedding, enorm), (&states, hnorm)].map(|(x, g)| rms_norm_rows(x, g, eps));
    let width = enorm.len();
    let both = e.chunks_exact(width).zip(h.chunks_exact(width));
    both.flat_map(|(e, h)| [e, h]).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use crate::gpu::testing::all_gpus;
    use crate::kernels::cases::nextn_input::cases;
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        agree_everywhere(all_gpus(), |_| cases());
    }
}
