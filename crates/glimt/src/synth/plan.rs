//! The content of a synthetic model: metadata, and the name, type and dimensions of every tensor.

use super::shape::Shape;
use super::{ModelName, Recipe, SynthError, SynthOptions};
use crate::gguf::Value;
use crate::quant::GgmlType;
use crate::tokenizer::byte_level_alphabet;

/// The most layers accepted: far beyond any model, far below what overflows.
const MAX_LAYERS: usize = 1000;
/// The merges that make ` the` out of bytes, so that the vocabulary has some.
const MERGES: [&str; 3] = ["Ġ t", "h e", "Ġt he"];
const MERGED: [&str; 3] = ["Ġt", "he", "Ġthe"];
const END_OF_TEXT: &str = "<|endoftext|>";

/// A tensor to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name as in GGUF files.
    pub name: String,
    /// Type of its weights.
    pub ty: GgmlType,
    /// Dimensions in GGUF order: row length first.
    pub dims: Vec<u64>,
    /// Whether the tensor is a norm's weight, filled with ones; others are random.
    pub ones: bool,
}

impl PlannedTensor {
    /// Number of weights.
    pub fn weights(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> u64 {
        self.weights() / self.ty.block_len() as u64 * self.ty.block_bytes() as u64
    }
}

/// A synthetic model before any byte of it is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Metadata in file order.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in file order.
    pub tensors: Vec<PlannedTensor>,
}

impl Plan {
    /// The plan of `model` in the type mix of `recipe`. The seed of `options` plays no part in it.
    ///
    /// # Errors
    /// [`SynthError::Layers`].
    pub fn new(
        model: ModelName,
        recipe: Recipe,
        options: &SynthOptions,
    ) -> Result<Plan, SynthError> {
        let mut shape = Shape::of(model);
        if let Some(layers) = options.layers {
            if layers == 0 || layers > MAX_LAYERS {
                return Err(SynthError::Layers {
                    found: layers,
                    limit: MAX_LAYERS,
                });
            }
            shape.layers = layers;
        }
        if shape.experts.is_none() {
            shape.leading_dense = shape.layers;
        }
        let name = format!("synthetic {model} {recipe}");
        Ok(Plan {
            metadata: metadata(&shape, name, options),
            tensors: tensors(&shape, recipe, options),
        })
    }

    /// Bytes of all tensors together, without padding.
    pub fn byte_len(&self) -> u64 {
        self.tensors.iter().map(PlannedTensor::byte_len).sum()
    }
}

/// The metadata of a model, in file order.
fn metadata(shape: &Shape, name: String, options: &SynthOptions) -> Vec<(String, Value)> {
    let general = vec![
        ("architecture", Value::from(shape.architecture)),
        ("name", Value::from(name)),
    ];
    let mut all = Vec::new();
    for (part, pairs) in [
        ("general", general),
        (shape.architecture, sizes(shape, options)),
        ("tokenizer.ggml", tokenizer(shape)),
    ] {
        let named = |(key, value)| (format!("{part}.{key}"), value);
        all.extend(pairs.into_iter().map(named));
    }
    all
}

