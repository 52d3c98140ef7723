//! Protects emulated subgroups: they do what subgroups of their size should, and a model in them gives the same.

use glimt::engine::ModelSource;
use glimt::engine::Sampling;
use glimt::engine::backend::Backend;
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::gpu::buffer::{Range, Role};
use glimt::gpu::call::{Call, State};
use glimt::gpu::record::Recording;
use glimt::gpu::testing::{WAVE_SIZES, laboratory, waves};
use glimt::gpu::wait::Wait;
use glimt::gpu::{Gpu, GpuOptions, Tier};
use glimt::gpu::{Most, Step};
use glimt::kernels::testing::nmse;
use glimt::models::mla::Model;
use glimt_formats::testing::some;
use std::ops::ControlFlow;
use std::sync::Arc;

#[test]
fn subgroups_have_the_emulated_size_and_do_what_they_should() {
    let source = "#write data: array<vec4<u32>> @words(4 * 128)
var<workgroup> order: array<u32, 128>;
const WG = 128u;
#main
  order[t] = t;
  var sum = subgroupAdd(f32(order[t]));
  if (subgroup == 1u) {
    var i = 0u;
    loop {
      if (i >= 3u) { break; }
      sum = f32(subgroupMax(u32(sum) + lane_id));
      i += 1u;
    }
  }
  workgroupBarrier();
  var near = t;
  // Rows of 8 lanes that meet while others do not, and then all.
  if (t < 72u) { near = subgroupShuffleXor(near, 4u); }
  near += subgroupShuffleXor(t, 4u);
  let other = subgroupShuffleXor(vec2<f32>(f32(t), 0.5), 8u);
  let far = order[127u - t];
  data[t] = vec4(subgroup_size * 1000u + lane_id, u32(sum), u32(other.x) * 1000u + near, far + subgroupShuffle(t, 3u));
}";
    laboratory::use_program(env!("CARGO_BIN_EXE_glimt-lab"));
    for gpu in waves(Tier::Subgroup, &WAVE_SIZES) {
        let size = gpu.waves.expect("it is emulated");
        let data = Range::whole(&gpu.storage("test", 128 * 16, Role::Words).wait().unwrap());
        let call = Call::inline("waves", source).bind("data", &data);
        let recording = Recording::new(&gpu, &Step::of(Most::token(1), [call]))
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
        recording.submit(&gpu, &State::default());
        let found: Vec<[u32; 4]> = gpu.read(&data.buffer, 0, 128 * 16).wait().unwrap();
        for (t, found) in (0..128).zip(found) {
            let first = t / size * size;
            let mut sum = (first..first + size).sum::<u32>();
            if first / size == 1 {
                sum += 3 * (size - 1);
            }
            let near = if t < 72 { t ^ 4 } else { t };
            let expected = [
                size * 1000 + t % size,
                sum,
                (first + ((t % size) ^ 8)) * 1000 + near + (t ^ 4),
                127 - t + first + 3,
            ];
            assert_eq!(found, expected, "thread {t} of {size}");
        }
    }
}

/// Logits of tokens one by one, then of a prompt, then what is drawn after it.
fn results(gpu: Gpu) -> (Vec<f32>, Vec<f32>, Vec<u32>) {
    let gguf = ModelSource::Embedded.open().expect("it is in the program");
    let model = Arc::new(Model::load(Arc::new(gguf)).expect("it is supported"));
    let model = GpuModel::load(Arc::new(gpu), model, &mut |_, _| {})
        .wait()
        .expect("it is small");
    let mut backend = GpuBackend::new(Arc::new(model), 96)
        .wait()
        .expect("a small cache");
    let tokens: Vec<u32> = (0..40).map(|i| 11 * i + 5).collect();
    let mut rows = vec![];
    for (pos, token) in tokens[..6].iter().enumerate() {
        let on_row = &mut |_, row: &[f32]| {
            rows.extend_from_slice(row);
            ControlFlow::Continue(())
        };
        backend
            .logits(&[*token], pos, on_row)
            .wait()
            .expect("it fits");
    }
    let mut prompt = vec![];
    let on_row = &mut |i, row: &[f32]| {
        if i == 39 {
            prompt.extend_from_slice(row);
        }
        ControlFlow::Continue(())
    };
    backend.logits(&tokens, 0, on_row).wait().expect("it fits");
    let mut drawn = vec![];
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.02,
        repeat_penalty: 1.1,
        seed: 7,
        ..Sampling::GREEDY
    };
    let on_token = &mut |id| {
        drawn.push(id);
        ControlFlow::Continue(())
    };
    backend
        .decode(&tokens, &sampling, 6, on_token)
        .wait()
        .expect("it fits");
    (rows, prompt, drawn)
}

fn check(tier: Tier, sizes: &[u32], limit: f64) {
    laboratory::use_program(env!("CARGO_BIN_EXE_glimt-lab"));
    let emulating = waves(tier, &some(sizes, 1));
    if emulating.is_empty() {
        return;
    }
    let options = GpuOptions {
        tier: Some(tier),
        no_matrices: true,
        ..GpuOptions::default()
    };
    let (rows, prompt, drawn) = results(Gpu::open(&options).wait().expect("it opened before"));
    for gpu in emulating {
        let size = gpu.waves.expect("it is emulated");
        assert_eq!(gpu.lanes(), gpu.info.subgroup_min_size);
        let found = results(gpu);
        for (what, found, expected) in
            [("tokens", &found.0, &rows), ("a prompt", &found.1, &prompt)]
        {
            let exact: Vec<_> = expected.iter().map(|x| f64::from(*x)).collect();
            let error = nmse(found, &exact);
            eprintln!(
                "{what} in subgroups of {size}, tier {}: NMSE {error:.1e}",
                tier.name()
            );
            assert!(error <= limit, "{what} in subgroups of {size}: {error:e}");
        }
        assert_eq!(found.2, drawn, "subgroups of {size}");
    }
}

#[test]
fn a_model_in_larger_waves_is_the_same() {
    check(Tier::Subgroup, &[16, 32, 64], 1e-6);
}

/// Sums in another order round a few activations to other bytes.
#[test]
fn a_model_on_bytes_in_larger_waves_is_nearly_the_same() {
    check(Tier::Int8, &[32], 1e-3);
}
