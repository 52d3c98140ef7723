//! The attention of few tokens: from the stream to their queries and rows of the cache, and to the heads' values.

use super::Grouped;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::When;
use crate::gpu::memory::GpuWeight;
use crate::kernels::grouped_rows::{self, GpuGroupedRows};
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_beside::{self, GpuTokenBeside};
use crate::recipes::few::{Few, Product};

impl Grouped {
    /// Records the attention of layer `i`, from the stream `x` before its norm. The result is the weight that takes it to the stream, and its
    /// input.
    pub(super) fn attend_few<'a>(
        &self,
        step: &mut Few<'a>,
        i: usize,
        x: &TokenInput,
    ) -> Result<(&'a GpuWeight, Range), GpuError> {
        let (given, layer, dims) = (step.given, &self.weights.layers[i], self.dims());
        let width = (dims.heads * dims.key) as u32;
        let q = step.floats("q", width);
        step.record(&Product {
            y: Some(q.clone()),
            ..Product::of(&layer.attn_q.weight, x)
        })?;
        let of_cache = [&layer.attn_k.weight, &layer.attn_v.weight];
        let of_cache = self.keys_and_values(step, of_cache, x)?;
        let queries = step.floats("queries", width);
        let rows = GpuGroupedRows {
            queries: Some([q, queries.clone()]),
            ..self.rows_of(given, i, of_cache)
        };
        step.calls.extend(grouped_rows::calls(&rows, given.target));
        let values = step.values("values", (dims.heads * dims.value) as u32);
        let output = (&values, step.activation);
        let attention = self.attention(given, i, &queries);
        let merge = self.merge(given, output, step.as_one);
        let short = self.weights.short(given.target);
        let mut calls = match step.as_one {
            true if step.most > 1 => attention.calls_of_each(short),
            true => attention.calls_of_one(short, output),
            false => vec![attention.call()],
        };
        // The kernel for short contexts leaves nothing to join where a step has one token.
        calls.push(match step.most {
            1 if step.as_one => merge.only(When::rows(self.of_one.short, u32::MAX)),
            _ => merge,
        });
        if step.as_one && step.most > 1 {
            let slices = self.slices * step.most;
            calls.iter_mut().for_each(|call| call.slices = Some(slices));
        }
        step.calls.extend(calls);
        Ok((&given.body.layers[i].attn_output, values))
    }

    /// The keys and values of the stream, beside the queries and each other: in one grid where every dispatch waits.
    fn keys_and_values(
        &self,
        step: &mut Few<'_>,
        weights: [&GpuWeight; 2],
        x: &TokenInput,
    ) -> Result<[Range; 2], GpuError> {
        let [k, v] = weights;
        let [y, z] = [("k", k), ("v", v)].map(|(name, w)| step.floats_beside(name, w.rows));
        let target = step.given.target;
        let serial = step.as_one && step.most == 1 && target.machine.serial_passes;
        if serial && token_beside::fits(weights, false) {
            let both = GpuTokenBeside {
                weights,
                activation: step.activation,
                x: x.clone(),
                y: Some(y.clone()),
                prepared: None,
                z: z.clone(),
            };
            step.calls.extend(both.calls(target)?);
            return Ok([y, z]);
        }
        for (weight, to) in weights.into_iter().zip([&y, &z]) {
            step.record(&Product {
                y: Some(to.clone()),
                ..Product::of(weight, x)
            })?;
        }
        Ok([y, z])
    }
}
