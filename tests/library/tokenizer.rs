//! Protects tokens: files of known answers for the embedded model's vocabulary always, and for the whole vocabularies of
//! GLM-4.7-Flash and deepseek-llm where `GLIMT_FIXTURES` says where they are.

use std::path::Path;

use glimt::gguf::{Gguf, GgufWriter, Value};
use glimt::tokenizer::{ChatTemplate, Message, StreamDecoder, Tokenizer};
use serde::Deserialize;

use crate::golden::{fixture, in_repository};

/// A text and its ids, special tokens parsed, nothing added.
#[derive(Deserialize)]
pub struct Sample {
    text: String,
    ids: Vec<u32>,
}

fn tales() -> Gguf {
    Gguf::open(&in_repository("assets/tales-q4_k_m.gguf")).unwrap()
}

/// Encodes every sample, and decodes it at once and token by token.
pub fn check(tokenizer: &Tokenizer, samples: &[Sample]) {
    assert!(!samples.is_empty());
    for Sample { text, ids } in samples {
        assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
        let said = tokenizer.decode(ids);
        // A vocabulary with scores puts a space before it.
        assert!(said == *text || tokenizer.text_of(ids) == *text, "{text:?}");
        let mut decoder = StreamDecoder::new(tokenizer);
        let mut streamed: String = ids.iter().map(|&id| decoder.push(id)).collect();
        streamed += &decoder.finish();
        let shown: Vec<u32> = ids
            .iter()
            .copied()
            .filter(|&id| !tokenizer.is_special(id))
            .collect();
        assert_eq!(streamed, tokenizer.decode(&shown));
    }
}

#[test]
fn tales_agree_with_llama_cpp() {
    let tokenizer = Tokenizer::from_gguf(&tales()).unwrap();
    let samples: Vec<Sample> =
        serde_json::from_str(include_str!("../data/tales-tokens.json")).unwrap();
    check(&tokenizer, &samples);
    assert_eq!(tokenizer.vocab_size(), 4096);
    assert_eq!(tokenizer.bos(), Some(1));
    assert_eq!(tokenizer.stop_tokens(), [0, 4, 6]);
    assert!(tokenizer.is_stop(4) && !tokenizer.is_stop(5));
    assert!(tokenizer.is_special(5) && !tokenizer.is_special(267));
    assert_eq!(tokenizer.piece(267), " a");
    assert_eq!(tokenizer.piece(5), "<|assistant|>");
    assert_eq!(tokenizer.token_bytes(4096), b"");
}

#[test]
fn tales_chat_renders_and_encodes() {
    let gguf = tales();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = ChatTemplate::from_gguf(&gguf).unwrap().unwrap();
    let turns = [Message::new(
        "user",
        "Tell me a story about a fox and a crow.",
    )];
    let rendered = template.render(&turns, true, None).unwrap();
    assert_eq!(
        rendered,
        "[gMASK]<sop><|user|>Tell me a story about a fox and a crow.<|assistant|>"
    );
    let golden = [
        1, 2, 4, 60, 435, 389, 267, 1594, 540, 267, 2847, 285, 267, 1918, 22, 5,
    ];
    assert_eq!(tokenizer.encode_chat(&rendered).unwrap(), golden);
    let error = ChatTemplate::named(&gguf, "tool_use").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no chat template named \"tool_use\" in the file; it has none"
    );
}

#[test]
fn glm_agrees_with_its_golden() {
    let (Some(vocab), Some(golden)) = (
        fixture("vocab/glm-4.7-flash-vocab.gguf"),
        fixture("vocab/glm-4.7-flash-golden.json"),
    ) else {
        return;
    };
    let gguf = Gguf::open(&vocab).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let samples: Vec<Sample> =
        serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap();
    check(&tokenizer, &samples);
    let stops: Vec<String> = tokenizer
        .stop_tokens()
        .iter()
        .map(|&id| tokenizer.piece(id))
        .collect();
    assert_eq!(stops, ["<|endoftext|>", "<|user|>", "<|observation|>"]);

    let template = ChatTemplate::from_gguf(&gguf).unwrap().unwrap();
    let rendered = template
        .render(&[Message::new("user", "Hi")], true, Some(false))
        .unwrap();
    let pieces = tokenizer.encode_chat(&rendered).unwrap();
    let pieces: Vec<String> = pieces.into_iter().map(|id| tokenizer.piece(id)).collect();
    assert_eq!(
        pieces,
        [
            "[gMASK]",
            "<sop>",
            "<|user|>",
            "Hi",
            "<|assistant|>",
            "</think>"
        ]
    );
}

