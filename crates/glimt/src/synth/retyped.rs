//! A model in another mix of types: its shapes as they are, and no bytes of its matrices.

use super::{Recipe, SynthError};
use crate::gguf::{Gguf, PlannedInfo, TensorInfo};
use crate::quant::GgmlType;

/// A model whose tensors are given other types.
#[derive(Debug, Clone, Copy)]
pub struct Retyped<'a> {
    gguf: &'a Gguf,
    layers: usize,
}

impl<'a> Retyped<'a> {
    /// A model of `layers` layers.
    pub fn new(gguf: &'a Gguf, layers: usize) -> Self {
        Self { gguf, layers }
    }

    fn ty(&self, recipe: Recipe, tensor: &TensorInfo) -> GgmlType {
        let tied = self.gguf.tensor("output.weight").is_none();
        recipe.of_tensor(&tensor.name, &tensor.dims, self.layers, tied)
    }

    /// Bytes of all tensors in the mix of `recipe`.
    pub fn bytes(&self, recipe: Recipe) -> u64 {
        let bytes = |tensor: &TensorInfo| {
            let ty = self.ty(recipe, tensor);
            tensor.element_count() / ty.block_len() as u64 * ty.block_bytes() as u64
        };
        self.gguf.tensors().iter().map(bytes).sum()
    }

    /// The model in the mix of `recipe`. Its vectors are zeros, and its matrices have no bytes.
    ///
    /// # Errors
    /// [`SynthError::Table`] if the shapes of its tensors are none that a file can have.
    pub fn gguf(&self, recipe: Recipe) -> Result<Gguf, SynthError> {
        let tensor = |tensor: &TensorInfo| {
            let ty = self.ty(recipe, tensor);
            // A vector is F32.
            let zeros = || vec![0; size_of::<f32>() * tensor.element_count() as usize];
            PlannedInfo {
                name: tensor.name.clone(),
                ty,
                dims: tensor.dims.clone(),
                data: (tensor.dims.len() == 1).then(zeros),
            }
        };
        let tensors = self.gguf.tensors().iter().map(tensor).collect();
        let metadata = self.gguf.metadata();
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.clone()));
        Ok(Gguf::planned(recipe.name(), metadata.collect(), tensors)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{ModelName, SynthOptions, without_matrices};

    #[test]
    fn a_model_in_another_mix_is_what_is_made_in_it() {
        let made = |model, recipe| {
            let options = SynthOptions::default();
            without_matrices(model, recipe, &options).expect("a plan")
        };
        for (model, layers) in [
            (ModelName::TinyDs2, 26),
            (ModelName::TinyYoutu, 3),
            (ModelName::TinyGlm, 3),
        ] {
            let from = made(model, Recipe::Q8_0);
            let retyped = Retyped::new(&from, layers);
            for recipe in Recipe::ALL {
                let expected = made(model, recipe);
                let found = retyped.gguf(recipe).expect("its shapes are those of files");
                for (found, expected) in found.tensors().iter().zip(expected.tensors()) {
                    assert_eq!(
                        (&found.name, found.ty, &found.dims),
                        (&expected.name, expected.ty, &expected.dims)
                    );
                }
                assert_eq!(retyped.bytes(recipe), expected.file_size(), "{recipe}");
            }
        }
    }
}
