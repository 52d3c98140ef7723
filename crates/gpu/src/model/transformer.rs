//! A model as its blocks, and the prediction layer if it is in use.

use super::nextn::{Nextn, NextnSource, Shared, has_nextn};
use super::tensors::Tensors;
use super::{Block, ModelError, Weight};

/// The weights of a model. No weight is copied but the norms, and what a family makes of old files.
#[derive(Debug)]
pub struct Transformer<A> {
    /// The embedding, vocab_size x embedding_length.
    pub token_embd: Weight,
    /// The blocks, without the nextn ones.
    pub layers: Vec<Block<A>>,
    /// Weights of the last norm, embedding_length.
    pub output_norm: Vec<f32>,
    /// The output head, vocab_size x embedding_length; `token_embd` where the model has no other.
    pub output: Weight,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// The prediction layer, if drafts by it are wanted.
    pub nextn: Option<Nextn<A>>,
}

impl<A> Transformer<A> {
    /// The model of these tensors, if the heads of a block have `values` values and `attention` finds the tensors of one. `source` says whether
    /// the file's prediction layer is wanted; one of another file is the affair of the family.
    ///
    /// # Errors
    /// The errors of `attention`; [`ModelError::Tensor`] for others, [`ModelError::UnknownTensor`] for those that nobody asked for; the errors of
    /// [`Nextn::load`].
    pub fn load(
        tensors: &Tensors<'_>,
        values: usize,
        source: &NextnSource,
        attention: impl Fn(usize) -> Result<A, ModelError>,
    ) -> Result<Self, ModelError> {
        tensors.check_not_prediction_alone()?;
        let config = tensors.config;
        let (vocab, width) = (config.vocab_size, config.embedding_length);
        let token_embd = tensors.matrix("token_embd.weight", 1, vocab, width)?;
        let head = tensors.optional_matrix("output.weight", 1, vocab, width)?;
        let tied = head.is_none();
        let output = head.unwrap_or_else(|| token_embd.clone());
        let output_norm = tensors.vector("output_norm.weight", width)?;
        let block = |block: usize| Block::load(tensors, block, values, &attention);
        let layers = (0..config.block_count).map(block);
        let layers = layers.collect::<Result<_, ModelError>>()?;
        let mut model = Self {
            token_embd,
            layers,
            output_norm,
            output,
            tied,
            nextn: None,
        };
        let nextn = || Nextn::load(tensors, values, model.shared(), &attention);
        model.nextn = match source {
            NextnSource::None | NextnSource::Other(_) => None,
            NextnSource::IfAny if !has_nextn(tensors.gguf) => None,
            NextnSource::IfAny => nextn()
                .inspect_err(|error| log::warn!("the prediction layer is not used: {error}"))
                .ok(),
            NextnSource::Own => Some(nextn()?),
        };
        tensors.check_rest()?;
        Ok(model)
    }

    /// What the model shares with a prediction layer.
    pub fn shared(&self) -> Shared<'_> {
        Shared {
            token_embd: &self.token_embd,
            output_norm: &self.output_norm,
            output: &self.output,
        }
    }
}
