//! [`attention`](super::attention) of tokens over short contexts, a workgroup per head and slice: where the other form has workgroups that take
//! many heads and so are few there.

use super::attention::{Form, GpuAttention};
use super::{MAX_GRID, MlaDims};
use crate::gpu::call::Call;
use crate::gpu::interface::MAX_SLICES;
use crate::gpu::machine::Machine;
use crate::gpu::{Target, Tier};

pub use crate::gpu::machine::attention::SHORT_ROWS as ROWS;

/// The kernel for blocks of these sizes where subgroups have at least `lanes` lanes, still without buffers; `None` where they do not
/// suit.
fn kernel(dims: MlaDims, lanes: u32) -> Option<Call> {
    // Two rows share a subgroup.
    let share = (lanes / 2).min(16);
    let (latent, rotated) = (dims.kv_lora as u32 / 8, dims.rope as u32 / 8);
    let pairs = dims.kv_lora as u32 / 2;
    let suits = share >= 2
        && dims.kv_lora.is_multiple_of(8)
        && dims.rope.is_multiple_of(8)
        && latent.is_multiple_of(share)
        && latent / share <= 16
        && rotated > 0;
    suits.then(|| {
        dims.rows()
            .read_by(Call::new("attention_short"))
            .number("ROWS", ROWS)
            .number("SHARE", share)
            .number("HEADS", dims.heads as u32)
            .number("KV_LORA", dims.kv_lora as u32)
            .number("ROPE", dims.rope as u32)
            .number("LATENT_LOADS", latent / share)
            .number("ROTATED_LOADS", rotated.div_ceil(share))
            .number("OUTS", pairs.div_ceil(ROWS * share))
            .number("OTHERS", ROWS / 2 - 1)
    })
}

/// Bytes of workgroup memory.
const fn memory(dims: MlaDims) -> usize {
    (ROWS as usize / 2 * dims.kv_lora + 2 * ROWS as usize) * 4
}

/// Whether a device has the kernel for blocks of these sizes.
pub fn fits(target: &Target, dims: MlaDims) -> bool {
    let machine = target.machine;
    target.tier != Tier::Plain
        && kernel(dims, machine.lanes).is_some()
        && memory(dims) <= machine.workgroup_memory as usize
}

/// Rows of a context up to which a device takes this kernel in place of the form: 0 where it does not.
pub fn most_rows(target: &Target, form: Form, dims: MlaDims) -> u32 {
    let few_workgroups = matches!(form, Form::Matrix(_) | Form::Heads(_));
    match few_workgroups && fits(target, dims) {
        true => worthwhile(target.machine),
        false => 0,
    }
}

/// Rows of a context up to which this kernel is faster: in longer ones the other form has as many workgroups as there are cores.
fn worthwhile(machine: Machine) -> u32 {
    let rows = machine.tuned.short_attention_rows * machine.spread();
    rows.min(MAX_SLICES as u32 * ROWS)
}

impl GpuAttention {
    /// The dispatch over a short context, where [`most_rows`] is not 0.
    ///
    /// A replay must have slices of up to [`ROWS`] rows.
    ///
    /// # Panics
    /// Panics like [`calls`](Self::calls), or if the sizes do not suit.
    pub fn short_call(&self, target: &Target) -> Call {
        let dims = self.dims;
        assert!(
            dims.heads as u32 <= MAX_GRID,
            "a workgroup per head: {dims:?}"
        );
        let kernel = kernel(dims, target.lanes()).expect("the sizes suit");
        self.call(kernel, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::machine::Profile;
    use crate::gpu::testing::token_gpus;
    use crate::kernels::CacheType;
    use crate::kernels::cases::Case;
    use crate::kernels::cases::attention::{Context, DEEPSEEK, GLM, Kernel};
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn contexts_are_short_by_the_cores() {
        assert_eq!(worthwhile(Machine::H200), 256);
        let rows = [8, 10, 40, 76].map(|n| worthwhile(Machine::with_cores(Profile::Apple, n)));
        assert_eq!(rows, [16, 16, 64, 128]);
        assert_eq!(worthwhile(Machine::with_cores(Profile::Software, 8)), 0);
    }

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        agree_everywhere(token_gpus(), of_device);
    }

    /// Cases of the kernel for short contexts, as far as it suits the device.
    fn of_device(gpu: &Gpu) -> Vec<Case> {
        let narrow = MlaDims {
            heads: 3,
            nope: 32,
            rope: 40,
            kv_lora: 256,
            cache: CacheType::F16,
        };
        let contexts = [
            (GLM, 1),
            (GLM, 2),
            (GLM, 16),
            (GLM, 17),
            (GLM, 575),
            (DEEPSEEK, 100),
            (narrow, 31),
            (narrow, 48),
            (GLM.with_cache(CacheType::Q8_0), 17),
            (GLM.with_cache(CacheType::Q8_0), 575),
            (narrow.with_cache(CacheType::Q8_0), 31),
        ];
        let suits = |(dims, _): &(MlaDims, usize)| fits(gpu, *dims);
        let contexts = contexts.into_iter().filter(suits);
        let slice_rows = ROWS as usize;
        let case = |(dims, rows)| Context::of_one(Kernel::Short, dims, rows, slice_rows).case();
        contexts.map(case).collect()
    }

    #[test]
    fn sizes_that_leave_threads_without_a_part_are_left_to_the_other_form() {
        let dims = |kv_lora, rope| MlaDims {
            heads: 20,
            nope: 192,
            rope,
            kv_lora,
            cache: CacheType::F16,
        };
        assert!(kernel(dims(512, 64), 32).is_some());
        assert!(kernel(dims(512, 64), 8).is_some());
        for (other, lanes) in [
            (dims(480, 64), 32),
            (dims(512, 60), 32),
            (dims(8192, 64), 32),
        ] {
            assert!(kernel(other, lanes).is_none(), "{other:?}");
        }
    }
}
