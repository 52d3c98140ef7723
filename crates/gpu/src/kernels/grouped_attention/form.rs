//! The division of the attention of decoded tokens among threads.

use crate::gpu::call::Call;
use crate::gpu::machine::Machine;
use crate::gpu::machine::attention::{
    GROUPED_HEADS, GROUPED_HEADS_OF_THREAD, GROUPED_OF_CORE, GROUPED_THREADS,
};
use crate::gpu::{Target, Tier};
use crate::kernels::attention::Cuts;
use crate::kernels::{GroupedDims, with_numbers};

/// The threads of a workgroup. `lanes` neighbours are a run, which attends to rows of its own for some query heads of a key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Query heads of a workgroup, all of one key head.
    heads: usize,
    /// Runs that share rows, each with some of these heads.
    splits: usize,
    /// Threads of a run: a power of two, and at least as many rows of a tile.
    lanes: usize,
    /// Threads of a workgroup.
    threads: usize,
}

impl Form {
    /// The form for blocks of these sizes on a device.
    pub fn of(target: &Target, dims: GroupedDims) -> Self {
        // The heads of a key head in as few workgroups as can hold them, evenly.
        let group = dims.group().max(1);
        let heads = group.div_ceil(group.div_ceil(GROUPED_HEADS));
        let splits = heads.div_ceil(GROUPED_HEADS_OF_THREAD).next_power_of_two();
        let vectors = dims.key.max(dims.value).div_ceil(8).next_power_of_two();
        match target.tier {
            Tier::Plain => Self {
                heads,
                splits,
                lanes: 8,
                threads: 64,
            },
            Tier::Subgroup | Tier::Int8 => Self {
                heads,
                splits,
                lanes: vectors.clamp(8, (target.lanes() as usize).clamp(8, 32)),
                threads: GROUPED_THREADS,
            },
        }
    }

    /// Query heads of a thread.
    const fn heads_of_thread(self) -> usize {
        self.heads.div_ceil(self.splits)
    }

    /// Runs that take different rows.
    const fn phases(self) -> usize {
        self.threads / self.lanes / self.splits
    }

    /// The kernel for blocks of these sizes, still without buffers, and its workgroups for a slice.
    pub(super) fn kernel(self, dims: GroupedDims) -> (Call, u32) {
        assert!(
            dims.heads == dims.kv_heads * dims.group()
                && [dims.key, dims.value].iter().all(|n| n.is_multiple_of(8)),
            "grouped_attention reads 8 values at a time, for whole groups: {dims:?}"
        );
        let parts = dims.group().div_ceil(self.heads);
        let vectors = dims.key.max(dims.value) / 8;
        let call = with_numbers(
            Call::new("grouped_attention"),
            [
                ("WG", self.threads),
                ("LANES", self.lanes),
                ("SPLITS", self.splits),
                ("PHASES", self.phases()),
                ("STAGES", self.lanes / 8),
                ("VECTORS", vectors.div_ceil(self.lanes)),
                ("HEADS_OF", self.heads_of_thread()),
                ("HEADS_HERE", self.heads),
                ("HEADS", dims.heads),
                ("KV_HEADS", dims.kv_heads),
                ("KEY", dims.key),
                ("VALUE", dims.value),
            ],
        );
        (call, (dims.kv_heads * parts) as u32)
    }
}

impl Cuts for Form {
    fn tile(self, _rows: usize) -> (usize, usize) {
        (self.phases() * self.lanes, self.heads)
    }

    fn full(self, cores: usize) -> usize {
        GROUPED_OF_CORE * cores
    }

    fn least(self, _machine: Machine, _tiles: usize) -> usize {
        1
    }
}
