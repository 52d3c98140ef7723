//! Whether a model and its context have room in memory, told before anything is loaded.

use super::cpu::CHUNK;
use super::device::Device;
use super::error::NoRoom;
use super::gpu::MemoryPlan;
use super::gpu::batch::step_tokens;
use super::gpu::prompt::chunk as prompt_chunk;
use super::{DEFAULT_CONTEXT, EngineError, Serving};
use crate::gpu::{GpuError, Target};
use crate::kernels::sequences::PAGE;
use crate::models::Model;
use crate::recipes::BatchSizes;

/// The longest context that a model which thinks gets where none is asked for: thoughts often take thousands of tokens.
const THINKING_CONTEXT: usize = 32768;
/// The sequences at once on the CPU where no number is asked for.
const SEQUENCES_OF_CPU: u32 = 8;
/// The step in which contexts are told, in tokens.
const STEP: usize = 256;

/// The memory that a model and a context take, and the memory that there is.
struct Room {
    plan: MemoryPlan,
    /// Bytes that the device or the machine has; `None` where nothing tells.
    has: Option<u64>,
}

/// The device on which a model is to run, as far as its memory matters.
#[derive(Debug, Clone, Copy)]
pub enum Site<'a> {
    /// The CPU.
    Cpu,
    /// A GPU, which may be planned only, and the bytes that it tells.
    Gpu(&'a Target, Option<u64>),
}

impl<'a> Site<'a> {
    pub(super) fn of(device: &'a Device) -> Self {
        match device {
            Device::Cpu { .. } => Self::Cpu,
            Device::Gpu(gpu) => Self::Gpu(gpu, gpu.memory),
        }
    }

    /// The name of the device in messages about memory.
    fn name(self) -> String {
        match self {
            Self::Cpu => "this machine".to_owned(),
            Self::Gpu(target, _) => target.name.clone(),
        }
    }
}

/// A model and where it is to run, with prompts in chunks of `ubatch` tokens.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The device on which it is to run.
    pub site: Site<'a>,
    /// The model.
    pub model: &'a dyn Model,
    /// Tokens of a chunk, if asked for.
    pub ubatch: Option<u32>,
    /// Whether `-c` says how long the context is.
    pub has_flag: bool,
}

impl Room {
    /// Whether there is enough memory, as far as anything tells.
    fn is_enough(&self) -> bool {
        self.has.is_none_or(|has| self.plan.total() <= has)
    }
}

impl Place<'_> {
    /// The memory that a context of `n_ctx` tokens takes, and the memory that there is.
    fn room(&self, n_ctx: usize) -> Result<Room, EngineError> {
        let (plan, memory) = match self.site {
            // More weights than there is memory would be read from the disk for every token.
            Site::Cpu => (MemoryPlan::on_cpu(self.model, n_ctx), None),
            Site::Gpu(target, memory) => {
                let plan = MemoryPlan::new(target, self.model, n_ctx, self.ubatch)?;
                (plan, memory)
            }
        };
        let has = available(memory);
        Ok(Room { plan, has })
    }

    /// Refuses a context that has no room.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`], or what loading the model there would refuse.
    pub fn check(&self, n_ctx: usize) -> Result<(), EngineError> {
        let room = match self.room(n_ctx) {
            // Something is too large for one binding. A shorter context helps if it is the cache of a layer, or a chunk of the prompt, which
            // is never longer than the context.
            Err(EngineError::Gpu(error @ GpuError::BindingTooLarge { .. })) => {
                return Err(match self.longest(n_ctx)? {
                    Some(fitting) => EngineError::ContextUnbound {
                        reason: error.to_string(),
                        advice: fitting_context(fitting, self.has_flag),
                    },
                    None => error.into(),
                });
            }
            room => room?,
        };
        let Some(has) = room.has.filter(|_| !room.is_enough()) else {
            return Ok(());
        };
        let advice = match self.longest(n_ctx)? {
            Some(fitting) => fitting_context(fitting, self.has_flag),
            None => {
                let parameters: u64 = (self.model.gguf().tensors().iter())
                    .map(|t| t.element_count())
                    .sum();
                let bits = |bytes: u64| 8.0 * bytes as f64 / parameters.max(1) as f64;
                let least = self.room(STEP.min(n_ctx))?;
                let left = has.saturating_sub(least.plan.total() - least.plan.weights);
                format!(
                    "no context does; a quantisation of {:.1} bits a weight would, this one has {:.1}",
                    bits(left),
                    bits(room.plan.weights)
                )
            }
        };
        Err(EngineError::from(Box::new(NoRoom {
            needed: size(room.plan.total()),
            weights: size(room.plan.weights),
            n_ctx,
            cache: size(room.plan.cache),
            device: self.site.name(),
            has: size(has),
            advice,
        })))
    }

    /// The context where none is asked for. A model that may think gets the longest one that has room, up to [`THINKING_CONTEXT`].
    pub(super) fn default_context(&self, thinks: bool) -> Result<usize, EngineError> {
        let most = self.model.config().context_length;
        let usual = most.min(DEFAULT_CONTEXT);
        if !thinks {
            return Ok(usual);
        }
        let longest = self.longest(most.min(THINKING_CONTEXT))?;
        Ok(longest.map_or(usual, |n_ctx| n_ctx.max(usual)))
    }

    /// Whether a context of `n_ctx` tokens has room.
    fn fits(&self, n_ctx: usize) -> Result<bool, EngineError> {
        match self.room(n_ctx) {
            Err(EngineError::Gpu(GpuError::BindingTooLarge { .. })) => Ok(false),
            room => Ok(room?.is_enough()),
        }
    }

    /// The longest context up to `most` that has room; `None` where not even the shortest does.
    fn longest(&self, most: usize) -> Result<Option<usize>, EngineError> {
        longest(most, &|n_ctx| self.fits(n_ctx))
    }
}