/// The sizes of the model.
fn sizes(shape: &Shape, options: &SynthOptions) -> Vec<(&'static str, Value)> {
    let fused_kv_b = options.fused_kv_b;
    let mut pairs = Vec::new();
    let mut put = |key, value| pairs.push((key, value));
    // Every count below comes from the tables of shapes, or is at most `MAX_LAYERS`.
    let number = |n: u64| Value::from(u32::try_from(n).expect("sizes of known models fit 32 bits"));
    let blocks = shape.layers + usize::from(options.nextn);
    put("block_count", number(blocks as u64));
    put("context_length", number(shape.context_length));
    put("embedding_length", number(shape.embedding_length));
    put("feed_forward_length", number(shape.feed_forward_length));
    put("attention.head_count", number(shape.heads));
    let kv_heads = if fused_kv_b { shape.heads } else { 1 };
    put("attention.head_count_kv", number(kv_heads));
    put("rope.freq_base", Value::from(shape.rope_base));
    put("attention.layer_norm_rms_epsilon", shape.rms_eps.into());
    put(
        "leading_dense_block_count",
        number(shape.leading_dense as u64),
    );
    put("vocab_size", number(shape.vocab_size));
    if shape.q_lora_rank > 0 {
        put("attention.q_lora_rank", number(shape.q_lora_rank));
    }
    put("attention.kv_lora_rank", number(shape.kv_lora_rank));
    put("rope.dimension_count", number(shape.qk_rope_head_dim));
    let key_length = shape.qk_nope_head_dim + shape.qk_rope_head_dim;
    if fused_kv_b {
        put("attention.key_length", number(key_length));
        put("attention.value_length", number(shape.v_head_dim));
    } else {
        let cache_row = shape.kv_lora_rank + shape.qk_rope_head_dim;
        put("attention.key_length", number(cache_row));
        put("attention.value_length", number(shape.kv_lora_rank));
        put("attention.key_length_mla", number(key_length));
        put("attention.value_length_mla", number(shape.v_head_dim));
    }
    let expert_length = shape.experts.map_or(shape.feed_forward_length, |experts| {
        experts.feed_forward_length
    });
    put("expert_feed_forward_length", number(expert_length));
    let shared = shape.experts.map_or(0, |experts| experts.shared);
    put("expert_shared_count", number(shared));
    if let Some(experts) = shape.experts {
        put("expert_count", number(experts.count));
        put("expert_used_count", number(experts.used));
        put("expert_weights_scale", Value::from(experts.weights_scale));
        put("expert_weights_norm", Value::from(experts.weights_norm));
        put("expert_gating_func", Value::from(experts.gating));
    }
    if let Some(yarn) = shape.yarn {
        put("rope.scaling.type", Value::from("yarn"));
        put("rope.scaling.factor", Value::from(yarn.factor));
        put(
            "rope.scaling.original_context_length",
            Value::from(yarn.original_context_length),
        );
        put(
            "rope.scaling.yarn_log_multiplier",
            Value::from(yarn.log_multiplier),
        );
    }
    if options.nextn {
        put("nextn_predict_layers", number(1));
    }
    pairs
}

/// The vocabulary, and which of its tokens mean something.
fn tokenizer(shape: &Shape) -> Vec<(&'static str, Value)> {
    let (tokens, types) = vocabulary(shape.vocab_size as usize);
    let end_of_text = tokens
        .iter()
        .position(|token| token == END_OF_TEXT)
        .unwrap_or_default() as u32;
    vec![
        ("model", Value::from("gpt2")),
        ("pre", Value::from(shape.pre)),
        ("tokens", Value::from(tokens)),
        ("token_type", Value::from(types)),
        ("merges", Value::from(MERGES.map(str::to_owned).to_vec())),
        ("bos_token_id", Value::from(end_of_text)),
        ("eos_token_id", Value::from(end_of_text)),
        ("add_bos_token", Value::from(false)),
    ]
}

/// The 256 bytes, a few merges, the end of text, and user-defined tokens for the rest; with their types.
fn vocabulary(size: usize) -> (Vec<String>, Vec<i32>) {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const USER_DEFINED: i32 = 4;
    let mut tokens: Vec<String> = byte_level_alphabet()
        .into_iter()
        .map(String::from)
        .collect();
    tokens.extend(MERGED.map(str::to_owned));
    let mut types = vec![NORMAL; tokens.len()];
    tokens.push(END_OF_TEXT.to_owned());
    types.push(CONTROL);
    tokens.extend((tokens.len()..size).map(|id| format!("<|r{id}|>")));
    types.resize(tokens.len(), USER_DEFINED);
    (tokens, types)
}

/// Collects tensors of one recipe.
struct Tensors {
    recipe: Recipe,
    layers: usize,
    tied: bool,
    list: Vec<PlannedTensor>,
}

impl Tensors {
    /// Dimensions in GGUF order.
    fn add(&mut self, name: String, dims: &[u64]) {
        self.list.push(PlannedTensor {
            ty: (self.recipe).of_tensor(&name, dims, self.layers, self.tied),
            name,
            dims: dims.to_vec(),
            ones: false,
        });
    }

    /// The weight of a norm.
    fn norm(&mut self, name: String, length: u64) {
        self.add(name, &[length]);
        if let Some(norm) = self.list.last_mut() {
            norm.ones = true;
        }
    }
}

