//! The attention of few tokens: from the stream to their queries and rows of the cache, and to the heads' values.

use super::Mla;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::When;
use crate::gpu::memory::GpuWeight;
use crate::kernels::MlaDims;
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::rope_cache::{self, GpuRopeCache, Rotation};
use crate::kernels::token::{Divided, TokenInput, TokenOutput};
use crate::kernels::token_absorb::{self, GpuTokenAbsorb};
use crate::kernels::token_beside::{self, GpuTokenBeside};
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::kernels::token_queries::{self, GpuTokenQueries};
use crate::model::pairs::Pair;
use crate::models::mla::{Attention, Query};
use crate::recipes::few::{Few, Product};

/// The number of the dispatches that join a token's slices in the product of `attn_v_b` ([`When::Kernel`]), in steps of several tokens by the
/// kernels of one.
pub(super) const JOINED: u32 = 8;
/// The number of those that join them before it.
pub(super) const MERGED: u32 = 9;

/// The rotated and the absorbed queries.
type Queries = Result<[Range; 2], GpuError>;

/// The attention of a layer, to be recorded.
pub(super) struct Layer<'s, 'a> {
    pub mla: &'s Mla,
    pub step: &'s mut Few<'a>,
    /// The number of the layer.
    pub i: usize,
    pub weights: &'s Attention<GpuWeight, Range>,
    /// The stream before the norm.
    pub x: &'s TokenInput,
}

