//! Numbers that were tuned: what no device tells and no rule computes, so that somebody measured it or reckoned it once.

use super::Profile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The numbers that decide how work is divided where a device tells nothing about it.
///
/// They were measured on an NVIDIA H200 through Vulkan, where benches/notes.md keeps what was tried, unless a field says otherwise.
/// Every device starts with them, software with a few of its own; a file of `glimt tune` replaces any of them by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tunables {
    /// Threads of a workgroup of a decoded token's product that keep a core's loads in flight. Reckoned; `glimt tune` found
    /// little to gain. Workgroups that share work before they multiply have twice as many.
    pub product_threads: u32,
    /// Rows of a product from which on every core computes many workgroups one after the other. Then the bytes of the input
    /// bound a kernel, and the latency of its beginning does not.
    pub tall_rows: u32,
    /// Units of 32 weights of a row that are worth two subgroups, where two can share a row.
    pub two_run_units: u32,
    /// Units of a row that a thread asks for at once, of bytes: more keep more bytes in flight, but cost registers.
    pub units_of_bytes: u32,
    /// Units of a row that a thread asks for at once, of floats, which take 32 registers a unit.
    pub units_of_floats: u32,
    /// Units of a row that a thread asks for at once where threads share work before: the fewer registers, the more workgroups begin with
    /// it at once.
    pub units_after_shared_work: u32,
    /// Units that a thread asks for at once on small subgroups, where long shaders take long to compile.
    pub units_of_small_subgroups: u32,
    /// Slices of the attention up to which `attn_v_b` joins them itself, where `glimt tune` measured nothing else. Each of its
    /// workgroups reads all slices of its head; a dispatch of its own is one more dependent step.
    pub merged_slices: u32,
    /// Rows of a workgroup that are worth joining slices for.
    pub merge_rows: u32,
    /// Fewest units of an input that are worth passing through workgroup memory.
    pub staged_units_least: u32,
    /// Most units of an input that are worth passing through workgroup memory.
    pub staged_units_most: u32,
    /// The most sums of squares of a norm that a thread asks for ahead of the weights.
    pub squares_ahead: u32,
    /// The most threads of a workgroup of `token_absorb`.
    pub absorb_threads: u32,
    /// The most threads of a workgroup of `token_absorb`, where several tokens have workgroups of their own.
    pub absorb_threads_of_several: u32,
    /// Tokens of a step from which on a core shall have two workgroups of `token_absorb` instead of one.
    pub absorb_more_of: u32,
    /// The fewest threads that share a row of `token_moe_down` in a step of several tokens.
    pub down_lanes_of_several: u32,
    /// Workgroups of a product of several tokens that a core runs at once. Where there are fewer, each token has its own. Where there are more,
    /// a workgroup takes more tokens, so that weights are read less often from the second-level cache.
    pub workgroups_of_several: u32,
    /// Tokens of a step from which on the choice of experts is a dispatch of its own, and gate and up of the shared expert another one beside
    /// it.
    pub choice_apart_of: u32,
    /// The most units of a row that a thread of `token_absorb` asks for at once.
    pub absorb_units: u32,
    /// Most bytes of workgroup memory for the router's weights of the rows of a workgroup, where `attn_output` leaves partial router
    /// logits.
    pub router_bytes: u32,
    /// Experts of a lane up to which one subgroup chooses. Above, all threads of the workgroup do.
    pub choice_experts: u32,
    /// Rows of a workgroup of gate and up that are worth adding up the partial router logits.
    pub router_sum_rows: u32,
    /// Rows of a workgroup of gate and up that are worth adding up the partial router logits where halves are multiplied in pairs. Gate and
    /// up then hold many registers.
    pub router_sum_rows_of_halves: u32,
    /// Units of the shared expert's row that a thread of `token_moe_down` asks for ahead of the others.
    pub shared_units_ahead: u32,
    /// Cache rows up to which `attention_short` attends, for each workgroup that keeps a core busy; 0 for never.
    pub short_attention_rows: u32,
    /// Cache rows up to which cooperative matrices attend in the shape for short contexts, for each workgroup that keeps a core
    /// busy. Both shapes were measured, the length at which they are equally fast was not.
    pub short_shape_rows: u32,
    /// Slices that take as long to be joined as a tile of cache rows takes by cooperative matrices.
    pub slices_per_tile_of_matrices: u32,
    /// Slices that take as long to be joined as a tile of cache rows takes by the heads' kernel in f32. Reckoned: half as many.
    pub slices_per_tile_of_heads: u32,
    /// Tokens of a prompt that are computed at once, where nothing else is asked for.
    pub chunk: u32,
    /// The most tokens of a step of several sequences. Reckoned: more make each step long for those that wait beside it.
    pub batch_tokens: u32,
    /// Tokens of such a step up to which its products read each weight for a few tokens at a time. More take the products of prompts. Reckoned.
    pub few_of_batch: u32,
    /// Tokens of such a step up to which each has workgroups of its own for its queries, its heads' values and its experts, and all share the
    /// workgroups of other products.
    pub apart_of_batch: u32,
    /// Tokens of such a step up to which it takes the kernels of a decoded token, and each gets what it gets alone.
    pub as_one_of_batch: u32,
    /// Tokens of a step of one sequence up to which it does so. Other kernels are faster for 16, but drafts need the bits of a token alone.
    pub as_one_of_sequence: u32,
    /// Tokens of such a step up to which a tile of an expert has two slots. With more tokens it has four.
    pub short_tiles_of_batch: u32,
    /// Tokens of such a step up to which every layer has buffers of its own. With more tokens only the buffers that are written beside others are a
    /// layer's own, because all of them would take much memory ("A pass for each layer").
    pub own_buffers_of_batch: u32,
    /// Workgroups of a core from which on the products of such a step take more tokens at once. Fewer take fewer tokens, so that more workgroups
    /// read the weight again.
    pub workgroups_of_batch: u32,
    /// Tokens of a prompt up to which it runs token by token where no other prompt came before: compiling steps of several takes longer than it
    /// saves.
    pub short_prompt: u32,
    /// Tokens of a prompt up to which it is computed in steps of few tokens by the kernels of a decoded token. Reckoned.
    pub prompt_as_one: u32,
    /// Tokens of a chunk that leave the attention absorbed in any context: launching more kernels costs more than it saves.
    pub few_tokens: u32,
    /// The number of flops by cooperative matrices that cost as much as one of the absorbed attention in f32. Reckoned.
    pub matrix_speed: u32,
    /// Cache rows of a block of expanded keys and values at least without matrices: sums are written and read once per block.
    pub block_rows: u32,
    /// Cache rows of such a block at most, and by matrices at least.
    pub block_rows_most: u32,
    /// Most ranges that the columns of a router's weight are cut into in a prompt (split-K).
    pub router_split_k: u32,
    /// Workgroups that a range of a router's weight is taken to have.
    pub router_workgroups: u32,
    /// Ranges that the columns of other weights are cut into where their rows and a prompt's tokens do not fill the device.
    pub product_split_k: u32,
    /// Workgroups of a prompt's products in f32 that fill the device, in hundredths of those that keep its cores busy.
    pub float_tiles_percent: u32,
    /// Workgroups of a prompt's products by cooperative matrices that fill the device, in hundredths of those that keep its cores busy.
    pub matrix_tiles_percent: u32,
    /// Workgroups of gate and up together by cooperative matrices that fill the device, in hundredths of those that keep its cores busy:
    /// fewer large tiles are faster than more small ones.
    pub pair_tiles_percent: u32,
}

