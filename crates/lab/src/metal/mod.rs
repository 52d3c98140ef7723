//! Kernels as a Mac gets them, run on the CPU: Metal's source, written by naga as wgpu asks for it, compiled as C++ against a standard
//! library of our own (`cpp`).
//!
//! Threads of a threadgroup are fibers. They run forwards, backwards and mixed, and all three orders must write the same bytes: one
//! order alone would hide a barrier that is missing. Forwards and backwards, each simdgroup runs as far as it can before the next one
//! begins. Mixed, simdgroups keep pace with each other. Buffers have their exact size under the address sanitizer. What nobody has written
//! in the memory of a threadgroup is NaN.
//!
//! Limits: this shows neither the speed, nor errors of Apple's compiler, nor what depends on lanes in lockstep.

mod cpp;
mod msl;
mod program;

use glimt::gpu::testing::metal::Math;
use program::Slot;
use serde::Deserialize;

/// A dispatch, as tests write it into the first line of the input. The contents of the buffers follow.
#[derive(Deserialize)]
struct Asked {
    kernel: String,
    /// The shader in WGSL.
    text: String,
    /// Workgroups.
    grid: [u32; 3],
    /// The bytes of the parameters.
    params: Vec<u8>,
    /// Whether each buffer is written.
    writes: Vec<bool>,
    /// The bytes of each buffer.
    lengths: Vec<usize>,
}

/// The contents of the written buffers after a dispatch, one after the other.
///
/// # Errors
/// The fault of the kernel, or of the input.
pub fn dispatched(input: &[u8], math: Math) -> Result<Vec<u8>, String> {
    let end = input.iter().position(|byte| *byte == b'\n');
    let (head, contents) = input.split_at(end.ok_or("the input has no line")?);
    let asked: Asked = serde_json::from_slice(head).map_err(|e| e.to_string())?;
    let written = msl::written(&asked.text, (2, 4))?;
    let program = program::compiled(&asked.kernel, &written, math)?;
    let mut rest = &contents[1..];
    let mut slots = vec![];
    for ((number, written), length) in written.bindings.iter().zip(asked.writes).zip(asked.lengths)
    {
        let (contents, after) = rest.split_at_checked(length).ok_or("a buffer is missing")?;
        rest = after;
        slots.push(Slot {
            number: *number,
            written,
            contents: contents.to_vec(),
        });
    }
    let params = written.params.map(|number| Slot {
        number,
        written: false,
        contents: asked.params,
    });
    slots.extend(params);
    Ok(program.run(asked.grid, &slots)?.concat())
}
