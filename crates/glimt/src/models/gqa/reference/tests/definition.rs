//! Protects whole models of every shape and variant: their logits are those of a forward pass in f64, written from the definition.

use super::*;
use crate::engine::backend::Backend;
use crate::engine::cpu::CpuBackend;
use crate::gpu::wait::Wait;
use crate::kernels::testing::{Rng, nmse};
use std::collections::BTreeMap;

/// The rotated angles of a variant, and what else it has.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Variant {
    Plain,
    /// `rope_freqs.weight`, as Llama 3 has it.
    Factors,
    Yarn,
    /// One tensor `attn_qkv`, with its bias.
    Fused,
    /// Half of each head is rotated.
    Part,
    /// Experts.
    Moe,
}

const VARIANTS: [Variant; 6] = [
    Variant::Plain,
    Variant::Factors,
    Variant::Yarn,
    Variant::Fused,
    Variant::Part,
    Variant::Moe,
];

/// Tokens of the text: more than the 16 of the context that YaRN's frequencies are made for.
const TOKENS: usize = 24;
const YARN: f64 = 4.0;
const BASE: f64 = 500.0;

/// A model and what the definition needs to know of it.
#[derive(Debug)]
struct Case {
    variant: Variant,
    architecture: &'static str,
    sizes: Sizes,
    rope: usize,
    tied: bool,
}

impl Case {
    fn new(rng: &mut Rng, variant: Variant, group: u64) -> Self {
        let architecture = match variant {
            Variant::Plain | Variant::Yarn => ["llama", "qwen2", "qwen3"][rng.below(3)],
            Variant::Part => ["llama", "qwen2"][rng.below(2)],
            Variant::Factors => "llama",
            Variant::Fused => "qwen2",
            Variant::Moe => "qwen3moe",
        };
        let (kv_heads, head) = (1 + rng.below(3) as u64, [64, 80, 96, 128][rng.below(4)]);
        // Rows of weights are whole blocks of 32.
        let kv_heads = match (kv_heads * group * head).is_multiple_of(32) {
            true => kv_heads,
            false => 2,
        };
        Self {
            variant,
            architecture,
            sizes: Sizes {
                heads: kv_heads * group,
                kv_heads,
                head,
                fused: variant == Variant::Fused,
            },
            rope: match variant {
                Variant::Part => head as usize / 2,
                _ => head as usize,
            },
            tied: rng.below(2) == 0,
        }
    }

    fn file(&self) -> Arc<Gguf> {
        let mut draft = Draft::sized(self.architecture, self.sizes);
        draft.put("rope.dimension_count", self.rope as u32);
        draft.put("rope.freq_base", BASE as f32);
        if self.tied {
            draft.remove("output.weight");
        }
        match self.variant {
            Variant::Factors => draft.add("rope_freqs.weight", &[self.rope as u64 / 2]),
            Variant::Yarn => {
                draft.put("rope.scaling.type", "yarn");
                draft.put("rope.scaling.factor", YARN as f32);
                draft.put("rope.scaling.original_context_length", 16u32);
            }
            _ => {}
        }
        // Values of a file are random numbers around 0, and factors of frequencies are above it.
        with_vector(&draft.open(), "rope_freqs.weight", |value| 1.5 + value)
    }

    /// The radians per position of each pair, and the size of a rotated pair.
    fn rotation(&self, factors: Option<&[f64]>) -> (Vec<f64>, f64) {
        let dims = self.rope as f64;
        let plain = |pair: usize| BASE.powf(-2.0 * pair as f64 / dims);
        let pairs = 0..self.rope / 2;
        if let Some(factors) = factors {
            return (pairs.map(|i| plain(i) / factors[i]).collect(), 1.0);
        }
        if self.variant != Variant::Yarn {
            return (pairs.map(plain).collect(), 1.0);
        }
        // Peng et al. 2023, with 32 and 1 rotations in 16 positions as the limits.
        let limit = |rotations: f64| {
            dims * (16.0 / (rotations * std::f64::consts::TAU)).ln() / (2.0 * BASE.ln())
        };
        let [low, high] = [limit(32.0).floor().max(0.0), limit(1.0).ceil()];
        let frequency = |pair: usize| {
            let stretched = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            plain(pair) * (1.0 - stretched) + plain(pair) / YARN * stretched
        };
        (pairs.map(frequency).collect(), 1.0 + 0.1 * YARN.ln())
    }
}