impl<'a> Layer<'_, 'a> {
    /// Records the attention. The result is the weight that takes it to the stream, and its input.
    pub fn attend(mut self) -> Result<(&'a GpuWeight, Range), GpuError> {
        let (given, short) = (self.step.given, self.mla.short);
        let queries = self.queries()?;
        let begin = self.step.calls.len();
        let attention = self.mla.attention(given, self.step.most, self.i, queries);
        self.step.calls.extend(match self.step.as_one {
            true if self.step.most > 1 => attention.calls_of_each(given.target, short),
            true => attention.calls_of_one(given.target, short),
            false => attention.calls(),
        });
        let attended = match self.step.product_of(Pair::Vo, self.i) {
            Some(vo) => (vo, self.merged()),
            None => (&given.body.layers[self.i].attn_output, self.head_values()?),
        };
        if self.is_of_each() {
            let slices = self.mla.slices * self.step.most;
            let calls = &mut self.step.calls[begin..];
            calls.iter_mut().for_each(|call| call.slices = Some(slices));
        }
        Ok(attended)
    }

    /// Whether the step has several tokens, by the kernels of a decoded token.
    fn is_of_each(&self) -> bool {
        self.step.as_one && self.step.most > 1
    }

    fn dims(&self) -> MlaDims {
        self.mla.dims()
    }

    /// Values of all heads, if each has `of_head`.
    fn width(&self, of_head: usize) -> u32 {
        (self.dims().heads * of_head) as u32
    }

    /// Room for the absorbed queries.
    fn q_lat(&mut self) -> Range {
        let width = self.width(self.dims().kv_lora);
        self.step.floats("q_lat", width)
    }

    /// Room for the rotated queries.
    fn q_pe(&mut self) -> Range {
        let width = self.width(self.dims().rope);
        self.step.floats_beside("q_pe", width)
    }

    /// The new rows of the cache.
    fn rows(&self, kv_a: Range) -> GpuRopeCache {
        self.mla.cache_rows(self.step.given, self.i, kv_a)
    }

    /// Whether dispatches wait for each other where they need not.
    fn is_serial(&self) -> bool {
        let serial = self.step.given.target.machine.serial_passes;
        self.step.as_one && self.step.most == 1 && serial
    }

    /// The absorbed and the rotated queries; the new rows go to the cache.
    fn queries(&mut self) -> Queries {
        if let Some(qk) = self.step.product_of(Pair::Qk, self.i) {
            return self.queries_by(qk);
        }
        match &self.weights.q {
            Query::Lora { attn_q_b, .. } if self.absorbs(attn_q_b) => {
                self.absorbing_queries(attn_q_b)
            }
            _ => self.absorbed_queries(),
        }
    }

    /// Whether one dispatch makes the queries and absorbs them, though its workgroups repeat work.
    fn absorbs(&self, q_b: &GpuWeight) -> bool {
        let (step, weights) = (&self.step, [q_b, &self.weights.attn_k_b]);
        let target = step.given.target;
        let more = token_absorb::repeated(target, weights, self.dims(), self.is_serial());
        more.is_some_and(|more| match step.as_one {
            true => target.repeats_work(more),
            false => step.is_apart(),
        })
    }

    /// The queries and their absorption in one dispatch, and the new row of the cache in the same where the next one would wait.
    fn absorbing_queries(&mut self, q_b: &GpuWeight) -> Queries {
        let (x, kv_a) = self.query_input()?;
        let (rows, serial) = (self.rows(kv_a), self.is_serial());
        let (q_lat, q_pe) = (self.q_lat(), self.q_pe());
        let given = self.step.given;
        let absorb = GpuTokenAbsorb {
            q_b,
            k_b: &self.weights.attn_k_b,
            activation: self.step.activation,
            x,
            rope_table: self.mla.rope_table.clone(),
            dims: self.dims(),
            q_lat: q_lat.clone(),
            q_pe: q_pe.clone(),
            row: serial.then(|| rows.row.clone()),
            sequences: given.context.sequences.clone(),
            tokens: self.step.most,
        };
        self.step.calls.push(absorb.call(given.target.machine));
        if !serial {
            self.step.calls.push(rope_cache::call(&rows));
        }
        Ok([q_lat, q_pe])
    }

    /// The queries by `qk`: one product leaves all of them, rotated where the tier can.
    fn queries_by(&mut self, qk: &GpuWeight) -> Queries {
        let dims = self.dims();
        let (x, kv_a) = self.query_input()?;
        let y = self.step.floats("q", qk.total_rows());
        let rotation = Rotation {
            table: self.mla.rope_table.clone(),
            first_row: self.width(dims.kv_lora),
            rope: dims.rope as u32,
        };
        let absorbed = u64::from(self.step.most) * u64::from(rotation.first_row) * 4;
        self.step.record(&Product {
            y: Some(y.clone()),
            rotation: self.step.as_one.then_some(rotation),
            ..Product::of(qk, &x)
        })?;
        let part = |offset, size| Range {
            offset,
            size,
            ..y.clone()
        };
        let [absorbed, mut rotated] = [part(0, absorbed), part(absorbed, y.size - absorbed)];
        let mut rows = self.rows(kv_a);
        if !self.step.as_one {
            let q_pe = self.q_pe();
            rows.queries = Some([rotated, q_pe.clone()]);
            // The absorbed part of a head lies elsewhere.
            rows.dims.nope = 0;
            rotated = q_pe;
        }
        self.step.calls.push(rope_cache::call(&rows));
        Ok([absorbed, rotated])
    }

    /// The queries by products of their own.
    fn absorbed_queries(&mut self) -> Queries {
        let (weights, given, dims) = (self.weights, self.step.given, self.dims());
        let heads = weights.query_heads();
        let q = self.step.floats("q", heads.total_rows());
        let values = self.step.values("prepared q", heads.total_rows());
        let query = |x: &TokenInput| Product {
            y: Some(q.clone()),
            prepared: Some(TokenOutput::of(values.clone())),
            ..Product::of(heads, x)
        };
        let kv_a = match &weights.q {
            Query::Full { .. } if self.step.as_one => self.beside_kv_a(query(self.x))?,
            _ => {
                let (x, kv_a) = self.query_input()?;
                self.step.record(&query(&x))?;
                kv_a
            }
        };
        let (rows, q_lat, q_pe) = (self.rows(kv_a), self.q_lat(), self.q_pe());
        if self.is_serial() && token_queries::fits(&weights.attn_k_b, dims) {
            let queries = GpuTokenQueries {
                k_b: &weights.attn_k_b,
                activation: self.step.activation,
                q,
                values,
                rope_table: self.mla.rope_table.clone(),
                dims,
                q_lat,
                q_pe,
                row: rows.row,
                sequences: given.context.sequences.clone(),
            };
            self.step.calls.extend(queries.calls(given.target)?);
            return Ok([queries.q_lat, queries.q_pe]);
        }
        self.step.record(&Product {
            y: Some(q_lat.clone()),
            ..Product::of_heads(&weights.attn_k_b, &TokenInput::of(values), dims.head())
        })?;
        self.step.calls.push(rope_cache::call(&GpuRopeCache {
            queries: Some([q, q_pe.clone()]),
            ..rows
        }));
        Ok([q_lat, q_pe])
    }

    /// The input of the query heads: the query's latent before its norm where there is one, else the stream. And `kv_a`.
    fn query_input(&mut self) -> Result<(TokenInput, Range), GpuError> {
        match &self.weights.q {
            Query::Full { .. } => Ok((self.x.clone(), self.kv_a()?)),
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let names = ["prepared q_a", "q_a squares"];
                let q_a = self.step.before_norm(names, attn_q_a.rows, attn_q_a_norm);
                let kv_a = self.beside_kv_a(Product {
                    prepared: Some(q_a.output()),
                    ..Product::of(attn_q_a, self.x)
                })?;
                Ok((q_a.input(self.step.given.eps()), kv_a))
            }
        }
    }

    /// `kv_a` of the stream.
    fn kv_a(&mut self) -> Result<Range, GpuError> {
        let weight = &self.weights.attn_kv_a_mqa;
        let kv_a = self.step.floats_beside("kv_a", weight.rows);
        self.step.record(&Product {
            y: Some(kv_a.clone()),
            ..Product::of(weight, self.x)
        })?;
        Ok(kv_a)
    }

    /// A product of the stream, and `kv_a` beside it, which does not wait for it: in one grid where every dispatch waits.
    fn beside_kv_a(&mut self, product: Product<'_>) -> Result<Range, GpuError> {
        let weights = [product.weight, &self.weights.attn_kv_a_mqa];
        if !(self.is_serial() && token_beside::fits(weights, product.prepared.is_some())) {
            self.step.record(&product)?;
            return self.kv_a();
        }
        let both = GpuTokenBeside {
            weights,
            activation: self.step.activation,
            x: self.x.clone(),
            y: product.y,
            prepared: product.prepared,
            z: self.step.floats_beside("kv_a", weights[1].rows),
        };
        let calls = both.calls(self.step.given.target)?;
        self.step.calls.extend(calls);
        Ok(both.z)
    }

    /// The latents of the heads, prepared, from the slices of the attention.
    fn merged(&mut self) -> Range {
        let width = self.width(self.dims().kv_lora);
        let latents = self.step.values("latents", width);
        let (given, step) = (self.step.given, &mut *self.step);
        let merge = self
            .mla
            .merge(given, &latents, step.activation, step.as_one);
        step.calls.push(merge);
        latents
    }

    /// The heads' values, prepared, from the slices of the attention: joined by the product itself where they are few, else by a dispatch
    /// before it.
    fn head_values(&mut self) -> Result<Range, GpuError> {
        let (v_b, dims) = (&self.weights.attn_v_b, self.dims());
        let values = self.step.values("values", v_b.total_rows());
        let output = TokenOutput::of(values.clone());
        let (most, of_each) = (self.joined(&output)?, self.is_of_each());
        // The most slices that a token can have.
        let limit = match of_each {
            true => self.mla.slices,
            false => MAX_SLICES as u32,
        };
        let joins = self.step.as_one || most > 0;
        if self.step.as_one && most >= limit {
            return Ok(values);
        }
        let begin = self.step.calls.len();
        let latents = TokenInput::of(self.merged());
        self.step.record(&Product {
            prepared: Some(output),
            slices: (of_each && most > 0).then_some([most + 1, u32::MAX]),
            ..Product::of_heads(v_b, &latents, dims.kv_lora)
        })?;
        if joins {
            let when = match (of_each, most) {
                (true, 0) => When::Always,
                (true, _) => When::Kernel(MERGED),
                (false, _) => When::SlicesAbove(most),
            };
            for call in &mut self.step.calls[begin..] {
                call.when = when;
            }
        }
        Ok(values)
    }

    /// Records the product that joins slices, if there is one. The result is the most slices of a token that it joins.
    fn joined(&mut self, output: &TokenOutput) -> Result<u32, GpuError> {
        let (given, v_b, dims) = (self.step.given, &self.weights.attn_v_b, self.dims());
        let (target, most) = (given.target, self.step.most);
        let joins = target.merge_up_to(self.step.activation);
        let joins = match (self.step.as_one, self.step.is_apart()) {
            (true, _) => joins,
            // The slices of all tokens are counted.
            (false, true) => joins * most,
            (false, false) => 0,
        };
        if joins == 0 {
            return Ok(0);
        }
        let slices = Input::Slices(self.mla.partials.clone(), dims);
        let product = GpuTokenMatvec::new(v_b, self.step.activation, slices)
            .prepared(output.clone())
            .of_tokens(target.machine, most, given.context.sequences.as_ref());
        let Ok(geometry) = product.geometry(target) else {
            return Ok(0);
        };
        let (product, when) = match self.is_of_each() {
            false => (product, When::SlicesUpTo(joins)),
            true if joins >= self.mla.slices => (product, When::Always),
            true => (product.of_slices([0, joins]), When::Kernel(JOINED)),
        };
        let calls = product.calls_with(target, &geometry)?.into_iter();
        self.step.calls.extend(calls.map(|call| call.only(when)));
        Ok(joins)
    }
}
