//! A model whose answers are written down: a file of the architecture deepseek2 with weights that are almost all 0. Its next token follows
//! from its last one alone. The chat template ends with a token that says how many answers there were, and which answer comes is decided by
//! it. So an agent that talks to the model gets the first answer first, and the second one when it comes back with what its tools have said.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use glimt::gguf::{GgufWriter, Value};
use glimt::quant::GgmlType;
use glimt::tokenizer::byte_level_alphabet;
use half::f16;

/// Width of the model. Each token that has a next one takes a dimension, and so does the rest.
const WIDTH: usize = 256;

/// Special tokens. The first ends an answer.
const SPECIAL: [&str; 5] = ["<|end|>", "<think>", "</think>", "<|none|>", "<|quiet|>"];

/// A chat template that tells next to nothing of what was said, so that long prompts take no time. Its last token is that of the step:
/// that of conversations without tools, that of answers without thoughts, or that of as many answers as there were.
const TEMPLATE: &str = "{# Calls are written as <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>. #}\
     {%- for m in messages %}{{ m.role }}: {{ m.content[:40] }}{% if m.reasoning_content %} ({{ m.reasoning_content }}){% endif %}\
     {% for c in m.tool_calls %} {{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}\
     {%- set answers = messages | selectattr('role', 'equalto', 'assistant') | list | length %}\
     {%- if not add_generation_prompt %}\
     {%- elif enable_thinking is defined and not enable_thinking and not tools %}<|quiet|>\
     {%- elif not tools %}<|none|>\
     {%- else %}<|step{{ answers }}|>{% endif %}";

/// The answers of the model.
pub struct Script<'a> {
    /// To the n-th request of a conversation with tools.
    pub steps: &'a [&'a str],
    /// The thoughts and the text of an answer to a conversation without tools.
    pub thoughts: &'a str,
    pub text: &'a str,
    /// Tokens of the context.
    pub context: u32,
    /// The chat template, if it is another one. It must end with the token of a step, too.
    pub template: Option<&'a str>,
}

/// The vocabulary and what follows each token.
struct Words {
    tokens: Vec<String>,
    types: Vec<i32>,
    ids: HashMap<String, usize>,
    next: HashMap<usize, usize>,
}

impl Words {
    fn token(&mut self, text: String, kind: i32) -> usize {
        let fresh = self.tokens.len();
        let id = *self.ids.entry(text.clone()).or_insert(fresh);
        if id == fresh {
            self.tokens.push(text);
            self.types.push(kind);
        }
        id
    }

    /// Has `text` follow the token `last`, in pieces that occur nowhere else. Returned is its last token.
    fn follow(&mut self, last: usize, text: &str) -> usize {
        let alphabet = letters();
        let letters: Vec<char> = text
            .bytes()
            .map(|byte| alphabet[usize::from(byte)])
            .collect();
        let mut pieces: Vec<String> = letters
            .chunks(12)
            .map(|chunk| chunk.iter().collect())
            .collect();
        let taken = |pieces: &[String], at: usize| {
            self.ids.contains_key(&pieces[at]) || pieces[..at].contains(&pieces[at])
        };
        // One that has another place already is joined with its neighbour.
        let mut at = 0;
        while at < pieces.len() {
            if !taken(&pieces, at) {
                at += 1;
            } else if at + 1 < pieces.len() {
                let next = pieces.remove(at + 1);
                pieces[at] += &next;
            } else {
                assert!(at > 0, "{text:?} has another place");
                let rest = pieces.remove(at);
                at -= 1;
                pieces[at] += &rest;
            }
        }
        pieces
            .into_iter()
            .fold(last, |last, piece| self.link(last, piece))
    }

    fn link(&mut self, last: usize, text: String) -> usize {
        let id = self.token(text, 1);
        self.next.insert(last, id);
        id
    }
}

/// The letter that stands for each byte: itself, where it can be seen, or else the next of those behind all bytes.
fn letters() -> Vec<char> {
    let (own, mut others): (Vec<char>, Vec<char>) = byte_level_alphabet()
        .into_iter()
        .partition(|c| u32::from(*c) < 256);
    others.reverse();
    let letter = |byte: u8| {
        let own = own.contains(&char::from(byte));
        own.then(|| char::from(byte)).or_else(|| others.pop())
    };
    (0..=255).filter_map(letter).collect()
}

fn words(script: &Script<'_>) -> Words {
    let mut words = Words {
        tokens: vec![],
        types: vec![],
        ids: HashMap::new(),
        next: HashMap::new(),
    };
    for letter in byte_level_alphabet() {
        words.token(letter.to_string(), 1);
    }
    words.token("Ġt".to_owned(), 1);
    let [end, think, thought, none, quiet] = SPECIAL.map(|text| words.token(text.to_owned(), 3));
    for (i, step) in script.steps.iter().enumerate() {
        let first = words.token(format!("<|step{i}|>"), 3);
        let last = words.follow(first, step);
        words.next.insert(last, end);
    }
    words.next.insert(none, think);
    let last = words.follow(think, script.thoughts);
    words.next.insert(last, thought);
    let last = words.follow(thought, script.text);
    words.next.insert(last, end);
    words.next.insert(quiet, words.next[&thought]);
    assert!(words.next.len() < WIDTH, "{} tokens", words.next.len());
    words
}

