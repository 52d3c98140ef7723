//! [`grouped_attention`](super::grouped_attention) of decoded tokens by cooperative matrices, for devices that have them.

use super::{CacheType, GroupedDims, coop};
use crate::gpu::Coop;
use crate::gpu::call::Call;
use crate::kernels::sequences::PAGE;

use crate::gpu::machine::attention::GROUPED_TOKEN as SHAPES;
pub use crate::gpu::machine::attention::GroupedTokenShape as Shape;

/// The most values of a head: a subgroup keeps its queries, its sums and the rows that are on their way in registers.
const WIDEST: usize = 128;

/// The shape for blocks of these sizes, or none if no shape suits. The device has these matrices and `memory` bytes of workgroup memory.
pub(super) fn fitting(coop: Coop, memory: u32, dims: GroupedDims) -> Option<Shape> {
    let good = |shape: &Shape| {
        shape.coop == coop && shape.fits(dims) && shape.memory(dims) <= memory as usize
    };
    SHAPES.into_iter().find(good)
}

impl Shape {
    /// Cache rows of a tile.
    pub(super) const fn tile_rows(self) -> usize {
        self.groups * self.rows()
    }

    /// This shape over arrays of numbers instead of vectors.
    #[cfg(test)]
    const fn of_numbers(self) -> Self {
        Self {
            vectors: false,
            ..self
        }
    }

    const fn size(self) -> usize {
        self.coop.size as usize
    }

    const fn lanes(self) -> usize {
        self.coop.lanes as usize
    }

    /// Cache rows of a subgroup in a turn.
    const fn rows(self) -> usize {
        self.row_tiles * self.size()
    }

    /// Most heads of a workgroup: a group is divided evenly.
    pub(super) fn heads(self, dims: GroupedDims) -> usize {
        let group = dims.group();
        group.div_ceil(group.div_ceil(self.size()))
    }

    /// Rows of a matrix of which the softmax is computed.
    fn head_rows(self, dims: GroupedDims) -> usize {
        if self.heads(dims) <= 8 { 8 } else { 16 }
    }

    /// Values of a row of a matrix that the lanes with this row take at once.
    fn turn(self, dims: GroupedDims) -> usize {
        self.lanes() / self.head_rows(dims) * self.few()
    }

    /// Values that a lane takes at once.
    const fn few(self) -> usize {
        if self.vectors { 4 } else { 2 }
    }

    /// Threads that load a row together, a vector of 8 values each at a time. With codes they are at most 8, so that a thread has several vectors for
    /// each word of scales.
    fn loaders(self, dims: GroupedDims) -> Option<usize> {
        let most = match dims.cache {
            CacheType::F16 => 16,
            CacheType::Q8_0 => 8,
        };
        let whole = |n: &usize| {
            *n <= most.min(self.lanes())
                && [dims.key, dims.value]
                    .iter()
                    .all(|w| w.is_multiple_of(8 * n))
                && (self.rows() * n).is_multiple_of(self.lanes())
        };
        [16, 8, 4, 2].into_iter().find(whole)
    }

    /// Matrices of sums that a subgroup leaves at once for the others.
    const fn pass_tiles(self, dims: GroupedDims) -> usize {
        if (dims.value / self.size()).is_multiple_of(2) {
            2
        } else {
            1
        }
    }

    /// Bytes of workgroup memory, as the shader declares them.
    fn memory(self, dims: GroupedDims) -> usize {
        let rows = self.rows() * (dims.key.max(dims.value) + 8) * 2;
        let columns = self.rows().max(self.pass_tiles(dims) * self.size());
        let scores = self.size() * (columns + 4) * 4;
        let weights = self.size() * (self.rows() + 8) * 2;
        let held = if self.coop == Coop::LLVMPIPE { 16 } else { 0 };
        self.groups * (rows + scores + weights + 8 * self.head_rows(dims)) + held
    }

    /// Whether the kernel can work on blocks of these sizes: whole matrices, whole loads for every thread, the scales of a head in one word of a
    /// cache with codes, and subgroups whose rows lie in one page.
    pub(super) fn fits(self, dims: GroupedDims) -> bool {
        let size = self.size();
        let in_one =
            dims.cache == CacheType::F16 || (dims.kv_heads * dims.key).is_multiple_of(dims.value);
        dims.key.max(dims.value) <= WIDEST
            && [dims.key, dims.value]
                .iter()
                .all(|n| n.is_multiple_of(size))
            && in_one
            && self.loaders(dims).is_some()
            && self.head_rows(dims) <= size
            && (self.head_rows(dims) * dims.key / 4).is_multiple_of(self.lanes())
            && self.rows().is_multiple_of(self.turn(dims))
            && size.is_multiple_of(self.turn(dims))
            && (PAGE as usize).is_multiple_of(self.rows())
    }

