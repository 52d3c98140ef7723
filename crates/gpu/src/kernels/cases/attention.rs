//! Cases of the attention of decoded tokens over slices of the context, which the CPU joins: every kernel, contexts of their own and pages.

use half::f16;

use super::Case;
use super::lab::{self, Compared, Lab, state};
use super::places::Pages;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, State};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{
    Form, GpuAttention, MAX_SLICES, OfOne, Seen, attention, cut_context, cut_sequences,
    partial_bytes,
};
use crate::kernels::attention_merge::attention_merge;
use crate::kernels::sequences::{SLICE, Sequences};
use crate::kernels::{CacheType, MlaDims, attention_short};

/// The sizes of GLM-4.7-Flash.
pub(crate) const GLM: MlaDims = MlaDims {
    heads: 20,
    nope: 192,
    rope: 64,
    kv_lora: 512,
    cache: CacheType::F16,
};

/// The sizes of DeepSeek-V2-Lite.
pub(crate) const DEEPSEEK: MlaDims = MlaDims {
    heads: 16,
    nope: 128,
    ..GLM
};

/// The kernel that attends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kernel {
    Of(Form),
    /// The kernel for short contexts.
    Short,
}

impl Kernel {
    /// The greatest NMSE over `rows` rows. The twin adds row by row, so its own error grows with the rows. The error of the kernels is
    /// smaller, except that by matrices rounding to f16 moves scores of variance 9 by some 5e-4, and weights by as much. The form by heads keeps
    /// tiles in f16, to which values of codes are rounded.
    pub fn limit(self, rows: usize, cache: CacheType) -> f64 {
        match (self, cache) {
            (Self::Of(Form::Matrix(_)), _) | (Self::Of(Form::Heads(_)), CacheType::Q8_0) => 1e-6,
            _ => 1e-12 + 1e-12 * rows as f64,
        }
    }

    pub fn calls(self, lab: &Lab<'_>, attention: &GpuAttention) -> Vec<Call> {
        match self {
            Self::Of(_) => attention.calls(),
            Self::Short => vec![attention.short_call(lab.gpu)],
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Of(Form::Vector) => "",
            Self::Of(Form::Heads(_)) => ", by heads",
            Self::Of(Form::Matrix(_)) => ", matrices",
            Self::Short => ", short",
        }
    }
}

/// Queries of tokens.
pub(crate) struct Queries {
    dims: MlaDims,
    scale: f32,
    q_lat: Vec<f32>,
    q_pe: Vec<f32>,
}

impl Queries {
    /// Queries large enough for weights that differ much, as real ones do.
    pub fn new(lab: &Lab<'_>, dims: MlaDims, tokens: usize) -> Self {
        let queries = |n: usize| {
            lab.normals(tokens * dims.heads * n)
                .into_iter()
                .map(|x| x * 3.0)
        };
        Self {
            dims,
            scale: 1.0 / (dims.cache_values() as f32).sqrt(),
            q_lat: queries(dims.kv_lora).collect(),
            q_pe: queries(dims.rope).collect(),
        }
    }

    /// Has scores of one token rise and fall with the rows of `cache`, so that sums must be scaled.
    fn rise(&mut self, cache: &mut [f16]) {
        let (rope, row) = (self.dims.rope, self.dims.cache_row());
        let first = self.dims.rows().plain_word();
        // A share that rises by 1 every 2 rows.
        let firsts = self.q_pe.iter_mut().step_by(rope);
        firsts.for_each(|q| *q = 1.0 / self.scale);
        // The share of the second head falls by 16 every 2 rows instead. Its sums must stay as they are where those of other heads are scaled: a
        // factor between its scores may be too small or too large for an f32.
        if let Some(q) = self.q_pe.iter_mut().step_by(rope).nth(1) {
            *q = -16.0 / self.scale;
        }
        for (i, row) in cache.chunks_exact_mut(row).enumerate() {
            row[first] = f16::from_f32((i / 2 % 32) as f32);
        }
    }

    fn tokens(&self) -> usize {
        self.q_lat.len() / self.dims.heads / self.dims.kv_lora
    }

    /// The attention of `n` tokens from `t` on over `cache`, whose last row is that of the last one.
    pub fn twin(&self, t: usize, n: usize, cache: &[f16]) -> Vec<f32> {
        let dims = self.dims;
        let of = |width: usize| t * dims.heads * width..(t + n) * dims.heads * width;
        let (q_lat, q_pe) = (&self.q_lat[of(dims.kv_lora)], &self.q_pe[of(dims.rope)]);
        let pos = cache.len() / dims.cache_row() - n;
        let mut out = vec![0.0; q_lat.len()];
        attention(q_lat, q_pe, cache, pos, n, dims, self.scale, &mut out);
        out
    }

