//! The room of a model on its device, with its prediction layer where that takes none from what was asked for.

use super::device::Device;
use super::draft::DraftOptions;
use super::host::size;
use super::many::{self, Many};
use super::partly::Partly;
use super::{EngineError, EngineOptions, room};
use crate::kernels::CacheType;
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
    /// shortens a context. Returned is also whether the model with the layer gets it.
    ///
    /// # Errors
    /// The errors of [`fit`](Self::fit) of the model without the layer.
    pub(super) fn fit_auto(
        &self,
        device: &Device,
        [with, without]: [&dyn Model; 2],
    ) -> Result<(Fitted, bool), EngineError> {
        let least = self.fit(device, without)?;
        let is_of_use = has_steps(device, self.options.serving.is_some());
        if !is_of_use || least.partly.is_some() {
            return Ok((least, false));
        }
        Ok(match self.fit_forced(device, with, false) {
            Ok(fitted) if fitted.has_all_of(&least) => (fitted, true),
            // Whatever it is, the model has room without it.
            _ => (least, false),
        })
    }
}

/// The sentence that a cache is in q8_0 where it has no room in f16, or takes that of experts; nothing where all has room in f16.
pub(super) fn lacks_room(in_f16: &Result<(Fitted, bool), EngineError>) -> Option<String> {
    let [codes, halves] = [CacheType::Q8_0, CacheType::F16];
    Some(match in_f16 {
        Err(EngineError::NoRoom(no_room)) => format!(
            "the cache is in {codes}: in {halves} a context of {} tokens takes {}, and {} in all, where {} has {}; --cache-type says which is taken",
            no_room.n_ctx, no_room.cache, no_room.needed, no_room.device, no_room.has
        ),
        Ok((Fitted { partly, n_ctx, .. }, _)) => {
            let Partly { slots, experts, .. } = partly.as_ref()?;
            format!(
                "the cache is in {codes}, so that all experts lie on the GPU: with a context of {n_ctx} tokens in {halves}, slots for {slots} of {experts} of each \
                 layer would have room; --cache-type says which is taken"
            )
        }
        Err(_) => return None,
    })
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

    /// A model on a GPU with so much memory, and the cache that is asked for.
    fn opened_with(
        name: ModelName,
        ctx: Option<usize>,
        (max_memory, cache_type): (Option<u64>, Option<CacheType>),
    ) -> Result<Opened, EngineError> {
        let options = EngineOptions {
            gpu: gpu(max_memory),
            ctx,
            cache_type,
            ..EngineOptions::default()
        };
        let gguf = without_matrices(name, Recipe::Q4_0, &SynthOptions::default());
        Opened::of_gguf(gguf.expect("a plan"), &options).wait()
    }

    /// Bytes of the model on the device with a context of so many tokens in a cache of each type, f16 first.
    fn totals(name: ModelName, ctx: usize) -> [u64; 2] {
        CacheType::ALL.map(|cache| {
            let opened = opened_with(name, Some(ctx), (None, Some(cache))).expect("it has room");
            let device = Gpu::open(&gpu(None)).wait().expect("there is one");
            let plan = MemoryPlan::new(&device, opened.model(), Residence::Whole, ctx, None);
            plan.expect("it has room").total()
        })
    }

    /// Checks the type of the cache, and whether experts lie elsewhere, of models that are opened so; `None` is a refusal. That q8_0 was chosen is told.
    #[track_caller]
    fn check(
        name: ModelName,
        ctx: Option<usize>,
        asked: (Option<u64>, Option<CacheType>),
        expected: Option<(CacheType, bool)>,
    ) {
        let found = opened_with(name, ctx, asked);
        let told = found.as_ref().ok().and_then(Opened::chosen_cache);
        let chosen =
            asked.1.is_none() && expected.is_some_and(|(cache, _)| cache == CacheType::Q8_0);
        assert_eq!(told.is_some(), chosen, "{asked:?}: {told:?}");
        let holds = |opened: &Opened| (opened.model().cache_type(), opened.partly().is_some());
        assert_eq!(found.as_ref().ok().map(holds), expected, "{asked:?}");
        if let Err(error) = found {
            assert!(matches!(error, EngineError::NoRoom(_)), "{error}");
        }
    }

    #[test]
    fn a_cache_has_codes_if_asked_for_or_where_a_dense_model_has_no_room_in_f16() {
        use CacheType::{F16, Q8_0};
        let [whole, with_codes] = totals(ModelName::TinyYoutu, 4096);
        assert!(with_codes < whole);
        for (memory, asked, expected) in [
            (None, None, Some(F16)),
            (Some(whole), None, Some(F16)),
            (Some(whole - 1), None, Some(Q8_0)),
            (Some(with_codes), None, Some(Q8_0)),
            (Some(with_codes), Some(Q8_0), Some(Q8_0)),
            (Some(whole - 1), Some(F16), None),
            (Some(with_codes - 1), None, None),
        ] {
            let expected = expected.map(|cache| (cache, false));
            let name = ModelName::TinyYoutu;
            check(name, Some(4096), (memory, asked), expected);
            check(name, None, (memory, asked), expected);
        }
    }

    #[test]
    fn a_cache_has_codes_rather_than_experts_leave_the_device() {
        use CacheType::{F16, Q8_0};
        let [whole, with_codes] = totals(ModelName::TinyGlm, 4096);
        for (memory, asked, expected) in [
            (whole, None, (F16, false)),
            (whole - 1, None, (Q8_0, false)),
            (with_codes, None, (Q8_0, false)),
            (whole - 1, Some(F16), (F16, true)),
            // Experts leave the device with either, so the cache stays as it is.
            (with_codes - 1, None, (F16, true)),
            (with_codes - 1, Some(Q8_0), (Q8_0, true)),
        ] {
            let asked = (Some(memory), asked);
            check(ModelName::TinyGlm, Some(4096), asked, Some(expected));
        }
    }
}
