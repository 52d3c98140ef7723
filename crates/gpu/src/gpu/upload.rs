//! The way of weights to the device: rows are read from the file, repacked, and written to a ring of mapped staging
//! buffers, from which the device copies them to their places.
//!
//! Each byte of weights costs the host one copy out of the system's file cache, one repacking and one copy to the
//! staging buffer, on all cores at once. The first two stay in a core's cache; nothing is allocated on the way and, the
//! file being read past its map, no page is faulted in. Peak memory is the ring, 96 MiB, and two tasks per thread, half a
//! MiB, whatever the size of the model or of a tensor.

use super::buffer::Buffer;
use super::pending::Arrival;
use super::{Gpu, GpuError};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::repack::{self, ROW_STEP, Sections};
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{Ordering, fence};
use wgpu::{BufferUsages, MapMode, SubmissionIndex, WriteOnly};

/// Bytes of a staging buffer.
pub(super) const SLOT: u64 = 32 << 20;
/// Staging buffers: one is filled while the device copies from the others.
const SLOTS: usize = 3;
/// Bytes of the file that one thread repacks at a time: small enough that they and their planes stay in its core's cache.
const TASK: usize = 1 << 18;
/// Padding that the last run of a tensor may have beyond whole steps of rows: the unused vec4 of the float types' scales.
const PADDING: u64 = 16;