impl Tunables {
    /// The numbers that were measured on an H200.
    pub const H200: Self = Self {
        product_threads: 256,
        tall_rows: 32768,
        two_run_units: 128,
        units_of_bytes: 8,
        units_of_floats: 4,
        units_after_shared_work: 2,
        units_of_small_subgroups: 2,
        merged_slices: 144,
        merge_rows: 64,
        staged_units_least: 48,
        staged_units_most: 384,
        squares_ahead: 8,
        absorb_threads: 1024,
        absorb_threads_of_several: 512,
        absorb_more_of: 4,
        down_lanes_of_several: 32,
        workgroups_of_several: 2,
        choice_apart_of: 5,
        absorb_units: 4,
        router_bytes: 8 << 10,
        choice_experts: 8,
        router_sum_rows: 32,
        router_sum_rows_of_halves: 16,
        shared_units_ahead: 4,
        short_attention_rows: 2,
        short_shape_rows: 6,
        slices_per_tile_of_matrices: 32,
        slices_per_tile_of_heads: 16,
        chunk: 2048,
        batch_tokens: 640,
        few_of_batch: 64,
        apart_of_batch: 8,
        as_one_of_batch: 4,
        as_one_of_sequence: 16,
        short_tiles_of_batch: 32,
        own_buffers_of_batch: 8,
        workgroups_of_batch: 8,
        short_prompt: 16,
        prompt_as_one: 32,
        few_tokens: 8,
        matrix_speed: 4,
        block_rows: 2048,
        block_rows_most: 4096,
        router_split_k: 8,
        router_workgroups: 16,
        product_split_k: 4,
        float_tiles_percent: 400,
        matrix_tiles_percent: 100,
        pair_tiles_percent: 75,
    };

