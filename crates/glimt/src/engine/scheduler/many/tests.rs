//! Protects who shares a GPU: the answer of each is what it is alone, whoever comes, goes or has to wait beside it, and nothing is left behind.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::*;
use crate::engine::Products;
use crate::engine::backend::BackendError;
use crate::engine::chooser::{Chain, ChainSettings, Chooser, ChooserError};
use crate::engine::cpu::CpuBackend;
use crate::engine::draft::{DraftOptions, DraftSource};
use crate::engine::scheduler::fair::Owner;
use crate::engine::scheduler::request::{Choice, Event};
use crate::engine::testing::{VOCAB, small_model};
use crate::engine::{
    Biases, DeviceChoice, EngineOptions, GpuOptions, Opened, Sampling, Serving, Tier,
    backend::Backend,
};
use crate::gguf::Gguf;
use crate::gpu::GpuError;
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::testing::{Rng, rounds, some};

mod cpu;
mod drafted;
mod fair;
mod forced;
mod held;
mod long;
mod slots;
mod warm;

const N_CTX: usize = 256;

/// A small model for four at once, on the CPU without a tier; `None` where the adapter cannot run the tier.
fn engine(tier: impl Into<Option<Tier>>, cache_tokens: usize) -> Option<Engine> {
    engine_of(small_model(), DraftSource::Auto, tier.into(), cache_tokens)
}

/// Such an engine with another model, for drafts of a source.
fn engine_of(
    model: Gguf,
    source: DraftSource,
    tier: Option<Tier>,
    cache_tokens: usize,
) -> Option<Engine> {
    let options = EngineOptions {
        gpu: GpuOptions {
            device: match tier {
                Some(_) => DeviceChoice::Index(0),
                None => DeviceChoice::Cpu,
            },
            tier,
            ..GpuOptions::default()
        },
        ctx: Some(N_CTX),
        draft: DraftOptions { source, most: None },
        serving: Some(Serving {
            parallel: Some(4),
            cache_tokens: Some(cache_tokens),
        }),
        ..EngineOptions::default()
    };
    let opened = match complete(Opened::of_gguf(model, &options)) {
        Err(EngineError::Gpu(GpuError::TierUnsupported { .. })) => return None,
        opened => opened.expect("these tests need a GPU adapter"),
    };
    Some(Engine::load(opened, &mut |_| {}).wait().expect("it fits"))
}

fn many(engine: &Engine) -> Many {
    complete(Many::new(engine)).expect("there is memory")
}

/// A request for tests, with the steps between which it lives.
#[derive(Debug, Clone)]
struct Job {
    prompt: Vec<u32>,
    sampling: Sampling,
    on_host: bool,
    /// The biases of logits; minus infinity excludes a token.
    biases: Vec<(u32, f32)>,
    limit: usize,
    /// The number of the step before which it comes.
    comes: usize,
    /// The number of tokens after which it goes away.
    goes: Option<usize>,
    /// The chooser that decides instead of the rest.
    led: Option<forced::Led>,
    owner: Owner,
    /// The drafts that it has.
    drafts: Option<drafted::Guessed>,
}

impl Job {
    fn new(prompt: Vec<u32>, limit: usize) -> Self {
        Self {
            prompt,
            sampling: Sampling::GREEDY,
            on_host: false,
            biases: vec![],
            limit,
            comes: 0,
            goes: None,
            led: None,
            owner: Owner::default(),
            drafts: None,
        }
    }

    /// The job with some tokens excluded.
    fn without(self, tokens: &[u32]) -> Self {
        let excluded = |token: &u32| (*token, f32::NEG_INFINITY);
        let biases = tokens.iter().map(excluded).collect();
        Self { biases, ..self }
    }

    fn request(&self) -> Request {
        let settings = ChainSettings {
            logit_bias: self.biases.clone().into(),
            ..ChainSettings::new(self.sampling)
        };
        Request {
            prompt: self.prompt.clone(),
            choice: match &self.led {
                Some(led) => Choice::Host(Box::new(led.clone())),
                None if self.on_host => {
                    let chain = Box::new(Chain::new(settings));
                    match &self.drafts {
                        Some(_) => Choice::Host(drafted::moody(chain)),
                        None => Choice::Host(chain),
                    }
                }
                None => {
                    let biases = Biases::new(&self.biases).expect("not many");
                    Choice::Device(self.sampling, biases)
                }
            },
            limit: self.limit,
            owner: self.owner,
            slot: None,
            drafts: DraftOptions::OFF,
            expected: vec![],
        }
    }
}

