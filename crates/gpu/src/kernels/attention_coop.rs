//! [`attention`](super::attention) of one token by cooperative matrices, for devices that have them.

use super::{CacheType, MlaDims, coop};
use crate::gpu::call::{Call, When};
use crate::gpu::machine::Machine;
use crate::gpu::{Coop, GpuError};

pub(super) use crate::gpu::machine::attention::TOKEN as SHAPES;
pub use crate::gpu::machine::attention::TokenShape as Shape;

/// The shapes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shapes {
    long: Shape,
    short: Shape,
    /// Cache rows up to which the other is taken.
    short_rows: u32,
}

impl Shapes {
    /// The first of `shapes` that is good, and for contexts that are short for this machine the last.
    pub(super) async fn tried<'t>(
        machine: Machine,
        shapes: &[Shape],
        good: impl Fn(Shape) -> coop::Verdict<'t>,
    ) -> Result<Option<Self>, GpuError> {
        for (i, &long) in shapes.iter().enumerate() {
            if good(long).await? {
                for &short in shapes[i + 1..].iter().rev() {
                    if good(short).await? {
                        return Ok(Some(Self::pair(machine, long, short)));
                    }
                }
                return Ok(Some(Self::always(long)));
            }
        }
        Ok(None)
    }

    /// The choice if all of `shapes` are good: the first, and for contexts that are short for this machine the last.
    pub(super) fn untried(machine: Machine, shapes: &[Shape]) -> Option<Self> {
        let (&long, others) = shapes.split_first()?;
        Some(match others.last() {
            Some(&short) => Self::pair(machine, long, short),
            None => Self::always(long),
        })
    }

    /// The shape `long` for every context except those that are short for the machine, which take `short`.
    fn pair(machine: Machine, long: Shape, short: Shape) -> Self {
        Self {
            long,
            short,
            short_rows: machine.tuned.short_shape_rows * machine.spread(),
        }
    }

    /// One shape for every context.
    pub(super) const fn always(shape: Shape) -> Self {
        Self {
            long: shape,
            short: shape,
            short_rows: 0,
        }
    }

    /// The shape for a context of `rows` rows.
    pub(super) const fn at(self, rows: usize) -> Shape {
        if rows <= self.short_rows as usize {
            self.short
        } else {
            self.long
        }
    }

    /// The rows above which there is another shape, among contexts of more rows than `above`.
    pub(super) fn bound_above(self, above: u32) -> Option<u32> {
        (self.long != self.short && above < self.short_rows).then_some(self.short_rows)
    }

    /// Each shape with the replays that take it, those over more rows than `above`.
    pub(super) fn each_above(self, above: u32) -> Vec<(Shape, When)> {
        match self.bound_above(above) {
            None => vec![(self.long, When::rows(above, u32::MAX))],
            Some(bound) => vec![
                (self.short, When::rows(above, bound)),
                (self.long, When::rows(bound, u32::MAX)),
            ],
        }
    }
}

/// The shapes for blocks of these sizes on a device with these matrices and `memory` bytes of workgroup memory, the best first:
/// blocks must have as many heads as a matrix has rows, or more, and columns in whole tiles.
pub(super) fn fitting(coop: Coop, memory: u32, dims: MlaDims) -> impl Iterator<Item = Shape> {
    let good = move |shape: &Shape| {
        shape.coop == coop && shape.fits(dims) && shape.memory(dims) <= memory as usize
    };
    SHAPES.into_iter().filter(good)
}

/// Threads that load a row of the cache together. Each of them loads 8 of the 64 rotated columns.
const LOADERS: usize = 8;
/// Threads that load the query of a head together: the most that have 4 each of the 64 rotated columns.
const QUERY_LOADERS: usize = 16;

/// Values of the latent that a thread loads at once, in 16 bytes.
const fn vector(dims: MlaDims) -> usize {
    match dims.cache {
        CacheType::F16 => 8,
        CacheType::Q8_0 => 16,
    }
}

impl Shape {
    /// Cache rows of a tile and heads of a workgroup.
    pub(super) const fn tile(self) -> (usize, usize) {
        let size = self.coop.size as usize;
        (size * self.row_tiles, size * self.head_tiles)
    }

    /// This shape over arrays of numbers instead of vectors.
    #[cfg(any(test, feature = "bench"))]
    pub(super) const fn of_numbers(self) -> Self {
        Self {
            vectors: false,
            ..self
        }
    }

    const fn subgroups(self) -> usize {
        self.head_tiles * self.row_tiles * self.shares
    }

    /// Bytes of workgroup memory, as the shader declares them.
    fn memory(self, dims: MlaDims) -> usize {
        let size = self.coop.size as usize;
        let (tile, heads) = self.tile();
        let rows = tile.max(heads) * (dims.cache_values() / 4 + 2) * 8;
        let products = self.subgroups() * size * size * 4;
        let weights = heads * (tile + 8) * 2;
        rows + products + weights + heads * 4 + 16
    }

