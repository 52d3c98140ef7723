//! `--precompose`: which weights are composed on this device, how fast that is and how far it is off.
//!
//! Composed weights trade bytes for dispatches, so only decoding reads them: prompts keep the weights of the file.

use super::memory::MemoryPlan;
use super::model::GpuModel;
use super::random;
use super::trial::TokenTrial;
use crate::gpu::call::State;
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::compose::{Composition, GpuCompose, Pair, kept_as};
use crate::models::Model;
use std::fmt;
use std::sync::Arc;
use web_time::{Duration, Instant};

/// `auto` keeps no composition whose logits are further off than this: one token that takes another expert gives 1e-3.
const MAX_NMSE: f64 = 5e-3;
/// Nor one that is not faster by this than what takes less memory: repeated measurements stray as much.
const LEAST_GAIN: f64 = 0.01;
/// Rows of the trial's cache: the steps that are timed begin in its middle.
const ROWS: usize = 512;
/// Tokens whose logits are compared.
const TOKENS: usize = 16;
/// Rounds in which every candidate is timed once; medians are over them. Slow devices do fewer, at least the second.
const ROUNDS: [usize; 2] = [9, 3];
/// Time for all rounds, and for what comes before: clocks rise, pipelines and memory are touched for the first time.
const BUDGET: Duration = Duration::from_millis(2500);
const WARM_UP: Duration = Duration::from_millis(400);

named! {
    /// The choices of `--precompose`.
    pub enum PrecomposeChoice {
        /// Measure on this device and this model, and keep what is faster.
        Auto = "auto",
        /// Nothing.
        Off = "off",
        /// [`Pair::Qk`].
        Qk = "qk",
        /// [`Pair::Vo`].
        Vo = "vo",
        /// Both pairs.
        Both = "both",
    }
}

/// The choice where nothing is asked for.
pub const DEFAULT_PRECOMPOSE: PrecomposeChoice = PrecomposeChoice::Off;

impl PrecomposeChoice {
    /// The choices that `Auto` may keep, in the order of preference.
    const CANDIDATES: [Self; 4] = [Self::Off, Self::Qk, Self::Vo, Self::Both];

    /// The pairs that it composes, of `Auto` those that it tries.
    pub const fn pairs(self) -> &'static [Pair] {
        match self {
            Self::Off => &[],
            Self::Qk => &[Pair::Qk],
            Self::Vo => &[Pair::Vo],
            Self::Both | Self::Auto => &Pair::ALL,
        }
    }

    /// The choice of these pairs.
    fn of(pairs: &[Pair]) -> Self {
        match pairs {
            [] => Self::Off,
            [Pair::Qk] => Self::Qk,
            [Pair::Vo] => Self::Vo,
            _ => Self::Both,
        }
    }

    /// Bytes that its products take on a device.
    fn bytes(self, model: &dyn Model) -> u64 {
        self.pairs()
            .iter()
            .map(|pair| model.composed_bytes(*pair))
            .sum()
    }
}

impl std::str::FromStr for PrecomposeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::named(text)
            .ok_or_else(|| format!("unknown choice '{text}', expected auto, qk, vo, both or off"))
    }
}

/// The outcome of `--precompose`.
#[derive(Debug, Clone)]
pub struct Precomposed {
    /// The choice that decoding follows.
    pub kept: PrecomposeChoice,
    /// Bytes that the composed weights take beside the weights of the file.
    pub bytes: u64,
    /// The choices that were tried: of `auto` every candidate with its time, else the one asked for.
    pub trials: Vec<Trial>,
    /// Of `auto`: what could not be tried, and why.
    pub left_out: Vec<String>,
}

/// A choice and what was found.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// The choice that was tried.
    pub choice: PrecomposeChoice,
    /// Milliseconds per token, the median of the rounds; where it was timed.
    pub ms: Option<f64>,
    /// Error of the logits relative to those without composition: squared differences over squared values.
    pub nmse: f64,
}

impl Precomposed {
    /// Error of the logits relative to those without composition, over a few tokens of this model.
    pub fn nmse(&self) -> f64 {
        let kept = self.trials.iter().find(|trial| trial.choice == self.kept);
        kept.map_or(0.0, |trial| trial.nmse)
    }
}

