//! Protects the choices for prompts: on an H200 those that were measured there, on devices with fewer cores those that suit them.

use super::super::Weights;
use crate::gpu::Coop;
use crate::gpu::machine::{Machine, Profile};
use crate::kernels::gemm::{Form, Tile};
use crate::kernels::prompt_attention;
use crate::models::mla::Config;
use crate::recipes::AttentionWeights;
use crate::recipes::chunk::{ChunkSize, router_split_k, widest};
use crate::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use std::fmt::Write;

const MODELS: [ModelName; 3] = [
    ModelName::Glm47Flash,
    ModelName::DeepseekV2Lite,
    ModelName::YoutuLlm2b,
];

/// Tokens of a chunk: up to the fewest by absorbed attention, those of the classes, the usual chunk and the longest.
const TOKENS: [u32; 6] = [8, 32, 128, 512, 2048, 4096];

fn config(model: ModelName) -> Config {
    let options = SynthOptions {
        layers: Some(2),
        ..SynthOptions::default()
    };
    let gguf = without_matrices(model, Recipe::Q4_0, &options).expect("a plan");
    Config::from_gguf(&gguf).expect("it is supported")
}

/// A product of a prompt: its name, rows, columns, and whether it is a pair.
type Product = (&'static str, usize, usize, bool);

/// The products whose columns may be cut, and those that are not.
fn products(config: &Config) -> [Vec<Product>; 2] {
    let (d, heads) = (config.embedding_length, config.head_count);
    let q = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim);
    let values = heads * config.v_head_dim;
    let kv_lora = config.kv_lora_rank;
    let mut cut = vec![
        ("kv_a", config.cache_values(), d, false),
        ("attn_output", d, values, false),
    ];
    let mut whole = vec![
        ("q", q, config.q_lora_rank.unwrap_or(d), false),
        ("k_b", heads * kv_lora, config.qk_nope_head_dim, false),
        ("v_b", values, kv_lora, false),
        ("head", config.vocab_size, d, false),
        ("gate_up", config.feed_forward_length, d, true),
        ("down", d, config.feed_forward_length, false),
    ];
    cut.extend(config.q_lora_rank.map(|rank| ("q_a", rank, d, false)));
    if let Some(experts) = &config.experts {
        let rows = experts.shared_count * experts.feed_forward_length;
        whole.extend([
            ("shared gate_up", rows, d, true),
            ("shared down", d, rows, false),
        ]);
    }
    [cut, whole]
}

/// The choices for a product of so many tokens.
struct Choice {
    tile: Tile,
    split_k: u32,
    workgroups: u32,
}

fn size(machine: Machine, products: Form, tokens: u32) -> ChunkSize {
    ChunkSize {
        machine,
        products,
        tokens,
    }
}

/// The choices for every product, for each of [`TOKENS`].
fn choices(machine: Machine, config: &Config, form: Form) -> Vec<(&'static str, Vec<Choice>)> {
    let choose = |form: Form, rows: usize, pair: bool, split_k: &dyn Fn(u32) -> u32| {
        let rows = rows as u32;
        let of_tokens = TOKENS.into_iter().map(|tokens| {
            let split_k = split_k(tokens);
            let tile = Tile::choose(machine, form, pair, tokens, rows, split_k);
            let tiles = tokens.div_ceil(tile.tokens) * rows.div_ceil(tile.rows);
            Choice {
                tile,
                split_k,
                workgroups: tiles * split_k,
            }
        });
        of_tokens.collect::<Vec<_>>()
    };
    let [cut, whole] = products(config);
    let cut = cut.into_iter().map(|(name, rows, cols, pair)| {
        let split_k = |tokens| size(machine, form, tokens).split_k(rows as u32, cols as u32);
        (name, choose(form, rows, pair, &split_k))
    });
    let whole = whole
        .into_iter()
        .map(|(name, rows, _, pair)| (name, choose(form, rows, pair, &|_| 1)));
    let router = config.experts.iter().map(|experts| {
        let floats = Form::Float { eight: false };
        let split_k = |_| router_split_k(machine, config.embedding_length as u32);
        ("router", choose(floats, experts.count, false, &split_k))
    });
    cut.chain(whole).chain(router).collect()
}

