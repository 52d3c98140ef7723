//! Cases of the attention of decoded tokens whose query heads share keys and values.

use super::Case;
use crate::gpu::Gpu;

pub(crate) fn of_device(_gpu: &Gpu) -> Vec<Case> {
    vec![]
}
