//! Tools that tests of the engine share: a model that is small enough for a software adapter.

use std::sync::OnceLock;

use crate::gguf::Gguf;
use crate::synth::{self, ModelName, Recipe, SynthOptions};

/// Tokens of [`small_model`]'s vocabulary.
pub(super) const VOCAB: u32 = 512;

/// A synthetic model with a dense layer and two layers of experts. Its weights are random, so that a wrong row of the cache changes the logits
/// of every later position.
pub(super) fn small_model() -> Gguf {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    opened(BYTES.get_or_init(|| bytes(false)))
}

/// The same model with a prediction layer.
pub(super) fn small_model_with_nextn() -> Gguf {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    opened(BYTES.get_or_init(|| bytes(true)))
}

fn bytes(nextn: bool) -> Vec<u8> {
    let options = SynthOptions {
        layers: Some(3),
        nextn,
        ..SynthOptions::default()
    };
    synth::in_memory(ModelName::Tiny, Recipe::Q4KM, &options).expect("three layers are fine")
}

fn opened(bytes: &'static [u8]) -> Gguf {
    Gguf::from_bytes(bytes, "a small model").expect("it is whole")
}
