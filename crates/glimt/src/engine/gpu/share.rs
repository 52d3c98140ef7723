//! The choice of the CPU's share of missing experts. Layers are timed with each share, and tokens with the best one and without. Layers alone
//! tell too little: they promised shares that made tokens slower (benches/results/h200-2026-11-27-beyond.txt).

use super::GpuBackend;
use super::answered::Answering;
use super::by_host::ByHost;
use super::model::GpuModel;
use crate::engine::backend::{Backend, BackendError};
use crate::engine::random::random_tokens;
use crate::engine::share::{CpuShare, Layers, Share, ShareTimes, WORTH, split};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::mark;
use crate::kernels::sampling::Sampling;
use crate::model::Ffn;
use crate::recipes::{HostShare, Residence};
use std::ops::ControlFlow;
use std::sync::Arc;
use web_time::Instant;
use wgpu::BufferUsages;

/// Layers that are timed one after another, as steps have them.
const LAYERS: usize = 8;
/// Dispatches of a layer that wait for each other, beside which nothing is brought.
const WAITS: usize = 24;
/// Rounds, of which the fastest counts.
const ROUNDS: usize = 4;
/// Tokens that are timed.
const TOKENS: usize = 10;

impl GpuModel {
    /// Gives the CPU its share of the experts that tokens of sessions which are made from now on miss. A token takes `seconds` without it, if
    /// that is known.
    ///
    /// # Errors
    /// [`GpuError::CannotShare`] for a number of experts that is asked for and not possible, or what the device reports.
    pub async fn share_with_cpu(
        &mut self,
        asked: CpuShare,
        seconds: Option<f64>,
    ) -> Result<(), GpuError> {
        self.share = match (asked, self.residence) {
            (CpuShare::Off, _) | (CpuShare::Auto, Residence::Whole) => None,
            (CpuShare::Experts(_), _) if self.model.config().experts.is_none() => {
                Some(Share::none("the model has no experts".to_owned()))
            }
            (CpuShare::Experts(_), Residence::Whole) => {
                Some(Share::none("all experts lie on the GPU".to_owned()))
            }
            (CpuShare::Auto, Residence::File(_) | Residence::OneByOne(_)) => None,
            (CpuShare::Experts(experts), Residence::File(_) | Residence::OneByOne(_)) => {
                return Err(cannot(experts, "the experts come from the file".to_owned()));
            }
            (asked, Residence::Slots(slots)) => {
                Some(self.choose_share(asked, slots, seconds).await?)
            }
        };
        Ok(())
    }

    async fn choose_share(
        &mut self,
        asked: CpuShare,
        slots: u32,
        seconds: Option<f64>,
    ) -> Result<Share, GpuError> {
        let Some(experts) = self.model.config().experts.as_ref() else {
            return Ok(Share::none("the model has no experts".to_owned()));
        };
        let (used, count) = (experts.used, experts.count);
        if let CpuShare::Experts(experts) = asked
            && experts as usize > used
        {
            return Err(cannot(
                experts,
                format!("a token has {used} experts of a layer"),
            ));
        }
        let width = self.model.config().embedding_length as u64;
        let sum = Range::floats("sum of the host's experts", width);
        let Some(mut by_host) = ByHost::new(&self.gpu, &self.weights, sum.clone()).await? else {
            let because = "the backend gives the processor no way to the memory that shaders read";
            return match asked {
                CpuShare::Experts(experts) => Err(cannot(experts, because.to_owned())),
                _ => Ok(Share::none(because.to_owned())),
            };
        };
        let mut share = Share {
            experts: 0,
            used: used as u32,
            instructions: by_host.instructions(),
            times: None,
            saves: None,
            because: None,
        };
        if let CpuShare::Experts(experts) = asked {
            share.experts = experts;
        } else if self.gpu.info.device_type == wgpu::DeviceType::Cpu {
            return Ok(Share::none(
                "the GPU is software on the CPU itself".to_owned(),
            ));
        } else {
            let times = self.times(&mut by_host, used).await?;
            let layers = Layers {
                count: by_host.layers().count(),
                slots: if (slots as usize) < used {
                    0
                } else {
                    slots as usize
                },
                experts: count,
                used,
            };
            let (best, saves) = layers.best(&times, seconds);
            (share.experts, share.saves) = (best as u32, Some(saves));
            if best == 0 {
                share.because = Some(too_little(saves));
            }
            share.times = Some(times);
        }
        if share.experts == 0 {
            return Ok(share);
        }
        let split = split(used, share.experts as usize);
        let of_host = HostShare {
            split: Range::whole(&Buffer::with("split of missing experts", &split)),
            sum,
        };
        self.take_share(share, of_host, by_host, asked == CpuShare::Auto)
            .await
    }

