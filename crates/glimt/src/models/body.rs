//! The parts of a forward pass on the CPU that all families share: everything but the attention.

use std::hint::black_box;

use half::f16;
use half::vec::HalfBitsVecExt;

use super::{OnBlock, OutOfMemory};
use crate::kernels::embed::embed;
use crate::kernels::linear::rms_norm_rows;
use crate::kernels::products::{MatvecOptions, Products, Projection};
use crate::kernels::router::router;
use crate::model::{Block, Config, Experts, Ffn, Mlp, Moe, Transformer, Weight};

/// A cache of `rows` rows of `row` values for each of `layers` layers.
///
/// # Errors
/// [`OutOfMemory`] where it cannot be allocated.
pub(super) fn caches(layers: usize, rows: usize, row: usize) -> Result<Vec<Vec<f16>>, OutOfMemory> {
    let values = rows.saturating_mul(row);
    let bytes = values.saturating_mul(size_of::<f16>());
    let bytes = bytes.saturating_mul(layers);
    let cache = |_| {
        // The system gives memory to rows when they are written.
        let mut tried = Vec::<u16>::new();
        let refused = tried.try_reserve_exact(values);
        refused.map_err(|_| OutOfMemory { bytes })?;
        drop(black_box(tried));
        Ok(vec![0u16; values].reinterpret_into::<f16>())
    };
    (0..layers).map(cache).collect()
}

/// The hidden states (T, d) behind the last block, or `None` after a break, as [`Reference::forward`](super::Reference::forward) says.
/// `attention` gives x + attention(norm(x)) of a block, by its number and x.
pub(super) fn forward<A>(
    products: Products,
    config: &Config,
    model: &Transformer<A>,
    tokens: &[u32],
    on_block: &mut OnBlock<'_>,
    mut attention: impl FnMut(usize, &Block<A>, &[f32]) -> Vec<f32>,
) -> Option<Vec<f32>> {
    let mut x = vec![0.0; tokens.len() * config.embedding_length];
    embed(&model.token_embd, tokens, &mut x);
    for (il, layer) in model.layers.iter().enumerate() {
        if il > 0 && on_block(il).is_break() {
            return None;
        }
        x = attention(il, layer, &x);
        x = feed_forward(products, config, &layer.ffn_norm, &layer.ffn, &x, router);
    }
    Some(x)
}

/// The states (T, d) behind the last norm.
pub(super) fn normed<A>(config: &Config, model: &Transformer<A>, x: &[f32]) -> Vec<f32> {
    rms_norm_rows(x, &model.output_norm, config.rms_eps)
}

/// The logits (T, vocab_size) of hidden states.
pub(super) fn head<A>(
    products: Products,
    config: &Config,
    model: &Transformer<A>,
    x: &[f32],
) -> Vec<f32> {
    let output = &model.output;
    let options =
        MatvecOptions::contiguous(output.cols).with_norm(&model.output_norm, config.rms_eps);
    product(products, output, x, x.len() / output.cols, options)
}

/// One product into a fresh buffer.
pub(super) fn product(
    products: Products,
    w: &Weight,
    x: &[f32],
    n_tokens: usize,
    options: MatvecOptions<'_>,
) -> Vec<f32> {
    let mut out = vec![0.0; n_tokens * w.groups * w.rows];
    products.matvec(w, x, n_tokens, options, &mut out);
    out
}

/// x + feed-forward(norm(x)), (T, d). `route` chooses the experts, with the arguments of [`router`].
pub(super) fn feed_forward(
    products: Products,
    config: &Config,
    norm: &[f32],
    ffn: &Ffn,
    x: &[f32],
    route: impl FnOnce(&[f32], Option<&[f32]>, &Experts, usize, &mut [u32], &mut [f32]),
) -> Vec<f32> {
    let n_tokens = x.len() / config.embedding_length;
    let norm = Some((norm, config.rms_eps));
    match ffn {
        Ffn::Dense(Mlp { gate, up, down }) => {
            let gated = [Projection::Gated([gate, up])];
            let [h] = products.project(gated, x, n_tokens, norm);
            let options = MatvecOptions::contiguous(down.cols).with_residual(x);
            product(products, down, &h, n_tokens, options)
        }
        Ffn::Moe(moe) => {
            let Moe {
                ffn_gate_inp,
                exp_probs_b,
                experts: Mlp { gate, up, down },
                shared,
            } = &**moe;
            let experts = config.experts.as_ref();
            let experts = experts.expect("a model with a MoE layer has experts");
            let plain = Projection::Plain(ffn_gate_inp);
            // The shared expert is computed beside the others.
            let (logits, shared) = match shared {
                None => {
                    let [logits] = products.project([plain], x, n_tokens, norm);
                    (logits, None)
                }
                Some(Mlp { gate, up, down }) => {
                    let both = [plain, Projection::Gated([gate, up])];
                    let [logits, h] = products.project(both, x, n_tokens, norm);
                    (logits, Some((down, h)))
                }
            };
            let mut ids = vec![0; n_tokens * experts.used];
            let mut weights = vec![0.0; n_tokens * experts.used];
            let bias = exp_probs_b.as_deref();
            route(&logits, bias, experts, n_tokens, &mut ids, &mut weights);
            let mut h = vec![0.0; ids.len() * gate.rows];
            products.gate_up([gate, up], x, n_tokens, norm, Some(&ids), &mut h);
            let shared = shared.as_ref().map(|(down, h)| (*down, &h[..]));
            let mut out = vec![0.0; x.len()];
            let chosen = (&ids[..], &weights[..]);
            products.moe_down_beside(down, shared, &h, chosen, n_tokens, x, &mut out);
            out
        }
    }
}
