//! Cases of the cache's new rows and the rotated queries beside them, and a new row for other kernels that write it.

use half::f16;

use super::Case;
use super::lab::{self, Compared, Lab, state};
use super::places::Pages;
use super::prepared::EPS;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::kernels::rope_cache::{CacheRow, GpuRopeCache, call, rope_cache};
use crate::kernels::sequences::Sequences;
use crate::kernels::{CacheType, MlaDims, Rows};

/// WGSL leaves the rounding to f16 open: the two may be 2^-10 of the value apart.
const LIMIT_OF_HALVES: f64 = 9.6e-7;
/// A scale may be off by as much, and codes that lie half way between two may be off by one: 2e-4 of a block's mean square each. A kernel that
/// cut codes off instead of rounding them would be off by 7e-5 in all.
const LIMIT_OF_CODES: f64 = 4e-6;

/// A cache of `rows` rows of `row` values before anything is written.
pub(super) fn untouched(row: usize, rows: usize) -> Vec<f16> {
    vec![f16::from_f32(7.0); rows * row]
}

/// A cache beside what it should be: the values of rows that were to be written, and all others bit by bit.
pub(super) fn compared(
    lab: &Lab<'_>,
    found: &Range,
    expected: &[f16],
    layout: Rows,
    written: impl Fn(usize) -> bool,
) -> Result<Vec<Compared>, GpuError> {
    let limit = match layout.cache {
        CacheType::F16 => LIMIT_OF_HALVES,
        CacheType::Q8_0 => LIMIT_OF_CODES,
    };
    let found = lab.read::<f16>(found, expected.len())?;
    let rows = |cache: &[f16], of: bool| -> Vec<f16> {
        let rows = cache.chunks_exact(layout.words()).enumerate();
        let rows = rows.filter(|(i, _)| written(*i) == of);
        rows.flat_map(|(_, row)| row).copied().collect()
    };
    let [new, twin] = [&found, expected].map(|cache| layout.read_all(&rows(cache, true)));
    let others = rows(&found, false) == rows(expected, false);
    Ok(vec![
        lab.close(&new, &twin, limit),
        lab.holds(others, || "other rows".to_owned()),
    ])
}

/// The inputs of a cache row, and the number of rows of a cache.
pub(crate) struct Row {
    dims: MlaDims,
    kv_a: Vec<f32>,
    norm: Vec<f32>,
    rows: usize,
}

impl Row {
    /// A random row for a cache of `rows` rows.
    pub fn new(lab: &Lab<'_>, dims: MlaDims, rows: usize) -> Self {
        Self {
            dims,
            kv_a: lab.normals(dims.cache_values()),
            norm: lab.normals(dims.kv_lora),
            rows,
        }
    }

    /// kv_a, the norm's weight and its epsilon.
    pub fn inputs(&self) -> (&[f32], &[f32], f32) {
        (&self.kv_a, &self.norm, EPS)
    }

    /// The row on the device, with a cache whose rows are all known.
    pub fn given(&self, lab: &Lab<'_>) -> CacheRow {
        CacheRow {
            kv_a: lab.given(&self.kv_a),
            kv_a_norm: lab.given(&self.norm),
            eps: EPS,
            cache: lab.cache(&untouched(self.dims.cache_row(), self.rows)),
        }
    }

    /// The cache beside one whose row `at` is the twin's for a position of these `angles` (rope / 2).
    pub fn compared(
        &self,
        lab: &Lab<'_>,
        found: &CacheRow,
        angles: &[[f32; 2]],
        at: usize,
    ) -> Result<Vec<Compared>, GpuError> {
        let (dims, row) = (self.dims, self.dims.cache_row());
        let mut expected = untouched(row, self.rows);
        let own = &mut expected[at * row..][..row];
        let q = vec![0.0; dims.heads * dims.head()];
        let mut q_pe = vec![0.0; dims.heads * dims.rope];
        rope_cache(
            &q, &self.kv_a, &self.norm, EPS, angles, 0, dims, &mut q_pe, own,
        );
        compared(lab, &found.cache, &expected, dims.rows(), |row| row == at)
    }
}

/// New rows of tokens: random queries, latents, norm and angles.
struct NewRows {
    dims: MlaDims,
    q: Vec<f32>,
    kv_a: Vec<f32>,
    norm: Vec<f32>,
    table: Vec<[f32; 2]>,
}

impl NewRows {
    fn new(lab: &Lab<'_>, dims: MlaDims, tokens: usize, n_ctx: usize) -> Self {
        Self {
            dims,
            q: lab.normals(tokens * dims.heads * dims.head()),
            kv_a: lab.normals(tokens * dims.cache_values()),
            norm: lab.normals(dims.kv_lora),
            table: lab.angles(n_ctx * dims.rope / 2),
        }
    }

    /// The call on the device, with the rotated queries: `kv_a` in partial sums of a product for `tokens`, and a cache.
    fn call(
        &self,
        lab: &Lab<'_>,
        partial_sums: usize,
        tokens: usize,
        rows: usize,
        sequences: Option<Sequences>,
    ) -> (GpuRopeCache, Range) {
        let values = tokens * self.dims.cache_values();
        // The last partial sum has it all, and behind it they hold what must not be read.
        let mut sums = vec![f32::NAN; partial_sums * values];
        for sum in sums.chunks_mut(values) {
            sum[..self.kv_a.len()].fill(0.0);
        }
        sums[(partial_sums - 1) * values..][..self.kv_a.len()].copy_from_slice(&self.kv_a);
        let row = CacheRow {
            kv_a: lab.given(&sums),
            kv_a_norm: lab.given(&self.norm),
            eps: EPS,
            cache: lab.cache(&untouched(self.dims.cache_row(), rows)),
        };
        let rotated = lab.room(self.q.len() / self.dims.head() * self.dims.rope);
        let table = lab.given(self.table.as_flattened());
        let call = GpuRopeCache {
            queries: Some([lab.given(&self.q), rotated.clone()]),
            partial_sums: partial_sums as u32,
            partial_tokens: tokens as u32,
            sequences,
            ..GpuRopeCache::of(row, &table, self.dims)
        };
        (call, rotated)
    }

