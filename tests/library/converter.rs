//! Protects agreement with the publishers' code: small models of the classes of transformers, converted by llama.cpp's own converter, have the
//! logits of transformers. `scripts/test --converter` makes them and says by `GLIMT_CONVERTER` where they are.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use glimt::engine::{
    DeviceChoice, Engine, EngineError, EngineOptions, ModelSource, Opened, Products, Session, Tier,
    Wait,
};
use serde::Deserialize;

use crate::built_in::options;

/// The limit of [`nmse`] with files of F32. Both have a cache of F16, and values that lie between two of F16 are not always rounded alike.
const NMSE: f64 = 1e-6;

/// The models of `scripts/converter/models.py`.
const MODELS: [&str; 19] = [
    "glm-4.7-flash",
    "glm-4.7-flash-reap",
    "deepseek-coder-v2-lite",
    "deepseek-v2-with-query-latents",
    "youtu-llm",
    "moonlight",
    "kimi-vl",
    "kanana-2",
    "gigachat3",
    "deepseek-v3-with-one-group",
    "qwen2.5",
    "qwen2.5-wide-heads",
    "qwen3",
    "qwen3-yarn",
    "qwen3-moe",
    "smollm2",
    "llama-3.1",
    "llama-3.2",
    "llama-heads-of-80",
];

/// A converted model with what transformers computes.
struct Converted {
    name: &'static str,
    model: PathBuf,
    tokens: Vec<u32>,
    /// For every token.
    logits: Vec<Vec<f32>>,
}

impl Converted {
    fn read(name: &'static str) -> Self {
        #[derive(Deserialize)]
        struct Inputs {
            tokens: Vec<u32>,
        }
        let root = std::env::var_os("GLIMT_CONVERTER");
        let root = PathBuf::from(root.expect("scripts/test --converter makes the models first"));
        let read = |ending: &str| {
            let path = root.join(format!("{name}.{ending}"));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let inputs: Inputs = serde_json::from_slice(&read("json")).expect("it is sound");
        let bytes = read("logits");
        let floats = bytes
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().expect("four")));
        let floats: Vec<f32> = floats.collect();
        let width = floats.len() / inputs.tokens.len();
        Self {
            name,
            model: root.join(format!("{name}.gguf")),
            logits: floats.chunks_exact(width).map(<[f32]>::to_vec).collect(),
            tokens: inputs.tokens,
        }
    }

    /// Holds a device against transformers, with a prompt in one call and with a token in each. Gives what is wrong.
    fn check(&self, device: &str, options: &EngineOptions) -> Vec<String> {
        let mut session = match session(&self.model, options) {
            Ok(session) => session,
            Err(error) => return vec![format!("{}, {device}: {error}", self.name)],
        };
        let mut wrong = vec![];
        for call in [self.tokens.len(), 1] {
            let found = nmse(&self.logits, &rows(&mut session, &self.tokens, call));
            let told = format!("{}, {device}, calls of {call}: NMSE {found:.1e}", self.name);
            eprintln!("{told}");
            if found > NMSE {
                wrong.push(told);
            }
        }
        wrong
    }
}

fn session(model: &Path, options: &EngineOptions) -> Result<Session, EngineError> {
    let opened = Opened::new(&ModelSource::File(model.into()), options).wait()?;
    let engine = Engine::load(opened, &mut |_| {}).wait()?;
    Ok(engine.session().wait().expect("there is room"))
}

/// Holds a device against transformers with every model.
fn check_all(device: &str, options: &EngineOptions) {
    let checked = MODELS
        .iter()
        .flat_map(|name| Converted::read(name).check(device, options));
    let wrong: Vec<String> = checked.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The logits of every token, which come in calls of so many.
fn rows(session: &mut Session, tokens: &[u32], call: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![];
    let keep = &mut |_, logits: &[f32]| {
        rows.push(logits.to_vec());
        ControlFlow::Continue(())
    };
    session.reset();
    for tokens in tokens.chunks(call) {
        session.logits(tokens, 0, keep).wait().expect("they fit");
    }
    rows
}

/// The squared differences of all logits over the squared expected ones. Each token's are less their mean, which no probability depends on.
fn nmse(expected: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    assert_eq!(expected.len(), found.len(), "a row for every token");
    let (mut error, mut size) = (0.0, 0.0);
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected.len(), found.len(), "a logit for every token");
        for (a, b) in centred(expected).zip(centred(found)) {
            error += (a - b).powi(2);
            size += a.powi(2);
        }
    }
    // A NaN is above no limit.
    assert!(f64::is_finite(error / size), "{error} of {size}");
    error / size
}

fn centred(row: &[f32]) -> impl Iterator<Item = f64> {
    let mean = row.iter().copied().map(f64::from).sum::<f64>() / row.len() as f64;
    row.iter().map(move |&x| f64::from(x) - mean)
}

#[test]
#[ignore = "converter: scripts/test --converter"]
fn models_of_transformers_have_its_logits_on_the_cpu() {
    let exact = EngineOptions {
        cpu_products: Products::Exact,
        ..options(DeviceChoice::Cpu, None, Some(128))
    };
    check_all("CPU", &exact);
}

#[test]
#[ignore = "converter: scripts/test --converter"]
fn models_of_transformers_have_its_logits_on_a_gpu() {
    let plain = options(DeviceChoice::Auto, Some(Tier::Plain), Some(128));
    check_all("plain", &plain);
}
