//! The attention of decoded tokens over slices of the context, and what joins the slices.

use super::DIMS;
use super::lab::{Compared, Lab, halves, state};
use super::prepared::{compared, room};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::wait::complete;
use crate::kernels::attention::{
    Form, GpuAttention, MAX_SLICES, Seen, attention, cut_context, cut_sequences, partial_bytes,
};
use crate::kernels::attention_merge::{self, attention_merge as merge_twin};
use crate::kernels::attention_short;
use crate::kernels::sequences::{PAGE, Record, SLICE, Sequences};
use crate::quant::activation::Activation;
use half::f16;

/// The forms that the device takes: in f32 everywhere, and what it would choose.
fn forms(lab: &mut Lab<'_>) -> Vec<Form> {
    let chosen = complete(Form::for_decode(lab.gpu, DIMS));
    lab.forms(Form::Vector, chosen.map(Some), "attention_coop")
}

/// The error that the attention may have. By matrices, scores are rounded to f16.
fn limit(form: Form) -> f64 {
    match form {
        Form::Matrix(_) => 1e-5,
        _ => 1e-9,
    }
}

/// Queries of tokens, and rows of a cache.
struct Problem {
    q_lat: Vec<f32>,
    q_pe: Vec<f32>,
    cache: Vec<f16>,
}

impl Problem {
    fn new(lab: &Lab<'_>, tokens: usize, rows: usize) -> Self {
        let queries = |n: usize| lab.normals(tokens * DIMS.heads * n);
        Self {
            cache: halves(&lab.normals(rows * DIMS.cache_row())),
            q_lat: queries(DIMS.kv_lora),
            q_pe: queries(DIMS.rope),
        }
    }

    /// The attention of token `t` over `cache`, whose last row is its own.
    fn twin(&self, t: usize, cache: &[f16]) -> Vec<f32> {
        let of = |n: usize| t * DIMS.heads * n..(t + 1) * DIMS.heads * n;
        let (q_lat, q_pe) = (&self.q_lat[of(DIMS.kv_lora)], &self.q_pe[of(DIMS.rope)]);
        let pos = cache.len() / DIMS.cache_row() - 1;
        let mut out = vec![0.0; q_lat.len()];
        attention(q_lat, q_pe, cache, pos, 1, DIMS, scale(), &mut out);
        out
    }

    fn on_gpu(&self, lab: &Lab<'_>, form: Form, sequences: Option<Sequences>) -> GpuAttention {
        let tokens = self.q_lat.len() / DIMS.heads / DIMS.kv_lora;
        let partials = partial_bytes(DIMS, MAX_SLICES + tokens);
        GpuAttention {
            form,
            q_lat: lab.given(&self.q_lat),
            q_pe: lab.given(&self.q_pe),
            cache: lab.given(&self.cache).holding(Role::Cache),
            dims: DIMS,
            scale: scale(),
            partials: partials.map(|bytes| lab.room(bytes as usize / 4)),
            sequences,
        }
    }
}

fn scale() -> f32 {
    2.0 / (DIMS.cache_row() as f32).sqrt()
}

/// The slices that were left, joined on the CPU: those of a token after `first` others.
fn joined(
    lab: &Lab<'_>,
    [sums, stats]: &[Range; 2],
    first: usize,
    slices: usize,
) -> Result<Vec<f32>, GpuError> {
    let (before, n) = (first * DIMS.heads, slices * DIMS.heads);
    let sums: Vec<f32> = lab.read(sums, (before + n) * DIMS.kv_lora)?;
    let stats: Vec<[f32; 2]> = lab.read(stats, before + n)?;
    let mut out = vec![0.0; DIMS.heads * DIMS.kv_lora];
    let sums = &sums[before * DIMS.kv_lora..];
    merge_twin(sums, &stats[before..], slices, DIMS.kv_lora, &mut out);
    Ok(out)
}

/// Of one token, in every form and over contexts in which a form takes other kernels.
pub(super) fn slices(lab: &mut Lab<'_>) {
    for form in forms(lab) {
        let contexts: &[usize] = match form {
            Form::Matrix(_) => &[150, 1100],
            _ => &[150],
        };
        for &rows in contexts {
            let cut = cut_context(form, lab.gpu.machine, rows, 1, DIMS.heads);
            one_token(lab, rows, cut, limit(form), |attention, _| {
                GpuAttention { form, ..attention }.calls()
            });
        }
    }
    if attention_short::fits(lab.gpu, DIMS) {
        let (rows, of_slice) = (100, attention_short::ROWS);
        let cut = ((rows as u32).div_ceil(of_slice), of_slice);
        one_token(lab, rows, cut, limit(Form::Vector), |attention, lab| {
            vec![attention.short_call(lab.gpu)]
        });
    }
}

