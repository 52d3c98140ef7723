//! Protects the reader from files that are broken or hostile: each attack is a test of its name.

mod round_trip;

use std::path::Path;

use super::*;
use crate::gguf::Gguf;

/// A hand-made file: what the writer would refuse to write can be put together here.
#[derive(Default)]
struct Raw {
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s].concat()
}

impl Raw {
    fn pair(mut self, key: &str, type_id: u32, value: &[u8]) -> Raw {
        self.pairs
            .push([&text(key.as_bytes())[..], &type_id.to_le_bytes(), value].concat());
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Raw {
        let mut entry = text(name.as_bytes());
        entry.extend((dims.len() as u32).to_le_bytes());
        entry.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        entry.extend(type_id.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    fn data(mut self, len: usize) -> Raw {
        self.data = vec![7; len];
        self
    }

    fn bytes(&self, version: u32) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }

    fn error(&self) -> GgufError {
        parse_bytes(&self.bytes(3)).unwrap_err()
    }
}

fn parse_bytes(bytes: &[u8]) -> Result<Header, GgufError> {
    parse(bytes, Path::new("test.gguf"), 0)
}

#[test]
fn truncated_data_says_how_much_is_missing() {
    let raw = Raw::default()
        .tensor("a", &[32], 0, 0)
        .tensor("b", &[64], 0, 128)
        .data(200);
    let have = raw.bytes(3).len() as u64;
    match raw.error() {
        GgufError::Truncated {
            what,
            need,
            have: found,
            ..
        } => {
            assert_eq!(
                (what.as_str(), need, found),
                ("the data of tensor b", have + 184, have)
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_text_file_is_not_gguf() {
    let error = parse_bytes(b"# A model\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "test.gguf is not a GGUF file: it starts with \"# A \", a GGUF file starts with \"GGUF\""
    );
    let message = parse_bytes(b"GG").unwrap_err().to_string();
    assert!(
        message.starts_with("test.gguf is not a GGUF file"),
        "{message}"
    );
}

#[test]
fn a_directory_an_empty_file_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let message = Gguf::open(dir.path()).unwrap_err().to_string();
    assert!(
        message.ends_with(" is a directory, not a GGUF file"),
        "{message}"
    );
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, "").unwrap();
    let message = Gguf::open(&empty).unwrap_err().to_string();
    assert!(
        message.ends_with("empty.gguf is empty (0 bytes), not a GGUF file"),
        "{message}"
    );
    assert!(matches!(
        Gguf::open(&dir.path().join("none.gguf")).unwrap_err(),
        GgufError::Open { .. }
    ));
}

#[test]
fn other_versions_and_byte_orders() {
    let raw = Raw::default();
    for (version, expected) in [
        (0, "has GGUF version 0;"),
        (1, "has GGUF version 1;"),
        (4, "has GGUF version 4;"),
        (3u32.swap_bytes(), "is a big-endian GGUF file;"),
    ] {
        let message = parse_bytes(&raw.bytes(version)).unwrap_err().to_string();
        let expected = format!("test.gguf {expected}");
        assert!(message.starts_with(&expected), "{message}");
    }
    assert!(parse_bytes(&raw.bytes(3)).is_ok());
}

#[test]
fn counts_larger_than_the_file() {
    for at in [8, 16] {
        for (count, too_long) in [(u64::MAX, true), (1 << 40, true), (1 << 15, false)] {
            let mut bytes = Raw::default().data(100).bytes(3);
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let error = parse_bytes(&bytes).unwrap_err();
            assert_eq!(
                matches!(error, GgufError::TooLong { .. }),
                too_long,
                "{error}"
            );
            assert_eq!(
                matches!(error, GgufError::Truncated { .. }),
                !too_long,
                "{error}"
            );
        }
    }
}

#[test]
fn arrays_larger_than_the_file() {
    for type_id in 0..13u32 {
        for count in [u64::MAX, u64::MAX / 8 + 2, 1 << 20] {
            let value = [&type_id.to_le_bytes()[..], &count.to_le_bytes(), &[0; 64]].concat();
            let error = Raw::default().pair("k", 9, &value).error();
            assert!(
                matches!(
                    error,
                    GgufError::TooLong { .. } | GgufError::Truncated { .. }
                ),
                "{type_id}: {error}"
            );
        }
    }
}

#[test]
fn strings_longer_than_the_file_or_the_cap() {
    let error = Raw::default().pair("k", 8, &1000u64.to_le_bytes()).error();
    assert!(matches!(error, GgufError::Truncated { .. }), "{error}");
    let error = Raw::default().pair("k", 8, &u64::MAX.to_le_bytes()).error();
    assert!(
        matches!(error, GgufError::TooLong { unit: "bytes", .. }),
        "{error}"
    );
    let error = Raw::default().pair(&"k".repeat(65_536), 0, &[0]).error();
    assert!(
        matches!(error, GgufError::TooLong { limit: MAX_KEY, .. }),
        "{error}"
    );
    let error = Raw::default()
        .tensor(&"t".repeat(65), &[32], 0, 0)
        .data(128)
        .error();
    assert!(
        matches!(
            error,
            GgufError::TooLong {
                limit: MAX_TENSOR_NAME,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn strings_that_are_not_utf8_do_harm_only_where_they_are_read() {
    let element = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes()];
    let strings = [&element.concat()[..], &text(b"a"), &text(b"\xff")].concat();
    let mut raw = Raw::default()
        .pair("author", 8, &text(b"J\xfcrgen"))
        .pair("tokens", 9, &strings)
        .pair("good", 8, &text(b"yes"));
    // A key that nobody can ask for.
    raw.pairs
        .push([&text(b"k\xff")[..], &4u32.to_le_bytes(), &[0; 4]].concat());
    let gguf = Gguf::from_bytes(raw.bytes(3), "test").unwrap();
    assert_eq!(gguf.require_str("good").unwrap(), "yes");
    assert_eq!(
        gguf.get("author").unwrap().as_str(),
        Some("J\u{fffd}rgen"),
        "it can be shown"
    );
    assert_eq!(
        gguf.get_str("author").unwrap_err().to_string(),
        "the value of metadata key author is not valid UTF-8"
    );
    assert_eq!(
        gguf.get_str_array("tokens").unwrap_err().to_string(),
        "element 1 of metadata key tokens is not valid UTF-8"
    );
    let error = Raw::default().tensor("t", &[8], 0, 0).data(32);
    let mut bytes = error.bytes(3);
    let name = bytes.iter().position(|&byte| byte == b't').unwrap();
    bytes[name] = 0xff;
    let error = parse_bytes(&bytes).unwrap_err();
    assert!(matches!(error, GgufError::InvalidUtf8 { .. }), "{error}");
}

#[test]
fn arrays_nested_without_end() {
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let error = Raw::default().pair("k", 9, &level.repeat(100_000)).error();
    assert_eq!(
        error.to_string(),
        "metadata key k nests arrays deeper than 4 levels"
    );
    let empty = [&4u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    let nested = |levels: usize| [level.repeat(levels - 1), empty.clone()].concat();
    let raw = |levels| Raw::default().pair("k", 9, &nested(levels));
    assert!(parse_bytes(&raw(4).bytes(3)).is_ok());
    assert!(parse_bytes(&raw(5).bytes(3)).is_err());
}

#[test]
fn unknown_value_types_and_booleans() {
    let unknown = "metadata key k has the unknown value type 13; known are 0 to 12";
    let error = Raw::default().pair("k", 13, &[0; 8]).error();
    assert_eq!(error.to_string(), unknown);
    let array = [&13u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 8]].concat();
    let error = Raw::default().pair("k", 9, &array).error();
    assert_eq!(error.to_string(), unknown);
    let error = Raw::default().pair("k", 7, &[2]).error();
    assert_eq!(
        error.to_string(),
        "metadata key k holds 2 as a boolean; 0 or 1 was expected"
    );
}

#[test]
fn names_that_appear_twice() {
    let error = Raw::default().pair("k", 0, &[0]).pair("k", 0, &[1]).error();
    assert_eq!(error.to_string(), "metadata key k appears twice");
    let bytes = Raw::default()
        .tensor("t", &[8], 0, 0)
        .tensor("t", &[8], 0, 32)
        .data(64)
        .bytes(3);
    let error = Gguf::from_bytes(bytes, "test").unwrap_err();
    assert_eq!(error.to_string(), "tensor t appears twice");
}

#[test]
fn alignment_is_followed_and_checked() {
    for bad in [0u32, 3, 48, 1 << 21, u32::MAX] {
        let error = Raw::default()
            .pair("general.alignment", 4, &bad.to_le_bytes())
            .error();
        assert!(
            matches!(error, GgufError::BadAlignment { found, .. } if found == u64::from(bad)),
            "{error}"
        );
    }
    let error = Raw::default()
        .pair("general.alignment", 8, &text(b"32"))
        .error();
    assert_eq!(
        error.to_string(),
        "metadata key general.alignment is string \"32\"; an unsigned integer was expected"
    );

    let raw = |offset| {
        let raw = Raw::default().pair("general.alignment", 4, &64u32.to_le_bytes());
        raw.tensor("a", &[8], 0, 0)
            .tensor("b", &[8], 0, offset)
            .data(200)
    };
    assert_eq!(
        raw(32).error().to_string(),
        "tensor b starts at offset 32, not a multiple of the file's alignment 64"
    );
    let header = parse_bytes(&raw(64).bytes(3)).unwrap();
    assert_eq!(header.tensors[0].start % 64, 0);
    assert_eq!(header.tensors[1].start, header.tensors[0].start + 64);
}

#[test]
fn tensors_that_share_bytes() {
    let error = Raw::default()
        .tensor("late", &[8], 0, 32)
        .tensor("early", &[16], 0, 0)
        .data(64)
        .error();
    assert!(
        matches!(&error, GgufError::Overlap { first, second } if first == "early" && second == "late"),
        "{error}"
    );
}

#[test]
fn offsets_beyond_the_file_or_64_bits() {
    for offset in [32, 1 << 40, u64::MAX - 31] {
        let error = Raw::default().tensor("t", &[8], 0, offset).data(32).error();
        assert!(matches!(error, GgufError::Truncated { .. }), "{error}");
    }
}

#[test]
fn dimensions_that_overflow_or_vanish() {
    for dims in [
        &[1u64 << 32, 1 << 32][..],
        &[u64::MAX, 2],
        &[1 << 62, 1],
        &[0],
        &[8, 0],
        &[u64::MAX, u64::MAX, 0],
    ] {
        let error = Raw::default().tensor("t", dims, 0, 0).data(32).error();
        let impossible = error
            .to_string()
            .starts_with("tensor t has impossible dimensions [");
        assert!(
            impossible || matches!(error, GgufError::Truncated { .. }),
            "{dims:?}: {error}"
        );
    }
    for dims in [&[][..], &[1; 5]] {
        let error = Raw::default().tensor("t", dims, 0, 0).data(32).error();
        let expected = format!(
            "tensor t has {} dimensions; 1 to 4 were expected",
            dims.len()
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn unsupported_tensor_types_are_named() {
    let error = Raw::default().tensor("t", &[256], 34, 0).data(256).error();
    let message = error.to_string();
    assert!(
        message.starts_with(
            "tensor t has the unsupported GGML type 34 (TQ1_0); supported are F32, F16"
        ),
        "{message}"
    );
    let error = Raw::default().tensor("t", &[256], 999, 0).data(256).error();
    let message = error.to_string();
    assert!(
        message.starts_with("tensor t has the unsupported GGML type 999; supported are F32"),
        "{message}"
    );
}

#[test]
fn rows_of_partial_blocks() {
    let error = Raw::default()
        .tensor("t", &[192, 4], GgmlType::Q4_K.id(), 0)
        .data(4096)
        .error();
    assert_eq!(
        error.to_string(),
        "tensor t has rows of 192 values, not a multiple of the 256 in a block of Q4_K"
    );
}

#[test]
fn typed_access_names_key_and_both_types() {
    let bytes = Raw::default()
        .pair("n", 8, &text(b"five"))
        .pair("i", 5, &(-1i32).to_le_bytes())
        .bytes(3);
    let gguf = Gguf::from_bytes(bytes, "test").unwrap();
    assert_eq!(gguf.get_u32("absent").unwrap(), None);
    assert_eq!(
        gguf.get_u32("n").unwrap_err().to_string(),
        "metadata key n is string \"five\"; an unsigned 32-bit integer was expected"
    );
    assert_eq!(
        gguf.get_u32("i").unwrap_err().to_string(),
        "metadata key i is int32 -1; an unsigned 32-bit integer was expected"
    );
    assert_eq!(
        gguf.require_f32("absent").unwrap_err().to_string(),
        "metadata key absent (a float) is missing"
    );
    assert_eq!(gguf.require_str("n").unwrap(), "five");
}

#[test]
fn files_made_by_llama_cpp_are_read() {
    let embedded: &'static [u8] = include_bytes!("../../../../../assets/tales-q4_k_m.gguf");
    let gguf = Gguf::from_bytes(embedded, "embedded").unwrap();
    assert_eq!(
        gguf.require_str("general.architecture").unwrap(),
        "deepseek2"
    );
    assert_eq!(gguf.file_size(), embedded.len() as u64);

    let Ok(fixtures) = std::env::var("GLIMT_FIXTURES") else {
        eprintln!("skipped: the fixture files (GLIMT_FIXTURES not set)");
        return;
    };
    let vocab = Gguf::open(&Path::new(&fixtures).join("vocab/glm-4.7-flash-vocab.gguf")).unwrap();
    assert_eq!(
        vocab
            .require_str_array("tokenizer.ggml.tokens")
            .unwrap()
            .len(),
        154_880
    );
}