/// The sizes of the steps of several sequences. Where nothing is asked for, the cache has what all sequences need at most, or what there is
/// memory for.
///
/// # Errors
/// [`EngineError::NoRoom`] for a cache that was asked for, unless it is to be forced, or what loading the model there would refuse.
pub(super) fn batch_sizes(
    device: &Device,
    model: &dyn Model,
    n_ctx: usize,
    serving: Serving,
    ubatch: Option<u32>,
    force: bool,
) -> Result<BatchSizes, EngineError> {
    let usual = match device {
        Device::Cpu { .. } => SEQUENCES_OF_CPU,
        Device::Gpu(_) => Serving::MOST,
    };
    let sequences = serving.parallel.unwrap_or(usual).clamp(1, Serving::MOST);
    let of_one = n_ctx.div_ceil(PAGE as usize);
    let [tokens, chunk] = match device {
        Device::Cpu { .. } => [CHUNK as u32; 2],
        Device::Gpu(gpu) => {
            let sessions = model.place(gpu)?.weights.untried(gpu);
            let tokens = step_tokens(gpu, &sessions, Serving::MOST);
            [tokens, prompt_chunk(gpu, &sessions, n_ctx, ubatch)?]
        }
    };
    let of_pages = |pages: usize| BatchSizes {
        n_ctx,
        pages: u32::try_from(pages).unwrap_or(u32::MAX / PAGE),
        sequences,
        tokens,
        chunk,
    };
    let (plan, has, max_binding) = match device {
        Device::Cpu { .. } => (MemoryPlan::on_cpu(model, n_ctx), available(None), u64::MAX),
        Device::Gpu(gpu) => {
            let plan = MemoryPlan::of_batch(gpu, model, of_pages(of_one))?;
            (plan, available(gpu.memory), gpu.max_binding)
        }
    };
    let page = plan.cache_per_token.max(1) * u64::from(PAGE);
    let others = plan.weights + plan.scratch;
    // A cache of all layers has one binding for each.
    let layers = model.config().block_count.max(1) as u64;
    let bound = (max_binding.saturating_mul(layers) / page) as usize;
    let room = |has: u64| (has.saturating_sub(others) / page) as usize;
    if let Some(asked) = serving.cache_tokens {
        let pages = asked.div_ceil(PAGE as usize).max(1);
        let most = has.map_or(bound, |has| room(has).min(bound));
        if pages > most && !(force && pages <= bound) {
            let rows = pages * PAGE as usize;
            return Err(EngineError::from(Box::new(NoRoom {
                needed: size(others + page * pages as u64),
                weights: size(plan.weights),
                n_ctx: rows,
                cache: size(page * pages as u64),
                device: Site::of(device).name(),
                has: size(has.unwrap_or(page * bound as u64)),
                advice: format!("--cache-tokens {} fits", most * PAGE as usize),
            })));
        }
        return Ok(of_pages(pages));
    }
    // Some is left for what else uses the memory, which on the CPU is every program.
    let most = has.map_or(bound, |has| match device {
        Device::Cpu { .. } => room(has - has / 10) / 2,
        Device::Gpu(_) => room(has - has / 10).min(bound),
    });
    let all = of_one * sequences as usize;
    Ok(of_pages(all.min(most).max(of_one)))
}

/// Checks like `Place::check`, on a GPU and with prompts in chunks as usual, for commands that have no flag for the context.
///
/// # Errors
/// The errors of `Place::check`.
#[cfg(not(target_arch = "wasm32"))]
pub fn check_gpu(
    gpu: &crate::gpu::Gpu,
    model: &dyn Model,
    n_ctx: usize,
) -> Result<(), EngineError> {
    let place = Place {
        site: Site::Gpu(gpu, gpu.memory),
        model,
        ubatch: None,
        has_flag: false,
    };
    place.check(n_ctx)
}

/// The advice to take a context of `tokens` tokens, by the flag if there is one.
fn fitting_context(tokens: usize, has_flag: bool) -> String {
    let flag = match has_flag {
        true => format!(": -c {tokens}"),
        false => String::new(),
    };
    format!("a context of {tokens} tokens fits{flag}")
}

