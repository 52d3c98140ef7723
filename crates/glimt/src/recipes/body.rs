//! The weights that models of all families have, on a device.

use super::places::{Made, Number, Places, Span};
use super::residence::{Residence, Rooms};
use crate::gpu::buffer::Range;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{GpuError, Target};
use crate::kernels::router::MAX_EXPERTS;
use crate::kernels::sample::MAX_VOCAB;
use crate::model::{Block, Config, Convert, Ffn, Nextn, Transformer};
use std::convert::Infallible;

/// A prediction layer without its attention.
pub type GpuNextn = Nextn<(), GpuWeight, Range>;

/// A block without its attention.
pub type GpuBlock = Block<(), GpuWeight, Range>;

/// The weights of a model but for those of its attention, as steps bind them: their places, before a device has made them and after.
#[derive(Clone)]
pub struct Body {
    /// The model's sizes.
    pub config: Config,
    /// All norms and biases.
    pub vectors: Range,
    pub(super) token_embd: GpuWeight,
    /// The blocks without their attention.
    pub layers: Vec<GpuBlock>,
    /// The rooms of each layer for experts that lie in host memory; nothing where none do.
    pub(crate) rooms: Vec<Option<Rooms>>,
    /// Whether there are steps of one token alone.
    pub(super) is_one_by_one: bool,
    /// Products by [`Pair`](crate::model::pairs::Pair) and layer; none of a pair that is not multiplied.
    pub(crate) products: [Vec<GpuWeight>; 2],
    pub(super) output_norm: Range,
    pub(super) output: GpuWeight,
    /// The prediction layer without its attention, if it is loaded. Its experts lie on the device.
    pub(super) nextn: Option<GpuNextn>,
}

impl Body {
    /// Where the weights of `model` will lie on a device, what fills them, and the matrices in its order. The attention of each layer gets
    /// `places` and is then `made` of these.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`], [`GpuError::CannotReadHost`].
    pub(super) fn place<'a, A, P>(
        target: &Target,
        residence: Residence,
        config: &Config,
        model: &'a Transformer<A>,
        places: impl Fn(&'a A, &mut Places<'a>) -> Result<P, GpuError>,
        mut made: impl FnMut(&P, &mut Made),
    ) -> Result<(Self, Loader<'a>, Vec<GpuWeight>), GpuError> {
        let experts = config.experts.as_ref().map_or(0, |e| e.count);
        check_sizes([
            ("vocab_size", config.vocab_size, MAX_VOCAB),
            ("expert_count", experts, MAX_EXPERTS),
        ])?;
        let mut all = Places::new(target, residence);
        let token_embd = all.weight(&model.token_embd)?;
        let output = match model.tied {
            true => token_embd,
            false => all.weight(&model.output)?,
        };
        let layers = model.layers.iter();
        let layers = layers.map(|layer| layer.convert(&mut all, &places));
        let layers: Vec<Block<P, Number, Span>> = layers.collect::<Result<_, _>>()?;
        let output_norm = all.vector(&model.output_norm)?;
        all.experts_on_device();
        let nextn = model.nextn.as_ref();
        let nextn = nextn.map(|layer| layer.convert(&mut all, &places));
        let nextn: Option<Nextn<P, Number, Span>> = nextn.transpose()?;
        let (loader, mut all) = all.made();
        let layers = layers.iter().map(|layer| {
            let Ok(layer) = layer.convert(&mut all, |own, all| {
                made(own, all);
                Ok::<_, Infallible>(())
            });
            layer
        });
        let layers: Vec<GpuBlock> = layers.collect();
        let both = layers.iter().zip(&model.layers);
        let experts = both.map(|(layer, of_file)| match (&layer.ffn, &of_file.ffn) {
            (Ffn::Moe(moe), Ffn::Moe(of_file)) => Some((&moe.experts, &of_file.experts)),
            _ => None,
        });
        let experts: Vec<_> = experts.collect();
        let rooms = Rooms::of(target, residence, config.experts.as_ref(), &experts)?;
        let Ok(output_norm) = all.vector(&output_norm);
        let nextn = nextn.as_ref().map(|layer| {
            let Ok(layer) = layer.convert(&mut all, |own, all| {
                made(own, all);
                Ok::<_, Infallible>(())
            });
            layer
        });
        let body = Self {
            config: config.clone(),
            layers,
            rooms,
            is_one_by_one: residence.is_one_by_one(),
            vectors: all.vectors(),
            token_embd: all.weights[token_embd].clone(),
            products: Default::default(),
            output_norm,
            output: all.weights[output].clone(),
            nextn,
        };
        Ok((body, loader, all.weights))
    }

    /// The rooms of layer `i` for experts that lie in host memory.
    pub(super) fn rooms_of(&self, i: usize) -> Option<&Rooms> {
        self.rooms.get(i)?.as_ref()
    }
}

/// Refuses a model that has more of something than the kernels can index, by the key, what was found, and the most: their constructors assert
/// what is checked here.
///
/// # Errors
/// [`GpuError::UnsupportedSize`].
pub(crate) fn check_sizes<const N: usize>(
    sizes: [(&'static str, usize, usize); N],
) -> Result<(), GpuError> {
    for (key, found, limit) in sizes {
        if found > limit {
            return Err(GpuError::UnsupportedSize {
                key,
                found,
                supported: format!("{limit} at most"),
            });
        }
    }
    Ok(())
}
