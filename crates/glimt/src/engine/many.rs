//! The room of several sequences: how many rows of the cache they share, and where the experts lie.

use super::cpu::CHUNK;
use super::device::Device;
use super::draft::DraftOptions;
use super::elsewhere::{AtOnce, Elsewhere, FEWER_OF_MANY, Memory};
use super::error::NoRoom;
use super::gpu::MemoryPlan;
use super::gpu::batch::step_tokens;
use super::gpu::prompt::chunk as prompt_chunk;
use super::host::{Host, size};
use super::partly::{Experts, Partly};
use super::room::{expected, too_slow};
use super::{EngineError, Serving};
use crate::gpu::Gpu;
use crate::kernels::sequences::PAGE;
use crate::models::Model;
use crate::recipes::{BatchSizes, Residence, few};

/// The sequences at once on the CPU where no number is asked for.
const SEQUENCES_OF_CPU: u32 = 8;
/// The most drafts of a step on the CPU, where one more row costs nearly as much as the first.
const DRAFTS_OF_CPU: u32 = 31;

/// The steps of several sequences that have room.
pub(super) struct Many {
    /// The sizes of the steps.
    pub(super) sizes: BatchSizes,
    /// Where the experts lie, if not on the device with all else.
    pub(super) partly: Option<Partly>,
}

/// The model, its device and what is asked for, while the room of several sequences is sought.
struct Sought<'a> {
    gpu: &'a Gpu,
    model: &'a dyn Model,
    /// The sizes, of which the pages are to be found.
    sizes: BatchSizes,
    memory: Memory,
    /// Pages of the cache that were asked for.
    asked: Option<usize>,
    /// Whether steps may have fewer tokens than usual, if experts from the file have no room otherwise.
    may_shrink: bool,
    /// Pages of the context of one sequence.
    of_one: usize,
    /// The plan with all of the model on the device and a cache for one sequence.
    whole: MemoryPlan,
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
    (serving, draft): (Serving, DraftOptions),
    ubatch: Option<u32>,
    force: bool,
) -> Result<Many, EngineError> {
    let drafts = |most: u32| most.min(draft.most(false));
    let Device::Gpu(gpu) = device else {
        return of_cpu(model, n_ctx, (serving, drafts(DRAFTS_OF_CPU)), force);
    };
    let sessions = model.place(gpu, Residence::Whole)?.weights.untried(gpu);
    let sizes = BatchSizes {
        n_ctx,
        pages: n_ctx.div_ceil(PAGE as usize) as u32,
        sequences: sequences(serving, Serving::MOST),
        tokens: step_tokens(gpu, &sessions, Serving::MOST),
        chunk: prompt_chunk(gpu, &sessions, n_ctx, ubatch)?,
        drafts: drafts(few::most_drafts(gpu, true)),
    };
    let asked = serving.cache_tokens;
    let asked = asked.map(|asked| asked.div_ceil(PAGE as usize).max(1));
    let sought = Sought {
        may_shrink: ubatch.is_none(),
        ..Sought::new(gpu, model, sizes, asked)?
    };
    if !force && let Some(many) = sought.partly()? {
        return Ok(many);
    }
    Ok(Many {
        sizes: sought.all_resident(force)?,
        partly: None,
    })
}

/// The number of sequences at once.
fn sequences(serving: Serving, usual: u32) -> u32 {
    serving.parallel.unwrap_or(usual).clamp(1, Serving::MOST)
}