/// The texts and ids that llama.cpp has beside a vocabulary.
pub fn samples(vocab: &Path) -> Vec<Sample> {
    let read = |suffix: &str| {
        let mut name = vocab.as_os_str().to_owned();
        name.push(suffix);
        std::fs::read_to_string(name).unwrap()
    };
    let (inputs, outputs) = (read(".inp"), read(".out"));
    let separator = "\n__ggml_vocab_test__\n";
    let inputs: Vec<&str> = inputs
        .strip_suffix(separator)
        .unwrap_or(&inputs)
        .split(separator)
        .collect();
    let ids = outputs.lines().map(|line| {
        line.split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect()
    });
    let samples: Vec<Sample> = inputs
        .iter()
        .zip(ids)
        .map(|(&text, ids)| Sample {
            text: text.to_owned(),
            ids,
        })
        .collect();
    assert_eq!(inputs.len(), samples.len());
    samples
}

#[test]
fn deepseek_llm_agrees_with_its_golden() {
    let Some(vocab) = fixture("vocab/deepseek-llm-vocab.gguf") else {
        return;
    };
    let samples = samples(&vocab);
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&vocab).unwrap()).unwrap();
    check(&tokenizer, &samples);
    // This file asks for BOS before every text; a template that wrote it already gets no second one.
    assert_eq!(tokenizer.encode("a", true).unwrap(), [100000, 64]);
    let bos = tokenizer.piece(100000);
    assert_eq!(tokenizer.encode_chat("a").unwrap(), [100000, 64]);
    assert_eq!(
        tokenizer.encode_chat(&format!("{bos}a")).unwrap(),
        [100000, 64]
    );
}

/// A file with the 256 byte tokens, the given further tokens (text, type) and merges; `edit` may add to it.
fn made(extra: &[(&str, i32)], merges: &[&str], edit: impl Fn(&mut GgufWriter<Vec<u8>>)) -> Gguf {
    // Bytes in the byte-level alphabet, in the order of GPT-2's vocabulary.
    let printable = (0x21..=0x7E).chain(0xA1..=0xAC).chain(0xAE..=0xFF);
    let others = (0x100..0x100 + 68).map(|code| char::from_u32(code).unwrap());
    let mut tokens: Vec<String> = printable
        .map(|code| char::from_u32(code).unwrap())
        .chain(others)
        .map(String::from)
        .collect();
    assert_eq!(tokens.len(), 256);
    let mut types = vec![1; 256];
    for &(text, kind) in extra {
        tokens.push(text.to_owned());
        types.push(kind);
    }
    let mut writer = GgufWriter::new(Vec::new());
    writer
        .metadata("tokenizer.ggml.tokens", Value::from(tokens))
        .unwrap();
    writer
        .metadata("tokenizer.ggml.token_type", Value::from(types))
        .unwrap();
    let merges: Vec<String> = merges.iter().map(|&merge| merge.to_owned()).collect();
    writer
        .metadata("tokenizer.ggml.merges", Value::from(merges))
        .unwrap();
    edit(&mut writer);
    let bytes = writer.begin_data().unwrap().finish().unwrap();
    Gguf::from_bytes(bytes, "made for a test").unwrap()
}

/// The keys without which nothing loads.
fn named(model: &'static str, pre: &'static str) -> impl Fn(&mut GgufWriter<Vec<u8>>) {
    move |writer| {
        writer.metadata("tokenizer.ggml.model", model).unwrap();
        writer.metadata("tokenizer.ggml.pre", pre).unwrap();
    }
}