/// Rows of a tensor and where they go in planes.
pub(super) struct Target<'a> {
    pub weight: &'a Weight,
    /// The first row, counted over all groups.
    pub first_row: usize,
    /// The number of rows.
    pub rows: usize,
    /// The place of the first one among the rows of the planes, and how many rows these have.
    pub place: usize,
    pub of: usize,
    /// The bytes of the rows, if they were read before.
    pub read: Option<&'a [u8]>,
    /// Buffer and offset of the plane of quants.
    pub quants: (&'a Buffer, u64),
    /// Buffer and offset of the plane of scales.
    pub scales: (&'a Buffer, u64),
}

impl<'a> Target<'a> {
    fn sections(&self, run: Range<usize>) -> Sections {
        let run = self.place + run.start..self.place + run.end;
        repack::sections(self.weight.ty, self.of, self.weight.cols, run)
    }

    /// Bytes of the planes, without their head.
    fn bytes(&self) -> u64 {
        self.sections(0..self.rows).bytes() as u64
    }

    /// Bytes that [`ROW_STEP`] rows take in the planes.
    fn step_bytes(&self) -> u64 {
        self.sections(0..self.rows.min(ROW_STEP)).bytes() as u64
    }

    /// The most rows from `start` on that `room` bytes hold; `None` where that is none.
    fn piece(&'a self, start: usize, room: u64) -> Option<Piece<'a>> {
        let steps = room.saturating_sub(PADDING) / self.step_bytes();
        let run = start..self.rows.min(start + steps as usize * ROW_STEP);
        (!run.is_empty()).then(|| Piece {
            target: self,
            sections: self.sections(run.clone()),
            run,
        })
    }
}

/// A run of rows that goes through one staging buffer.
struct Piece<'a> {
    target: &'a Target<'a>,
    run: Range<usize>,
    sections: Sections,
}

/// Fills the planes of `targets`, in order, through staging buffers of `slot` bytes (more where [`ROW_STEP`] rows of a
/// tensor take more). `progress` is told the bytes on their way so far; all have arrived when this returns.
///
/// # Errors
/// [`GpuError::ReadWeights`], [`GpuError::OutOfMemory`] or what the device reports.
pub(super) async fn stream(
    gpu: &Gpu,
    targets: &[Target<'_>],
    slot: u64,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<(), GpuError> {
    let total: u64 = targets.iter().map(Target::bytes).sum();
    let mut ring = Ring::new(slot.min(total) + PADDING);
    for target in targets {
        let (scales, offset) = target.scales;
        write_head(gpu, target.weight.ty, scales, offset);
    }
    ring.send(gpu, targets, progress).await?;
    gpu.done().await?;
    progress(total);
    Ok(())
}

/// Writes what the plane of scales at `offset` begins with ([`repack::head`]).
pub fn write_head(gpu: &Gpu, ty: GgmlType, scales: &Buffer, offset: u64) {
    let head = repack::head(ty);
    if !head.is_empty() {
        gpu.queue.write_buffer(scales.made(), offset, head);
    }
}

/// Staging buffers that take turns.
pub(super) struct Ring {
    /// Bytes of each.
    slot: u64,
    /// The buffers that the device copies from, oldest first; each is mapped again when that is done.
    in_flight: VecDeque<(wgpu::Buffer, SubmissionIndex, Arrival)>,
}

impl Ring {
    /// A ring of buffers of `slot` bytes, which are made when they are needed.
    pub(super) fn new(slot: u64) -> Self {
        Self {
            slot,
            in_flight: VecDeque::with_capacity(SLOTS),
        }
    }

    /// Sends the rows of `targets`, in order, without the heads of their planes. `progress` is told the bytes on their way so far. What is
    /// submitted next finds all of them in their places.
    ///
    /// # Errors
    /// [`GpuError::ReadWeights`], [`GpuError::OutOfMemory`] or what the device reports.
    pub(super) async fn send(
        &mut self,
        gpu: &Gpu,
        targets: &[Target<'_>],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), GpuError> {
        let widest = targets.iter().map(Target::step_bytes).max().unwrap_or(0) + PADDING;
        if widest > self.slot {
            // Reads that are under way end on their own.
            *self = Self::new(widest);
        }
        let (mut pieces, mut used, mut done) = (vec![], 0, 0);
        for target in targets {
            let mut row = 0;
            while row < target.rows {
                if let Some(piece) = target.piece(row, self.slot - used) {
                    row = piece.run.end;
                    used += piece.sections.bytes() as u64;
                    pieces.push(piece);
                } else {
                    self.upload(gpu, &pieces).await?;
                    done += used;
                    progress(done);
                    pieces.clear();
                    used = 0;
                }
            }
        }
        match pieces.is_empty() {
            true => Ok(()),
            false => self.upload(gpu, &pieces).await,
        }
    }

    /// A mapped staging buffer: a new one, or the oldest once the device is done with it.
    async fn slot(&mut self, gpu: &Gpu) -> Result<wgpu::Buffer, GpuError> {
        if self.in_flight.len() < SLOTS {
            let what = "weights on their way";
            let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
            return gpu.make(what, self.slot, usage, true).await;
        }
        let (buffer, submission, mapped) = self.in_flight.pop_front().expect("SLOTS is not zero");
        gpu.pending(Some(submission), &mapped).await?;
        Ok(buffer)
    }

    async fn upload(&mut self, gpu: &Gpu, pieces: &[Piece<'_>]) -> Result<(), GpuError> {
        let buffer = self.slot(gpu).await?;
        let mut view = buffer
            .slice(..)
            .get_mapped_range_mut()
            .map_err(|e| GpuError::Runtime {
                what: "uploading weights".to_owned(),
                reason: e.to_string(),
            })?;
        let tasks = tasks(view.slice(..), pieces);
        reading(|| tasks.into_par_iter().try_for_each(Task::run))?;
        drop(view);
        buffer.unmap();

        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for piece in pieces {
            let (target, sections) = (piece.target, &piece.sections);
            for ((plane, offset), range) in [
                (target.quants, &sections.quants),
                (target.scales, &sections.records),
                (target.scales, &sections.subs),
            ] {
                let bytes = range.len() as u64;
                if bytes > 0 {
                    let to = offset + range.start as u64;
                    encoder.copy_buffer_to_buffer(&buffer, at, plane.made(), to, bytes);
                }
                at += bytes;
            }
        }
        let submission = gpu.queue.submit([encoder.finish()]);
        // A failure shows when the buffer's turn comes and it is not mapped.
        let mapped = Arrival::of_mapping(&buffer, MapMode::Write, buffer.size());
        self.in_flight.push_back((buffer, submission, mapped));
        Ok(())
    }
}

/// The fewest threads that read: more than one for a core, because reads wait for the disk, which is faster if it has several at a time.
const READERS: usize = 8;

/// The threads that read; the usual ones where these cannot be started.
static POOL: LazyLock<Option<rayon::ThreadPool>> = LazyLock::new(|| {
    let threads = rayon::current_num_threads().max(READERS);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.thread_name(|i| format!("read {i}")).build().ok()
});

/// The result of `work`, whose parallel parts run on the threads that read.
pub fn reading<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match &*POOL {
        Some(pool) if cfg!(not(target_family = "wasm")) => pool.install(work),
        _ => work(),
    }
}

/// The tasks that write the planes of `pieces` one after another: of each its quants, its records, its subs.
fn tasks<'a>(mut into: WriteOnly<'a, [u8]>, pieces: &'a [Piece<'_>]) -> Vec<Task<'a>> {
    let mut tasks = vec![];
    for piece in pieces {
        let target = piece.target;
        let sections = &piece.sections;
        let sections = [&sections.quants, &sections.records, &sections.subs];
        let [mut quants, mut records, mut subs] =
            sections.map(|range| take(&mut into, range.len()));
        let rows = (TASK / target.weight.row_bytes() / ROW_STEP).max(1) * ROW_STEP;
        for start in piece.run.clone().step_by(rows) {
            let run = start..piece.run.end.min(start + rows);
            let sections = target.sections(run.clone());
            let places = [
                (&mut quants, sections.quants),
                (&mut records, sections.records),
                (&mut subs, sections.subs),
            ]
            .map(|(place, range)| Place(take(place, range.len())));
            tasks.push(Task {
                weight: target.weight,
                rows: target.first_row + run.start..target.first_row + run.end,
                read: target.read.map(|all| {
                    let bytes = target.weight.row_bytes();
                    &all[run.start * bytes..run.end * bytes]
                }),
                places,
            });
        }
    }
    tasks
}

fn take<'a>(into: &mut WriteOnly<'a, [u8]>, bytes: usize) -> WriteOnly<'a, [u8]> {
    into.split_off(..bytes)
        .expect("pieces fit their slot, and runs cover their piece")
}

