//! A count of the passes that ran to their end: what a device did is proven by what it wrote.

use crate::gpu::buffer::Range;
use crate::gpu::call::Call;

/// The dispatch that counts a pass in the first word of `told`.
pub fn call(told: &Range) -> Call {
    Call::new("mark").bind("told", told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::call::State;
    use crate::gpu::testing::{Recorded, download, gpus, upload};
    use crate::kernels::testing::Rng;

    /// Counts one more pass in the first word of `told`; the twin of the kernel, for its test.
    pub(crate) fn mark(told: &mut [u32]) {
        told[0] = told[0].wrapping_add(1);
    }

    #[test]
    fn each_mark_counts_once_and_leaves_the_rest() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            let mut told = [rng.bits() as u32, rng.bits() as u32, 7, 9];
            let buffer = upload(gpu, &told);
            let call = call(&Range::whole(&buffer));
            let calls = [call.clone(), call];
            let recording = Recorded::new(gpu, &calls, Most::token(1), &State::default());
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