    /// The numbers for software, measured on llvmpipe: a few workgroups fill it, they take turns on few cores, and a prompt of some length
    /// shall show its progress.
    const SOFTWARE: Self = Self {
        short_attention_rows: 0,
        chunk: 512,
        prompt_as_one: 8,
        batch_tokens: 128,
        product_split_k: 1,
        float_tiles_percent: 0,
        matrix_tiles_percent: 0,
        pair_tiles_percent: 0,
        ..Self::H200
    };

    /// The numbers that devices of this profile start with.
    pub(super) const fn of(profile: Profile) -> Self {
        match profile {
            Profile::Software => Self::SOFTWARE,
            _ => Self::H200,
        }
    }

    /// The numbers of `self`, with those named in `values` replaced.
    pub fn with(self, values: &BTreeMap<String, u32>) -> Result<Self, TunableError> {
        let mut all = self.by_name();
        for (name, &value) in values {
            let Some(found) = all.get_mut(name) else {
                return Err(TunableError::Unknown(name.clone()));
            };
            let least = u32::from(!MAY_BE_ZERO.contains(&name.as_str()));
            if !(least..=MOST).contains(&value) {
                return Err(TunableError::OutOfRange {
                    name: name.clone(),
                    value,
                    least,
                });
            }
            *found = value;
        }
        let all = all.into_iter().map(|(name, value)| (name, value.into()));
        let all = serde_json::Value::Object(all.collect());
        Ok(serde_json::from_value(all).expect("the names of all fields, with numbers"))
    }

    /// All numbers by their names.
    pub fn by_name(&self) -> BTreeMap<String, u32> {
        let all = serde_json::to_value(self).expect("numbers");
        serde_json::from_value(all).expect("numbers by name")
    }
}

/// The largest value of a number that is tuned.
const MOST: u32 = 1 << 20;
/// Numbers whose 0 means never, or any.
const MAY_BE_ZERO: [&str; 9] = [
    "float_tiles_percent",
    "few_tokens",
    "matrix_tiles_percent",
    "merged_slices",
    "pair_tiles_percent",
    "prompt_as_one",
    "short_attention_rows",
    "short_prompt",
    "short_shape_rows",
];

/// Why a number cannot be replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// No tuned number has that name.
    #[error(
        "there is no tuned number '{0}': glimt devices --json lists those that there are, under machine, tuned"
    )]
    Unknown(String),
    /// The value has no meaning.
    #[error("the tuned number '{name}' is {value}, expected {least} to {MOST}")]
    OutOfRange {
        /// The number.
        name: String,
        /// The value that was to replace it.
        value: u32,
        /// The least that has a meaning.
        least: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_can_be_replaced_by_its_name() {
        let all = Tunables::H200.by_name();
        for (name, value) in &all {
            let other = BTreeMap::from([(name.clone(), value + 1)]);
            let changed = Tunables::H200.with(&other).expect("a name of the list");
            let changed = changed.by_name();
            let differ = all.keys().filter(|name| changed[*name] != all[*name]);
            assert_eq!(differ.collect::<Vec<_>>(), [name]);
        }
        let unknown = BTreeMap::from([("threads".to_owned(), 1)]);
        let error = Tunables::H200.with(&unknown).expect_err("no such number");
        assert!(error.to_string().contains("'threads'"), "{error}");
        for (name, value) in all.keys().flat_map(|name| [(name, 0), (name, u32::MAX)]) {
            let other = BTreeMap::from([(name.clone(), value)]);
            let changed = Tunables::H200.with(&other);
            assert_eq!(
                changed.is_ok(),
                value == 0 && MAY_BE_ZERO.contains(&name.as_str())
            );
        }
        assert!(MAY_BE_ZERO.iter().all(|name| all.contains_key(*name)));
    }
}
