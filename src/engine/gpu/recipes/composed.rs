//! Where decoding reads composed weights: the query's half of a layer's attention in two dispatches that wait for each other
//! instead of four (`qk` leaves all of a query, rotated, and beside it the new row goes to the cache).

use super::Chunk;
use super::context::TokenLayer;
use super::several::Recipe;
use super::token::{Stream, TokenRecipe};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::memory::GpuWeight;
use crate::kernels::MlaDims;
use crate::kernels::matvec::GpuMatvec;
use crate::kernels::rope_cache::{self, CacheRow, Rotation};
use crate::kernels::token::TokenInput;
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::model::Query;
use crate::model::precompose::Pairs;

impl<'a> TokenLayer<'a> {
    /// The composed weights that steps of up to `tokens` tokens read, `qk` and `vo`: none but those of one token.
    pub(super) fn composed(&self, pairs: Pairs, tokens: u32) -> [Option<&'a GpuWeight>; 2] {
        let used = |pair: bool| pair && tokens == 1;
        [
            self.composed.qk.as_ref().filter(|_| used(pairs.qk)),
            self.composed.vo.as_ref().filter(|_| used(pairs.vo)),
        ]
    }

    /// What the new row of the cache is made of.
    pub(super) fn row(&self, kv_a: Range, eps: f32) -> CacheRow {
        CacheRow {
            kv_a,
            kv_a_norm: self.layer.attn_kv_a_norm.clone(),
            eps,
            cache: self.cache.clone(),
        }
    }
}

/// The absorbed and the rotated queries in the output of `qk`.
fn halves(y: &Range, dims: MlaDims) -> [Range; 2] {
    let absorbed = (dims.heads * dims.kv_lora * 4) as u64;
    [
        Range {
            size: absorbed,
            ..y.clone()
        },
        Range {
            offset: y.offset + absorbed,
            size: y.size - absorbed,
            ..y.clone()
        },
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
        of: TokenLayer<'_>,
        qk: &GpuWeight,
        chunk: &Chunk,
        x: &Range,
    ) -> [Range; 2] {
        let (layer, dims) = (of.layer, self.given.dims());
        let table = &self.given.context.rope_table;
        let y = Range::floats("q", u64::from(qk.total_rows()));
        let norm = Some(&layer.attn_norm);
        let (input, input_norm) = match &layer.q {
            Query::Full { .. } => (x.clone(), &layer.attn_norm),
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let q_a = self.product(&chunk.q_a, attn_q_a, x, norm, None);
                (q_a, attn_q_a_norm)
            }
        };
        let kv_a = self.product(&chunk.kv_a, &layer.attn_kv_a_mqa, x, norm, None);
        let product = GpuMatvec {
            norm: self.norm(input_norm),
            ..self.matvec(qk, &input, qk.cols, &y)
        };
        let rotated = product.rotated_calls(&rotation(table, dims));
        self.calls.extend(rotated);
        let row = of.row(kv_a, self.given.config.rms_eps);
        self.calls.push(rope_cache::row_call(row, table, dims));
        halves(&y, dims)
    }
}

impl TokenRecipe<'_> {
    /// As `absorbed_query`, with the composed weight `qk`.
    pub(super) fn composed_query(
        &mut self,
        of: TokenLayer<'_>,
        qk: &GpuWeight,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let (layer, dims) = (of.layer, self.given.dims());
        let table = &self.given.context.rope_table;
        let (x, activation) = (self.normed(stream), self.activation);
        let y = Range::floats("q", u64::from(qk.total_rows()));
        let product = |x: TokenInput| {
            GpuTokenMatvec::new(qk, activation, Input::Prepared(x, 0))
                .bind("y", &y)
                .rotated(rotation(table, dims))
        };
        let kv_a = match &layer.q {
            Query::Full { .. } => {
                let calls = product(x.clone()).calls(self.given.target)?;
                self.calls.extend(calls);
                self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?
            }
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let (q_a, kv_a) = self.query_latent(layer, attn_q_a, attn_q_a_norm, stream)?;
                self.calls.extend(product(q_a).calls(self.given.target)?);
                kv_a
            }
        };
        let row = of.row(kv_a, self.eps());
        self.calls.push(rope_cache::row_call(row, table, dims));
        Ok(halves(&y, dims))
    }
}