/// A prompt of `length` tokens, with a beginning that others have as well.
fn prompt(rng: &mut Rng, length: usize) -> Vec<u32> {
    let common = rng.below(length + 1);
    let kind = rng.below(2) as u32;
    let token = |i: usize| (i as u32 * 37 + kind * 911) % VOCAB;
    let own = (common..length).map(|_| rng.below(VOCAB as usize) as u32);
    let own: Vec<u32> = own.collect();
    (0..common).map(token).chain(own).collect()
}

fn random_job(rng: &mut Rng, most: usize) -> Job {
    let length = 1 + rng.below(most);
    let sampling = match rng.below(3) {
        0 => Sampling {
            temperature: 0.8,
            top_k: 40,
            repeat_penalty: 1.1,
            seed: rng.bits(),
            ..Sampling::GREEDY
        },
        _ => Sampling::GREEDY,
    };
    Job {
        sampling,
        on_host: rng.below(4) == 0,
        limit: 1 + rng.below(30),
        comes: rng.below(12),
        ..Job::new(prompt(rng, length), 0)
    }
}

/// A job with biases that change its answer: some of its tokens are excluded, others become likely.
fn biased(rng: &mut Rng, many: &mut Many, job: Job) -> Job {
    many.pages.forget();
    let lonely = Job {
        comes: 0,
        ..job.clone()
    };
    let text = text(&run(many, &[lonely])[0]);
    let some = text.iter().step_by(2).take(20).copied();
    let mut job = job.without(&some.collect::<Vec<_>>());
    for _ in 0..rng.below(40) {
        let (token, bias) = (rng.below(VOCAB as usize) as u32, 3.0 * rng.normals(1)[0]);
        job.biases.push((token, bias));
    }
    job
}

