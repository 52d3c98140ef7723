//! A count of the passes that ran to their end: what a device did is proven by what it wrote.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, accesses};
use crate::gpu::pipeline::Spec;
use crate::gpu::shader::Variant;

/// Counts one more pass in the first word of `told`; the twin of the kernel, for its test.
pub fn mark(told: &mut [u32]) {
    told[0] = told[0].wrapping_add(1);
}

/// The pipeline.
pub(super) fn spec() -> Spec {
    Spec {
        kernel: "mark",
        source: include_str!("../../wgsl/mark.wgsl"),
        variant: Variant::default(),
        access: accesses("w"),
    }
}

/// The dispatch that counts a pass in the first word of `told`.
///
/// # Panics
/// If `told` has no room for a word.
pub fn call(told: &Range) -> Call {
    assert!(told.size >= 4, "mark: a word to count in");
    Call::new(spec(), vec![told.clone()], vec![], [Extent::N(1); 3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::record::Recording;
    use crate::gpu::testing::{download, gpus, upload};
    use crate::kernels::testing::Rng;

    #[test]
    fn each_mark_counts_once_and_leaves_the_rest() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            let mut told = [rng.bits() as u32, rng.bits() as u32, 7, 9];
            let buffer = upload(gpu, &told);
            let call = call(&Range::whole(&buffer));
            let recording = Recording::new(gpu, &[call.clone(), call]).expect("a small kernel");
            for _ in 0..3 {
                recording.submit(gpu, &State::default());
            }
            (0..6).for_each(|_| mark(&mut told));
            assert_eq!(
                download::<u32>(gpu, &buffer, 4),
                told,
                "{}",
                gpu.tier.name()
            );
        }
    }
}
