//! [`prompt_attention`](super::prompt_attention) and [`grouped_prompt_attention`](super::grouped_prompt_attention) by cooperative matrices, for
//! devices that have them.

use super::dims::{HeadWidths, PromptDims};
use super::{KvDims, coop};
use crate::gpu::Coop;
use crate::gpu::call::Call;
use crate::gpu::machine::matrix_memory;

pub(super) use crate::gpu::machine::attention::{PROMPT as SHAPES, PromptShape as Shape};

impl Shape {
    fn threads(self) -> usize {
        self.groups * self.coop.lanes as usize
    }

    /// Tokens of a workgroup.
    pub fn tokens(self) -> usize {
        self.groups * self.coop.size as usize
    }

    /// Context rows of its tile.
    pub fn rows(self) -> usize {
        self.row_tiles * self.coop.size as usize
    }

    /// Threads that load a row of keys or values, a vector each at a time.
    fn loaders(widths: HeadWidths) -> usize {
        let whole = |n: &usize| {
            let of_all = n * widths.vector;
            widths.all().iter().all(|c| c.is_multiple_of(of_all))
        };
        [16, 8, 4].into_iter().find(whole).unwrap_or(1)
    }

    /// Columns of the queries that pass through the room of the keys at once, where whole loads of every lane are possible.
    fn query_columns(self, widths: HeadWidths) -> Option<usize> {
        let (size, lanes) = (self.coop.size as usize, self.coop.lanes as usize);
        let room = 2 * self.rows() * (widths.head() + 8);
        [32, 16].into_iter().find(|columns| {
            self.tokens() * (columns + 8) <= room
                && columns.is_multiple_of(size)
                && (size * columns / 4).is_multiple_of(lanes)
                && [widths.key, widths.rotated]
                    .iter()
                    .all(|n| n.is_multiple_of(*columns))
        })
    }

    /// Bytes of workgroup memory.
    pub fn bytes(self, dims: impl PromptDims) -> usize {
        let widths = dims.widths();
        let tile = self.rows() * (widths.head() + widths.value + 16);
        tile * 4 + self.tokens() * ((self.rows() + 4) * 4 + self.rows() * 2) + 16
    }

    /// Whether the kernel can work on these sizes: whole matrices, whole loads for every thread.
    pub fn fits(self, dims: impl PromptDims) -> bool {
        let widths = dims.widths();
        let size = self.coop.size as usize;
        let threads = self.threads();
        widths.value <= self.widest
            && self.bytes(dims) <= matrix_memory(self.coop) as usize
            && self.query_columns(widths).is_some()
            && threads <= 256
            && (self.rows() * Self::loaders(widths)).is_multiple_of(threads)
            && widths.all().iter().all(|n| n.is_multiple_of(widths.vector))
            && widths.value.is_multiple_of(size)
    }

    /// The kernel, still without buffers, and the tokens of a workgroup.
    pub fn tiled(self, dims: impl PromptDims) -> (Call, usize) {
        let widths = dims.widths();
        let query_columns = self
            .query_columns(widths)
            .filter(|_| self.fits(dims))
            .unwrap_or_else(|| panic!("prompt_attention_coop: {self:?}, {dims:?}"));
        let size = self.coop.size as usize;
        let (threads, lanes) = (self.threads(), self.coop.lanes as usize);
        let loaders = Self::loaders(widths);
        // Lanes that share a row, and what each takes of it at once.
        let turn = lanes / size * if self.vectors { 4 } else { 2 };
        let numbers = [
            ("WG", threads),
            ("LANES", lanes),
            ("MAT", size),
            ("GROUPS", self.groups),
            ("ROW_TILES", self.row_tiles),
            ("VALUE_TILES", widths.value / size),
            ("QUERY_COLUMNS", query_columns),
            ("QUERY_RUNS", widths.head() / query_columns),
            ("QUERY_STEPS", query_columns / size),
            ("HEAD_STEPS", widths.head() / size),
            ("QUERY_LOADS", size * query_columns / 4 / lanes),
            ("LOADERS", loaders),
            ("ROW_PASSES", self.rows() * loaders / threads),
            ("KEY_LOADS", widths.key / widths.vector / loaders),
            ("ROPE_LOADS", widths.rotated / widths.vector / loaders),
            ("VALUE_LOADS", widths.value / widths.vector / loaders),
            ("SQUARE_FEWS", size / turn),
            ("SCORE_FEWS", self.rows() / turn),
        ];
        let kernel = Call::new("prompt_attention_coop").variant(dims.numbers_of_attention());
        let kernel = super::with_numbers(kernel, numbers)
            .module("MATRICES", coop::module(size))
            .flag("VECTORS", self.vectors)
            .flag("TOGETHER", self.coop == Coop::LLVMPIPE);
        (kernel, self.tokens())
    }
}

/// The shape for a device's matrices, where one suits the sizes.
pub(super) fn best(dims: KvDims, coop: Coop) -> Option<Shape> {
    SHAPES
        .into_iter()
        .find(|shape| shape.coop == coop && shape.fits(dims))
}
