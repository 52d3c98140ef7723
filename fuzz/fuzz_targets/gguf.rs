//! A GGUF file: it is refused with a reason, or all that it says can be read, tensors lie inside of it, and a copy of it says the same.

#![no_main]

use std::sync::Arc;

use glimt::gguf::{Gguf, GgufWriter};
use glimt_fuzz::{container, model, model_with_experts, opened, seeds};
use libfuzzer_sys::fuzz_target;

/// What a container says, as a text in which numbers that are none are equal, too.
fn said(gguf: &Gguf) -> String {
    let pairs = gguf
        .metadata()
        .map(|(key, value)| format!("{key:?} {value:?}"));
    let tensors = gguf.tensors().iter();
    let tensors =
        tensors.map(|t| format!("{:?} {:?} {:?} {:?}", t.name, t.ty, t.dims, gguf.data(t)));
    pairs.chain(tensors).collect::<Vec<_>>().join("\n")
}

/// The same container, written again; nothing where the writer refuses what the reader takes.
fn copied(gguf: &Gguf) -> Option<Vec<u8>> {
    let mut writer = GgufWriter::new(vec![]);
    for (key, value) in gguf.metadata() {
        // The writer has an alignment of its own.
        if key != "general.alignment" {
            writer
                .metadata(key, value.clone())
                .expect("every key is there once");
        }
    }
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.dims).ok()?;
    }
    let mut data = writer.begin_data().expect("memory takes it");
    for tensor in gguf.tensors() {
        data.write(gguf.data(tensor)).expect("these are its bytes");
    }
    Some(data.finish().expect("all bytes are there"))
}

fuzz_target!(
    init: seeds(|| {
        let seeds = vec![("model", model()), ("experts", model_with_experts())];
        for (name, bytes) in &seeds {
            assert!(container(bytes.clone()).and_then(opened).is_some(), "{name} is refused");
        }
        seeds
    }),
    |data: &[u8]| {
        let start = &data[..data.len().min(4096)];
        let begins = Gguf::architecture_of(start, "fuzzed");
        let Some(gguf) = container(data.to_vec()) else {
            return;
        };
        let first = gguf.metadata().next();
        if let (Ok(Some(begins)), Some(("general.architecture", value))) = (&begins, first) {
            assert_eq!(Some(begins.as_str()), value.as_str());
        }
        for (key, value) in gguf.metadata() {
            assert!(value.to_string().len() < 1000, "{key} does not fit into a message");
            assert_eq!(gguf.get(key).map(|v| format!("{v:?}")), Some(format!("{value:?}")));
            let _ = (gguf.get_u64(key), gguf.get_f32(key), gguf.get_u32_array(key), gguf.get_str_array(key));
        }
        for tensor in gguf.tensors() {
            let bytes = gguf.data(tensor);
            assert_eq!(bytes.len() as u64, tensor.byte_len());
            let columns = tensor.dims[0] as usize;
            let row = tensor.ty.row_bytes(columns).expect("a row is whole blocks") as u64;
            assert_eq!(tensor.element_count() / columns as u64 * row, tensor.byte_len(), "{tensor:?}");
        }
        if let Some(copy) = copied(&gguf) {
            let copy = container(copy).expect("the reader takes what the writer writes");
            let without = said(&gguf).lines().filter(|l| !l.starts_with("\"general.alignment\"")).collect::<Vec<_>>().join("\n");
            assert_eq!(said(&copy), without);
        }
        let _ = glimt::models::load(Arc::new(container(data.to_vec()).expect("it was read before")));
        let _ = opened(gguf);
    }
);
