//! Where the time of a decoded token, of a step with drafts or of a prompt goes: each dispatch of a real step timed on the GPU.
//!
//! Timestamps cost something and keep neighbours apart, so every profile tells what the same takes without them.

mod drafted;
mod report;
mod summary;
mod timeline;

pub use report::markdown;
pub use summary::{ByCpu, FromHost, Kernel, LayerTime, PartTime, Profile, Work};
pub use timeline::svg;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bench::{BenchError, Drafting, Source, Test, build, measure, n_ctx, tokens_of};
use crate::bench::{backend_name, describe, driver};
use crate::engine::backend::{Backend, BackendError};
use crate::engine::bandwidth::{dependent_dispatch, read_bandwidth};
use crate::engine::gpu::measure::Separation;
use crate::engine::gpu::{GpuBackend, GpuModel};
use crate::engine::random::random_tokens;
use crate::engine::{
    CpuShare, DeviceChoice, HostWork, Partly, PrecomposeChoice, Sampling, residence,
};
use crate::gpu::clock::Clock;
use crate::gpu::stamps::Stamps;
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuOptions};
use crate::kernels::CacheType;
use crate::models::Model;
use crate::recipes::Residence;
use crate::tokenizer::strftime_now;
use summary::{Head, Measured, Traffic, median};

/// Repetitions of what tells the time without timestamps.
const REPETITIONS: usize = 5;

/// Calls of a kernel from which on they are timed with nothing between them, and rounds of that.
const ALONE_CALLS: usize = 8;
const ALONE_ROUNDS: usize = 5;

/// The subject of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The number of decoded tokens, or of steps with drafts; medians are over them.
    Tokens(usize),
    /// A prompt.
    Prompt {
        /// The tokens of the prompt.
        tokens: usize,
        /// Tokens that are computed at once; the usual number where `None`.
        chunk: Option<u32>,
        /// The number of times that it is computed; medians are over them. One that is not counted comes first.
        repetitions: usize,
    },
}

/// The options of a profile.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    /// The model.
    pub source: Source,
    /// The GPU and its kernels.
    pub gpu: GpuOptions,
    /// The weights of which the GPU gets products besides.
    pub precompose: PrecomposeChoice,
    /// The type of the cache.
    pub cache_type: CacheType,
    /// The CPU's share of the experts that decoded tokens miss.
    pub cpu_share: CpuShare,
    /// Whether to load a model that has no room in memory, as far as anything tells.
    pub force: bool,
    /// Hears of a model whose experts have no room on the GPU.
    pub on_partly: fn(&Partly),
    /// The drafts of steps, none for those of a token.
    pub draft: Drafting,
    /// The tokens or the prompt that are timed.
    pub subject: Subject,
    /// Cache rows before them.
    pub depth: usize,
    /// A pass per dispatch even where timestamps between dispatches are possible.
    pub passes: bool,
}

/// The GPU, where the experts lie with the tokens of a chunk, and the seconds of a token, if they are computed.
type Ready = (Arc<Gpu>, (Residence, Option<u32>), Option<f64>);

/// Opens the GPU, if it has room for the model, and decides where the experts lie and how many tokens of a prompt a chunk has. Tells the seconds of a
/// token, if they are computed.
fn open(options: &ProfileOptions, model: &dyn Model, n_ctx: usize) -> Result<Ready, BenchError> {
    let gpu = Arc::new(
        Gpu::open(&GpuOptions {
            tuned: true,
            ..options.gpu.clone()
        })
        .wait()?,
    );
    let mut seconds = None;
    let told = &mut |partly: &Partly| {
        seconds = Some(1.0 / partly.tokens_per_s);
        (options.on_partly)(partly);
    };
    // A token has a chunk of its own, but its experts lie where they lie with the usual chunk of a prompt.
    let asked = match options.subject {
        Subject::Tokens(_) => None,
        Subject::Prompt { chunk, .. } => chunk,
    };
    let (residence, chunk) = residence(&gpu, model, (n_ctx, asked), options.force, told)?;
    let chunk = match options.subject {
        // No prompt is computed: the cache is filled.
        Subject::Tokens(_) => Some(1),
        Subject::Prompt { .. } => chunk,
    };
    Ok((gpu, (residence, chunk), seconds))
}