    pub fn given(
        &self,
        lab: &Lab<'_>,
        kernel: Kernel,
        cache: &[f16],
        sequences: Option<Sequences>,
    ) -> GpuAttention {
        let most = match &sequences {
            Some(sequences) if !sequences.alone => MAX_SLICES + self.tokens(),
            _ => self.tokens(),
        };
        GpuAttention {
            form: match kernel {
                Kernel::Of(form) => form,
                Kernel::Short => Form::Vector,
            },
            q_lat: lab.given(&self.q_lat),
            q_pe: lab.given(&self.q_pe),
            cache: lab.cache(cache),
            dims: self.dims,
            scale: self.scale,
            partials: partial_bytes(self.dims, most).map(|bytes| lab.room(bytes as usize / 4)),
            sequences,
        }
    }
}

/// The slices that were left of heads with sums of this width, joined on the CPU: those of `n` tokens with `slices` each, after `first` others.
pub(crate) fn joined(
    lab: &Lab<'_>,
    [sums, stats]: &[Range; 2],
    [heads, width]: [usize; 2],
    n: usize,
    [first, slices]: [usize; 2],
) -> Result<Vec<f32>, GpuError> {
    let (before, own) = (first * heads, n * slices * heads);
    let sums: Vec<f32> = lab.read(sums, (before + own) * width)?;
    let stats: Vec<[f32; 2]> = lab.read(stats, before + own)?;
    let mut out = vec![0.0; n * heads * width];
    attention_merge(
        &sums[before * width..],
        &stats[before..],
        slices,
        width,
        &mut out,
    );
    Ok(out)
}

/// Tokens at the end of a context in a cache of its own.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub kernel: Kernel,
    pub dims: MlaDims,
    pub pos: usize,
    pub tokens: usize,
    /// Slices and rows of a slice.
    pub cut: [u32; 2],
}

impl Context {
    /// One token over `rows` rows.
    pub fn of_one(kernel: Kernel, dims: MlaDims, rows: usize, slice_rows: usize) -> Self {
        Self {
            kernel,
            dims,
            pos: rows - 1,
            tokens: 1,
            cut: [rows.div_ceil(slice_rows), slice_rows].map(|n| n as u32),
        }
    }

    pub fn case(self) -> Case {
        let ([slices, _], rows) = (self.cut, self.pos + self.tokens);
        let (heads, tokens) = (lab::heads(self.dims), self.tokens);
        let of = match self.kernel {
            Kernel::Of(Form::Heads(shape)) => format!(" {shape:?}"),
            _ => String::new(),
        };
        let name = format!("{heads}, {rows} rows in {slices} slices");
        let tokens = match tokens {
            1 => String::new(),
            tokens => format!(", {tokens} tokens"),
        };
        let name = name + &tokens + self.kernel.name() + &of;
        Case::new(name, move |lab| self.compare(lab))
    }

    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let (dims, rows) = (self.dims, self.pos + self.tokens);
        let seen = rows * dims.cache_row();
        // Rows behind the last token are no numbers: reading one would show.
        let mut cache = lab.rows(dims.rows(), rows + 3, 1.0);
        cache[seen..].fill(f16::NAN);
        let mut queries = Queries::new(lab, dims, self.tokens);
        if self.tokens == 1 {
            queries.rise(&mut cache[..seen]);
        }
        let attention = queries.given(lab, self.kernel, &cache, None);
        let [slices, slice_rows] = self.cut;
        let state = State {
            slices,
            slice_rows,
            ..state(self.tokens, self.pos)
        };
        lab.run(self.kernel.calls(lab, &attention), state)?;
        let found = joined(
            lab,
            &attention.partials,
            [dims.heads, dims.kv_lora],
            self.tokens,
            [0, slices as usize],
        )?;
        let twin = queries.twin(0, self.tokens, &cache[..seen]);
        Ok(vec![lab.close(
            &found,
            &twin,
            self.kernel.limit(rows, dims.cache),
        )])
    }
}