    /// Has steps have this `share`; if it is `tried`, only if tokens are faster with it by enough.
    async fn take_share(
        &mut self,
        mut share: Share,
        of_host: HostShare,
        by_host: ByHost,
        tried: bool,
    ) -> Result<Share, GpuError> {
        let without = match tried {
            true => self.time_tokens().await?,
            false => None,
        };
        if !self.set_share(Some(&of_host)) {
            return Ok(Share::none("sessions use the model already".to_owned()));
        }
        // The host's experts are in no slot, so the tables of slots hold whatever becomes of an answer.
        let answering = Answering::new(&self.gpu, Box::new(by_host), vec![]).await?;
        self.answering = Some(Arc::new(answering));
        if tried {
            let saves = match (without, self.time_tokens().await?) {
                (Some(without), Some(with)) => 1.0 - with / without,
                _ => 0.0,
            };
            share.saves = Some(saves);
            if saves < WORTH {
                self.set_share(None);
                self.answering = None;
                share.experts = 0;
                share.because = Some(too_little(saves));
            }
        }
        Ok(share)
    }

    /// Has steps of sessions that are made from now on have this share, unless sessions use the model already.
    fn set_share(&mut self, share: Option<&HostShare>) -> bool {
        Arc::get_mut(&mut self.weights).is_some_and(|weights| {
            weights.share(share);
            true
        })
    }

    /// The microseconds of a token of random text; `None` if the model gives no text.
    pub(super) async fn time_tokens(&self) -> Result<Option<f64>, GpuError> {
        let before = self.gpu.allocated();
        let model = Self {
            gpu: Arc::clone(&self.gpu),
            model: Arc::clone(&self.model),
            residence: self.residence,
            weights: Arc::clone(&self.weights),
            answering: self.answering.clone(),
            share: None,
            tier_trial: None,
            precomposed: None,
        };
        let timed = time_tokens_of(model).await;
        self.gpu.count_dropped(before);
        match timed {
            Ok(us) => Ok(Some(us)),
            Err(BackendError::Gpu(error)) => Err(*error),
            Err(_) => Ok(None),
        }
    }

    /// The times of layers that miss some of the `used` experts of a token.
    pub(super) async fn times(
        &self,
        by_host: &mut ByHost,
        used: usize,
    ) -> Result<ShareTimes, GpuError> {
        let mut chain = Chain::new(self, by_host, used).await?;
        let mut by_bus = vec![];
        for misses in 0..=used {
            by_bus.push(chain.fastest(misses, None).await?);
        }
        let computing = by_bus[0];
        let mut with_host = vec![];
        for misses in 0..=used {
            let mut times = vec![];
            for of_cpu in 0..=misses {
                let us = chain.fastest(misses - of_cpu, Some(of_cpu)).await?;
                times.push((us - computing).max(0.0));
            }
            with_host.push(times);
        }
        for us in &mut by_bus {
            *us = (*us - computing).max(0.0);
        }
        Ok(ShareTimes { by_bus, with_host })
    }
}

/// Layers that do nothing but wait, and bring experts.
struct Chain<'a> {
    gpu: &'a Gpu,
    by_host: &'a mut ByHost,
    /// The numbers of the layers with their experts, and of each the copies of 1 and more of these.
    layers: Vec<(usize, usize, Vec<Recording>)>,
    /// What a layer computes.
    computing: Recording,
    /// What it tells the host, and where the host reads that.
    told: Buffer,
    back: wgpu::Buffer,
    /// The stream.
    x: Vec<f32>,
    /// The next expert, so that no cache holds it.
    next: usize,
}

