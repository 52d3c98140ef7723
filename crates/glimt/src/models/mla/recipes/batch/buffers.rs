//! The buffers of a layer's dispatches in a batch.

use crate::gpu::Target;
use crate::gpu::buffer::Range;
use crate::kernels::batch_experts::{self, TILE_WORDS};
use crate::kernels::token::TokenInput;
use crate::models::mla::Config;
use crate::models::mla::recipes::BeforeNorm;

/// The input of a sublayer for each token.
#[derive(Clone)]
pub(super) struct Stream {
    /// (tokens, d) f32.
    pub(super) x: Range,
    /// x times the weight of the norm that comes next, prepared, with its sums of squares; or already normed.
    pub(super) values: TokenInput,
}

/// The buffers of a layer, for up to so many tokens: all f32 or prepared, a row for each token unless they say otherwise.
#[derive(Clone)]
pub(super) struct Buffers {
    pub(super) q_a: BeforeNorm,
    pub(super) q: Range,
    pub(super) prepared_q: Range,
    pub(super) kv_a: Range,
    pub(super) q_lat: Range,
    pub(super) q_pe: Range,
    pub(super) latents: Range,
    pub(super) values: Range,
    pub(super) after_attention: Range,
    pub(super) for_ffn: BeforeNorm,
    pub(super) logits: Range,
    pub(super) ids: Range,
    pub(super) weights: Range,
    pub(super) tiles: Range,
    pub(super) h: Range,
    pub(super) shared_h: Range,
    pub(super) slot_sums: Range,
    pub(super) after_shared: Range,
    pub(super) after: Range,
    pub(super) next: BeforeNorm,
}

impl Buffers {
    pub(super) fn new(config: &Config, target: &Target, tokens: u32) -> Self {
        let activation = target.activation();
        let dims = config.dims();
        let n = u64::from(tokens);
        let floats = |name, width: usize| Range::floats(name, n * width as u64);
        let words = |name, width: usize| Range::words(name, n * width as u64);
        let values = |name, width: usize| Range::prepared(name, activation, tokens * width as u32);
        let normed = |name, width: usize| {
            BeforeNorm::new([name, "squares"], activation, tokens * width as u32)
        };
        let d = config.embedding_length;
        let experts = config.experts.as_ref();
        let [count, used] = experts.map_or([0, 0], |e| [e.count, e.used]);
        let ff = experts.map_or(0, |e| e.feed_forward_length);
        let shared = experts.map_or(0, |e| e.shared_count) * ff;
        let dense = config.feed_forward_length;
        let q_lora = config.q_lora_rank.unwrap_or(0);
        let heads = dims.heads;
        let places = batch_experts::places(target.machine, tokens);
        let tiles = experts.map_or(0, |experts| batch_experts::tiles(tokens, places, experts));
        Self {
            q_a: normed("prepared q_a", q_lora),
            q: floats("q", heads * dims.head()),
            prepared_q: values("prepared q", heads * dims.head()),
            kv_a: floats("kv_a", dims.cache_row()),
            q_lat: floats("q_lat", heads * dims.kv_lora),
            q_pe: floats("q_pe", heads * dims.rope),
            latents: values("latents", heads * dims.kv_lora),
            values: values("values", heads * config.v_head_dim),
            after_attention: floats("after attention", d),
            for_ffn: normed("prepared stream", d),
            logits: floats("router logits", count.next_multiple_of(4)),
            ids: words("expert ids", used),
            weights: floats("expert weights", used),
            tiles: Range::words("expert tiles", u64::from(tiles * TILE_WORDS)),
            h: values("h", dense.max(used * ff)),
            shared_h: values("shared h", shared),
            slot_sums: floats("slots", used * d),
            after_shared: floats("after shared", d),
            after: floats("after ffn", d),
            next: normed("prepared stream", d),
        }
    }

    /// The buffers of `self`, with new ones for what is written beside another output. Their first use in a step waits for nothing, so no
    /// layer needs a pass of its own (`gpu/levels.rs`).
    pub(super) fn with_new_beside(&self, new: Self) -> Self {
        Self {
            kv_a: new.kv_a,
            q_pe: new.q_pe,
            shared_h: new.shared_h,
            after_shared: new.after_shared,
            ..self.clone()
        }
    }
}
