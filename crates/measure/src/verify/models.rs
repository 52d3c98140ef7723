//! The models that a device is verified with: the built-in one, and small synthetic ones of every family, with many types of weights.

use std::sync::Arc;

use super::{Without, on_cpu};
use crate::bench::BenchError;
use crate::engine::{EngineError, ModelSource};
use crate::gguf::Gguf;
use crate::kernels::CacheType;
use crate::model::{ModelError, NextnSource};
use crate::models::{self, Model};
use crate::synth::{self, ModelName, Recipe, SynthOptions};

/// Each family in small, with mixes of types that the built-in model does not have, and how many layers of it: all types of a mix are in
/// these. The first has a prediction layer.
const SYNTHETIC: [(ModelName, Recipe, usize); 6] = [
    (ModelName::TinyGlm, Recipe::Q4_0, 3),
    (ModelName::TinyDs2, Recipe::Q5KM, 4),
    (ModelName::TinyYoutu, Recipe::Q8_0, 3),
    (ModelName::Tiny, Recipe::Q4_0, 4),
    (ModelName::TinyQwen3Moe, Recipe::Q4KM, 3),
    (ModelName::TinyQwen2, Recipe::Q4_0, 3),
];

/// Tokens of a text: more than a subgroup and than a matrix has, and no multiple of either.
const TOKENS: u32 = 45;

/// A model with the logits that it should have.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) is_built_in: bool,
    /// Whether its experts are to lie in host memory, too.
    pub(super) is_also_partly: bool,
    pub(super) model: Arc<dyn Model>,
    pub(super) tokens: Vec<u32>,
    /// Logits (tokens, vocab) by the CPU reference.
    pub(super) rows: Vec<Vec<f32>>,
}

impl Subject {
    fn new(
        name: String,
        is_built_in: bool,
        (gguf, cache): (Gguf, CacheType),
    ) -> Result<Self, BenchError> {
        let model = models::load_with_cache(Arc::new(gguf), &NextnSource::IfAny, cache)?;
        let vocab = model.config().vocab_size as u32;
        let tokens: Vec<u32> = (0..TOKENS).map(|i| (37 * i + 11) % vocab).collect();
        let rows = on_cpu(&model, &tokens)?;
        Ok(Self {
            name,
            is_built_in,
            is_also_partly: false,
            model,
            tokens,
            rows,
        })
    }
}

/// The model that is compiled into the program, with a cache of this type.
pub(super) fn built_in(cache: CacheType) -> Result<Subject, BenchError> {
    let gguf = ModelSource::Embedded.open()?;
    Subject::new("built-in".to_owned(), true, (gguf, cache))
}

/// All subjects that can have a cache of this type, and the models that cannot.
pub(super) fn all(cache: CacheType) -> Result<(Vec<Subject>, Vec<Without>), BenchError> {
    let mut all = vec![built_in(cache)?];
    let mut without = vec![];
    for (model, recipe, layers) in SYNTHETIC {
        let name = format!("{model}:{recipe}");
        let options = SynthOptions {
            layers: Some(layers),
            nextn: model == ModelName::TinyGlm,
            ..SynthOptions::default()
        };
        let bytes = synth::in_memory(model, recipe, &options)?;
        let gguf = Gguf::from_bytes(bytes, &name)?;
        match Subject::new(name.clone(), false, (gguf, cache)) {
            Ok(subject) => all.push(Subject {
                is_also_partly: model == ModelName::TinyGlm,
                ..subject
            }),
            Err(BenchError::Engine(EngineError::Model(error @ ModelError::CacheType { .. }))) => {
                without.push(Without {
                    model: name,
                    reason: error.to_string(),
                })
            }
            Err(error) => return Err(error),
        }
    }
    Ok((all, without))
}
