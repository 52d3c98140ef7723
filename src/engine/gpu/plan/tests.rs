use std::sync::Arc;

use super::super::batch::GpuBatch;
use super::super::{GpuBackend, GpuModel};
use super::*;
use crate::engine::ModelSource;
use crate::gpu::wait::complete;
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::models;

fn near(what: &str, found: u64, planned: u64) {
    let ratio = found as f64 / planned as f64;
    assert!(
        (0.98..1.02).contains(&ratio),
        "{what}: {found} bytes, planned {planned}"
    );
}

#[test]
fn the_plan_is_what_a_gpu_allocates() {
    let gpu = match Gpu::open(&GpuOptions::default()) {
        Ok(gpu) => Arc::new(gpu),
        Err(GpuError::NoAdapter) => {
            eprintln!("skipped: no GPU adapter");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let gguf = ModelSource::Embedded.open();
    let gguf = Arc::new(gguf.expect("it is part of the program"));
    let model = models::load(gguf).expect("it is supported");
    let loaded = GpuModel::load(Arc::clone(&gpu), model, &mut |_, _| {}).expect("it fits");
    let of_weights = gpu.allocated();
    let loaded = Arc::new(loaded);
    let model = &*loaded.model;
    // In a small model matrices may be slower, and then the steps have other buffers than a plan before any trial tells.
    let placed = model.place(&gpu).expect("it fits");
    let sessions = complete(loaded.weights.tried(&gpu)).expect("the trials run");
    let sizes = BatchSizes {
        n_ctx: 1000,
        pages: 40,
        sequences: 5,
        tokens: 128,
    };
    let of_batch = BatchPlan::of(&gpu, model, &placed, &*sessions, sizes);
    let [weights, cache, scratch] = of_batch.expect("it fits").bytes;
    near("weights", of_weights, weights);
    let mut batch = GpuBatch::new(Arc::clone(&loaded), sizes).expect("it fits");
    complete(batch.prepare_all_async()).expect("it compiles");
    near("batch", gpu.allocated() - of_weights - cache, scratch);
    let before = gpu.allocated();
    let of_session = SessionPlan::of(&gpu, model, &placed, &*sessions, 1000, Some(100));
    let [_, cache, scratch] = of_session.expect("it fits").bytes;
    let _session = GpuBackend::with_chunk(Arc::clone(&loaded), 1000, Some(100)).expect("it fits");
    near("session", gpu.allocated() - before - cache, scratch);
}