fn numbers() -> Vec<(&'static str, u32)> {
    vec![
        ("block_count", 1),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", 256),
        ("attention.head_count", 5),
        ("attention.head_count_kv", 1),
        ("leading_dense_block_count", 1),
        ("attention.q_lora_rank", 256),
        ("attention.kv_lora_rank", 512),
        ("rope.dimension_count", 64),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.key_length_mla", 256),
        ("attention.value_length_mla", 256),
        ("expert_feed_forward_length", 256),
        ("expert_shared_count", 1),
        ("expert_count", 64),
        ("expert_used_count", 4),
        ("expert_gating_func", 2),
    ]
}

fn metadata(script: &Script<'_>, words: &Words) -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = vec![
        ("general.architecture".to_owned(), "deepseek2".into()),
        ("general.name".to_owned(), "script".into()),
    ];
    let mut own = |name: &str, value: Value| all.push((format!("deepseek2.{name}"), value));
    for (name, value) in numbers() {
        own(name, value.into());
    }
    own("context_length", script.context.into());
    own("vocab_size", (words.tokens.len() as u32).into());
    own("rope.freq_base", 1e6f32.into());
    own("attention.layer_norm_rms_epsilon", 1e-5f32.into());
    own("expert_weights_scale", 1.8f32.into());
    own("expert_weights_norm", true.into());
    let end = words.ids[SPECIAL[0]] as u32;
    let mut tokenizer = |name: &str, value: Value| all.push((format!("tokenizer.{name}"), value));
    tokenizer("ggml.model", "gpt2".into());
    tokenizer("ggml.pre", "glm4".into());
    tokenizer("ggml.tokens", words.tokens.clone().into());
    tokenizer("ggml.token_type", words.types.clone().into());
    tokenizer("ggml.merges", vec!["Ġ t".to_owned()].into());
    tokenizer("ggml.eos_token_id", end.into());
    tokenizer("ggml.add_bos_token", false.into());
    tokenizer("chat_template", script.template.unwrap_or(TEMPLATE).into());
    all
}

/// The embedding, or else the head: token by token, a row in the dimension of each token that has a next one.
fn rows(words: &Words, is_embedding: bool) -> Vec<f32> {
    let mut rows = vec![0.0; words.tokens.len() * WIDTH];
    let mut from: Vec<_> = words.next.iter().map(|(from, to)| (*from, *to)).collect();
    from.sort_unstable();
    if is_embedding {
        // All other tokens share the first dimension, which ends the answer.
        rows.iter_mut()
            .step_by(WIDTH)
            .for_each(|first| *first = 1.0);
    } else {
        rows[words.ids[SPECIAL[0]] * WIDTH] = 2.0;
    }
    for (i, (token, next)) in from.into_iter().enumerate() {
        if is_embedding {
            rows[token * WIDTH] = 0.0;
            rows[token * WIDTH + i + 1] = 1.0;
        } else {
            rows[next * WIDTH + i + 1] = 2.0;
        }
    }
    rows
}

/// Writes the model to `NAME.gguf` in a folder.
pub fn scripted(folder: &Path, name: &str, script: &Script<'_>) -> PathBuf {
    let words = words(script);
    let mut writer = GgufWriter::new(vec![]);
    for (key, value) in metadata(script, &words) {
        writer.metadata(&key, value).expect("keys are unique");
    }
    let vocabulary = words.tokens.len() as u64;
    let matrices: [(&str, &[u64]); 11] = [
        ("token_embd", &[256, vocabulary]),
        ("output", &[256, vocabulary]),
        ("blk.0.attn_q_a", &[256, 256]),
        ("blk.0.attn_q_b", &[256, 1280]),
        ("blk.0.attn_kv_a_mqa", &[256, 576]),
        ("blk.0.attn_k_b", &[192, 512, 5]),
        ("blk.0.attn_v_b", &[512, 256, 5]),
        ("blk.0.attn_output", &[1280, 256]),
        ("blk.0.ffn_gate", &[256, 256]),
        ("blk.0.ffn_up", &[256, 256]),
        ("blk.0.ffn_down", &[256, 256]),
    ];
    let norms = [
        ("output_norm", 256),
        ("blk.0.attn_norm", 256),
        ("blk.0.ffn_norm", 256),
        ("blk.0.attn_kv_a_norm", 512),
        ("blk.0.attn_q_a_norm", 256),
    ];
    for (name, dims) in matrices {
        let added = writer.tensor(&format!("{name}.weight"), GgmlType::F16, dims);
        added.expect("names are unique");
    }
    for (name, length) in norms {
        let added = writer.tensor(&format!("{name}.weight"), GgmlType::F32, &[length]);
        added.expect("names are unique");
    }
    let mut data = writer.begin_data().expect("memory takes it");
    for (name, dims) in matrices {
        let values = match name {
            "token_embd" => rows(&words, true),
            "output" => rows(&words, false),
            _ => vec![0.0; dims.iter().product::<u64>() as usize],
        };
        let bytes = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes());
        data.write(&bytes.collect::<Vec<u8>>())
            .expect("memory takes it");
    }
    for (_, length) in norms {
        let ones = vec![1.0f32; length as usize];
        let bytes = ones.iter().flat_map(|v| v.to_le_bytes());
        data.write(&bytes.collect::<Vec<u8>>())
            .expect("memory takes it");
    }
    let bytes = data.finish().expect("all tensors are there");
    let path = folder.join(format!("{name}.gguf"));
    std::fs::write(&path, bytes).expect("the temporary directory is writable");
    path
}
