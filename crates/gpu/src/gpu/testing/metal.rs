//! Kernels as a Mac gets them, run on the CPU by the laboratory (`crates/lab/src/metal`). So every test of a kernel can be repeated for a Mac:
//! `GLIMT_LAB=$PWD/target/debug/glimt-lab GLIMT_TEST_METAL=precise cargo test --release -p glimt-gpu --lib kernels::`. With `fast` the
//! compiler may do what Metal's fast math may: reassociate sums, contract products, flush denormal numbers.

use super::laboratory;
use crate::gpu::call::State;
use crate::gpu::record::runs::{Run, runs};
use crate::gpu::shader::Access;
use crate::gpu::target::profiles;
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::gpu::{Gpu, Step, shader};
use serde_json::json;

/// The freedom of the compiler with sums and products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Math {
    /// Nothing: every order of threads gives the same bytes.
    Precise,
    /// The freedom that Metal's fast math gives.
    Fast,
}

impl Math {
    /// The word for it, in the environment and to the laboratory.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Precise => "precise",
            Self::Fast => "fast",
        }
    }
}

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
pub fn pretending(mut gpu: Gpu, math: Math) -> Gpu {
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
    let text = shader::expand(
        run.spec.kernel,
        run.spec.source,
        &run.spec.variant,
        gpu.tier,
    );
    let text = text.map_err(|e| e.to_string())?.text;
    let writes = |access: &Access| *access == Access::Write;
    let mut contents = vec![];
    for range in &run.bindings {
        let read = gpu.read::<u8>(&range.buffer, range.offset, range.size);
        contents.push(read.wait().map_err(|e| e.to_string())?);
    }
    let asked = json!({
        "kernel": run.spec.kernel,
        "text": text,
        "grid": grid,
        "params": run.params.to_vec(),
        "writes": run.spec.access.iter().map(writes).collect::<Vec<_>>(),
        "lengths": contents.iter().map(Vec::len).collect::<Vec<_>>(),
    });
    let mut input = format!("{asked}\n").into_bytes();
    input.extend(contents.into_iter().flatten());
    let results = laboratory::answer(&["metal", math.name()], input)?;
    let mut rest = results.as_slice();
    for (access, range) in run.spec.access.iter().zip(&run.bindings) {
        if writes(access) {
            let (bytes, after) = rest
                .split_at_checked(range.size as usize)
                .ok_or("a buffer is missing")?;
            rest = after;
            let buffer = range.buffer.made();
            gpu.queue.write_buffer(buffer, range.offset, bytes);
        }
    }
    Ok(())
}