/// Tokens of several sequences, each in pages, in one step: cut together, or each as it is alone, with another kernel up to so many rows.
fn of_sequences(
    lab: &Lab<'_>,
    (form, short): (Form, Option<u32>),
    dims: MlaDims,
    lengths: &[usize],
) -> Result<Vec<Compared>, GpuError> {
    let pages = Pages::new(lab, 32, lengths);
    let (row, tokens) = (dims.cache_row(), pages.tokens());
    let of: Vec<Vec<f16>> = lengths
        .iter()
        .map(|n| lab.rows(dims.rows(), *n, 1.0))
        .collect();
    let cache = pages.cache(&of, row);
    let queries = Queries::new(lab, dims, tokens);
    let seen = pages.of.iter().zip(&pages.positions);
    let seen = seen.map(|(sequence, position)| Seen {
        sequence: *sequence as u32,
        position: *position,
    });
    let (seen, machine) = (seen.collect::<Vec<_>>(), lab.gpu.machine);
    let cut = match short {
        Some(short) => OfOne { form, short }.cut(machine, &seen, dims.heads),
        None => cut_sequences(form, machine, &seen, dims.heads),
    };
    let most = match short {
        Some(_) => cut.work.len(),
        None => MAX_SLICES + tokens,
    };
    let mut work = cut.work.clone();
    let fits = lab.holds(work.len() <= most, || format!("{} slices", work.len()));
    work.resize(most, [0; SLICE]);
    let sequences = pages.given(lab, &cut.slices, &work);
    let kernel = Kernel::Of(form);
    let mut attention = queries.given(lab, kernel, &cache, Some(sequences));
    attention.partials = partial_bytes(dims, most).map(|bytes| lab.room(bytes as usize / 4));
    let state = State {
        slices: cut.work.len() as u32,
        kernels: cut.kernels,
        slices_of: cut.slices_of,
        ..state(tokens, (cut.rows as usize).max(tokens) - tokens)
    };
    let calls = match short {
        Some(short) => {
            let mut calls = attention.calls_of_each(lab.gpu, short);
            let most = most as u32;
            calls.iter_mut().for_each(|call| call.slices = Some(most));
            calls
        }
        None => kernel.calls(lab, &attention),
    };
    lab.run(calls, state)?;
    let (mut twin, mut found) = (vec![], vec![]);
    for t in 0..tokens {
        let own = &of[pages.of[t]][..(pages.positions[t] as usize + 1) * row];
        twin.extend(queries.twin(t, 1, own));
        found.extend(joined(
            lab,
            &attention.partials,
            [dims.heads, dims.kv_lora],
            1,
            cut.slices[t].map(|n| n as usize),
        )?);
    }
    let limit = match form {
        // Queries and weights are rounded to f16.
        Form::Matrix(_) => 1e-5,
        _ => kernel.limit(pages.n_ctx, dims.cache),
    };
    Ok(vec![fits, lab.close(&found, &twin, limit)])
}

/// Tokens of sequences of these lengths.
pub(crate) fn sequences(form: Form, dims: MlaDims, lengths: &'static [usize]) -> Case {
    let name = format!("{}, {} sequences", lab::heads(dims), lengths.len());
    let name = name + Kernel::Of(form).name();
    Case::new(name, move |lab| {
        of_sequences(lab, (form, None), dims, lengths)
    })
}

/// Tokens of sequences of these lengths, each of which attends as it does alone, up to `short` rows by another kernel.
pub(crate) fn each(form: Form, short: u32, dims: MlaDims, lengths: &'static [usize]) -> Case {
    let name = format!(
        "{}, {} sequences, each alone",
        lab::heads(dims),
        lengths.len()
    );
    let name = format!("{name}, {short} rows{}", Kernel::Of(form).name());
    Case::new(name, move |lab| {
        of_sequences(lab, (form, Some(short)), dims, lengths)
    })
}

/// Cases of the form in f32 and of the one that a device takes after it has tried it, over contexts in which a form takes other kernels.
pub(super) fn tried(gpu: &Gpu) -> Vec<Case> {
    let mut forms = vec![Form::Vector];
    let mut all = vec![];
    match lab::tried(Form::for_decode(gpu, DEEPSEEK)) {
        Ok(form) => forms.push(form),
        Err(error) => all.push(Case::failed("attention_coop", error)),
    }
    forms.dedup();
    let lengths: &[usize] = &[91, 1, 131];
    let codes = DEEPSEEK.with_cache(CacheType::Q8_0);
    for &form in &forms {
        let contexts: &[usize] = match form {
            Form::Matrix(_) => &[150, 1100],
            _ => &[150],
        };
        for &rows in contexts {
            let (_, slice_rows) = cut_context(form, gpu.machine, rows, 1, DEEPSEEK.heads);
            let kernel = Kernel::Of(form);
            for dims in [DEEPSEEK, codes] {
                all.push(Context::of_one(kernel, dims, rows, slice_rows as usize).case());
            }
        }
    }
    if attention_short::fits(gpu, DEEPSEEK) {
        let slice_rows = attention_short::ROWS as usize;
        for dims in [DEEPSEEK, codes] {
            all.push(Context::of_one(Kernel::Short, dims, 100, slice_rows).case());
        }
    }
    all.extend(forms.iter().map(|&form| sequences(form, DEEPSEEK, lengths)));
    let short = attention_short::fits(gpu, DEEPSEEK).then_some(96);
    all.extend(
        forms
            .iter()
            .map(|&form| each(form, short.unwrap_or(0), DEEPSEEK, lengths)),
    );
    all.into_iter().map(Case::verified).collect()
}
