//! Which division of each product is fastest on a device, measured in the whole step of a model.
//!
//! A product is fast or slow beside its neighbours, whose caches and launches it shares, so every candidate is timed as part of
//! a whole decoded token. Candidates run in turn, so that clocks that rise or fall meet all of them; the slower half leaves
//! after each stage; and a candidate must win by more than the noise to replace the default.

mod found;
mod numbers;
mod report;

pub use found::{Found, FoundNumber, Joining, Repeating, Tuned};
pub use report::markdown;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::{BenchError, Source};
use crate::engine::backend::Backend;
use crate::engine::gpu::{GpuBackend, GpuModel};
use crate::engine::{DeviceChoice, Partly, TierTrial, residence};
use crate::gpu::call::Call;
use crate::gpu::clock::Clock;
use crate::gpu::geometry::{Geometry, Made, Site};
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuError, GpuOptions, Step};
use crate::kernels::CacheType;
use crate::model::NextnSource;

/// Cache rows that the measured tokens attend to.
const DEPTH: usize = 512;
/// Cache rows where the slices of the attention are joined in the two possible ways.
const DEPTHS: [usize; 7] = [64, 256, 512, 1024, 2048, 4096, 8192];
/// Rounds of each stage of a product's candidates; after each, the slower half leaves.
const STAGES: [usize; 4] = [3, 4, 6, ROUNDS];
/// Rounds in which steps are compared.
const ROUNDS: usize = 12;
/// Seconds that the first candidates are taken to cost.
const FIRST_COST: f64 = 0.1;
/// Candidates of a product at least, with the default.
const LEAST: usize = 3;
/// The least gain of a candidate over the default, relative to the whole step: medians of equal steps differ by as much.
const MARGIN: f64 = 0.002;
/// Replays before the first measurement: GPUs raise their clocks only under load.
const WARM_UP: Duration = Duration::from_millis(500);

/// The options of tuning.
#[derive(Debug, Clone)]
pub struct TuneOptions {
    /// The model whose products are measured.
    pub source: Source,
    /// The GPU and its kernels.
    pub gpu: GpuOptions,
    /// The type of the cache that the measured tokens have.
    pub cache_type: CacheType,
    /// Whether to load a model that has no room in memory, as far as anything tells.
    pub force: bool,
    /// Time to measure in; products whose turn did not come keep their default.
    pub time: Duration,
}

/// Why nothing was tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The CPU reference has no choices.
    #[error("the CPU reference has nothing to tune: name a GPU with --device")]
    OnCpu,
    /// The kernels of the tier are made in one way only.
    #[error("the kernels of tier '{tier}' have no choices to measure{}", nothing_else(*.asked))]
    NothingToTune {
        /// The tier.
        tier: &'static str,
        /// Whether the tier was asked for.
        asked: bool,
    },
    /// The model.
    #[error(transparent)]
    Model(#[from] BenchError),
    /// The device.
    #[error("{}", .0.of_gpus_alone())]
    Gpu(#[from] GpuError),
}

/// The advice where a tier has nothing to tune.
fn nothing_else(asked: bool) -> &'static str {
    match asked {
        true => ": leave out --tier",
        false => ", and the device runs no other; choose another with --device",
    }
}

