//! [`attention`](super::attention) of single tokens without matrices, a cache row read once for many heads: for devices with
//! subgroups.

use super::MlaDims;
use crate::gpu::call::Call;
use crate::gpu::machine::MAX_THREADS;
use crate::gpu::machine::attention::{FEW_ROWS, HEADS, HEADS_OF_THREAD};
use crate::gpu::{Target, Tier};

pub use crate::gpu::machine::attention::HeadsShape as Shape;

/// The shape for blocks of these sizes on a device; `None` where it has no subgroups or the sizes do not suit.
pub(super) fn shape(target: &Target, dims: MlaDims) -> Option<Shape> {
    let machine = target.machine;
    Shape::of(dims, machine.workgroup_memory).filter(|shape| {
        target.tier != Tier::Plain && shape.threads(dims) <= machine.threads as usize
    })
}

impl Shape {
    /// The shape for blocks of these sizes, with `memory` bytes of workgroup memory; `None` where none suits.
    pub fn of(dims: MlaDims, memory: u32) -> Option<Self> {
        // Takes the choice that leaves the fewest threads without a head: the second for GLM's 20 heads, the first for 16.
        let idle = |heads: &usize| dims.heads.next_multiple_of(*heads);
        let heads = HEADS_OF_THREAD.into_iter().min_by_key(idle)?;
        // Workgroups are whole subgroups of 64 lanes at most, and a group has a thread for 8 columns.
        let whole = 64usize.div_ceil((dims.kv_lora / 8).max(1));
        let groups = (dims.heads / heads).clamp(1, whole.max(HEADS.groups));
        let shape = Self {
            heads,
            groups,
            ..HEADS
        };
        let of_few_rows = Self {
            rows: FEW_ROWS,
            ..shape
        };
        [shape, of_few_rows]
            .into_iter()
            .find(|shape| shape.suits(dims, memory))
    }

    /// Whether the kernel can work on blocks of these sizes with `memory` bytes of workgroup memory.
    fn suits(self, dims: MlaDims, memory: u32) -> bool {
        self.fits(dims) && self.memory(dims) <= memory as usize
    }

    /// Cache rows of a tile and heads of a workgroup.
    pub(super) const fn tile(self) -> (usize, usize) {
        (self.phases * self.rows, self.heads * self.groups)
    }

    const fn threads(self, dims: MlaDims) -> usize {
        self.phases * self.groups * (dims.kv_lora / 8)
    }

    /// Bytes of workgroup memory, as the shader declares them.
    fn memory(self, dims: MlaDims) -> usize {
        let (tile, heads) = self.tile();
        let rows = tile * dims.cache_values() * 2 * if self.two_buffers { 2 } else { 1 };
        let scores = heads * (dims.kv_lora / 64 * tile + 8) * 4;
        rows + scores + heads * tile * 4 + heads * 4 + 8
    }

    /// Whether the kernel can work on blocks of these sizes: columns for every thread, runs of whole groups of 8 lanes.
    pub(super) fn fits(self, dims: MlaDims) -> bool {
        let columns = dims.kv_lora / 8;
        let threads = self.threads(dims);
        let of_phases = (self.phases - 1) * self.groups * dims.kv_lora * 4;
        dims.kv_lora.is_multiple_of(64)
            && dims.rope.is_multiple_of(8)
            && dims.rope.is_multiple_of(columns)
            && (dims.rope == columns || (dims.rope / columns).is_multiple_of(2))
            && self.rows.is_multiple_of(8)
            && threads.is_multiple_of(64)
            && threads <= MAX_THREADS as usize
            && of_phases <= self.tile().0 * dims.cache_values() * 2
    }

    /// The kernel for blocks of these sizes, still without buffers.
    pub(super) fn kernel(self, dims: MlaDims) -> Call {
        assert!(self.fits(dims), "attention_heads: {self:?} for {dims:?}");
        let (tile, heads) = self.tile();
        let threads = self.threads(dims);
        let softeners = (heads * 8).next_multiple_of(64);
        let one_pe = dims.rope == dims.kv_lora / 8;
        let numbers = [
            ("WG", threads),
            ("HEADS_OF", self.heads),
            ("GROUPS", self.groups),
            ("PHASES", self.phases),
            ("ROWS", self.rows),
            ("BUFFERS", if self.two_buffers { 2 } else { 1 }),
            ("LOADS", (tile * dims.cache_values() / 8).div_ceil(threads)),
            ("PE_PAIRS", dims.rope / (dims.kv_lora / 8) / 2),
            ("RUNS", dims.kv_lora / 64),
            ("EIGHTS", tile / 8),
            ("SOFTENERS", softeners),
            ("PASSES", softeners.div_ceil(threads)),
            ("OTHERS", self.phases - 1),
            ("HEADS", dims.heads),
            ("ROPE", dims.rope),
            ("KV_LORA", dims.kv_lora),
        ];
        super::with_numbers(dims.rows().read_by(Call::new("attention_heads")), numbers)
            .flag("ONE_PE", one_pe)
            .flag("TWO_BUFFERS", self.two_buffers)
    }
}

