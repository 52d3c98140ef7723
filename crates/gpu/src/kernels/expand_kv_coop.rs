//! [`expand_kv`](super::expand_kv) by cooperative matrices, for devices that have them.

use super::{KvDims, coop};
use crate::gpu::Coop;
use crate::gpu::call::Call;

pub(super) use crate::gpu::machine::attention::{EXPANSION as SHAPES, ExpansionShape as Shape};

/// A kernel of the expansion, still without buffers, and the rows and columns that a workgroup makes.
pub(super) type Tiled = (Call, [usize; 2]);

impl Shape {
    fn threads(self) -> usize {
        self.groups[0] * self.groups[1] * self.coop.lanes as usize
    }

    /// Rows and columns of the tile.
    pub fn tile(self) -> [usize; 2] {
        [0, 1].map(|i| self.groups[i] * self.tiles[i] * self.coop.size as usize)
    }

    /// Whether the kernel can work on these sizes: whole loads for every thread, whole stages.
    pub fn fits(self, dims: KvDims) -> bool {
        let loads = self.tile().map(|n| n * self.depth / 4);
        loads.iter().all(|n| n.is_multiple_of(self.threads()))
            && self.depth.is_multiple_of(self.coop.size as usize)
            && dims.mla.kv_lora.is_multiple_of(self.depth)
            && dims.mla.rope.is_multiple_of(4)
            && dims.width().is_multiple_of(4)
    }

    /// The kernel, still without buffers, and the rows and columns of its tile.
    pub fn tiled(self, dims: KvDims) -> Tiled {
        assert!(self.fits(dims), "expand_kv_coop: {self:?} for {dims:?}");
        let size = self.coop.size as usize;
        let [rows, columns] = self.tile();
        let per_thread = self.threads() * 4;
        let few = if self.vectors { 4 } else { 2 };
        let numbers = [
            ("WG", self.threads()),
            ("LANES", self.coop.lanes as usize),
            ("MAT", size),
            ("GROUPS_M", self.groups[0]),
            ("GROUPS_N", self.groups[1]),
            ("TILES_M", self.tiles[0]),
            ("TILES_N", self.tiles[1]),
            ("DEPTH", self.depth),
            ("DEPTH_STEPS", self.depth / size),
            ("LEFT_LOADS", rows * self.depth / per_thread),
            ("RIGHT_LOADS", columns * self.depth / per_thread),
            ("FEWS", size * size / few / self.coop.lanes as usize),
        ];
        let kernel = super::with_numbers(
            Call::new("expand_kv_coop").variant(dims.numbers_of_expansion()),
            numbers,
        )
        .module("MATRICES", coop::module(size))
        .flag("VECTORS", self.vectors)
        .flag("TOGETHER", self.coop == Coop::LLVMPIPE);
        (kernel, self.tile())
    }
}

/// The shape for a device's matrices, where one suits the sizes.
pub(super) fn shape(dims: KvDims, coop: Coop) -> Option<Shape> {
    SHAPES
        .into_iter()
        .find(|shape| shape.coop == coop && shape.fits(dims))
}

/// The kernel of the expansion, in the shape for these matrices.
pub(super) fn tiled(dims: KvDims, coop: Coop) -> Tiled {
    let shape = shape(dims, coop);
    let shape = shape.unwrap_or_else(|| panic!("expand_kv_coop: {coop:?} for {dims:?}"));
    shape.tiled(dims)
}
