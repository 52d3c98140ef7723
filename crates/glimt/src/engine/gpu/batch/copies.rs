//! Rows of a page that another page begins with as well: copied, so that they are not computed again.

use super::GpuBatch;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::copy_rows::{self, MOST};
use crate::kernels::sequences::PAGE;
use crate::recipes::{BatchSizes, Steps};

/// The first rows of a page, on their way to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    from: u32,
    to: u32,
    rows: u32,
}

/// The step that copies rows of pages in all layers, and the copies asked for.
pub(super) struct Copies {
    step: Recording,
    /// The list that the device reads, ([`MOST`]) [`copy_rows::Copied`].
    list: Range,
    /// The copies that the next step begins with.
    asked: Vec<Copied>,
}

/// The step that makes the copies of a list in all layers, and the list.
pub(in crate::engine::gpu) fn step(recipes: &Steps, sizes: BatchSizes) -> (Step, Range) {
    let none = vec![0u32; (4 * MOST) as usize];
    let list = Range::whole(&Buffer::with("copies", &none));
    let rows = sizes.pages * PAGE;
    let of_layer = |cache: &Range| {
        let values = cache.size / 2 / u64::from(rows);
        copy_rows::call(cache, rows, values as u32, &list)
    };
    let most = Most {
        tokens: MOST,
        context: sizes.n_ctx as u32,
    };
    let step = Step::of(most, recipes.cache().iter().map(of_layer));
    (step, list)
}

impl Copies {
    /// None, for the cache of these recipes.
    pub(super) async fn new(
        gpu: &Gpu,
        recipes: &Steps,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let (step, list) = step(recipes, sizes);
        Ok(Self {
            step: Recording::new(gpu, &step).await?,
            list,
            asked: vec![],
        })
    }

    /// Takes from what was asked for as many copies as can be made at once: none of them reads or writes what another one writes.
    fn next(&mut self) -> Vec<Copied> {
        let meets = |group: &[Copied], own: &Copied| {
            let meets =
                |other: &Copied| own.from == other.to || [other.from, other.to].contains(&own.to);
            group.iter().any(meets)
        };
        let all = &self.asked;
        let ends = |end: &usize| *end == MOST as usize || meets(&all[..*end], &all[*end]);
        let end = (0..all.len()).find(ends).unwrap_or(all.len());
        self.asked.drain(..end).collect()
    }

    /// Submits what was asked for, in its order.
    pub(super) fn submit(&mut self, gpu: &Gpu) {
        loop {
            let group = self.next();
            if group.is_empty() {
                return;
            }
            let list = group.iter();
            let list = list.map(|own| [own.from * PAGE, own.to * PAGE, own.rows, 0]);
            let list: Vec<copy_rows::Copied> = list.collect();
            let words = bytemuck::cast_slice(list.as_flattened());
            let buffer = self.list.buffer.made();
            gpu.queue.write_buffer(buffer, self.list.offset, words);
            let state = State {
                tokens: list.len() as u32,
                ..State::default()
            };
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            self.step.encode(gpu, &mut encoder, &state);
            gpu.queue.submit([encoder.finish()]);
        }
    }
}

impl GpuBatch {
    /// Has the first `rows` rows of page `from` copied to page `to` in all layers, after all steps that were submitted and before the next.
    ///
    /// # Panics
    /// If the cache has no such pages, or a page no such rows.
    pub fn copy_rows(&mut self, from: u32, to: u32, rows: u32) {
        assert!(
            from.max(to) < self.sizes.pages && rows <= PAGE,
            "{rows} rows of page {from} to page {to}"
        );
        if let Some(copies) = self.copies.as_mut().filter(|_| from != to && rows > 0) {
            copies.asked.push(Copied { from, to, rows });
        }
    }
}
