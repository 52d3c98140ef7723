//! The cost of keeping an idle session in the memory of a device: one touch of all buffers of a decoded token.

mod common;

use common::Bench;
use glimt::engine::Wait;
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::gpu::GpuError;
use glimt_measure::bench::Source;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Touches of which the best counts.
const ROUNDS: usize = 20;
/// Tokens of the context.
const N_CTX: usize = 4096;

fn main() -> ExitCode {
    common::main(run)
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    let models: &[&str] = match bench.quick {
        true => &["tiny-glm:q4_0"],
        false => &["glm-4.7-flash:q4_0", "deepseek-v2-lite:q4_0"],
    };
    for name in models {
        if !bench.wants("warm", name) {
            continue;
        }
        let failed = |reason: String| GpuError::Runtime {
            what: format!("making {name}"),
            reason,
        };
        let source: Source = name.parse().map_err(failed)?;
        let model = source.load().map_err(|e| failed(e.to_string()))?;
        let n_ctx = N_CTX.min(model.config().context_length);
        let gpu = Arc::new(bench.gpu.in_tier(bench.gpu.tier));
        let model = GpuModel::load(Arc::clone(&gpu), model, &mut |_, _| {}).wait()?;
        let backend = GpuBackend::new(Arc::new(model), n_ctx).wait()?;
        let (touch, buffers) = backend.touch_all();
        let (mut host, mut whole) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            touch();
            host = host.min(began.elapsed().as_secs_f64());
            gpu.done().wait()?;
            whole = whole.min(began.elapsed().as_secs_f64());
        }
        println!(
            "{name}: {buffers} buffers, {:.0} us of the host, {:.0} us until all is done",
            host * 1e6,
            whole * 1e6
        );
    }
    Ok(())
}