/// The tensors of a model, in file order.
fn tensors(shape: &Shape, recipe: Recipe, options: &SynthOptions) -> Vec<PlannedTensor> {
    let mut all = Tensors {
        recipe,
        // llama.cpp's quantiser counts the prediction layer, too.
        layers: shape.layers + usize::from(options.nextn),
        tied: shape.tied,
        list: Vec::new(),
    };
    let (d, vocab) = (shape.embedding_length, shape.vocab_size);
    all.add("token_embd.weight".to_owned(), &[d, vocab]);
    all.norm("output_norm.weight".to_owned(), d);
    if !shape.tied {
        all.add("output.weight".to_owned(), &[d, vocab]);
    }
    for layer in 0..all.layers {
        add_layer(&mut all, shape, layer, options.fused_kv_b);
    }
    if options.nextn {
        add_nextn(&mut all, shape);
    }
    all.list
}

/// What the prediction layer has beside a block. The model's embedding and head stand there once more, as in the files of GLM-4.7-Flash (their
/// sizes are in the pull request 24868 of llama.cpp).
fn add_nextn(all: &mut Tensors, shape: &Shape) {
    let name = |part: &str| format!("blk.{}.nextn.{part}.weight", shape.layers);
    let (d, vocab) = (shape.embedding_length, shape.vocab_size);
    all.add(name("eh_proj"), &[2 * d, d]);
    all.add(name("embed_tokens"), &[d, vocab]);
    all.norm(name("enorm"), d);
    all.norm(name("hnorm"), d);
    all.add(name("shared_head_head"), &[d, vocab]);
    all.norm(name("shared_head_norm"), d);
}

fn add_layer(all: &mut Tensors, shape: &Shape, layer: usize, fused_kv_b: bool) {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (d, heads, latent) = (shape.embedding_length, shape.heads, shape.kv_lora_rank);
    let (nope, rope, value) = (
        shape.qk_nope_head_dim,
        shape.qk_rope_head_dim,
        shape.v_head_dim,
    );

    all.norm(name("attn_norm.weight"), d);
    all.norm(name("ffn_norm.weight"), d);
    all.norm(name("attn_kv_a_norm.weight"), latent);
    let query = heads * (nope + rope);
    if shape.q_lora_rank > 0 {
        all.norm(name("attn_q_a_norm.weight"), shape.q_lora_rank);
        all.add(name("attn_q_a.weight"), &[d, shape.q_lora_rank]);
        all.add(name("attn_q_b.weight"), &[shape.q_lora_rank, query]);
    } else {
        all.add(name("attn_q.weight"), &[d, query]);
    }
    all.add(name("attn_kv_a_mqa.weight"), &[d, latent + rope]);
    if fused_kv_b {
        all.add(name("attn_kv_b.weight"), &[latent, heads * (nope + value)]);
    } else {
        all.add(name("attn_k_b.weight"), &[nope, latent, heads]);
        all.add(name("attn_v_b.weight"), &[latent, value, heads]);
    }
    all.add(name("attn_output.weight"), &[heads * value, d]);

    match shape.experts {
        Some(experts) if layer >= shape.leading_dense => {
            let (count, ff) = (experts.count, experts.feed_forward_length);
            all.add(name("ffn_gate_inp.weight"), &[d, count]);
            if experts.selection_bias {
                all.add(name("exp_probs_b.bias"), &[count]);
            }
            all.add(name("ffn_gate_exps.weight"), &[d, ff, count]);
            all.add(name("ffn_up_exps.weight"), &[d, ff, count]);
            all.add(name("ffn_down_exps.weight"), &[ff, d, count]);
            let shared = ff * experts.shared;
            all.add(name("ffn_gate_shexp.weight"), &[d, shared]);
            all.add(name("ffn_up_shexp.weight"), &[d, shared]);
            all.add(name("ffn_down_shexp.weight"), &[shared, d]);
        }
        _ => {
            let ff = shape.feed_forward_length;
            all.add(name("ffn_gate.weight"), &[d, ff]);
            all.add(name("ffn_up.weight"), &[d, ff]);
            all.add(name("ffn_down.weight"), &[ff, d]);
        }
    }
}
