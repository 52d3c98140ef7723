//! Kernels as a Mac gets them, run on the CPU: Metal's source, written by naga as wgpu asks for it, compiled as C++ against a standard
//! library of our own (`metal/cpp`).
//!
//! Threads of a threadgroup are fibers. They run forwards, backwards and mixed, and all three orders must write the same bytes: one
//! order alone would hide a barrier that is missing. Forwards and backwards, each simdgroup runs as far as it can before the next one
//! begins. Mixed, simdgroups keep pace with each other. Buffers have their exact size under the address sanitizer. What nobody has written
//! in the memory of a threadgroup is NaN. So every test of a kernel can be repeated for a Mac:
//! `GLIMT_TEST_METAL=precise cargo test --release --lib kernels::`. With `fast` the compiler may do what Metal's fast math may: reassociate
//! sums, contract products, flush denormal numbers.
//!
//! Limits: this shows neither the speed, nor errors of Apple's compiler, nor what depends on lanes in lockstep.

mod cpp;
mod msl;
mod program;

use crate::gpu::call::State;
use crate::gpu::record::runs::{Run, runs};
use crate::gpu::shader::Access;
use crate::gpu::target::profiles;
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::gpu::{Gpu, Step};
pub use program::Math;
use program::Slot;

/// Has the kernel tests run what Metal would compile.
const METAL: &str = "GLIMT_TEST_METAL";

/// How the tests are to run kernels for Metal, if at all.
pub fn wanted() -> Option<Math> {
    let value = std::env::var(METAL).ok()?;
    match value.as_str() {
        "precise" => Some(Math::Precise),
        "fast" => Some(Math::Fast),
        other => panic!("{METAL} is {other}, not precise or fast"),
    }
}

/// Whether kernels run for Metal on the CPU, for which a test leaves this out. Then it is said.
pub fn skips(what: &str) -> bool {
    let skips = wanted().is_some();
    if skips {
        eprintln!("skipped for Metal on the CPU: {what}");
    }
    skips
}

/// `gpu` told to be a Mac's in its tier; its own memory keeps the buffers.
pub(super) fn pretending(mut gpu: Gpu, math: Math) -> Gpu {
    let mac = profiles()
        .into_iter()
        .find(|target| target.name.starts_with("Apple") && target.tier == gpu.tier);
    if let Some(mac) = mac {
        gpu.target.machine = mac.machine;
        gpu.target.coop = mac.coop;
    }
    gpu.metal = Some(math);
    gpu
}

/// Runs the dispatches of a replay of `step` for `state`, one after the other.
#[track_caller]
pub(super) fn replay(gpu: &Gpu, math: Math, step: &Step, state: &State) {
    for buffer in step.buffers() {
        complete(gpu.realise(buffer)).unwrap_or_else(|e| panic!("{e}"));
    }
    for run in runs(step, state).unwrap_or_else(|e| panic!("{e}")) {
        dispatch(gpu, math, &run).unwrap_or_else(|e| panic!("{} for Metal: {e}", run.spec.kernel));
    }
}

fn dispatch(gpu: &Gpu, math: Math, run: &Run) -> Result<(), String> {
    let grid = match &run.counts {
        Some(counts) => {
            let words = gpu
                .read::<u32>(&counts.buffer, counts.offset, 12)
                .wait()
                .map_err(|e| e.to_string())?;
            [words[0], words[1], words[2]]
        }
        None => run.grid,
    };
    if run.grid.contains(&0) || grid.contains(&0) {
        return Ok(());
    }
    let written = msl::written(&run.spec, gpu.tier, (2, 4))?;
    let program = program::compiled(&run.spec, &written, math)?;
    let mut slots = vec![];
    for (binding, (access, range)) in run.spec.access.iter().zip(&run.bindings).enumerate() {
        let contents = gpu
            .read::<u8>(&range.buffer, range.offset, range.size)
            .wait()
            .map_err(|e| e.to_string())?;
        slots.push(Slot {
            number: written.bindings[binding],
            written: *access == Access::Write,
            contents,
        });
    }
    let params = written.params.map(|number| Slot {
        number,
        written: false,
        contents: run.params.to_vec(),
    });
    slots.extend(params);
    let mut results = program.run(grid, &slots)?.into_iter();
    for (access, range) in run.spec.access.iter().zip(&run.bindings) {
        if *access == Access::Write {
            let bytes = results.next().ok_or("a slot is missing")?;
            let buffer = range.buffer.made();
            gpu.queue.write_buffer(buffer, range.offset, &bytes);
        }
    }
    Ok(())
}
