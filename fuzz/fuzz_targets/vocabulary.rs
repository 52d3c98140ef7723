//! A vocabulary from metadata: it is refused with a reason, or texts become ids of it, and these the same text again.
//!
//! An input has lines up to an empty one, and then the text. The first line is the kind of words. A line of 1 to 6 and a text is a token of
//! this type, and any other line is a merge. A `+` before the kind adds all bytes as tokens.

#![no_main]

use glimt::gguf::Value;
use glimt::tokenizer::{StreamDecoder, Tokenizer, byte_level_alphabet};
use glimt_fuzz::{container, file, seeds};
use libfuzzer_sys::fuzz_target;

/// The content of an input.
struct Input {
    /// Whether every byte is a token.
    all_bytes: bool,
    metadata: Vec<(String, Value)>,
    /// By token: whether it stands for its text, however it is found. A text in the alphabet of bytes is another one as it is written.
    plain: Vec<bool>,
}

fn read(head: &str) -> Input {
    let mut lines = head.lines();
    let kind = lines.next().unwrap_or_default();
    let (all_bytes, kind) = match kind.strip_prefix('+') {
        Some(kind) => (true, kind),
        None => (false, kind),
    };
    let (mut tokens, mut types, mut merges) = (vec![], vec![], vec![]);
    if all_bytes {
        tokens = byte_level_alphabet()
            .into_iter()
            .map(String::from)
            .collect();
        types = vec![1; tokens.len()];
    }
    for line in lines {
        match line.as_bytes().first() {
            Some(first @ b'1'..=b'6') => {
                types.push(i32::from(first - b'0'));
                tokens.push(line[1..].to_owned());
            }
            _ => merges.push(line.to_owned()),
        }
    }
    let pairs = types.iter().zip(&tokens);
    let plain = pairs.map(|(kind, text)| match kind {
        1 => true,
        2..=4 => text.bytes().all(|byte| byte.is_ascii_graphic()),
        _ => false,
    });
    let plain = plain.collect();
    let metadata = [
        ("tokenizer.ggml.model", Value::from("gpt2")),
        ("tokenizer.ggml.pre", Value::from(kind)),
        ("tokenizer.ggml.tokens", Value::from(tokens)),
        ("tokenizer.ggml.token_type", Value::from(types)),
        ("tokenizer.ggml.merges", Value::from(merges)),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    Input {
        all_bytes,
        metadata,
        plain,
    }
}

fn check(tokenizer: &Tokenizer, text: &str, input: &Input) {
    let ids = match tokenizer.encode(text, false) {
        Ok(ids) => ids,
        Err(error) => return assert!(!input.all_bytes, "{text:?}: {error}"),
    };
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    assert!(ids.len() <= text.len(), "{text:?} became {ids:?}");
    assert_eq!(tokenizer.encode(text, false).ok().as_ref(), Some(&ids));
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|&id| tokenizer.token_bytes(id))
        .collect();
    if ids.iter().all(|&id| input.plain[id as usize]) {
        assert_eq!(bytes, text.as_bytes(), "{text:?} became {ids:?}");
        assert_eq!(tokenizer.decode(&ids), text);
    }
    let mut stream = StreamDecoder::new(tokenizer);
    let mut said: String = ids.iter().map(|&id| stream.push(id)).collect();
    said += &stream.finish();
    let shown: Vec<u32> = ids
        .iter()
        .filter(|&&id| !tokenizer.is_special(id))
        .copied()
        .collect();
    assert_eq!(said, tokenizer.decode(&shown));
}

fuzz_target!(
    init: seeds(|| {
        let glm = "+glm4\n1Ġt\n1he\n1Ġthe\n3<|user|>\n4<|code|>\n6<0x41>\n2<unk>\n5[gone]\nĠ t\nh e\nĠt he\n\nthe cat, <|user|> the the <|code|>x 1234 äöü 日本 <0x41>\r\n\n  end";
        let deepseek = "deepseek-v3\n1a\n1b\n1ab\n1Ġ\na b\n\nab a b";
        vec![("glm", glm.into()), ("deepseek", deepseek.into())]
    }),
    |data: &[u8]| {
        let text = String::from_utf8_lossy(data);
        let (head, text) = text.split_once("\n\n").unwrap_or((&text, "the cat"));
        let input = read(head);
        let Some(gguf) = file(&input.metadata).and_then(container) else {
            return;
        };
        if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
            check(&tokenizer, text, &input);
        }
    }
);
