//! The room of a model on its device, with its prediction layer where that takes none from what was asked for.

use std::sync::Arc;

use super::device::Device;
use super::draft::DraftOptions;
use super::host::size;
use super::many::{self, Many};
use super::partly::Partly;
use super::{EngineError, EngineOptions, room};
use crate::models::Model;
use crate::recipes::{BatchSizes, few};

/// The room that is asked for.
pub(super) struct Wanted<'a> {
    pub(super) options: &'a EngineOptions,
    /// The context, in tokens; `None` is the default.
    pub(super) n_ctx: Option<usize>,
    /// Whether answers may begin with thoughts.
    pub(super) thinks: bool,
}

/// The room that a model gets.
pub(super) struct Fitted {
    pub(super) n_ctx: usize,
    /// The sizes of the steps of several sequences, where these are asked for.
    pub(super) batch_sizes: Option<BatchSizes>,
    /// Where the experts lie, if not on the device with all else.
    pub(super) partly: Option<Partly>,
}

impl Fitted {
    /// Whether a model that gets this room has what one with the `other` room has, and all of it on the device.
    fn has_all_of(&self, other: &Self) -> bool {
        let pages = |of: &Self| of.batch_sizes.map(|sizes| (sizes.pages, sizes.chunk));
        let are_whole = self.partly.is_none() && other.partly.is_none();
        are_whole && self.n_ctx == other.n_ctx && pages(self) == pages(other)
    }
}

impl Wanted<'_> {
    /// The room of a model.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`], or what loading would refuse.
    pub(super) fn fit(&self, device: &Device, model: &dyn Model) -> Result<Fitted, EngineError> {
        self.fit_forced(device, model, self.options.force)
    }

    fn fit_forced(
        &self,
        device: &Device,
        model: &dyn Model,
        force: bool,
    ) -> Result<Fitted, EngineError> {
        let ubatch = self.options.ubatch;
        let place = room::Place {
            site: room::Site::of(device),
            model,
            ubatch,
            has_flag: true,
        };
        let n_ctx = match self.n_ctx {
            Some(n_ctx) => n_ctx,
            None => place.default_context(self.thinks)?,
        };
        let of_one = match force {
            true => None,
            false => place.check(n_ctx)?,
        };
        let many = match &self.options.serving {
            Some(serving) => {
                let wanted: (_, DraftOptions) = (*serving, self.options.draft);
                Some(many::batch_sizes(
                    device, model, n_ctx, wanted, ubatch, force,
                )?)
            }
            None => None,
        };
        let (batch_sizes, partly) = match many {
            Some(Many { sizes, partly }) => (Some(sizes), partly),
            None => (None, of_one),
        };
        Ok(Fitted {
            n_ctx,
            batch_sizes,
            partly,
        })
    }

    /// The room of a model with its prediction layer, or of the same `without` it: where the layer is of no use, moves experts off the device or
    /// shortens a context. Returned is also the model that gets it.
    ///
    /// # Errors
    /// The errors of [`fit`](Self::fit) of the model without the layer.
    pub(super) fn fit_auto(
        &self,
        device: &Device,
        [with, without]: [Arc<dyn Model>; 2],
    ) -> Result<(Fitted, Arc<dyn Model>), EngineError> {
        let least = self.fit(device, &*without)?;
        let is_of_use = has_steps(device, self.options.serving.is_some());
        if !is_of_use || least.partly.is_some() {
            return Ok((least, without));
        }
        Ok(match self.fit_forced(device, &*with, false) {
            Ok(fitted) if fitted.has_all_of(&least) => (fitted, with),
            // Whatever it is, the model has room without it.
            _ => (least, without),
        })
    }
}

/// Whether a device has steps with drafts for which a prediction layer may pay. On the CPU a further token of a step costs nearly as much as the
/// first.
fn has_steps(device: &Device, are_several: bool) -> bool {
    match device {
        Device::Cpu { .. } => false,
        Device::Gpu(gpu) => few::most_drafts(gpu, are_several) > 0,
    }
}

