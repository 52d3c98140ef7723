//! A model on a device.

use super::answered::Answering;
use super::from_file::FromFile;
use super::precomposed::Precomposed;
use super::random;
use super::tier_trial::TierTrial;
use crate::engine::share::{HostWork, Share};
use crate::gpu::behind::ExpertsFrom;
use crate::gpu::call::State;
use crate::gpu::memory::EXPERTS_OF_HOST;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::expert_slots::Table;
use crate::model::Ffn;
use crate::models::Model;
use crate::recipes::{GpuBlock, Placed, Residence, Rooms, Weights};
use std::sync::Arc;

/// A model whose weights are on `gpu`, shared by every session.
pub struct GpuModel {
    /// The device, in the tier that the model decodes in.
    pub gpu: Arc<Gpu>,
    /// The model in the file: its configuration and names.
    pub model: Arc<dyn Model>,
    /// Where its experts lie.
    pub residence: Residence,
    pub(super) weights: Arc<Weights>,
    /// Who answers the questions of its steps, if these have any.
    pub(super) answering: Option<Arc<Answering>>,
    /// The CPU's share of missing experts; `None` if none was asked for.
    pub share: Option<Share>,
    /// The measurement by which loading chose the tier; `None` where a tier was asked for or kept, or the device has no choice.
    pub tier_trial: Option<TierTrial>,
    /// The outcome of `--precompose`; `None` where it is off.
    pub precomposed: Option<Precomposed>,
}

