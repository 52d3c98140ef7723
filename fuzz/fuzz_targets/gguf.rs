//! A GGUF file, or the files of a split one: it is refused with a reason, or all that it says can be read, tensors lie inside of their file, and a
//! copy of it says the same.
//!
//! Where [`BETWEEN`] is in an input, its parts are files that are opened by the first one. A part without a byte is a file that is missing.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use glimt::gguf::{Gguf, GgufWriter, split_file_name};
use glimt::model::NextnSource;
use glimt_fuzz::{BETWEEN, container, model, model_with_experts, opened, own_file, seeds, split};
use libfuzzer_sys::fuzz_target;

/// Keys that a copy does not have: the writer has an alignment of its own, and the copy of a split model is one file.
fn is_of_the_file(key: &str) -> bool {
    key == "general.alignment" || key.starts_with("split.")
}

/// The content of a container, as a text in which numbers that are none are equal, too.
fn said(gguf: &Gguf) -> String {
    let pairs = gguf.metadata().filter(|(key, _)| !is_of_the_file(key));
    let pairs = pairs.map(|(key, value)| format!("{key:?} {value:?}"));
    let tensors = gguf.tensors().iter();
    let tensors =
        tensors.map(|t| format!("{:?} {:?} {:?} {:?}", t.name, t.ty, t.dims, gguf.data(t)));
    pairs.chain(tensors).collect::<Vec<_>>().join("\n")
}

/// A container, written again; nothing where the writer refuses what the reader takes.
fn copied(gguf: &Gguf) -> Option<Vec<u8>> {
    let mut writer = GgufWriter::new(vec![]);
    for (key, value) in gguf.metadata().filter(|(key, _)| !is_of_the_file(key)) {
        writer
            .metadata(key, value.clone())
            .expect("every key is there once");
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

/// The parts of an input.
fn parts(mut data: &[u8]) -> Vec<&[u8]> {
    let mut parts = vec![];
    while let Some(at) = data.windows(BETWEEN.len()).position(|part| part == BETWEEN) {
        parts.push(&data[..at]);
        data = &data[at + BETWEEN.len()..];
    }
    parts.push(data);
    parts
}

/// The container in an input; nothing where it is refused.
fn read(data: &[u8]) -> Option<Gguf> {
    let parts = parts(data);
    if parts.len() == 1 {
        return container(data.to_vec());
    }
    let prefix = own_file("split");
    let prefix = prefix.to_str().expect("a folder's name is UTF-8 here");
    let count = parts.len() as u32;
    let paths: Vec<PathBuf> = (0..count)
        .map(|no| split_file_name(prefix, no, count).into())
        .collect();
    for (path, part) in paths.iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
        fs::write(path, part).expect("the folder can be written");
    }
    let gguf = Gguf::open(&paths[0]);
    // The mapped bytes stay.
    for path in paths {
        let _ = fs::remove_file(path);
    }
    match gguf {
        Ok(gguf) => Some(gguf),
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() < 10_000, "{} bytes: {error:.300}", error.len());
            None
        }
    }
}

fuzz_target!(
    init: seeds(|| {
        let seeds = vec![
            ("model", model()),
            ("experts", model_with_experts()),
            ("split", split(model(), 3)),
            ("split_experts", split(model_with_experts(), 2)),
        ];
        for (name, bytes) in &seeds {
            assert!(read(bytes).and_then(opened).is_some(), "{name} is refused");
        }
        seeds
    }),
    |data: &[u8]| {
        let start = &data[..data.len().min(4096)];
        let begins = Gguf::architecture_of(start, "fuzzed");
        let Some(gguf) = read(data) else {
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
            let mut again = vec![0; bytes.len()];
            gguf.read(tensor, 0, &mut again).expect("the file is whole");
            assert_eq!(bytes, again);
            let columns = tensor.dims[0] as usize;
            let row = tensor.ty.row_bytes(columns).expect("a row is whole blocks") as u64;
            assert_eq!(tensor.element_count() / columns as u64 * row, tensor.byte_len(), "{tensor:?}");
        }
        if let Some(copy) = copied(&gguf) {
            let copy = container(copy).expect("the reader takes what the writer writes");
            assert_eq!(said(&copy), said(&gguf));
        }
        let model = Arc::new(read(data).expect("it was read before"));
        let _ = glimt::models::load_with_nextn(model, &NextnSource::IfAny);
        let _ = opened(gguf);
    }
);