/// The sentence that a prediction layer of so many bytes is left off for want of room; nothing where it would be of no use.
pub(super) fn left_off(device: &Device, are_several: bool, bytes: u64) -> Option<String> {
    has_steps(device, are_several).then(|| {
        format!(
            "the prediction layer ({}) is left off: with it less of the model or of its context would have room on the device; --draft mtp takes it",
            size(bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::engine::draft::{DraftOptions, DraftSource};
    use crate::engine::gpu::MemoryPlan;
    use crate::engine::testing::small_model_with_nextn;
    use crate::engine::{
        CacheType, DeviceChoice, EngineError, EngineOptions, GpuOptions, Opened, Serving,
    };
    use crate::gpu::wait::Wait;
    use crate::gpu::{Gpu, Tier};
    use crate::model::NextnSource;
    use crate::models;
    use crate::recipes::Residence;
    use crate::synth::{ModelName, Recipe, SynthOptions, without_matrices};
    use std::sync::Arc;

    const CTX: usize = 256;

    fn gpu(max_memory: Option<u64>) -> GpuOptions {
        GpuOptions {
            device: DeviceChoice::Index(0),
            tier: Some(Tier::Subgroup),
            serial_passes: Some(false),
            max_memory,
            ..GpuOptions::default()
        }
    }

    fn opened(gpu: GpuOptions, source: DraftSource, serving: Option<Serving>) -> Opened {
        let options = EngineOptions {
            gpu,
            ctx: Some(CTX),
            serving,
            draft: DraftOptions { source, most: None },
            ..EngineOptions::default()
        };
        let opened = Opened::of_gguf(small_model_with_nextn(), &options).wait();
        opened.expect("it has room")
    }

    /// Bytes of the model with the layer, and of the layer with its rows.
    fn bytes() -> [u64; 2] {
        let device = Gpu::open(&gpu(None)).wait().expect("there is one");
        let [with, without] = [NextnSource::Own, NextnSource::None].map(|source| {
            let model = models::load_with_nextn(Arc::new(small_model_with_nextn()), &source);
            let model = model.expect("it is supported");
            let plan = MemoryPlan::new(&device, &*model, Residence::Whole, CTX, None);
            plan.expect("it has room").total()
        });
        [with, with - without]
    }

    #[test]
    fn the_layer_is_taken_if_it_has_room_beside_all_that_was_asked_for() {
        let [with, layer] = bytes();
        let several = Serving {
            parallel: Some(2),
            cache_tokens: Some(2 * CTX),
        };
        for (source, memory, serving, takes, is_told) in [
            (DraftSource::Auto, None, None, true, false),
            (DraftSource::Auto, Some(with), None, true, false),
            (DraftSource::Auto, Some(with - layer / 2), None, false, true),
            (DraftSource::Auto, None, Some(several), true, false),
            (DraftSource::Off, None, None, false, false),
            (DraftSource::Ngram, None, None, false, false),
            (DraftSource::Mtp, Some(with), None, true, false),
        ] {
            let opened = opened(gpu(memory), source, serving);
            let told = opened.layer_left_off();
            let found = (opened.model().nextn(), told.is_some());
            assert_eq!(found, (takes, is_told), "{source:?} {memory:?}: {told:?}");
            assert!(opened.partly().is_none(), "{source:?} {memory:?}");
            assert_eq!(opened.n_ctx(), CTX);
        }
        // On the CPU it does not pay, and nobody has to be told.
        let cpu = GpuOptions {
            device: DeviceChoice::Cpu,
            ..GpuOptions::default()
        };
        let on_cpu = opened(cpu, DraftSource::Auto, None);
        assert!(!on_cpu.model().nextn() && on_cpu.layer_left_off().is_none());
    }

    /// A dense model on a GPU with so much memory, and the cache that is asked for.
    fn opened_dense(
        max_memory: Option<u64>,
        cache_type: Option<CacheType>,
    ) -> Result<Opened, EngineError> {
        let options = EngineOptions {
            gpu: gpu(max_memory),
            ctx: Some(4096),
            cache_type,
            ..EngineOptions::default()
        };
        let synth = SynthOptions::default();
        let gguf = without_matrices(ModelName::TinyYoutu, Recipe::Q4_0, &synth);
        Opened::of_gguf(gguf.expect("a plan"), &options).wait()
    }

    #[test]
    fn a_cache_has_codes_if_asked_for_or_where_a_context_has_no_room_in_f16() {
        use CacheType::{F16, Q8_0};
        let total = |cache| {
            let opened = opened_dense(None, Some(cache)).expect("it has room");
            let device = Gpu::open(&gpu(None)).wait().expect("there is one");
            let plan = MemoryPlan::new(&device, opened.model(), Residence::Whole, 4096, None);
            plan.expect("it has room").total()
        };
        let [whole, with_codes] = [F16, Q8_0].map(total);
        assert!(with_codes < whole);
        for (memory, asked, expected, is_told) in [
            (None, None, Some(F16), false),
            (Some(whole), None, Some(F16), false),
            (Some(whole - 1), None, Some(Q8_0), true),
            (Some(with_codes), None, Some(Q8_0), true),
            (Some(with_codes), Some(Q8_0), Some(Q8_0), false),
            (Some(whole - 1), Some(F16), None, false),
            (Some(with_codes - 1), None, None, false),
        ] {
            let found = opened_dense(memory, asked);
            let cache = found
                .as_ref()
                .ok()
                .map(|opened| opened.model().cache_type());
            assert_eq!(cache, expected, "{memory:?} {asked:?}");
            let told = found.as_ref().ok().and_then(Opened::chosen_cache);
            assert_eq!(told.is_some(), is_told, "{told:?}");
            if let Err(error) = found {
                assert!(matches!(error, EngineError::NoRoom(_)), "{error}");
            }
        }
    }
}
