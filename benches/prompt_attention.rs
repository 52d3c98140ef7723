//! Times the attention of a prompt in each shape of its workgroups, at the sizes of GLM-4.7-Flash and DeepSeek-V2-Lite, whose keys and values
//! are expanded first, which is timed, too. Grouped queries have the sizes of Qwen3-30B-A3B and a cache of each type. The rows of the cache lie by
//! position, or in pages of one sequence of several.

mod common;

use common::{Bench, Work};
use glimt::gpu::buffer::{Range, Role};
use glimt::gpu::call::{Call, State};
use glimt::gpu::wait::Wait;
use glimt::gpu::{Gpu, GpuError};
use glimt::kernels::choices::PromptAttention;
use glimt::kernels::grouped_prompt_attention::{Form, GpuGroupedPromptAttention};
use glimt::kernels::prompt_attention::{GpuPromptAttention, Scratch};
use glimt::kernels::sequences::{PAGE, Sequences};
use glimt::kernels::{CacheType, GroupedDims, KvDims, MlaDims, Pairing};
use std::process::ExitCode;

const GLM: KvDims = KvDims {
    mla: MlaDims {
        heads: 20,
        nope: 192,
        rope: 64,
        kv_lora: 512,
        cache: CacheType::F16,
    },
    v: 256,
};
const DEEPSEEK: KvDims = KvDims {
    mla: MlaDims {
        heads: 16,
        nope: 128,
        rope: 64,
        kv_lora: 512,
        cache: CacheType::F16,
    },
    v: 128,
};
const QWEN3: GroupedDims = GroupedDims {
    heads: 32,
    kv_heads: 4,
    key: 128,
    value: 128,
    rope: 128,
    pairing: Pairing::Halves,
    cache: CacheType::F16,
};
/// Replays of which the best counts.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    common::main(run)
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    for dims in [GLM, DEEPSEEK] {
        for paged in [false, true] {
            for way in PromptAttention::all(&bench.gpu, dims) {
                measure(bench, dims, way, paged)?;
            }
        }
    }
    for cache in CacheType::ALL {
        let dims = GroupedDims { cache, ..QWEN3 };
        let best = Form::untried(&bench.gpu, dims).filter(|&form| form != Form::Vector);
        for form in [Some(Form::Vector), best].into_iter().flatten() {
            for paged in [false, true] {
                measure_grouped(bench, dims, form, paged)?;
            }
        }
    }
    Ok(())
}

/// Tokens of a prompt, and rows of the cache: as many as a software adapter does in a second or so.
fn sizes(bench: &Bench) -> (usize, usize) {
    match bench.quick {
        true => (64, 256),
        false => (2048, 34_816),
    }
}

/// The kernels, and what each must do after `pos` rows.
struct Measured<'a> {
    dims: KvDims,
    tokens: usize,
    attention: &'a GpuPromptAttention<'a>,
}

impl Measured<'_> {
    /// The expansion of all rows, and the attention to them.
    fn works(&self, pos: usize) -> [Work; 2] {
        let (dims, tokens) = (self.dims, self.tokens);
        let (mla, rows) = (dims.mla, pos + tokens);
        let matrices = self.attention.form.is_matrix();
        let pairs = tokens * pos + tokens * tokens / 2;
        let kv = dims.kv_bytes(rows, matrices);
        [
            Work {
                bytes: kv + dims.weight_bytes(matrices) + (rows * mla.kv_lora * 2) as u64,
                flops: (2 * rows * mla.kv_lora * dims.width()) as u64,
            },
            Work {
                bytes: kv + self.attention.q.size + self.attention.values.size,
                flops: (2 * pairs * mla.heads * (mla.head() + dims.v)) as u64,
            },
        ]
    }
}

/// The pages of a sequence of `n_ctx` rows, in an order that jumps.
fn in_pages(bench: &Bench, n_ctx: usize) -> Result<Sequences, GpuError> {
    let count = (n_ctx as u32).div_ceil(PAGE);
    let mut pages: Vec<u32> = (0..count).collect();
    pages.sort_by_key(|page| page.wrapping_mul(0x9e37_79b9));
    let none = || bench.zeros(32, Role::Words);
    Ok(Sequences {
        table: none()?,
        pages: Some(Range::whole(
            &bench.gpu.storage_with("pages", &pages).wait()?,
        )),
        work: none()?,
        page: PAGE,
        rows: count * PAGE,
        ids: 1,
        alone: true,
    })
}

