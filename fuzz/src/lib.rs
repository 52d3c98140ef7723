//! The common parts of the targets: a model of a few kilobytes that glimt's own writer makes, an engine of it, and how seeds are written.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use glimt::engine::chooser::Vocabulary;
use glimt::engine::{DeviceChoice, Engine, EngineOptions, GpuOptions, Opened, Wait};
use glimt::gguf::{Gguf, GgufError, GgufWriter, TensorInfo, Value};
use glimt::quant::GgmlType;
use glimt::tokenizer::{Tokenizer, byte_level_alphabet};

/// Marks of turns, thoughts and calls.
const MARKS: [&str; 9] = [
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
];
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
/// Values of a row of the residual stream.
const WIDTH: u64 = 32;

/// A template that knows tools and thoughts.
pub const TEMPLATE: &str = r#"{%- if tools %}<|system|>
Answer, or write <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call> with one of these tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}{% endif %}
{%- for message in messages %}<|{{ "observation" if message.role == "tool" else message.role }}|>
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"#;

/// The metadata of the model, in file order.
pub fn metadata(template: &str) -> Vec<(String, Value)> {
    let mut tokens: Vec<String> = byte_level_alphabet()
        .into_iter()
        .map(String::from)
        .collect();
    tokens.extend(["Ġt", "he", "Ġthe"].map(str::to_owned));
    let mut types = vec![NORMAL; tokens.len()];
    let end = tokens.len() as u32;
    tokens.extend(MARKS.map(str::to_owned));
    types.resize(tokens.len(), CONTROL);
    let number = |n: u64| Value::from(n as u32);
    let vocabulary = tokens.len() as u64;
    let merges = ["Ġ t", "h e", "Ġt he"].map(str::to_owned).to_vec();
    [
        ("general.architecture", Value::from("deepseek2")),
        ("general.name", Value::from("fuzzed")),
        ("deepseek2.block_count", number(1)),
        ("deepseek2.context_length", number(256)),
        ("deepseek2.embedding_length", number(WIDTH)),
        ("deepseek2.feed_forward_length", number(WIDTH)),
        ("deepseek2.attention.head_count", number(1)),
        ("deepseek2.attention.head_count_kv", number(1)),
        ("deepseek2.rope.freq_base", Value::from(1e4f32)),
        (
            "deepseek2.attention.layer_norm_rms_epsilon",
            Value::from(1e-5f32),
        ),
        ("deepseek2.leading_dense_block_count", number(1)),
        ("deepseek2.vocab_size", number(vocabulary)),
        ("deepseek2.attention.kv_lora_rank", number(WIDTH)),
        ("deepseek2.rope.dimension_count", number(WIDTH)),
        ("deepseek2.attention.key_length", number(2 * WIDTH)),
        ("deepseek2.attention.value_length", number(WIDTH)),
        ("deepseek2.attention.key_length_mla", number(2 * WIDTH)),
        ("deepseek2.attention.value_length_mla", number(WIDTH)),
        ("deepseek2.expert_feed_forward_length", number(WIDTH)),
        ("deepseek2.expert_shared_count", number(0)),
        ("tokenizer.ggml.model", Value::from("gpt2")),
        ("tokenizer.ggml.pre", Value::from("glm4")),
        ("tokenizer.ggml.tokens", Value::from(tokens)),
        ("tokenizer.ggml.token_type", Value::from(types)),
        ("tokenizer.ggml.merges", Value::from(merges)),
        ("tokenizer.ggml.bos_token_id", Value::from(end)),
        ("tokenizer.ggml.eos_token_id", Value::from(end)),
        ("tokenizer.ggml.add_bos_token", Value::from(false)),
        ("tokenizer.chat_template", Value::from(template)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// A tensor: its name, its type and its dimensions.
type Shape = (&'static str, GgmlType, Vec<u64>);

/// Tensors of the model.
fn tensors(vocabulary: u64) -> Vec<Shape> {
    let (norm, weight) = (GgmlType::F32, GgmlType::Q4_0);
    vec![
        ("token_embd.weight", weight, vec![WIDTH, vocabulary]),
        ("output_norm.weight", norm, vec![WIDTH]),
        ("blk.0.attn_norm.weight", norm, vec![WIDTH]),
        ("blk.0.ffn_norm.weight", norm, vec![WIDTH]),
        ("blk.0.attn_kv_a_norm.weight", norm, vec![WIDTH]),
        ("blk.0.attn_q.weight", weight, vec![WIDTH, 2 * WIDTH]),
        ("blk.0.attn_kv_a_mqa.weight", weight, vec![WIDTH, 2 * WIDTH]),
        ("blk.0.attn_k_b.weight", weight, vec![WIDTH, WIDTH, 1]),
        ("blk.0.attn_v_b.weight", weight, vec![WIDTH, WIDTH, 1]),
        ("blk.0.attn_output.weight", weight, vec![WIDTH, WIDTH]),
        ("blk.0.ffn_gate.weight", weight, vec![WIDTH, WIDTH]),
        ("blk.0.ffn_up.weight", weight, vec![WIDTH, WIDTH]),
        ("blk.0.ffn_down.weight", weight, vec![WIDTH, WIDTH]),
    ]
}

/// A container with these pairs and no tensor.
pub fn file(metadata: &[(String, Value)]) -> Option<Vec<u8>> {
    written(metadata, &[])
}

/// A container with these pairs and tensors.
fn written(metadata: &[(String, Value)], tensors: &[Shape]) -> Option<Vec<u8>> {
    let mut writer = GgufWriter::new(vec![]);
    for (key, value) in metadata {
        writer.metadata(key, value.clone()).ok()?;
    }
    let mut sizes = vec![];
    for (name, ty, dims) in tensors {
        sizes.push((*ty, writer.tensor(name, *ty, dims).ok()?));
    }
    let mut data = writer.begin_data().ok()?;
    for (ty, bytes) in sizes {
        let one = match ty {
            GgmlType::F32 => 1f32.to_le_bytes().repeat(bytes as usize / 4),
            // A scale of a quarter, and codes of both signs.
            _ => [&[0, 0x34][..], &[0x79; 16]]
                .concat()
                .repeat(bytes as usize / 18),
        };
        data.write(&one).ok()?;
    }
    data.finish().ok()
}

/// Tokens of the vocabulary in this metadata.
fn tokens_in(metadata: &[(String, Value)]) -> u64 {
    let mut pairs = metadata.iter();
    let tokens = pairs.find(|(key, _)| key == "tokenizer.ggml.tokens");
    let tokens = tokens.and_then(|(_, tokens)| tokens.as_str_array());
    tokens.map_or(0, |tokens| tokens.len() as u64)
}

/// The model as a file.
pub fn model() -> Vec<u8> {
    let metadata = metadata(TEMPLATE);
    written(&metadata, &tensors(tokens_in(&metadata))).expect("the writer writes it")
}

/// The model with experts, a latent of queries and YaRN.
pub fn model_with_experts() -> Vec<u8> {
    let mut pairs = metadata("{{ messages[0].content }}");
    let mut shapes = tensors(tokens_in(&pairs));
    pairs.retain(|(key, _)| !key.contains("leading_dense") && !key.contains("expert_shared"));
    let number = |n: u64| Value::from(n as u32);
    let more = [
        ("leading_dense_block_count", number(0)),
        ("attention.q_lora_rank", number(WIDTH)),
        ("expert_count", number(2)),
        ("expert_used_count", number(1)),
        ("expert_shared_count", number(1)),
        ("expert_weights_scale", Value::from(1.8f32)),
        ("expert_weights_norm", Value::from(true)),
        ("expert_gating_func", number(2)),
        ("rope.scaling.type", Value::from("yarn")),
        ("rope.scaling.factor", Value::from(4f32)),
        ("rope.scaling.original_context_length", number(64)),
        ("rope.scaling.yarn_log_multiplier", Value::from(0.07f32)),
    ];
    pairs.extend(more.map(|(key, value)| (format!("deepseek2.{key}"), value)));
    shapes.retain(|(name, ..)| {
        !["ffn_gate.", "ffn_up.", "ffn_down.", "attn_q."]
            .iter()
            .any(|part| name.contains(part))
    });
    let (norm, weight) = (GgmlType::F32, GgmlType::Q4_0);
    shapes.extend([
        ("blk.0.attn_q_a_norm.weight", norm, vec![WIDTH]),
        ("blk.0.attn_q_a.weight", weight, vec![WIDTH, WIDTH]),
        ("blk.0.attn_q_b.weight", weight, vec![WIDTH, 2 * WIDTH]),
        ("blk.0.ffn_gate_inp.weight", norm, vec![WIDTH, 2]),
        ("blk.0.exp_probs_b.bias", norm, vec![2]),
        ("blk.0.ffn_gate_exps.weight", weight, vec![WIDTH, WIDTH, 2]),
        ("blk.0.ffn_up_exps.weight", weight, vec![WIDTH, WIDTH, 2]),
        ("blk.0.ffn_down_exps.weight", weight, vec![WIDTH, WIDTH, 2]),
        ("blk.0.ffn_gate_shexp.weight", weight, vec![WIDTH, WIDTH]),
        ("blk.0.ffn_up_shexp.weight", weight, vec![WIDTH, WIDTH]),
        ("blk.0.ffn_down_shexp.weight", weight, vec![WIDTH, WIDTH]),
    ]);
    written(&pairs, &shapes).expect("the writer writes it")
}

/// The bytes between the files of a split model in an input.
pub const BETWEEN: &[u8] = b"<next file>";

/// A model, split into `count` files: the metadata is in the first, tensors are in each.
pub fn split(model: Vec<u8>, count: u16) -> Vec<u8> {
    let gguf = container(model).expect("it was written by the writer");
    let tensors = gguf.tensors();
    let all = tensors.len() as i32;
    let each = tensors.len().div_ceil(count.into());
    let file = |(no, tensors): (usize, &[TensorInfo])| {
        let mut writer = GgufWriter::new(vec![]);
        for (key, value) in gguf.metadata().filter(|_| no == 0) {
            writer.metadata(key, value.clone())?;
        }
        writer.metadata("split.no", no as u16)?;
        writer.metadata("split.count", count)?;
        writer.metadata("split.tensors.count", all)?;
        for tensor in tensors {
            writer.tensor(&tensor.name, tensor.ty, &tensor.dims)?;
        }
        let mut data = writer.begin_data()?;
        for tensor in tensors {
            data.write(gguf.data(tensor))?;
        }
        data.finish()
    };
    let files = tensors.chunks(each).enumerate().map(file);
    let files: Result<Vec<_>, GgufError> = files.collect();
    files.expect("the writer writes it").join(BETWEEN)
}

/// The container in these bytes.
pub fn container(bytes: Vec<u8>) -> Option<Gguf> {
    Gguf::from_bytes(bytes, "fuzzed").ok()
}

/// Reads a model as far as it can be without its weights.
pub fn opened(gguf: Gguf) -> Option<Opened> {
    let gpu = GpuOptions {
        device: DeviceChoice::Cpu,
        ..GpuOptions::default()
    };
    let options = EngineOptions {
        gpu,
        ctx: Some(64),
        ..EngineOptions::default()
    };
    now(Opened::of_gguf(gguf, &options)).ok()
}

/// An engine of the model on the CPU.
pub fn engine() -> Engine {
    let gguf = container(model()).expect("it was written by the writer");
    let opened = opened(gguf).expect("its configuration is sound");
    now(Engine::load(opened, &mut |_| {})).expect("its weights are there")
}

/// The vocabulary of the model.
pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let gguf = container(model()).expect("it was written by the writer");
        Tokenizer::from_gguf(&gguf).expect("its vocabulary is sound")
    })
}

/// The tokens of that vocabulary for grammars.
pub fn vocabulary() -> &'static Vocabulary {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    VOCABULARY.get_or_init(|| Vocabulary::new(tokenizer()).expect("its tokens are sound"))
}

/// The value of a future, which is computed on this thread.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.wait()
}

/// Lets panics of llguidance and of minijinja pass, which glimt catches; all others still end the process.
pub fn others_may_panic() {
    let ending = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let theirs = ["llguidance", "derivre", "toktrie", "minijinja"];
        let file = panic.location().map_or("", |place| place.file());
        if !theirs
            .iter()
            .any(|name| file.contains(&format!("/{name}-")))
        {
            ending(panic);
        }
    }));
}

/// Writes seeds into the folder that `GLIMT_FUZZ_SEEDS` names, where it is set.
pub fn seeds(all: impl FnOnce() -> Vec<(&'static str, Vec<u8>)>) {
    let Some(folder) = std::env::var_os("GLIMT_FUZZ_SEEDS") else {
        return;
    };
    for (name, bytes) in all() {
        std::fs::write(Path::new(&folder).join(name), bytes).expect("the folder can be written");
    }
}

/// A file of this process alone.
pub fn own_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("glimt-fuzz-{}-{name}", std::process::id()))
}
