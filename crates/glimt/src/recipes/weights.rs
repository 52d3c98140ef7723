//! The model on a device as the engine sees it: weights, and sessions whose kernels are chosen.

use super::places::{Made, Places};
use super::{AttentionWeights, BatchSizes, Body, ChunkSize, HostShare, Residence, Steps, chunk};
use crate::gpu::machine::Machine;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{Gpu, GpuError, Target};
use crate::kernels::expert_slots::Routing;
use crate::kernels::gemm::Form;
use crate::model::{Config, Transformer};
use std::convert::Infallible;
use std::sync::Arc;

/// The weights of a model as steps bind them: their places, before a device has made them and after.
pub struct Weights {
    /// The weights of all but the attention.
    pub body: Body,
    attention: Arc<dyn AttentionWeights>,
}

/// The places of a model's weights on a device, and what fills them.
pub struct Placed<'a> {
    /// The weights as steps bind them.
    pub weights: Weights,
    /// The loader that fills the matrices.
    pub loader: Loader<'a>,
    /// The matrices, in the loader's order.
    pub matrices: Vec<GpuWeight>,
}

impl<'a> Placed<'a> {
    /// Where the weights of `model` will lie on a device. A family says how the tensors of its attention get `places` and are `made` of these,
    /// and what the `attention` of all layers is.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    pub fn new<A, P, G>(
        target: &Target,
        residence: Residence,
        config: &Config,
        model: &'a Transformer<A>,
        places: impl Fn(&'a A, &mut Places<'a>) -> Result<P, GpuError>,
        made: impl Fn(&P, &mut Made) -> Result<G, Infallible>,
        attention: impl FnOnce(Vec<G>) -> Arc<dyn AttentionWeights>,
    ) -> Result<Self, GpuError> {
        let mut of_layers = vec![];
        let made = |own: &P, all: &mut Made| {
            let Ok(made) = made(own, all);
            of_layers.push(made);
        };
        let (body, loader, matrices) = Body::place(target, residence, config, model, places, made)?;
        let weights = Weights {
            body,
            attention: attention(of_layers),
        };
        Ok(Self {
            weights,
            loader,
            matrices,
        })
    }
}

impl Weights {
    /// The products of each [`Pair`](crate::model::pairs::Pair), of each block or of none. Steps of one token read those that are there
    /// instead of their factors.
    pub fn products(&mut self) -> &mut [Vec<GpuWeight>; 2] {
        &mut self.body.products
    }

    /// Has decoded tokens of sessions that are made from now on take choices of experts from a trace, `trace` of each layer with slots by its
    /// number among these. Whether a layer has slots.
    pub fn route(&mut self, trace: impl Fn(usize) -> Vec<u32>) -> bool {
        let used = self
            .body
            .config
            .experts
            .as_ref()
            .map_or(0, |experts| experts.used);
        let layers = self.body.rooms.iter_mut().flatten();
        let mut any = false;
        for (i, rooms) in layers.filter(|rooms| rooms.slots.is_some()).enumerate() {
            rooms.routing = Some(Routing::new(&trace(i), used));
            any = true;
        }
        any
    }

    /// Has the host multiply this share of the experts that decoded tokens of sessions which are made from now on miss.
    pub fn share(&mut self, share: Option<&HostShare>) {
        for rooms in self.body.rooms.iter_mut().flatten() {
            rooms.share = share.cloned();
        }
    }

    /// Sessions whose kernels trials on the device choose.
    ///
    /// # Errors
    /// The error that the device reports in a trial.
    pub async fn tried(&self, gpu: &Gpu) -> Result<Sessions, GpuError> {
        let before = gpu.allocated();
        let products = Form::for_prompts(gpu).await?;
        let attention = self.attention.tried(gpu).await?;
        // The buffers of the trials are gone.
        gpu.count_dropped(before);
        Ok(self.with(products, attention))
    }

    /// Sessions as they are if all that a device has is right and fast.
    pub fn untried(&self, target: &Target) -> Sessions {
        self.with(Form::best(target), self.attention.untried(target))
    }

    fn with(&self, products: Form, attention: Arc<dyn AttentionWeights>) -> Sessions {
        Sessions {
            body: self.body.clone(),
            products,
            attention,
        }
    }
}

/// A model on a device whose kernels are chosen: what makes sessions.
pub struct Sessions {
    body: Body,
    products: Form,
    attention: Arc<dyn AttentionWeights>,
}

impl Sessions {
    /// Whether there are steps of one token alone.
    pub fn is_one_by_one(&self) -> bool {
        self.body.is_one_by_one
    }

    /// Bytes of a position in the cache of a layer.
    pub fn cache_row_bytes(&self) -> u64 {
        self.attention.cache_row() as u64 * 2
    }

    /// Bytes of the largest binding of a step of `tokens` tokens, of `several` sequences or of one.
    pub fn widest(&self, machine: Machine, tokens: u32, several: bool) -> u64 {
        let size = ChunkSize {
            machine,
            products: self.products,
            tokens,
        };
        let attention = &self.attention;
        let common = chunk::widest(size, &self.body.config, attention.values());
        common.max(attention.widest(size, several))
    }

    /// The steps of one sequence, or of several.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] for a cache that no binding has room for.
    pub fn steps(&self, target: &Target, sizes: BatchSizes) -> Result<Steps, GpuError> {
        Steps::new(target, &self.body, self.products, &*self.attention, sizes)
    }
}
