//! Experts that come from the file: the host reads those that a layer's step misses and sends them to their places.

use super::ahead::{Ahead, are_nearly_all};
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
    /// The expert in each slot of each layer, as far as is known: it decides what is read ahead, and nothing else.
    held: Vec<Vec<u32>>,
    filler: Filler,
    pub(super) ahead: Ahead,
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
        let slots = |rooms: &Option<Rooms>| rooms.as_ref()?.table().map(|table| table.slots);
        let held = rooms
            .iter()
            .map(|rooms| (0..slots(rooms).unwrap_or(0)).collect());
        Ok(Some(Self {
            layers,
            held: held.collect(),
            filler,
            ahead: Ahead::default(),
        }))
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
        let read = self.ahead.take(layer);
        let (mut reads, mut copies, mut asked) = (vec![], vec![], 0);
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
                None => {
                    asked += 1;
                    let weights = file.weights().into_iter().zip(to).enumerate();
                    reads.extend(weights.map(|(which, (from, to))| Fill {
                        from: (from, group),
                        to: (to, *place),
                        read: read.get(&(which, group)).map(Vec::as_slice),
                    }));
                }
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
        self.filler.fill(gpu, &reads, &mut |_| {}).await?;
        if !reads.is_empty() {
            // Asked behind the reads, so that none of them was of other bytes.
            file.gate
                .check_unchanged()
                .map_err(|e| GpuError::ReadWeights {
                    reason: e.to_string(),
                })?;
        }
        drop(reads);
        self.ahead.keep(read);
        match to[0].groups as usize == file.gate.groups {
            true => self.read_ahead(layer, asked),
            false => self.hold(layer, fills),
        }
        Ok(())
    }

    /// Begins to read the experts of the next layer that have no slots, if this one `asked` for nearly all of its own.
    fn read_ahead(&mut self, layer: usize, asked: usize) {
        let without_slots = |layer: usize, file: &Mlp| file.gate.groups - self.held[layer].len();
        let own = self.layers[layer].as_ref();
        let is_long = own.is_some_and(|own| are_nearly_all(asked, without_slots(layer, own)));
        let next = (layer + 1..).zip(&self.layers[layer + 1..]);
        let next = next
            .filter_map(|(i, file)| Some((i, file.as_ref()?)))
            .next();
        if let Some((next, file)) = next.filter(|_| is_long) {
            let held = &self.held[next];
            let groups = (0..file.gate.groups as u32).filter(|group| !held.contains(group));
            self.ahead.begin(next, file, groups);
        }
    }

    /// Notes which experts came to slots of a layer.
    fn hold(&mut self, layer: usize, fills: &[u32]) {
        self.ahead.forget();
        for [source, place] in fills.as_chunks::<2>().0 {
            if let Some(held) = self.held[layer].get_mut(*place as usize)
                && *source != NONE
            {
                *held = *source;
            }
        }
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
