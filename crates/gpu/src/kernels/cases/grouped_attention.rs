//! Cases of the attention of decoded tokens whose query heads share keys and values, over slices of the context, which the CPU joins.

use half::f16;

use super::Case;
use super::attention::joined;
use super::lab::{self, Compared, Lab, state};
use super::places::Pages;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{MAX_SLICES, OfOne, Seen, cut_context, cut_sequences};
use crate::kernels::grouped_attention::{
    Form, GpuGroupedAttention, Short, grouped_attention, partial_bytes,
};
use crate::kernels::sequences::{SLICE, Sequences};
use crate::kernels::{CacheType, GroupedDims, Pairing};
use crate::quant::activation::Activation;

/// The greatest NMSE over `rows` rows. In f32 the twin adds row by row, so its own error grows with the rows. Matrices round queries and weights to
/// f16.
fn limit(form: Form, rows: usize) -> f64 {
    match form {
        Form::Runs(_) => 1e-12 + 1e-12 * rows as f64,
        Form::Matrix(..) => 1e-5,
    }
}

/// The end of a case's name, which tells whether the form takes matrices.
const fn of_form(form: Form) -> &'static str {
    match form {
        Form::Runs(_) => "",
        Form::Matrix(..) => ", matrices",
    }
}

/// Query heads, key heads and the widths of a key and a value head.
pub(crate) const fn dims([heads, kv_heads, key, value]: [usize; 4]) -> GroupedDims {
    GroupedDims {
        heads,
        kv_heads,
        key,
        value,
        rope: key,
        pairing: Pairing::Halves,
        cache: CacheType::F16,
    }
}

/// Queries of tokens.
struct Queries {
    dims: GroupedDims,
    scale: f32,
    q: Vec<f32>,
}

impl Queries {
    /// Queries large enough for weights that differ much, as real ones do.
    fn new(lab: &Lab<'_>, dims: GroupedDims, tokens: usize) -> Self {
        let q = lab.normals(tokens * dims.heads * dims.key).into_iter();
        Self {
            dims,
            scale: 1.0 / (dims.key as f32).sqrt(),
            q: q.map(|x| x * 3.0).collect(),
        }
    }

    /// Has scores rise and fall with the rows of values `rows`, so that sums must be scaled.
    fn rise(&mut self, rows: &mut [f32]) {
        let (key, row) = (self.dims.key, self.dims.cache_values());
        // A share that rises by 1 every 2 rows; of every second head it falls by 16 instead. The sums of these must stay as they are where
        // those of others are scaled: a factor between scores may be too small or too large for an f32.
        for (head, q) in self.q.iter_mut().step_by(key).enumerate() {
            *q = [1.0, -16.0][head % 2] / self.scale;
        }
        for (i, row) in rows.chunks_exact_mut(row).enumerate() {
            let firsts = row[..self.dims.kv_heads * key].iter_mut().step_by(key);
            firsts.for_each(|k| *k = (i / 2 % 32) as f32);
        }
    }

    /// The attention of `n` tokens from `t` on over `cache`, whose last row is that of the last one.
    fn twin(&self, t: usize, n: usize, cache: &[f16]) -> Vec<f32> {
        let (dims, query) = (self.dims, self.dims.heads * self.dims.key);
        let q = &self.q[t * query..(t + n) * query];
        let pos = cache.len() / dims.cache_row() - n;
        let mut out = vec![0.0; n * dims.heads * dims.value];
        grouped_attention(q, cache, pos, n, dims, self.scale, &mut out);
        out
    }

    fn given(
        &self,
        lab: &Lab<'_>,
        form: Form,
        cache: &[f16],
        sequences: Option<Sequences>,
        most: usize,
    ) -> GpuGroupedAttention {
        let room = |bytes: u64| lab.room(bytes as usize / 4);
        GpuGroupedAttention {
            form,
            q: lab.given(&self.q),
            cache: lab.cache(cache),
            dims: self.dims,
            scale: self.scale,
            partials: partial_bytes(self.dims, most).map(room),
            sequences,
        }
    }
}

