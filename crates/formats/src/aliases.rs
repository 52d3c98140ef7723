//! Short names of models, and the quantisation that is taken where none is asked for.

/// Short names and the repositories that they mean.
///
/// None of the repositories could be asked when this table was written: that each is there, and that its files are what the name
/// says, is not verified. The first is named in Unsloth's guide to the model, the second in llama.cpp's pull request 7519. The third
/// is only what the publisher's other repositories suggest, and programs in other people's repositories name all others. So a command says
/// which repository it would take, and asks.
pub const ALIASES: [(&str, &str); 14] = [
    ("glm-4.7-flash", "unsloth/GLM-4.7-Flash-GGUF"),
    ("deepseek-v2-lite", "mzwing/DeepSeek-V2-Lite-Chat-GGUF"),
    ("youtu-llm", "tencent/Youtu-LLM-2B-GGUF"),
    ("youtu-llm-2b", "tencent/Youtu-LLM-2B-GGUF"),
    (
        "deepseek-coder-v2-lite",
        "bartowski/DeepSeek-Coder-V2-Lite-Instruct-GGUF",
    ),
    (
        "glm-4.7-flash-reap-23b",
        "unsloth/GLM-4.7-Flash-REAP-23B-A3B-GGUF",
    ),
    (
        "moonlight-16b-a3b",
        "gabriellarson/Moonlight-16B-A3B-Instruct-GGUF",
    ),
    ("kimi-vl-a3b", "ggml-org/Kimi-VL-A3B-Thinking-2506-GGUF"),
    ("kanana-2-30b-a3b", "ohora23/Kanana-2-30B-A3B-Instruct-GGUF"),
    ("gigachat3-10b-a1.8b", "ai-sage/GigaChat3.1-10B-A1.8B-GGUF"),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF"),
    ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct-GGUF"),
    ("llama-3.1-8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    ("smollm2-135m", "bartowski/SmolLM2-135M-Instruct-GGUF"),
];

/// The quantisation that is taken where none is asked for.
pub const PREFERRED: &str = "Q4_K_M";