/// Runs all jobs and returns the events of each.
fn run(many: &mut Many, jobs: &[Job]) -> Vec<Vec<Event>> {
    let mut found: HashMap<RequestId, Vec<Event>> = HashMap::new();
    let mut goes = HashMap::new();
    let mut step = 0;
    let mut left: Vec<(usize, &Job)> = jobs.iter().enumerate().collect();
    while !left.is_empty() || !many.is_idle() {
        left.retain(|(which, job)| {
            let comes = job.comes <= step;
            if comes {
                let id = RequestId(*which as u64);
                many.submit(id, job.request()).expect("it fits");
                if let (Some(drafts), Some(last)) = (&job.drafts, many.waiting.back_mut()) {
                    last.drafter = Some(drafts.drafter());
                }
                goes.insert(id, job.goes);
            }
            !comes
        });
        // Some go away between two steps, others when they are told something.
        for (id, goes) in &goes {
            let told = found.get(id).map_or(0, Vec::len);
            if goes.is_some_and(|goes| told >= goes && id.0 % 2 == 0) {
                many.cancel(*id);
            }
        }
        let told = &mut |id, event| {
            let events = found.entry(id).or_default();
            events.push(event);
            match goes[&id].is_some_and(|goes| events.len() >= goes && id.0 % 2 == 1) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        complete(many.step(told)).expect("the device works");
        check(many);
        step += 1;
        assert!(step < 20_000, "it goes on: {:?}", many.counts());
    }
    assert_eq!(many.pages.held(), 0, "all pages are free");
    assert_eq!(many.seats.len(), many.slots());
    let ids = (0..jobs.len()).map(|which| RequestId(which as u64));
    ids.map(|id| found.remove(&id).unwrap_or_default())
        .collect()
}

/// No page is in the hands of two that may write to it, and steps with drafts are those that leave each row what it is alone.
fn check(many: &Many) {
    for flight in &many.flights {
        if flight.draws.iter().any(|draw| draw.drafts.count() > 0) {
            assert!(flight.filled.tokens <= many.batch.as_one());
            assert_eq!(flight.filled.prompts, 0, "no prompt is beside drafts");
        }
    }
    let mut writers = HashMap::new();
    for sequence in &many.running {
        for page in &sequence.table.pages[sequence.landed / ROWS..] {
            let other = writers.insert(*page, sequence.run);
            assert_eq!(other, None, "page {page}");
        }
    }
    for page in many.leaving.iter().flat_map(|(_, pages)| pages) {
        assert!(!writers.contains_key(page), "page {page} is let go");
    }
}

fn text(events: &[Event]) -> Vec<u32> {
    let mut cached_at = 0;
    let mut tokens = vec![];
    for (i, event) in events.iter().enumerate() {
        match event {
            Event::Prompt { done, cached, .. } => {
                assert!(tokens.is_empty() && *done >= cached_at && (i > 0 || done == cached));
                cached_at = *done + 1;
            }
            Event::Token(token) => tokens.push(*token),
            Event::Drafted {
                drafted, accepted, ..
            } => assert!(accepted <= drafted),
            Event::Ended(stats) => {
                assert_eq!(i + 1, events.len(), "nothing follows");
                assert_eq!(stats.generated, tokens.len());
            }
            Event::Failed(error) => panic!("{error}"),
        }
    }
    tokens
}

/// Asserts that greedy texts part only where the two tokens are as good as equal: by less than the error of the device's logits.
fn assert_near(engine: &Engine, job: &Job, common: &[u32], pair: [u32; 2]) {
    let tokens = [&job.prompt[..], common].concat();
    let mut rows = vec![];
    let keep = &mut |_: usize, row: &[f32]| {
        rows.push(row.to_vec());
        ControlFlow::Continue(())
    };
    let mut session = engine.session().wait().expect("there is memory");
    let last = tokens.len() - 1;
    session.logits(&tokens, last, keep).wait().expect("it fits");
    let mut cpu =
        CpuBackend::new(Arc::clone(&engine.model), Products::Exact, N_CTX).expect("it fits");
    cpu.prefill(&tokens[..last.max(1)], 0)
        .wait()
        .expect("it fits");
    let on_row = &mut |row: usize, logits: &[f32]| keep(row, logits);
    cpu.logits(&tokens[last..], last, on_row)
        .wait()
        .expect("it fits");
    let [gpu, cpu] = &rows[..] else {
        panic!("{} rows", rows.len());
    };
    let error = gpu.iter().zip(cpu).map(|(a, b)| (a - b).abs());
    let error = error.fold(0.0, f32::max);
    let biased = |token: u32| {
        let own = job.biases.iter().filter(|(other, _)| *other == token);
        cpu[token as usize] + own.map(|(_, bias)| bias).sum::<f32>()
    };
    let margin = (biased(pair[0]) - biased(pair[1])).abs();
    assert!(
        margin <= 4.0 * error,
        "after {} tokens {pair:?}: margin {margin:.1e}, error {error:.1e}",
        tokens.len()
    );
}

/// Asserts that the answers of `jobs` at once are those of each alone, and tells how many were taken up in all.
fn assert_alone(engine: &Engine, many: &mut Many, jobs: &[Job]) -> u64 {
    many.pages.forget();
    let before = many.runs;
    let found = run(many, jobs);
    let runs = many.runs - before;
    let (mut parted, mut near, mut tokens) = (0, 0, 0);
    for (job, found) in jobs.iter().zip(&found) {
        many.pages.forget();
        let job = Job {
            comes: 0,
            ..job.clone()
        };
        let alone = run(many, std::slice::from_ref(&job)).remove(0);
        assert!(matches!(found.last(), Some(Event::Ended(_))), "{found:?}");
        let (found, alone) = (text(found), text(&alone));
        let chosen = |token: &u32| job.biases.contains(&(*token, f32::NEG_INFINITY));
        assert!(!found.iter().any(chosen), "{found:?} of {job:?}");
        let mut pairs = vec![(found, alone.clone())];
        if !job.on_host && !job.biases.is_empty() {
            many.pages.forget();
            let on_host = Job {
                on_host: true,
                ..job.clone()
            };
            let by_host = text(&run(many, &[on_host])[0]);
            pairs.push((by_host, alone));
        }
        for (found, alone) in pairs {
            tokens += alone.len();
            if found == alone {
                continue;
            }
            let pairs = found.iter().zip(&alone);
            let common = pairs.take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (found.get(common), alone.get(common))
                && job.sampling == Sampling::GREEDY
            {
                assert_near(engine, &job, &alone[..common], [*a, *b]);
                near += 1;
            } else {
                eprintln!("{job:?}: {found:?} instead of {alone:?}");
                parted += 1;
            }
        }
    }
    // This model gives many tokens nearly the same probability. So rounding decides some draws, and no reference tells which.
    assert!(parted <= 1 + tokens / 50, "{parted} of {}", jobs.len());
    assert!(near <= 1 + jobs.len() / 3, "{near} of {}", jobs.len());
    runs
}

/// Random mixes in each tier, with a cache for all or with one so small that sequences wait and are taken back.
fn assert_mixes(tiers: &[Tier], mixes: usize) {
    let mut rng = Rng::fresh();
    for tier in tiers {
        for rows in some(&[4 * N_CTX, 3 * ROWS], 1) {
            let Some(engine) = engine(*tier, rows) else {
                continue;
            };
            let mut many = many(&engine);
            let mut taken_back = 0;
            for _ in 0..mixes {
                let count = 2 + rng.below(4);
                let mut jobs: Vec<Job> = (0..count).map(|_| random_job(&mut rng, 150)).collect();
                for job in jobs.iter_mut().step_by(2) {
                    *job = biased(&mut rng, &mut many, job.clone());
                }
                taken_back += assert_alone(&engine, &mut many, &jobs) - count as u64;
            }
            let small = rows < 4 * N_CTX;
            assert!(small || taken_back == 0, "{taken_back} were taken back");
            if small {
                // Two that both grow out of the cache, since they cannot end. The youngest is drawn.
                let stops = engine.tokenizer().stop_tokens();
                let endless = |first, on_host| Job {
                    on_host,
                    ..Job::new(vec![first; 50], 30).without(stops)
                };
                let drawn = Job {
                    sampling: Sampling {
                        temperature: 1.0,
                        seed: rng.bits(),
                        ..Sampling::GREEDY
                    },
                    ..Job::new(vec![7; 60], 20)
                };
                let runs = assert_alone(
                    &engine,
                    &mut many,
                    &[endless(5, true), endless(6, false), drawn],
                );
                assert!(runs > 3, "nobody was taken back");
            }
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_in_a_mix_are_what_they_are_alone() {
    assert_mixes(&some(&[Tier::Subgroup, Tier::Plain], 1), rounds(1));
}

/// Mixes of which half go away at some time.
#[test]
#[ignore = "long: scripts/test --all"]
fn who_goes_away_leaves_nothing_behind() {
    let Some(engine) = engine(Tier::Subgroup, 5 * ROWS) else {
        return;
    };
    let mut rng = Rng::fresh();
    let mut many = many(&engine);
    for _ in 0..rounds(2) {
        let jobs: Vec<Job> = (0..8)
            .map(|_| {
                let goes = (rng.below(2) == 0).then(|| rng.below(9));
                let job = random_job(&mut rng, 130);
                Job { goes, ..job }
            })
            .collect();
        for (job, events) in jobs.iter().zip(run(&mut many, &jobs)) {
            if job.goes.is_none() {
                assert!(matches!(events.last(), Some(Event::Ended(_))), "{events:?}");
            }
        }
    }
}

/// Rows of a prompt that were there already.
fn cached(events: &[Event]) -> usize {
    match events.first() {
        Some(Event::Prompt { cached, .. }) => *cached,
        other => panic!("{other:?}"),
    }
}

/// Chooses a token, and then fails.
struct Fails(usize);

impl Chooser for Fails {
    fn choose(&mut self, logits: &mut [f32], _: &[u32]) -> Result<u32, ChooserError> {
        assert!(logits.len() > 7, "a whole row");
        self.0 += 1;
        match self.0 {
            1 => Ok(7),
            _ => Err(ChooserError::NothingLeft),
        }
    }
}

#[test]
fn a_chooser_that_fails_ends_its_own_request_alone() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let mut many = many(&engine);
    let job = Job::new(vec![4, 5, 6], 6);
    let on_host = Job {
        on_host: true,
        ..job.clone()
    };
    let expected = text(&run(&mut many, std::slice::from_ref(&job))[0]);
    let mut found: HashMap<RequestId, Vec<Event>> = HashMap::new();
    let failing = Request {
        choice: Choice::Host(Box::new(Fails(0))),
        ..job.request()
    };
    for (id, request) in (0..).zip([job.request(), failing, on_host.request()]) {
        many.submit(RequestId(id), request).expect("it fits");
    }
    while !many.is_idle() {
        let told = &mut |id, event| {
            found.entry(id).or_default().push(event);
            ControlFlow::Continue(())
        };
        complete(many.step(told)).expect("the device works");
    }
    for id in [0, 2] {
        assert_eq!(text(&found[&RequestId(id)]), expected, "request {id}");
    }
    let failed = &found[&RequestId(1)];
    assert!(
        matches!(
            &failed[failed.len() - 2..],
            [
                Event::Token(7),
                Event::Failed(EngineError::Chooser(ChooserError::NothingLeft))
            ]
        ),
        "{failed:?}"
    );
    assert_eq!(many.pages.held(), 0);
}

#[test]
fn logits_that_are_no_numbers_end_their_own_request_alone() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let mut many = many(&engine);
    let long = Job::new((0..ROWS as u32 + 9).collect(), 4);
    let jobs = [Job::new(vec![5, 6], 4), Job::new(vec![7, 8], 4)];
    run(&mut many, std::slice::from_ref(&long));
    assert_eq!(many.pages.known(&long.prompt), 1);
    let alone = text(&run(&mut many, &jobs[1..])[0]);
    let mut found: HashMap<RequestId, Vec<Event>> = HashMap::new();
    let told = &mut |id, event| {
        found.entry(id).or_default().push(event);
        ControlFlow::Continue(())
    };
    for (id, job) in (0..).zip(&jobs) {
        let submitted = many.submit(RequestId(id), job.request());
        submitted.expect("it fits");
    }
    many.admit(told);
    assert!(complete(many.fly()).expect("the device works"));
    let flight = many.flights.pop_front().expect("it was submitted");
    let unwatched = &mut |_| ControlFlow::Continue(());
    let landing = complete(many.batch.land(unwatched)).expect("the device works");
    let mut landing = landing.expect("nothing breaks it off");
    assert_eq!(landing.broken, [false; 2]);
    landing.broken[0] = true;
    many.take(&flight, Duration::ZERO, landing, told);
    while !many.is_idle() {
        complete(many.step(told)).expect("the device works");
    }
    let error = found[&RequestId(0)].last();
    assert!(
        matches!(
            error,
            Some(Event::Failed(EngineError::Backend(
                BackendError::NotFinite { position: 1 }
            )))
        ),
        "{error:?}"
    );
    assert_eq!(text(&found[&RequestId(1)]), alone);
    assert_eq!(many.pages.known(&long.prompt), 0, "it may be wrong as well");
    assert_eq!(many.pages.held(), 0);
}

#[test]
fn what_never_fits_is_refused_and_what_just_fits_ends_with_the_cache() {
    let Some(engine) = engine(Tier::Subgroup, 2 * ROWS) else {
        return;
    };
    let mut many = many(&engine);
    let refused = many.submit(RequestId(0), Job::new(vec![5; 2 * ROWS], 1).request());
    assert!(
        matches!(
            refused,
            Err(EngineError::CacheTooSmall {
                prompt: 128,
                rows: 128
            })
        ),
        "{refused:?}"
    );
    let found = run(
        &mut many,
        &[
            Job::new(vec![5; 2 * ROWS - 2], 9),
            Job::new(vec![6; 2 * ROWS - 1], 9),
            Job::new(vec![7; 3], 0),
        ],
    );
    for events in &found {
        assert!(matches!(events.last(), Some(Event::Ended(_))), "{events:?}");
    }
    assert!(text(&found[0]).len() <= 2 && text(&found[1]).len() <= 1);
}

mod joining;
