//! The model that is measured: of a file, or made of nothing.

use std::str::FromStr;
use std::sync::Arc;

use super::BenchError;
use crate::aliases::PREFERRED;
use crate::engine::ModelSource;
use crate::kernels::CacheType;
use crate::model::NextnSource;
use crate::models::{self, Model};
use crate::quant::GgmlType;
use crate::synth::{self, ModelName, Recipe, SynthError, SynthOptions};

/// The source of the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, or the model inside the program.
    Model(ModelSource),
    /// Random weights of real shapes, made on the device.
    Synthetic(ModelName, Recipe),
}

impl Source {
    /// The model, without its weights being touched.
    ///
    /// # Errors
    /// The refusal of the file or of the plan.
    pub fn load(&self) -> Result<Arc<dyn Model>, BenchError> {
        self.load_with(&NextnSource::None, CacheType::default())
    }

    /// The model with the prediction layer of `nextn` and a cache of this type. A synthetic model has such a layer wherever it is wanted.
    ///
    /// # Errors
    /// The refusal of the file or of the plan.
    pub fn load_with(
        &self,
        nextn: &NextnSource,
        cache: CacheType,
    ) -> Result<Arc<dyn Model>, BenchError> {
        let gguf = match self {
            Self::Model(source) => source.open()?,
            Self::Synthetic(model, recipe) => {
                let options = SynthOptions {
                    nextn: matches!(nextn, NextnSource::IfAny | NextnSource::Own),
                    ..SynthOptions::default()
                };
                synth::without_matrices(*model, *recipe, &options)?
            }
        };
        Ok(models::load_with_cache(Arc::new(gguf), nextn, cache)?)
    }

    /// The file, or `MODEL:RECIPE`.
    pub fn name(&self) -> String {
        match self {
            Self::Model(ModelSource::Embedded) => "built-in".to_owned(),
            Self::Model(ModelSource::File(path)) => path.display().to_string(),
            Self::Synthetic(model, recipe) => format!("{model}:{recipe}"),
        }
    }
}

impl FromStr for Source {
    type Err = String;

    /// `MODEL:RECIPE`, or the model alone, with the recipe that is taken where a model by name has several.
    fn from_str(text: &str) -> Result<Self, String> {
        let (model, recipe) = text.split_once(':').unwrap_or((text, PREFERRED));
        let wrong = |error: SynthError| error.to_string();
        let model = model.parse().map_err(wrong)?;
        Ok(Self::Synthetic(model, recipe.parse().map_err(wrong)?))
    }
}

/// The name of a model in a table, and the type of most of its weights where the name does not tell it.
pub fn describe(model: &dyn Model) -> String {
    let name = &model.config().name;
    let most = GgmlType::ALL.iter().max_by_key(|ty| {
        let tensors = model.gguf().tensors().iter().filter(|t| t.ty == **ty);
        tensors.map(|t| t.element_count()).sum::<u64>()
    });
    match most {
        Some(ty) if !name.to_lowercase().contains(&ty.name().to_lowercase()) => {
            format!("{name} {ty}")
        }
        _ => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synthetic_model_is_named_with_its_recipe() {
        let source: Source = "glm-4.7-flash:q4_k_m".parse().unwrap();
        assert_eq!(
            source,
            Source::Synthetic(ModelName::Glm47Flash, Recipe::Q4KM)
        );
        assert_eq!(source.name(), "glm-4.7-flash:q4_k_m");
        assert_eq!("GLM-4.7-Flash".parse(), Ok(source));
        for (wrong, expected) in [
            ("glm:q4_0", "glm-4.7-flash, deepseek-v2-lite"),
            ("tiny:q9", "q4_0, q4_k_m"),
        ] {
            let error = wrong.parse::<Source>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_description_tells_the_weights_type_once() {
        let model = Source::Model(ModelSource::Embedded).load().unwrap();
        assert_eq!(describe(&*model), "Tales 16M Q4_K");
        let tiny: Source = "tiny:q4_0".parse().unwrap();
        assert_eq!(describe(&*tiny.load().unwrap()), "synthetic tiny q4_0");
    }
}
