//! The content of a synthetic model: metadata, and the name, type and dimensions of every tensor.

use super::shape::{AttentionShape, GroupedShape, LatentShape, Shape, Yarn};
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
    /// [`SynthError::Layers`], [`SynthError::NoPart`].
    pub fn new(
        model: ModelName,
        recipe: Recipe,
        options: &SynthOptions,
    ) -> Result<Plan, SynthError> {
        let mut shape = Shape::of(model);
        let grouped = matches!(shape.attention, AttentionShape::Grouped(_));
        for (wanted, part) in [
            (options.fused_kv_b, "a fused attn_kv_b (--fused-kv-b)"),
            (options.nextn, "a prediction layer (--mtp)"),
        ] {
            if wanted && grouped {
                let model = model.to_string();
                return Err(SynthError::NoPart { model, part });
            }
        }
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

/// A size as metadata. Every one comes from the tables of shapes, or is at most `MAX_LAYERS`.
fn number(n: u64) -> Value {
    Value::from(u32::try_from(n).expect("sizes of known models fit 32 bits"))
}

/// The sizes of the model.
fn sizes(shape: &Shape, options: &SynthOptions) -> Vec<(&'static str, Value)> {
    let blocks = shape.layers + usize::from(options.nextn);
    let kv_heads = match shape.attention {
        AttentionShape::Grouped(grouped) => grouped.kv_heads,
        AttentionShape::Latent(_) if options.fused_kv_b => shape.heads,
        AttentionShape::Latent(_) => 1,
    };
    let mut pairs = vec![
        ("block_count", number(blocks as u64)),
        ("context_length", number(shape.context_length)),
        ("embedding_length", number(shape.embedding_length)),
        ("feed_forward_length", number(shape.feed_forward_length)),
        ("attention.head_count", number(shape.heads)),
        ("attention.head_count_kv", number(kv_heads)),
        ("rope.freq_base", Value::from(shape.rope_base)),
        ("attention.layer_norm_rms_epsilon", shape.rms_eps.into()),
    ];
    match &shape.attention {
        AttentionShape::Latent(latent) => {
            let dense = number(shape.leading_dense as u64);
            pairs.push(("leading_dense_block_count", dense));
            pairs.push(("vocab_size", number(shape.vocab_size)));
            pairs.extend(latent_sizes(latent, options.fused_kv_b));
            pairs.extend(expert_sizes(shape));
        }
        AttentionShape::Grouped(grouped) => {
            pairs.push(("vocab_size", number(shape.vocab_size)));
            let rotated = number(grouped.head);
            pairs.push(("rope.dimension_count", rotated));
            pairs.push(("attention.key_length", number(grouped.head)));
            pairs.push(("attention.value_length", number(grouped.head)));
            if let Some(experts) = shape.experts {
                let length = number(experts.feed_forward_length);
                pairs.push(("expert_feed_forward_length", length));
                pairs.push(("expert_count", number(experts.count)));
                pairs.push(("expert_used_count", number(experts.used)));
            }
        }
    }
    pairs.extend(shape.yarn.iter().flat_map(yarn));
    if options.nextn {
        pairs.push(("nextn_predict_layers", number(1)));
    }
    pairs
}

/// The sizes of latent attention.
fn latent_sizes(latent: &LatentShape, fused_kv_b: bool) -> Vec<(&'static str, Value)> {
    let mut pairs = vec![];
    if latent.q_lora_rank > 0 {
        pairs.push(("attention.q_lora_rank", number(latent.q_lora_rank)));
    }
    pairs.push(("attention.kv_lora_rank", number(latent.kv_lora_rank)));
    pairs.push(("rope.dimension_count", number(latent.qk_rope_head_dim)));
    let key_length = latent.qk_nope_head_dim + latent.qk_rope_head_dim;
    let lengths = match fused_kv_b {
        true => vec![
            ("attention.key_length", key_length),
            ("attention.value_length", latent.v_head_dim),
        ],
        false => vec![
            (
                "attention.key_length",
                latent.kv_lora_rank + latent.qk_rope_head_dim,
            ),
            ("attention.value_length", latent.kv_lora_rank),
            ("attention.key_length_mla", key_length),
            ("attention.value_length_mla", latent.v_head_dim),
        ],
    };
    pairs.extend(lengths.into_iter().map(|(key, n)| (key, number(n))));
    pairs
}

/// The sizes of the experts as files with latent attention have them, also those of dense models.
fn expert_sizes(shape: &Shape) -> Vec<(&'static str, Value)> {
    let length = shape.experts.map_or(shape.feed_forward_length, |experts| {
        experts.feed_forward_length
    });
    let shared = shape.experts.map_or(0, |experts| experts.shared);
    let mut pairs = vec![
        ("expert_feed_forward_length", number(length)),
        ("expert_shared_count", number(shared)),
    ];
    if let Some(experts) = shape.experts {
        pairs.extend([
            ("expert_count", number(experts.count)),
            ("expert_used_count", number(experts.used)),
            ("expert_weights_scale", Value::from(experts.weights_scale)),
            ("expert_weights_norm", Value::from(experts.weights_norm)),
            ("expert_gating_func", Value::from(experts.gating)),
        ]);
    }
    pairs
}

/// The numbers of YaRN.
fn yarn(yarn: &Yarn) -> Vec<(&'static str, Value)> {
    let mut pairs = vec![
        ("rope.scaling.type", Value::from("yarn")),
        ("rope.scaling.factor", Value::from(yarn.factor)),
        (
            "rope.scaling.original_context_length",
            Value::from(yarn.original_context_length),
        ),
    ];
    if yarn.log_multiplier != 0.0 {
        let multiplier = Value::from(yarn.log_multiplier);
        pairs.push(("rope.scaling.yarn_log_multiplier", multiplier));
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
    let d = shape.embedding_length;
    all.norm(name("attn_norm.weight"), d);
    all.norm(name("ffn_norm.weight"), d);
    let values = match &shape.attention {
        AttentionShape::Latent(latent) => {
            add_latent(all, shape, latent, &name, fused_kv_b);
            latent.v_head_dim
        }
        AttentionShape::Grouped(grouped) => {
            add_grouped(all, shape, grouped, &name);
            grouped.head
        }
    };
    all.add(name("attn_output.weight"), &[shape.heads * values, d]);
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
            if shared > 0 {
                all.add(name("ffn_gate_shexp.weight"), &[d, shared]);
                all.add(name("ffn_up_shexp.weight"), &[d, shared]);
                all.add(name("ffn_down_shexp.weight"), &[shared, d]);
            }
        }
        _ => {
            let ff = shape.feed_forward_length;
            all.add(name("ffn_gate.weight"), &[d, ff]);
            all.add(name("ffn_up.weight"), &[d, ff]);
            all.add(name("ffn_down.weight"), &[ff, d]);
        }
    }
}

