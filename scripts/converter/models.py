"""The models that make.py makes: configurations as their publishers have them, with fewer layers, narrower ones and a vocabulary of 512."""

VOCABULARY = 512

# The context before its extension. Published ones are of thousands of tokens, and first tokens hardly show by how much a rotation was scaled.
ORIGINAL = 64

COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
}

LATENT = {
    **COMMON,
    "kv_lora_rank": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

# The class has no scoring_func. With the published 47 layers the converter's readers know it; with others it has to be said.
GLM = {
    **LATENT,
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 128,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 5,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 5,
    "num_nextn_predict_layers": 0,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "scoring_func": "sigmoid",
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 256,
}

DEEPSEEK_V2 = {
    **LATENT,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 128,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": ORIGINAL,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
}

YOUTU = {
    **LATENT,
    "architectures": ["YoutuForCausalLM"],
    "model_type": "youtu",
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "q_lora_rank": 384,
    "qk_head_dim": 192,
    "rope_interleave": True,
    "rope_theta": 1600000,
    "tie_word_embeddings": True,
}

MOONLIGHT = {
    **LATENT,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 8192,
    "moe_intermediate_size": 128,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.446,
    "scoring_func": "sigmoid",
    "topk_group": 1,
    "topk_method": "noaux_tc",
}

QWEN2 = {
    **COMMON,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
}

QWEN3 = {
    **COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
}

LLAMA = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
}


def heads(query, key, width, hidden=None):
    """The sizes of grouped-query attention. Without `hidden` the heads have the width of the stream, and the configuration has no head_dim."""
    sizes = {"num_attention_heads": query, "num_key_value_heads": key, "hidden_size": hidden or query * width}
    return {**sizes, "head_dim": width} if hidden else sizes


YARN_V3 = {**DEEPSEEK_V2["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0}
YARN_QWEN = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "rope_type": "yarn"}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": ORIGINAL,
    "rope_type": "llama3",
}

# Kimi-VL has no class in transformers. The text part is of DeepseekV3's, with the sizes of Moonlight; make.py puts it into a configuration and
# under names of tensors as Kimi-VL has them, which the converter reads.
INSIDE_KIMI_VL = "kimi-vl"

# By name: the configuration, and the pre-tokenizer that the converter finds for the published vocabulary.
MODELS = {
    "glm-4.7-flash": (GLM, "glm4"),
    "glm-4.7-flash-reap": ({**GLM, "n_routed_experts": 48}, "glm4"),
    "deepseek-coder-v2-lite": (DEEPSEEK_V2, "deepseek-llm"),
    "deepseek-v2-with-query-latents": ({**DEEPSEEK_V2, "q_lora_rank": 256, "routed_scaling_factor": 16.0}, "deepseek-llm"),
    "youtu-llm": (YOUTU, "youtu"),
    "moonlight": (MOONLIGHT, "kimi-k2"),
    INSIDE_KIMI_VL: ({**MOONLIGHT, "max_position_embeddings": 131072, "rope_theta": 800000.0}, "kimi-k2"),
    "kanana-2": (
        {
            **MOONLIGHT,
            "max_position_embeddings": 32768,
            "n_routed_experts": 128,
            "rms_norm_eps": 1e-6,
            "rope_interleave": True,
            "rope_theta": 1000000,
            "routed_scaling_factor": 2.5,
        },
        "kanana2",
    ),
    "gigachat3": (
        {
            **MOONLIGHT,
            "max_position_embeddings": 262144,
            "n_shared_experts": 1,
            "num_experts_per_tok": 4,
            "rms_norm_eps": 1e-6,
            "rope_theta": 100000,
            "routed_scaling_factor": 1.0,
            "v_head_dim": 192,
        },
        "gigachat",
    ),
    "deepseek-v3-with-one-group": (
        {
            **MOONLIGHT,
            "max_position_embeddings": 163840,
            "n_shared_experts": 1,
            "q_lora_rank": 256,
            "rms_norm_eps": 1e-6,
            "rope_scaling": YARN_V3,
            "rope_theta": 10000,
            "routed_scaling_factor": 2.5,
        },
        "deepseek-v3",
    ),
    "qwen2.5": ({**QWEN2, **heads(14, 2, 64), "tie_word_embeddings": True}, "qwen2"),
    "qwen2.5-wide-heads": ({**QWEN2, **heads(7, 1, 128)}, "qwen2"),
    "qwen3": ({**QWEN3, **heads(6, 2, 96, 256), "tie_word_embeddings": True}, "qwen2"),
    "qwen3-yarn": ({**QWEN3, **heads(8, 1, 128, 256), "rope_scaling": YARN_QWEN, "max_position_embeddings": 131072}, "qwen2"),
    "qwen3-moe": (
        {
            **QWEN3,
            **heads(16, 2, 128, 256),
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
        "qwen2",
    ),
    "smollm2": ({**LLAMA, **heads(9, 3, 64), "tie_word_embeddings": True}, "smollm"),
    "llama-3.1": (
        {**LLAMA, **heads(8, 2, 128), "max_position_embeddings": 131072, "rope_scaling": LLAMA3, "rope_theta": 500000.0},
        "llama-bpe",
    ),
    "llama-3.2": (
        {
            **LLAMA,
            **heads(6, 2, 64),
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_scaling": {**LLAMA3, "factor": 32.0},
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
        "llama-bpe",
    ),
    "llama-heads-of-80": ({**LLAMA, **heads(8, 1, 80), "rope_theta": 10000.0}, "default"),
}
