//! Protects steps of several sequences: each token gets what a step of its sequence alone would give it, wherever the pages of its rows lie.

use super::*;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::call::State;
use crate::gpu::testing::{download, gpu_weight, gpus, output, run, upload};
use crate::gpu::{Coop, Gpu, Tier};
use crate::kernels::attention::testing::{glm, limit};
use crate::kernels::attention::{
    Form, GpuAttention, MAX_SLICES, Seen, attention, cut_context, cut_sequences, partial_bytes,
    untried_forms,
};
use crate::kernels::rope_cache::{CacheRow, GpuRopeCache, rope_cache};
use crate::kernels::testing::coop::{emulated_call, emulates};
use crate::kernels::testing::{Rng, assert_close, random_weight};
use crate::kernels::{
    MlaDims, attention_coop, attention_merge, attention_short, embed, rope_cache as rope,
};
use crate::quant::GgmlType;
use crate::quant::activation::Activation;
use half::f16;

const PAGE: usize = 32;

/// Sequences of random lengths, whose pages lie in random places among those of others.
pub(crate) struct Given {
    /// The position of each token, the last of its sequence.
    pub positions: Vec<u32>,
    /// The sequence of each.
    pub of: Vec<usize>,
    pages: Vec<u32>,
    per_sequence: usize,
    pub rows: usize,
    pub n_ctx: usize,
}

impl Given {
    /// One token for each of `lengths`, rows that its sequence has with its own; some tokens follow another of the same sequence.
    pub fn new(rng: &mut Rng, lengths: &[usize]) -> Self {
        let n_ctx = lengths.iter().max().expect("some") + 2;
        let per_sequence = n_ctx.div_ceil(PAGE);
        let count = lengths.len() * per_sequence + 3;
        let mut free: Vec<u32> = (0..count as u32).collect();
        rng.shuffle(&mut free);
        // The first page of the first sequence is the last one of the cache, of which kernels are told a number that is too large.
        let last = free.iter().position(|page| *page == count as u32 - 1);
        free.swap(0, last.expect("it is one of them"));
        let pages = free[..lengths.len() * per_sequence].to_vec();
        let mut given = Self {
            positions: vec![],
            of: vec![],
            pages,
            per_sequence,
            rows: count * PAGE,
            n_ctx,
        };
        for (sequence, length) in lengths.iter().enumerate() {
            given.positions.push(*length as u32 - 1);
            given.of.push(sequence);
        }
        // Some tokens before the last of two sequences, too. They follow each other.
        for sequence in [0, 2] {
            let last = lengths.get(sequence).map_or(0, |length| length - 1);
            for position in last.saturating_sub(6)..last {
                given.positions.push(position as u32);
                given.of.push(sequence);
            }
        }
        given
    }

    pub fn tokens(&self) -> usize {
        self.of.len()
    }

    /// Where the row of a position lies.
    pub fn row(&self, sequence: usize, position: usize) -> usize {
        let page = self.pages[sequence * self.per_sequence + position / PAGE];
        page as usize * PAGE + position % PAGE
    }

    /// On the device, with slices for `form`.
    pub fn upload(&self, gpu: &Gpu, form: Form, heads: usize) -> (Sequences, State) {
        let tokens = self.of.iter().zip(&self.positions);
        let seen = |(sequence, position): (&usize, &u32)| Seen {
            sequence: *sequence as u32,
            position: *position,
        };
        let seen: Vec<Seen> = tokens.map(seen).collect();
        let cut = cut_sequences(form, gpu.machine, &seen, heads);
        let slices = cut.work.len() as u32;
        let tokens = self.of.iter().zip(&self.positions).zip(&cut.slices);
        let record = |((sequence, position), slices): ((&usize, &u32), &[u32; 2])| Record {
            position: *position,
            first_page: (sequence * self.per_sequence) as u32,
            first_id: (sequence * (self.n_ctx + 1)) as u32,
            first_slice: slices[0],
            slices: slices[1],
        };
        let table: Vec<u32> = tokens.flat_map(|t| record(t).words()).collect();
        let most = MAX_SLICES + self.tokens();
        let rows = cut.rows;
        let mut work = cut.work;
        assert!(work.len() <= most, "{} slices", work.len());
        work.resize(most, [0; SLICE]);
        let mut pages = self.pages.clone();
        pages[0] = u32::MAX;
        let sequences = Sequences {
            table: Range::whole(&upload(gpu, &table)),
            pages: Range::whole(&upload(gpu, &pages)),
            work: Range::whole(&upload(gpu, work.as_flattened())),
            page: PAGE as u32,
            rows: self.rows as u32,
            alone: false,
            ids: ((self.of.iter().max().expect("some") + 1) * (self.n_ctx + 1)) as u32,
        };
        let tokens = self.tokens() as u32;
        let state = State {
            pos: rows.max(tokens) - tokens,
            tokens,
            slices,
            ..State::default()
        };
        (sequences, state)
    }