/// The sizes on the CPU, whose memory all programs share: unless it is asked for, the cache takes half of what the weights leave at most.
fn of_cpu(
    model: &dyn Model,
    n_ctx: usize,
    (serving, drafts): (Serving, u32),
    force: bool,
) -> Result<Many, EngineError> {
    let plan = MemoryPlan::on_cpu(model, n_ctx);
    let page = plan.cache_per_token.max(1) * u64::from(PAGE);
    let others = plan.weights + plan.scratch;
    let has = Host::here().total;
    let room = |has: u64| (has.saturating_sub(others) / page) as usize;
    let sequences = sequences(serving, SEQUENCES_OF_CPU);
    let of_one = n_ctx.div_ceil(PAGE as usize);
    let pages = match serving.cache_tokens {
        Some(asked) => {
            let pages = asked.div_ceil(PAGE as usize).max(1);
            let most = has.map_or(usize::MAX, room);
            if pages > most && !force {
                return Err(EngineError::from(Box::new(NoRoom {
                    needed: size(others + page * pages as u64),
                    weights: size(plan.weights),
                    n_ctx: pages * PAGE as usize,
                    cache: size(page * pages as u64),
                    device: "this machine".to_owned(),
                    has: size(has.unwrap_or_default()),
                    but: String::new(),
                    advice: format!("--cache-tokens {} fits", most * PAGE as usize),
                })));
            }
            pages
        }
        None => {
            let most = has.map_or(usize::MAX, |has| room(has - has / 10) / 2);
            (of_one * sequences as usize).min(most).max(of_one)
        }
    };
    Ok(Many {
        sizes: BatchSizes {
            n_ctx,
            pages: u32::try_from(pages).unwrap_or(u32::MAX / PAGE),
            sequences,
            tokens: CHUNK as u32,
            chunk: CHUNK as u32,
            drafts,
        },
        partly: None,
    })
}

/// Where the experts of `model` lie for steps of `sequences` sequences of up to `n_ctx` tokens that share `pages` of a cache: `None` is on the
/// device with all else.
///
/// # Errors
/// [`EngineError::NoRoom`], or what loading the model there would refuse.
#[cfg(not(target_arch = "wasm32"))]
pub fn partly_of_many(
    gpu: &Gpu,
    model: &dyn Model,
    n_ctx: usize,
    sequences: u32,
    pages: u32,
) -> Result<Option<Partly>, EngineError> {
    let sessions = model.place(gpu, Residence::Whole)?.weights.untried(gpu);
    let sizes = BatchSizes {
        n_ctx,
        pages,
        sequences,
        tokens: step_tokens(gpu, &sessions, Serving::MOST),
        chunk: 0,
        drafts: 0,
    };
    let sought = Sought {
        may_shrink: true,
        ..Sought::new(gpu, model, sizes, Some(pages as usize))?
    };
    Ok(sought.partly()?.and_then(|many| many.partly))
}

