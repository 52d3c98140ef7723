//! The attention of few tokens: from the stream to their queries and rows of the cache, and to the heads' values.

use super::Mla;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::When;
use crate::gpu::memory::GpuWeight;
use crate::kernels::MlaDims;
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::compose::Pair;
use crate::kernels::rope_cache::{self, GpuRopeCache, Rotation};
use crate::kernels::token::{Divided, TokenInput, TokenOutput};
use crate::kernels::token_absorb::{self, GpuTokenAbsorb};
use crate::kernels::token_beside::{self, GpuTokenBeside};
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::kernels::token_queries::{self, GpuTokenQueries};
use crate::models::mla::Query;
use crate::recipes::few::{Few, Product};

impl Mla {
    /// Records the attention of layer `i`. The result is a weight and its input.
    pub(super) fn attend_few<'a>(
        &self,
        step: &mut Few<'a>,
        i: usize,
        x: &TokenInput,
    ) -> Result<(&'a GpuWeight, Range), GpuError> {
        let given = step.given;
        let queries = self.queries(step, i, x)?;
        let attention = self.attention(given, step.most, i, queries);
        let short = if step.one { self.short } else { 0 };
        if short > 0 {
            let call = attention.short_call(given.target);
            step.calls.push(call.only(When::Rows(0, short)));
        }
        step.calls.extend(attention.calls_above(short));
        if let Some(vo) = step.composed(Pair::Vo, i) {
            let latents = step.values("latents", self.width(self.dims().kv_lora));
            let merge = self.merge(given, &latents, step.activation);
            step.calls.push(merge);
            return Ok((vo, latents));
        }
        let values = self.head_values(step, &self.weights.layers[i].attn_v_b)?;
        Ok((&given.body.layers[i].attn_output, values))
    }

    /// Values of all heads that have so many each.
    fn width(&self, of_head: usize) -> u32 {
        (self.dims().heads * of_head) as u32
    }

    /// Whether the step's dispatches wait for each other where they need not.
    fn is_serial(&self, step: &Few<'_>) -> bool {
        step.one && step.given.target.machine.serial_passes
    }

    /// The absorbed and the rotated queries; the new rows go to the cache.
    fn queries(
        &self,
        step: &mut Few<'_>,
        i: usize,
        x: &TokenInput,
    ) -> Result<[Range; 2], GpuError> {
        let layer = &self.weights.layers[i];
        if let Some(qk) = step.composed(Pair::Qk, i) {
            return self.composed_queries(step, i, qk, x);
        }
        match &layer.q {
            Query::Lora { attn_q_b, .. } if self.absorbs(step, [attn_q_b, &layer.attn_k_b]) => {
                self.absorbing_queries(step, i, [attn_q_b, &layer.attn_k_b], x)
            }
            _ => self.absorbed_queries(step, i, x),
        }
    }

    /// Whether one dispatch makes the queries and absorbs them, though its workgroups repeat work.
    fn absorbs(&self, step: &Few<'_>, weights: [&GpuWeight; 2]) -> bool {
        let (target, serial) = (step.given.target, self.is_serial(step));
        let more = token_absorb::repeated(target, weights, self.dims(), serial);
        let has_table = step.given.context.sequences.is_some();
        match step.one {
            true => more.is_some_and(|more| target.repeats_work(more)),
            false => more.is_some() && step.is_apart() && has_table,
        }
    }

    /// The queries and their absorption in one dispatch, and the new row of the cache in the same where the next one would wait.
    fn absorbing_queries(
        &self,
        step: &mut Few<'_>,
        i: usize,
        [q_b, k_b]: [&GpuWeight; 2],
        x: &TokenInput,
    ) -> Result<[Range; 2], GpuError> {
        let (given, serial, dims) = (step.given, self.is_serial(step), self.dims());
        let (x, kv_a) = self.query_input(step, i, x)?;
        let rows = self.cache_rows(given, i, kv_a);
        let q_lat = step.floats("q_lat", self.width(dims.kv_lora));
        let q_pe = step.floats_beside("q_pe", self.width(dims.rope));
        let absorb = GpuTokenAbsorb {
            q_b,
            k_b,
            activation: step.activation,
            x,
            rope_table: self.rope_table.clone(),
            dims,
            q_lat: q_lat.clone(),
            q_pe: q_pe.clone(),
            row: serial.then(|| rows.row.clone()),
            sequences: given.context.sequences.clone(),
            tokens: step.most,
        };
        step.calls.push(absorb.call(given.target.machine));
        if !serial {
            step.calls.push(rope_cache::call(&rows));
        }
        Ok([q_lat, q_pe])
    }

    /// The queries of one token by the composed weight `qk`: one product leaves all of them, rotated where the tier can.
    fn composed_queries(
        &self,
        step: &mut Few<'_>,
        i: usize,
        qk: &GpuWeight,
        x: &TokenInput,
    ) -> Result<[Range; 2], GpuError> {
        let dims = self.dims();
        let (x, kv_a) = self.query_input(step, i, x)?;
        let y = step.floats("q", qk.total_rows());
        let first_row = self.width(dims.kv_lora);
        let rotation = Rotation {
            table: self.rope_table.clone(),
            first_row,
            rope: dims.rope as u32,
        };
        step.record(&Product {
            y: Some(y.clone()),
            rotation: step.one.then_some(rotation),
            ..Product::of(qk, &x)
        })?;
        let absorbed = u64::from(first_row) * 4;
        let part = |offset, size| Range {
            offset,
            size,
            ..y.clone()
        };
        let [absorbed, rotated] = [part(0, absorbed), part(absorbed, y.size - absorbed)];
        let rows = self.cache_rows(step.given, i, kv_a);
        if step.one {
            step.calls.push(rope_cache::call(&rows));
            return Ok([absorbed, rotated]);
        }
        let q_pe = step.floats_beside("q_pe", self.width(dims.rope));
        step.calls.push(rope_cache::call(&GpuRopeCache {
            queries: Some([rotated, q_pe.clone()]),
            // The absorbed part of a head lies elsewhere.
            dims: MlaDims { nope: 0, ..dims },
            ..rows
        }));
        Ok([absorbed, q_pe])
    }

    /// The queries by products of their own.
    fn absorbed_queries(
        &self,
        step: &mut Few<'_>,
        i: usize,
        x: &TokenInput,
    ) -> Result<[Range; 2], GpuError> {
        let (layer, dims, given) = (&self.weights.layers[i], self.dims(), step.given);
        let heads = layer.query_heads();
        let q = step.floats("q", heads.total_rows());
        let prepared = step.values("prepared q", heads.total_rows());
        let query = |x: &TokenInput| Product {
            y: Some(q.clone()),
            prepared: Some(TokenOutput::of(prepared.clone())),
            ..Product::of(heads, x)
        };
        let kv_a = match &layer.q {
            Query::Full { .. } if step.one => self.beside_kv_a(step, i, query(x), x)?,
            _ => {
                let (x, kv_a) = self.query_input(step, i, x)?;
                step.record(&query(&x))?;
                kv_a
            }
        };
        let rows = self.cache_rows(given, i, kv_a);
        let q_lat = step.floats("q_lat", self.width(dims.kv_lora));
        let q_pe = step.floats_beside("q_pe", self.width(dims.rope));
        if self.is_serial(step) && token_queries::fits(&layer.attn_k_b, dims) {
            let queries = GpuTokenQueries {
                k_b: &layer.attn_k_b,
                activation: step.activation,
                q,
                values: prepared,
                rope_table: self.rope_table.clone(),
                dims,
                q_lat,
                q_pe,
                row: rows.row,
                sequences: given.context.sequences.clone(),
            };
            step.calls.extend(queries.calls(given.target)?);
            return Ok([queries.q_lat, queries.q_pe]);
        }
        step.record(&Product {
            y: Some(q_lat.clone()),
            ..Product::of_heads(&layer.attn_k_b, &TokenInput::of(prepared), dims.head())
        })?;
        step.calls.push(rope_cache::call(&GpuRopeCache {
            queries: Some([q, q_pe.clone()]),
            ..rows
        }));
        Ok([q_lat, q_pe])
    }

    /// The input of the query heads: the query's latent before its norm where there is one, else the stream. And `kv_a`.
    fn query_input(
        &self,
        step: &mut Few<'_>,
        i: usize,
        x: &TokenInput,
    ) -> Result<(TokenInput, Range), GpuError> {
        match &self.weights.layers[i].q {
            Query::Full { .. } => Ok((x.clone(), self.kv_a(step, i, x)?)),
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let q_a = step.before_norm(
                    ["prepared q_a", "q_a squares"],
                    attn_q_a.rows,
                    attn_q_a_norm,
                );
                let product = Product {
                    prepared: Some(q_a.output()),
                    ..Product::of(attn_q_a, x)
                };
                let kv_a = self.beside_kv_a(step, i, product, x)?;
                Ok((q_a.input(step.given.eps()), kv_a))
            }
        }
    }

    /// `kv_a` of the stream.
    fn kv_a(&self, step: &mut Few<'_>, i: usize, x: &TokenInput) -> Result<Range, GpuError> {
        let weight = &self.weights.layers[i].attn_kv_a_mqa;
        let kv_a = step.floats_beside("kv_a", weight.total_rows());
        step.record(&Product {
            y: Some(kv_a.clone()),
            ..Product::of(weight, x)
        })?;
        Ok(kv_a)
    }

    /// A product of the stream, and `kv_a` beside it, which does not wait for it: in one grid where every dispatch waits.
    fn beside_kv_a(
        &self,
        step: &mut Few<'_>,
        i: usize,
        product: Product<'_>,
        x: &TokenInput,
    ) -> Result<Range, GpuError> {
        let weights = [product.weight, &self.weights.layers[i].attn_kv_a_mqa];
        if !(self.is_serial(step) && token_beside::fits(weights, product.prepared.is_some())) {
            step.record(&product)?;
            return self.kv_a(step, i, x);
        }
        let z = step.floats_beside("kv_a", weights[1].rows);
        let both = GpuTokenBeside {
            weights,
            activation: step.activation,
            x: x.clone(),
            y: product.y,
            prepared: product.prepared,
            z: z.clone(),
        };
        step.calls.extend(both.calls(step.given.target)?);
        Ok(z)
    }

    /// The heads' values, prepared, from the slices of the attention: joined by the product itself where they are few, else by a dispatch
    /// before it.
    fn head_values(&self, step: &mut Few<'_>, attn_v_b: &GpuWeight) -> Result<Range, GpuError> {
        let (given, dims) = (step.given, self.dims());
        let target = given.target;
        let values = step.values("values", attn_v_b.total_rows());
        let slices = Input::Slices(self.partials.clone(), dims);
        let joining = GpuTokenMatvec::new(attn_v_b, step.activation, slices)
            .prepared(TokenOutput::of(values.clone()));
        let joining = match &given.context.sequences {
            _ if step.one => Some(joining),
            Some(sequences) if step.is_apart() => Some(joining.of_tokens(step.most, sequences)),
            _ => None,
        };
        let joining = joining.filter(|product| target.geometry(&product.site()).is_some());
        let most = match &joining {
            Some(_) => target.merge_up_to(step.activation) * step.most,
            None => 0,
        };
        if let Some(product) = joining.filter(|_| most > 0) {
            let few = product.calls(target)?.into_iter();
            step.calls
                .extend(few.map(|call| call.only(When::SlicesUpTo(most))));
        }
        if step.one && most as usize >= MAX_SLICES {
            return Ok(values);
        }
        let begin = step.calls.len();
        let latents = step.values("latents", self.width(dims.kv_lora));
        let merge = self.merge(given, &latents, step.activation);
        step.calls.push(merge);
        step.record(&Product {
            prepared: Some(TokenOutput::of(values.clone())),
            ..Product::of_heads(attn_v_b, &TokenInput::of(latents), dims.kv_lora)
        })?;
        if step.one || most > 0 {
            for call in &mut step.calls[begin..] {
                call.when = When::SlicesAbove(most);
            }
        }
        Ok(values)
    }
}
