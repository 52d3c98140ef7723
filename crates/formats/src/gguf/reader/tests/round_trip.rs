//! Protects the container: what is written is read back, and files cut short or damaged at random are refused.

use super::parse_bytes;
use crate::gguf::error::EMPTY;
use crate::gguf::{Array, Gguf, GgufError, GgufWriter, Value};
use crate::quant::GgmlType;
use crate::testing::Rng;

/// A generated file and what is in it.
struct WholeFile {
    bytes: Vec<u8>,
    pairs: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u8>)>,
}

/// Every type of metadata, alone and in an array, and nested arrays.
fn metadata(random: &mut Rng) -> Vec<(String, Value)> {
    let n = random.below(20);
    let pairs = [
        ("u8", Value::U8(random.bits() as u8)),
        ("i8", Value::I8(random.bits() as i8)),
        ("u16", Value::U16(random.bits() as u16)),
        ("i16", Value::I16(random.bits() as i16)),
        ("u32", Value::U32(random.bits() as u32)),
        ("i32", Value::I32(random.bits() as i32)),
        ("f32", Value::F32(random.bits() as f32)),
        ("bool", Value::Bool(random.bits() & 1 == 1)),
        ("string", format!("Grüße {}", random.bits()).into()),
        ("u64", Value::U64(random.bits())),
        ("i64", Value::I64(random.bits() as i64)),
        ("f64", Value::F64(random.bits() as f64)),
        ("a.u8", array(random, n, |bits| bits as u8)),
        ("a.i8", array(random, n, |bits| bits as i8)),
        ("a.u16", array(random, n, |bits| bits as u16)),
        ("a.i16", array(random, n, |bits| bits as i16)),
        ("a.u32", array(random, n, |bits| bits as u32)),
        ("a.i32", array(random, n, |bits| bits as i32)),
        ("a.f32", array(random, n, |bits| bits as f32)),
        ("a.bool", array(random, n, |bits| bits & 1 == 1)),
        (
            "a.string",
            array(random, n, |bits| "ß".repeat(bits as usize % 20)),
        ),
        ("a.u64", array(random, n, |bits| bits)),
        ("a.i64", array(random, n, |bits| bits as i64)),
        ("a.f64", array(random, n, |bits| bits as f64)),
        ("a.empty", Vec::<String>::new().into()),
        (
            "a.nested",
            Array::Array(vec![
                Array::U8(vec![1, 2]),
                Array::String(vec!["x".into()]),
                Array::Array(vec![Array::F64(vec![0.5])]),
            ])
            .into(),
        ),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

/// An array of `n` values, each `of` random bits.
fn array<T>(random: &mut Rng, n: usize, of: impl Fn(u64) -> T) -> Value
where
    Vec<T>: Into<Value>,
{
    let values: Vec<T> = (0..n).map(|_| of(random.bits())).collect();
    values.into()
}

/// Writes a file with every metadata type, nested arrays and tensors of several types.
fn whole_file(random: &mut Rng) -> WholeFile {
    let pairs = metadata(random);
    let mut writer = GgufWriter::new(Vec::new());
    for (key, value) in &pairs {
        writer.metadata(key, value.clone()).unwrap();
    }
    let shapes: [(&str, GgmlType, &[u64]); 5] = [
        ("f32", GgmlType::F32, &[3]),
        ("f16", GgmlType::F16, &[5, 3]),
        ("q4_0", GgmlType::Q4_0, &[64, 3]),
        ("q6_k", GgmlType::Q6_K, &[256, 2, 2]),
        ("q8_0", GgmlType::Q8_0, &[32, 1, 2, 2]),
    ];
    let mut tensors = Vec::new();
    for (name, ty, dims) in shapes {
        let len = writer.tensor(name, ty, dims).unwrap();
        tensors.push((
            name.to_owned(),
            (0..len).map(|_| random.bits() as u8).collect::<Vec<u8>>(),
        ));
    }
    let mut data = writer.begin_data().unwrap();
    for (_, bytes) in &tensors {
        for chunk in bytes.chunks(1 + random.below(40)) {
            data.write(chunk).unwrap();
        }
    }
    WholeFile {
        bytes: data.finish().unwrap(),
        pairs,
        tensors,
    }
}

#[test]
fn what_the_writer_wrote_is_read_back() {
    let WholeFile {
        bytes,
        pairs,
        tensors,
    } = whole_file(&mut Rng::fresh());
    let gguf = Gguf::from_bytes(bytes.clone(), "test").unwrap();
    assert_eq!((gguf.version(), gguf.file_size()), (3, bytes.len() as u64));
    let read: Vec<(String, Value)> = gguf
        .metadata()
        .map(|(k, v)| (k.to_owned(), v.clone()))
        .collect();
    assert_eq!(read, pairs);
    assert_eq!(gguf.tensors().len(), tensors.len());
    for (info, (name, bytes)) in gguf.tensors().iter().zip(&tensors) {
        assert_eq!(&info.name, name);
        assert_eq!(gguf.data(gguf.tensor(name).unwrap()), bytes);
        assert_eq!(info.start % 32, 0);
    }
    assert_eq!(gguf.tensor("q6_k").unwrap().dims, [256, 2, 2]);
    assert_eq!(gguf.tensor("q6_k").unwrap().element_count(), 1024);
}

#[test]
fn version_2_is_read_like_version_3() {
    let WholeFile {
        mut bytes, pairs, ..
    } = whole_file(&mut Rng::fresh());
    bytes[4] = 2;
    let header = parse_bytes(&bytes).unwrap();
    assert_eq!((header.version, header.metadata.pairs), (2, pairs));
}

#[test]
fn every_truncation_is_an_error() {
    let WholeFile { bytes, .. } = whole_file(&mut Rng::fresh());
    // The last bytes are the end of tensor data: its 136 bytes are followed by 24 of padding.
    for len in (0..bytes.len() - 24).step_by(97).chain([bytes.len() - 25]) {
        match parse_bytes(&bytes[..len]) {
            Err(GgufError::Truncated { need, have, .. }) => {
                assert!(need > have && have == len as u64 && need <= bytes.len() as u64);
            }
            Err(GgufError::File { problem, .. }) if problem == EMPTY => assert_eq!(len, 0),
            other => panic!("{len} of {} bytes: {other:?}", bytes.len()),
        }
    }
    assert!(parse_bytes(&bytes[..bytes.len() - 24]).is_ok());
}

#[test]
fn random_damage_never_panics() {
    let mut random = Rng::fresh();
    let WholeFile { bytes, .. } = whole_file(&mut random);
    let mut refused = 0;
    for _ in 0..4000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(damaged.len());
            damaged[at] = match random.below(4) {
                0 => 0,
                1 => 0xff,
                _ => random.bits() as u8,
            };
        }
        if random.below(8) == 0 {
            damaged.truncate(random.below(damaged.len()));
        }
        match parse_bytes(&damaged) {
            Ok(header) => assert!(
                header
                    .tensors
                    .iter()
                    .all(|t| t.range().end <= damaged.len())
            ),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(
        refused > 400,
        "only {refused} of 4000 damaged files were noticed"
    );
}

#[test]
fn the_writer_refuses_wrong_lengths() {
    let begin = || {
        let mut writer = GgufWriter::new(Vec::new());
        writer.tensor("t", GgmlType::F32, &[4]).unwrap();
        writer.begin_data().unwrap()
    };
    let mut data = begin();
    assert!(matches!(
        data.write(&[0; 17]),
        Err(GgufError::DataLength {
            expected: 16,
            found: 17,
            ..
        })
    ));
    data.write(&[0; 12]).unwrap();
    assert!(matches!(
        data.finish(),
        Err(GgufError::DataLength {
            expected: 16,
            found: 12,
            ..
        })
    ));
    let mut data = begin();
    data.write(&[0; 16]).unwrap();
    assert!(matches!(
        data.write(&[0]),
        Err(GgufError::DataLength { expected: 0, .. })
    ));

    let mut writer = GgufWriter::new(Vec::new());
    writer.metadata("k", 1u32).unwrap();
    let message = |error: Result<(), GgufError>| error.unwrap_err().to_string();
    assert_eq!(
        message(writer.metadata("k", 1u32)),
        "metadata key k appears twice"
    );
    assert!(matches!(
        writer.metadata("general.alignment", 64u32),
        Err(GgufError::BadAlignment { .. })
    ));
    writer.tensor("t", GgmlType::F32, &[4]).unwrap();
    let twice = writer.tensor("t", GgmlType::F32, &[4]);
    assert_eq!(message(twice.map(drop)), "tensor t appears twice");
    let partial = writer.tensor("u", GgmlType::Q4_0, &[33]);
    assert_eq!(
        message(partial.map(drop)),
        "tensor u has rows of 33 values, not a multiple of the 32 in a block of Q4_0"
    );
}

#[test]
fn tensors_are_read_past_the_map_and_a_cut_file_is_noticed() {
    let mut random = Rng::fresh();
    let data = [64, 96].map(|n| Vec::from_iter((0..4 * n).map(|_| random.bits() as u8)));
    let mut writer = GgufWriter::new(Vec::new());
    writer.tensor("a", GgmlType::F32, &[64]).unwrap();
    writer.tensor("b", GgmlType::F32, &[32, 3]).unwrap();
    let mut out = writer.begin_data().unwrap();
    data.iter().for_each(|bytes| out.write(bytes).unwrap());
    let bytes = out.finish().unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let file = Gguf::open(&path).unwrap();
    let program = Gguf::from_bytes(bytes, "built in").unwrap();
    for gguf in [&file, &program] {
        for (tensor, expected) in gguf.tensors().iter().zip(&data) {
            for range in [0..expected.len(), 12..200, 7..7] {
                let mut found = vec![0xa5; range.len()];
                gguf.read(tensor, range.start, &mut found).unwrap();
                assert_eq!(found, expected[range], "{}", tensor.name);
            }
        }
    }
    assert_eq!(file.in_memory(&file.tensors()[1]), None);
    assert_eq!(program.in_memory(&program.tensors()[1]), Some(&data[1][..]));

    // Windows keeps a mapped file from being cut.
    if cfg!(unix) {
        let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let end = file.tensors()[1].start as u64;
        cut.set_len(end + 100).unwrap();
        let mut buf = [0; 101];
        file.read(&file.tensors()[0], 0, &mut buf).unwrap();
        file.read(&file.tensors()[1], 0, &mut buf[..100]).unwrap();
        let error = file.read(&file.tensors()[1], 0, &mut buf).unwrap_err();
        assert!(
            matches!(&error, GgufError::Read { tensor, .. } if tensor == "b"),
            "{error}"
        );
    }
}