    /// The rotated queries of token `t` at this position, and its row of a cache.
    fn twin(&self, t: usize, position: usize) -> (Vec<f32>, Vec<f16>) {
        let (dims, row) = (self.dims, self.dims.cache_row());
        let (heads, width) = (dims.heads * dims.head(), dims.cache_values());
        let mut cache = vec![f16::ZERO; row];
        let mut q_pe = vec![0.0; dims.heads * dims.rope];
        let (q, kv_a) = (
            &self.q[t * heads..][..heads],
            &self.kv_a[t * width..][..width],
        );
        let angles = &self.table[position * dims.rope / 2..];
        rope_cache(
            q, kv_a, &self.norm, EPS, angles, 0, dims, &mut q_pe, &mut cache,
        );
        (q_pe, cache)
    }

    /// The rotated queries of tokens, and a cache with their rows: for each token its position and its row.
    fn twins(&self, places: &[(usize, usize)], rows: usize) -> (Vec<f32>, Vec<f16>) {
        let row = self.dims.cache_row();
        let (mut rotated, mut cache) = (vec![], untouched(self.dims.cache_row(), rows));
        for (t, (position, to)) in places.iter().enumerate() {
            let (q_pe, own) = self.twin(t, *position);
            rotated.extend(q_pe);
            cache[to * row..][..row].copy_from_slice(&own);
        }
        (rotated, cache)
    }
}

/// Tokens at `pos`. The rows come in partial sums of a product that was recorded for more tokens, too.
fn alone(
    lab: &Lab<'_>,
    dims: MlaDims,
    pos: usize,
    tokens: usize,
) -> Result<Vec<Compared>, GpuError> {
    let n_ctx = 50;
    let new = NewRows::new(lab, dims, tokens, n_ctx);
    let places: Vec<_> = (pos..pos + tokens).map(|row| (row, row)).collect();
    let (rotated, expected) = new.twins(&places, n_ctx);
    let mut all = vec![];
    for (with_queries, partial_sums, more) in
        [(true, 1, 0), (false, 1, 0), (false, 3, 0), (true, 3, 5)]
    {
        let (mut rows, q_pe) = new.call(lab, partial_sums, tokens + more, n_ctx, None);
        if !with_queries {
            rows.queries = None;
        }
        lab.run(vec![call(&rows)], state(tokens, pos))?;
        if with_queries {
            // f32 rounding alone.
            all.push(lab.floats(&q_pe, &rotated, 1e-13)?);
        }
        let written = |row| (pos..pos + tokens).contains(&row);
        let layout = dims.rows();
        all.extend(compared(lab, &rows.row.cache, &expected, layout, written)?);
    }
    Ok(all)
}

/// Tokens of several sequences, whose rows lie in pages.
fn by_sequence(lab: &Lab<'_>, dims: MlaDims) -> Result<Vec<Compared>, GpuError> {
    let pages = Pages::new(lab, 32, &[40, 1, 33, 32]);
    let new = NewRows::new(lab, dims, pages.tokens(), pages.n_ctx);
    let place = |(sequence, position): (&usize, &u32)| {
        let position = *position as usize;
        (position, pages.row(*sequence, position))
    };
    let places: Vec<_> = pages.of.iter().zip(&pages.positions).map(place).collect();
    let (rotated, expected) = new.twins(&places, pages.rows);
    let tokens = pages.tokens();
    let sequences = Some(pages.without_slices(lab));
    let (rows, q_pe) = new.call(lab, 1, tokens, pages.rows, sequences);
    let longest = pages.n_ctx - 2;
    let state: State = state(tokens, longest.max(tokens) - tokens);
    lab.run(vec![call(&rows)], state)?;
    let written = |row| places.iter().any(|(_, to)| *to == row);
    let mut all = compared(lab, &rows.row.cache, &expected, dims.rows(), written)?;
    all.push(lab.floats(&q_pe, &rotated, 1e-12)?);
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let dims = |heads, nope, rope, kv_lora| MlaDims {
        heads,
        nope,
        rope,
        kv_lora,
        cache: CacheType::F16,
    };
    let (glm, deepseek) = (dims(20, 192, 64, 512), dims(16, 128, 64, 512));
    let mut all = vec![];
    // The last one has more pairs to rotate than threads.
    let codes = |dims: MlaDims| dims.with_cache(CacheType::Q8_0);
    // The last rows of codes have an odd number of blocks.
    for dims in [
        glm,
        deepseek,
        dims(3, 10, 262, 34),
        codes(deepseek),
        codes(dims(3, 10, 262, 96)),
    ] {
        for (pos, tokens) in [(0, 1), (5, 3), (41, 8)] {
            let name = format!("{}, {tokens} tokens after {pos}", lab::heads(dims));
            let case = Case::new(name, move |lab| alone(lab, dims, pos, tokens));
            let is_shape = dims.with_cache(CacheType::F16) == deepseek;
            all.push(case.verified_if(is_shape && tokens == 3));
        }
    }
    for dims in [glm, codes(glm)] {
        let name = format!("{}, 4 sequences in pages", lab::heads(dims));
        all.push(Case::new(name, move |lab| by_sequence(lab, dims)));
    }
    all
}