impl fmt::Display for Precomposed {
    /// One line: the choice, its memory, its error, and of `auto` the times of all candidates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self.nmse() {
            0.0 => "0".to_owned(),
            nmse => format!("{nmse:.1e}"),
        };
        write!(
            f,
            "precompose: {}, {:.1} MiB more, NMSE of the logits {error}",
            self.kept.name(),
            self.bytes as f64 / f64::from(1 << 20),
        )?;
        let timed = self.trials.iter().filter_map(|t| Some((t, t.ms?)));
        for (i, (trial, ms)) in timed.enumerate() {
            let before = [", ", "; ms per token: "][usize::from(i == 0)];
            write!(f, "{before}{} {ms:.3}", trial.choice.name())?;
            if !trial.is_near() {
                write!(f, " (not kept: NMSE {:.1e})", trial.nmse)?;
            }
        }
        for reason in &self.left_out {
            write!(f, "; left out: {reason}")?;
        }
        Ok(())
    }
}

impl GpuModel {
    /// As [`load`](Self::load), with weights composed as `choice` says, for sessions of `n_ctx` tokens.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load); [`GpuError::PrecomposeTooLarge`], before anything is loaded, where the device tells its
    /// memory and it is less than all takes; [`GpuError::CannotPrecompose`]. `auto` leaves out what does not fit or cannot be
    /// composed, and says so.
    pub async fn load_precomposed(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        choice: PrecomposeChoice,
        n_ctx: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Option<Precomposed>), GpuError> {
        if choice == PrecomposeChoice::Off {
            return Ok((Self::load(gpu, model, progress).await?, None));
        }
        let auto = choice == PrecomposeChoice::Auto;
        let (mut left_out, mut fitting, mut composed) = (vec![], vec![], vec![]);
        if auto {
            // All that fit are tried side by side.
            let mut pairs = Pair::ALL;
            pairs.sort_by_key(|pair| model.composed_bytes(*pair));
            for pair in pairs {
                let all = [&fitting[..], &[pair]].concat();
                match check_memory(&gpu, &*model, PrecomposeChoice::of(&all), n_ctx) {
                    Ok(()) => fitting = all,
                    Err(error) => left_out.push(error.to_string()),
                }
            }
        } else {
            check_memory(&gpu, &*model, choice, n_ctx)?;
            fitting = choice.pairs().to_vec();
        }
        let mut loaded = Self::load(gpu, model, progress).await?;
        for pair in fitting {
            match loaded.compose(pair).await {
                Ok(()) => composed.push(pair),
                Err(error @ GpuError::CannotPrecompose { .. }) if auto => {
                    left_out.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        let possible = |c: &PrecomposeChoice| c.pairs().iter().all(|p| composed.contains(p));
        let candidates = match auto {
            true => PrecomposeChoice::CANDIDATES
                .into_iter()
                .filter(possible)
                .collect(),
            false => vec![choice],
        };
        let trials = loaded.try_each(&candidates).await?;
        let kept = if auto { fastest(&trials) } else { choice };
        let bytes = loaded.release_all_but(kept);
        let precomposed = Precomposed {
            kept,
            bytes,
            trials,
            left_out,
        };
        Ok((loaded, Some(precomposed)))
    }

    /// Composes `pair` in every layer.
    async fn compose(&mut self, pair: Pair) -> Result<(), GpuError> {
        let before = self.gpu.allocated();
        // Into a list first: nothing is half composed where a layer is refused.
        let mut products = vec![];
        for (composition, factors) in self.weights.factors(pair) {
            let product = product(&self.gpu, composition, factors).await;
            products.push(product.inspect_err(|_| self.gpu.count_dropped(before))?);
        }
        if products.is_empty() {
            return Err(pair.refused("this model has no such weights".to_owned()));
        }
        *self.composed(pair) = products;
        Ok(())
    }

    /// The products of `pair`, to be changed.
    fn composed(&mut self, pair: Pair) -> &mut Vec<GpuWeight> {
        let weights = Arc::get_mut(&mut self.weights);
        weights.expect("no session has begun").composed(pair)
    }

    /// Frees the products that `kept` does not read; the bytes of the others.
    fn release_all_but(&mut self, kept: PrecomposeChoice) -> u64 {
        let (mut bytes, gpu) = (0, Arc::clone(&self.gpu));
        for pair in Pair::ALL {
            let products = self.composed(pair);
            if kept.pairs().contains(&pair) {
                bytes += products.iter().map(GpuWeight::bytes).sum::<u64>();
                continue;
            }
            for piece in products.drain(..).flat_map(|weight| weight.pieces) {
                // A product has a buffer of its own for each plane.
                gpu.release(&piece.quants.buffer);
                gpu.release(&piece.scales.buffer);
            }
        }
        bytes
    }

    /// Tries `candidates`, whose products the model holds; times them where there are several. Nothing of it stays.
    async fn try_each(&self, candidates: &[PrecomposeChoice]) -> Result<Vec<Trial>, GpuError> {
        let before = self.gpu.allocated();
        let trials = match Lab::new(self).await {
            Ok(lab) => lab.run(candidates).await,
            Err(error) => Err(error),
        };
        self.gpu.count_dropped(before);
        trials
    }
}

/// Refuses `choice` where the device tells that model, session and products do not fit its memory.
fn check_memory(
    gpu: &Gpu,
    model: &dyn Model,
    choice: PrecomposeChoice,
    n_ctx: usize,
) -> Result<(), GpuError> {
    let plan = MemoryPlan::new(gpu, model, n_ctx, None)?;
    let extra = choice.bytes(model);
    match gpu.memory {
        Some(memory) if plan.total() + extra > memory => Err(GpuError::PrecomposeTooLarge {
            choice: choice.name(),
            extra,
            planned: plan.total(),
            adapter: gpu.info.name.clone(),
            memory,
        }),
        _ => Ok(()),
    }
}

/// Composes one pair of one layer.
async fn product(
    gpu: &Gpu,
    composition: Composition,
    [left, right]: [&GpuWeight; 2],
) -> Result<GpuWeight, GpuError> {
    let pair = composition.pair;
    let out = composition.product(kept_as(left.ty, right.ty));
    // Rotated queries are bound behind the others.
    let (queries, alignment) = (
        composition.heads * composition.rows * 4,
        gpu.offset_alignment,
    );
    if pair == Pair::Qk && !(queries as u64).is_multiple_of(alignment) {
        return Err(pair.refused(format!(
            "{queries} bytes of queries are no multiple of the {alignment} that bindings begin at"
        )));
    }
    let (name, most) = (&gpu.info.name, gpu.max_binding);
    let planes = [&out.pieces[0].quants, &out.pieces[0].scales];
    if planes[0].size > most {
        let bytes = planes[0].size;
        return Err(pair.refused(format!(
            "the product takes {bytes} bytes in one binding, {name} allows {most}"
        )));
    }
    for plane in planes {
        gpu.realise(&plane.buffer).await?;
    }
    let compose = GpuCompose {
        composition,
        left,
        right,
        out: &out,
    };
    let before = gpu.allocated();
    let step = Step::of(Most::token(1), compose.calls()?);
    let recording = Recording::new(gpu, &step).await?;
    recording.submit(gpu, &State::default());
    gpu.done().await?;
    gpu.count_dropped(before);
    Ok(out)
}

/// The choice that `auto` keeps: the fastest of those near enough, unless less memory is as fast.
fn fastest(trials: &[Trial]) -> PrecomposeChoice {
    let mut best: Option<(PrecomposeChoice, f64)> = None;
    for trial in trials.iter().filter(|trial| trial.is_near()) {
        let Some(ms) = trial.ms else { continue };
        if best.is_none_or(|(_, so_far)| ms < so_far * (1.0 - LEAST_GAIN)) {
            best = Some((trial.choice, ms));
        }
    }
    best.map_or(PrecomposeChoice::Off, |(choice, _)| choice)
}

impl Trial {
    /// Whether the logits are near enough to be kept; not a number is not.
    fn is_near(&self) -> bool {
        self.nmse <= MAX_NMSE
    }
}

/// A trial of several choices.
struct Lab<'a> {
    model: &'a GpuModel,
    trial: TokenTrial,
}

impl<'a> Lab<'a> {
    async fn new(model: &'a GpuModel) -> Result<Self, GpuError> {
        let trial = TokenTrial::new(model, &model.gpu, ROWS).await?;
        Ok(Self { model, trial })
    }

    async fn run(self, candidates: &[PrecomposeChoice]) -> Result<Vec<Trial>, GpuError> {
        let expected = {
            let plain = self.step(PrecomposeChoice::Off).await?;
            self.all_logits(&plain).await?
        };
        let (mut steps, mut trials) = (vec![], vec![]);
        for choice in candidates.iter().copied() {
            let step = self.step(choice).await?;
            let nmse = match choice {
                PrecomposeChoice::Off => 0.0,
                _ => nmse(&self.all_logits(&step).await?, &expected),
            };
            steps.push(step);
            let ms = None;
            trials.push(Trial { choice, ms, nmse });
        }
        // One alone has nothing to be compared with.
        if trials.len() > 1 {
            let times = self.times(&steps).await?;
            for (trial, ms) in trials.iter_mut().zip(times) {
                trial.ms = Some(ms);
            }
        }
        Ok(trials)
    }

    /// One token, as `choice` decodes it.
    async fn step(&self, choice: PrecomposeChoice) -> Result<Recording, GpuError> {
        self.trial.record(&self.model.gpu, choice.pairs()).await
    }

    /// The logits after each of the first tokens.
    async fn all_logits(&self, step: &Recording) -> Result<Vec<f32>, GpuError> {
        let (gpu, recipes) = (&self.model.gpu, &self.trial.recipes);
        let mut all = vec![];
        for pos in 0..TOKENS.min(self.trial.n_ctx) {
            step.submit(gpu, &recipes.state(gpu.machine, pos, 1));
            let logits = &self.trial.logits;
            let logits = gpu.read::<f32>(&logits.buffer, logits.offset, logits.size);
            all.extend(logits.await?);
        }
        Ok(all)
    }

    /// Milliseconds per token by each of `steps`.
    async fn times(&self, steps: &[Recording]) -> Result<Vec<f64>, GpuError> {
        let (gpu, recipes) = (&self.model.gpu, &self.trial.recipes);
        let rows = self.trial.n_ctx as u32;
        random::fill_cache(gpu, recipes, u64::from(rows), u64::from(rows)).await?;
        let most = (rows / 2).max(1);
        let (began, mut tokens, mut slowest) = (Instant::now(), 1, 0.0);
        loop {
            for step in steps {
                slowest = f64::max(slowest, self.time(step, tokens).await?);
            }
            if began.elapsed() >= WARM_UP {
                break;
            }
            (tokens, slowest) = ((2 * tokens).min(most), 0.0);
        }
        let turn = BUDGET.as_secs_f64() * 1e3 / (ROUNDS[0] * steps.len()) as f64;
        let in_turn = turn / slowest.max(1e-6);
        let tokens = (in_turn as u32).clamp(1, most);
        let rounds = ((ROUNDS[0] as f64 * in_turn) as usize).clamp(ROUNDS[1], ROUNDS[0]);
        let mut times = vec![vec![]; steps.len()];
        // Interleaved, so that none has the higher clocks; each is first as often as the others.
        for turn in (0..rounds).flat_map(|round| (0..steps.len()).map(move |i| i + round)) {
            let i = turn % steps.len();
            times[i].push(self.time(&steps[i], tokens).await?);
        }
        let median = |mut ms: Vec<f64>| {
            ms.sort_by(f64::total_cmp);
            ms[ms.len() / 2]
        };
        Ok(times.into_iter().map(median).collect())
    }

    /// Milliseconds of each of `tokens` steps, submitted one after the other.
    async fn time(&self, step: &Recording, tokens: u32) -> Result<f64, GpuError> {
        let (gpu, first) = (&self.model.gpu, self.trial.middle());
        let began = Instant::now();
        for pos in first..first + tokens as usize {
            step.submit(gpu, &self.trial.recipes.state(gpu.machine, pos, 1));
        }
        gpu.done().await?;
        Ok(began.elapsed().as_secs_f64() * 1e3 / f64::from(tokens))
    }
}

fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let (mut error, mut size) = (0.0, 0.0);
    for (a, b) in found.iter().zip(expected) {
        error += f64::from(a - b).powi(2);
        size += f64::from(*b).powi(2);
    }
    if error == 0.0 { 0.0 } else { error / size }
}

#[cfg(test)]
mod tests {
    use super::PrecomposeChoice::{Auto, Both, Off, Qk, Vo};
    use super::*;
    use crate::engine::ModelSource;
    use crate::gpu::GpuOptions;
    use crate::gpu::wait::Wait;
    use crate::models;