    /// On the device, for a step of token `t` alone, with its attention cut into slices of so many rows.
    pub fn alone(&self, gpu: &Gpu, t: usize, slice_rows: u32) -> (Sequences, State) {
        let (sequences, _) = self.upload(gpu, Form::Vector, 1);
        let (sequence, pos) = (self.of[t], self.positions[t]);
        let sequences = Sequences {
            // Not what tells where the token stands.
            table: Range::whole(&upload(gpu, &vec![u32::MAX; 8 * self.tokens()])),
            ..sequences.of_steps(1)
        };
        let state = State {
            pos,
            tokens: 1,
            slices: (pos + 1).div_ceil(slice_rows),
            slice_rows,
            first_page: (sequence * self.per_sequence) as u32,
            first_id: (sequence * (self.n_ctx + 1)) as u32,
            ..State::default()
        };
        (sequences, state)
    }

    /// A cache whose rows that no token sees are NaN, and that of each sequence alone.
    fn cache(&self, rng: &mut Rng, row: usize) -> (Vec<f16>, Vec<Vec<f16>>) {
        let mut all = vec![f16::NAN; self.rows * row];
        let mut alone = vec![];
        for sequence in 0..=*self.of.iter().max().expect("some") {
            let longest = self.positions[sequence] as usize + 1;
            let values = rng.normals(longest * row);
            let own: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
            for (position, values) in own.chunks_exact(row).enumerate() {
                let at = self.row(sequence, position) * row;
                all[at..at + row].copy_from_slice(values);
            }
            alone.push(own);
        }
        (all, alone)
    }
}

/// Where a kernel for one token is told that it stands.
pub(crate) struct Place {
    pub sequences: Option<Sequences>,
    pub state: State,
    /// The row of the cache that belongs to it.
    pub row: usize,
}

