//! The CPU's share of missing experts: what it multiplies in a second from the buffers that shaders read, alone and while the bus brings
//! others, and what an answer of the host to a layer costs in several ways.

mod common;

use common::Bench;
use glimt::engine::Wait;
use glimt::gpu::buffer::{Buffer, Range, Role};
use glimt::gpu::call::State;
use glimt::gpu::memory::{GpuWeight, Lies, Loader};
use glimt::gpu::on_host::OnHost;
use glimt::gpu::record::Recording;
use glimt::gpu::{Gpu, GpuError, Most, Step};
use glimt::kernels::expert_fill::GpuExpertFill;
use glimt::kernels::mark;
use glimt::model::Weight;
use glimt::quant::GgmlType;
use glimt::quant::dot::{ByteBlock, Input, Instructions, byte_blocks};
use glimt_formats::team::Team;
use std::process::ExitCode;
use std::time::Instant;
use wgpu::{BufferUsages, PollType, SubmissionIndex};

/// Rows and columns of an expert of GLM-4.7-Flash, and experts of a layer.
const SHAPE: [usize; 2] = [1536, 2048];
const EXPERTS: usize = 64;
const TYPES: [GgmlType; 8] = [
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::IQ4_XS,
    GgmlType::IQ3_S,
    GgmlType::IQ2_XXS,
];
/// Layers with experts, and dispatches of a layer that wait for each other.
const LAYERS: usize = 46;
const WAITS: usize = 7;
/// Values of a token.
const WIDTH: u64 = 2048;
const ROUNDS: usize = 100;
/// Copies of all experts that the bus makes beside the CPU.
const COPIES: usize = 20;

fn main() -> ExitCode {
    common::main(run)
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    println!(
        "{} threads, {}",
        Team::all().threads(),
        Instructions::best().name()
    );
    for ty in TYPES {
        if bench.wants("share", ty.name()) {
            products(bench, ty)?;
        }
    }
    if bench.wants("answers", "") {
        answers(bench)?;
    }
    Ok(())
}

/// Experts in host memory that the processor reaches.
fn experts(gpu: &Gpu, ty: GgmlType, groups: usize) -> Result<GpuWeight, GpuError> {
    let [rows, cols] = SHAPE;
    let bytes = groups * rows * ty.row_bytes(cols).expect("whole blocks");
    // Scales of moderate size, and codes of all kinds.
    let byte = |i: usize| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] & 0x3f;
    let bytes: Vec<u8> = (0..bytes).map(byte).collect();
    let weight = Weight::from_bytes("experts", ty, groups, rows, cols, bytes);
    let mut loader = Loader::new(gpu);
    loader.to(Lies::Host);
    loader.add(&weight)?;
    Ok(loader.load(gpu, &mut |_| {}).wait()?.remove(0))
}

