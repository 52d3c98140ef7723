//! Running the tests on every device that was asked for.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drafted::{BenchDrafts, Drafting};
use super::repetition::{measure_drafted, tokens_of};
use super::report::{Row, Statistics, build};
use super::routing::Routing;
use super::source::{Source, describe};
use super::{BenchError, Test};
use crate::engine::Products;
use crate::engine::backend::{Backend, BackendError};
use crate::engine::bandwidth::read_bandwidth;
use crate::engine::cpu::CpuBackend;
use crate::engine::device::check_cpu;
use crate::engine::draft::DraftSource;
use crate::engine::gpu::{ExpertTraffic, GpuBackend, GpuModel};
use crate::engine::random::random_tokens;
use crate::engine::{
    CpuShare, DeviceChoice, EngineError, Partly, PrecomposeChoice, Precomposed, Share, Tier,
    TierTrial, residence,
};
use crate::gpu::clock::Clock;
use crate::gpu::wait::Wait;
use crate::gpu::{self, Gpu, GpuOptions};
use crate::kernels::CacheType;
use crate::models::Model;
use crate::tokenizer::strftime_now;

/// Tokens that warm a generation up.
const WARM_UP: usize = 16;
/// The number of times that a step is timed by the host's clock if the GPU's cannot be used.
const HOST_ROUNDS: usize = 5;
/// The time for which the first test is repeated before it counts: the first short prompts on an idle GPU were half as fast as later
/// ones (benches/notes.md), probably until it reached its clock.
const WARM_UP_TIME: Duration = Duration::from_secs(1);

/// The devices to measure on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// One device.
    Device(DeviceChoice),
    /// Every GPU adapter of the machine.
    All,
}

impl std::str::FromStr for Where {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            one => one.parse().map(Self::Device),
        }
    }
}

/// The measurements to make.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The model.
    pub source: Source,
    /// The tests, in order.
    pub tests: Vec<Test>,
    /// The devices, in order.
    pub devices: Vec<Where>,
    /// The tiers on each GPU; none for the best of each.
    pub tiers: Vec<Tier>,
    /// How to open each of them: the device and the tier are those whose turn it is.
    pub gpu: GpuOptions,
    /// The weights of which a GPU gets products besides.
    pub precompose: PrecomposeChoice,
    /// The type of the cache.
    pub cache_type: CacheType,
    /// How the CPU multiplies.
    pub cpu_products: Products,
    /// The CPU's share of experts that tokens miss on a GPU.
    pub cpu_share: CpuShare,
    /// Tokens of a prompt that are computed at once, each measured in turn; none for the usual number.
    pub chunks: Vec<u32>,
    /// The choices of experts that decoded tokens take instead of their own.
    pub routing: Option<Arc<Routing>>,
    /// The drafts of generations.
    pub draft: Drafting,
    /// Whether to load a model that has no room in memory, as far as anything tells.
    pub force: bool,
    /// The number of times that each test is repeated.
    pub repetitions: usize,
}