impl<'a> Sought<'a> {
    fn new(
        gpu: &'a Gpu,
        model: &'a dyn Model,
        sizes: BatchSizes,
        asked: Option<usize>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            gpu,
            model,
            sizes,
            memory: Memory::of(gpu),
            asked,
            may_shrink: false,
            of_one: sizes.n_ctx.div_ceil(PAGE as usize),
            whole: MemoryPlan::of_batch(gpu, model, Residence::Whole, sizes)?,
        })
    }

    fn of_pages(&self, pages: usize) -> BatchSizes {
        BatchSizes {
            pages: u32::try_from(pages).unwrap_or(u32::MAX / PAGE),
            ..self.sizes
        }
    }

    /// Sizes with so many tokens of a step.
    fn of_tokens(&self, pages: usize, at_once: AtOnce) -> BatchSizes {
        let sizes = self.of_pages(pages);
        let most = at_once.unwrap_or(u32::MAX);
        BatchSizes {
            tokens: sizes.tokens.min(most),
            chunk: sizes.chunk.min(most),
            ..sizes
        }
    }

    fn plan(
        &self,
        residence: Residence,
        pages: usize,
        at_once: AtOnce,
    ) -> Result<MemoryPlan, EngineError> {
        let sizes = self.of_tokens(pages, at_once);
        Ok(MemoryPlan::of_batch(
            self.gpu, self.model, residence, sizes,
        )?)
    }

    /// Bytes of a page.
    fn page(&self) -> u64 {
        self.whole.cache_per_token.max(1) * u64::from(PAGE)
    }

    /// Pages of a cache that has one binding for each layer.
    fn bound(&self) -> usize {
        let layers = self.model.config().block_count.max(1) as u64;
        (self.gpu.max_binding.saturating_mul(layers) / self.page()) as usize
    }

    /// Pages that have room in `has` bytes beside all else of a plan.
    fn beside(&self, plan: &MemoryPlan, has: u64) -> usize {
        let others = plan.weights + plan.scratch;
        let room = (has.saturating_sub(others) / self.page()) as usize;
        room.min(self.bound())
    }

    /// Pages that all sequences need at most.
    fn all(&self) -> usize {
        self.of_one * self.sizes.sequences as usize
    }

    /// The sizes if all of the model lies on the device.
    fn all_resident(&self, force: bool) -> Result<BatchSizes, EngineError> {
        let (has, bound) = (self.memory.has(), self.bound());
        let most = |has| self.beside(&self.whole, has);
        if let Some(pages) = self.asked {
            let most = has.map_or(bound, most);
            if pages > most && !(force && pages <= bound) {
                return Err(self.refusal(pages, &self.whole, most, String::new()));
            }
            return Ok(self.of_pages(pages));
        }
        // Some is left for what else uses the memory.
        let most = has.map_or(bound, |has| most(has - has / 10));
        Ok(self.of_pages(self.all().min(most).max(self.of_one)))
    }

    /// The room if the model has none on the device beside its cache, but has without its experts. Of what is left there without them, the
    /// cache gets a quarter, unless something else is asked for or one context takes more.
    fn partly(&self) -> Result<Option<Many>, EngineError> {
        let needed = self.asked.unwrap_or(self.of_one);
        let has = self.memory.has();
        let Some(has) = has.filter(|has| self.beside(&self.whole, *has) < needed) else {
            return Ok(None);
        };
        let Some(experts) = Experts::of(self.gpu, self.model)? else {
            return Ok(None);
        };
        let plan = |residence, at_once| self.plan(residence, needed, at_once);
        let tried = match self.may_shrink {
            true => FEWER_OF_MANY,
            false => &FEWER_OF_MANY[..1],
        };
        let found = Elsewhere::find(self.gpu, self.memory, (has, tried), &plan);
        let (way, least, at_once) = match found {
            Elsewhere::At(way, least, at_once) => (way, least, at_once),
            Elsewhere::Nowhere(None, _) => return Ok(None),
            Elsewhere::Nowhere(Some(least), but) => {
                let most = self.beside(&least, has);
                let but = match least.file {
                    0 => but,
                    _ => format!(
                        "{but} in steps of {} tokens, the fewest of a server (generate and chat can compute token by token)",
                        self.of_tokens(needed, tried[tried.len() - 1]).tokens
                    ),
                };
                return Err(self.refusal(needed, &self.whole, most, but));
            }
        };
        let most = self.beside(&least, has);
        let pages = match self.asked {
            Some(asked) if asked > most => {
                return Err(self.refusal(asked, &self.whole, most, String::new()));
            }
            Some(asked) => asked,
            None => self.all().min(most / 4).max(self.of_one),
        };
        let way = way.measured(self.gpu, self.model, self.memory);
        let plan = |slots| self.plan(way.residence(slots, at_once), pages, at_once);
        let found = experts.most_slots(&self.whole, has, &plan)?;
        let Some(found) = found else {
            return Err(self.refusal(pages, &self.whole, most, String::new()));
        };
        let residence = way.residence(found.slots.unwrap_or_default(), at_once);
        let expected = expected(self.gpu, self.model, residence, self.sizes.n_ctx)?;
        let partly = Partly {
            at_once,
            ..Partly::new(self.gpu, experts, &found, &expected, way)
        };
        if let Some(but) = too_slow(&partly, self.memory) {
            return Err(self.refusal(pages, &self.whole, most, but));
        }
        Ok(Some(Many {
            sizes: self.of_tokens(pages, at_once),
            partly: Some(partly),
        }))
    }

    /// The error that a cache of `pages` has no room beside the rest of a plan, where `most` have.
    fn refusal(&self, pages: usize, plan: &MemoryPlan, most: usize, but: String) -> EngineError {
        let cache = self.page() * pages as u64;
        let bound = self.page() * self.bound() as u64;
        EngineError::from(Box::new(NoRoom {
            needed: size(plan.weights + plan.scratch + cache),
            weights: size(plan.weights),
            n_ctx: pages * PAGE as usize,
            cache: size(cache),
            device: self.gpu.info.name.clone(),
            has: size(self.memory.has().unwrap_or(bound)),
            but,
            advice: match most {
                0 if self.sizes.sequences == 1 => "a smaller -c takes less".to_owned(),
                0 => "a smaller --parallel or -c takes less".to_owned(),
                _ => format!("--cache-tokens {} fits", most * PAGE as usize),
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::engine::draft::DraftSource;
    use crate::gpu::GpuOptions;
    use crate::gpu::behind::ExpertsFrom;
    use crate::gpu::wait::Wait;
    use crate::models;
    use std::sync::Arc;

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
        let draft = DraftOptions {
            most: Some(5),
            source: DraftSource::Auto,
        };
        let serving = |cache_tokens| {
            let parallel = Some(8);
            let serving = Serving {
                parallel,
                cache_tokens,
            };
            (serving, draft)
        };
        let gpu = open(None);
        let of_pages = |pages| BatchSizes {
            n_ctx: 250,
            pages,
            sequences: 8,
            tokens: gpu.machine.tuned.batch_tokens,
            chunk: 250,
            drafts: few::most_drafts(&gpu, true).min(5),
        };
        let plan =
            MemoryPlan::of_batch(&gpu, &*model, Residence::Whole, of_pages(4)).expect("it fits");
        let found = |gpu: &Arc<Gpu>, cache_tokens| {
            let device = Device::Gpu(Arc::clone(gpu));
            let many = batch_sizes(&device, &*model, 250, serving(cache_tokens), None, false);
            many.map(|many| many.sizes)
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
        // Fewer tokens at once leave room for experts from the file.
        let from_file = |sizes| MemoryPlan::of_batch(&gpu, &*model, Residence::File(0), sizes);
        let few = BatchSizes {
            tokens: 64,
            chunk: 64,
            ..of_pages(4)
        };
        let [usual, least] =
            [of_pages(4), few].map(|sizes| from_file(sizes).expect("it fits").total());
        let of_file = |memory| {
            let mut gpu = (*open(Some(memory))).clone();
            gpu.experts = ExpertsFrom::File;
            found(&Arc::new(gpu), None)
        };
        for (memory, expected) in [(usual, of_pages(4)), (least, few)] {
            let found = of_file(memory).expect("it fits");
            assert_eq!(found, expected, "{memory} of {usual} and {least}");
        }
        let refused = of_file(least - 1).expect_err("there is a byte too little");
        let expected = format!(
            "{} are needed there without any expert in steps of 64 tokens, the fewest of a server (generate and chat can compute token by token)",
            size(least)
        );
        assert!(refused.to_string().contains(&expected), "{refused}");
    }

    #[test]
    fn the_cache_of_many_on_the_cpu_takes_half_of_the_memory_at_most() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let model = models::load(Arc::new(gguf)).expect("it is supported");
        let cpu = Device::Cpu { because: None };
        let of_cpu = |n_ctx| {
            let serving = Serving {
                parallel: Some(8),
                cache_tokens: None,
            };
            let serving = (serving, DraftOptions::default());
            let many = batch_sizes(&cpu, &*model, n_ctx, serving, None, false);
            let sizes = many.expect("there is nothing to refuse").sizes;
            (sizes.sequences, sizes.rows())
        };
        assert_eq!(of_cpu(250), (8, 8 * 256));
        let total = Host::here().total.expect("the machine tells it");
        let most = total / model.cache_bytes_per_token();
        let (sequences, rows) = of_cpu(most as usize / 4);
        assert_eq!(sequences, 8);
        assert!(rows < most as usize / 2, "it is half of the memory at most");
    }
}
