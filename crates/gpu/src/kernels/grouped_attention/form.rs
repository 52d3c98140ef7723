//! The kernel that attends for decoded tokens, and its division among threads.

use super::trial;
use crate::gpu::call::Call;
use crate::gpu::machine::Machine;
use crate::gpu::machine::attention::{
    GROUPED_HEADS, GROUPED_HEADS_OF_THREAD, GROUPED_OF_CORE, GROUPED_SHORT,
    GROUPED_SHORT_THREADS as SHORT_THREADS, GROUPED_THREADS, MATRICES_OF_CORE,
};
use crate::gpu::{Coop, Gpu, GpuError, Target, Tier};
use crate::kernels::attention::Cuts;
use crate::kernels::grouped_attention_coop::{self, Shape};
use crate::kernels::{CacheType, GroupedDims, coop, with_numbers};
use crate::quant::repack::UNIT;

/// The kernel that attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `grouped_attention.wgsl`, in f32, everywhere.
    Runs(Runs),
    /// `grouped_attention_coop.wgsl`, by cooperative matrices, with queries and weights rounded to f16, for so many heads of a workgroup.
    Matrix(Shape, usize),
}

impl Form {
    /// The form for a device: [`Form::Matrix`] where it has the matrices, the sizes suit, and a trial agrees with the other form and is not slower
    /// (wgpu calls them experimental; a device that fails is named in the log); else [`Form::Runs`].
    ///
    /// # Errors
    /// The error that the device reports in the trial.
    pub async fn of(gpu: &Gpu, dims: GroupedDims) -> Result<Self, GpuError> {
        const WHAT: &str = "the grouped attention of a token";
        let without = Self::without_matrices(gpu, dims);
        let Some(matrices) = gpu.coop else {
            return Ok(without);
        };
        let memory = gpu.limits.max_compute_workgroup_storage_size;
        let Some(by_matrices) = Self::by_matrices(matrices, memory, dims) else {
            let missing = format!(
                "there is no shape for {dims:?}, {matrices:?} and {memory} bytes of workgroup memory"
            );
            coop::left(gpu, WHAT, &missing);
            return Ok(without);
        };
        let forms = [by_matrices, without];
        let good = coop::once(gpu, &format!("{WHAT}, {dims:?}"), async {
            let error = trial::compared(forms, dims).nmse(gpu).await;
            let timed = trial::timed(gpu.machine, forms, dims);
            Ok(coop::agrees(gpu, WHAT, trial::LIMIT, error)? && timed.is_faster(gpu, WHAT).await?)
        })
        .await?;
        Ok(if good { by_matrices } else { without })
    }

    /// The form for a device if its matrices are right and fast.
    pub fn untried(target: &Target, dims: GroupedDims) -> Self {
        let memory = target.machine.workgroup_memory;
        let by_matrices = |coop| Self::by_matrices(coop, memory, dims);
        let by_matrices = target.coop.and_then(by_matrices);
        by_matrices.unwrap_or_else(|| Self::without_matrices(target, dims))
    }

    /// The form that runs on every device.
    pub fn without_matrices(target: &Target, dims: GroupedDims) -> Self {
        Self::Runs(Runs::of(target, dims))
    }

    fn by_matrices(coop: Coop, memory: u32, dims: GroupedDims) -> Option<Self> {
        let shape = grouped_attention_coop::fitting(coop, memory, dims)?;
        Some(Self::of_shape(shape, dims))
    }

    /// The form by matrices in this shape.
    pub(in crate::kernels) fn of_shape(shape: Shape, dims: GroupedDims) -> Self {
        Self::Matrix(shape, shape.heads(dims))
    }

    /// The kernel for blocks of these sizes, still without buffers, and its workgroups for a slice.
    pub(super) fn kernel(self, dims: GroupedDims) -> (Call, u32) {
        match self {
            Self::Runs(runs) => runs.kernel(dims),
            Self::Matrix(shape, _) => shape.kernel(dims),
        }
    }
}

/// The threads of a workgroup. `lanes` neighbours are a run, which attends to rows of its own for some query heads of a key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// Query heads of a workgroup, all of one key head.
    heads: usize,
    /// Runs that share rows, each with some of these heads.
    splits: usize,
    /// Threads of a run: a power of two, and at least as many rows of a tile.
    lanes: usize,
    /// Threads of a workgroup.
    threads: usize,
    /// Workgroups that share a core.
    of_core: usize,
    /// Whether it is for tier `plain`, where runs use workgroup memory.
    plain: bool,
    /// Whether a run asks for the keys and values of all its rows of a tile before it computes with any.
    eager: bool,
}

/// The attention to short contexts: a workgroup has a query head and attends to the whole context, so that there is nothing to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// Its threads.
    pub(super) runs: Runs,
    /// The rows of a context up to which it is faster.
    pub rows: u32,
}