#[test]
fn merges_rank_by_their_first_place_and_ignore_merges_takes_whole_words() {
    let extra = [("ab", 1), ("bc", 1), ("abc", 1)];
    // "b c" comes first, then "a b"; the repetition of "b c" at the end must not lower its rank.
    let merges = ["b c", "a b", "b c"];
    let tokenizer = Tokenizer::from_gguf(&made(&extra, &merges, named("gpt2", "qwen2"))).unwrap();
    let ids = tokenizer.encode("abc", false).unwrap();
    assert_eq!(
        ids.iter()
            .map(|&id| tokenizer.piece(id))
            .collect::<Vec<_>>(),
        ["a", "bc"]
    );
    let tokenizer = Tokenizer::from_gguf(&made(&extra, &merges, named("gpt2", "glm4"))).unwrap();
    assert_eq!(tokenizer.encode("abc", false).unwrap(), [258]);
    // Where the file does not say, llama-bpe adds BOS: refused here, because there is none to add.
    let error =
        Tokenizer::from_gguf(&made(&extra, &merges, named("gpt2", "llama-bpe"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing"
    );
}

#[test]
fn merges_may_go_through_texts_that_are_no_tokens() {
    // "ab" and "xy" are no tokens. From "ab" merges go on to "abc"; what is left of them is written byte by byte.
    let (extra, merges) = ([("abc", 1)], ["a b", "ab c", "x y"]);
    for pre in ["qwen2", "glm4"] {
        let tokenizer = Tokenizer::from_gguf(&made(&extra, &merges, named("gpt2", pre))).unwrap();
        assert_eq!(tokenizer.vocab_size(), 257);
        for (text, pieces) in [
            ("abc", &["abc"][..]),
            ("abd", &["a", "b", "d"]),
            ("ab", &["a", "b"]),
            ("xyxy", &["x", "y", "x", "y"]),
            ("\u{e9}ab", &["\u{fffd}", "\u{fffd}", "a", "b"]),
        ] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert!(ids.iter().all(|&id| id < 257), "{ids:?}");
            let found: Vec<_> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
            assert_eq!(found, pieces, "{pre} {text:?}");
        }
    }
    // A byte that merges name but no token stands for is still none.
    let gguf = made(&[], &["\u{144} a"], named("gpt2", "qwen2"));
    assert!(Tokenizer::from_gguf(&gguf).is_ok());
}

#[test]
fn stop_tokens_come_from_keys_and_from_known_texts() {
    let extra = [
        ("<|im_end|>", 4),
        ("<|end|>", 3),
        ("<|user|>", 3),
        ("<|file_sep|>", 3),
        ("<|x|>", 3),
    ];
    let gguf = made(&extra, &[], |writer| {
        named("gpt2", "qwen2")(writer);
        writer
            .metadata("tokenizer.ggml.eos_token_id", 260u32)
            .unwrap();
        writer
            .metadata("tokenizer.ggml.add_eos_token", true)
            .unwrap();
    });
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    assert_eq!(tokenizer.stop_tokens(), [256, 257, 259, 260]);
    assert_eq!(tokenizer.encode("<|user|>", true).unwrap(), [258, 260]);
    assert_eq!(tokenizer.encode("<|user|>", false).unwrap(), [258]);
    // Called text by the file, but known to be a mark: not shown in an answer.
    assert!(tokenizer.is_special(256));
    assert_eq!(StreamDecoder::new(&tokenizer).push(256), "");
}

/// A file with scores: marks, all bytes, and further tokens (text, score, type). `edit` may add to it.
fn scored(extra: &[(&str, f32, i32)], edit: impl Fn(&mut GgufWriter<Vec<u8>>)) -> Gguf {
    let marks = [("<unk>", 2), ("<s>", 3), ("</s>", 3)];
    let marks = marks.map(|(text, kind)| (text.to_owned(), 0.0, kind));
    let bytes = (0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6));
    let extra = extra
        .iter()
        .map(|&(text, score, kind)| (text.to_owned(), score, kind));
    let all: Vec<_> = marks.into_iter().chain(bytes).chain(extra).collect();
    let mut writer = GgufWriter::new(Vec::new());
    let mut put = |key: &str, value: Value| writer.metadata(key, value).unwrap();
    put("tokenizer.ggml.model", "llama".into());
    let texts: Vec<String> = all.iter().map(|(text, ..)| text.clone()).collect();
    put("tokenizer.ggml.tokens", texts.into());
    let scores: Vec<f32> = all.iter().map(|(_, score, _)| *score).collect();
    put("tokenizer.ggml.scores", scores.into());
    let types: Vec<i32> = all.iter().map(|(.., kind)| *kind).collect();
    put("tokenizer.ggml.token_type", types.into());
    edit(&mut writer);
    let bytes = writer.begin_data().unwrap().finish().unwrap();
    Gguf::from_bytes(bytes, "made for a test").unwrap()
}

/// Words for vocabularies with scores.
const WORDS: [(&str, f32, i32); 12] = [
    ("▁", -10.0, 1),
    ("a", -11.0, 1),
    ("b", -12.0, 1),
    ("ab", -1.0, 1),
    ("▁a", -2.0, 1),
    ("▁ab", -3.0, 1),
    ("▁▁", -4.0, 1),
    ("▁▁▁", -5.0, 1),
    ("é", -13.0, 1),
    ("<|user|>", 0.0, 4),
    ("ba", -2.0, 1),
    ("n", -14.0, 1),
];