fn forms() -> [(&'static str, Form); 2] {
    [
        ("matrices", Form::Matrix(Coop::NVIDIA)),
        ("floats", Form::Float { eight: false }),
    ]
}

/// The recipes' choices for a machine, as text. Each product has a line with the tokens and rows of its tiles and its ranges of
/// columns. The other lines tell the words of all buffers, and whether the attention leaves gaps with tiles of 128 tokens or of 32.
fn document(machine: Machine) -> String {
    let mut text = String::new();
    for model in MODELS {
        let config = config(model);
        for (name, form) in forms() {
            let matrices = matches!(form, Form::Matrix(_));
            writeln!(text, "{model} by {name}").expect("a string grows");
            let mut line = |name: &str, cells: Vec<String>| {
                writeln!(text, "{name}: {}", cells.join(" ")).expect("a string grows");
            };
            for (product, chosen) in choices(machine, &config, form) {
                let cell = |Choice { tile, split_k, .. }: &Choice| {
                    format!("{}x{}/{split_k}", tile.tokens, tile.rows)
                };
                line(product, chosen.iter().map(cell).collect());
            }
            let attention = Weights {
                expanded: Some(match form {
                    Form::Matrix(coop) => prompt_attention::Form::Matrix(coop),
                    Form::Float { .. } => prompt_attention::Form::Vector,
                }),
                ..Weights::new(&config, vec![])
            };
            let words = |tokens: u32| {
                let size = size(machine, form, tokens);
                let common = widest(size, &config, attention.values());
                (common.max(attention.widest(size, false)) / 4).to_string()
            };
            line("widest", TOKENS.map(words).to_vec());
            let of_workgroup = if matrices { 128 } else { 32 };
            let gaps = |tokens: u32| {
                let heads = config.head_count as u32;
                let gaps = machine.leaves_gaps(heads * tokens.div_ceil(of_workgroup));
                gaps.to_string()
            };
            line("gaps", TOKENS.map(gaps).to_vec());
        }
    }
    text
}

#[test]
fn an_h200_keeps_what_was_measured_on_it() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/h200-prompts.txt"
    );
    let now = document(Machine::H200);
    if std::env::var_os("GLIMT_WRITE").is_some() {
        std::fs::write(path, &now).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    let recorded = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    for (now, recorded) in now.lines().zip(recorded.lines()) {
        assert_eq!(now, recorded, "GLIMT_WRITE=1 writes {path} anew");
    }
    assert_eq!(
        now.len(),
        recorded.len(),
        "GLIMT_WRITE=1 writes {path} anew"
    );
}

#[test]
fn few_cores_ask_for_few_workgroups() {
    let machines = [8, 10, 40, 76].map(|cores| Machine::with_cores(Profile::Apple, cores));
    let machines = machines.into_iter().chain([Machine::H200]);
    for model in MODELS {
        let config = config(model);
        for (name, form) in forms() {
            // The list has the workgroups of each product for each number of tokens.
            let workgroups = machines.clone().map(|machine| {
                let choices = choices(machine, &config, form);
                let all = choices.iter().flat_map(|(_, of_tokens)| of_tokens);
                all.map(|choice| choice.workgroups).collect::<Vec<_>>()
            });
            let workgroups: Vec<_> = workgroups.collect();
            for (few, many) in workgroups.iter().zip(&workgroups[1..]) {
                let no_more = few.iter().zip(many).all(|(few, many)| few <= many);
                assert!(no_more, "{model} by {name}: {few:?} and {many:?}");
            }
            // 8 and 10 cores are as many to a power of two.
            let sums: Vec<_> = workgroups
                .iter()
                .map(|all| all.iter().sum::<u32>())
                .collect();
            assert_eq!(sums[0], sums[1], "{model} by {name}");
            assert!(sums[1..].is_sorted_by(|few, many| few < many), "{sums:?}");
        }
    }
}

#[test]
fn software_never_cuts_columns() {
    let software = Machine::with_cores(Profile::Software, 8);
    for (_, form) in forms() {
        assert_eq!(size(software, form, 16).split_k(576, 2048), 1);
        assert_eq!(
            size(Machine::H200, form, 16).split_k(576, 2048),
            match form {
                Form::Matrix(_) => Machine::H200.tuned.product_split_k,
                Form::Float { .. } => 1,
            }
        );
    }
    assert_eq!(router_split_k(software, 2048), 1);
}
