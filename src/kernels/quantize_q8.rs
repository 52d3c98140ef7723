//! Activations to signed bytes, where no kernel before leaves them so. The twin is [`quantize_activation`].
//!
//! [`quantize_activation`]: crate::quant::activation::quantize_activation

use super::q8::RECORD;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::accesses;
use crate::gpu::record::{Extent, Op, Range, Word};
use crate::gpu::shader::Variant;

/// The pipeline.
pub(super) fn spec() -> Spec {
    Spec {
        kernel: "quantize_q8",
        source: include_str!("../../wgsl/quantize_q8.wgsl"),
        variant: Variant::default(),
        access: accesses("rw"),
    }
}

/// `q` (n / 32 records) = the bytes of `x` (n).
///
/// # Panics
/// If a buffer is too small or `n` no multiple of 32, which would let the kernel index beyond it.
pub fn op(x: &Range, n: u32, q: &Range) -> Op {
    assert!(
        n.is_multiple_of(32) && x.size >= u64::from(n) * 4,
        "input of {n}"
    );
    assert!(q.size >= u64::from(n / 32) * RECORD, "records of {n}");
    let units = n / 32;
    let grid = [Extent::N(units.div_ceil(64)), Extent::N(1), Extent::N(1)];
    Op::new(
        spec(),
        vec![x.clone(), q.clone()],
        vec![Word::U(units)],
        grid,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{int8_gpu, run, upload};
    use crate::kernels::q8::testing::{assert_bytes, room};
    use crate::kernels::testing::Rng;

    #[test]
    fn values_become_bytes() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        let x = rng.normals(20 * 512);
        let q = room(gpu, x.len(), None);
        let op = op(&Range::whole(&upload(gpu, &x)), x.len() as u32, &q.records);
        run(gpu, &[op], &State::default());
        assert_bytes(gpu, &q, None, &x, "quantize");
    }
}
