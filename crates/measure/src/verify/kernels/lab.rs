//! Where a case is computed: a device, random numbers, and what was found.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use half::f16;

use super::KernelCheck;
use crate::gpu::buffer::{Buffer, Content, Range};
use crate::gpu::call::{Call, State};
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::synth::{self, PlannedTensor};

/// The factor that brings synthetic weights, which are stored as floats, to size 1.
const FLOATS: f32 = 50.0;

/// One output of a kernel beside that of its twin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compared {
    nmse: f64,
    limit: f64,
}

impl Compared {
    /// The squares of the differences over those of the twin's values. What is no number counts as infinite.
    pub(super) fn new(found: &[f32], twin: &[f32], limit: f64) -> Self {
        let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        let error: f64 = found.iter().zip(twin).map(square).sum();
        let size: f64 = twin.iter().map(|b| f64::from(*b).powi(2)).sum();
        let nmse = match error {
            0.0 => 0.0,
            error => error / size,
        };
        let is_there = found.len() == twin.len() && !nmse.is_nan();
        Self {
            nmse: if is_there { nmse } else { f64::INFINITY },
            limit,
        }
    }

    /// How near it is to its limit, and above 1 beyond it.
    fn share(self) -> f64 {
        match (self.nmse, self.limit) {
            (0.0, _) => 0.0,
            (nmse, limit) => nmse / limit,
        }
    }
}

/// A device, random numbers for it, and the rows found so far.
pub(in crate::verify) struct Lab<'a> {
    pub(super) gpu: &'a Gpu,
    seed: u64,
    draws: Cell<u64>,
    /// The kernels of the case that is being computed.
    kernels: RefCell<BTreeSet<&'static str>>,
    rows: Vec<KernelCheck>,
    /// The change that a test makes to each call, so that a kernel is wrong.
    #[cfg(test)]
    pub(super) change: Option<fn(Call) -> Call>,
}

impl<'a> Lab<'a> {
    /// A lab whose random numbers follow from `seed`.
    pub(in crate::verify) fn new(gpu: &'a Gpu, seed: u64) -> Self {
        Self {
            gpu,
            seed,
            draws: Cell::new(0),
            kernels: RefCell::default(),
            rows: vec![],
            #[cfg(test)]
            change: None,
        }
    }

    /// The rows found since the last time.
    pub(in crate::verify) fn take(&mut self) -> Vec<KernelCheck> {
        std::mem::take(&mut self.rows)
    }

    /// Adds the row of a case: what its outputs are beside those of the twins. Its name is that of the kernels that ran.
    pub(super) fn check(
        &mut self,
        case: impl Into<String>,
        compare: impl FnOnce(&Self) -> Result<Vec<Compared>, GpuError>,
    ) {
        self.kernels.borrow_mut().clear();
        let compared = compare(self);
        let names: Vec<_> = self.kernels.borrow().iter().copied().collect();
        self.add(names.join(" + "), case.into(), compared);
    }

    /// The form in f32, and the one that a trial has `chosen` where that is another. A trial that fails is a row of `kernel`.
    pub(super) fn forms<F: PartialEq>(
        &mut self,
        float: F,
        chosen: Result<Option<F>, GpuError>,
        kernel: &str,
    ) -> Vec<F> {
        let mut forms = vec![float];
        match chosen {
            Ok(form) => forms.extend(form),
            Err(error) => self.add(kernel.to_owned(), "trial".to_owned(), Err(error)),
        }
        forms.dedup();
        forms
    }

    fn add(&mut self, kernel: String, case: String, compared: Result<Vec<Compared>, GpuError>) {
        let by_share = |a: &Compared, b: &Compared| a.share().total_cmp(&b.share());
        let (worst, error) = match compared {
            Ok(compared) => (compared.into_iter().max_by(by_share), None),
            Err(error) => (None, Some(error.to_string())),
        };
        self.rows.push(KernelCheck {
            tier: self.gpu.tier.name(),
            kernel,
            case,
            nmse: worst.map(|worst| worst.nmse),
            limit: worst.map_or(0.0, |worst| worst.limit),
            error,
        });
    }