fn one_token(
    lab: &mut Lab<'_>,
    rows: usize,
    (slices, slice_rows): (u32, u32),
    limit: f64,
    calls: impl Fn(GpuAttention, &Lab<'_>) -> Vec<Call>,
) {
    lab.check(format!("16 heads, {rows} rows in {slices} slices"), |lab| {
        let problem = Problem::new(lab, 1, rows);
        let on_gpu = problem.on_gpu(lab, Form::Vector, None);
        let partials = on_gpu.partials.clone();
        let state = State {
            slices,
            slice_rows,
            ..state(1, rows - 1)
        };
        lab.run(calls(on_gpu, lab), state)?;
        let found = joined(lab, &partials, 0, slices as usize)?;
        Ok(vec![Compared::new(
            &found,
            &problem.twin(0, &problem.cache),
            limit,
        )])
    });
}

/// Of tokens of several sequences, whose rows lie in pages among those of others.
pub(super) fn sequences(lab: &mut Lab<'_>) {
    for form in forms(lab) {
        lab.check("16 heads, 3 sequences in pages", |lab| several(lab, form));
    }
}

fn several(lab: &Lab<'_>, form: Form) -> Result<Vec<Compared>, GpuError> {
    let (positions, page) = ([90u32, 0, 130], PAGE as usize);
    let pages: [u32; 9] = [4, 7, 0, 2, 8, 1, 6, 3, 5];
    let of_sequence = pages.len() / positions.len();
    let problem = Problem::new(lab, positions.len(), pages.len() * page);
    let seen = positions.iter().zip(0..);
    let seen = seen.map(|(&position, sequence)| Seen { sequence, position });
    let seen: Vec<Seen> = seen.collect();
    let cut = cut_sequences(form, lab.gpu.machine, &seen, DIMS.heads);
    let record = |t: usize| Record {
        position: positions[t],
        first_page: (t * of_sequence) as u32,
        first_id: 0,
        first_slice: cut.slices[t][0],
        slices: cut.slices[t][1],
    };
    let table: Vec<u32> = (0..positions.len())
        .flat_map(|t| record(t).words())
        .collect();
    let mut work = cut.work.clone();
    let most = MAX_SLICES + positions.len();
    work.resize(most, [0; SLICE]);
    let sequences = Sequences {
        table: lab.given(&table),
        pages: lab.given(&pages),
        work: lab.given(work.as_flattened()),
        page: PAGE,
        rows: (pages.len() * page) as u32,
        ids: 1,
        alone: false,
    };
    let on_gpu = problem.on_gpu(lab, form, Some(sequences));
    let tokens = positions.len() as u32;
    let state = State {
        slices: cut.work.len() as u32,
        ..state(positions.len(), (cut.rows.max(tokens) - tokens) as usize)
    };
    lab.run(on_gpu.calls(), state)?;
    let row = DIMS.cache_row();
    let of_token = |t: usize| {
        let own = (0..=positions[t] as usize).flat_map(|position| {
            let at = pages[t * of_sequence + position / page] as usize * page + position % page;
            problem.cache[at * row..][..row].to_vec()
        });
        let twin = problem.twin(t, &own.collect::<Vec<f16>>());
        let [first, slices] = cut.slices[t].map(|n| n as usize);
        let found = joined(lab, &on_gpu.partials, first, slices)?;
        Ok(Compared::new(&found, &twin, limit(form)))
    };
    (0..positions.len()).map(of_token).collect()
}

/// The slices of two tokens in f32, and those of one as the tier prepares them.
pub(super) fn merge(lab: &mut Lab<'_>) {
    merged(lab, 2, Activation::Floats);
    let activation = lab.gpu.activation();
    if activation.rounds() {
        merged(lab, 1, activation);
    }
}

/// Random sums of `n` slices of heads, and of each slice its largest score and its sum of weights.
pub(super) fn random_slices(lab: &Lab<'_>, n: usize) -> (Vec<f32>, Vec<[f32; 2]>) {
    let sums = lab.normals(n * DIMS.kv_lora);
    let scores = lab.normals(n);
    let stat = |score: &f32| [score * 4.0, 0.5 + score.abs()];
    (sums, scores.iter().map(stat).collect())
}

/// Such slices on the device, in buffers for steps of up to `most` tokens.
pub(super) fn given_slices(
    lab: &Lab<'_>,
    (mut sums, mut stats): (Vec<f32>, Vec<[f32; 2]>),
    most: usize,
) -> [Range; 2] {
    let [bytes, pairs] = partial_bytes(DIMS, most).map(|bytes| bytes as usize);
    sums.resize(bytes / 4, f32::NAN);
    stats.resize(pairs / 8, [f32::NAN; 2]);
    [lab.given(&sums), lab.given(stats.as_flattened())]
}

fn merged(lab: &mut Lab<'_>, tokens: usize, output: Activation) {
    let (width, slices) = (DIMS.kv_lora, 5);
    let name = match output {
        Activation::Floats => "Floats",
        Activation::Bytes => "Bytes",
        Activation::Halves { .. } => "Halves",
    };
    let case = format!("16 heads, {slices} slices, {tokens} tokens, {name}");
    lab.check(case, |lab| {
        let n = tokens * DIMS.heads;
        let random = random_slices(lab, n * slices);
        let mut twin = vec![0.0; n * width];
        merge_twin(&random.0, &random.1, slices, width, &mut twin);
        let partials = given_slices(lab, random, tokens);
        let prepared = room(lab, twin.len(), None);
        let floats = lab.room(twin.len());
        let out = match output.rounds() {
            true => &prepared.values,
            false => &floats,
        };
        let call = attention_merge::call(None, &partials, DIMS, out, output);
        let state = State {
            slices: slices as u32,
            ..state(tokens, 0)
        };
        lab.run(vec![call], state)?;
        match output.rounds() {
            true => compared(lab, &prepared, None, &twin),
            false => Ok(vec![lab.floats(&floats, &twin, 1e-10)?]),
        }
    });
}