#[test]
fn scored_vocabularies_agree_with_llama_cpp() {
    let tokenizer = Tokenizer::from_gguf(&scored(&WORDS, |_| {})).unwrap();
    // llama.cpp computed these, with the marks in the text read and the token that begins a text added.
    for (text, ids, said) in [
        ("", &[1][..], ""),
        ("ab", &[1, 264], "ab"),
        (" ab", &[1, 259, 264], " ab"),
        ("abab  ba", &[1, 264, 262, 265, 269], "abab  ba"),
        ("a    a", &[1, 263, 266, 263], "a    a"),
        ("bé日\n", &[1, 259, 261, 267, 233, 154, 168, 13], "bé日\n"),
        (
            "ab<|user|>ab<s>b",
            &[1, 264, 268, 264, 1, 259, 261],
            "ab<|user|> ab<s> b",
        ),
        ("▁ab", &[1, 259, 264], " ab"),
    ] {
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.text_of(ids), said, "{text:?}");
    }
    assert_eq!(tokenizer.bos(), Some(1));
    assert_eq!(tokenizer.stop_tokens(), [2]);
    assert!(tokenizer.is_special(0) && !tokenizer.is_special(268));
    // Text inside another one has no space before it.
    assert_eq!(tokenizer.encode_inside("ab").unwrap(), [262]);
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [264]);

    let plain = scored(&WORDS, |writer| {
        let mut put = |key: &str, value: bool| writer.metadata(key, value).unwrap();
        put("tokenizer.ggml.add_space_prefix", false);
        put("tokenizer.ggml.add_bos_token", false);
        put("tokenizer.ggml.add_eos_token", true);
    });
    let plain = Tokenizer::from_gguf(&plain).unwrap();
    assert_eq!(plain.encode("ab<s> ab", true).unwrap(), [262, 1, 264, 2]);
    assert_eq!(plain.text_of(&[264]), " ab");
}

#[test]
fn characters_of_several_byte_tokens_are_streamed_whole() {
    let tokenizer = Tokenizer::from_gguf(&scored(&WORDS, |_| {})).unwrap();
    let mut decoder = StreamDecoder::new(&tokenizer);
    // A space, the three bytes of a character, and half of another one.
    let pieces: Vec<String> = [264, 233, 154, 168, 2, 198, 259]
        .iter()
        .map(|&id| decoder.push(id))
        .collect();
    assert_eq!(pieces, [" ab", "", "", "日", "", "", "\u{fffd} "]);
    assert_eq!(decoder.finish(), "");
    assert_eq!(tokenizer.decode(&[198, 172]), "é");
}

#[test]
fn contradictory_vocabularies_are_refused_by_name() {
    let message = |gguf: Gguf| Tokenizer::from_gguf(&gguf).unwrap_err().to_string();
    let good = named("gpt2", "qwen2");
    let cases = [
        (
            message(made(&[], &[], named("bert", "default"))),
            "tokenizer.ggml.model is \"bert\"",
        ),
        (
            message(made(&[], &[], named("llama", "default"))),
            "tokenizer.ggml.scores (an array of 32-bit floats) is missing",
        ),
        (
            message(made(&[], &[], |writer| {
                named("llama", "default")(writer);
                let scores = Value::from(vec![0.0_f32; 3]);
                writer.metadata("tokenizer.ggml.scores", scores).unwrap();
            })),
            "tokenizer.ggml.scores has 3 entries; tokenizer.ggml.tokens has 256",
        ),
        (
            message(made(&[], &[], named("gpt2", "viking"))),
            "tokenizer.ggml.pre is \"viking\"",
        ),
        (
            message(made(&[], &[], |w| {
                w.metadata("tokenizer.ggml.model", "gpt2").unwrap()
            })),
            "tokenizer.ggml.pre is missing",
        ),
        (
            message(made(&[("a", 1)], &[], &good)),
            "tokens 64 and 256 of tokenizer.ggml.tokens are both \"a\"",
        ),
        (
            message(made(&[], &["ab"], &good)),
            "entry 0 of tokenizer.ggml.merges, \"ab\"",
        ),
        (
            message(made(&[], &[], |writer| {
                named("gpt2", "qwen2")(writer);
                writer
                    .metadata("tokenizer.ggml.eot_token_id", 256u32)
                    .unwrap();
            })),
            "tokenizer.ggml.eot_token_id is 256; the vocabulary has 256 tokens",
        ),
    ];
    for (message, expected) in cases {
        assert!(message.contains(expected), "{message}");
    }
}