/// An event while tuning.
pub enum Event<'a> {
    /// The device has no room for all experts of the model.
    Partly(&'a Partly),
    /// Weights are on their way to the device: bytes done, bytes in all.
    Loading(u64, u64),
    /// Loading has ended, and what was measured to choose the tier.
    Loaded(Option<&'a TierTrial>),
    /// A product's candidates are measured: its number from 0, of how many, and their number.
    Measuring(usize, usize, &'a Site, usize),
}

/// Receives what is told; a break ends the measuring, and what is found so far counts.
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + Send + 'a;

/// Measures the candidates of every product of a decoded token.
pub fn run(options: &TuneOptions, on_event: &mut OnEvent<'_>) -> Result<Tuned, TuneError> {
    if options.gpu.device == DeviceChoice::Cpu {
        return Err(TuneError::OnCpu);
    }
    let (bench, mut flow) = Bench::open(options, on_event)?;
    let gpu = &bench.gpu;
    let default = Recording::new(gpu, &bench.backend.token_step()?).wait()?;
    bench.warm_up(&default)?;

    let began = Instant::now();
    let rest = || options.time.saturating_sub(began.elapsed());
    // First: it decides which products there are.
    let repeating = bench.repeating()?;
    let (found, left) = bench.products(&rest, &mut flow, on_event)?;
    let joining = if flow.is_continue() && !rest().is_zero() {
        bench.joining()?
    } else {
        vec![]
    };
    let mut made = gpu.choices.made();
    let merge_up_to = merge_up_to(&joining);
    let name = gpu.activation().name().to_owned();
    made.merge_up_to
        .extend(merge_up_to.map(|most| (name, most)));
    gpu.choices.replace(made.clone());
    let numbers = match flow.is_continue() {
        true => bench.numbers(rest())?,
        false => vec![],
    };
    let changed = numbers.iter().filter(|n| n.chosen != n.default);
    made.numbers = changed.map(|n| (n.name.clone(), n.chosen)).collect();
    let [before_us, after_us] = bench.before_and_after(&default, &made)?;
    Ok(Tuned {
        gpu_info: gpu.info.name.clone(),
        model: options.source.name(),
        cache_type: options.cache_type.name(),
        tier: gpu.tier.name(),
        clock: Clock::of(gpu).name(),
        before_us,
        after_us,
        found,
        left,
        repeating,
        numbers,
        merge_up_to,
        joining,
        faster: after_us < before_us * (1.0 - MARGIN),
        made,
        adapter: gpu.info.clone(),
    })
}

/// The products of a step and how often each is there, what reads most first: there is most to win.
fn sites(calls: &[Call]) -> Vec<(Site, u32)> {
    let mut times = BTreeMap::new();
    for site in calls.iter().filter_map(|call| call.site.as_ref()) {
        times.entry(site.key()).or_insert((site, 0)).1 += 1;
    }
    let mut sites: Vec<_> = times.into_values().map(|(s, n)| (s.clone(), n)).collect();
    sites.sort_by_key(|(site, times)| {
        Reverse(u64::from(site.rows) * u64::from(site.units) * u64::from(*times))
    });
    sites
}

/// The default and those candidates that are most like it, `room` and at least three in all, the default first.
fn nearest(default: Geometry, mut candidates: Vec<Geometry>, room: usize) -> Vec<Geometry> {
    let distance = |g: &Geometry| {
        let doublings = |a: u32, b: u32| a.ilog2().abs_diff(b.ilog2());
        doublings(g.lanes, default.lanes)
            + doublings(g.tile, default.tile)
            + doublings(g.at_once, default.at_once)
            + u32::from(g.unroll != default.unroll)
    };
    candidates.retain(|g| *g != default);
    candidates.sort_by_key(distance);
    candidates.truncate(room.max(LEAST) - 1);
    candidates.insert(0, default);
    candidates
}

/// The slices up to which `attn_v_b` joins them itself: as many as it was faster with than apart, at every smaller depth too;
/// `None` where nothing was measured.
fn merge_up_to(joining: &[Joining]) -> Option<u32> {
    if joining.is_empty() {
        return None;
    }
    let faster = joining.iter().take_while(|j| j.inside_us <= j.apart_us);
    Some(faster.last().map_or(0, |j| j.slices))
}

/// The bench for candidates: a model on a device, with a filled cache.
struct Bench {
    gpu: Arc<Gpu>,
    backend: GpuBackend,
    /// Rows of the cache, and how many of them the measured tokens attend to.
    n_ctx: usize,
    depth: usize,
}

/// A geometry, its step and the times of that.
struct Candidate {
    geometry: Geometry,
    step: Recording,
    times: Vec<f64>,
}

impl Bench {
    /// Loads the model, and says whether to go on.
    fn open(
        options: &TuneOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(Self, ControlFlow<()>), TuneError> {
        let model = options
            .source
            .load_with(&NextnSource::None, options.cache_type)?;
        // Measured against the defaults, not against what was kept before.
        let gpu = Arc::new(Gpu::open(&options.gpu).wait()?);
        if !gpu.tier.has_subgroups() {
            let tier = gpu.tier.name();
            let asked = options.gpu.tier.is_some();
            return Err(TuneError::NothingToTune { tier, asked });
        }
        let n_ctx = model
            .config()
            .context_length
            .min(DEPTHS[DEPTHS.len() - 1] + 1);
        let mut flow = ControlFlow::Continue(());
        let told = &mut |partly: &_| flow = on_event(Event::Partly(partly));
        let found = residence(&gpu, &*model, (n_ctx, None), options.force, told);
        let found = found.map_err(BenchError::from);
        let (residence, chunk) = found.map_err(BenchError::of_gpus_alone)?;
        let told = &mut |done, total| {
            if flow.is_continue() {
                flow = on_event(Event::Loading(done, total));
            }
        };
        let weights =
            Arc::new(GpuModel::load_for(gpu, Arc::clone(&model), residence, 1, told).wait()?);
        // In the tier that loading settled for.
        let gpu = Arc::clone(&weights.gpu);
        flow = on_event(Event::Loaded(weights.tier_trial.as_ref()));
        let mut backend = GpuBackend::with_chunk(weights, n_ctx, chunk).wait()?;
        let filled = backend.fill_cache(n_ctx).wait().map_err(BenchError::from);
        filled.map_err(BenchError::of_gpus_alone)?;
        let bench = Self {
            gpu,
            backend,
            n_ctx,
            depth: DEPTH.min(n_ctx - 1),
        };
        Ok((bench, flow))
    }

    fn warm_up(&self, step: &Recording) -> Result<(), GpuError> {
        let began = Instant::now();
        while began.elapsed() < WARM_UP {
            self.backend.time_in_turn(&[step], self.depth, 8)?;
        }
        Ok(())
    }

    /// Measures a token with work repeated and with work done once, and chooses.
    fn repeating(&self) -> Result<Repeating, GpuError> {
        let made = self.gpu.choices.made();
        let name = self.gpu.activation().name().to_owned();
        let choose = |repeats: Option<bool>| {
            let mut made = made.clone();
            let repeats = repeats.map(|repeats| (name.clone(), repeats));
            made.repeats_work.extend(repeats);
            self.gpu.choices.replace(made);
        };
        let record = |repeats: Option<bool>| {
            choose(repeats);
            Recording::new(&self.gpu, &self.backend.token_step()?).wait()
        };
        let [default, repeated, once] = [record(None)?, record(Some(true))?, record(Some(false))?];
        let steps = [&default, &repeated, &once];
        let times = self.medians(&steps, self.depth, ROUNDS)?;
        let [default_us, repeated_us, once_us] = [times[0], times[1], times[2]];
        let chosen = (repeated_us.min(once_us) < default_us * (1.0 - MARGIN))
            .then_some(repeated_us < once_us);
        choose(chosen);
        Ok(Repeating {
            repeated_us,
            once_us,
            default_us,
            chosen,
        })
    }

    /// Measures the candidates of each product of a token in what is left of the time, and chooses: what was found, and the products
    /// whose turn did not come.
    fn products(
        &self,
        rest: &dyn Fn() -> Duration,
        flow: &mut ControlFlow<()>,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(Vec<Found>, Vec<String>), GpuError> {
        let sites = sites(&self.backend.token_step()?.calls);
        let (mut found, mut left) = (vec![], vec![]);
        // The cost of a candidate, most of it for compiling, as known from those before.
        let mut cost = FIRST_COST;
        for (i, (site, calls)) in sites.iter().enumerate() {
            let rest = rest();
            if flow.is_break() || rest.is_zero() {
                left.push(site.key());
                continue;
            }
            let Some(default) = self.gpu.geometry(site) else {
                continue;
            };
            // A fair share of the time for each of those that remain.
            let share = rest.div_f64((sites.len() - i) as f64);
            let room = (share.as_secs_f64() / cost) as usize;
            let candidates = nearest(default, site.candidates(self.gpu.machine), room);
            *flow = on_event(Event::Measuring(i, sites.len(), site, candidates.len()));
            let began = Instant::now();
            let one = self.product(site, *calls, &candidates)?;
            cost = began.elapsed().as_secs_f64() / candidates.len() as f64;
            if let Some(one) = one {
                if one.chosen != one.default {
                    self.gpu.choices.set(site, one.chosen);
                }
                found.push(one);
            }
        }
        Ok((found, left))
    }

    /// Microseconds of a token with the defaults and with all choices, in turn.
    fn before_and_after(&self, default: &Recording, made: &Made) -> Result<[f64; 2], GpuError> {
        let tuned = self.gpu.machine.tuned.with(&made.numbers);
        let target = numbers::with(&self.gpu, tuned.expect("numbers that were measured"));
        let tuned = Recording::new(&self.gpu, &self.backend.token_step_for(&target)?).wait()?;
        let times = self.medians(&[default, &tuned], self.depth, 2 * ROUNDS)?;
        Ok([times[0], times[1]])
    }

    /// Median microseconds of each of `steps`, replayed in turn after `depth` cache rows.
    fn medians(
        &self,
        steps: &[&Recording],
        depth: usize,
        rounds: usize,
    ) -> Result<Vec<f64>, GpuError> {
        let times = self.backend.time_in_turn(steps, depth, rounds)?;
        Ok(times.iter().map(|times| median(times)).collect())
    }

    /// Measures both ways of joining the attention's slices at every depth that the cache has.
    fn joining(&self) -> Result<Vec<Joining>, GpuError> {
        let made = self.gpu.choices.made();
        let record = |merge_up_to: u32| {
            let mut made = made.clone();
            let name = self.gpu.activation().name().to_owned();
            made.merge_up_to.insert(name, merge_up_to);
            self.gpu.choices.replace(made);
            Recording::new(&self.gpu, &self.backend.token_step()?).wait()
        };
        let (inside, apart) = (record(u32::MAX)?, record(0)?);
        self.gpu.choices.replace(made.clone());
        let depths = DEPTHS.into_iter().filter(|depth| *depth < self.n_ctx);
        depths
            .map(|depth| {
                let times = self.medians(&[&inside, &apart], depth, ROUNDS)?;
                Ok(Joining {
                    depth,
                    slices: self.backend.slices(depth),
                    inside_us: times[0],
                    apart_us: times[1],
                })
            })
            .collect()
    }

    /// Measures a product's candidates, the first of which is the default; `None` where that is the only one.
    fn product(
        &self,
        site: &Site,
        calls: u32,
        candidates: &[Geometry],
    ) -> Result<Option<Found>, GpuError> {
        let [default, _, ..] = *candidates else {
            return Ok(None);
        };
        let mut field = self.record(site, candidates)?;
        self.gpu.choices.set(site, default);
        for rounds in STAGES {
            let steps: Vec<_> = field.iter().map(|c| &c.step).collect();
            let times = self.backend.time_in_turn(&steps, self.depth, rounds)?;
            for (candidate, times) in field.iter_mut().zip(times) {
                candidate.times.extend(times);
            }
            field.sort_by(|a, b| median(&a.times).total_cmp(&median(&b.times)));
            let keep = field.len().div_ceil(2).max(2);
            // The default stays: the others are held against it.
            let mut place = 0..;
            field.retain(|c| place.next().is_some_and(|i| i < keep) || c.geometry == default);
        }
        let time_of = |geometry: Geometry| {
            let candidate = field.iter().find(|c| c.geometry == geometry);
            candidate.map_or(f64::INFINITY, |c| median(&c.times))
        };
        let (default_us, best) = (time_of(default), field[0].geometry);
        let chosen = if time_of(best) < default_us * (1.0 - MARGIN) {
            best
        } else {
            default
        };
        Ok(Some(Found {
            site: site.key(),
            calls,
            candidates: candidates.len(),
            default,
            chosen,
            default_us,
            chosen_us: time_of(chosen),
        }))
    }

    /// A step for each geometry of a product; all pipelines are compiled in parallel.
    fn record(&self, site: &Site, geometries: &[Geometry]) -> Result<Vec<Candidate>, GpuError> {
        let step = |geometry: &Geometry| -> Result<Step, GpuError> {
            self.gpu.choices.set(site, *geometry);
            self.backend.token_step()
        };
        let all = geometries.iter().map(step).collect::<Result<Vec<_>, _>>()?;
        let resolved = all.iter().map(Step::resolve);
        let resolved = resolved.collect::<Result<Vec<_>, _>>()?.concat();
        let specs: Vec<_> = resolved.iter().map(|call| &call.spec).collect();
        self.gpu.pipelines(&specs).wait()?;
        let with_times = |(step, geometry): (&Step, &Geometry)| {
            Ok(Candidate {
                geometry: *geometry,
                step: Recording::new(&self.gpu, step).wait()?,
                times: vec![],
            })
        };
        all.iter().zip(geometries).map(with_times).collect()
    }
}

/// The median; of an even number the lower of the middle two; infinite of none.
fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => f64::INFINITY,
        n => times[(n - 1) / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::stamps::lies::{self, Lie};

    fn at(slices: u32, inside_us: f64, apart_us: f64) -> Joining {
        Joining {
            depth: 16 * slices as usize,
            slices,
            inside_us,
            apart_us,
        }
    }

    #[test]
    fn slices_are_joined_inside_up_to_the_first_loss() {
        assert_eq!(merge_up_to(&[]), None);
        assert_eq!(merge_up_to(&[at(4, 2.0, 1.0), at(8, 1.0, 2.0)]), Some(0));
        let some = [at(4, 1.0, 2.0), at(8, 1.0, 1.0), at(16, 2.0, 1.0)];
        assert_eq!(merge_up_to(&some), Some(8));
    }

    #[test]
    fn the_default_comes_first_then_what_is_like_it() {
        let of = |lanes, tile| Geometry {
            lanes,
            tile,
            at_once: 1,
            unroll: 1,
        };
        let all = vec![of(2, 256), of(8, 16), of(4, 16), of(8, 64), of(8, 32)];
        let found = nearest(of(8, 16), all.clone(), 4);
        assert_eq!(found[0], of(8, 16));
        assert_eq!(found.len(), 4);
        assert!(!found.contains(&of(2, 256)), "the farthest is left out");
        assert_eq!(nearest(of(8, 16), all, 0).len(), LEAST);
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn where_the_clock_lies_the_hosts_tells_times() {
        let options = TuneOptions {
            source: "tiny:q4_0".parse().expect("a synthetic model"),
            gpu: GpuOptions::default(),
            cache_type: CacheType::F16,
            force: false,
            time: Duration::from_millis(300),
        };
        let told = &mut |_: Event<'_>| ControlFlow::Continue(());
        let tuned = match lies::with(Lie::Zeros, || run(&options, told)) {
            Err(TuneError::NothingToTune { tier, .. }) => {
                eprintln!("skipped: tier {tier} has nothing to tune");
                return;
            }
            tuned => tuned.unwrap_or_else(|e| panic!("{e}")),
        };
        assert_eq!(tuned.clock, "host");
        let times = [tuned.before_us, tuned.after_us, tuned.repeating.once_us];
        assert!(times.iter().all(|us| *us > 0.0), "{times:?}");
    }

    #[test]
    fn the_median_is_one_of_the_times() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.0);
        assert_eq!(median(&[]), f64::INFINITY);
    }
}