/// Tells the times of one way, at the start of a context and at its end.
fn measure(bench: &Bench, dims: KvDims, way: PromptAttention, paged: bool) -> Result<(), GpuError> {
    let mla = dims.mla;
    let (tokens, n_ctx) = sizes(bench);
    let scratch = Scratch::new(&bench.gpu, dims, way.form, tokens, n_ctx);
    let queries = (tokens * mla.heads * 4) as u64;
    let attention = GpuPromptAttention {
        form: way.form,
        q: bench.zeros(queries * mla.head() as u64, Role::Floats)?,
        rope_table: bench.zeros((n_ctx * mla.rope * 4) as u64, Role::Floats)?,
        cache: bench.zeros((n_ctx * mla.cache_row() * 2) as u64, Role::Cache)?,
        sequences: paged.then(|| in_pages(bench, n_ctx)).transpose()?,
        dims,
        scale: 0.1,
        max_tokens: tokens as u32,
        scratch: &scratch,
        values: bench.zeros(queries * dims.v as u64, Role::Floats)?,
    };
    let name = named(&way.name, paged);
    let calls = way.calls(&attention);
    let measured = Measured {
        dims,
        tokens,
        attention: &attention,
    };
    for pos in [0, n_ctx - tokens] {
        for (call, work) in calls.iter().zip(measured.works(pos)) {
            let head = format!("{} heads of {}/{}", mla.heads, mla.head(), dims.v);
            let shape = format!("{head}, {tokens} tokens after {pos}");
            tell(bench, call, &shape, [pos, tokens], work, &name)?;
        }
    }
    release(&bench.gpu, &attention);
    Ok(())
}

/// A way and where the rows lie.
fn named(way: &str, paged: bool) -> String {
    format!("{way}{}", if paged { ", in pages" } else { "" })
}

/// Tells the time of a kernel for `tokens` tokens after `pos` rows, if the line is wanted.
fn tell(
    bench: &Bench,
    call: &Call,
    shape: &str,
    [pos, tokens]: [usize; 2],
    work: Work,
    name: &str,
) -> Result<(), GpuError> {
    if !bench.wants(call.kernel, shape) {
        return Ok(());
    }
    let state = State {
        pos: pos as u32,
        tokens: tokens as u32,
        ..State::default()
    };
    let step = bench.record(vec![call.clone()], &state)?;
    let us = bench.fastest(&step, &state, bench.rounds(ROUNDS))?;
    bench.tell(call.kernel, shape, us, work, name);
    Ok(())
}

/// Tells the times of a form for grouped queries, at the start of a context and at its end.
fn measure_grouped(
    bench: &Bench,
    dims: GroupedDims,
    form: Form,
    paged: bool,
) -> Result<(), GpuError> {
    let (tokens, n_ctx) = sizes(bench);
    let of_heads = (tokens * dims.heads * 4) as u64;
    let row = dims.cache_row() * 2;
    let attention = GpuGroupedPromptAttention {
        form,
        q: bench.zeros(of_heads * dims.key as u64, Role::Floats)?,
        cache: bench.zeros((n_ctx * row) as u64, Role::Cache)?,
        sequences: paged.then(|| in_pages(bench, n_ctx)).transpose()?,
        dims,
        scale: 0.1,
        values: bench.zeros(of_heads * dims.value as u64, Role::Floats)?,
    };
    let way = match form {
        Form::Vector => "vectors",
        Form::Matrix(_) => "matrices",
    };
    let name = named(&format!("{way}, {}", dims.cache.name()), paged);
    for pos in [0, n_ctx - tokens] {
        let pairs = tokens * pos + tokens * tokens / 2;
        let work = Work {
            bytes: ((pos + tokens) * row) as u64 + attention.q.size + attention.values.size,
            flops: (2 * pairs * dims.heads * (dims.key + dims.value)) as u64,
        };
        let GroupedDims {
            heads, kv_heads, ..
        } = dims;
        let shape = format!("{heads} heads, {kv_heads} key heads, {tokens} tokens after {pos}");
        tell(bench, &attention.call(), &shape, [pos, tokens], work, &name)?;
    }
    let all = [&attention.q, &attention.cache, &attention.values];
    bench.release(all.into_iter().chain(pages(&attention.sequences)));
    Ok(())
}

/// The buffers of the pages.
fn pages(sequences: &Option<Sequences>) -> impl Iterator<Item = &Range> {
    sequences
        .iter()
        .flat_map(|s| [&s.table, &s.work].into_iter().chain(&s.pages))
}

fn release(gpu: &Gpu, attention: &GpuPromptAttention<'_>) {
    let Scratch {
        weights, stats, kv, ..
    } = attention.scratch;
    let GpuPromptAttention {
        q,
        rope_table,
        cache,
        sequences,
        values,
        ..
    } = attention;
    let own = [weights, stats, q, rope_table, cache, values];
    let all = own.into_iter().chain(kv).chain(pages(sequences));
    all.for_each(|range: &Range| gpu.release(&range.buffer));
}