    /// The kernel for blocks of these sizes, still without buffers, and its workgroups for a slice.
    ///
    /// # Panics
    /// If the sizes do not suit the shape.
    pub(super) fn kernel(self, dims: GroupedDims) -> (Call, u32) {
        let loaders = self.loaders(dims).filter(|_| self.fits(dims));
        let loaders =
            loaders.unwrap_or_else(|| panic!("grouped_attention_coop: {self:?}, {dims:?}"));
        let (size, lanes, heads) = (self.size(), self.lanes(), self.heads(dims));
        let (threads, pass_tiles) = (self.groups * lanes, self.pass_tiles(dims));
        let turn = self.turn(dims);
        let left = heads * pass_tiles * size / self.few();
        let numbers = [
            ("WG", threads),
            ("LANES", lanes),
            ("MAT", size),
            ("GROUPS", self.groups),
            ("HEADS_HERE", heads),
            ("HEAD_ROWS", self.head_rows(dims)),
            ("ROW_TILES", self.row_tiles),
            ("STEPS", dims.key / size),
            ("VALUE_TILES", dims.value / size),
            ("QUERY_LOADS", self.head_rows(dims) * dims.key / 4 / lanes),
            ("LOADERS", loaders),
            ("ROW_PASSES", self.rows() * loaders / lanes),
            ("KEY_LOADS", dims.key / 8 / loaders),
            ("VALUE_LOADS", dims.value / 8 / loaders),
            ("SCORE_FEWS", self.rows() / turn),
            ("SQUARE_FEWS", size / turn),
            ("PASSES", dims.value / size / pass_tiles),
            ("PASS_TILES", pass_tiles),
            ("OUT_FEWS", left.div_ceil(threads)),
            ("HEADS", dims.heads),
            ("KV_HEADS", dims.kv_heads),
            ("KEY", dims.key),
            ("VALUE", dims.value),
        ];
        let kernel = super::with_numbers(Call::new("grouped_attention_coop"), numbers)
            .module("MATRICES", coop::module(size))
            .flag("VECTORS", self.vectors)
            .flag("TOGETHER", self.coop == Coop::LLVMPIPE);
        let parts = dims.group().div_ceil(heads);
        (kernel, (dims.kv_heads * parts) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::machine::{Machine, matrix_memory};
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::complete;
    use crate::gpu::{Gpu, Target};
    use crate::kernels::attention::{Cuts, cut_context};
    use crate::kernels::cases::grouped_attention::{context, dims};
    use crate::kernels::grouped_attention::{Form, trial};
    use crate::kernels::testing::agrees_changed;
    use crate::kernels::testing::coop::{
        APPLE, NVIDIA, emulated_call, emulated_error, emulates, has_matrices,
    };
    use crate::testing::{Rng, drawn};

    /// A shape and, where it is another, the same over arrays of numbers.
    fn both(shape: Shape) -> Vec<Shape> {
        let mut both = vec![shape, shape.of_numbers()];
        both.dedup();
        both
    }

    #[track_caller]
    fn agrees(
        gpu: &Gpu,
        shape: Shape,
        dims: GroupedDims,
        of: [usize; 3],
        change: impl Fn(Call) -> Call,
    ) {
        let form = Form::of_shape(shape, dims);
        agrees_changed(gpu, &context(form, dims, of), change);
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_kernel_agrees_with_its_twin_where_matrices_are_emulated() {
        let mut rng = Rng::fresh();
        for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
            let kinds = [(NVIDIA, false), (NVIDIA, true), (APPLE, false)];
            let kinds = kinds.into_iter().filter(|kind| has_matrices(kind.0));
            for (coop, backwards) in kinds {
                let shapes = SHAPES.into_iter().filter(|shape| shape.coop == coop);
                // Few subgroups, which llvmpipe compiles in seconds.
                let shapes = shapes.map(|shape| Shape { groups: 2, ..shape });
                let shapes: Vec<Shape> = shapes.flat_map(both).collect();
                // A full matrix of heads, an uneven part of one, two parts of a group; a slice of several tiles, the last one not full.
                let cases = [
                    ([16, 2, 64, 64], CacheType::F16, 1),
                    ([14, 2, 64, 64], CacheType::Q8_0, 1),
                    ([18, 1, 64, 32], CacheType::F16, 3),
                    ([12, 1, 32, 64], CacheType::F16, 2),
                    ([3, 1, 64, 128], CacheType::F16, 1),
                    ([4, 2, 128, 64], CacheType::Q8_0, 2),
                ];
                for &(shape, cache, tokens) in drawn(&cases, 3) {
                    let dims = dims(shape).with_cache(cache);
                    let shape = shapes[rng.below(shapes.len())];
                    assert!(shape.fits(dims), "{shape:?} {dims:?}");
                    let tile = shape.tile_rows();
                    for pos in [0, 5 * tile - 3] {
                        agrees(gpu, shape, dims, [pos, tokens, 3 * tile], |call| {
                            emulated_call(&call, coop, backwards)
                        });
                    }
                }
            }
        }
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_trial_passes_where_matrices_are_emulated_and_fails_where_they_are_wrong() {
        let shape = SHAPES.into_iter().find(|shape| shape.coop == NVIDIA);
        let shape = shape.expect("one for these matrices");
        let shape = Shape { groups: 2, ..shape };
        for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
            for cache in CacheType::ALL {
                let dims = dims([6, 2, 64, 64]).with_cache(cache);
                let forms = [
                    Form::of_shape(shape, dims),
                    Form::without_matrices(gpu, dims),
                ];
                let error = |scale| emulated_error(gpu, &trial::compared(forms, dims), scale);
                let [right, wrong] = [0.125, 0.12].map(error);
                eprintln!("{cache:?}: NMSE {right:.1e}, {wrong:.1e}");
                assert!(right <= trial::LIMIT / 4.0, "{cache:?}: {right:e}");
                assert!(wrong > trial::LIMIT, "{cache:?}: {wrong:e}");
            }
        }
    }

    #[test]
    fn the_kernel_agrees_with_its_twin_on_matrices() {
        for gpu in gpus() {
            let Some(coop) = gpu.coop else {
                eprintln!("skipped: tier {} (no matrices)", gpu.tier.name());
                continue;
            };
            let memory = gpu.limits.max_compute_workgroup_storage_size;
            for (shape, cache, rows) in [
                ([32, 4, 128, 128], CacheType::F16, 1),
                ([32, 4, 128, 128], CacheType::F16, 575),
                ([32, 4, 128, 128], CacheType::F16, 32_768),
                ([32, 2, 128, 128], CacheType::F16, 4096),
                ([14, 2, 64, 64], CacheType::F16, 700),
                ([32, 4, 128, 128], CacheType::Q8_0, 32_768),
                ([9, 3, 64, 64], CacheType::Q8_0, 575),
            ] {
                let dims = dims(shape).with_cache(cache);
                let Some(shape) = fitting(coop, memory, dims) else {
                    panic!("no shape for {dims:?}");
                };
                if gpu.metal.is_some() && rows > 575 {
                    continue;
                }
                for shape in both(shape) {
                    let form = Form::of_shape(shape, dims);
                    let (tile, _) = form.tile(rows);
                    let slice = rows.div_ceil(40).next_multiple_of(tile);
                    agrees(gpu, shape, dims, [rows - 1, 1, slice], |call| call);
                    let without = Form::without_matrices(gpu, dims);
                    let error = complete(trial::compared([form, without], dims).nmse(gpu));
                    let error = error.unwrap_or_else(|e| panic!("{e}"));
                    eprintln!("trial: NMSE {error:.1e}");
                    assert!(error <= trial::LIMIT / 4.0, "trial: {error:e}");
                }
            }
        }
    }

    #[test]
    fn sizes_that_suit_have_a_shape_for_each_kind_of_matrices() {
        for coop in [Coop::NVIDIA, Coop::APPLE, Coop::LLVMPIPE] {
            let best =
                |shape, cache| fitting(coop, matrix_memory(coop), dims(shape).with_cache(cache));
            for shape in [
                [32, 4, 128, 128],
                [14, 2, 64, 64],
                [9, 3, 64, 64],
                [32, 8, 128, 128],
            ] {
                for cache in CacheType::ALL {
                    assert!(best(shape, cache).is_some(), "{coop:?} {shape:?} {cache:?}");
                }
            }
            // Too wide, no whole matrices, and values whose scales lie in two words.
            for (shape, cache) in [
                ([4, 2, 256, 256], CacheType::F16),
                ([10, 2, 24, 100], CacheType::F16),
                ([6, 3, 64, 128], CacheType::Q8_0),
            ] {
                assert_eq!(best(shape, cache), None, "{coop:?} {shape:?}");
            }
        }
    }

    #[test]
    fn devices_with_matrices_take_them() {
        let form = Form::untried(&Target::h200(), dims([32, 4, 128, 128]));
        assert!(matches!(form, Form::Matrix(_, 8)), "{form:?}");
        assert_eq!(form.tile(4096), (96, 8));
        // No workgroup waits for another: of 132 cores, those of 8 key heads take 128 at most.
        for (shape, most) in [([32, 4, 128, 128], 33), ([32, 8, 128, 128], 16)] {
            let dims = dims(shape);
            let form = Form::untried(&Target::h200(), dims);
            for rows in [4096, 30_000, 131_072] {
                let (slices, _) = cut_context(form, Machine::H200, rows, 1, dims.heads);
                assert!(slices <= most, "{slices} slices of {rows} rows, {shape:?}");
            }
        }
    }
}
