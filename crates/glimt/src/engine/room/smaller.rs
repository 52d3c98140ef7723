//! The smaller file of the same model that would have room.

use super::{Place, STEP};
use crate::engine::EngineError;
use crate::engine::host::size;
use crate::gguf::Gguf;
use crate::model::NextnSource;
use crate::models;
use crate::synth::{Recipe, Retyped};

/// The share of a file that another is smaller by at least: files of one mix differ by less.
const SHARE: f64 = 0.03;

impl Place<'_> {
    /// Advice on the file that would have room for a context of `n_ctx` tokens, or else for the shortest, where this one has room for none:
    /// the largest of the mixes of types that people publish.
    pub(super) fn smaller(&self, n_ctx: usize) -> Result<String, EngineError> {
        let gguf = self.model.gguf();
        let has = size(gguf.file_size());
        for n_ctx in [n_ctx, STEP.min(n_ctx)] {
            if let Some((recipe, bytes)) = self.smaller_recipe(n_ctx)? {
                let name = recipe.name().to_uppercase();
                let bytes = size(bytes);
                return Ok(format!(
                    "no context does; a file of {name}, which has about {bytes}, fits with a context of {n_ctx} tokens; this one has {has}"
                ));
            }
        }
        Ok(format!(
            "no context does, nor any quantisation, of which this one has {has}: a smaller model would"
        ))
    }

    /// The largest mix that is smaller than this file and has room, with the bytes of its file.
    fn smaller_recipe(&self, n_ctx: usize) -> Result<Option<(Recipe, u64)>, EngineError> {
        let (gguf, config) = (self.model.gguf(), self.model.config());
        let layers = config.block_count + config.nextn_predict_layers;
        let nextn = match self.model.nextn() {
            true => NextnSource::IfAny,
            false => NextnSource::None,
        };
        let retyped = Retyped::new(gguf, layers);
        let mut recipes = Recipe::ALL.map(|recipe| (recipe, retyped.bytes(recipe)));
        recipes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let most = gguf.file_size() as f64 * (1.0 - SHARE);
        let smaller = recipes
            .into_iter()
            .filter(|(_, bytes)| *bytes as f64 <= most);
        for (recipe, bytes) in smaller {
            // Shapes that the recipe cannot have, or that the family does not run in these types, are no advice.
            let model = retyped.gguf(recipe).ok();
            let load = |gguf: Gguf| models::load_with_nextn(gguf.into(), &nextn).ok();
            let Some(model) = model.and_then(load) else {
                continue;
            };
            let place = Place {
                model: &*model,
                ..*self
            };
            if place.fits(n_ctx, false)? {
                return Ok(Some((recipe, bytes)));
            }
        }
        Ok(None)
    }
}