/// Rows that one thread reads and repacks.
struct Task<'a> {
    weight: &'a Weight,
    rows: Range<usize>,
    /// Their bytes, if these were read before.
    read: Option<&'a [u8]>,
    /// The places of its quants, records and subs.
    places: [Place<'a>; 3],
}

/// Bytes of mapped memory that another thread may fill.
struct Place<'a>(WriteOnly<'a, [u8]>);

// SAFETY: `WriteOnly` is exclusive access to its bytes, as `&mut [u8]` is, and may move to another thread as that may. wgpu
// 30.0.1 says so for sized types only, by oversight (its issue 10156).
unsafe impl Send for Place<'_> {}

thread_local! {
    /// A thread's rows as the file has them, and their planes: kept from task to task, since fresh memory costs page faults.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((vec![], vec![])) };
}

impl Task<'_> {
    fn run(self) -> Result<(), GpuError> {
        SCRATCH.with_borrow_mut(|(source, planes)| {
            let Self {
                weight,
                rows,
                read,
                places,
            } = self;
            let source = match read {
                Some(read) => read,
                None => weight
                    .read_rows(rows, source)
                    .map_err(|e| GpuError::ReadWeights {
                        reason: e.to_string(),
                    })?,
            };
            let bytes = places.iter().map(|place| place.0.len()).sum();
            if planes.len() < bytes {
                planes.resize(bytes, 0);
            }
            let (quants, rest) = planes[..bytes].split_at_mut(places[0].0.len());
            let (records, subs) = rest.split_at_mut(places[1].0.len());
            repack::repack_rows(
                weight.ty,
                weight.cols,
                source,
                [&mut *quants, &mut *records, &mut *subs],
            );
            // Mapped memory may be write-combined: it is written once, front to back, and never read.
            for (mut place, plane) in places.into_iter().zip([quants, records, subs]) {
                place.0.copy_from_slice(plane);
            }
            // Nor do atomics order writes to such memory on every CPU; this empties the core's write-combining buffers.
            fence(Ordering::SeqCst);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;
    use crate::gpu::buffer::Role;
    use crate::gpu::testing::download;
    use crate::gpu::wait::Wait;
    use crate::gpu::wait::complete;
    use crate::kernels::testing::Rng;
    use crate::quant::repack::Planes;

    /// Streams pieces of random weights of every type through slots of `slot` bytes and compares all planes.
    fn check(slot: u64) {
        let mut rng = Rng::fresh();
        // A device of its own: other tests allocate on the shared ones.
        let gpu = &Gpu::open(&GpuOptions::default())
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
        let shapes = [(1, 1, 512), (1, 37, 256), (5, 11, 512), (1, 900, 768)];
        let weights: Vec<Weight> = GgmlType::ALL
            .iter()
            .flat_map(|&ty| shapes.map(|shape| (ty, shape)))
            .map(|(ty, (groups, rows, cols))| {
                let bytes = groups * rows * ty.row_bytes(cols).expect("the shape fits");
                let bytes = Vec::from_iter((0..bytes).map(|_| rng.bits() as u8));
                Weight::from_bytes(ty.name(), ty, groups, rows, cols, bytes)
            })
            .collect();
        let buffer = |bytes: usize| {
            gpu.storage("planes", bytes as u64 + 16, Role::Floats)
                .wait()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        // The last two thirds of every weight, 16 bytes from the start of its buffers.
        let buffers: Vec<_> = weights
            .iter()
            .map(|w| {
                let rows = (w.groups * w.rows * 2).div_ceil(3);
                let (quants, scales) = repack::plane_bytes(w.ty, rows, w.cols);
                (rows, buffer(quants), buffer(scales))
            })
            .collect();
        let targets: Vec<_> = weights
            .iter()
            .zip(&buffers)
            .map(|(weight, (rows, quants, scales))| Target {
                weight,
                first_row: weight.groups * weight.rows - rows,
                rows: *rows,
                place: 0,
                of: *rows,
                read: None,
                quants: (quants, 16),
                scales: (scales, 16),
            })
            .collect();
        let mut told = vec![];
        let before = gpu.allocated();
        let progress = &mut |done| told.push(done);
        complete(stream(gpu, &targets, slot, progress)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(gpu.allocated(), before, "staging does not stay");
        assert!(told.is_sorted(), "{told:?}");
        let total = targets.iter().map(Target::bytes).sum();
        assert_eq!(told.last(), Some(&total));
        for target in &targets {
            let mut scratch = vec![];
            let rows = target.first_row..target.first_row + target.rows;
            let source = target.weight.read_rows(rows, &mut scratch);
            let source = source.expect("it is in memory");
            let (ty, cols) = (target.weight.ty, target.weight.cols);
            let expected = Planes::new(ty, target.rows, cols, source);
            for ((buffer, _), plane) in [
                (target.quants, expected.quants),
                (target.scales, expected.scales),
            ] {
                let found: Vec<u8> = download(gpu, buffer, plane.len() + 16);
                assert!(
                    found[16..] == plane && found[..16] == [0; 16],
                    "{ty} {} x {cols} in slots of {slot}",
                    target.rows
                );
            }
        }
    }

    #[test]
    fn planes_arrive_whole_through_one_slot() {
        check(SLOT);
    }

    #[test]
    fn planes_arrive_whole_in_pieces() {
        check(100_000);
    }

    #[test]
    fn a_slot_too_small_for_a_step_grows() {
        check(1);
    }
}
