//! Whether a kernel's declared lengths are what its buffers are made for. It needs no device.

use crate::gpu::buffer::Role;
use crate::gpu::call::Call;
use crate::gpu::{GpuError, Most, Step};

/// Expects that `call` goes with what its kernel declares for replays of up to `most`, but no more when a buffer ends a vector earlier
/// or holds something else. The buffers must be as large as they need to be and no larger.
#[track_caller]
pub fn needs_every_byte(call: &Call, most: Most) {
    let found = |call: Call| Step::of(most, [call]).resolve();
    found(call.clone()).unwrap_or_else(|e| panic!("{e}"));
    for (i, (name, range)) in call.bindings.iter().enumerate() {
        let mut short = call.clone();
        short.bindings[i].1.size -= 16;
        let mut other = call.clone();
        other.bindings[i].1.role = match range.role {
            Role::Floats => Role::Words,
            _ => Role::Floats,
        };
        for changed in [short, other] {
            let what = match found(changed) {
                Err(GpuError::Interface { kernel, what }) if kernel == call.kernel => what,
                result => panic!("{} {name}: {result:?}", call.kernel),
            };
            assert!(what.starts_with(&format!("binding {name} ")), "{what}");
        }
    }
}