/// Shapes to choose among by measuring, for blocks of these sizes and `memory` bytes of workgroup memory.
#[cfg(feature = "bench")]
pub(super) fn candidates(dims: MlaDims, memory: u32) -> Vec<Shape> {
    let mut all = vec![];
    for (heads, groups) in [
        (5, 4),
        (5, 2),
        (4, 5),
        (10, 2),
        (4, 4),
        (8, 2),
        (4, 2),
        (8, 1),
    ] {
        // No heads computed for nothing.
        if !dims.heads.is_multiple_of(heads * groups) {
            continue;
        }
        for (phases, rows) in [(1, 8), (2, 8), (1, 16), (4, 8)] {
            for two_buffers in [true, false] {
                let shape = Shape {
                    heads,
                    groups,
                    phases,
                    rows,
                    two_buffers,
                };
                if shape.suits(dims, memory) && shape.threads(dims) <= 512 {
                    all.push(shape);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::testing::{WAVE_SIZES, gpus, waves};
    use crate::kernels::CacheType;
    use crate::kernels::attention::Form;
    use crate::kernels::cases::attention::{Context, GLM, Kernel};
    use crate::kernels::testing::agrees_changed;
    use crate::testing::{Rng, drawn};

    /// One token over `rows` rows, in slices of `slice_rows`.
    #[track_caller]
    fn agrees(gpu: &Gpu, dims: MlaDims, shape: Shape, rows: usize, slice_rows: usize) {
        let kernel = Kernel::Of(Form::Heads(shape));
        let case = Context::of_one(kernel, dims, rows, slice_rows).case();
        agrees_changed(gpu, &case, |call| call);
    }

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        let glm = GLM;
        let deepseek = MlaDims { heads: 16, ..glm };
        let tales = MlaDims { heads: 4, ..glm };
        // The last workgroup has fewer heads than the others. There are more rotated columns than threads, or fewer.
        let narrow = MlaDims {
            heads: 11,
            nope: 32,
            rope: 64,
            kv_lora: 128,
            cache: CacheType::F16,
        };
        let wide = MlaDims {
            heads: 3,
            rope: 64,
            kv_lora: 256,
            ..glm
        };
        let shape = |heads, groups, phases, rows, two_buffers| Shape {
            heads,
            groups,
            phases,
            rows,
            two_buffers,
        };
        let mut rng = Rng::fresh();
        for gpu in gpus().iter().filter(|gpu| gpu.tier != Tier::Plain) {
            let cases = [
                (glm, Shape::of(glm, 32 << 10).expect("it suits")),
                (glm, Shape::of(glm, 16 << 10).expect("it suits")),
                (deepseek, Shape::of(deepseek, 32 << 10).expect("it suits")),
                (tales, Shape::of(tales, 32 << 10).expect("it suits")),
                (narrow, Shape::of(narrow, 32 << 10).expect("it suits")),
                (wide, shape(2, 1, 2, 8, false)),
                (glm, shape(5, 2, 2, 8, false)),
                (glm, shape(10, 2, 1, 16, false)),
                (narrow, shape(4, 4, 2, 8, true)),
            ];
            let codes = |(dims, shape): (MlaDims, Shape)| (dims.with_cache(CacheType::Q8_0), shape);
            let of_codes = cases.map(codes);
            for &(dims, shape) in drawn(&cases, 4).into_iter().chain(drawn(&of_codes, 2)) {
                let (tile, _) = shape.tile();
                // One row, some that fill no tile, and slices: the others have no code of their own.
                for rows in [[1usize, 2][rng.below(2)], tile + rng.below(2), 575] {
                    // Slices of several tiles, the last one shorter and not full.
                    agrees(gpu, dims, shape, rows, 5 * tile);
                }
            }
        }
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_kernel_agrees_in_larger_subgroups() {
        let dims = MlaDims { heads: 4, ..GLM };
        let shape = Shape::of(dims, 24 << 10).expect("it suits");
        for gpu in waves(Tier::Subgroup, &WAVE_SIZES) {
            for rows in [1usize, 21] {
                agrees(&gpu, dims, shape, rows, rows);
            }
        }
    }
}
