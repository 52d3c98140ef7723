//! Where decoding reads composed weights: the query's half of a layer's attention in two dispatches that wait for each other
//! instead of four (`qk` leaves all of a query, rotated, and beside it the new row goes to the cache).

use super::recipe::Recipe;
use super::recipe_token::{Stream, TokenRecipe};
use super::weights::{GpuLayer, GpuQuery};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::Word;
use crate::gpu::memory::GpuWeight;
use crate::kernels::MlaDims;
use crate::kernels::matvec::GpuMatvec;
use crate::kernels::rope_cache::{self, CacheRow, Rotation};
use crate::kernels::token::TokenInput;
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};

/// The absorbed and the rotated queries in the output of `qk`.
fn halves(y: Range, dims: MlaDims) -> [Range; 2] {
    let absorbed = (dims.heads * dims.kv_lora * 4) as u64;
    let rotated = Range {
        offset: y.offset + absorbed,
        size: y.size - absorbed,
        ..y.clone()
    };
    [
        Range {
            size: absorbed,
            ..y
        },
        rotated,
    ]
}

fn rotation(table: &Range, dims: MlaDims) -> Rotation {
    Rotation {
        table: table.clone(),
        first_row: (dims.heads * dims.kv_lora) as u32,
        rope: dims.rope as u32,
    }
}

impl Recipe<'_> {
    /// As `query` for one token, with the composed weight `qk`.
    pub(super) fn composed_query(
        &mut self,
        layer: &GpuLayer,
        qk: &GpuWeight,
        cache: &Range,
        x: &Range,
    ) -> Result<[Range; 2], GpuError> {
        let (dims, eps, table) = (self.dims, self.eps, &self.context.rope_table);
        let norm = Some(&layer.attn_norm);
        let y = self.activation("q", qk.total_rows())?;
        let call = |x: Range, norm: &Range| GpuMatvec {
            weight: qk,
            max_tokens: 1,
            x,
            x_offset: Word::U(0),
            x_stride: qk.cols,
            x_group_stride: 0,
            norm: Some((norm.clone(), eps)),
            residual: None,
            y: y.clone(),
            tokens: Word::Tokens,
        };
        let kv_a = match &layer.q {
            GpuQuery::Full { .. } => {
                let call = call(x.clone(), &layer.attn_norm);
                self.calls
                    .extend(call.rotated_calls(&rotation(table, dims)));
                self.product("kv_a", &layer.attn_kv_a_mqa, x, norm, None)?
            }
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let q_a = self.product("q_a", attn_q_a, x, norm, None)?;
                let kv_a = self.product("kv_a", &layer.attn_kv_a_mqa, x, norm, None)?;
                let rotation = rotation(table, dims);
                self.calls
                    .extend(call(q_a, attn_q_a_norm).rotated_calls(&rotation));
                kv_a
            }
        };
        let row = CacheRow {
            kv_a,
            kv_a_norm: layer.attn_kv_a_norm.clone(),
            eps,
            cache: cache.clone(),
        };
        self.calls.push(rope_cache::row_call(row, table, dims));
        Ok(halves(y, dims))
    }
}

impl TokenRecipe<'_> {
    /// As `absorbed_query`, with the composed weight `qk`.
    pub(super) fn composed_query(
        &mut self,
        layer: &GpuLayer,
        qk: &GpuWeight,
        cache: &Range,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let (dims, table) = (self.dims, &self.context.rope_table);
        let (x, activation) = (self.normed(stream), self.activation);
        let y = self.floats("q", qk.total_rows())?;
        let call = |x: TokenInput| {
            GpuTokenMatvec::new(qk, activation, Input::Prepared(x, 0)).bind("y", &y)
        };
        let kv_a = match &layer.q {
            GpuQuery::Full { .. } => {
                let rotation = rotation(table, dims);
                self.calls
                    .extend(call(x.clone()).rotated(rotation).calls(self.gpu)?);
                self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?
            }
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let (q_a, kv_a) = self.query_latent(layer, attn_q_a, attn_q_a_norm, stream)?;
                let rotation = rotation(table, dims);
                self.calls
                    .extend(call(q_a).rotated(rotation).calls(self.gpu)?);
                kv_a
            }
        };
        let row = self.row(layer, kv_a, cache);
        self.cache_row(row);
        Ok(halves(y, dims))
    }
}