/// The longest context up to `most` that `fits`, in steps of 256 tokens; `None` where not even the shortest does.
fn longest(
    most: usize,
    fits: &dyn Fn(usize) -> Result<bool, EngineError>,
) -> Result<Option<usize>, EngineError> {
    if fits(most)? {
        return Ok(Some(most));
    }
    // Below the first number it fits, at the second it does not.
    let (mut low, mut high) = (0, most.div_ceil(STEP));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle * STEP)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok((low > 0).then_some(low * STEP))
}

/// The bytes that a model may take: its device's `memory`, or the system's if the device tells nothing.
pub fn available(memory: Option<u64>) -> Option<u64> {
    memory.or_else(system_memory)
}

/// Bytes of memory that the process may use: the machine's, or what a container leaves of it.
fn system_memory() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let limit = system.cgroup_limits().map(|limits| limits.total_memory);
    let total = system.total_memory();
    let least = limit.map_or(total, |limit| limit.min(total));
    (least > 0).then_some(least)
}

/// `bytes` as `17.2 GiB`, or as MiB where they are few.
fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes {
        GIB.. => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        _ => format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::gpu::wait::Wait;
    use crate::gpu::{Gpu, GpuOptions};
    use crate::models;
    use std::sync::Arc;

    #[test]
    fn the_longest_context_that_fits_is_found() {
        for limit in [0, 255, 256, 257, 1000, 4096, 5000, 9999, 10_000, 20_000] {
            let found = longest(10_000, &|n_ctx| Ok(n_ctx <= limit)).expect("it fits or not");
            let expected = match limit {
                0..256 => None,
                256..10_000 => Some(limit / STEP * STEP),
                _ => Some(10_000),
            };
            assert_eq!(found, expected, "{limit}");
        }
    }

    #[test]
    fn the_machine_tells_its_memory() {
        let bytes = system_memory().expect("every system that tests run on tells");
        assert!((1 << 28..1 << 50).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_cache_of_many_takes_what_memory_leaves() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let model = models::load(Arc::new(gguf)).expect("it is supported");
        let open = |max_memory| {
            let options = GpuOptions {
                max_memory,
                ..GpuOptions::default()
            };
            Arc::new(
                Gpu::open(&options)
                    .wait()
                    .expect("these tests need a GPU adapter"),
            )
        };
        let serving = |cache_tokens| Serving {
            parallel: Some(8),
            cache_tokens,
        };
        let gpu = open(None);
        let of_pages = |pages| BatchSizes {
            n_ctx: 250,
            pages,
            sequences: 8,
            tokens: gpu.machine.tuned.batch_tokens,
            chunk: 250,
        };
        let plan = MemoryPlan::of_batch(&gpu, &*model, of_pages(4)).expect("it fits");
        let found = |gpu: &Arc<Gpu>, cache_tokens| {
            let device = Device::Gpu(Arc::clone(gpu));
            batch_sizes(&device, &*model, 250, serving(cache_tokens), None, false)
        };
        assert_eq!(found(&gpu, None).expect("it fits"), of_pages(32));
        // A tenth of the memory is left alone.
        let page = plan.cache_per_token * u64::from(PAGE);
        let needed = plan.weights + plan.scratch + 20 * page + page / 2;
        let small = open(Some(needed * 10 / 9 + 1));
        assert_eq!(found(&small, None).expect("it fits"), of_pages(20));
        let asked = found(&small, Some(1000)).expect("it fits");
        assert_eq!(asked, of_pages(16));
        let refused = found(&small, Some(1 << 20)).expect_err("there is not so much");
        assert!(refused.to_string().contains("--cache-tokens"), "{refused}");
        let cpu = Device::Cpu { because: None };
        let of_cpu = |n_ctx| {
            let sizes = batch_sizes(&cpu, &*model, n_ctx, serving(None), None, false);
            let sizes = sizes.expect("there is nothing to refuse");
            (sizes.sequences, sizes.rows())
        };
        assert_eq!(of_cpu(250), (8, 8 * 256));
        let most = available(None).expect("the machine tells it") / model.cache_bytes_per_token();
        let (sequences, rows) = of_cpu(most as usize / 4);
        assert_eq!(sequences, 8);
        assert!(rows < most as usize / 2, "it is half of the memory at most");
    }

    #[test]
    fn a_model_that_thinks_gets_what_has_room() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let model = models::load(Arc::new(gguf)).expect("it is supported");
        let cpu = Device::Cpu { because: None };
        let place = Place {
            site: Site::of(&cpu),
            model: &*model,
            ubatch: None,
            has_flag: true,
        };
        let context = |thinks| place.default_context(thinks).expect("it has room");
        // The built-in model was made for no more.
        assert_eq!([context(true), context(false)], [2048, 2048]);
        let room = place.room(2048).expect("it is read in place");
        assert!(room.is_enough());
        assert_eq!(room.plan.cache, model.cache_bytes_per_token() * 2048);
        let small = Room {
            has: Some(room.plan.total() - 1),
            ..room
        };
        assert!(!small.is_enough());
    }
}