/// The file with the values of a vector of F32 changed, if it has that.
fn with_vector(file: &Gguf, name: &str, change: impl Fn(f32) -> f32) -> Arc<Gguf> {
    let mut writer = GgufWriter::new(Vec::new());
    for (key, value) in file.metadata() {
        writer.metadata(key, value.clone()).expect("it is memory");
    }
    for tensor in file.tensors() {
        let written = writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
        written.expect("it is memory");
    }
    let mut data = writer.begin_data().expect("it is memory");
    for tensor in file.tensors() {
        let mut values: Vec<f32> = bytemuck::pod_collect_to_vec(file.data(tensor));
        if tensor.name == name {
            values.iter_mut().for_each(|value| *value = change(*value));
        }
        let bytes = bytemuck::cast_slice(&values);
        data.write(bytes).expect("it is memory");
    }
    let bytes = data.finish().expect("it is memory");
    Arc::new(Gguf::from_bytes(bytes, "definition.gguf").expect("it is whole"))
}

fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    let rows = w.chunks_exact(x.len());
    rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum())
        .collect()
}

fn normed(x: &[f64], w: &[f64]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|x| x * x).sum();
    let size = (squares / x.len() as f64 + f64::from(1e-5f32)).sqrt();
    x.iter().zip(w).map(|(x, w)| x / size * w).collect()
}

fn add(x: &mut [f64], y: &[f64], factor: f64) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

/// The forward pass in f64, token by token.
struct Definition<'a> {
    case: &'a Case,
    tensors: BTreeMap<String, Vec<f64>>,
    /// The keys and the values of the tokens before, of each block. They are rounded to f16, as every cache has them.
    cache: Vec<Vec<[Vec<f64>; 2]>>,
}

impl<'a> Definition<'a> {
    fn new(case: &'a Case, file: &Gguf) -> Self {
        let tensors = file.tensors().iter().map(|tensor| {
            let values: Vec<f32> = bytemuck::pod_collect_to_vec(file.data(tensor));
            let values = values.into_iter().map(f64::from).collect();
            (tensor.name.clone(), values)
        });
        Self {
            case,
            tensors: tensors.collect(),
            cache: vec![vec![]; BLOCKS as usize],
        }
    }

    fn of_block(&self, block: usize, name: &str) -> Option<&[f64]> {
        let found = self.tensors.get(&format!("blk.{block}.{name}"));
        found.map(Vec::as_slice)
    }

    fn weight(&self, block: usize, name: &str) -> &[f64] {
        let found = self.of_block(block, &format!("{name}.weight"));
        found.unwrap_or_else(|| panic!("{name} of {:?}", self.case))
    }

    /// The products with the rows of a weight, and its bias.
    fn projected(&self, block: usize, name: &str, x: &[f64]) -> Vec<f64> {
        let mut out = product(self.weight(block, name), x);
        if let Some(bias) = self.of_block(block, &format!("{name}.bias")) {
            add(&mut out, bias, 1.0);
        }
        out
    }

    /// Heads of queries or keys: normed, if there is a norm, and rotated to their position.
    fn turned(&self, block: usize, norm: &str, heads: &[f64], pos: usize) -> Vec<f64> {
        let factors = self.tensors.get("rope_freqs.weight");
        let (frequencies, size) = self.case.rotation(factors.map(Vec::as_slice));
        let half = frequencies.len();
        let norm = self.of_block(block, norm);
        let mut all = vec![];
        for head in heads.chunks_exact(self.case.sizes.head as usize) {
            let mut head = match norm {
                Some(norm) => normed(head, norm),
                None => head.to_vec(),
            };
            for (i, frequency) in frequencies.iter().enumerate() {
                let [a, b] = match self.case.architecture {
                    "llama" => [2 * i, 2 * i + 1],
                    _ => [i, i + half],
                };
                let (sin, cos) = (pos as f64 * frequency).sin_cos();
                let [x, y] = [head[a], head[b]];
                (head[a], head[b]) = (size * (x * cos - y * sin), size * (x * sin + y * cos));
            }
            all.extend(head);
        }
        all
    }

    /// The values of all heads of a token.
    fn attention(&mut self, block: usize, x: &[f64], pos: usize) -> Vec<f64> {
        let Sizes { heads, head, .. } = self.case.sizes;
        let [heads, kv_heads, head] = [heads, self.case.sizes.kv_heads, head].map(|n| n as usize);
        let x = normed(x, self.weight(block, "attn_norm"));
        let [q, k, v] = match self.case.sizes.fused {
            true => {
                let all = self.projected(block, "attn_qkv", &x);
                let (q, others) = all.split_at(heads * head);
                let (k, v) = others.split_at(kv_heads * head);
                [q, k, v].map(<[f64]>::to_vec)
            }
            false => ["attn_q", "attn_k", "attn_v"].map(|name| self.projected(block, name, &x)),
        };
        let q = self.turned(block, "attn_q_norm.weight", &q, pos);
        let k = self.turned(block, "attn_k_norm.weight", &k, pos);
        let rounded = |values: Vec<f64>| -> Vec<f64> {
            let values = values.into_iter();
            values.map(|v| f16::from_f64(v).to_f64()).collect()
        };
        self.cache[block].push([rounded(k), rounded(v)]);
        let mut all = vec![];
        for (i, q) in q.chunks_exact(head).enumerate() {
            let of = i * kv_heads / heads * head..(i * kv_heads / heads + 1) * head;
            let rows = &self.cache[block];
            let keys = rows.iter().map(|[k, _]| product(&k[of.clone()], q)[0]);
            let scores: Vec<f64> = keys.map(|score| score / (head as f64).sqrt()).collect();
            let mut sum = vec![0.0; head];
            for (weight, [_, v]) in softmax(&scores).into_iter().zip(rows) {
                add(&mut sum, &v[of.clone()], weight);
            }
            all.extend(sum);
        }
        product(self.weight(block, "attn_output"), &all)
    }