/// Tokens at the end of a context in a cache of its own, in slices of so many rows.
fn in_own_cache(
    lab: &Lab<'_>,
    form: Form,
    dims: GroupedDims,
    [pos, tokens, slice_rows]: [usize; 3],
) -> Result<Vec<Compared>, GpuError> {
    let rows = pos + tokens;
    let seen = rows * dims.cache_row();
    let mut values = lab.normals(rows * dims.cache_values());
    let mut queries = Queries::new(lab, dims, tokens);
    if tokens == 1 {
        queries.rise(&mut values);
    }
    // Rows behind the last token are no numbers: reading one would show.
    let mut cache = dims.rows().write_all(&values);
    cache.resize(seen + 3 * dims.cache_row(), f16::NAN);
    let attention = queries.given(lab, form, &cache, None, tokens);
    let slices = rows.div_ceil(slice_rows);
    let state = State {
        slices: slices as u32,
        slice_rows: slice_rows as u32,
        ..state(tokens, pos)
    };
    lab.run(vec![attention.call()], state)?;
    let sums = [dims.heads, dims.value];
    let found = joined(lab, &attention.partials, sums, tokens, [0, slices])?;
    let twin = queries.twin(0, tokens, &cache[..seen]);
    Ok(vec![lab.close(&found, &twin, limit(form, rows))])
}

/// The attention to contexts of up to 1024 rows by a workgroup for each query head, where a device runs it.
fn short_of(gpu: &Gpu, dims: GroupedDims) -> Option<Short> {
    let mut target = gpu.target.clone();
    target.machine.tuned.short_attention_rows = 1024 / target.machine.spread().min(1024);
    Short::of(&target, dims)
}

/// One token at the end of a short context. The kernel for short contexts leaves its values in each format.
fn finished(
    lab: &Lab<'_>,
    short: Short,
    dims: GroupedDims,
    rows: usize,
) -> Result<Vec<Compared>, GpuError> {
    let seen = rows * dims.cache_row();
    let mut values = lab.normals(rows * dims.cache_values());
    let mut queries = Queries::new(lab, dims, 1);
    queries.rise(&mut values);
    let mut cache = dims.rows().write_all(&values);
    cache.resize(seen + 3 * dims.cache_row(), f16::NAN);
    let form = Form::without_matrices(lab.gpu, dims);
    let attention = queries.given(lab, form, &cache, None, 1);
    let of_one = OfOne {
        form,
        short: short.rows,
    };
    let (slices, slice_rows) = of_one.slices(lab.gpu.machine, rows, dims.heads);
    let state = State {
        slices,
        slice_rows,
        ..state(1, rows - 1)
    };
    let twin = queries.twin(0, 1, &cache[..seen]);
    let out = lab.room(twin.len());
    let run =
        |out: &Range, output| lab.run(attention.calls_of_one(Some(short), (out, output)), state);
    run(&out, Activation::Floats)?;
    let mut all = vec![
        lab.holds(slices == 1, || format!("{slices} slices of {rows} rows")),
        lab.floats(&out, &twin, limit(form, rows))?,
    ];
    let found: Vec<f32> = lab.read(&out, twin.len())?;
    for output in [Activation::Bytes, Activation::Halves { packed: false }] {
        let words = output.bytes((found.len() / 32) as u64) as usize / 4;
        let out = lab.room(words).holding(Role::prepared(output));
        run(&out, output)?;
        all.extend(lab.left_in(output, &out, None, &found)?);
    }
    Ok(all)
}