/// An event that is told while measuring.
pub enum Event<'a> {
    /// A device is measured from here on.
    Device {
        /// The adapter's name.
        name: &'a str,
        /// Vulkan, Metal, DX12 or CPU.
        backend: &'a str,
        /// Whether software on the CPU plays a GPU.
        is_software: bool,
    },
    /// The device has no room for all experts of the model.
    Partly(&'a Partly),
    /// Weights are on their way to the device: bytes done, bytes in all.
    Loading(u64, u64),
    /// Loading has ended.
    Loaded,
    /// The trial that chose the tier.
    Tier(&'a TierTrial),
    /// The CPU's share of missing experts.
    Share(&'a Share),
    /// The outcome of `--precompose`.
    Precomposed(&'a Precomposed),
    /// An adapter of [`Where::All`] was left out, and why.
    Skipped(String),
    /// A test begins.
    Test {
        /// Which.
        test: &'a Test,
        /// The number of the test, from 1.
        number: usize,
        /// The number of tests.
        of: usize,
    },
    /// The CPU reference is measured where the best GPU was meant, and why.
    NoGpu(&'a gpu::GpuError),
    /// The number of repetitions of the test that are done.
    Repetition(usize),
    /// A result.
    Row(&'a Row),
}

/// Receives what is told; a break ends the measuring.
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + Send + 'a;

/// Why measuring ends early.
enum Ended {
    /// Whoever was told wanted no more.
    Asked,
    Failed(BenchError),
}

impl<E> From<E> for Ended
where
    BenchError: From<E>,
{
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn tell(on_event: &mut OnEvent<'_>, event: Event<'_>) -> Result<(), Ended> {
    match on_event(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Ended::Asked),
    }
}

/// Measures every test on every device and tells `on_event`.
///
/// # Errors
/// Any [`BenchError`]. Tests that need more context than the model has are refused before anything is loaded.
pub fn run(options: &BenchOptions, on_event: &mut OnEvent<'_>) -> Result<(), BenchError> {
    if options.routing.is_some() && options.draft.options.source != DraftSource::Off {
        let several =
            "it is for steps of one token, and drafts make steps of several; give --draft off";
        return Err(BenchError::Routing(several.to_owned()));
    }
    let model = options
        .source
        .load_with(&options.draft.layer()?, options.cache_type)?;
    let suits_cpu = suits_cpu(options, &*model);
    let on_gpus_alone = suits_cpu.is_err();
    match run_all(options, &model, suits_cpu, on_event) {
        Err(Ended::Failed(error)) if on_gpus_alone => Err(error.of_gpus_alone()),
        Err(Ended::Failed(error)) => Err(error),
        Ok(()) | Err(Ended::Asked) => Ok(()),
    }
}

/// Refuses what the CPU reference cannot measure.
fn suits_cpu(options: &BenchOptions, model: &dyn Model) -> Result<(), BenchError> {
    let asked = GpuOptions {
        tier: options.tiers.first().copied(),
        ..options.gpu.clone()
    };
    match model.has_data() {
        true => Ok(check_cpu(&asked, options.precompose)?),
        false => Err(BenchError::SyntheticOnCpu),
    }
}

fn run_all(
    options: &BenchOptions,
    model: &Arc<dyn Model>,
    suits_cpu: Result<(), BenchError>,
    on_event: &mut OnEvent<'_>,
) -> Result<(), Ended> {
    let n_ctx = n_ctx(&options.tests, &**model)?;
    let cpu = Where::Device(DeviceChoice::Cpu);
    // A measurement that only kernels of a GPU can do asks for some adapter, even if it is software.
    let hardware = suits_cpu.is_ok();
    if options.devices.contains(&cpu) {
        suits_cpu?;
    }
    let mut any = false;
    for device in &options.devices {
        if *device == cpu {
            any = true;
            on_cpu(options, model, n_ctx, on_event)?;
            continue;
        }
        for opening in openings(device, options, hardware) {
            let gpu = match (Gpu::open(&opening).wait(), device) {
                (Ok(gpu), _) => Arc::new(gpu),
                (Err(error), Where::Device(DeviceChoice::Auto))
                    if hardware && error.is_no_gpu() =>
                {
                    any = true;
                    tell(on_event, Event::NoGpu(&error))?;
                    on_cpu(options, model, n_ctx, on_event)?;
                    continue;
                }
                (Err(error), Where::All) => {
                    tell(on_event, Event::Skipped(error.to_string()))?;
                    continue;
                }
                (Err(error), Where::Device(_)) => return Err(error.into()),
            };
            any = true;
            match (on_gpu(options, gpu, model, n_ctx, on_event), device) {
                (
                    Err(Ended::Failed(BenchError::Engine(error @ EngineError::NoRoom(_)))),
                    Where::All,
                ) => tell(on_event, Event::Skipped(error.to_string()))?,
                (measured, _) => measured?,
            }
        }
    }
    match any {
        true => Ok(()),
        false => Err(BenchError::NoDevices.into()),
    }
}

/// Measures on the CPU reference.
fn on_cpu(
    options: &BenchOptions,
    model: &Arc<dyn Model>,
    n_ctx: usize,
    on_event: &mut OnEvent<'_>,
) -> Result<(), Ended> {
    let mut backend = CpuBackend::new(Arc::clone(model), options.cpu_products, n_ctx)?;
    let row = base_row(options, &**model);
    let begins = Event::Device {
        name: &row.gpu_info,
        backend: &row.backends,
        is_software: false,
    };
    tell(on_event, begins)?;
    run_tests(options, &mut backend, &**model, &row, on_event)
}

/// Cache rows that the largest of `tests` needs.
///
/// # Errors
/// [`BenchError::ContextTooLong`].
pub(crate) fn n_ctx(tests: &[Test], model: &dyn Model) -> Result<usize, BenchError> {
    let mut most = 0;
    for test in tests {
        let (needed, limit) = (test.context(), model.config().context_length);
        if needed > limit {
            return Err(BenchError::ContextTooLong {
                test: test.name(),
                needed,
                model: limit,
            });
        }
        most = most.max(needed);
    }
    Ok(most)
}

/// How to open the GPUs that a device and the tiers asked for mean.
fn openings(device: &Where, options: &BenchOptions, hardware: bool) -> Vec<GpuOptions> {
    let choices = match device {
        Where::Device(choice) => vec![choice.clone()],
        Where::All => (0..gpu::adapters().wait().len())
            .map(DeviceChoice::Index)
            .collect(),
    };
    let tiers: Vec<_> = match options.tiers.as_slice() {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let each = |device: DeviceChoice| {
        tiers.iter().map(move |tier| GpuOptions {
            device: device.clone(),
            tier: *tier,
            hardware,
            tuned: true,
            ..options.gpu.clone()
        })
    };
    choices.into_iter().flat_map(each).collect()
}

fn on_gpu(
    options: &BenchOptions,
    gpu: Arc<Gpu>,
    model: &Arc<dyn Model>,
    n_ctx: usize,
    on_event: &mut OnEvent<'_>,
) -> Result<(), Ended> {
    let [name, backend] = [&gpu.info.name, &backend_name(gpu.info.backend)];
    let is_software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    tell(
        on_event,
        Event::Device {
            name,
            backend,
            is_software,
        },
    )?;
    let (mut flow, mut seconds) = (Ok(()), None);
    let largest = options.chunks.iter().max().copied();
    let told = &mut |partly: &Partly| {
        seconds = Some(1.0 / partly.tokens_per_s);
        flow = tell(on_event, Event::Partly(partly));
    };
    let (residence, chunk) = residence(&gpu, &**model, (n_ctx, largest), options.force, told)?;
    flow?;
    // Before the weights take the room.
    let peak = read_bandwidth(&gpu)?;
    let mut flow = Ok(());
    let told = &mut |done, total| {
        if flow.is_ok() {
            flow = tell(on_event, Event::Loading(done, total));
        }
    };
    let weights = GpuModel::load_precomposed(
        Arc::clone(&gpu),
        Arc::clone(model),
        residence,
        options.precompose,
        n_ctx,
        told,
    );
    let mut weights = weights.wait()?;
    flow?;
    if let Some(routing) = &options.routing {
        routing.replay(&mut weights)?;
    }
    weights.share_with_cpu(options.cpu_share, seconds).wait()?;
    let weights = Arc::new(weights);
    tell(on_event, Event::Loaded)?;
    if let Some(share) = &weights.share {
        tell(on_event, Event::Share(share))?;
    }
    if let Some(trial) = &weights.tier_trial {
        tell(on_event, Event::Tier(trial))?;
    }
    if let Some(precomposed) = &weights.precomposed {
        tell(on_event, Event::Precomposed(precomposed))?;
    }
    let chunks = match options.chunks.as_slice() {
        [] => vec![chunk],
        asked => asked.iter().map(|n| Some(*n)).collect(),
    };
    for chunk in chunks {
        let drafts = options
            .draft
            .options
            .most(weights.residence.slots().is_some());
        let weights = Arc::clone(&weights);
        let mut backend = GpuBackend::with_drafts(weights.clone(), n_ctx, chunk, drafts).wait()?;
        backend.compile_drafts_now().wait()?;
        let row = gpu_row(options, &weights, backend.chunk(), peak);
        run_tests(options, &mut backend, &**model, &row, on_event)?;
    }
    Ok(())
}

/// The facts of a row about a model on a GPU.
fn gpu_row(options: &BenchOptions, weights: &GpuModel, chunk: u32, peak: f64) -> Row {
    let gpu = &weights.gpu;
    let kept = weights.precomposed.as_ref().map(|p| p.kept);
    Row {
        gpu_info: gpu.info.name.clone(),
        driver: driver(gpu),
        backends: backend_name(gpu.info.backend),
        tier: Some(gpu.tier.name()),
        activation: Some(gpu.activation().name()),
        precompose: Some(kept.unwrap_or_default().name()),
        n_ubatch: Some(chunk),
        peak_gb_per_s: Some(peak / 1e9),
        clock: Some(Clock::of(gpu).name()),
        expert_slots: weights.residence.slots(),
        cpu_share: weights.share.as_ref().map(|share| share.experts),
        ..base_row(options, &*weights.model)
    }
}

/// Name and version of the driver.
pub(crate) fn driver(gpu: &Gpu) -> String {
    let info = &gpu.info;
    format!("{} {}", info.driver, info.driver_info)
        .trim()
        .to_owned()
}

/// A graphics interface as llama-bench writes it.
pub(crate) fn backend_name(backend: wgpu::Backend) -> String {
    match backend {
        wgpu::Backend::Vulkan => "Vulkan".to_owned(),
        wgpu::Backend::Metal => "Metal".to_owned(),
        wgpu::Backend::Dx12 => "DX12".to_owned(),
        other => other.to_str().to_owned(),
    }
}

/// The facts of a row about the model and the program; the device is the CPU reference.
fn base_row(options: &BenchOptions, model: &dyn Model) -> Row {
    let tensors = model.gguf().tensors();
    Row {
        build_commit: build::COMMIT,
        version: build::VERSION,
        gpu_info: options.cpu_products.device(),
        backends: "CPU".to_owned(),
        model_filename: options.source.name(),
        cache_type: model.cache_type().name(),
        model_type: describe(model),
        model_size: tensors.iter().map(|t| t.byte_len()).sum(),
        model_n_params: tensors.iter().map(|t| t.element_count()).sum(),
        ..Row::default()
    }
}

/// A backend with what only a GPU can tell.
trait Measured: Backend {
    fn gpu(&mut self) -> Option<&mut GpuBackend>;
}

impl Measured for CpuBackend {
    fn gpu(&mut self) -> Option<&mut GpuBackend> {
        None
    }
}

impl Measured for GpuBackend {
    fn gpu(&mut self) -> Option<&mut GpuBackend> {
        Some(self)
    }
}

fn run_tests(
    options: &BenchOptions,
    backend: &mut dyn Measured,
    model: &dyn Model,
    base: &Row,
    on_event: &mut OnEvent<'_>,
) -> Result<(), Ended> {
    let vocab = model.config().vocab_size;
    let text = options.draft.tokens(model, &options.tests)?;
    let deepest = options.tests.iter().map(|test| test.depth).max();
    backend.fill_cache(deepest.unwrap_or(0)).wait()?;
    let began = Instant::now();
    for (i, test) in options.tests.iter().enumerate() {
        let begins = Event::Test {
            test,
            number: i + 1,
            of: options.tests.len(),
        };
        tell(on_event, begins)?;
        let warm_up = Test {
            generate: test.generate.min(WARM_UP),
            ..*test
        };
        let slots = base.expert_slots.is_some();
        let mut draws = 0;
        let mut choice = || {
            draws += u64::from(slots);
            tokens_of(draws)
        };
        let mut drafts = match test.generate {
            0 => None,
            _ => options.draft.drafter(&backend.draft_means(), &text)?,
        };
        measure_drafted(backend, &warm_up, vocab, &choice(), drafts.as_mut())?;
        while began.elapsed() < WARM_UP_TIME {
            measure_drafted(backend, &warm_up, vocab, &choice(), drafts.as_mut())?;
        }
        let warmed_up = drafts.as_ref().map(BenchDrafts::counts);
        let test_time = strftime_now("%Y-%m-%dT%H:%M:%SZ").unwrap_or_default();
        if let Some(gpu) = backend.gpu() {
            gpu.take_host_time();
            gpu.take_longest_submission();
        }
        let before = traffic(backend)?;
        let mut samples = vec![];
        while samples.len() < options.repetitions {
            tell(on_event, Event::Repetition(samples.len()))?;
            let drafts = drafts.as_mut();
            samples.push(measure_drafted(backend, test, vocab, &choice(), drafts)?);
        }
        let traffic = traffic(backend)?.since(&before);
        let mut row = Row {
            n_prompt: test.prompt,
            n_gen: test.generate,
            n_depth: test.depth,
            test_time,
            statistics: Statistics::of(&samples, test.tokens()),
            expert_hits: traffic.hit_rate().filter(|_| test.generate > 0),
            draft: drafts.as_ref().and_then(|_| options.draft.name()),
            ..base.clone()
        };
        if let (Some(drafts), Some(before)) = (&drafts, warmed_up) {
            row.add_drafts(before, drafts.counts());
        }
        if let Some(gpu) = backend.gpu() {
            if drafts.is_some() {
                // A step has several tokens, so the figures of one say nothing.
            } else if test.prompt == 0 {
                look_into(gpu, test, vocab, &mut row)?;
            } else {
                let longest = gpu.take_longest_submission();
                row.longest_submission_ms = longest.map(|longest| longest.as_secs_f64() * 1e3);
                // Fewer than asked for where a dispatch took too long.
                row.n_ubatch = Some(gpu.chunk());
            }
        }
        tell(on_event, Event::Row(&row))?;
    }
    Ok(())
}

/// The traffic of experts so far.
fn traffic(backend: &mut dyn Measured) -> Result<ExpertTraffic, BenchError> {
    let found = match backend.gpu() {
        Some(gpu) => gpu.model().expert_traffic().wait()?,
        None => None,
    };
    Ok(found.unwrap_or_default())
}

/// Adds to a row the bytes that the tokens of a generation read, and the time that they waited.
fn look_into(
    gpu: &mut GpuBackend,
    test: &Test,
    vocab: usize,
    row: &mut Row,
) -> Result<(), BenchError> {
    let first = test.depth.max(1);
    let read: u64 = (first..first + test.generate)
        .map(|pos| gpu.step_bytes(pos))
        .sum();
    let bytes = read as f64 / test.generate as f64;
    let host = gpu.take_host_time();
    row.bytes_per_token = Some(bytes);
    row.gb_per_s = Some(bytes * row.statistics.avg_ts / 1e9);
    row.dispatches_per_token = Some(gpu.dispatches_per_token(first));
    row.dependent_dispatches_per_token = Some(gpu.dependent_dispatches_per_token(first));
    row.host_ms_per_token =
        (host.steps > 0).then(|| host.time.as_secs_f64() * 1e3 / f64::from(host.steps));
    // A run of its own: timestamps are not free.
    gpu.prefill(&random_tokens(1, vocab), first - 1).wait()?;
    row.gpu_idle = match gpu.time_steps(&vec![0; first], test.generate) {
        Ok(steps) => idle(&steps),
        Err(BackendError::Gpu(error)) if error.is_of_clock() => {
            // The time of a step with no pause before the next one is held against the time of a token.
            let mut us = gpu.time_step(first + test.generate / 2, HOST_ROUNDS)?;
            us.sort_by(f64::total_cmp);
            Some((1.0 - us[HOST_ROUNDS / 2] * row.statistics.avg_ts / 1e6).max(0.0))
        }
        Err(error) => return Err(error.into()),
    };
    row.clock = Some(gpu.clock().name());
    Ok(())
}

/// The share of the time between the first begin and the last end in which no step ran.
fn idle(steps: &[[f64; 2]]) -> Option<f64> {
    let ([first, _], [_, last]) = (steps.first()?, steps.last()?);
    let busy: f64 = steps.iter().map(|[begin, end]| end - begin).sum();
    (steps.len() > 1 && last > first).then(|| (1.0 - busy / (last - first)).max(0.0))
}

#[cfg(test)]
mod tests;
