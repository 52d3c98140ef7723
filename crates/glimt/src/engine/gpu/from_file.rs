//! Experts that come from the file: the host reads those that a layer's step misses and sends them to their places.

use super::answered::{Answers, failed};
use crate::engine::backend::BoxedFuture;
use crate::gpu::memory::{Fill, Filler};
use crate::gpu::question::Question;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::expert_slots::NONE;
use crate::kernels::expert_sources::KEPT;
use crate::model::Mlp;
use crate::recipes::Rooms;

/// The experts of each layer in the file, and the way from there.
pub(super) struct FromFile {
    layers: Vec<Option<Mlp>>,
    filler: Filler,
}

impl FromFile {
    /// The experts of a model with these rooms, if they are in its file, with their first ones in the slots. `progress` is told the bytes on
    /// their way.
    ///
    /// # Errors
    /// [`GpuError::ReadWeights`] also for a model that has no file, or what the device reports.
    pub(super) async fn begin(
        gpu: &Gpu,
        rooms: &[Option<Rooms>],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Option<Self>, GpuError> {
        let file = |rooms: &Option<Rooms>| rooms.as_ref()?.file.clone();
        let layers: Vec<Option<Mlp>> = rooms.iter().map(file).collect();
        let all: Vec<_> = layers.iter().flatten().flat_map(Mlp::weights).collect();
        if all.is_empty() {
            return Ok(None);
        }
        if !all.iter().all(|weight| weight.has_data()) {
            return Err(GpuError::ReadWeights {
                reason: "experts are to come from the file, and this model has none".to_owned(),
            });
        }
        let mut filler = Filler::default();
        let first: Vec<_> = rooms
            .iter()
            .flatten()
            .flat_map(Rooms::first_reads)
            .collect();
        filler.fill(gpu, &first, progress).await?;
        Ok(Some(Self { layers, filler }))
    }

    async fn bring(
        &mut self,
        gpu: &Gpu,
        question: &Question,
        words: &[&[u32]],
    ) -> Result<(), GpuError> {
        let layer = question.layer;
        let (Some(Some(file)), [fills]) = (self.layers.get(layer), words) else {
            return Err(failed(format!("layer {layer} has no experts in the file")));
        };
        let to = question.to.weights();
        let (mut reads, mut copies) = (vec![], vec![]);
        for [source, place] in fills.as_chunks::<2>().0 {
            if *source == NONE {
                continue;
            }
            let (is_kept, group) = (*source >= KEPT, source & !KEPT);
            let kept = question.kept.as_ref().filter(|_| is_kept);
            let groups = match (is_kept, kept) {
                (false, _) => file.gate.groups as u32,
                (true, kept) => kept.map_or(0, |kept| kept.gate.groups),
            };
            if group >= groups || *place >= to[0].groups {
                return Err(failed(format!(
                    "layer {layer} asked for number {group} of {groups} in place {place} of {}",
                    to[0].groups
                )));
            }
            match kept {
                Some(kept) => copies.push((kept.weights(), group, *place)),
                None => reads.extend(file.weights().into_iter().zip(to).map(|(from, to)| Fill {
                    from: (from, group),
                    to: (to, *place),
                })),
            }
        }
        if !copies.is_empty() {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            for (kept, slot, place) in copies {
                for (from, to) in kept.into_iter().zip(to) {
                    to.copy_group(&mut encoder, (from, slot), place);
                }
            }
            gpu.queue.submit([encoder.finish()]);
        }
        self.filler.fill(gpu, &reads, &mut |_| {}).await
    }
}

impl Answers for FromFile {
    fn answer<'a>(
        &'a mut self,
        gpu: &'a Gpu,
        question: &'a Question,
        words: &'a [&'a [u32]],
    ) -> BoxedFuture<'a, Result<(), GpuError>> {
        Box::pin(self.bring(gpu, question, words))
    }
}
