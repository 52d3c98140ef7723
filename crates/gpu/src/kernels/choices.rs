//! All that a device may choose among, for the benches, which time every choice (feature `bench`).

use super::attention::{self, GpuAttention};
use super::prompt_attention::{self, GpuPromptAttention};
use super::{KvDims, MlaDims, attention_coop, attention_heads, prompt_attention_coop};
use crate::gpu::Target;
use crate::gpu::call::Call;

/// Every form of the attention of one token by this device's matrices, over vectors and over numbers.
pub fn attention_by_matrices(target: &Target, dims: MlaDims) -> Vec<attention::Form> {
    let memory = target.machine.workgroup_memory;
    let fitting = |coop| attention_coop::fitting(coop, memory, dims);
    let shapes = target.coop.into_iter().flat_map(fitting);
    let both = shapes.flat_map(|shape| match shape.vectors {
        true => vec![shape, shape.of_numbers()],
        false => vec![shape],
    });
    both.map(|shape| attention::Form::Matrix(attention_coop::Shapes::always(shape)))
        .collect()
}

/// Every form of the attention of one token in f32: the one for all devices, and those for subgroups.
pub fn attention_by_floats(target: &Target, dims: MlaDims) -> Vec<attention::Form> {
    let memory = target.machine.workgroup_memory;
    let shapes = attention_heads::candidates(dims, memory);
    let by_heads = shapes.into_iter().map(attention::Form::Heads);
    [attention::Form::Vector]
        .into_iter()
        .chain(by_heads)
        .collect()
}

/// The dispatch of `attention` for a replay that takes `rows` rows.
pub fn attention_call(attention: &GpuAttention, rows: u32) -> Option<Call> {
    let state = crate::gpu::call::State {
        pos: rows - 1,
        tokens: 1,
        ..Default::default()
    };
    let mut calls = attention.calls().into_iter();
    calls.find(|call| call.when.holds(&state))
}

/// A way to attend to the keys and values of a prompt.
pub struct PromptAttention {
    /// The form: by matrices or not.
    pub form: prompt_attention::Form,
    /// The shape of its workgroups.
    pub name: String,
    tiled: (Call, usize),
}

impl PromptAttention {
    /// All ways to attend on this device.
    pub fn all(target: &Target, dims: KvDims) -> Vec<Self> {
        let mut all = vec![Self {
            form: prompt_attention::Form::Vector,
            name: "vectors".to_owned(),
            tiled: prompt_attention::tiled(dims),
        }];
        for shape in prompt_attention_coop::SHAPES {
            if Some(shape.coop) == target.coop && shape.fits(dims) {
                let (size, groups, rows) = (shape.coop.size, shape.groups, shape.row_tiles);
                all.push(Self {
                    form: prompt_attention::Form::Matrix(shape.coop),
                    name: format!(
                        "matrices of {size}x{size}, {groups} subgroups, {rows} row tiles"
                    ),
                    tiled: shape.tiled(dims),
                });
            }
        }
        all
    }

    /// The expansion of a block of the context and the attention to it, each repeated for every block.
    pub fn calls(self, attention: &GpuPromptAttention<'_>) -> [Call; 2] {
        [attention.expansion(), attention.attention(self.tiled)]
    }
}