/// Tokens of several sequences in one step, whose rows lie in pages. With `as_one` each token has the slices that it has alone, and the kernel for
/// short contexts where a device has one. Without it all contexts are cut together.
fn of_sequences(
    lab: &Lab<'_>,
    (form, as_one): (Form, bool),
    dims: GroupedDims,
    lengths: &[usize],
) -> Result<Vec<Compared>, GpuError> {
    let pages = Pages::new(lab, 32, lengths);
    let (row, tokens) = (dims.cache_row(), pages.tokens());
    let rows = |n: &usize| lab.rows(dims.rows(), *n, 1.0);
    let of: Vec<Vec<f16>> = lengths.iter().map(rows).collect();
    let cache = pages.cache(&of, row);
    let queries = Queries::new(lab, dims, tokens);
    let seen = pages.of.iter().zip(&pages.positions);
    let seen = seen.map(|(sequence, position)| Seen {
        sequence: *sequence as u32,
        position: *position,
    });
    let (seen, machine) = (seen.collect::<Vec<_>>(), lab.gpu.machine);
    let short = short_of(lab.gpu, dims);
    let cut = match as_one {
        true => {
            let short = short.map_or(0, |short| short.rows);
            OfOne { form, short }.cut(machine, &seen, dims.heads)
        }
        false => cut_sequences(form, machine, &seen, dims.heads),
    };
    let most = cut.work.len().max(MAX_SLICES + tokens);
    let mut work = cut.work.clone();
    work.resize(most, [0; SLICE]);
    let sequences = pages.given(lab, &cut.slices, &work);
    let attention = queries.given(lab, form, &cache, Some(sequences), most);
    let state = State {
        slices: cut.work.len() as u32,
        kernels: cut.kernels,
        slices_of: cut.slices_of,
        ..state(tokens, (cut.rows as usize).max(tokens) - tokens)
    };
    let mut calls = match as_one {
        true => attention.calls_of_each(short),
        false => vec![attention.call()],
    };
    let most = most as u32;
    calls.iter_mut().for_each(|call| call.slices = Some(most));
    lab.run(calls, state)?;
    let (mut twin, mut found) = (vec![], vec![]);
    for t in 0..tokens {
        let own = &of[pages.of[t]][..(pages.positions[t] as usize + 1) * row];
        twin.extend(queries.twin(t, 1, own));
        let (sums, slices) = ([dims.heads, dims.value], cut.slices[t]);
        let slices = slices.map(|n| n as usize);
        found.extend(joined(lab, &attention.partials, sums, 1, slices)?);
    }
    Ok(vec![lab.close(&found, &twin, limit(form, pages.n_ctx))])
}

/// Each token of several sequences in a step of its own, in pages.
fn alone_in_pages(lab: &Lab<'_>, form: Form, dims: GroupedDims) -> Result<Vec<Compared>, GpuError> {
    let lengths = [50, 700, 33, 1, 64];
    let pages = Pages::new(lab, 32, &lengths);
    let row = dims.cache_row();
    let of = lengths.map(|n| lab.rows(dims.rows(), n, 1.0));
    let cache = pages.cache(&of, row);
    let mut all = vec![];
    for (t, rows) in lengths.into_iter().enumerate() {
        let queries = Queries::new(lab, dims, 1);
        let (_, slice_rows) = cut_context(form, lab.gpu.machine, rows, 1, dims.heads);
        let (sequences, state) = pages.alone(lab, t, slice_rows);
        let attention = queries.given(lab, form, &cache, Some(sequences), 1);
        lab.run(vec![attention.call()], state)?;
        let (sums, slices) = ([dims.heads, dims.value], [0, state.slices as usize]);
        let found = joined(lab, &attention.partials, sums, 1, slices)?;
        let twin = queries.twin(0, 1, &of[t]);
        all.push(lab.close(&found, &twin, limit(form, rows)));
    }
    Ok(all)
}

/// The case of these tokens.
pub(crate) fn context(
    form: Form,
    dims: GroupedDims,
    [pos, tokens, slice_rows]: [usize; 3],
) -> Case {
    let GroupedDims {
        heads,
        kv_heads,
        key,
        value,
        cache,
        ..
    } = dims;
    let of = [pos, tokens, slice_rows];
    let of_cache = lab::of_cache(cache);
    let form_of = of_form(form);
    let name = format!("{heads} and {kv_heads} heads of {key} and {value}{of_cache}{form_of}");
    let name = format!("{name}, {tokens} tokens after {pos}, slices of {slice_rows}");
    Case::new(name, move |lab| in_own_cache(lab, form, dims, of))
}

/// The forms that a device may take.
fn forms(gpu: &Gpu, dims: GroupedDims) -> Vec<Form> {
    let mut forms = vec![Form::without_matrices(gpu, dims), Form::untried(gpu, dims)];
    forms.dedup();
    forms
}

