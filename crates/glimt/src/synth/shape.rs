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
    pub(super) attention: AttentionShape,
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

/// The numbers of the attention that only its family has.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttentionShape {
    /// Multi-head latent attention.
    Latent(LatentShape),
    /// Grouped-query attention.
    Grouped(GroupedShape),
}

/// The numbers of multi-head latent attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentShape {
    /// 0: no such projection, a plain `attn_q`.
    pub(super) q_lora_rank: u64,
    pub(super) kv_lora_rank: u64,
    pub(super) qk_nope_head_dim: u64,
    pub(super) qk_rope_head_dim: u64,
    pub(super) v_head_dim: u64,
}

/// The numbers of grouped-query attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupedShape {
    pub(super) kv_heads: u64,
    /// Width of a head, which is rotated whole.
    pub(super) head: u64,
    /// Whether the three projections have biases.
    pub(super) biases: bool,
    /// Whether each head of queries and keys is normed.
    pub(super) norms: bool,
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

const GLM_LATENT: LatentShape = LatentShape {
    q_lora_rank: 768,
    kv_lora_rank: 512,
    qk_nope_head_dim: 192,
    qk_rope_head_dim: 64,
    v_head_dim: 256,
};

const GLM: Shape = Shape {
    architecture: "deepseek2",
    layers: 47,
    leading_dense: 1,
    embedding_length: 2048,
    heads: 20,
    attention: AttentionShape::Latent(GLM_LATENT),
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

const DEEPSEEK_LATENT: LatentShape = LatentShape {
    q_lora_rank: 0,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
};

const DEEPSEEK: Shape = Shape {
    architecture: "deepseek2",
    layers: 27,
    leading_dense: 1,
    embedding_length: 2048,
    heads: 16,
    attention: AttentionShape::Latent(DEEPSEEK_LATENT),
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

const YOUTU_LATENT: LatentShape = LatentShape {
    q_lora_rank: 1536,
    kv_lora_rank: 512,
    qk_nope_head_dim: 128,
    qk_rope_head_dim: 64,
    v_head_dim: 128,
};

const YOUTU: Shape = Shape {
    architecture: "deepseek2",
    layers: 32,
    leading_dense: 0,
    embedding_length: 2048,
    heads: 16,
    attention: AttentionShape::Latent(YOUTU_LATENT),
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

/// 48 of the 64 experts are left (REAP). Its published files, of 42.85 GiB in BF16 and 22.78 in Q8_0, are as large as this shape makes them.
const GLM_REAP: Shape = Shape {
    experts: Some(ExpertShape {
        count: 48,
        ..GLM_EXPERTS
    }),
    ..GLM
};

/// From the `config.json` of moonshotai/Moonlight-16B-A3B, as programs in public repositories quote it.
const MOONLIGHT: Shape = Shape {
    feed_forward_length: 11_264,
    experts: Some(ExpertShape {
        gating: 2,
        selection_bias: true,
        weights_norm: true,
        weights_scale: 2.446,
        ..DEEPSEEK_EXPERTS
    }),
    vocab_size: 163_840,
    context_length: 8192,
    rms_eps: 1e-5,
    rope_base: 5e4,
    yarn: None,
    pre: "kimi-k2",
    ..DEEPSEEK
};

/// From the `text_config` of moonshotai/Kimi-VL-A3B-Instruct, which is Moonlight's but for the rotation and the context.
const KIMI_VL: Shape = Shape {
    context_length: 131_072,
    rope_base: 8e5,
    ..MOONLIGHT
};

/// The README of kakao/kanana-2 has the layers, experts, vocabulary and context, and llama.cpp's `deepseek2.cpp` that queries have no latent.
/// The widths, heads, gating and constants are not published there. These give 30.7 billion weights, and a file in Q4_K_M is as large as the
/// 18.6 GB that others tell of theirs.
const KANANA2: Shape = Shape {
    layers: 48,
    heads: 32,
    feed_forward_length: 6144,
    experts: Some(ExpertShape {
        count: 128,
        feed_forward_length: 768,
        gating: 2,
        selection_bias: true,
        weights_norm: true,
        weights_scale: 2.5,
        ..DEEPSEEK_EXPERTS
    }),
    vocab_size: 128_256,
    context_length: 32_768,
    rope_base: 1e6,
    yarn: None,
    pre: "kanana2",
    ..DEEPSEEK
};

/// The sizes follow from the bytes that others have counted for each kind of tensor in the BF16 file of GigaChat3.1-10B-A1.8B (414 tensors,
/// 21,356,264,448 bytes with its metadata). The scale of the experts' weights and the base of the rotation do not, and are not verified.
const GIGACHAT3: Shape = Shape {
    layers: 26,
    embedding_length: 1536,
    heads: 32,
    attention: AttentionShape::Latent(LatentShape {
        v_head_dim: 192,
        ..DEEPSEEK_LATENT
    }),
    feed_forward_length: 8960,
    experts: Some(ExpertShape {
        used: 4,
        shared: 1,
        feed_forward_length: 1280,
        gating: 2,
        selection_bias: true,
        weights_norm: true,
        ..DEEPSEEK_EXPERTS
    }),
    vocab_size: 128_256,
    context_length: 262_144,
    rope_base: 1e5,
    yarn: None,
    pre: "gigachat",
    ..DEEPSEEK
};

const QWEN3_MOE: Shape = Shape {
    architecture: "qwen3moe",
    layers: 48,
    leading_dense: 0,
    embedding_length: 2048,
    heads: 32,
    attention: AttentionShape::Grouped(GroupedShape {
        kv_heads: 4,
        head: 128,
        biases: false,
        norms: true,
    }),
    feed_forward_length: 6144,
    experts: Some(QWEN3_EXPERTS),
    vocab_size: 151_936,
    context_length: 40_960,
    rms_eps: 1e-6,
    rope_base: 1e6,
    yarn: None,
    pre: "qwen2",
    tied: false,
};

const QWEN3_EXPERTS: ExpertShape = ExpertShape {
    count: 128,
    used: 8,
    shared: 0,
    feed_forward_length: 768,
    gating: 1,
    selection_bias: false,
    weights_norm: true,
    weights_scale: 1.0,
};

const QWEN2: Shape = Shape {
    architecture: "qwen2",
    layers: 28,
    leading_dense: 0,
    embedding_length: 3584,
    heads: 28,
    attention: AttentionShape::Grouped(GroupedShape {
        kv_heads: 4,
        head: 128,
        biases: true,
        norms: false,
    }),
    feed_forward_length: 18_944,
    experts: None,
    vocab_size: 152_064,
    context_length: 32_768,
    rms_eps: 1e-6,
    rope_base: 1e6,
    yarn: None,
    pre: "qwen2",
    tied: false,
};

const LLAMA: Shape = Shape {
    architecture: "llama",
    layers: 32,
    leading_dense: 0,
    embedding_length: 4096,
    heads: 32,
    attention: AttentionShape::Grouped(GroupedShape {
        kv_heads: 8,
        head: 128,
        biases: false,
        norms: false,
    }),
    feed_forward_length: 14_336,
    experts: None,
    vocab_size: 128_256,
    context_length: 131_072,
    rms_eps: 1e-5,
    rope_base: 5e5,
    yarn: None,
    pre: "llama-bpe",
    tied: false,
};

const SMOLLM2: Shape = Shape {
    architecture: "llama",
    layers: 30,
    embedding_length: 576,
    heads: 9,
    attention: AttentionShape::Grouped(GroupedShape {
        kv_heads: 3,
        head: 64,
        biases: false,
        norms: false,
    }),
    feed_forward_length: 1536,
    vocab_size: 49_152,
    context_length: 8192,
    rope_base: 1e5,
    pre: "smollm",
    tied: true,
    ..LLAMA
};

// 26 layers: enough for every turn of the pattern by which recipes choose types.
const TINY_DS2: Shape = Shape {
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
};

const TINY_YOUTU: Shape = Shape {
    layers: 3,
    embedding_length: 256,
    heads: 2,
    attention: AttentionShape::Latent(LatentShape {
        q_lora_rank: 384,
        ..YOUTU_LATENT
    }),
    feed_forward_length: 768,
    vocab_size: 512,
    context_length: 4096,
    ..YOUTU
};

const TINY_GLM: Shape = Shape {
    layers: 3,
    embedding_length: 256,
    heads: 5,
    attention: AttentionShape::Latent(LatentShape {
        q_lora_rank: 256,
        ..GLM_LATENT
    }),
    feed_forward_length: 512,
    experts: Some(ExpertShape {
        feed_forward_length: 256,
        ..GLM_EXPERTS
    }),
    vocab_size: 600,
    context_length: 4096,
    ..GLM
};

const TINY: Shape = Shape {
    layers: 4,
    embedding_length: 256,
    heads: 4,
    attention: AttentionShape::Latent(LatentShape {
        q_lora_rank: 256,
        kv_lora_rank: 256,
        qk_nope_head_dim: 64,
        qk_rope_head_dim: 32,
        v_head_dim: 64,
    }),
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
};

const TINY_QWEN3_MOE: Shape = Shape {
    heads: 16,
    attention: grouped(2, 128, QWEN3_MOE),
    experts: Some(ExpertShape {
        count: 16,
        used: 4,
        feed_forward_length: 128,
        ..QWEN3_EXPERTS
    }),
    ..tiny(QWEN3_MOE)
};

// A dense model with norms, of heads whose width is no multiple of 32.
const TINY_QWEN3: Shape = Shape {
    architecture: "qwen3",
    heads: 16,
    attention: grouped(1, 80, QWEN3_MOE),
    experts: None,
    yarn: Some(Yarn {
        factor: 4.0,
        original_context_length: 256,
        log_multiplier: 0.0,
    }),
    ..tiny(QWEN3_MOE)
};

// llama.cpp takes no other width than that of all heads.
const TINY_QWEN2: Shape = Shape {
    embedding_length: 14 * 64,
    heads: 14,
    attention: grouped(2, 64, QWEN2),
    tied: true,
    ..tiny(QWEN2)
};

const TINY_LLAMA: Shape = Shape {
    heads: 9,
    attention: grouped(3, 96, LLAMA),
    ..tiny(LLAMA)
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
            ModelName::DeepseekCoderV2Lite => DEEPSEEK,
            ModelName::Glm47FlashReap23b => GLM_REAP,
            ModelName::Moonlight16bA3b => MOONLIGHT,
            ModelName::KimiVlA3b => KIMI_VL,
            ModelName::Kanana2_30bA3b => KANANA2,
            ModelName::Gigachat3_10bA18b => GIGACHAT3,
            ModelName::Qwen3_30bA3b => QWEN3_MOE,
            ModelName::Qwen25_7b => QWEN2,
            ModelName::Llama31_8b => LLAMA,
            ModelName::Smollm2_135m => SMOLLM2,
            ModelName::TinyDs2 => TINY_DS2,
            ModelName::TinyYoutu => TINY_YOUTU,
            ModelName::TinyGlm => TINY_GLM,
            ModelName::Tiny => TINY,
            ModelName::TinyQwen3Moe => TINY_QWEN3_MOE,
            ModelName::TinyQwen3 => TINY_QWEN3,
            ModelName::TinyQwen2 => TINY_QWEN2,
            ModelName::TinyLlama => TINY_LLAMA,
        }
    }
}

/// The model of a few megabytes in the manner of `of`, whose heads are still its own.
const fn tiny(of: Shape) -> Shape {
    Shape {
        layers: 3,
        embedding_length: 256,
        feed_forward_length: 512,
        vocab_size: 512,
        context_length: 4096,
        ..of
    }
}

/// Grouped-query attention of these sizes in the manner of `of`.
const fn grouped(kv_heads: u64, head: u64, of: Shape) -> AttentionShape {
    match of.attention {
        AttentionShape::Grouped(shape) => AttentionShape::Grouped(GroupedShape {
            kv_heads,
            head,
            ..shape
        }),
        latent @ AttentionShape::Latent(_) => latent,
    }
}