/// Multiplies some experts by a token, each row by one thread, and returns the microseconds.
fn multiply(experts: &OnHost, chosen: &[usize], input: Input<'_>, out: &mut [f32]) -> f64 {
    let began = Instant::now();
    let at_once = (chosen.len() * experts.rows).div_ceil(3 * Team::all().threads());
    let mut items = vec![];
    for (expert, out) in chosen.iter().zip(out.chunks_mut(experts.rows)) {
        for (i, out) in out.chunks_mut(at_once).enumerate() {
            items.push((*expert, i * at_once, out));
        }
    }
    Team::all().each(items, |(expert, first, out)| {
        // SAFETY: loading has ended, and nothing else writes to the experts.
        let rows = unsafe { experts.rows(expert, first..first + out.len()) };
        Instructions::best().multiply_planes(rows, input, out);
    });
    began.elapsed().as_secs_f64() * 1e6
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The speed of products, alone and beside the bus.
fn products(bench: &Bench, ty: GgmlType) -> Result<(), GpuError> {
    let gpu = &bench.gpu;
    let groups = if bench.quick { 8 } else { EXPERTS };
    let host = experts(gpu, ty, groups)?;
    let Some(on_host) = OnHost::of(&host) else {
        println!("{ty}: the processor does not reach the memory that shaders read");
        return Ok(());
    };
    let x: Vec<f32> = (0..SHAPE[1]).map(|i| (i as f32).sin()).collect();
    let mut bytes = vec![ByteBlock::ZERO; byte_blocks(SHAPE[1])];
    Instructions::best().quantize(&x, &mut bytes);
    let input = Input {
        floats: &x,
        bytes: &bytes,
    };
    let mut out = vec![0.0; 8 * SHAPE[0]];
    let mut next = 0;
    let mut timed = |n: usize, rounds: usize| {
        let times = (0..rounds).map(|_| {
            let chosen: Vec<usize> = (next..next + n).map(|i| i % groups).collect();
            next += n;
            multiply(&on_host, &chosen, input, &mut out[..n * SHAPE[0]])
        });
        let us = median(times.collect());
        (us, (n * on_host.bytes_of_group()) as f64 / us / 1e3)
    };
    let mut line = format!("{ty}: CPU alone");
    for n in [1, 2, 4, 8] {
        let (us, speed) = timed(n, bench.rounds(ROUNDS));
        line += &format!(", {n} experts {us:.0} us {speed:.1} GB/s");
    }
    // The bus copies all experts to the device meanwhile.
    let to = host.room("places", groups as u32);
    let pairs: Vec<u32> = (0..groups as u32).flat_map(|i| [i, i]).collect();
    let fill = GpuExpertFill {
        host: &host,
        kept: None,
        to: &to,
        fills: Range::whole(&Buffer::with("all experts", &pairs)),
        entries: groups as u32,
        expected: groups as f64,
    };
    let copies = Recording::new(gpu, &Step::of(Most::token(1), [fill.call()])).wait()?;
    let times = if bench.quick { 1 } else { COPIES };
    let bus = || -> Result<f64, GpuError> {
        let began = Instant::now();
        for _ in 0..times {
            copies.submit(gpu, &State::default());
        }
        gpu.done().wait()?;
        let bytes = (times * groups * on_host.bytes_of_group()) as f64;
        Ok(bytes / began.elapsed().as_secs_f64() / 1e9)
    };
    bus()?;
    let alone = bus()?;
    let (beside, cpu) = std::thread::scope(|scope| {
        let copying = scope.spawn(bus);
        let mut speeds = vec![];
        while !copying.is_finished() {
            speeds.push(timed(2, 1).1);
        }
        (copying.join(), median(speeds))
    });
    let beside = beside.unwrap_or_else(|_| panic!("the bus's thread does not panic"))?;
    println!("{line}; bus alone {alone:.1} GB/s; both: bus {beside:.1}, CPU {cpu:.1} GB/s");
    Ok(())
}

/// The buffers of a layer that the host answers.
struct Layer<'a> {
    gpu: &'a Gpu,
    recording: Recording,
    told: Buffer,
    sum: Buffer,
    back: wgpu::Buffer,
    /// Where the processor reads what is told, and writes a sum.
    reached: Buffer,
    given: Buffer,
}

