//! The kernels before and behind the products: rows of the vocabulary and of the cache, the choice of a token, and copies.

use super::lab::{Compared, Lab, state, wide};
use super::{DIMS, EPS};
use crate::gpu::buffer::Role;
use crate::gpu::call::{Extent, State};
use crate::kernels::copy_rows::{self, Copied};
use crate::kernels::embed::{self, embed as embed_twin};
use crate::kernels::logit_bias::{self, Biases};
use crate::kernels::rope_cache::{self, CacheRow, GpuRopeCache};
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use crate::kernels::sequences::PAGE;
use crate::quant::GgmlType;
use half::f16;

pub(super) fn embed(lab: &mut Lab<'_>) {
    let (rows, cols, tokens, pos) = (37, 512, 5, 3);
    lab.check(format!("q6_k {rows}x{cols}, {tokens} tokens"), |lab| {
        let w = lab.weight(GgmlType::Q6_K, [1, rows, cols]);
        let ids: Vec<u32> = (0..pos + tokens + 1)
            .map(|_| lab.below(rows) as u32)
            .collect();
        let mut twin = vec![0.0; tokens * cols];
        embed_twin(&w, &ids[pos..pos + tokens], &mut twin);
        let out = lab.room(twin.len());
        let calls = embed::calls(None, &lab.load(&[&w])?[0], &lab.given(&ids), &out);
        lab.run(calls, state(tokens, pos))?;
        Ok(vec![lab.floats(&out, &twin, 1e-12)?])
    });
}

/// New rows of the cache, and rotated queries beside them.
pub(super) fn rows(lab: &mut Lab<'_>) {
    let (tokens, pos, n_ctx) = (3, 2, 7);
    lab.check(format!("16 heads, {tokens} tokens"), |lab| {
        let q = lab.normals(tokens * DIMS.heads * DIMS.head());
        let (kv_a, norm) = (
            lab.normals(tokens * DIMS.cache_row()),
            lab.normals(DIMS.kv_lora),
        );
        let table = lab.normals(n_ctx * DIMS.rope);
        let mut cache = vec![f16::ZERO; n_ctx * DIMS.cache_row()];
        let mut q_pe = vec![0.0; tokens * DIMS.heads * DIMS.rope];
        let on_gpu = lab.given(&cache).holding(Role::Cache);
        let (angles, _) = table.as_chunks();
        rope_cache::rope_cache(
            &q, &kv_a, &norm, EPS, angles, pos, DIMS, &mut q_pe, &mut cache,
        );
        let row = CacheRow {
            kv_a: lab.given(&kv_a),
            kv_a_norm: lab.given(&norm),
            eps: EPS,
            cache: on_gpu.clone(),
        };
        let rotated = lab.room(q_pe.len());
        let call = rope_cache::call(&GpuRopeCache {
            queries: Some([lab.given(&q), rotated.clone()]),
            ..GpuRopeCache::of(row, &lab.given(&table), DIMS)
        });
        lab.run(vec![call], state(tokens, pos))?;
        let found: Vec<f16> = lab.read(&on_gpu, cache.len())?;
        // WGSL leaves the rounding to f16 open.
        Ok(vec![
            Compared::new(&wide(&found), &wide(&cache), 1e-6),
            lab.floats(&rotated, &q_pe, 1e-10)?,
        ])
    });
}

/// The next token: the best one with penalties, and drawn ones. Both kernels of a choice run in turn.
pub(super) fn choice(lab: &mut Lab<'_>) {
    biases(lab);
    let drawn = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..Sampling::GREEDY
    };
    let penalised = Sampling {
        repeat_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Sampling::GREEDY
    };
    for (sampling, name) in [(penalised, "best, penalties"), (drawn, "drawn")] {
        let (vocab, n_ctx) = (1000, 40);
        lab.check(format!("{name} of {vocab}"), |lab| {
            let (logits, pos) = (lab.distinct(vocab), 30);
            let mut history: Vec<u32> = (0..n_ctx + 1).map(|_| lab.below(vocab) as u32).collect();
            let sampling = Sampling {
                seed: lab.below(1 << 30) as u64,
                ..sampling
            };
            let step = (pos + 1) as u64;
            let id = sample::sample(&logits, sampling.recent(&history[..=pos]), &sampling, step);
            let (ids, result) = (lab.given(&history), lab.given(&[u32::MAX; 4]));
            let logits = lab.given(&logits);
            let results = [result.clone()];
            let calls = sample::calls(None, &logits, vocab as u32, &ids, &results);
            let state = State {
                sampling: sample::words(&sampling, step),
                ..state(1, pos)
            };
            lab.run(calls, state)?;
            history[pos + 1] = id;
            Ok(vec![
                lab.same(&result, &[id, step as u32, 0, 0])?,
                lab.same(&ids, &history)?,
            ])
        });
    }
}

/// Biases of the logits of two rows.
fn biases(lab: &mut Lab<'_>) {
    let (vocab, rows) = (300, 2);
    lab.check(format!("{rows} rows of {vocab}"), |lab| {
        let mut twin = lab.normals(rows * vocab);
        let logits = lab.given(&twin);
        let given = (0..rows).map(|row| {
            let of = |i: usize| ((7 * i + row) as u32, i as f32 - 3.5);
            Biases::new(&(0..9).map(of).collect::<Vec<_>>()).map_or(logit_bias::NONE, |b| b.row())
        });
        let given: Vec<logit_bias::Row> = given.collect();
        for (row, biases) in twin.chunks_exact_mut(vocab).zip(&given) {
            logit_bias::logit_bias(row, biases);
        }
        let biases = lab.given(given.as_flattened().as_flattened());
        let call = logit_bias::call(&biases, &logits, vocab as u32, Extent::Tokens);
        let state = State {
            biased: true,
            ..state(rows, 0)
        };
        lab.run(vec![call], state)?;
        Ok(vec![lab.floats(&logits, &twin, 1e-12)?])
    });
}

/// Rows of the cache that another page begins with as well.
pub(super) fn copies(lab: &mut Lab<'_>) {
    let (pages, values) = (5, 576);
    lab.check(format!("2 pages of {values} values"), |lab| {
        let words = values / 2;
        let n = pages * PAGE as usize * words;
        let mut cache: Vec<u32> = lab.normals(n).into_iter().map(f32::to_bits).collect();
        let on_gpu = lab.given(&cache).holding(Role::Cache);
        let copies: [Copied; 2] = [[3 * PAGE, 0, 31, 0], [4 * PAGE, PAGE, PAGE, 0]];
        copy_rows::copy_rows(&mut cache, words, &copies);
        let list = lab.given(copies.as_flattened());
        let rows = pages as u32 * PAGE;
        let call = copy_rows::call(&on_gpu, rows, values as u32, &list);
        lab.run(vec![call], state(copies.len(), 0))?;
        Ok(vec![lab.same(&on_gpu, &cache)?])
    });
}