/// Times the dispatches of decoded tokens or of a prompt; `on_load` is told the bytes of weights done and in all.
pub fn run(
    options: &ProfileOptions,
    on_load: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Profile, BenchError> {
    if options.gpu.device == DeviceChoice::Cpu {
        return Err(BenchError::ProfileOnCpu);
    }
    on_gpu(options, on_load).map_err(BenchError::of_gpus_alone)
}

fn on_gpu(
    options: &ProfileOptions,
    on_load: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Profile, BenchError> {
    let layer = options.draft.layer()?;
    let model = options.source.load_with(&layer, options.cache_type)?;
    let test = test(options);
    let n_ctx = n_ctx(&[test], &*model)?;
    let (gpu, (residence, chunk), seconds) = open(options, &*model, n_ctx)?;
    let empty_pass = match Stamps::empty_pass(&gpu).wait() {
        Err(error) if error.is_of_clock() => 0.0,
        told => told?,
    };
    let peak = read_bandwidth(&gpu)?;
    let waiting = dependent_dispatch(&gpu)?;
    let (of, choice) = (Arc::clone(&model), options.precompose);
    let weights = GpuModel::load_precomposed(gpu, of, residence, choice, n_ctx, on_load);
    let mut weights = weights.wait()?;
    if let Subject::Tokens(_) = options.subject {
        weights.share_with_cpu(options.cpu_share, seconds).wait()?;
    }
    let cpu_share = weights.share.as_ref().map(ToString::to_string);
    let precompose = weights.precomposed.as_ref().map(|p| p.line.clone());
    // In the tier that loading settled for.
    let (gpu, tier_trial) = (
        Arc::clone(&weights.gpu),
        weights.tier_trial.map(|trial| trial.to_string()),
    );
    let drafts = drafted::most(&options.draft);
    let weights = Arc::new(weights);
    let mut backend = GpuBackend::with_drafts(weights, n_ctx, chunk, drafts as u32).wait()?;
    let drafts = drafted::of(&options.draft, &backend)?;
    backend.fill_cache(options.depth).wait()?;
    let separation = match Separation::best(&gpu) {
        Separation::Stamps if options.passes => Separation::Passes,
        best => best,
    };
    let measured = subject(&mut backend, options, &test, (drafts, separation))?;
    // Wrong timestamps may have been noticed only now.
    let separation = match Clock::of(&gpu) {
        Clock::Gpu => separation,
        Clock::Host => Separation::Host,
    };
    let head = Head {
        build_commit: build::COMMIT,
        version: build::VERSION,
        gpu_info: gpu.info.name.clone(),
        driver: driver(&gpu),
        backends: backend_name(gpu.info.backend),
        tier: gpu.tier.name(),
        cache_type: model.cache_type().name(),
        tier_trial,
        precompose,
        cpu_share,
        model_filename: options.source.name(),
        model_type: describe(&*model),
        n_depth: options.depth,
        test_time: strftime_now("%Y-%m-%dT%H:%M:%SZ").unwrap_or_default(),
        peak_gb_per_s: peak / 1e9,
        dispatch_us: waiting * 1e6,
        separation: match separation {
            Separation::Stamps => "timestamps between dispatches",
            Separation::Passes => "a pass per dispatch",
            Separation::Host => "the host's clock, each repeated alone",
        },
        clock: Clock::of(&gpu).name(),
        empty_pass_us: (separation == Separation::Passes).then_some(empty_pass / 1e3),
    };
    let dense = match &model.config().experts {
        Some(_) => model.config().leading_dense_block_count,
        None => model.config().block_count,
    };
    Ok(Profile::new(head, measured, dense))
}

/// Times what the profile is about.
fn subject(
    backend: &mut GpuBackend,
    options: &ProfileOptions,
    test: &Test,
    (drafts, separation): (Option<drafted::Each>, Separation),
) -> Result<Measured, BenchError> {
    let vocab = backend.model().model.config().vocab_size;
    match (options.subject, drafts) {
        (Subject::Tokens(steps), Some(drafts)) => {
            drafted::steps(backend, (options.depth, steps), drafts, separation)
        }
        (Subject::Tokens(_), None) => tokens(backend, test, vocab, separation),
        (Subject::Prompt { repetitions, .. }, _) => {
            prompt(backend, test, vocab, separation, repetitions)
        }
    }
}

/// The test that is also timed without timestamps.
fn test(options: &ProfileOptions) -> Test {
    let (prompt, generate) = match options.subject {
        Subject::Tokens(steps) => (0, steps * (1 + drafted::most(&options.draft))),
        Subject::Prompt { tokens, .. } => (tokens, 0),
    };
    Test {
        prompt,
        generate,
        depth: options.depth,
    }
}

/// Does `work` so many `times`. The experts that were brought meanwhile stand beside what comes of it, where they lie in host memory.
fn watched<T>(
    backend: &mut GpuBackend,
    times: usize,
    work: impl FnOnce(&mut GpuBackend) -> Result<T, BenchError>,
) -> Result<(T, Option<Traffic>), BenchError> {
    let Some(slots) = backend.model().residence.slots() else {
        return Ok((work(backend)?, None));
    };
    let before = backend.model().expert_traffic().wait()?;
    let done = work(backend)?;
    let model = backend.model();
    let after = model.expert_traffic().wait()?;
    let config = model.model.config();
    let used = config.experts.as_ref().map_or(0, |experts| experts.used);
    let traffic = Traffic {
        slots: after.map_or(0, |_| slots),
        from_file: matches!(model.residence, Residence::File(_) | Residence::OneByOne(_)),
        counted: after
            .zip(before)
            .map(|(after, before)| after.since(&before)),
        by_cpu: None,
        of_token: model.expert_bytes_of_token(),
        chosen: used * (config.block_count - config.leading_dense_block_count),
        times,
    };
    Ok((done, Some(traffic)))
}

/// The experts of a token that the CPU multiplied since it had done the work `before`, on average; `None` where it has no share.
fn by_cpu(backend: &GpuBackend, before: Option<HostWork>) -> Option<ByCpu> {
    let model = backend.model();
    let done = model.host_work().wait()?.since(&before?);
    let config = model.model.config();
    let layers = config.block_count - config.leading_dense_block_count;
    Some(ByCpu::of(done, layers))
}

/// How the tokens of a profile are chosen: as those of `bench` are, and if experts have slots other ones for each `draw` above 0.
fn sampling(backend: &GpuBackend, draw: usize) -> Sampling {
    let slots = backend.model().residence.slots();
    tokens_of(slots.map_or(0, |_| draw as u64))
}

/// The median time of `test` without timestamps, in microseconds.
fn without_us(
    backend: &mut GpuBackend,
    test: &Test,
    vocab: usize,
    repetitions: usize,
) -> Result<f64, BenchError> {
    let mut time = |draw| {
        let sampling = sampling(backend, draw);
        measure(backend, test, vocab, &sampling)
    };
    time(repetitions + 1)?;
    let times = (1..=repetitions).map(|draw| Ok(time(draw)?.as_secs_f64() * 1e6));
    Ok(median(times.collect::<Result<_, BenchError>>()?))
}

fn tokens(
    backend: &mut GpuBackend,
    test: &Test,
    vocab: usize,
    separation: Separation,
) -> Result<Measured, BenchError> {
    let tokens = test.generate;
    let before = backend.model().host_work().wait();
    let token_us = without_us(backend, test, vocab, REPETITIONS)? / tokens as f64;
    let by_cpu = by_cpu(backend, before);
    let first = test.depth.max(1);
    backend
        .prefill(&random_tokens(1, vocab), first - 1)
        .wait()?;
    let step_us: Vec<_> = match backend.time_steps(&vec![0; first], tokens) {
        Err(BackendError::Gpu(error)) if error.is_of_clock() => {
            backend.time_step(first + tokens / 2, REPETITIONS)?
        }
        steps => {
            let span = |[begin, end]: &[f64; 2]| (end - begin) / 1e3;
            steps?.iter().map(span).collect()
        }
    };
    // The first round pays for whatever the driver does once.
    let [before, sampling] = [2, 3].map(|draw| sampling(backend, REPETITIONS + draw));
    backend.time_dispatches(first, tokens.min(3), separation, &before)?;
    let (times, traffic) = watched(backend, tokens, |backend| {
        Ok(backend.time_dispatches(first, tokens, separation, &sampling)?)
    })?;
    let traffic = traffic.map(|traffic| Traffic { by_cpu, ..traffic });
    let middle = first + tokens / 2;
    let alone = backend.time_alone(middle, ALONE_CALLS, 2 * ALONE_ROUNDS)?;
    let alone = alone.into_iter().map(|(label, mut us)| {
        // The first rounds pay for what the driver does once and for clocks that rise.
        (label, median(us.split_off(ALONE_ROUNDS)))
    });
    let alone = alone.collect();
    Ok(Measured {
        work: Work::Token {
            tokens,
            token_us,
            step_us: median(step_us),
            dependent_dispatches: backend.dependent_dispatches_per_token(middle),
        },
        step: backend.step(middle),
        times,
        alone,
        traffic,
        parts: vec![],
    })
}

fn prompt(
    backend: &mut GpuBackend,
    test: &Test,
    vocab: usize,
    separation: Separation,
    repetitions: usize,
) -> Result<Measured, BenchError> {
    let prompt_us = without_us(backend, test, vocab, repetitions)?;
    let ids = random_tokens(test.prompt, vocab);
    // The first time pays for whatever the driver does once.
    let first = backend.time_prompt(&ids, test.depth, separation)?;
    let step = first.into_iter().map(|(taken, _)| taken).collect();
    let (times, traffic) = watched(backend, repetitions, |backend| {
        let times = (0..repetitions).map(|_| {
            let timed = backend.time_prompt(&ids, test.depth, separation)?;
            Ok(timed.into_iter().map(|(_, times)| times).collect())
        });
        times.collect::<Result<_, BenchError>>()
    })?;
    Ok(Measured {
        work: Work::Prompt {
            n_prompt: test.prompt,
            n_ubatch: backend.chunk(),
            piece: backend.at_once(test.prompt),
            repetitions,
            prompt_us,
            tokens_per_s: test.prompt as f64 * 1e6 / prompt_us,
        },
        step,
        times,
        alone: BTreeMap::new(),
        traffic,
        parts: vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::stamps::lies::{self, Lie};

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn where_the_clock_lies_profiles_are_by_the_hosts() {
        for (lie, subject) in [
            (Lie::Zeros, Subject::Tokens(2)),
            (
                Lie::Backwards,
                Subject::Prompt {
                    tokens: 20,
                    chunk: None,
                    repetitions: 1,
                },
            ),
        ] {
            let options = ProfileOptions {
                force: false,
                on_partly: |_| {},
                source: "tiny:q4_0".parse().expect("a synthetic model"),
                gpu: GpuOptions::default(),
                precompose: PrecomposeChoice::Off,
                cache_type: CacheType::F16,
                cpu_share: CpuShare::Off,
                draft: Drafting::default(),
                subject,
                depth: 3,
                passes: false,
            };
            let profile = lies::with(lie, || run(&options, &mut |_, _| {}));
            let profile = profile.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(profile.head.clock, "host");
            assert!(profile.sum_us > 0.0 && profile.head.dispatch_us > 0.0);
            assert!(profile.kernels.iter().all(|k| k.us > 0.0), "{profile:?}");
            let text = markdown(&profile);
            assert!(text.contains("told apart by the host's clock"), "{text}");
            let json = serde_json::to_value(&profile).expect("it is data");
            assert_eq!(json["clock"], "host");
        }
    }
}
