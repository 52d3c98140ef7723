//! The choice of the CPU's share of missing experts, by what the bus, the CPU and an answer of the host are measured to take.

use super::answered::Answering;
use super::by_host::ByHost;
use super::model::GpuModel;
use crate::engine::share::{CpuShare, Layers, Share, ShareTimes, split};
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::clock;
use crate::gpu::record::Recording;
use crate::gpu::{GpuError, Most, Step};
use crate::kernels::mark;
use crate::model::Ffn;
use crate::recipes::Residence;
use std::sync::Arc;
use web_time::Instant;
use wgpu::BufferUsages;

/// Answers that are timed.
const ANSWERS: usize = 25;
/// Layers whose experts are timed.
const LAYERS: usize = 5;
/// Copies of the experts of a layer that are timed.
const COPIES: usize = 4;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

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
            (CpuShare::Experts(_), Residence::Whole) => {
                Some(Share::none("all experts lie on the GPU".to_owned()))
            }
            (CpuShare::Auto, Residence::File(_)) => None,
            (CpuShare::Experts(experts), Residence::File(_)) => {
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
                share.because = Some(format!(
                    "it would save {:.0}% of a token's time",
                    100.0 * saves.max(0.0)
                ));
            }
            share.times = Some(times);
        }
        if share.experts == 0 {
            return Ok(share);
        }
        let Some(weights) = Arc::get_mut(&mut self.weights) else {
            return Ok(Share::none("sessions use the model already".to_owned()));
        };
        weights.share(&split(used, share.experts as usize), &sum);
        // The host's experts are in no slot, so the tables of slots hold whatever becomes of an answer.
        let answering = Answering::new(&self.gpu, Box::new(by_host), vec![]).await?;
        self.answering = Some(Arc::new(answering));
        Ok(share)
    }

    /// What the bus, the CPU and an answer take.
    pub(super) async fn times(
        &self,
        by_host: &mut ByHost,
        used: usize,
    ) -> Result<ShareTimes, GpuError> {
        let answer = self.time_an_answer().await?;
        let mut bus = vec![];
        let layers: Vec<_> = by_host.layers().take(LAYERS).collect();
        let body = &self.weights.body;
        for (i, _) in &layers {
            if let (Ffn::Moe(moe), Some(Some(rooms))) = (&body.layers[*i].ffn, body.rooms.get(*i)) {
                let calls = rooms.copies_to_time(&moe.experts, used as u32);
                let copies = Recording::new(&self.gpu, &Step::of(Most::token(1), calls)).await?;
                let state = State::default();
                let us = clock::in_turn(&self.gpu, &[(&copies, &state)], COPIES).await?;
                bus.extend(us.into_iter().flatten().map(|us| us / used as f64));
            }
        }
        let x = vec![1.0; self.model.config().embedding_length];
        let mut cpu = vec![0.0];
        for n in 1..=used {
            let mut times = vec![];
            for (i, groups) in &layers {
                // Others in each round, which no cache holds.
                let chosen = (0..n).map(|k| ((n * used + k) % groups, 1.0));
                let chosen: Vec<_> = chosen.collect();
                let began = Instant::now();
                by_host.multiply(*i, &x, &chosen)?;
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
            cpu.push(median(times));
        }
        Ok(ShareTimes {
            bus: median(bus),
            cpu,
            answer,
        })
    }

    /// Microseconds from the submission of next to nothing until the host has read what it left.
    async fn time_an_answer(&self) -> Result<f64, GpuError> {
        let gpu = &self.gpu;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let back = gpu.buffer("an answer", 16, usage).await?;
        let told = gpu.storage("told words", 16, Role::Words).await?;
        let step = Step::of(Most::token(1), [mark::call(&Range::whole(&told))]);
        let recording = Recording::new(gpu, &step).await?;
        let mut times = vec![];
        for _ in 0..ANSWERS {
            let began = Instant::now();
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            recording.encode(gpu, &mut encoder, &State::default());
            encoder.copy_buffer_to_buffer(told.made(), 0, &back, 0, 16);
            let submitted = gpu.queue.submit([encoder.finish()]);
            // What needs no answer is submitted before the host waits.
            recording.submit(gpu, &State::default());
            gpu.map_read::<u32>(&back, 16, Some(submitted)).await?;
            gpu.queue.write_buffer(told.made(), 0, &[0; 16]);
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        gpu.release_made(&back);
        gpu.release(&told);
        Ok(median(times))
    }
}

/// The error that the CPU cannot multiply so many experts, for this reason.
fn cannot(experts: u32, because: String) -> GpuError {
    GpuError::CannotShare { experts, because }
}