    fn trial(choice: PrecomposeChoice, ms: f64, nmse: f64) -> Trial {
        Trial {
            choice,
            ms: Some(ms),
            nmse,
        }
    }

    #[test]
    fn choices_are_read_by_name_and_others_refused() {
        for choice in PrecomposeChoice::ALL {
            assert_eq!(choice.name().parse(), Ok(choice));
        }
        for choice in PrecomposeChoice::CANDIDATES {
            assert_eq!(PrecomposeChoice::of(choice.pairs()), choice);
        }
        let error = "always".parse::<PrecomposeChoice>().unwrap_err();
        assert!(error.contains("both or off"), "{error}");
    }

    #[test]
    fn the_fastest_is_kept_where_it_is_worth_its_memory_and_right() {
        let times = |ms: [f64; 4], nmse: [f64; 4]| {
            let trials: Vec<_> = (0..ms.len())
                .map(|i| trial(PrecomposeChoice::CANDIDATES[i], ms[i], nmse[i]))
                .collect();
            fastest(&trials)
        };
        let near = [0.0, 1e-5, 1e-5, 1e-5];
        assert_eq!(times([2.0, 1.8, 1.9, 1.7], near), Both);
        assert_eq!(times([2.0, 1.99, 1.99, 1.985], near), Off);
        assert_eq!(times([2.0, 1.8, 1.79, 1.85], near), Qk);
        assert_eq!(times([2.0, 1.8, 1.5, 1.4], [0.0, 1e-5, 6e-3, f64::NAN]), Qk);
        assert_eq!(fastest(&[]), Off);
    }