impl Short {
    /// The attention to short contexts for blocks of these sizes on a device, where it has any: units of 32 values must not begin in one head and
    /// end in the next.
    pub fn of(target: &Target, dims: GroupedDims) -> Option<Self> {
        let machine = target.machine;
        let rows = GROUPED_SHORT * machine.tuned.short_attention_rows * machine.spread();
        let whole = target.tier != Tier::Plain && dims.value.is_multiple_of(UNIT);
        let runs = Runs::of(target, dims);
        let runs = Runs {
            heads: 1,
            splits: 1,
            threads: SHORT_THREADS,
            eager: runs.stages() <= 2,
            ..runs
        };
        let fits = runs.memory(dims, 1) <= MEMORY;
        (rows > 0 && whole && fits).then_some(Self { runs, rows })
    }
}

/// Rows of a slice that is a whole context.
const WHOLE: u32 = 1 << 30;

/// Bytes of workgroup memory that every device has.
const MEMORY: usize = 16 << 10;

impl Runs {
    /// The threads for blocks of these sizes on a device.
    ///
    /// # Panics
    /// If the sizes do not [suit](super::suits).
    pub fn of(target: &Target, dims: GroupedDims) -> Self {
        assert!(super::suits(dims), "grouped_attention: {dims:?}");
        let plain = target.tier == Tier::Plain;
        let of_type = usize::from(dims.cache == CacheType::Q8_0);
        // The heads of a key head in as few workgroups as can hold them, evenly.
        let group = dims.group();
        let heads = group.div_ceil(group.div_ceil(GROUPED_HEADS));
        let splits = heads.div_ceil(GROUPED_HEADS_OF_THREAD[of_type]);
        let splits = splits.next_power_of_two();
        let vectors = dims.key.max(dims.value).div_ceil(8).next_power_of_two();
        let most_lanes = if plain { 8 } else { target.lanes() as usize };
        let most_threads = if plain { 64 } else { GROUPED_THREADS };
        let runs = |(threads, splits)| Self {
            heads,
            splits,
            lanes: vectors.clamp(8, most_lanes.clamp(8, 32)),
            threads,
            of_core: GROUPED_OF_CORE[of_type],
            plain,
            eager: false,
        };
        let threads = [most_threads, 64].into_iter();
        let divided = threads.flat_map(|threads| [1, 2, 4].map(|more| (threads, more * splits)));
        let mut all = divided.map(runs);
        let fits = |runs: &Self| runs.phases() > 0 && runs.memory(dims, 1) <= MEMORY;
        all.find(fits).expect("heads of suitable widths fit")
    }

    /// Query heads of a thread.
    const fn heads_of_thread(self) -> usize {
        self.heads.div_ceil(self.splits)
    }

    /// Times that a run takes 8 rows of a tile.
    const fn stages(self) -> usize {
        self.lanes / 8
    }

    /// Runs that take different rows.
    const fn phases(self) -> usize {
        self.threads / self.lanes / self.splits
    }

    /// Bytes of workgroup memory, with the sums of so many heads of each run at the end.
    const fn memory(self, dims: GroupedDims, buffers: usize) -> usize {
        let runs = self.phases() * self.splits;
        let told = if self.plain { 8 * self.threads } else { 0 };
        (buffers * runs * dims.value + (2 * runs + told) * self.heads_of_thread()) * 4
    }

    /// The kernel for blocks of these sizes, still without buffers, and its workgroups for a slice.
    fn kernel(self, dims: GroupedDims) -> (Call, u32) {
        let parts = dims.group().div_ceil(self.heads);
        let vectors = dims.key.max(dims.value) / 8;
        let numbers = [
            ("WG", self.threads),
            ("LANES", self.lanes),
            ("SPLITS", self.splits),
            ("PHASES", self.phases()),
            ("STAGES", self.stages()),
            ("VECTORS", vectors.div_ceil(self.lanes)),
            ("HEADS_OF", self.heads_of_thread()),
            ("HEADS_HERE", self.heads),
            ("HEADS", dims.heads),
            ("KV_HEADS", dims.kv_heads),
            ("KEY", dims.key),
            ("VALUE", dims.value),
            ("BUFFERS", 1 + usize::from(self.memory(dims, 2) <= MEMORY)),
        ];
        let call = with_numbers(Call::new("grouped_attention"), numbers).flag("EAGER", self.eager);
        (call, (dims.kv_heads * parts) as u32)
    }
}

impl Cuts for Form {
    fn tile(self, _rows: usize) -> (usize, usize) {
        match self {
            Self::Runs(runs) => (runs.phases() * runs.lanes, runs.heads),
            Self::Matrix(shape, heads) => (shape.tile_rows(), heads),
        }
    }

    fn full(self, cores: usize) -> usize {
        match self {
            Self::Runs(runs) => runs.of_core * cores,
            Self::Matrix(..) => MATRICES_OF_CORE * cores,
        }
    }

    /// By matrices a core has room for one workgroup, so one more than there are cores would take as long as all of them.
    fn wanted(self, cores: usize, parts: usize) -> usize {
        match self {
            Self::Runs(_) => self.full(cores).div_ceil(parts),
            Self::Matrix(..) => (self.full(cores) / parts).max(1),
        }
    }

    fn least(self, _machine: Machine, _tiles: usize) -> usize {
        1
    }

    fn short_slice(self) -> u32 {
        WHOLE
    }
}