/// A token at position `pos` of a session, and of one of several sequences with pages; and the rows of the cache.
pub(crate) fn places(gpu: &Gpu, rng: &mut Rng, pos: usize) -> ([Place; 2], usize) {
    let state = State {
        pos: pos as u32,
        tokens: 1,
        ..State::default()
    };
    let in_session = Place {
        sequences: None,
        state,
        row: pos,
    };
    let given = Given::new(rng, &[3, pos + 1, 40]);
    let (sequences, state) = given.alone(gpu, 1, 16);
    let in_batch = Place {
        sequences: Some(sequences),
        state,
        row: given.row(1, pos),
    };
    ([in_session, in_batch], given.rows)
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Queries of the tokens of several sequences, and what attends to their rows.
struct Asked {
    given: Given,
    dims: MlaDims,
    cache: Vec<f16>,
    q_lat: Vec<f32>,
    q_pe: Vec<f32>,
    /// The twin's output for each token alone.
    twin: Vec<f32>,
}

impl Asked {
    fn new(rng: &mut Rng, dims: MlaDims, lengths: &[usize]) -> Self {
        let given = Given::new(rng, lengths);
        let (row, tokens) = (dims.cache_row(), given.tokens());
        let (cache, alone) = given.cache(rng, row);
        let mut queries =
            |n: usize| -> Vec<f32> { rng.normals(n).into_iter().map(|x| x * 3.0).collect() };
        let q_lat = queries(tokens * dims.heads * dims.kv_lora);
        let q_pe = queries(tokens * dims.heads * dims.rope);
        let scale = 1.0 / (row as f32).sqrt();
        let mut twin = vec![f32::NAN; q_lat.len()];
        for t in 0..tokens {
            let of = |width: usize| t * dims.heads * width..(t + 1) * dims.heads * width;
            let (position, rows) = (given.positions[t] as usize, &alone[given.of[t]]);
            let (q, pe) = (&q_lat[of(dims.kv_lora)], &q_pe[of(dims.rope)]);
            let out = &mut twin[of(dims.kv_lora)];
            attention(q, pe, rows, position, 1, dims, scale, out);
        }
        Self {
            given,
            dims,
            cache,
            q_lat,
            q_pe,
            twin,
        }
    }

    /// Holds a form, whose dispatches `change` may replace, against the twin.
    fn check(&self, gpu: &Gpu, form: Form, change: impl Fn(Call) -> Call) {
        let (sequences, state) = self.given.upload(gpu, form, self.dims.heads);
        let of = (self.dims, self.given.tokens());
        let attention = attention_of(gpu, form, [&self.q_lat, &self.q_pe], &self.cache, of);
        let attention = GpuAttention {
            sequences: Some(sequences),
            ..attention
        };
        let (merge, out) = merged(gpu, &attention, self.q_lat.len());
        let mut calls: Vec<Call> = attention.calls().into_iter().map(change).collect();
        calls.push(merge);
        run(gpu, &calls, &state);
        let found: Vec<f32> = download(gpu, &out, self.q_lat.len());
        let limit = match form {
            // Queries and weights are rounded to f16.
            Form::Matrix(_) => 1e-5,
            _ => limit(self.given.n_ctx),
        };
        let positions = &self.given.positions;
        let what = format!("{form:?}, {positions:?}, {}", gpu.tier.name());
        assert_close(&found, &exact(&self.twin), limit, &what);
    }
}

#[test]
fn each_token_attends_to_its_own_sequence() {
    let odd = MlaDims {
        heads: 6,
        nope: 16,
        rope: 24,
        kv_lora: 72,
    };
    let mut rng = Rng::fresh();
    for (dims, lengths) in [
        (glm(), vec![1, 33, 700, 64, 2000]),
        (glm(), vec![5; 12]),
        (odd, vec![300, 1, 32]),
    ] {
        let asked = Asked::new(&mut rng, dims, &lengths);
        for gpu in gpus() {
            for form in untried_forms(gpu, dims) {
                asked.check(gpu, form, |call| call);
            }
        }
    }
}

#[test]
fn tokens_that_share_workgroups_get_what_they_get_alone_where_matrices_are_emulated() {
    // Narrow rows: at full width, llvmpipe takes minutes to compile the stand-ins.
    let dims = MlaDims {
        heads: 20,
        kv_lora: 128,
        ..glm()
    };
    let mut rng = Rng::fresh();
    // Runs of tokens behind few rows and many: queries of several tokens in a workgroup, slices that only the last tokens see.
    let longest = 129 + rng.below(3);
    let asked = Asked::new(&mut rng, dims, &[7, 40, longest]);
    for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
        let shapes = attention_coop::fitting(Coop::NVIDIA, 48 << 10, dims);
        let shape = shapes.into_iter().next().expect("the shape for all heads");
        assert!(shape.tile().1 > dims.heads);
        let form = Form::Matrix(attention_coop::Shapes::always(shape));
        asked.check(gpu, form, |call| emulated_call(&call, Coop::NVIDIA, false));
    }
}

/// The attention of so many tokens, whose sequences are still to be told.
fn attention_of(
    gpu: &Gpu,
    form: Form,
    [q_lat, q_pe]: [&[f32]; 2],
    cache: &[f16],
    (dims, tokens): (MlaDims, usize),
) -> GpuAttention {
    let partials = partial_bytes(dims, MAX_SLICES + tokens);
    GpuAttention {
        form,
        q_lat: Range::whole(&upload(gpu, q_lat)),
        q_pe: Range::whole(&upload(gpu, q_pe)),
        cache: Range::whole(&upload(gpu, cache)).holding(Role::Cache),
        dims,
        scale: 1.0 / (dims.cache_row() as f32).sqrt(),
        partials: partials.map(|bytes| Range::whole(&output(gpu, bytes as usize / 4))),
        sequences: None,
    }
}

/// The dispatch that joins its slices, and the buffer of so many values that it leaves.
fn merged(gpu: &Gpu, attention: &GpuAttention, values: usize) -> (Call, Buffer) {
    let out = output(gpu, values);
    let merge = attention_merge::call(
        attention.sequences.as_ref(),
        &attention.partials,
        attention.dims,
        &Range::whole(&out),
        Activation::Floats,
    );
    (merge, out)
}

