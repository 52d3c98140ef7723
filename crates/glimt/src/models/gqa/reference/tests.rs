//! Protects the forward pass: it does not depend on how tokens are split into calls, and both orders of rotated rows mean the same model.

mod definition;

use super::*;
use crate::gguf::{Gguf, GgufWriter, Value};
use crate::models::Reference as _;
use crate::models::gqa::testing::*;
use std::ops::ControlFlow;

fn reference(model: &Arc<Model>, products: Products) -> Reference {
    Reference::new(Arc::clone(model), products, 64, 64).expect("there is memory")
}

/// The logits of tokens behind each other, in calls of these lengths.
fn logits(model: &Arc<Model>, products: Products, calls: &[usize]) -> Vec<f32> {
    let mut reference = reference(model, products);
    let (mut pos, mut all) = (0, vec![]);
    for &tokens in calls {
        let ids: Vec<u32> = (pos..pos + tokens)
            .map(|i| (7 * i as u32 + 3) % VOCAB as u32)
            .collect();
        let part = Part {
            tokens,
            pos,
            pages: &[],
        };
        let x = reference.forward(&ids, &[part], &mut |_| ControlFlow::Continue(()));
        all.extend(reference.head(&x.expect("nobody breaks")));
        pos += tokens;
    }
    all
}

#[test]
fn any_split_gives_the_same_bits() {
    for architecture in ["llama", "qwen2", "qwen3", "qwen3moe"] {
        let model = Arc::new(Draft::of(architecture).load().expect("it is whole"));
        for products in [Products::Exact, Products::Quick] {
            let whole = logits(&model, products, &[12]);
            assert!(whole.iter().all(|logit| logit.is_finite()));
            assert_eq!(whole, logits(&model, products, &[1; 12]), "{architecture}");
            assert_eq!(
                whole,
                logits(&model, products, &[5, 1, 6]),
                "{architecture}"
            );
        }
    }
}

/// A tensor of F32 whose rows come in the order of pairs: rows i and i + half of each head beside each other, as llama.cpp's converter brings
/// them.
fn in_pairs(bytes: &[u8], row: usize) -> Vec<u8> {
    let (head, half) = (HEAD as usize, HEAD as usize / 2);
    let order = (0..bytes.len() / row).map(|to| {
        let (of_head, i) = (to / head * head, to % head);
        of_head + i / 2 + i % 2 * half
    });
    order
        .flat_map(|from| bytes[from * row..][..row].to_vec())
        .collect()
}

#[test]
fn rows_in_pairs_and_in_halves_are_one_model() {
    let halves = Draft::of("qwen2").open();
    // The same weights as a file of Llama.
    let mut writer = GgufWriter::new(Vec::new());
    for (key, value) in halves.metadata() {
        let value = match key {
            "general.architecture" => Value::from("llama"),
            _ => value.clone(),
        };
        let key = key.replace("qwen2.", "llama.");
        writer.metadata(&key, value).expect("it is memory");
    }
    for tensor in halves.tensors() {
        let written = writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
        written.expect("it is memory");
    }
    let mut data = writer.begin_data().expect("it is memory");
    for tensor in halves.tensors() {
        let bytes = halves.data(tensor);
        let row = match tensor.dims.len() {
            1 => 4,
            _ => 4 * tensor.dims[0] as usize,
        };
        let turned = [".attn_q.", ".attn_k."]
            .iter()
            .any(|part| tensor.name.contains(part));
        let bytes = match turned {
            true => in_pairs(bytes, row),
            false => bytes.to_vec(),
        };
        data.write(&bytes).expect("it is memory");
    }
    let bytes = data.finish().expect("it is memory");
    let pairs = Gguf::from_bytes(bytes, "pairs.gguf").expect("it is whole");
    let [a, b] = [halves, Arc::new(pairs)].map(|gguf| {
        let model = Arc::new(load(gguf).expect("it is whole"));
        logits(&model, Products::Exact, &[12])
    });
    // The scores are added up in another order. So some values of the cache are rounded the other way.
    let size: f32 = a.iter().map(|a| a * a).sum();
    let error: f32 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    assert!(error < 1e-6 * size, "{error} of {size}");
}
