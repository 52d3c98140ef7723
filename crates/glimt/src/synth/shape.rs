//! The numbers of each model. Sources: the models' `config.json` and the GGUF files made from them.

use super::ModelName;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// `general.architecture`.
    pub(super) architecture: &'static str,
    pub(super) layers: usize,
    /// The number of first layers that are dense in a model with experts.
    pub(super) leading_dense: usize,
    pub(super) embedding_length: u64,
    pub(super) heads: u64,
    /// 0: no such projection, a plain `attn_q`.
    pub(super) q_lora_rank: u64,
    pub(super) kv_lora_rank: u64,
    pub(super) qk_nope_head_dim: u64,
    pub(super) qk_rope_head_dim: u64,
    pub(super) v_head_dim: u64,
    pub(super) feed_forward_length: u64,
    pub(super) experts: Option<ExpertShape>,
    pub(super) vocab_size: u64,
    pub(super) context_length: u64,
    pub(super) rms_eps: f32,
    pub(super) rope_base: f32,
    pub(super) yarn: Option<Yarn>,
    /// `tokenizer.ggml.pre`.
    pub(super) pre: &'static str,
    /// The head is the embedding.
    pub(super) tied: bool,
}

/// The numbers of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertShape {
    pub(super) count: u64,
    pub(super) used: u64,
    pub(super) shared: u64,
    pub(super) feed_forward_length: u64,
    /// `expert_gating_func`: 1 softmax, 2 sigmoid.
    pub(super) gating: u32,
    /// Whether there is a bias for the selection, `exp_probs_b`.
    pub(super) selection_bias: bool,
    pub(super) weights_norm: bool,
    pub(super) weights_scale: f32,
}

/// The numbers of YaRN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yarn {
    pub(super) factor: f32,
    pub(super) original_context_length: u32,
    pub(super) log_multiplier: f32,
}

const GLM_EXPERTS: ExpertShape = ExpertShape {
    count: 64,
    used: 4,
    shared: 1,
    feed_forward_length: 1536,
    gating: 2,
    selection_bias: true,
    weights_norm: true,
    weights_scale: 1.8,
};

const GLM: Shape = Shape {
    architecture: "deepseek2",
    layers: 47,
    leading_dense: 1,
    embedding_length: 2048,
    heads: 20,
    q_lora_rank: 768,
    kv_lora_rank: 512,
    qk_nope_head_dim: 192,
    qk_rope_head_dim: 64,
    v_head_dim: 256,
    feed_forward_length: 10240,
    experts: Some(GLM_EXPERTS),
    vocab_size: 154_880,
    context_length: 202_752,
    rms_eps: 1e-5,
    rope_base: 1e6,
    yarn: None,
    pre: "glm4",
    tied: false,
};

const DEEPSEEK_EXPERTS: ExpertShape = ExpertShape {
    count: 64,
    used: 6,
    shared: 2,
    feed_forward_length: 1408,
    gating: 1,
    selection_bias: false,
    weights_norm: false,
    weights_scale: 1.0,
};

const DEEPSEEK: Shape = Shape {
    architecture: "deepseek2",
    layers: 27,
    leading_dense: 1,
    embedding_length: 2048,
    heads: 16,
    q_lora_rank: 0,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    feed_forward_length: 10944,
    experts: Some(DEEPSEEK_EXPERTS),
    vocab_size: 102_400,
    context_length: 163_840,
    rms_eps: 1e-6,
    rope_base: 1e4,
    yarn: Some(Yarn {
        factor: 40.0,
        original_context_length: 4096,
        log_multiplier: 0.0707,
    }),
    pre: "deepseek-llm",
    tied: false,
};

const YOUTU: Shape = Shape {
    architecture: "deepseek2",
    layers: 32,
    leading_dense: 0,
    embedding_length: 2048,
    heads: 16,
    q_lora_rank: 1536,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
    feed_forward_length: 6144,
    experts: None,
    vocab_size: 128_256,
    context_length: 131_072,
    rms_eps: 1e-6,
    rope_base: 1.6e6,
    yarn: None,
    pre: "youtu",
    tied: true,
};

impl ModelName {
    /// The models whose files have this `general.architecture`.
    pub fn of(architecture: &str) -> Vec<Self> {
        let all = Self::ALL.into_iter();
        all.filter(|name| Shape::of(*name).architecture == architecture)
            .collect()
    }
}

impl Shape {
    /// The numbers of `model`.
    pub(super) fn of(model: ModelName) -> Shape {
        match model {
            ModelName::Glm47Flash => GLM,
            ModelName::DeepseekV2Lite => DEEPSEEK,
            ModelName::YoutuLlm2b => YOUTU,
            // 26 layers: enough for every turn of the pattern by which recipes choose types.
            ModelName::TinyDs2 => Shape {
                layers: 26,
                embedding_length: 256,
                heads: 2,
                feed_forward_length: 512,
                experts: Some(ExpertShape {
                    count: 8,
                    used: 3,
                    feed_forward_length: 128,
                    ..DEEPSEEK_EXPERTS
                }),
                vocab_size: 512,
                context_length: 8192,
                yarn: Some(Yarn {
                    factor: 40.0,
                    original_context_length: 256,
                    log_multiplier: 0.0707,
                }),
                ..DEEPSEEK
            },
            ModelName::TinyYoutu => Shape {
                layers: 3,
                embedding_length: 256,
                heads: 2,
                q_lora_rank: 384,
                feed_forward_length: 768,
                vocab_size: 512,
                context_length: 4096,
                ..YOUTU
            },
            ModelName::TinyGlm => Shape {
                layers: 3,
                embedding_length: 256,
                heads: 5,
                q_lora_rank: 256,
                feed_forward_length: 512,
                experts: Some(ExpertShape {
                    feed_forward_length: 256,
                    ..GLM_EXPERTS
                }),
                vocab_size: 600,
                context_length: 4096,
                ..GLM
            },
            ModelName::Tiny => Shape {
                layers: 4,
                embedding_length: 256,
                heads: 4,
                q_lora_rank: 256,
                kv_lora_rank: 256,
                qk_nope_head_dim: 64,
                qk_rope_head_dim: 32,
                v_head_dim: 64,
                feed_forward_length: 512,
                experts: Some(ExpertShape {
                    count: 8,
                    used: 2,
                    feed_forward_length: 256,
                    ..GLM_EXPERTS
                }),
                vocab_size: 512,
                context_length: 4096,
                rope_base: 1e4,
                ..GLM
            },
        }
    }
}
