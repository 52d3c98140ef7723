//! A synthetic model without a file: its matrices are made where they are used.

use super::{ModelName, Plan, Recipe, SynthError, SynthOptions, fill};
use crate::gguf::{Gguf, PlannedInfo};

/// The model with its metadata, tensor table and vectors (norms, selection biases), but without the bytes of any matrix:
/// a device makes those itself when it loads the model, and the CPU reference cannot run it.
///
/// # Errors
/// [`SynthError::Layers`].
pub fn without_matrices(
    model: ModelName,
    recipe: Recipe,
    options: &SynthOptions,
) -> Result<Gguf, SynthError> {
    let plan = Plan::new(model, recipe, options)?;
    let tensors = plan.tensors.into_iter().map(|tensor| {
        let data = (tensor.dims.len() == 1).then(|| {
            let mut bytes = vec![0; tensor.byte_len() as usize];
            fill(&tensor, options.seed, 0, &mut bytes);
            bytes
        });
        PlannedInfo {
            name: tensor.name,
            ty: tensor.ty,
            dims: tensor.dims,
            data,
        }
    });
    let name = format!("{model}:{recipe}");
    Ok(Gguf::planned(&name, plan.metadata, tensors.collect())?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::models;

    #[test]
    fn every_model_loads_and_its_vectors_are_those_of_the_file() {
        for model in ModelName::ALL {
            let options = SynthOptions {
                layers: Some(2),
                ..SynthOptions::default()
            };
            let gguf = without_matrices(model, Recipe::Q4KM, &options).unwrap();
            let gguf = Arc::new(gguf);
            let norm = gguf
                .tensor("output_norm.weight")
                .expect("every model has it");
            let norm: Vec<f32> = bytemuck::pod_collect_to_vec(gguf.data(norm));
            assert!(norm.iter().all(|w| *w == 1.0));
            let loaded = models::load(gguf).unwrap_or_else(|e| panic!("{model}: {e}"));
            assert!(!loaded.has_data());
            assert_eq!(loaded.config().block_count, 2);
        }
        // 17 GB of weights in a process of a few megabytes.
        let glm = without_matrices(
            ModelName::Glm47Flash,
            Recipe::Q4_0,
            &SynthOptions::default(),
        );
        assert!(glm.unwrap().file_size() > 15 << 30);
    }
}
