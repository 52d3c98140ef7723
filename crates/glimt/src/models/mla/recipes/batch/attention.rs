//! The attention of a layer of a batch: from the stream to the queries, the cache and the heads' values, and back to the stream.

use super::Recipe;
use super::buffers::{Buffers, Stream};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::When;
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_matvec::GpuBatchMatvec;
use crate::kernels::rope_cache;
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_absorb::{self, GpuTokenAbsorb};
use crate::kernels::token_matvec::{self, GpuTokenMatvec};
use crate::models::mla::recipes::context::TokenLayer;
use crate::models::mla::recipes::without_norm;
use crate::models::mla::{GpuLayer, Query};

impl Recipe<'_> {
    /// The query heads, in f32 and prepared, and `kv_a`.
    fn query(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<TokenInput, GpuError> {
        let x = self.query_latent(layer, stream, b)?;
        self.record(&GpuBatchMatvec {
            y: Some(b.q.clone()),
            prepared: Some(without_norm(&b.prepared_q)),
            ..self.product(layer.query_heads(), &x)
        })?;
        Ok(TokenInput::of(b.prepared_q.clone()))
    }

    /// Records the latent of the query where there is one, and `kv_a`. The result is the input of the query heads: the latent, else the
    /// stream.
    fn query_latent(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<TokenInput, GpuError> {
        let mut x = stream.values.clone();
        if let Query::Lora {
            attn_q_a,
            attn_q_a_norm,
            ..
        } = &layer.q
        {
            self.record(&GpuBatchMatvec {
                prepared: Some(b.q_a.output(attn_q_a_norm)),
                ..self.product(attn_q_a, &stream.values)
            })?;
            x = b.q_a.input(self.eps());
        }
        self.record(&GpuBatchMatvec {
            y: Some(b.kv_a.clone()),
            ..self.product(&layer.attn_kv_a_mqa, &stream.values)
        })?;
        Ok(x)
    }

    /// The queries, absorbed and rotated; the new rows go to the cache.
    fn queries(
        &mut self,
        of: TokenLayer<'_>,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<[Range; 2], GpuError> {
        let (layer, dims) = (of.layer, self.given.dims());
        let rows = self.given.cache_rows(of, b.kv_a.clone());
        if let Some(qk) = of.qk {
            return self.queries_by(qk, of, stream, b);
        }
        if let Query::Lora { attn_q_b, .. } = &layer.q
            && self.is_apart()
            && self.given.context.sequences.is_some()
            && token_absorb::repeated(self.target(), [attn_q_b, &layer.attn_k_b], dims, false)
                .is_some()
        {
            let x = self.query_latent(layer, stream, b)?;
            let absorb = GpuTokenAbsorb {
                q_b: attn_q_b,
                k_b: &layer.attn_k_b,
                activation: self.activation,
                x,
                rope_table: self.given.context.rope_table.clone(),
                dims,
                q_lat: b.q_lat.clone(),
                q_pe: b.q_pe.clone(),
                row: None,
                sequences: self.given.context.sequences.clone(),
                tokens: self.most,
            };
            self.calls.push(absorb.call(self.target().machine));
            self.calls.push(rope_cache::call(&rows));
            return Ok([b.q_lat.clone(), b.q_pe.clone()]);
        }
        let units = |n: usize| (n / 32) as u32;
        let q = self.query(layer, stream, b)?;
        self.record(&GpuBatchMatvec {
            x_stride: units(dims.heads * dims.head()),
            x_group: units(dims.head()),
            y: Some(b.q_lat.clone()),
            ..self.product(&layer.attn_k_b, &q)
        })?;
        self.calls.push(rope_cache::call(&rope_cache::GpuRopeCache {
            queries: Some([b.q.clone(), b.q_pe.clone()]),
            ..rows
        }));
        Ok([b.q_lat.clone(), b.q_pe.clone()])
    }

    /// The queries of one token by `qk`, and the new row of the cache.
    fn queries_by(
        &mut self,
        qk: &GpuWeight,
        of: TokenLayer<'_>,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<[Range; 2], GpuError> {
        let x = self.query_latent(of.layer, stream, b)?;
        let y = Range::floats("q", u64::from(qk.total_rows()));
        self.record(&GpuBatchMatvec {
            y: Some(y.clone()),
            ..self.product(qk, &x)
        })?;
        let [absorbed, q] = self.given.queries_in(&y);
        let mut rows = self.given.cache_rows(of, b.kv_a.clone());
        rows.queries = Some([q, b.q_pe.clone()]);
        // The absorbed part of a head lies elsewhere.
        rows.dims.nope = 0;
        self.calls.push(rope_cache::call(&rows));
        Ok([absorbed, b.q_pe.clone()])
    }

    /// The heads' values, prepared, from the slices of the attention: joined by the product itself where they are few, else by a dispatch
    /// before it.
    fn head_values(&mut self, layer: &GpuLayer, b: &Buffers) -> Result<(), GpuError> {
        let dims = self.given.dims();
        let units = |n: usize| (n / 32) as u32;
        let values = without_norm(&b.values);
        let mut most = 0;
        let sequences = self.given.context.sequences.as_ref();
        if let Some(sequences) = sequences.filter(|_| self.is_apart()) {
            let slices = token_matvec::Input::Slices(self.given.context.partials.clone(), dims);
            let joining = GpuTokenMatvec::new(&layer.attn_v_b, self.activation, slices)
                .prepared(values.clone())
                .of_tokens(self.most, sequences);
            if self.target().geometry(&joining.site()).is_some() {
                most = self.target().merge_up_to(self.activation) * self.most;
                let calls = joining.calls(self.target())?.into_iter();
                self.calls
                    .extend(calls.map(|call| call.only(When::SlicesUpTo(most))));
            }
        }
        let begin = self.calls.len();
        let merge = self.given.merge(&b.latents, self.activation);
        self.calls.push(merge);
        self.record(&GpuBatchMatvec {
            x_stride: units(dims.heads * dims.kv_lora),
            x_group: units(dims.kv_lora),
            prepared: Some(values),
            ..self.product(&layer.attn_v_b, &TokenInput::of(b.latents.clone()))
        })?;
        if most > 0 {
            let many = self.calls.split_off(begin).into_iter();
            self.calls
                .extend(many.map(|call| call.only(When::SlicesAbove(most))));
        }
        Ok(())
    }

    /// The stream after the attention, prepared for the feed-forward network.
    pub(super) fn attention(
        &mut self,
        of: TokenLayer<'_>,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<Stream, GpuError> {
        let layer = of.layer;
        let queries = self.queries(of, stream, b)?;
        let form = self.given.context.form(self.most as usize);
        let attention = self.given.attention(form, queries, of.cache);
        self.calls.extend(attention.calls());
        let (weight, values) = match of.vo {
            Some(vo) => {
                let merge = self.given.merge(&b.latents, self.activation);
                self.calls.push(merge);
                (vo, &b.latents)
            }
            None => {
                self.head_values(layer, b)?;
                (&layer.attn_output, &b.values)
            }
        };
        let values = TokenInput::of(values.clone());
        self.record(&GpuBatchMatvec {
            residual: Some(stream.x.clone()),
            y: Some(b.after_attention.clone()),
            prepared: Some(b.for_ffn.output(&layer.ffn_norm)),
            ..self.product(weight, &values)
        })?;
        Ok(Stream {
            x: b.after_attention.clone(),
            values: b.for_ffn.input(self.eps()),
        })
    }
}