#[test]
fn a_token_alone_attends_to_its_own_sequence() {
    let mut rng = Rng::fresh();
    let dims = glm();
    let lengths = [50, 700, 33, 1, 64];
    let given = Given::new(&mut rng, &lengths);
    let row = dims.cache_row();
    let (cache, alone) = given.cache(&mut rng, row);
    let scale = 1.0 / (row as f32).sqrt();
    for gpu in gpus() {
        for t in 0..lengths.len() {
            let mut queries =
                |n: usize| -> Vec<f32> { rng.normals(n).into_iter().map(|x| x * 3.0).collect() };
            let q_lat = queries(dims.heads * dims.kv_lora);
            let q_pe = queries(dims.heads * dims.rope);
            let mut twin = vec![f32::NAN; q_lat.len()];
            let (position, rows) = (given.positions[t] as usize, &alone[given.of[t]]);
            attention(&q_lat, &q_pe, rows, position, 1, dims, scale, &mut twin);
            let short = [(Form::Vector, attention_short::ROWS, true)];
            let forms = untried_forms(gpu, dims);
            let forms = forms.into_iter().map(|form| {
                let (_, slice) = cut_context(form, gpu.machine, position + 1, 1, dims.heads);
                (form, slice, false)
            });
            for (form, slice_rows, short) in forms.chain(short) {
                if short && gpu.tier == Tier::Plain {
                    continue;
                }
                let (sequences, state) = given.alone(gpu, t, slice_rows);
                let attention = attention_of(gpu, form, [&q_lat, &q_pe], &cache, (dims, 1));
                let attention = GpuAttention {
                    sequences: Some(sequences),
                    ..attention
                };
                let (merge, out) = merged(gpu, &attention, q_lat.len());
                let mut calls = match short {
                    true => vec![attention.short_call(gpu)],
                    false => attention.calls(),
                };
                calls.push(merge);
                run(gpu, &calls, &state);
                let found: Vec<f32> = download(gpu, &out, q_lat.len());
                let limit = match form {
                    Form::Matrix(_) => 1e-5,
                    _ => limit(position + 1),
                };
                let tier = gpu.tier.name();
                let what = format!("{form:?}, short: {short}, token {t}, {tier}");
                assert_close(&found, &exact(&twin), limit, &what);
            }
        }
    }
}

#[test]
fn ids_are_found_by_sequence() {
    let mut rng = Rng::fresh();
    let lengths = [40, 1, 33, 32];
    let given = Given::new(&mut rng, &lengths);
    let w = random_weight(&mut rng, GgmlType::Q4_0, 1, 50, 64);
    let all = lengths.len() * (given.n_ctx + 1);
    let history: Vec<u32> = (0..all).map(|_| rng.below(50) as u32).collect();
    let id = |t: usize| history[given.of[t] * (given.n_ctx + 1) + given.positions[t] as usize];
    let ids: Vec<u32> = (0..given.tokens()).map(id).collect();
    let mut rows = vec![f32::NAN; ids.len() * 64];
    embed::embed(&w, &ids, &mut rows);
    for gpu in gpus() {
        let (sequences, state) = given.upload(gpu, Form::Vector, 1);
        let embedded = output(gpu, rows.len());
        let calls = embed::calls(
            Some(&sequences),
            &gpu_weight(gpu, &w),
            &Range::whole(&upload(gpu, &history)),
            &Range::whole(&embedded),
        );
        run(gpu, &calls, &state);
        let found: Vec<f32> = download(gpu, &embedded, rows.len());
        assert_close(&found, &exact(&rows), 1e-13, gpu.tier.name());
        for (t, row) in rows.chunks_exact(64).enumerate() {
            let (sequences, state) = given.alone(gpu, t, 16);
            let embedded = output(gpu, 64);
            let calls = embed::calls(
                Some(&sequences),
                &gpu_weight(gpu, &w),
                &Range::whole(&upload(gpu, &history)),
                &Range::whole(&embedded),
            );
            run(gpu, &calls, &state);
            let what = format!("token {t} alone, {}", gpu.tier.name());
            assert_close(&download(gpu, &embedded, 64), &exact(row), 1e-13, &what);
        }
    }
}

/// Rows of the cache and rotated queries of `given`, from random queries, latents, norm and angles.
struct NewRows {
    dims: MlaDims,
    q: Vec<f32>,
    kv_a: Vec<f32>,
    norm: Vec<f32>,
    angles: Vec<f32>,
}

impl NewRows {
    fn new(rng: &mut Rng, dims: MlaDims, given: &Given) -> Self {
        let tokens = given.tokens();
        Self {
            dims,
            q: rng.normals(tokens * dims.heads * dims.head()),
            kv_a: rng.normals(tokens * dims.cache_row()),
            norm: rng.normals(dims.kv_lora),
            angles: rng.normals(given.n_ctx * dims.rope),
        }
    }

