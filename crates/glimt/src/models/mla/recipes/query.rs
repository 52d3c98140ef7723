//! A decoded token's way from the residual stream to its queries and its row of the cache.

use super::context::TokenLayer;
use super::token::{Stream, TokenRecipe};
use super::{BeforeNorm, without_norm};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::memory::GpuWeight;
use crate::kernels::rope_cache::{self, CacheRow, Rotation};
use crate::kernels::token::{Divided, TokenInput, TokenOutput};
use crate::kernels::token_absorb::{self, GpuTokenAbsorb};
use crate::kernels::token_beside::{self, GpuTokenBeside};
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::kernels::token_queries::{self, GpuTokenQueries};
use crate::models::mla::GpuLayer;
use crate::models::mla::Query;
use crate::quant::activation::Activation;

impl TokenRecipe<'_> {
    /// The absorbed and the rotated queries; the new row goes to the cache.
    pub(super) fn queries(
        &mut self,
        of: TokenLayer<'_>,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let layer = of.layer;
        if let Some(qk) = of.qk {
            return self.query_by(qk, of, stream);
        }
        match &layer.q {
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } if self.absorbs([attn_q_b, &layer.attn_k_b]) => {
                let (q_a, kv_a) = self.query_latent(layer, attn_q_a, attn_q_a_norm, stream)?;
                let row = self.given.cache_rows(of, kv_a);
                let serial = self.given.target.machine.serial_passes;
                let with = serial.then(|| row.row.clone());
                let queries = self.absorbing_query(attn_q_b, &layer.attn_k_b, q_a, with)?;
                if !serial {
                    self.calls.push(rope_cache::call(&row));
                }
                Ok(queries)
            }
            _ => self.absorbed_query(of, stream),
        }
    }

    /// Whether one dispatch makes the queries and absorbs them, though its workgroups repeat work.
    fn absorbs(&self, weights: [&GpuWeight; 2]) -> bool {
        let (target, serial) = (self.given.target, self.given.target.machine.serial_passes);
        token_absorb::repeated(target, weights, self.given.dims(), serial)
            .is_some_and(|more| target.repeats_work(more))
    }

    /// The queries and their absorption in one dispatch, and `row` of the cache in the same.
    fn absorbing_query(
        &mut self,
        q_b: &GpuWeight,
        k_b: &GpuWeight,
        x: TokenInput,
        row: Option<CacheRow>,
    ) -> Result<[Range; 2], GpuError> {
        let dims = self.given.dims();
        let q_lat = self.floats("q_lat", (dims.heads * dims.kv_lora) as u32);
        let q_pe = self.floats("q_pe", (dims.heads * dims.rope) as u32);
        let absorb = GpuTokenAbsorb {
            q_b,
            k_b,
            activation: self.activation,
            x,
            rope_table: self.given.context.rope_table.clone(),
            dims,
            q_lat: q_lat.clone(),
            q_pe: q_pe.clone(),
            row,
            sequences: self.given.context.sequences.clone(),
            tokens: 1,
        };
        self.calls.push(absorb.call(self.given.target.machine));
        Ok([q_lat, q_pe])
    }

    /// The queries of [`queries`](Self::queries) by `qk`, which leaves all of them, rotated.
    fn query_by(
        &mut self,
        qk: &GpuWeight,
        of: TokenLayer<'_>,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let (layer, dims) = (of.layer, self.given.dims());
        let (x, kv_a) = match &layer.q {
            Query::Full { .. } => {
                let x = stream.prepared.input(self.eps());
                let input = Input::Prepared(x.clone(), 0);
                (x, self.product("kv_a", &layer.attn_kv_a_mqa, input)?)
            }
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => self.query_latent(layer, attn_q_a, attn_q_a_norm, stream)?,
        };
        let y = self.floats("q", qk.total_rows());
        let mut product = GpuTokenMatvec::new(qk, self.activation, Input::Prepared(x, 0));
        product = product.bind("y", &y);
        product.rotation = Some(Rotation {
            table: self.given.context.rope_table.clone(),
            first_row: (dims.heads * dims.kv_lora) as u32,
            rope: dims.rope as u32,
        });
        self.calls.extend(product.calls(self.given.target)?);
        let row = self.given.cache_rows(of, kv_a);
        self.calls.push(rope_cache::call(&row));
        Ok(self.given.queries_in(&y))
    }

    /// The queries of [`queries`](Self::queries) by products of their own.
    fn absorbed_query(
        &mut self,
        of: TokenLayer<'_>,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let layer = of.layer;
        let dims = self.given.dims();
        let (heads, head) = (dims.heads as u32, dims.head() as u32);
        let (q, heads_input, kv_a) = match &layer.q {
            Query::Full { attn_q } => {
                let (q, prepared) = self.query_outputs(attn_q);
                let values = prepared.as_ref().map_or(&q, |out| &out.values).clone();
                let kv_a = self.beside_kv_a(layer, attn_q, stream, Some(q.clone()), prepared)?;
                (q, values, kv_a)
            }
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } => {
                let (q_a, kv_a) = self.query_latent(layer, attn_q_a, attn_q_a_norm, stream)?;
                let (q, values) = self.query(attn_q_b, q_a)?;
                (q, values, kv_a)
            }
        };
        if self.given.target.machine.serial_passes && token_queries::fits(&layer.attn_k_b, dims) {
            let queries = GpuTokenQueries {
                k_b: &layer.attn_k_b,
                activation: self.activation,
                q,
                values: heads_input,
                rope_table: self.given.context.rope_table.clone(),
                dims,
                q_lat: self.floats("q_lat", heads * dims.kv_lora as u32),
                q_pe: self.floats("q_pe", heads * dims.rope as u32),
                row: of.row(kv_a, self.eps()),
                sequences: self.given.context.sequences.clone(),
            };
            self.calls.extend(queries.calls(self.given.target)?);
            return Ok([queries.q_lat, queries.q_pe]);
        }
        let heads_input = TokenInput::of(heads_input);
        let q_lat = self.product(
            "q_lat",
            &layer.attn_k_b,
            Input::Prepared(heads_input, head / 32),
        )?;
        let q_pe = self.floats("q_pe", heads * dims.rope as u32);
        self.calls.push(rope_cache::call(&rope_cache::GpuRopeCache {
            queries: Some([q, q_pe.clone()]),
            ..self.given.cache_rows(of, kv_a)
        }));
        Ok([q_lat, q_pe])
    }

    /// Where the query heads go: as f32, and prepared unless these are floats.
    fn query_outputs(&self, weight: &GpuWeight) -> (Range, Option<TokenOutput>) {
        let y = self.floats("q", weight.total_rows());
        let prepared = match self.activation {
            Activation::Floats => None,
            _ => Some(without_norm(
                &self.values("prepared q", weight.total_rows()),
            )),
        };
        (y, prepared)
    }

    /// The query heads as f32, and prepared: without a norm in between the same where these are floats.
    fn query(&mut self, weight: &GpuWeight, x: TokenInput) -> Result<(Range, Range), GpuError> {
        let (y, prepared) = self.query_outputs(weight);
        let values = prepared.as_ref().map_or(&y, |out| &out.values).clone();
        let call = GpuTokenMatvec::new(weight, self.activation, Input::Prepared(x, 0))
            .bind("y", &y)
            .prepared(prepared);
        self.calls.extend(call.calls(self.given.target)?);
        Ok((y, values))
    }

    /// The product of `weight` with the stream, and `kv_a` beside it, which does not wait for it: in one grid where every dispatch
    /// waits.
    fn beside_kv_a(
        &mut self,
        layer: &GpuLayer,
        weight: &GpuWeight,
        stream: &Stream,
        y: Option<Range>,
        prepared: Option<TokenOutput>,
    ) -> Result<Range, GpuError> {
        let (target, activation, x) = (
            self.given.target,
            self.activation,
            stream.prepared.input(self.eps()),
        );
        let weights = [weight, &layer.attn_kv_a_mqa];
        if target.machine.serial_passes && token_beside::fits(weights, prepared.is_some()) {
            let z = self.floats("kv_a", layer.attn_kv_a_mqa.rows);
            let both = GpuTokenBeside {
                weights,
                activation,
                x,
                y,
                prepared,
                z: z.clone(),
            };
            self.calls.extend(both.calls(target)?);
            return Ok(z);
        }
        let call = GpuTokenMatvec::new(weight, activation, Input::Prepared(x.clone(), 0))
            .bind("y", y.as_ref())
            .prepared(prepared);
        self.calls.extend(call.calls(target)?);
        self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))
    }

    /// The latent of the query, prepared, before its norm; and `kv_a`.
    fn query_latent(
        &mut self,
        layer: &GpuLayer,
        attn_q_a: &GpuWeight,
        norm: &Range,
        stream: &Stream,
    ) -> Result<(TokenInput, Range), GpuError> {
        let names = ["prepared q_a", "q_a squares"];
        let q_a = BeforeNorm::new(names, self.activation, attn_q_a.rows);
        let kv_a = self.beside_kv_a(layer, attn_q_a, stream, None, Some(q_a.output(norm)))?;
        Ok((q_a.input(self.eps()), kv_a))
    }
}