    #[test]
    fn the_line_tells_the_choice_its_memory_error_and_times() {
        let told = Precomposed {
            kept: Qk,
            bytes: 3 << 19,
            trials: vec![
                trial(Off, 1.25, 0.0),
                trial(Qk, 1.1, 2.3e-5),
                trial(Vo, 0.9, 0.02),
            ],
            left_out: vec!["too large".to_owned()],
        };
        assert_eq!(
            told.to_string(),
            "precompose: qk, 1.5 MiB more, NMSE of the logits 2.3e-5; ms per token: off 1.250, qk 1.100, \
             vo 0.900 (not kept: NMSE 2.0e-2); left out: too large"
        );
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn products_that_do_not_fit_are_refused_before_loading() {
        let gguf = Arc::new(ModelSource::Embedded.open().unwrap());
        let model = models::load(Arc::clone(&gguf)).unwrap();
        let Ok(gpu) = Gpu::open(&GpuOptions::default()).wait() else {
            return;
        };
        let plan = MemoryPlan::new(&gpu, &*model, 100, None).unwrap();
        let with = |choice: PrecomposeChoice| plan.total() + choice.bytes(&*model);
        assert_eq!(with(Off), plan.total());
        let load = |choice, memory| {
            let options = GpuOptions {
                max_memory: Some(memory),
                ..Default::default()
            };
            let gpu = Arc::new(Gpu::open(&options).wait().unwrap());
            let mut uploaded = 0;
            let told = &mut |done, _| uploaded = done;
            let result =
                GpuModel::load_precomposed(Arc::clone(&gpu), Arc::clone(&model), choice, 100, told)
                    .wait();
            (result, uploaded, gpu)
        };
        let (refused, uploaded, _) = load(Both, with(Both) - 1);
        let error = refused.map(|_| ()).unwrap_err();
        assert!(matches!(
            error,
            GpuError::PrecomposeTooLarge { choice: "both", .. }
        ));
        assert!(error.to_string().contains("--precompose off"), "{error}");
        assert_eq!(uploaded, 0);
        let (loaded, _, gpu) = load(Both, with(Both));
        let told = loaded.unwrap().1.unwrap();
        assert_eq!(told.bytes, Both.bytes(&*model));
        let near = gpu.allocated() as f64 / (plan.weights + told.bytes) as f64;
        assert!((0.98..1.02).contains(&near), "{near}");
        // `auto` takes what fits, and frees what it does not keep.
        let smaller = with(Qk).min(with(Vo));
        let (loaded, _, gpu) = load(Auto, smaller);
        let told = loaded.unwrap().1.unwrap();
        assert!(
            told.left_out.iter().any(|reason| reason.contains("both")),
            "{told}"
        );
        assert_eq!((told.trials.len(), told.left_out.len()), (2, 1), "{told}");
        let near = gpu.allocated() as f64 / (plan.weights + told.bytes) as f64;
        assert!((0.98..1.02).contains(&near), "{near}");
    }
}
