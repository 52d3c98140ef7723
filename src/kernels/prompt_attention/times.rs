//! How long the attention of a prompt takes by each shape, for choosing among them.

use super::tests::glm;
use super::*;
use crate::gpu::buffer::Role;
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::gpu::testing::gpus;
use crate::gpu::{Most, Step};
use crate::kernels::MlaDims;

/// What the kernels take of a GPU, for choosing shapes: times are told, not judged.
#[test]
#[ignore = "a measurement: cargo test --release --lib times_of_every_shape -- --ignored --nocapture"]
fn times_of_every_shape() {
    const ROUNDS: usize = 5;
    let v_of = |dims: &KvDims| dims.mla.heads * (dims.mla.head() + dims.v);
    let deepseek = KvDims {
        mla: MlaDims {
            heads: 16,
            nope: 128,
            ..glm().mla
        },
        v: 128,
    };
    for (gpu, dims) in gpus().iter().flat_map(|g| [(g, glm()), (g, deepseek)]) {
        let mla = dims.mla;
        // As many tokens as a software adapter does in a second or so.
        let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
        let (tokens, n_ctx) = if software { (64, 256) } else { (2048, 34_816) };
        let buffer = |bytes: u64, role| {
            let zeros = gpu.storage("times", bytes, role);
            Range::whole(&zeros.unwrap_or_else(|e| panic!("{e}")))
        };
        let mut forms = vec![(Form::Vector, tiled(dims), "vectors".to_owned())];
        for shape in prompt_attention_coop::SHAPES {
            if Some(shape.coop) == gpu.coop && shape.fits(dims) {
                let form = Form::Matrix(shape.coop);
                forms.push((form, shape.tiled(dims), format!("{shape:?}")));
            }
        }
        for (form, tiled, name) in forms {
            let scratch = Scratch::new(gpu.machine, gpu.max_binding, dims, form, tokens, n_ctx);
            let queries = (tokens * mla.heads * 4) as u64;
            let attention = GpuPromptAttention {
                form,
                q: buffer(queries * mla.head() as u64, Role::Floats),
                rope_table: buffer((n_ctx * mla.rope * 4) as u64, Role::Floats),
                cache: buffer((n_ctx * mla.cache_row() * 2) as u64, Role::Cache),
                dims,
                scale: 0.1,
                max_tokens: tokens as u32,
                scratch: &scratch,
                values: buffer(queries * dims.v as u64, Role::Floats),
            };
            let [expand, _] = attention.calls(gpu);
            let attend = attention.attention(tiled);
            for pos in [0, n_ctx - tokens] {
                let state = State {
                    pos: pos as u32,
                    tokens: tokens as u32,
                    ..State::default()
                };
                let pairs = tokens * pos + tokens * tokens / 2;
                let rows = (pos + tokens) * mla.kv_lora * dims.width();
                for (what, call, flops) in [
                    ("expansion", &expand, 2 * rows),
                    ("attention", &attend, 2 * pairs * v_of(&dims)),
                ] {
                    let recording =
                        Recording::new(gpu, &Step::of(Most::of(&state), [call.clone()]));
                    let recording = recording.unwrap_or_else(|e| panic!("{e}"));
                    let mut best = f64::INFINITY;
                    for _ in 0..ROUNDS {
                        let began = std::time::Instant::now();
                        recording.submit(gpu, &state);
                        gpu.wait(None).unwrap_or_else(|e| panic!("{e}"));
                        best = best.min(began.elapsed().as_secs_f64());
                    }
                    let (ms, tera) = (best * 1e3, flops as f64 / best / 1e12);
                    println!(
                        "{} heads of {}/{}, {tokens} tokens at {pos}: {what} {ms:.2} ms, {tera:.1} TFLOP/s, {name}",
                        mla.heads,
                        mla.head(),
                        dims.v,
                    );
                }
            }
            let own = [
                &scratch.weights,
                &scratch.stats,
                &attention.q,
                &attention.rope_table,
                &attention.cache,
                &attention.values,
            ];
            for range in own.into_iter().chain(&scratch.kv) {
                gpu.release(&range.buffer);
            }
        }
    }
}