impl<'a> Chain<'a> {
    async fn new(
        model: &'a GpuModel,
        by_host: &'a mut ByHost,
        used: usize,
    ) -> Result<Self, GpuError> {
        let (gpu, body) = (&model.gpu, &model.weights.body);
        let mut layers = vec![];
        for (i, experts) in by_host.layers().take(LAYERS).collect::<Vec<_>>() {
            let (Ffn::Moe(moe), Some(Some(rooms))) = (&body.layers[i].ffn, body.rooms.get(i))
            else {
                continue;
            };
            let mut copies = vec![];
            for n in 1..=used {
                let calls = rooms.copies_to_time(&moe.experts, n as u32);
                copies.push(Recording::new(gpu, &Step::of(Most::token(1), calls)).await?);
            }
            layers.push((i, experts, copies));
        }
        let told = gpu.storage("told words", 16, Role::Words).await?;
        let waits = vec![mark::call(&Range::whole(&told)); WAITS];
        Ok(Self {
            gpu,
            by_host,
            layers,
            computing: Recording::new(gpu, &Step::of(Most::token(1), waits)).await?,
            back: gpu
                .buffer(
                    "an answer",
                    16,
                    BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                )
                .await?,
            told,
            x: vec![1.0; model.model.config().embedding_length],
            next: 0,
        })
    }

    /// The microseconds of a layer for which the bus brings so many experts while the host, if it answers, multiplies `of_cpu`.
    async fn fastest(&mut self, of_bus: usize, of_cpu: Option<usize>) -> Result<f64, GpuError> {
        let mut fastest = f64::INFINITY;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for layer in 0..self.layers.len() {
                self.layer(layer, of_bus, of_cpu).await?;
            }
            self.gpu.done().await?;
            let us = began.elapsed().as_secs_f64() * 1e6;
            fastest = fastest.min(us / self.layers.len().max(1) as f64);
        }
        Ok(fastest)
    }

    async fn layer(
        &mut self,
        layer: usize,
        of_bus: usize,
        of_cpu: Option<usize>,
    ) -> Result<(), GpuError> {
        let (gpu, state) = (self.gpu, State::default());
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        self.computing.encode(gpu, &mut encoder, &state);
        encoder.copy_buffer_to_buffer(self.told.made(), 0, &self.back, 0, 16);
        let asked = gpu.queue.submit([encoder.finish()]);
        let (i, experts, copies) = &self.layers[layer];
        if let Some(copies) = of_bus.checked_sub(1).and_then(|n| copies.get(n)) {
            copies.submit(gpu, &state);
        }
        let Some(of_cpu) = of_cpu else {
            return Ok(());
        };
        gpu.map_read::<u32>(&self.back, 16, Some(asked)).await?;
        if of_cpu > 0 {
            let chosen: Vec<_> = (0..of_cpu)
                .map(|k| ((self.next + k) % experts, 1.0))
                .collect();
            self.next += of_cpu;
            self.by_host.multiply(*i, &self.x, &chosen)?;
            gpu.queue.write_buffer(self.told.made(), 0, &[0; 16]);
        }
        Ok(())
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.gpu.release_made(&self.back);
        self.gpu.release(&self.told);
    }
}

/// The microseconds of a token of random text by this model.
async fn time_tokens_of(model: GpuModel) -> Result<f64, BackendError> {
    let vocab = model.model.config().vocab_size;
    let context = random_tokens(1, vocab);
    let mut backend = GpuBackend::with_chunk(Arc::new(model), 2 * TOKENS, Some(1)).await?;
    // Text that repeats itself would choose the same experts.
    let sampling = Sampling {
        temperature: 2.0,
        ..Sampling::GREEDY
    };
    let mut us = 0.0;
    // The first time compiles and wakes what the second one needs.
    for _ in 0..2 {
        backend.prefill(&context, 0).await?;
        let began = Instant::now();
        let go_on = &mut |_| ControlFlow::Continue(());
        backend.decode(&context, &sampling, TOKENS, go_on).await?;
        us = began.elapsed().as_secs_f64() * 1e6 / TOKENS as f64;
    }
    Ok(us)
}

/// Why a share that saves this part of a token's time is not taken.
fn too_little(saves: f64) -> String {
    match saves > 0.0 {
        true => format!("it would save {:.0}% of a token's time", 100.0 * saves),
        false => "tokens would not be faster".to_owned(),
    }
}

/// The error that the CPU cannot multiply so many experts, for this reason.
fn cannot(experts: u32, because: String) -> GpuError {
    GpuError::CannotShare { experts, because }
}