/// Cases of the forms that a device may take.
pub(crate) fn of_device(gpu: &Gpu) -> Vec<Case> {
    let mut all = vec![];
    let codes = |shape| dims(shape).with_cache(CacheType::Q8_0);
    // Llama 3.2 3B, Llama 3.1 8B, Qwen2.5 0.5B and 1.5B, Qwen3 30B A3B, a group of 16, Phi-3 mini and Phi-2.
    let of_f16 = [
        ([24, 8, 128, 128], 150),
        ([32, 8, 128, 128], 700),
        ([14, 2, 64, 64], 150),
        ([12, 2, 128, 128], 100),
        ([32, 4, 128, 128], 575),
        ([32, 2, 128, 128], 90),
        ([32, 32, 96, 96], 40),
        ([32, 32, 80, 80], 70),
    ];
    let of_f16 = of_f16.map(|(shape, rows)| (dims(shape), rows));
    // Qwen3 30B A3B, SmolLM2 135M.
    let of_codes = [([32, 4, 128, 128], 575), ([9, 3, 64, 64], 150)];
    let of_codes = of_codes.map(|(shape, rows)| (codes(shape), rows));
    for (dims, rows) in of_f16.into_iter().chain(of_codes) {
        for form in forms(gpu, dims) {
            let (_, slice_rows) = cut_context(form, gpu.machine, rows, 1, dims.heads);
            let case = context(form, dims, [rows - 1, 1, slice_rows as usize]);
            all.push(case.verified_if(rows == 150 || rows == 575));
        }
    }
    // Qwen3 30B A3B, SmolLM2 135M, the widest heads.
    for (dims, rows) in [
        (dims([32, 4, 128, 128]), 1),
        (dims([32, 4, 128, 128]), 300),
        (dims([9, 3, 64, 64]), 75),
        (dims([4, 2, 256, 256]), 700),
        (codes([32, 4, 128, 128]), 90),
    ] {
        if let Some(short) = short_of(gpu, dims) {
            let (heads, cache) = (dims.heads, lab::of_cache(dims.cache));
            let name = format!(
                "{heads} heads of {}{cache}, finished over {rows} rows",
                dims.key
            );
            let compare = move |lab: &Lab<'_>| finished(lab, short, dims, rows);
            all.push(Case::new(name, compare).verified_if(rows == 300));
        }
    }
    // Parts of a group of unlike sizes, widths that leave threads without columns, values wider than keys, the widest heads.
    for (dims, of) in [
        (dims([18, 2, 40, 24]), [96, 1, 24]),
        (dims([10, 2, 24, 136]), [70, 3, 8]),
        (dims([5, 1, 256, 256]), [300, 2, 296]),
        (dims([24, 8, 128, 128]), [0, 1, 8]),
        (dims([14, 2, 64, 64]), [1, 8, 16]),
        (dims([4, 4, 8, 16]), [1000, 1, 256]),
        (dims([64, 4, 64, 64]), [129, 5, 64]),
        (codes([10, 2, 192, 64]), [70, 3, 8]),
        (codes([3, 1, 64, 256]), [90, 2, 96]),
    ] {
        all.push(context(Form::without_matrices(gpu, dims), dims, of));
    }
    for (dims, lengths) in [
        (dims([24, 8, 128, 128]), &[91usize, 1, 131] as &[usize]),
        (dims([14, 2, 64, 64]), &[1, 33, 700, 64, 2000]),
        (dims([9, 1, 80, 40]), &[5; 12]),
        (codes([9, 3, 64, 64]), &[1, 33, 700, 64]),
    ] {
        for form in forms(gpu, dims) {
            let (heads, cache) = (dims.heads, lab::of_cache(dims.cache));
            let heads = format!("{heads} heads{cache}{}", of_form(form));
            for as_one in [false, true] {
                let name = format!("{heads}, {} sequences", lengths.len());
                let name = name + if as_one { ", each as it is alone" } else { "" };
                let compare = move |lab: &Lab<'_>| of_sequences(lab, (form, as_one), dims, lengths);
                all.push(Case::new(name, compare).verified_if(lengths.len() == 3));
            }
            let name = format!("{heads}, tokens alone in pages");
            all.push(Case::new(name, move |lab| alone_in_pages(lab, form, dims)));
        }
    }
    all
}
