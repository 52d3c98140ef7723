//! A decoded token's way from the residual stream to its queries and its row of the cache.

use super::composed::cache_row;
use super::recipe_token::{Stream, TokenRecipe};
use super::weights::{GpuLayer, GpuQuery};
use crate::gpu::GpuError;
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::Range;
use crate::kernels::rope_cache;
use crate::kernels::token::{TokenInput, TokenOutput};
use crate::kernels::token_absorb::{self, GpuTokenAbsorb};
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::quant::activation::Activation;

impl TokenRecipe<'_> {
    /// The absorbed and the rotated queries; the new row goes to the cache.
    pub(super) fn queries(
        &mut self,
        layer: &GpuLayer,
        cache: &Range,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        match &layer.q {
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } if self.gpu.repeats_work()
                && token_absorb::fits(
                    self.gpu,
                    [attn_q_b, &layer.attn_k_b],
                    self.dims,
                    self.activation,
                ) =>
            {
                let x = self.normed(stream);
                let q_a = self.query_latent(attn_q_a, attn_q_a_norm, x.clone())?;
                // Beside q_a: it does not wait.
                let kv_a = self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?;
                let queries = self.absorbing_query(attn_q_b, &layer.attn_k_b, q_a)?;
                self.cache_row(layer, kv_a, cache);
                Ok(queries)
            }
            _ => self.absorbed_query(layer, cache, stream),
        }
    }

    /// The queries and their absorption in one dispatch.
    fn absorbing_query(
        &mut self,
        q_b: &GpuWeight,
        k_b: &GpuWeight,
        x: TokenInput,
    ) -> Result<[Range; 2], GpuError> {
        let dims = self.dims;
        let q_lat = self.floats("q_lat", (dims.heads * dims.kv_lora) as u32)?;
        let q_pe = self.floats("q_pe", (dims.heads * dims.rope) as u32)?;
        let absorb = GpuTokenAbsorb {
            q_b,
            k_b,
            activation: self.activation,
            x,
            rope_table: self.context.rope_table.clone(),
            dims,
            q_lat: q_lat.clone(),
            q_pe: q_pe.clone(),
        };
        self.ops.push(absorb.op(self.gpu));
        Ok([q_lat, q_pe])
    }

    /// The new row of `cache`, where the queries are rotated elsewhere.
    pub(super) fn cache_row(&mut self, layer: &GpuLayer, kv_a: Range, cache: &Range) {
        let table = &self.context.rope_table;
        let op = cache_row(layer, kv_a, table, self.dims, self.eps, cache);
        self.ops.push(op);
    }

    /// As `queries`, by products of their own.
    fn absorbed_query(
        &mut self,
        layer: &GpuLayer,
        cache: &Range,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let dims = self.dims;
        let (heads, head) = (dims.heads as u32, dims.head() as u32);
        let x = self.normed(stream);
        let (q, heads_input, kv_a) = match &layer.q {
            GpuQuery::Full { attn_q } => {
                let (q, values) = self.query(attn_q, x.clone())?;
                (
                    q,
                    values,
                    self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?,
                )
            }
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } => {
                let q_a = self.query_latent(attn_q_a, attn_q_a_norm, x.clone())?;
                // Beside q_a: it does not wait.
                let kv_a = self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?;
                let (q, values) = self.query(attn_q_b, q_a)?;
                (q, values, kv_a)
            }
        };
        let heads_input = TokenInput {
            values: heads_input,
            rms: None,
        };
        let q_lat = self.product(
            "q_lat",
            &layer.attn_k_b,
            Input::Prepared(heads_input, head / 32),
        )?;
        let q_pe = self.floats("q_pe", heads * dims.rope as u32)?;
        self.ops.push(rope_cache::op(&rope_cache::GpuRopeCache {
            queries: Some(rope_cache::Queries {
                q,
                q_pe: q_pe.clone(),
            }),
            kv_a,
            parts: 1,
            kv_a_norm: layer.attn_kv_a_norm.clone(),
            eps: self.eps,
            rope_table: self.context.rope_table.clone(),
            dims,
            max_tokens: 1,
            cache: cache.clone(),
        }));
        Ok([q_lat, q_pe])
    }

    /// The query heads as f32, and prepared: without a norm in between the same where these are floats.
    fn query(&mut self, weight: &GpuWeight, x: TokenInput) -> Result<(Range, Range), GpuError> {
        let y = self.floats("q", weight.total_rows())?;
        let values = match self.activation {
            Activation::Bytes => Some(self.values("prepared q", weight.total_rows())?),
            Activation::Floats => None,
        };
        let prepared = values
            .clone()
            .map(|values| TokenOutput { values, norm: None });
        let op = GpuTokenMatvec {
            weight,
            activation: self.activation,
            x: Input::Prepared(x, 0),
            residual: None,
            y: Some(y.clone()),
            prepared,
            router: None,
        };
        self.ops.extend(op.ops(self.gpu)?);
        let values = values.unwrap_or_else(|| y.clone());
        Ok((y, values))
    }

    /// The latent of the query, prepared, before its norm.
    pub(super) fn query_latent(
        &mut self,
        attn_q_a: &GpuWeight,
        norm: &Range,
        x: TokenInput,
    ) -> Result<TokenInput, GpuError> {
        let rank = attn_q_a.rows;
        let values = self.values("prepared q_a", rank)?;
        let squares = self.floats("q_a squares", rank / 16)?;
        let q_a = GpuTokenMatvec {
            weight: attn_q_a,
            activation: self.activation,
            x: Input::Prepared(x, 0),
            residual: None,
            y: None,
            prepared: Some(TokenOutput {
                values: values.clone(),
                norm: Some((norm.clone(), squares.clone())),
            }),
            router: None,
        };
        self.ops.extend(q_a.ops(self.gpu)?);
        Ok(TokenInput {
            values,
            rms: Some((squares, self.eps)),
        })
    }
}
