//! The surroundings of a case: a device, random numbers, and the comparison of what was found.

use crate::kernels::{CacheType, MlaDims, Rows};
use std::cell::RefCell;
use std::collections::BTreeSet;

use half::f16;

use super::random::Random;
use crate::gpu::buffer::{Buffer, Content, Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::geometry::{Geometry, Site};
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::record::Recording;
use crate::gpu::wait::{Wait, complete};
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::token;
use crate::model::Weight;
use crate::quant::GgmlType;

/// The most geometries of a case: there are hundreds, and each is compiled.
const GEOMETRIES: usize = 4;

/// One output of a kernel beside that of its twin.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    /// The squares of the differences over those of the twin's values.
    pub nmse: f64,
    /// The most that this may be.
    pub limit: f64,
}

impl Compared {
    /// How near it is to its limit, and above 1 beyond it.
    pub fn share(self) -> f64 {
        match (self.nmse, self.limit) {
            (0.0, _) => 0.0,
            (nmse, limit) => nmse / limit,
        }
    }
}

/// A device, random numbers for it, and what has run there.
pub struct Lab<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    random: RefCell<Random>,
    /// The kernels that have run.
    kernels: RefCell<BTreeSet<&'static str>>,
    /// The change that a test makes to each call: a wrong one, or one that emulates what the device lacks.
    #[cfg(any(test, feature = "testing"))]
    pub change: Option<Box<dyn Fn(Call) -> Call + 'a>>,
    /// The name of the case, if a difference beyond its limit ends the test.
    #[cfg(any(test, feature = "testing"))]
    pub asserted: Option<String>,
    /// Whether nothing runs: a test asks which kernels would.
    #[cfg(any(test, feature = "testing"))]
    pub dry: bool,
}

impl<'a> Lab<'a> {
    /// A lab whose random numbers follow from `seed`.
    pub fn new(gpu: &'a Gpu, seed: u64) -> Self {
        Self {
            gpu,
            random: RefCell::new(Random::new(seed)),
            kernels: RefCell::default(),
            #[cfg(any(test, feature = "testing"))]
            change: None,
            #[cfg(any(test, feature = "testing"))]
            asserted: None,
            #[cfg(any(test, feature = "testing"))]
            dry: false,
        }
    }

