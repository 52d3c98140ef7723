//! The choice of the kernel that attends.

use super::cut::{self, Cuts};
use super::{HEADS_PER_GROUP, TILE, trial};
use crate::gpu::interface::MAX_SLICES;
use crate::gpu::machine::Machine;
use crate::gpu::machine::attention::{FLOATS_OF_CORE, MATRICES_OF_CORE};
use crate::gpu::{Gpu, GpuError, Target};
use crate::kernels::{MlaDims, attention_coop, attention_heads, coop};

/// The kernel that attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `attention.wgsl`, in f32, everywhere.
    Vector,
    /// `attention_heads.wgsl`, in f32, with subgroups: a cache row is read once for many heads.
    Heads(attention_heads::Shape),
    /// `attention_coop.wgsl`, by cooperative matrices, with queries and weights rounded to f16.
    Matrix(attention_coop::Shapes),
}

impl Form {
    /// The form for steps of one token on this device: [`Form::Matrix`] where it has the matrices, the sizes suit, and a
    /// trial of a shape agrees with the other form and is not slower (wgpu calls them experimental; a device that fails is named in
    /// the log);
    /// else [`Form::Heads`] where there are subgroups and the sizes suit.
    ///
    /// # Errors
    /// The error that the device reports in the trial.
    pub async fn for_decode(gpu: &Gpu, dims: MlaDims) -> Result<Self, GpuError> {
        const WHAT: &str = "the attention of a token";
        let without = Self::without_matrices(gpu, dims);
        let Some(matrices) = gpu.coop else {
            return Ok(without);
        };
        let memory = gpu.limits.max_compute_workgroup_storage_size;
        let shapes: Vec<_> = attention_coop::fitting(matrices, memory, dims).collect();
        if shapes.is_empty() {
            let missing = format!(
                "there is no shape for {dims:?}, {matrices:?} and {memory} bytes of workgroup memory"
            );
            coop::left(gpu, WHAT, &missing);
        }
        let good = |shape| -> coop::Verdict<'_> {
            Box::pin(async move {
                let error = trial::compared(shape, dims).nmse(gpu).await;
                coop::agrees(gpu, WHAT, trial::LIMIT, error)
            })
        };
        let shapes = attention_coop::Shapes::tried(gpu.machine, &shapes, good).await?;
        let Some(by_matrices) = shapes.map(Self::Matrix) else {
            return Ok(without);
        };
        let good = coop::once(gpu, &format!("{WHAT}, {dims:?}"), async {
            let timed = trial::timed(gpu.machine, dims, [by_matrices, without]);
            timed.is_faster(gpu, WHAT).await
        })
        .await?;
        Ok(if good { by_matrices } else { without })
    }

    /// The form for steps of one token if the device's matrices are right and fast.
    pub fn untried(target: &Target, dims: MlaDims) -> Self {
        let by_matrices = |coop| {
            let memory = target.machine.workgroup_memory;
            let shapes: Vec<_> = attention_coop::fitting(coop, memory, dims).collect();
            attention_coop::Shapes::untried(target.machine, &shapes)
        };
        match target.coop.and_then(by_matrices) {
            Some(shapes) => Self::Matrix(shapes),
            None => Self::without_matrices(target, dims),
        }
    }

    fn without_matrices(target: &Target, dims: MlaDims) -> Self {
        attention_heads::shape(target, dims).map_or(Self::Vector, Self::Heads)
    }
}

impl Cuts for Form {
    fn tile(self, rows: usize) -> (usize, usize) {
        match self {
            Self::Vector => (TILE, HEADS_PER_GROUP),
            Self::Heads(shape) => shape.tile(),
            Self::Matrix(shapes) => shapes.at(rows).tile(),
        }
    }

    /// By matrices slices are whole tiles, so a few less than there are cores would be longer by a tile.
    fn full(self, cores: usize) -> usize {
        match self {
            Self::Vector => (FLOATS_OF_CORE * cores).min(MAX_SLICES),
            Self::Heads(_) => FLOATS_OF_CORE * cores,
            Self::Matrix(_) => MATRICES_OF_CORE * cores,
        }
    }

    fn least(self, machine: Machine, tiles: usize) -> usize {
        match self {
            Self::Vector => 1,
            Self::Heads(_) => cut::least(machine.tuned.slices_per_tile_of_heads, tiles),
            Self::Matrix(_) => cut::least(machine.tuned.slices_per_tile_of_matrices, tiles),
        }
    }

    /// By matrices tokens share workgroups.
    fn shares(self) -> bool {
        matches!(self, Self::Matrix(_))
    }

    fn bound_above(self, rows: u32) -> Option<u32> {
        match self {
            Self::Matrix(shapes) => shapes.bound_above(rows),
            Self::Vector | Self::Heads(_) => None,
        }
    }
}

/// Every form that suits a device, for tests of what all of them do.
#[cfg(any(test, feature = "testing"))]
pub fn untried_forms(target: &Target, dims: MlaDims) -> Vec<Form> {
    let mut forms = vec![
        Form::Vector,
        Form::without_matrices(target, dims),
        Form::untried(target, dims),
    ];
    forms.dedup();
    forms
}