    /// The rotated queries, and the cache of all pages, whose other rows hold 7.
    fn twin(&self, given: &Given) -> (Vec<f32>, Vec<f16>) {
        let (dims, row) = (self.dims, self.dims.cache_row());
        let (angles, _) = self.angles.as_chunks();
        let mut all = vec![f16::from_f32(7.0); given.rows * row];
        let (heads, ropes) = (dims.heads * dims.head(), dims.heads * dims.rope);
        let mut rotated = vec![f32::NAN; given.tokens() * ropes];
        for t in 0..given.tokens() {
            let position = given.positions[t] as usize;
            let mut cache = vec![f16::ZERO; given.n_ctx * row];
            let q = &self.q[t * heads..][..heads];
            let kv_a = &self.kv_a[t * row..][..row];
            let q_pe = &mut rotated[t * ropes..][..ropes];
            let norm = &self.norm;
            rope_cache(
                q, kv_a, norm, 1e-5, angles, position, dims, q_pe, &mut cache,
            );
            let to = given.row(given.of[t], position) * row;
            all[to..to + row].copy_from_slice(&cache[position * row..][..row]);
        }
        (rotated, all)
    }
}

#[test]
fn new_rows_are_found_by_sequence() {
    let mut rng = Rng::fresh();
    let dims = glm();
    let row = dims.cache_row();
    let given = Given::new(&mut rng, &[40, 1, 33, 32]);
    let new = NewRows::new(&mut rng, dims, &given);
    let (rotated, expected) = new.twin(&given);
    for gpu in gpus() {
        let (sequences, state) = given.upload(gpu, Form::Vector, dims.heads);
        let cache = upload(gpu, &vec![f16::from_f32(7.0); given.rows * row]);
        let q_pe = output(gpu, rotated.len());
        let call = rope::call(&GpuRopeCache {
            queries: Some([Range::whole(&upload(gpu, &new.q)), Range::whole(&q_pe)]),
            sequences: Some(sequences),
            ..GpuRopeCache::of(
                CacheRow {
                    kv_a: Range::whole(&upload(gpu, &new.kv_a)),
                    kv_a_norm: Range::whole(&upload(gpu, &new.norm)),
                    eps: 1e-5,
                    cache: Range::whole(&cache).holding(Role::Cache),
                },
                &Range::whole(&upload(gpu, &new.angles)),
                dims,
            )
        });
        run(gpu, &[call], &state);
        let what = gpu.tier.name();
        let found: Vec<f32> = download(gpu, &q_pe, rotated.len());
        assert_close(&found, &exact(&rotated), 1e-12, what);
        let found: Vec<f16> = download(gpu, &cache, expected.len());
        let wide = |cache: &[f16]| -> Vec<f32> { cache.iter().map(|x| x.to_f32()).collect() };
        // WGSL leaves the rounding to f16 open: the two may be 2^-10 of the value apart.
        assert_close(&wide(&found), &exact(&wide(&expected)), 9.6e-7, what);
        let rows = found.chunks_exact(row).zip(expected.chunks_exact(row));
        for (found, expected) in rows.filter(|(_, e)| e.iter().all(|x| x.to_f32() == 7.0)) {
            assert_eq!(found, expected, "a row of no token");
        }
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let dims = glm();
    let sequences = Sequences {
        table: Range::words("table", 8 * 3),
        pages: Range::words("pages", 12),
        work: Range::words("work", (SLICE * (MAX_SLICES + 3)) as u64),
        page: 32,
        rows: 640,
        ids: 300,
        alone: false,
    };
    let attention = GpuAttention {
        form: Form::Vector,
        q_lat: Range::floats("q_lat", (3 * dims.heads * dims.kv_lora) as u64),
        q_pe: Range::floats("q_pe", (3 * dims.heads * dims.rope) as u64),
        cache: Range::whole(&Buffer::new(
            "cache",
            (640 * dims.cache_row() * 2) as u64,
            Role::Cache,
        )),
        dims,
        scale: 1.0,
        partials: crate::kernels::attention::partials(dims, MAX_SLICES + 3),
        sequences: Some(sequences),
    };
    let most = crate::gpu::Most {
        tokens: 3,
        context: 100,
    };
    for call in attention.calls() {
        crate::kernels::testing::bounds::needs_every_byte(&call, most);
    }
}