impl<'a> Layer<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, GpuError> {
        let bytes = 4 * WIDTH;
        let told = gpu.storage("told", bytes, Role::Words).wait()?;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let of_host = |name: &str| {
            let buffer = Buffer::of_host(name, bytes, Role::Words);
            gpu.realise(&buffer).wait().map(|()| buffer)
        };
        let step = Step::of(
            Most::token(1),
            vec![mark::call(&Range::whole(&told)); WAITS],
        );
        Ok(Self {
            recording: Recording::new(gpu, &step).wait()?,
            sum: gpu.storage("sum", bytes, Role::Words).wait()?,
            back: gpu.buffer("back", bytes, usage).wait()?,
            reached: of_host("reached")?,
            given: of_host("given")?,
            told,
            gpu,
        })
    }

    fn submit(&self, to: Option<&wgpu::Buffer>) -> SubmissionIndex {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        self.recording
            .encode(self.gpu, &mut encoder, &State::default());
        if let Some(to) = to {
            encoder.copy_buffer_to_buffer(self.told.made(), 0, to, 0, 4 * WIDTH);
        }
        self.gpu.queue.submit([encoder.finish()])
    }

    fn by_mapping(&self) -> Result<u32, GpuError> {
        let submitted = self.submit(Some(&self.back));
        let read = self.gpu.map_read(&self.back, 4 * WIDTH, Some(submitted));
        let words: Vec<u32> = read.wait()?;
        Ok(words[0])
    }

    fn by_memory(&self) -> Result<u32, GpuError> {
        let submitted = self.submit(Some(self.reached.made()));
        wait(self.gpu, submitted)?;
        let memory = self.reached.memory().expect("it was looked at before");
        // SAFETY: the submission that wrote the words was waited for, and the next one is not submitted yet.
        let words = unsafe { memory.bytes(0..4 * WIDTH) }.to_vec();
        Ok(u32::from_le_bytes([words[0], words[1], words[2], words[3]]))
    }

    fn by_queue(&self) {
        let values = [1; 4 * WIDTH as usize];
        self.gpu.queue.write_buffer(self.sum.made(), 0, &values);
    }

    fn to_memory(&self) {
        let memory = self.given.memory().expect("it was looked at before");
        // SAFETY: no dispatch reads the buffer here.
        unsafe { memory.write(0, &[1; 4 * WIDTH as usize]) };
    }
}

/// The cost of an answer to a layer: what it tells is read by mapping, or where the processor reaches it, and a sum is given by the queue, or
/// written where shaders read it.
fn answers(bench: &Bench) -> Result<(), GpuError> {
    let layer = Layer::new(&bench.gpu)?;
    let whole = best(bench, || {
        for _ in 1..LAYERS {
            layer.submit(None);
        }
        layer.by_mapping().map(drop)
    })?;
    println!(
        "{LAYERS} layers of {WAITS} dispatches, submitted one by one and read at the end: {whole:.0} us"
    );
    let each = |what: &str, read: &dyn Fn() -> Result<u32, GpuError>, give: &dyn Fn()| {
        let us = best(bench, || {
            for _ in 0..LAYERS {
                read()?;
                give();
            }
            Ok(())
        })?;
        let more = (us - whole) / (LAYERS - 1) as f64;
        println!("  {what}: {us:.0} us, {more:.1} us an answer");
        Ok::<_, GpuError>(())
    };
    let (mapping, memory) = (&|| layer.by_mapping(), &|| layer.by_memory());
    let (nothing, queue) = (&|| {}, &|| layer.by_queue());
    each("read by mapping, nothing given", mapping, nothing)?;
    each("read by mapping, a sum by the queue", mapping, queue)?;
    if layer.reached.memory().is_none() || layer.given.memory().is_none() {
        println!("  the processor does not reach the memory that shaders read");
        return Ok(());
    }
    each(
        "read in memory behind a wait, nothing given",
        memory,
        nothing,
    )?;
    each(
        "read in memory behind a wait, a sum by the queue",
        memory,
        queue,
    )?;
    let to_memory = &|| layer.to_memory();
    each(
        "read in memory behind a wait, a sum in memory",
        memory,
        to_memory,
    )
}

/// Waits for a submission.
fn wait(gpu: &Gpu, submission: SubmissionIndex) -> Result<(), GpuError> {
    let waited = gpu.device.poll(PollType::Wait {
        submission_index: Some(submission),
        timeout: None,
    });
    waited.map(drop).map_err(|e| GpuError::Runtime {
        what: "waiting".to_owned(),
        reason: e.to_string(),
    })
}

/// The fewest microseconds of some rounds.
fn best(bench: &Bench, mut round: impl FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError> {
    let mut best = f64::INFINITY;
    for _ in 0..bench.rounds(ROUNDS) {
        let began = Instant::now();
        round()?;
        best = best.min(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}
