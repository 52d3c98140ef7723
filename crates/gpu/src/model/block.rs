//! A model as its blocks: of weights as the file has them, of their places while they are loaded, or of weights on a device.

use super::nextn::{Nextn, NextnSource, has_nextn};
use super::tensors::Tensors;
use super::{Convert, Ffn, ModelError, Weight};

/// One transformer block with the attention `A` of a family. Fields are called as the tensors `blk.N.<field>.weight`; `W` is a matrix, `V` a
/// vector.
#[derive(Debug, Clone)]
pub struct Block<A, W = Weight, V = Vec<f32>> {
    /// Norm before attention, embedding_length.
    pub attn_norm: V,
    /// The tensors between that norm and `attn_output`.
    pub attention: A,
    /// embedding_length x the values of all heads.
    pub attn_output: W,
    /// Norm before the feed-forward network, embedding_length.
    pub ffn_norm: V,
    /// The feed-forward network.
    pub ffn: Ffn<W, V>,
}

impl<A, W, V> Block<A, W, V> {
    /// This block with its tensors converted, those of the attention by `attention`.
    ///
    /// # Errors
    /// The first error of `by`.
    pub fn convert<'a, C: Convert<'a, W, V>, B>(
        &'a self,
        by: &mut C,
        attention: impl FnOnce(&'a A, &mut C) -> Result<B, C::Error>,
    ) -> Result<Block<B, C::Weight, C::Vector>, C::Error> {
        Ok(Block {
            attn_norm: by.vector(&self.attn_norm)?,
            attention: attention(&self.attention, by)?,
            attn_output: by.weight(&self.attn_output)?,
            ffn_norm: by.vector(&self.ffn_norm)?,
            ffn: self.ffn.convert(by)?,
        })
    }
}

impl<A> Block<A> {
    /// The block of this number, if its heads have `values` values and `attention` finds the tensors between norm and `attn_output`.
    ///
    /// # Errors
    /// The errors of `attention`; [`ModelError::Tensor`].
    pub(super) fn load(
        tensors: &Tensors<'_>,
        number: usize,
        values: usize,
        attention: impl FnOnce(usize) -> Result<A, ModelError>,
    ) -> Result<Self, ModelError> {
        let width = tensors.config.embedding_length;
        let name = |tensor: &str| format!("blk.{number}.{tensor}.weight");
        Ok(Block {
            attn_norm: tensors.vector(&name("attn_norm"), width)?,
            attention: attention(number)?,
            attn_output: tensors.matrix(&name("attn_output"), 1, width, values)?,
            ffn_norm: tensors.vector(&name("ffn_norm"), width)?,
            ffn: tensors.feed_forward(number)?,
        })
    }
}

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
}
