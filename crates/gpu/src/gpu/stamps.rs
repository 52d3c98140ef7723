//! GPU timestamps: taken while a step is encoded, read back when it is done.

use super::{Gpu, GpuError};
use std::ops::Range;
use wgpu::{Buffer, BufferUsages, ComputePass, Features, QuerySet, QuerySetDescriptor, QueryType};

/// Queries of a set: WebGPU's limit, even, so that a pass's two queries lie in one set.
const PER_SET: usize = 4096;

/// The timestamps that a replay takes.
#[derive(Clone, Copy)]
pub enum Stamping<'a> {
    /// None.
    None,
    /// Two, this one and the next, at the ends of the step.
    Ends(&'a Stamps, usize),
    /// This one before the first dispatch that is encoded, and one more after each, in the order of
    /// [`Recording::step`](super::record::Recording::step). Needs [`Stamps::inside_passes`].
    Dispatches(&'a Stamps, usize),
    /// Two timestamps for each dispatch in the same order, from this even number on: at the ends of a pass that holds it alone.
    Passes(&'a Stamps, usize),
}

/// A row of timestamps, by number.
pub struct Stamps {
    sets: Vec<QuerySet>,
    resolved: Buffer,
    staging: Buffer,
}

impl Stamps {
    /// Room for `count` timestamps.
    ///
    /// # Errors
    /// [`GpuError::NoTimestamps`] where the adapter has none, [`GpuError::WrongTimestamps`] where they were noticed to be wrong, or no
    /// memory.
    pub async fn new(gpu: &Gpu, count: usize) -> Result<Self, GpuError> {
        if !gpu.features.contains(Features::TIMESTAMP_QUERY) {
            note(gpu, "there are none");
            return Err(GpuError::NoTimestamps {
                adapter: gpu.info.name.clone(),
            });
        }
        if let Some(found) = gpu.lying_clock.get() {
            return Err(wrong(gpu, found));
        }
        let sets = (0..count.div_ceil(PER_SET))
            .map(|set| {
                gpu.device.create_query_set(&QuerySetDescriptor {
                    label: Some("timestamps"),
                    ty: QueryType::Timestamp,
                    count: (count - set * PER_SET).min(PER_SET) as u32,
                })
            })
            .collect();
        let bytes = (count * 8) as u64;
        let resolved = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let staging = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        Ok(Self {
            sets,
            resolved: gpu.buffer("timestamps", bytes, resolved).await?,
            staging: gpu.buffer("timestamps read back", bytes, staging).await?,
        })
    }

    /// Whether `gpu` can take timestamps between the dispatches of a pass.
    pub fn inside_passes(gpu: &Gpu) -> bool {
        gpu.features
            .contains(Features::TIMESTAMP_QUERY | Features::TIMESTAMP_QUERY_INSIDE_PASSES)
    }

    /// Nanoseconds between the two timestamps of a pass that does nothing: the median of many in a row.
    ///
    /// # Errors
    /// As [`Stamps::new`], or what the device reports.
    pub async fn empty_pass(gpu: &Gpu) -> Result<f64, GpuError> {
        const PASSES: usize = 101;
        let stamps = Self::new(gpu, 2 * PASSES).await?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        for i in 0..PASSES {
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: stamps.ends(2 * i, [true; 2]),
            });
        }
        gpu.queue.submit([encoder.finish()]);
        let times = stamps.read(gpu, 2 * PASSES).await?;
        let mut spans: Vec<_> = times.chunks_exact(2).map(|t| t[1] - t[0]).collect();
        spans.sort_by(f64::total_cmp);
        Ok(spans[PASSES / 2])
    }

    pub(super) fn write(&self, pass: &mut ComputePass<'_>, index: usize) {
        pass.write_timestamp(&self.sets[index / PER_SET], (index % PER_SET) as u32);
    }

    /// The timestamps at the beginning and the end of a pass, where wanted.
    pub(super) fn ends(
        &self,
        first: usize,
        [beginning, end]: [bool; 2],
    ) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let index = (first % PER_SET) as u32;
        (beginning || end).then(|| wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[first / PER_SET],
            beginning_of_pass_write_index: beginning.then_some(index),
            end_of_pass_write_index: end.then_some(index + 1),
        })
    }

    /// Reads the first `count` timestamps, all of which must have been taken, when everything submitted is done.
    /// In nanoseconds, from the first of them on. Each two, from the first on, must be a beginning and a later or equal end.
    ///
    /// # Errors
    /// [`GpuError::WrongTimestamps`] where all are equal (macOS 26 gives zeros, wgpu#9414) or an end is before its beginning. The log
    /// tells it once, and from then on no timestamps are taken on the device. Or what the device reports.
    pub async fn read(&self, gpu: &Gpu, count: usize) -> Result<Vec<f64>, GpuError> {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let sets = self.sets.iter().enumerate();
        for (set, queries) in sets.take(count.div_ceil(PER_SET)) {
            let Range { start, end } = set * PER_SET..((set + 1) * PER_SET).min(count);
            let taken = (end - start) as u32;
            encoder.resolve_query_set(queries, 0..taken, &self.resolved, start as u64 * 8);
        }
        let bytes = (count * 8) as u64;
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, bytes);
        gpu.queue.submit([encoder.finish()]);
        let ticks: Vec<u64> = gpu.map_read(&self.staging, bytes, None).await?;
        #[cfg(any(test, feature = "testing"))]
        let ticks = lies::told(ticks);
        let period = f64::from(gpu.queue.get_timestamp_period());
        let origin = ticks.first().copied().unwrap_or(0);
        let times: Vec<_> = ticks
            .iter()
            .map(|tick| tick.wrapping_sub(origin) as i64 as f64 * period)
            .collect();
        let Some(found) = lie(&times) else {
            return Ok(times);
        };
        note(gpu, found);
        Err(wrong(gpu, found))
    }
}