/// The tensors of latent attention in a layer.
fn add_latent(
    all: &mut Tensors,
    shape: &Shape,
    latent: &LatentShape,
    name: &dyn Fn(&str) -> String,
    fused_kv_b: bool,
) {
    let (d, heads, rank) = (shape.embedding_length, shape.heads, latent.kv_lora_rank);
    let (nope, rope, value) = (
        latent.qk_nope_head_dim,
        latent.qk_rope_head_dim,
        latent.v_head_dim,
    );
    all.norm(name("attn_kv_a_norm.weight"), rank);
    let query = heads * (nope + rope);
    if latent.q_lora_rank > 0 {
        all.norm(name("attn_q_a_norm.weight"), latent.q_lora_rank);
        all.add(name("attn_q_a.weight"), &[d, latent.q_lora_rank]);
        all.add(name("attn_q_b.weight"), &[latent.q_lora_rank, query]);
    } else {
        all.add(name("attn_q.weight"), &[d, query]);
    }
    all.add(name("attn_kv_a_mqa.weight"), &[d, rank + rope]);
    if fused_kv_b {
        all.add(name("attn_kv_b.weight"), &[rank, heads * (nope + value)]);
    } else {
        all.add(name("attn_k_b.weight"), &[nope, rank, heads]);
        all.add(name("attn_v_b.weight"), &[rank, value, heads]);
    }
}

/// The tensors of grouped-query attention in a layer.
fn add_grouped(
    all: &mut Tensors,
    shape: &Shape,
    grouped: &GroupedShape,
    name: &dyn Fn(&str) -> String,
) {
    if grouped.norms {
        all.norm(name("attn_q_norm.weight"), grouped.head);
        all.norm(name("attn_k_norm.weight"), grouped.head);
    }
    let (d, shared) = (shape.embedding_length, grouped.kv_heads * grouped.head);
    let own = shape.heads * grouped.head;
    for (part, rows) in [("attn_q", own), ("attn_k", shared), ("attn_v", shared)] {
        all.add(name(&format!("{part}.weight")), &[d, rows]);
        if grouped.biases {
            all.add(name(&format!("{part}.bias")), &[rows]);
        }
    }
}
