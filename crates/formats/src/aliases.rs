//! Short names of models, and the quantisation that is taken where none is asked for.

/// Short names and the repositories that they mean.
///
/// None of the repositories could be asked when this table was written: that each is there, and that its files are what the name
/// says, is not verified. The first is named in Unsloth's guide to the model, the second in llama.cpp's pull request 7519. The third
/// is only what the publisher's other repositories suggest, and programs in other people's repositories name the last four. So a command says which repository it would take, and asks.
pub const ALIASES: [(&str, &str); 8] = [
    ("glm-4.7-flash", "unsloth/GLM-4.7-Flash-GGUF"),
    ("deepseek-v2-lite", "mzwing/DeepSeek-V2-Lite-Chat-GGUF"),
    ("youtu-llm", "tencent/Youtu-LLM-2B-GGUF"),
    ("youtu-llm-2b", "tencent/Youtu-LLM-2B-GGUF"),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF"),
    ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct-GGUF"),
    ("llama-3.1-8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    ("smollm2-135m", "bartowski/SmolLM2-135M-Instruct-GGUF"),
];

/// The quantisation that is taken where none is asked for.
pub const PREFERRED: &str = "Q4_K_M";