/// The fault of timestamps, if they have one.
fn lie(times: &[f64]) -> Option<&'static str> {
    if times.len() > 1 && times.iter().all(|time| *time == times[0]) {
        return Some("all are equal");
    }
    let (pairs, _) = times.as_chunks::<2>();
    let backwards = pairs.iter().any(|[begin, end]| end < begin);
    backwards.then_some("an end is before its beginning")
}

/// Remembers what is wrong with a device's timestamps, and tells it the first time.
fn note(gpu: &Gpu, found: &'static str) {
    if gpu.lying_clock.set(found).is_ok() {
        log::warn!(
            "{}: its timestamps cannot be used ({found}): the host's clock tells times, over repeated work",
            gpu.info.name
        );
    }
}

fn wrong(gpu: &Gpu, found: &'static str) -> GpuError {
    GpuError::WrongTimestamps {
        adapter: gpu.info.name.clone(),
        found,
    }
}

/// Wrong timestamps for tests, on the thread that asks for them.
#[cfg(any(test, feature = "testing"))]
pub mod lies {
    use std::cell::Cell;

    /// The times that are read in place of what the device wrote.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Lie {
        /// Zeros.
        Zeros,
        /// The device's times, the last first.
        Backwards,
    }

    thread_local!(static LIE: Cell<Option<Lie>> = const { Cell::new(None) });

    /// Runs `work` with every clock lying so.
    pub fn with<T>(lie: Lie, work: impl FnOnce() -> T) -> T {
        LIE.set(Some(lie));
        let result = work();
        LIE.set(None);
        result
    }

    pub(super) fn told(mut ticks: Vec<u64>) -> Vec<u64> {
        match LIE.get() {
            None => {}
            Some(Lie::Zeros) => ticks.fill(0),
            Some(Lie::Backwards) => ticks.reverse(),
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;
    use crate::gpu::buffer::{Range as Bound, Role};
    use crate::gpu::call::{Call, Extent, State};
    use crate::gpu::clock;
    use crate::gpu::clock::Clock;
    use crate::gpu::record::Recording;
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::Wait;
    use crate::gpu::{Most, Step};

    /// A dispatch that adds 1 to every word.
    fn call(data: &Bound) -> Call {
        let source = "#word n: u32
#write data: array<u32> @words(p.n)
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.n) { data[id.x] += 1u; }
}";
        let n = (data.size / 4) as u32;
        Call::inline("increment", source)
            .bind("data", data)
            .word("n", n)
            .grid([Extent::N(n.div_ceil(64)), Extent::N(1), Extent::N(1)])
    }

    #[test]
    fn times_that_cannot_be_true_are_told_apart() {
        assert_eq!(lie(&[]), None);
        assert_eq!(lie(&[0.0]), None);
        assert_eq!(lie(&[0.0, 5.0, 5.0, 5.0]), None);
        // Passes that do not wait for each other overlap.
        assert_eq!(lie(&[0.0, 9.0, 3.0, 12.0]), None);
        assert!(lie(&[0.0, 0.0]).is_some());
        assert!(lie(&[0.0, 3.0, 4.0, 2.0]).is_some());
    }

    #[test]
    fn clocks_that_lie_are_noticed_and_no_longer_asked() {
        for lie in [lies::Lie::Zeros, lies::Lie::Backwards] {
            // A device of its own: what is noticed stays noticed.
            let gpu = Gpu::open(&GpuOptions::default()).wait().unwrap();
            if !gpu.features.contains(Features::TIMESTAMP_QUERY) {
                eprintln!("skipped: no timestamps on {}", gpu.info.name);
                return;
            }
            let data = Bound::whole(&gpu.storage("test", 4096, Role::Words).wait().unwrap());
            let step = Recording::new(&gpu, &Step::of(Most::token(1), [call(&data)]))
                .wait()
                .unwrap();
            let state = State::default();
            let timed = || {
                clock::in_turn(&gpu, &[(&step, &state); 2], 3)
                    .wait()
                    .unwrap()
            };
            let (times, clock) = (timed(), Clock::of(&gpu));
            assert_eq!((times.len(), times[1].len()), (2, 3));
            assert_eq!(clock, Clock::Gpu);
            let stamps = Stamps::new(&gpu, 2).wait().unwrap();
            let read = |gpu: &Gpu| {
                let mut encoder = gpu.device.create_command_encoder(&Default::default());
                step.encode_stamped(gpu, &mut encoder, &state, Stamping::Ends(&stamps, 0));
                gpu.queue.submit([encoder.finish()]);
                stamps.read(gpu, 2).wait()
            };
            let error = lies::with(lie, || read(&gpu)).unwrap_err();
            assert!(error.is_of_clock(), "{error}");
            assert!(error.to_string().contains(&gpu.info.name), "{error}");
            assert_eq!(Clock::of(&gpu), Clock::Host);
            assert!(Stamps::new(&gpu, 2).wait().is_err_and(|e| e.is_of_clock()));
            // Times that are measured after that are true.
            let times = timed();
            assert_eq!((times.len(), times[1].len()), (2, 3));
            assert!(times.concat().iter().all(|us| *us > 0.0), "{times:?}");
        }
    }

    #[test]
    fn every_way_of_stamping_runs_each_dispatch_once_and_tells_times_in_order() {
        for gpu in gpus() {
            let dispatches = 5;
            let stamps = match Stamps::new(gpu, 2 * dispatches).wait() {
                Ok(stamps) => stamps,
                Err(GpuError::NoTimestamps { .. }) => {
                    eprintln!("skipped: no timestamps on {}", gpu.info.name);
                    continue;
                }
                Err(e) => panic!("{e}"),
            };
            let data = Bound::whole(&gpu.storage("test", 4096, Role::Words).wait().unwrap());
            let recording = Recording::new(
                gpu,
                &Step::of(Most::token(1), vec![call(&data); dispatches]),
            )
            .wait()
            .unwrap();
            let mut ways = vec![
                (Stamping::Ends(&stamps, 0), 2),
                (Stamping::Passes(&stamps, 0), 10),
            ];
            if Stamps::inside_passes(gpu) {
                ways.push((Stamping::Dispatches(&stamps, 0), 6));
            }
            for (i, (stamping, count)) in ways.into_iter().enumerate() {
                let mut encoder = gpu.device.create_command_encoder(&Default::default());
                recording.encode_stamped(gpu, &mut encoder, &State::default(), stamping);
                gpu.queue.submit([encoder.finish()]);
                let times = stamps.read(gpu, count).wait().unwrap();
                assert_eq!(times.len(), count);
                assert_eq!(times[0], 0.0);
                assert!(times.is_sorted() && times[count - 1] > 0.0, "{times:?}");
                let words: Vec<u32> = gpu.read(&data.buffer, 0, 4096).wait().unwrap();
                assert!(words.iter().all(|w| *w == (dispatches * (i + 1)) as u32));
            }
        }
    }
}
