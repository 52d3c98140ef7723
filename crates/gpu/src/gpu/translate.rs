//! Translation of a shader's text by naga for the drivers of native builds. Browsers have compilers of their own.

use super::barriers;
use super::budget::Budget;
use std::borrow::Cow;
use wgpu::{Backend, Limits, ShaderSource, naga};

/// The module that `text` is to a backend, of a device with these limits.
///
/// # Errors
/// The fault of the text, in words.
pub(super) fn source(
    text: String,
    backend: Backend,
    _subgroups: bool,
    limits: &Limits,
) -> Result<ShaderSource<'static>, String> {
    let mut module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
    if backend == Backend::Vulkan {
        barriers::order_workgroup_memory(&mut module);
    }
    // wgpu 30 leaves this to the driver, and one was seen never to come back.
    Budget::of(&module)?.check(limits)?;
    Ok(ShaderSource::Naga(Cow::Owned(module)))
}