    /// The network, or that of expert `expert`, behind the norm.
    fn network(&self, block: usize, x: &[f64], expert: Option<usize>) -> Vec<f64> {
        let part = |name: &str| match expert {
            None => self.weight(block, name),
            Some(expert) => {
                let all = self.weight(block, &format!("{name}_exps"));
                let of_one = all.len() / EXPERTS as usize;
                &all[expert * of_one..][..of_one]
            }
        };
        let gate = product(part("ffn_gate"), x).into_iter();
        let up = product(part("ffn_up"), x);
        let hidden = gate.zip(up).map(|(x, up)| x / (1.0 + (-x).exp()) * up);
        product(part("ffn_down"), &hidden.collect::<Vec<_>>())
    }

    fn feed_forward(&self, block: usize, x: &[f64]) -> Vec<f64> {
        let x = normed(x, self.weight(block, "ffn_norm"));
        if self.case.variant != Variant::Moe {
            return self.network(block, &x, None);
        }
        let shares = softmax(&product(self.weight(block, "ffn_gate_inp"), &x));
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        let chosen = &order[..2];
        let all: f64 = chosen.iter().map(|expert| shares[*expert]).sum();
        let mut sum = vec![0.0; x.len()];
        for expert in chosen {
            let own = self.network(block, &x, Some(*expert));
            add(&mut sum, &own, shares[*expert] / all);
        }
        sum
    }

    /// The logits behind a token.
    fn logits(&mut self, token: u32, pos: usize) -> Vec<f64> {
        let row = token as usize * WIDTH as usize;
        let mut x = self.tensors["token_embd.weight"][row..][..WIDTH as usize].to_vec();
        for block in 0..BLOCKS as usize {
            let values = self.attention(block, &x, pos);
            add(&mut x, &values, 1.0);
            let values = self.feed_forward(block, &x);
            add(&mut x, &values, 1.0);
        }
        let head = match self.case.tied {
            true => "token_embd.weight",
            false => "output.weight",
        };
        product(
            &self.tensors[head],
            &normed(&x, &self.tensors["output_norm.weight"]),
        )
    }
}

/// A model on every device that runs the family, with the error that is allowed there: the weights are F32.
fn backends(model: &Arc<Model>) -> Vec<(String, Box<dyn Backend>, f64)> {
    let on_cpu = [Products::Exact, Products::Quick].map(|products| {
        let backend = CpuBackend::new(Arc::clone(model) as _, products, 2 * TOKENS);
        let backend: Box<dyn Backend> = Box::new(backend.expect("there is memory"));
        (format!("the CPU with {products:?} products"), backend, 1e-6)
    });
    on_cpu.into()
}

#[test]
fn models_of_all_shapes_have_the_logits_of_the_definition() {
    let mut rng = Rng::fresh();
    let mut groups = [3, 4, 6, 7, 8, 16];
    rng.shuffle(&mut groups);
    for (variant, group) in VARIANTS.into_iter().zip(groups) {
        let case = Case::new(&mut rng, variant, group);
        let file = case.file();
        let ids: Vec<u32> = (0..TOKENS)
            .map(|_| rng.below(VOCAB as usize) as u32)
            .collect();
        let mut definition = Definition::new(&case, &file);
        let rows = ids.iter().enumerate();
        let expected: Vec<f64> = rows
            .flat_map(|(pos, id)| definition.logits(*id, pos))
            .collect();
        let model = Arc::new(load(file).unwrap_or_else(|e| panic!("{case:?}: {e}")));
        for (device, mut backend, limit) in backends(&model) {
            let mut found = vec![];
            let (first, others) = ids.split_at(1 + rng.below(TOKENS - 1));
            for (ids, pos) in [(first, 0), (others, first.len())] {
                let on_row = &mut |_, row: &[f32]| {
                    found.extend_from_slice(row);
                    ControlFlow::Continue(())
                };
                let computed = backend.logits(ids, pos, on_row).wait();
                computed.unwrap_or_else(|e| panic!("{device}, {case:?}: {e}"));
            }
            let error = nmse(&found, &expected);
            assert!(error < limit, "{device}, {case:?}: {error}");
        }
    }
}
