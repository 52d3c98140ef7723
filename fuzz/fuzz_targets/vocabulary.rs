//! A vocabulary from metadata: it is refused with a reason, or texts become ids of it, and these the same text again.
//!
//! An input has lines up to an empty one, and then the text. The first line is the kind of words, or `llama` for a vocabulary with scores. A line
//! of 1 to 6 and a text is a token of this type, and any other line is a merge, or else the score of the token before it: a number with a
//! sign, or the bits of one. A `+` before the kind adds all bytes as tokens.

#![no_main]

use glimt::gguf::{Array, Value};
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
    /// Whether tokens have scores, so that a space is put before a text.
    has_scores: bool,
}

/// The scores of tokens: whole numbers where all are.
fn scores(lines: &[String]) -> Value {
    let whole: Option<Vec<i32>> = lines.iter().map(|line| line.parse().ok()).collect();
    let score = |line: &String| {
        let bits = || u32::from_str_radix(line.strip_prefix("0x")?, 16).ok();
        let number = line.parse().ok().or_else(|| bits().map(f32::from_bits));
        number.unwrap_or_default()
    };
    Value::Array(match whole {
        Some(whole) => Array::I32(whole),
        None => Array::F32(lines.iter().map(score).collect()),
    })
}

fn read(head: &str) -> Input {
    let mut lines = head.lines();
    let kind = lines.next().unwrap_or_default();
    let (all_bytes, kind) = match kind.strip_prefix('+') {
        Some(kind) => (true, kind),
        None => (false, kind),
    };
    let has_scores = kind == "llama";
    let (mut tokens, mut types, mut others) = (vec![], vec![], vec![]);
    if all_bytes {
        let alphabet = byte_level_alphabet().into_iter().map(String::from);
        tokens = match has_scores {
            true => (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect(),
            false => alphabet.collect(),
        };
        types = vec![if has_scores { 6 } else { 1 }; tokens.len()];
        others.resize(if has_scores { 256 } else { 0 }, "0".to_owned());
    }
    for line in lines {
        match line.as_bytes().first() {
            Some(first @ b'1'..=b'6') => {
                types.push(i32::from(first - b'0'));
                tokens.push(line[1..].to_owned());
                others.extend(has_scores.then(|| "0".to_owned()));
            }
            _ if has_scores => {
                if let Some(last) = others.last_mut() {
                    line.clone_into(last);
                }
            }
            _ => others.push(line.to_owned()),
        }
    }
    let pairs = types.iter().zip(&tokens);
    let byte = |text: &str| text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
    let plain = pairs.map(|(kind, text)| match kind {
        1 => true,
        6 => has_scores && byte(text) && u8::from_str_radix(&text[3..5], 16).is_ok(),
        // A text may be cut around one of these, and then a space is put before what follows.
        _ if has_scores => false,
        2..=4 => text.bytes().all(|byte| byte.is_ascii_graphic()),
        _ => false,
    });
    let plain = plain.collect();
    let (model, last) = match has_scores {
        true => ("llama", ("tokenizer.ggml.scores", scores(&others))),
        false => ("gpt2", ("tokenizer.ggml.merges", Value::from(others))),
    };
    let metadata = [
        ("tokenizer.ggml.model", Value::from(model)),
        ("tokenizer.ggml.pre", Value::from(kind)),
        ("tokenizer.ggml.tokens", Value::from(tokens)),
        ("tokenizer.ggml.token_type", Value::from(types)),
        last,
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    Input {
        all_bytes,
        metadata,
        plain,
        has_scores,
    }
}

fn check(tokenizer: &Tokenizer, text: &str, input: &Input) {
    let ids = match tokenizer.encode(text, false) {
        Ok(ids) => ids,
        Err(error) => return assert!(!input.all_bytes, "{text:?}: {error}"),
    };
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    // A space is written in three bytes where tokens have scores, and one is put before the text and behind each special token.
    let most = match input.has_scores {
        true => 6 * text.len() + 3,
        false => text.len(),
    };
    assert!(ids.len() <= most, "{text:?} became {ids:?}");
    assert_eq!(tokenizer.encode(text, false).ok().as_ref(), Some(&ids));
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|&id| tokenizer.token_bytes(id))
        .collect();
    if ids.iter().all(|&id| input.plain[id as usize]) {
        let found = String::from_utf8_lossy(&bytes);
        assert_eq!(tokenizer.decode(&ids), found);
        match input.has_scores && !text.is_empty() {
            // The sign of a space in tokens may also be in the text.
            true => {
                let expected = format!(" {text}").replace('▁', " ");
                assert_eq!(found.replace('▁', " "), expected, "{ids:?}");
            }
            false => assert_eq!(found, text, "{ids:?}"),
        }
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
        let scores = "+llama\n1▁\n-1\n1t\n1h\n1e\n1he\n-2.5\n1▁t\n-2.5\n1▁the\n-1e30\n3<s>\n4<|code|>\n2<unk>\n\nthe  the <|code|> the\n<s>the 日本▁é";
        let whole = "llama\n1▁\n1a\n1b\n1ab\n+3\n1▁ab\n+2\n6<0x0A>\n\nab ab\nb";
        vec![
            ("glm", glm.into()),
            ("deepseek", deepseek.into()),
            ("scores", scores.into()),
            ("whole", whole.into()),
        ]
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
