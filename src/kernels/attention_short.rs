//! [`attention`](super::attention) of one token over a short context, a workgroup per head and slice: on devices where the other
//! form is by matrices, whose workgroups take many heads and so are few there.

use super::attention::{Form, GpuAttention};
use super::{MAX_GRID, MlaDims};
use crate::gpu::Gpu;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Extent, Op, When, accesses};
use crate::gpu::shader::Variant;

/// Rows of a slice.
pub const ROWS: u32 = 16;
/// Rows of a context up to which it is used: on an H200 a token of GLM-4.7-Flash is 5% faster with it at up to 128 rows, 2% up to
/// 256, and 1.5% slower at 256 to 384 (benches/notes.md).
const MOST_ROWS: u32 = 256;

/// The pipeline for blocks of these sizes where subgroups have at least so many lanes; `None` where they do not suit.
pub(super) fn spec(dims: MlaDims, lanes: u32) -> Option<Spec> {
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
    suits.then(|| Spec {
        kernel: "attention_short",
        source: include_str!("../../wgsl/attention_short.wgsl"),
        variant: Variant::default()
            .number("ROWS", ROWS)
            .number("SHARE", share)
            .number("KV_LORA", dims.kv_lora as u32)
            .number("ROPE", dims.rope as u32)
            .number("LATENT_LOADS", latent / share)
            .number("ROTATED_LOADS", rotated.div_ceil(share))
            .number("OUTS", pairs.div_ceil(ROWS * share))
            .number("OTHERS", ROWS / 2 - 1),
        access: accesses("rrrww"),
    })
}

/// Rows of a context up to which a device takes this kernel in place of the form: 0 where it does not.
pub fn most_rows(gpu: &Gpu, form: Form, dims: MlaDims) -> u32 {
    let matrices = matches!(form, Form::Matrix(_));
    match spec(dims, gpu.lanes()) {
        Some(_) if matrices => MOST_ROWS,
        _ => 0,
    }
}

impl GpuAttention {
    /// The dispatch over a short context, where [`most_rows`] is not 0.
    ///
    /// A replay must have one token, and slices of up to [`ROWS`] rows.
    ///
    /// # Panics
    /// As [`ops`](Self::ops), or if the sizes do not suit.
    pub fn short_op(&self, gpu: &Gpu) -> Op {
        let mut op = self.ops().remove(0);
        op.when = When::Always;
        assert!(
            self.max_tokens == 1 && self.dims.heads as u32 <= MAX_GRID,
            "one token: {:?}",
            self.dims
        );
        op.spec = spec(self.dims, gpu.lanes()).expect("the sizes suit");
        op.grid = [
            Extent::Splits,
            Extent::N(self.dims.heads as u32),
            Extent::N(1),
        ];
        op
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::{Range, State};
    use crate::gpu::testing::{download, output, run, token_gpus, upload};
    use crate::kernels::attention::{attention, partial_bytes};
    use crate::kernels::attention_merge;
    use crate::kernels::testing::{Rng, assert_close};
    use half::f16;

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        let glm = MlaDims {
            heads: 20,
            nope: 192,
            rope: 64,
            kv_lora: 512,
        };
        let narrow = MlaDims {
            heads: 3,
            nope: 32,
            rope: 40,
            kv_lora: 256,
        };
        for gpu in token_gpus() {
            for (dims, rows) in [
                (glm, 1),
                (glm, 2),
                (glm, 16),
                (glm, 17),
                (glm, 575),
                (MlaDims { heads: 16, ..glm }, 100),
                (narrow, 31),
                (narrow, 48),
            ] {
                if spec(dims, gpu.lanes()).is_some() {
                    check(gpu, dims, rows);
                } else {
                    eprintln!("skipped: {dims:?} with {} lanes", gpu.lanes());
                }
            }
        }
    }

    #[track_caller]
    fn check(gpu: &Gpu, dims: MlaDims, rows: usize) {
        let mut rng = Rng::fresh();
        let row = dims.cache_row();
        // Rows behind the last one are NaN: reading one would show.
        let mut cache: Vec<f16> = rng
            .normals((rows + 3) * row)
            .into_iter()
            .map(f16::from_f32)
            .collect();
        cache[rows * row..].fill(f16::NAN);
        // Queries large enough for weights that differ much, as real ones do.
        let mut queries =
            |n: usize| -> Vec<f32> { rng.normals(n).iter().map(|x| x * 3.0).collect() };
        let q_lat = queries(dims.heads * dims.kv_lora);
        let q_pe = queries(dims.heads * dims.rope);
        let scale = 1.0 / (row as f32).sqrt();
        let mut twin = vec![f32::NAN; q_lat.len()];
        attention(&q_lat, &q_pe, &cache, rows - 1, 1, dims, scale, &mut twin);
        let exact: Vec<f64> = twin.iter().map(|x| f64::from(*x)).collect();
        let partials =
            partial_bytes(dims, 1).map(|bytes| Range::whole(&output(gpu, bytes as usize / 4)));
        let out = output(gpu, q_lat.len());
        let op = GpuAttention {
            form: Form::Vector,
            q_lat: Range::whole(&upload(gpu, &q_lat)),
            q_pe: Range::whole(&upload(gpu, &q_pe)),
            cache: Range::whole(&upload(gpu, &cache)),
            dims,
            scale,
            max_tokens: 1,
            partials: partials.clone(),
        }
        .short_op(gpu);
        let floats = attention_merge::Output::Floats;
        let merge = attention_merge::op(&partials, dims, 1, &Range::whole(&out), floats);
        let state = State {
            pos: rows as u32 - 1,
            tokens: 1,
            splits: (rows as u32).div_ceil(ROWS),
            split_rows: ROWS,
            ..State::default()
        };
        run(gpu, &[op, merge], &state);
        let what = format!("{dims:?}, {rows} rows");
        assert_close(&download(gpu, &out, q_lat.len()), &exact, 1e-11, &what);
    }

    #[test]
    fn sizes_that_leave_threads_without_a_part_are_left_to_the_other_form() {
        let dims = |kv_lora, rope| MlaDims {
            heads: 20,
            nope: 192,
            rope,
            kv_lora,
        };
        assert!(spec(dims(512, 64), 32).is_some());
        assert!(spec(dims(512, 64), 8).is_some());
        for (other, lanes) in [
            (dims(480, 64), 32),
            (dims(512, 60), 32),
            (dims(8192, 64), 32),
        ] {
            assert!(spec(other, lanes).is_none(), "{other:?}");
        }
    }
}