impl GpuModel {
    /// Uploads every weight, as [`load_for`](Self::load_for) does, and leaves the tier as it is. The rooms for experts are made, too. Where the
    /// system does not give the host memory that experts were to lie in, they come from the file, which is told, unless that was excluded.
    pub(super) async fn upload(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        residence: Residence,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, GpuError> {
        let may_read = gpu.experts == ExpertsFrom::Auto && model.has_data();
        let before = gpu.allocated();
        let (again, of) = (Arc::clone(&gpu), Arc::clone(&model));
        match (
            Self::upload_to(gpu, model, residence, progress).await,
            residence,
        ) {
            (Err(GpuError::OutOfMemory { what, .. }), Residence::Slots(slots))
                if may_read && what == EXPERTS_OF_HOST =>
            {
                log::warn!(
                    "the system does not let the GPU read so much of the machine's memory, so experts come from the file, which is slower"
                );
                again.count_dropped(before);
                again.done().await?;
                Self::upload_to(again, of, Residence::File(slots), progress).await
            }
            (uploaded, _) => uploaded,
        }
    }

    async fn upload_to(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        residence: Residence,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, GpuError> {
        let Placed {
            weights,
            loader,
            matrices,
        } = model.place(&gpu, residence)?;
        let of_slots = weights.body.rooms.iter().flatten().map(Rooms::first_bytes);
        let all = loader.bytes();
        let total = all + of_slots.sum::<u64>();
        let told = &mut |done| progress(done, total);
        loader.fill(&gpu, &matrices, told).await?;
        if !model.has_data() {
            let matrices: Vec<_> = matrices.into_iter().filter(|w| !w.is_file()).collect();
            random::fill_weights(&gpu, &matrices, told).await?;
        }
        gpu.realise(&weights.body.vectors.buffer).await?;
        for buffer in weights.body.rooms.iter().flatten().flat_map(Rooms::buffers) {
            gpu.realise(buffer).await?;
        }
        fill_slots(&gpu, &weights).await?;
        let rooms = &weights.body.rooms;
        let answering = match FromFile::begin(&gpu, rooms, &mut |done| told(all + done)).await? {
            Some(answers) => {
                let tables: Vec<Table> = rooms
                    .iter()
                    .flatten()
                    .filter_map(Rooms::table)
                    .cloned()
                    .collect();
                Some(Arc::new(
                    Answering::new(&gpu, Box::new(answers), tables).await?,
                ))
            }
            None => None,
        };
        gpu.check()?;
        Ok(Self {
            residence,
            answering,
            share: None,
            weights: Arc::new(weights),
            tier_trial: None,
            precomposed: None,
            model: Arc::clone(&model),
            gpu,
        })
    }

    /// Has decoded tokens take choices of experts from a trace, as [`Weights::route`] does; false where no layer has slots, or sessions share
    /// the model already.
    pub fn route(&mut self, trace: impl Fn(usize) -> Vec<u32>) -> bool {
        Arc::get_mut(&mut self.weights).is_some_and(|weights| weights.route(trace))
    }

    /// Has steps find the slots empty from now on, because others were replayed whose questions nobody answered.
    pub(super) fn distrust_slots(&self) {
        if let Some(answering) = &self.answering {
            answering.distrust();
        }
    }

    /// The traffic of experts since the model was loaded, of all its sessions; `None` where no layer has slots.
    ///
    /// # Errors
    /// The error that the device reports.
    pub async fn expert_traffic(&self) -> Result<Option<ExpertTraffic>, GpuError> {
        let layers = self
            .weights
            .body
            .layers
            .iter()
            .zip(&self.weights.body.rooms);
        let with_slots = layers.filter_map(|(layer, rooms)| {
            let table = rooms.as_ref()?.table()?;
            Some((table, expert_bytes(layer)))
        });
        let (tables, bytes): (Vec<_>, Vec<_>) = with_slots.unzip();
        if tables.is_empty() {
            return Ok(None);
        }
        let counts = Table::counts(&self.gpu, &tables).await?;
        let mut sum = ExpertTraffic::default();
        for (counts, bytes) in counts.iter().zip(bytes) {
            let [hits, misses] = [counts.hits, counts.misses].map(u64::from);
            sum.hits += hits;
            sum.misses += misses;
            sum.bytes += misses * bytes;
        }
        Ok(Some(sum))
    }

    /// The experts that the CPU has multiplied for tokens, of all sessions; `None` where it has no share.
    pub async fn host_work(&self) -> Option<HostWork> {
        let has_share = self.share.as_ref().is_some_and(|share| share.experts > 0);
        match &self.answering {
            Some(answering) if has_share => Some(answering.work().await),
            _ => None,
        }
    }

    /// Bytes of the experts of a token, in all layers.
    pub fn expert_bytes_of_token(&self) -> u64 {
        let experts = self.model.config().experts.as_ref();
        let used = experts.map_or(0, |experts| experts.used as u64);
        used * self
            .weights
            .body
            .layers
            .iter()
            .map(expert_bytes)
            .sum::<u64>()
    }
}

/// The traffic of experts between host memory and the slots on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpertTraffic {
    /// Experts that steps chose and that had a slot. One that several tokens of a step chose counts once.
    pub hits: u64,
    /// Experts that steps chose and that had none, so that they were brought to the device.
    pub misses: u64,
    /// Bytes of these.
    pub bytes: u64,
}

impl ExpertTraffic {
    /// The traffic since it was `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    /// This traffic and `other`.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            bytes: self.bytes + other.bytes,
        }
    }

    /// The share of chosen experts that had a slot; `None` where none was chosen.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// Bytes of one expert of a layer; 0 of a dense one.
fn expert_bytes(layer: &GpuBlock) -> u64 {
    match &layer.ffn {
        Ffn::Moe(moe) => {
            let weights = moe.experts.weights().into_iter();
            weights.map(|w| w.bytes_of_rows(w.rows.into())).sum()
        }
        Ffn::Dense(_) => 0,
    }
}

/// Copies experts to the slots of each layer, so that the first prompt finds them there. The time is that of their bytes over the bus.
async fn fill_slots(gpu: &Gpu, weights: &Weights) -> Result<(), GpuError> {
    let layers = weights.body.layers.iter().zip(&weights.body.rooms);
    for (layer, rooms) in layers {
        let (Ffn::Moe(moe), Some(rooms)) = (&layer.ffn, rooms) else {
            continue;
        };
        let calls = rooms.first_fill(&moe.experts);
        if !calls.is_empty() {
            let recording = Recording::new(gpu, &Step::of(Most::token(1), calls)).await?;
            recording.submit(gpu, &State::default());
        }
    }
    gpu.done().await
}