    fn draw(&self) -> u64 {
        self.draws.set(self.draws.get() + 1);
        BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, self.draws.get()))
    }

    fn bytes(&self, ty: GgmlType, weights: usize) -> Vec<u8> {
        let tensor = PlannedTensor {
            name: ty.name().to_owned(),
            ty,
            dims: vec![weights as u64],
            ones: false,
        };
        let mut bytes = vec![0; tensor.byte_len() as usize];
        synth::fill(&tensor, self.draw(), 0, &mut bytes);
        bytes
    }

    /// So many normal numbers of mean 0 and variance 1.
    pub(super) fn normals(&self, n: usize) -> Vec<f32> {
        let bytes = self.bytes(GgmlType::F32, n);
        let (floats, _) = bytes.as_chunks();
        let floats = floats.iter().map(|bytes| f32::from_le_bytes(*bytes));
        floats.map(|float| float * FLOATS).collect()
    }

    /// A number below `n`.
    pub(super) fn below(&self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    /// So many different numbers that no rounding swaps, in any order.
    pub(super) fn distinct(&self, n: usize) -> Vec<f32> {
        let mut all: Vec<f32> = (0..n).map(|i| 6.0 * i as f32 / n as f32 - 3.0).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }

    /// A random weight: groups, rows and columns.
    pub(super) fn weight(&self, ty: GgmlType, [groups, rows, cols]: [usize; 3]) -> Weight {
        let bytes = self.bytes(ty, groups * rows * cols);
        Weight::from_bytes(format!("random {ty}"), ty, groups, rows, cols, bytes)
    }

    /// Weights on the device, cut alike.
    pub(super) fn load(&self, weights: &[&Weight]) -> Result<Vec<GpuWeight>, GpuError> {
        let mut loader = Loader::new(self.gpu);
        loader.add_alike(weights)?;
        loader.load(self.gpu, &mut |_| {}).wait()
    }

    /// A buffer with `data`.
    pub(super) fn given<T: Content>(&self, data: &[T]) -> Range {
        Range::whole(&Buffer::with("given", data))
    }

    /// A buffer of `n` floats that are no numbers, so that what is never written cannot pass.
    pub(super) fn room(&self, n: usize) -> Range {
        self.given(&vec![f32::NAN; n])
    }

    /// Runs `calls` once and waits.
    pub(super) fn run(&self, calls: Vec<Call>, state: State) -> Result<(), GpuError> {
        let most = Most::of(&state);
        self.run_of(calls, most, state)
    }

    /// Runs `calls` once, recorded for replays of up to `most`, and waits.
    pub(super) fn run_of(
        &self,
        calls: Vec<Call>,
        most: Most,
        state: State,
    ) -> Result<(), GpuError> {
        self.kernels
            .borrow_mut()
            .extend(calls.iter().map(|call| call.kernel));
        #[cfg(test)]
        let calls: Vec<Call> = match self.change {
            Some(change) => calls.into_iter().map(change).collect(),
            None => calls,
        };
        let step = Step::of(most, calls);
        #[cfg(test)]
        if let Some(math) = self.gpu.metal {
            crate::gpu::testing::Recorded::Metal(step, math).submit(self.gpu, &state);
            return Ok(());
        }
        let recording = Recording::new(self.gpu, &step).wait()?;
        recording.submit(self.gpu, &state);
        self.gpu.done().wait()
    }

    /// The first `n` values of what the device has there.
    pub(super) fn read<T: bytemuck::Pod>(
        &self,
        range: &Range,
        n: usize,
    ) -> Result<Vec<T>, GpuError> {
        let bytes = (n * size_of::<T>()) as u64;
        self.gpu.read(&range.buffer, range.offset, bytes).wait()
    }

    /// Floats on the device beside those of the twin.
    pub(super) fn floats(
        &self,
        range: &Range,
        twin: &[f32],
        limit: f64,
    ) -> Result<Compared, GpuError> {
        let found = self.read(range, twin.len())?;
        Ok(Compared::new(&found, twin, limit))
    }

    /// Values on the device that must be those of the twin: the error is 0, or infinite.
    pub(super) fn same<T: bytemuck::Pod + PartialEq>(
        &self,
        range: &Range,
        twin: &[T],
    ) -> Result<Compared, GpuError> {
        let is_same = self.read::<T>(range, twin.len())? == twin;
        Ok(Compared {
            nmse: if is_same { 0.0 } else { f64::INFINITY },
            limit: 0.0,
        })
    }
}

/// Values of f16 as f32.
pub(super) fn wide(values: &[f16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

/// Values of f32 as f16.
pub(super) fn halves(values: &[f32]) -> Vec<f16> {
    values.iter().map(|x| f16::from_f32(*x)).collect()
}

/// The state of a step of so many tokens after `pos` rows.
pub(super) fn state(tokens: usize, pos: usize) -> State {
    State {
        tokens: tokens as u32,
        pos: pos as u32,
        ..State::default()
    }
}