    /// Whether the kernel can work on blocks of these sizes: whole tiles for every subgroup, whole loads for every thread.
    pub(super) fn fits(self, dims: MlaDims) -> bool {
        let (size, lanes) = (self.coop.size as usize, self.coop.lanes as usize);
        let threads = self.subgroups() * lanes;
        let (tile, heads) = self.tile();
        dims.heads >= size
            && dims.heads > heads - size
            && dims.rope == 8 * LOADERS
            && dims.kv_lora.is_multiple_of(vector(dims) * LOADERS)
            && dims.cache_values().is_multiple_of(size * self.shares)
            && dims.kv_lora.is_multiple_of(size * self.subgroups())
            && (tile * LOADERS).is_multiple_of(threads)
            && (heads * QUERY_LOADERS).is_multiple_of(threads)
            && threads / heads <= lanes.min(16)
            && (tile * heads).is_multiple_of(2 * threads)
            && (size * size / 2).is_multiple_of(lanes)
    }

    /// The kernel for blocks of these sizes, still without buffers.
    pub(super) fn kernel(self, dims: MlaDims) -> Call {
        assert!(self.fits(dims), "attention_coop: {self:?} for {dims:?}");
        let (size, lanes) = (self.coop.size as usize, self.coop.lanes as usize);
        let threads = self.subgroups() * lanes;
        let (tile, heads) = self.tile();
        let numbers = [
            ("WG", threads),
            ("LANES", lanes),
            ("MAT", size),
            ("MATRIX_LOADS", size * size / 2 / lanes),
            ("OUT_STORES", (size * size / 4).div_ceil(lanes)),
            ("HEAD_TILES", self.head_tiles),
            ("ROW_TILES", self.row_tiles),
            ("SHARES", self.shares),
            ("STEPS", dims.cache_values() / size / self.shares),
            ("VALUE_TILES", dims.kv_lora / size / self.subgroups()),
            ("LOADERS", LOADERS),
            ("ROW_PASSES", tile * LOADERS / threads),
            ("QUERY_LOADERS", QUERY_LOADERS),
            ("HEAD_PASSES", heads * QUERY_LOADERS / threads),
            ("ROW_LOADS", dims.kv_lora / vector(dims) / LOADERS),
            ("LATENT_LOADS", dims.kv_lora / 4 / QUERY_LOADERS),
            ("PE_LOADS", dims.rope / 4 / QUERY_LOADERS),
            ("THREAD_PAIRS", tile * heads / threads / 2),
            ("HEADS", dims.heads),
            ("ROPE", dims.rope),
            ("KV_LORA", dims.kv_lora),
        ];
        super::with_numbers(dims.rows().read_by(Call::new("attention_coop")), numbers)
            .module("MATRICES", coop::module(size))
            .flag("VECTORS", self.vectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::machine::Profile;
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::Wait;
    use crate::gpu::wait::complete;
    use crate::kernels::attention::{Form, cut_context, trial};
    use crate::kernels::cases::attention::{Context, GLM, Kernel};
    use crate::kernels::testing::agrees_changed;
    use crate::kernels::testing::coop::{APPLE, NVIDIA, emulated_call, emulates, has_matrices};
    use crate::testing::{Rng, drawn};

    /// One token over `rows` rows, in slices of `slice_rows`.
    #[track_caller]
    fn agrees(
        gpu: &Gpu,
        shape: Shape,
        dims: MlaDims,
        [rows, slice_rows]: [usize; 2],
        change: impl Fn(Call) -> Call,
    ) {
        let kernel = Kernel::Of(Form::Matrix(Shapes::always(shape)));
        let case = Context::of_one(kernel, dims, rows, slice_rows).case();
        agrees_changed(gpu, &case, change);
    }

    /// A shape and, where it is another, the same over arrays of numbers.
    fn both(shape: Shape) -> Vec<Shape> {
        let mut both = vec![shape, shape.of_numbers()];
        both.dedup();
        both
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_kernel_agrees_with_its_twin_where_matrices_are_emulated() {
        // Narrow rows: at full width, llvmpipe takes minutes to compile the stand-ins.
        let dims = MlaDims {
            heads: 40,
            kv_lora: 128,
            ..GLM
        };
        let mut rng = Rng::fresh();
        for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
            let kinds = [(NVIDIA, false), (NVIDIA, true), (APPLE, false)];
            let mut cases = vec![];
            for (coop, backwards) in kinds.into_iter().filter(|kind| has_matrices(kind.0)) {
                let shapes = fitting(coop, 48 << 10, dims).flat_map(both);
                // Their softmax stays within the 8 lanes of llvmpipe.
                let narrow =
                    |shape: &Shape| shape.subgroups() * coop.lanes as usize / shape.tile().1 <= 8;
                cases.extend(shapes.filter(narrow).map(|shape| (coop, backwards, shape)));
            }
            for &(coop, backwards, shape) in drawn(&cases, 3) {
                let (tile, _) = shape.tile();
                let dims = dims.with_cache(CacheType::ALL[rng.below(2)]);
                for rows in [[1usize, 2, 17][rng.below(3)], 575] {
                    // Slices of several tiles, the last one shorter and not full.
                    agrees(gpu, shape, dims, [rows, 5 * tile], |call| {
                        emulated_call(&call, coop, backwards)
                    });
                }
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
            let memory = gpu.limits.max_compute_workgroup_storage_size as usize;
            let own = |shape: &Shape| shape.coop == coop && shape.memory(GLM) <= memory;
            for shape in SHAPES.into_iter().filter(own).flat_map(both) {
                check(gpu, shape);
            }
            let without = crate::gpu::GpuOptions {
                tier: Some(gpu.tier),
                no_matrices: true,
                ..Default::default()
            };
            let without = Gpu::open(&without).wait().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(without.coop, None, "what --no-matrices asks for");
        }
    }

    #[track_caller]
    fn check(gpu: &Gpu, shape: Shape) {
        eprintln!("{shape:?}");
        use CacheType::{F16, Q8_0};
        for (heads, rows, cache) in [
            (20, 1, F16),
            (20, 2, F16),
            (16, 17, F16),
            (20, 575, F16),
            (20, 4096, F16),
            (20, 32_768, F16),
            (20, 131_072, F16),
            (20, 1, Q8_0),
            (16, 17, Q8_0),
            (20, 575, Q8_0),
            (20, 32_768, Q8_0),
        ] {
            let dims = MlaDims {
                heads,
                cache,
                ..GLM
            };
            if !shape.fits(dims) {
                continue;
            }
            if gpu.metal.is_some() && rows > 575 {
                continue;
            }
            if ((rows + 3) * dims.cache_row() * 2) as u64 > gpu.max_binding {
                eprintln!("skipped: {rows} rows in a binding");
                continue;
            }
            let form = Form::Matrix(Shapes::always(shape));
            let (_, slice_rows) = cut_context(form, Machine::H200, rows, 1, heads);
            agrees(gpu, shape, dims, [rows, slice_rows as usize], |call| call);
        }
        if gpu.metal.is_some() {
            return;
        }
        let error =
            complete(trial::compared(shape, GLM).nmse(gpu)).unwrap_or_else(|e| panic!("{e}"));
        eprintln!("trial: NMSE {error:.1e}");
        assert!(error <= trial::LIMIT / 4.0, "trial: {error:e}");
    }

    #[test]
    fn contexts_are_short_by_the_cores() {
        let of = |machine| Shapes::untried(machine, &SHAPES[..3]);
        for (machine, rows) in [
            (Machine::H200, 768),
            (Machine::with_cores(Profile::Nvidia, 10), 48),
            (Machine::with_cores(Profile::Nvidia, 40), 192),
            (Machine::with_cores(Profile::Nvidia, 76), 384),
        ] {
            let shapes = of(machine).expect("some");
            assert_eq!(
                [shapes.at(rows), shapes.at(rows + 1)],
                [SHAPES[2], SHAPES[0]]
            );
            let [(_, short), (_, long)] = shapes.each_above(16)[..] else {
                panic!("two shapes for {machine:?}");
            };
            let rows = rows as u32;
            assert_eq!(
                [short, long],
                [When::rows(16, rows), When::rows(rows, u32::MAX)]
            );
            assert_eq!(shapes.each_above(rows).len(), 1);
        }
    }

    #[test]
    fn a_mac_has_shapes_over_numbers_in_its_workgroup_memory() {
        for heads in [20, 16] {
            let shapes: Vec<_> = fitting(APPLE, 32 << 10, MlaDims { heads, ..GLM }).collect();
            assert!(!shapes.is_empty(), "{heads} heads");
            assert!(shapes.iter().all(|shape| !shape.vectors), "{shapes:?}");
        }
    }

    #[test]
    fn sizes_that_leave_tiles_unfilled_are_left_to_the_other_form() {
        let best = |dims| fitting(NVIDIA, 48 << 10, dims).next();
        assert!(best(GLM).is_some());
        for other in [
            MlaDims { heads: 8, ..GLM },
            MlaDims { rope: 40, ..GLM },
            MlaDims {
                kv_lora: 480,
                ..GLM
            },
        ] {
            assert_eq!(best(other), None, "{other:?}");
        }
    }
}