    /// The kernels that have run since this was asked last.
    pub fn kernels(&self) -> BTreeSet<&'static str> {
        self.kernels.take()
    }

    /// Has this kernel among those that have run.
    pub fn names(&self, kernel: &'static str) {
        self.kernels.borrow_mut().insert(kernel);
    }

    /// `n` normal numbers of mean 0 and variance 1.
    pub fn normals(&self, n: usize) -> Vec<f32> {
        self.random.borrow_mut().normals(n)
    }

    /// `n` normal numbers that f16 has, too.
    pub fn halves(&self, n: usize, size: f32) -> Vec<f16> {
        let values = self.normals(n).into_iter();
        values.map(|x| f16::from_f32(x * size)).collect()
    }

    /// So many random rows of a cache, of values about as large as `size`.
    pub fn rows(&self, layout: Rows, rows: usize, size: f32) -> Vec<f16> {
        let values = self.normals(rows * layout.values()).into_iter();
        layout.write_all(&values.map(|x| x * size).collect::<Vec<_>>())
    }

    /// A number below `n`.
    pub fn below(&self, n: usize) -> usize {
        self.random.borrow_mut().below(n)
    }

    /// A number in [0, 1).
    pub fn uniform(&self) -> f32 {
        self.random.borrow_mut().uniform()
    }

    /// One of the elements.
    pub fn one_of<T: Copy>(&self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Brings `all` into a random order.
    pub fn shuffle<T>(&self, all: &mut [T]) {
        self.random.borrow_mut().shuffle(all);
    }

    /// `n` ids below `of`.
    pub fn ids(&self, n: usize, of: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(of) as u32).collect()
    }

    /// `n` numbers from -3 to 3 that no rounding swaps, in any order.
    pub fn distinct(&self, n: usize) -> Vec<f32> {
        let number = |i: usize| (i as f32 + 0.5 * self.uniform()) * 6.0 / n as f32 - 3.0;
        let mut all: Vec<f32> = (0..n).map(number).collect();
        self.shuffle(&mut all);
        all
    }

    /// `n` cosines and sines of random angles.
    pub fn angles(&self, n: usize) -> Vec<[f32; 2]> {
        let angle = |_| self.uniform() * 6.3;
        (0..n).map(angle).map(|a| [a.cos(), a.sin()]).collect()
    }

    /// A random weight: groups, rows and columns. Products with normal inputs are of size 1.
    pub fn weight(&self, ty: GgmlType, [groups, rows, cols]: [usize; 3]) -> Weight {
        self.random.borrow_mut().weight(ty, groups, rows, cols)
    }

    /// Weights on the device, cut alike.
    pub fn load_alike(&self, weights: &[&Weight]) -> Result<Vec<GpuWeight>, GpuError> {
        let mut loader = Loader::new(self.gpu);
        loader.add_alike(weights)?;
        loader.load(self.gpu, &mut |_| {}).wait()
    }

    /// A weight on the device.
    pub fn load(&self, weight: &Weight) -> Result<GpuWeight, GpuError> {
        Ok(self.load_alike(&[weight])?.remove(0))
    }

    /// A buffer with `data`.
    pub fn given<T: Content>(&self, data: &[T]) -> Range {
        Range::whole(&Buffer::with("given", data))
    }

    /// A buffer with the rows of a cache.
    pub fn cache(&self, data: &[f16]) -> Range {
        self.given(data).holding(Role::Cache)
    }

    /// A buffer with rows of `width` values, and as many behind them as make up `rows`. Those are no numbers: reading one would show.
    pub fn padded(&self, data: &[f32], width: usize, rows: usize) -> Range {
        let mut all = data.to_vec();
        all.resize(width * rows, f32::NAN);
        self.given(&all)
    }

    /// A buffer of `n` floats that are no numbers, so that what is never written cannot pass. Buffers are whole vec4.
    pub fn room(&self, n: usize) -> Range {
        self.given(&vec![f32::NAN; n.next_multiple_of(4)])
    }

    /// A buffer of `n` words of which none is the result of a kernel.
    pub fn words(&self, n: usize) -> Range {
        self.given(&vec![u32::MAX; n])
    }

    /// The geometry that the device takes at a site, or some of those that it allows.
    pub fn geometries(&self, site: &Site, many: bool) -> Result<Vec<Geometry>, GpuError> {
        if !many {
            return Ok(vec![token::geometry(self.gpu, site)?]);
        }
        #[cfg(any(test, feature = "testing"))]
        let most = crate::testing::rounds(GEOMETRIES);
        #[cfg(not(any(test, feature = "testing")))]
        let most = GEOMETRIES;
        let all = site.candidates(self.gpu.machine);
        let step = all.len().div_ceil(most).max(1);
        let first = self.below(step);
        Ok(all.into_iter().skip(first).step_by(step).collect())
    }

    /// Runs `calls` once and waits.
    pub fn run(&self, calls: Vec<Call>, state: State) -> Result<(), GpuError> {
        let most = Most::of(&state);
        self.run_of(calls, most, state)
    }

    /// Runs `calls` once, recorded for replays of up to `most`, and waits.
    pub fn run_of(&self, calls: Vec<Call>, most: Most, state: State) -> Result<(), GpuError> {
        let names = calls.iter().map(|call| call.kernel);
        self.kernels.borrow_mut().extend(names);
        #[cfg(any(test, feature = "testing"))]
        if self.dry {
            return Err(GpuError::NoAdapter);
        }
        #[cfg(any(test, feature = "testing"))]
        let calls = match self.start(calls, most, &state) {
            Some(calls) => calls,
            None => return Ok(()),
        };
        let recording = Recording::new(self.gpu, &Step::of(most, calls)).wait()?;
        recording.submit(self.gpu, &state);
        self.gpu.done().wait()
    }

    /// The calls as this test wants them; none if they have run as Metal's source. A failure tells of them.
    #[cfg(any(test, feature = "testing"))]
    fn start(&self, mut calls: Vec<Call>, most: Most, state: &State) -> Option<Vec<Call>> {
        use crate::gpu::testing::{Recorded, tell};
        if let Some(change) = &self.change {
            calls = calls.into_iter().map(change).collect();
        }
        tell(self.gpu, &calls, state);
        let Some(math) = self.gpu.metal else {
            return Some(calls);
        };
        Recorded::Metal(Step::of(most, calls), math).submit(self.gpu, state);
        None
    }

    /// The first `n` values of what the device has there.
    pub fn read<T: bytemuck::Pod>(&self, range: &Range, n: usize) -> Result<Vec<T>, GpuError> {
        let bytes = (n * size_of::<T>()) as u64;
        self.gpu.read(&range.buffer, range.offset, bytes).wait()
    }

    /// The first `n` values there, of f16 or of f32, as f32.
    pub fn read_wide(&self, range: &Range, n: usize, halves: bool) -> Result<Vec<f32>, GpuError> {
        match halves {
            true => Ok(wide(&self.read(range, n)?)),
            false => self.read(range, n),
        }
    }

    /// Values beside those of the twin. What is no number counts as infinitely far away.
    pub fn close(&self, found: &[f32], twin: &[f32], limit: f64) -> Compared {
        let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        let error: f64 = found.iter().zip(twin).map(square).sum();
        let size: f64 = twin.iter().map(|b| f64::from(*b).powi(2)).sum();
        let nmse = match error {
            0.0 => 0.0,
            error => error / size,
        };
        let is_there = found.len() == twin.len() && !nmse.is_nan();
        let nmse = if is_there { nmse } else { f64::INFINITY };
        self.compared(nmse, limit, || format!("{} values", twin.len()))
    }

    /// A comparison that allows no difference: its error is 0, or infinite.
    pub fn holds(&self, holds: bool, what: impl FnOnce() -> String) -> Compared {
        let nmse = if holds { 0.0 } else { f64::INFINITY };
        self.compared(nmse, 0.0, what)
    }

    #[cfg_attr(
        not(any(test, feature = "testing")),
        expect(unused_variables, reason = "tests tell what differs")
    )]
    fn compared(&self, nmse: f64, limit: f64, what: impl FnOnce() -> String) -> Compared {
        #[cfg(any(test, feature = "testing"))]
        if let Some(name) = &self.asserted
            && nmse > limit
        {
            let kernels = self.kernels.borrow();
            let what = what();
            panic!("{name}: {kernels:?}, {what}: NMSE {nmse:.3e} is above {limit:.0e}");
        }
        Compared { nmse, limit }
    }

    /// Floats on the device beside those of the twin. Nothing may be written behind them.
    pub fn floats(&self, range: &Range, twin: &[f32], limit: f64) -> Result<Compared, GpuError> {
        let mut found: Vec<f32> = self.read(range, range.size as usize / 4)?;
        let behind = found.split_off(twin.len().min(found.len()));
        if behind.iter().all(|v| v.is_nan()) {
            return Ok(self.close(&found, twin, limit));
        }
        Ok(self.holds(false, || format!("{behind:?} behind {}", twin.len())))
    }

    /// Values on the device that must be those of the twin.
    pub fn same<T>(&self, range: &Range, twin: &[T]) -> Result<Compared, GpuError>
    where
        T: bytemuck::Pod + PartialEq + std::fmt::Debug,
    {
        let found = self.read::<T>(range, twin.len())?;
        let at = found
            .iter()
            .zip(twin)
            .position(|(found, twin)| found != twin);
        let what = || {
            at.map_or(String::new(), |i| {
                format!("{:?} for {:?} at {i}", found[i], twin[i])
            })
        };
        Ok(self.holds(at.is_none(), what))
    }
}

/// The form of kernels that a device takes after it has tried it.
pub(super) fn tried<F>(trial: impl Future<Output = Result<F, GpuError>>) -> Result<F, GpuError> {
    complete(trial)
}

/// Values of f16 as f32.
pub(crate) fn wide(values: &[f16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

/// The heads of a block and the type of its cache, for the name of a case.
pub(crate) fn heads(dims: MlaDims) -> String {
    format!("{} heads{}", dims.heads, of_cache(dims.cache))
}

/// The type of a cache behind other words of a case's name.
pub(crate) fn of_cache(cache: CacheType) -> &'static str {
    match cache {
        CacheType::F16 => "",
        CacheType::Q8_0 => ", cache of q8_0",
    }
}

/// The state of a step of `tokens` tokens after `pos` rows.
pub(crate) fn state(tokens: usize, pos: usize) -> State {
    State {
        tokens: tokens as u32,
        pos: pos as u32,
        ..State::default()
    }
}
