//! Protects who shares an engine: each answer is what it is alone, and a request that fails or is cancelled takes nothing from others.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Choice, Counts, Event, Owner, Request, RequestId, Scheduler};
use crate::engine::chooser::{Chain, ChainSettings, Chooser, ChooserError};
use crate::engine::draft::DraftOptions;
use crate::engine::{
    Biases, DeviceChoice, Engine, EngineError, EngineOptions, GenerateStats, GpuOptions,
    ModelSource, Opened, Sampling, Serving, StopReason,
};
use crate::gpu::wait::Wait;
use crate::kernels::testing::Rng;

fn engine() -> Engine {
    engine_for(96, None)
}

/// The built-in model on the CPU, for `parallel` requests at once.
fn engine_for(ctx: usize, parallel: Option<u32>) -> Engine {
    let options = EngineOptions {
        serving: parallel.map(|parallel| Serving {
            parallel: Some(parallel),
            cache_tokens: None,
        }),
        gpu: GpuOptions {
            device: DeviceChoice::Cpu,
            ..GpuOptions::default()
        },
        ctx: Some(ctx),
        ..EngineOptions::default()
    };
    let opened = Opened::new(&ModelSource::Embedded, &options)
        .wait()
        .expect("the built-in model opens");
    Engine::load(opened, &mut |_| {})
        .wait()
        .expect("the built-in model loads")
}

fn greedy(prompt: &[u32], limit: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        choice: Choice::Device(Sampling::GREEDY, Biases::default()),
        limit,
        owner: Owner::default(),
        slot: None,
        drafts: DraftOptions::OFF,
        expected: vec![],
    }
}

/// Steps until nothing is to be done; the events of each request.
fn all(
    scheduler: &mut Scheduler,
    mut flow: impl FnMut(RequestId, &Event) -> ControlFlow<()> + Send,
) -> HashMap<RequestId, Vec<Event>> {
    let mut found: HashMap<RequestId, Vec<Event>> = HashMap::new();
    while !scheduler.is_idle() {
        let told = scheduler
            .step(&mut |id, event| {
                let flow = flow(id, &event);
                found.entry(id).or_default().push(event);
                flow
            })
            .wait();
        told.expect("the device works");
    }
    found
}

fn tokens(events: &[Event]) -> Vec<u32> {
    let tokens = events.iter().filter_map(|event| match event {
        Event::Token(token) => Some(*token),
        _ => None,
    });
    tokens.collect()
}

fn goes_on(_: RequestId, _: &Event) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn answers_are_what_they_are_alone_and_common_rows_are_computed_once() {
    let engine = engine();
    let mut rng = Rng::fresh();
    let text = "Once upon a time there was a fox who lived in a deep forest";
    let common = engine
        .tokenizer()
        .encode(text, true)
        .expect("it has tokens");
    let prompts: Vec<Vec<u32>> = (0..4)
        .map(|_| {
            let kept = 4 + rng.below(common.len() - 4);
            let own: Vec<u32> = (0..3).map(|_| rng.below(4000) as u32).collect();
            [&common[..kept], &own].concat()
        })
        .collect();
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let submit = |prompt: &Vec<u32>| scheduler.submit(greedy(prompt, 6)).expect("it fits");
    let ids: Vec<RequestId> = prompts.iter().map(submit).collect();
    assert_eq!(scheduler.counts().waiting, 4);
    let found = all(&mut scheduler, goes_on);
    let mut cached_in_all = 0;
    for (id, prompt) in ids.iter().zip(&prompts) {
        let mut alone = vec![];
        let mut session = engine.session().wait().expect("there is memory");
        let stats = session
            .generate(prompt, &Sampling::GREEDY, 6, &mut |token| {
                alone.push(token);
                ControlFlow::Continue(())
            })
            .wait();
        let events = &found[id];
        assert_eq!(tokens(events), alone);
        let Some(Event::Ended(ended)) = events.last() else {
            panic!("{events:?}");
        };
        assert_eq!(ended.stop, stats.expect("it fits").stop);
        let Some(Event::Prompt { done, cached, .. }) = events.first() else {
            panic!("{events:?}");
        };
        assert_eq!(done, cached);
        cached_in_all += cached;
    }
    assert!(cached_in_all >= 12, "{cached_in_all} rows were kept");
    let asked = prompts.iter().map(Vec::len).sum::<usize>();
    let Counts {
        waiting,
        rows,
        rows_in_all,
        prefix_asked,
        prefix_found,
        ..
    } = scheduler.counts();
    assert_eq!((waiting, rows, rows_in_all), (0, 0, 128));
    assert_eq!(
        (prefix_asked, prefix_found),
        (asked as u64, cached_in_all as u64)
    );
}

#[test]
fn a_break_ends_the_answer_and_the_next_begins() {
    let engine = engine();
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let prompt = engine.tokenizer().encode("Once upon a time there", false);
    let prompt = prompt.expect("it has tokens");
    let length = prompt.len();
    let ids = [20; 3].map(|limit| scheduler.submit(greedy(&prompt, limit)).expect("it fits"));
    scheduler.cancel(ids[1]);
    let mut left = 3;
    let found = all(&mut scheduler, |id, event| {
        if id == ids[0] && matches!(event, Event::Token(_)) {
            left -= 1;
            if left == 0 {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    assert_eq!(tokens(&found[&ids[0]]).len(), 3);
    assert!(matches!(found[&ids[0]].last(), Some(Event::Token(_))));
    assert!(!found.contains_key(&ids[1]), "it was cancelled");
    let third = &found[&ids[2]];
    assert!(
        matches!(third.first(), Some(Event::Prompt { cached, .. }) if *cached == length - 1),
        "{third:?}"
    );
    assert!(matches!(third.last(), Some(Event::Ended(_))), "{third:?}");
    // A break before anything is computed.
    let id = scheduler.submit(greedy(&[9, 9], 5)).expect("it fits");
    let found = all(&mut scheduler, |_, _| ControlFlow::Break(()));
    assert_eq!(found[&id].len(), 1, "{found:?}");
}

#[test]
fn what_cannot_be_answered_is_refused_at_once() {
    let engine = engine();
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let refused = [
        scheduler.submit(greedy(&[], 1)),
        scheduler.submit(greedy(&[1_000_000], 1)),
        scheduler.submit(greedy(&[1; 97], 1)),
    ];
    assert!(
        matches!(
            refused,
            [
                Err(EngineError::NoTokens),
                Err(EngineError::UnknownToken { .. }),
                Err(EngineError::PromptTooLong { .. })
            ]
        ),
        "{refused:?}"
    );
    assert!(scheduler.is_idle());
    // The end of the context ends an answer.
    let id = scheduler
        .submit(greedy(&[4; 90], usize::MAX))
        .expect("it fits");
    let found = all(&mut scheduler, goes_on);
    let Some(Event::Ended(ended)) = found[&id].last() else {
        panic!("{found:?}");
    };
    assert!(matches!(
        ended.stop,
        StopReason::ContextFull | StopReason::StopToken
    ));
}

/// Takes a token twice, and then panics.
struct Panics(usize);

impl Chooser for Panics {
    fn choose(&mut self, _: &mut [f32], _: &[u32]) -> Result<u32, ChooserError> {
        self.0 += 1;
        assert!(self.0 < 3, "as a test wants it");
        Ok(7)
    }
}

#[test]
fn a_chooser_that_panics_fails_alone() {
    let engine = engine();
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let request = Request {
        choice: Choice::Host(Box::new(Panics(0))),
        ..greedy(&[5, 6], 9)
    };
    let failing = scheduler.submit(request).expect("it fits");
    let other = scheduler.submit(greedy(&[5, 6], 2)).expect("it fits");
    let found = all(&mut scheduler, goes_on);
    assert_eq!(tokens(&found[&failing]), [7, 7]);
    let last = found[&failing].last();
    assert!(
        matches!(
            last,
            Some(Event::Failed(EngineError::Chooser(ChooserError::Panicked)))
        ),
        "{last:?}"
    );
    assert!(matches!(found[&other].last(), Some(Event::Ended(_))));
}

#[test]
fn answers_at_once_are_what_they_are_alone() {
    let engine = engine_for(64, Some(4));
    let mut rng = Rng::fresh();
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    assert_eq!(scheduler.slots(), 4);
    let sampling = Sampling {
        temperature: 0.9,
        seed: rng.bits(),
        ..Sampling::GREEDY
    };
    let common: Vec<u32> = (0..24).map(|_| rng.below(4000) as u32).collect();
    let mut asked = vec![];
    for order in 0..4 {
        let own: Vec<u32> = (0..3).map(|_| rng.below(4000) as u32).collect();
        let prompt = [&common[..12 + rng.below(12)], &own].concat();
        let on_host = order % 3 == 1;
        let choice = match on_host {
            true => Choice::Host(Box::new(Chain::new(ChainSettings::new(sampling)))),
            false => Choice::Device(sampling, Biases::default()),
        };
        let request = Request {
            choice,
            owner: Owner {
                peer: order / 2,
                order,
            },
            ..greedy(&prompt, 5)
        };
        asked.push((scheduler.submit(request).expect("it fits"), prompt));
    }
    let bell = scheduler.bell();
    let found = all(&mut scheduler, |_, _| {
        // Nobody has come, but the others go on as well if each turn is as short as can be.
        bell.store(true, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    for (id, prompt) in asked {
        let mut alone = vec![];
        let mut session = engine.session().wait().expect("there is memory");
        let stats = session
            .generate(&prompt, &sampling, 5, &mut |token| {
                alone.push(token);
                ControlFlow::Continue(())
            })
            .wait();
        assert_eq!(tokens(&found[&id]), alone);
        let Some(Event::Ended(ended)) = found[&id].last() else {
            panic!("{:?}", found[&id]);
        };
        let stats = stats.expect("it fits");
        let of = |stats: &GenerateStats| (stats.stop, stats.generated, stats.steps);
        assert_eq!(of(ended), of(&stats));
    }
    assert_eq!(scheduler.counts().running, 0);
}

#[test]
fn a_short_prompt_has_its_turn_before_long_ones_end() {
    let engine = engine_for(96, Some(4));
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let long: Vec<u32> = (0..60).map(|i| i * 7 % 4000).collect();
    // Orders of one peer, so that it holds however fast the machine is.
    let [first, second, short] = [&long[..], &long[1..], &[5, 6, 7]].map(|prompt| {
        let order = prompt.len() as u64;
        let request = Request {
            owner: Owner { peer: 1, order },
            ..greedy(prompt, 2)
        };
        scheduler.submit(request).expect("it fits")
    });
    let mut order = vec![];
    all(&mut scheduler, |id, event| {
        // The end of the answer may be its only event.
        let is_answer = matches!(event, Event::Token(_) | Event::Ended(_));
        if is_answer && !order.contains(&id) {
            order.push(id);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(order[0], short);
    assert_eq!(
        order.len(),
        3,
        "{first:?} and {second:?} come to their end, too"
    );
}

#[test]
fn one_that_is_alone_is_interrupted_when_somebody_comes() {
    let engine = engine_for(96, Some(4));
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let long: Vec<u32> = (0..60).map(|i| i * 7 % 4000).collect();
    let id = scheduler.submit(greedy(&long, 2)).expect("it fits");
    let bell = scheduler.bell();
    let mut ended = false;
    let told = &mut |_, event| {
        ended |= matches!(event, Event::Ended(_));
        bell.store(
            matches!(event, Event::Prompt { done: 10.., .. }),
            Ordering::Relaxed,
        );
        ControlFlow::Continue(())
    };
    scheduler.step(told).wait().expect("the device works");
    assert!(!ended, "somebody has come");
    bell.store(false, Ordering::Relaxed);
    let other = scheduler.submit(greedy(&[5, 6], 2)).expect("it fits");
    let found = all(&mut scheduler, goes_on);
    let mut session = engine.session().wait().expect("there is memory");
    let mut alone = vec![];
    let done = session
        .generate(&long, &Sampling::GREEDY, 2, &mut |token| {
            alone.push(token);
            ControlFlow::Continue(())
        })
        .wait();
    done.expect("it fits");
    assert_eq!(tokens(&found[&id]), alone);
    assert!(matches!(found[&other].last(), Some(Event::Ended(_))));
}

/// Chooses a token, and the next ones only when others have come so far.
struct Late {
    others: Arc<AtomicUsize>,
    chosen: usize,
}

impl Chooser for Late {
    fn choose(&mut self, _: &mut [f32], _: &[u32]) -> Result<u32, ChooserError> {
        assert!(self.is_ready(Duration::ZERO), "it was not waited for");
        self.chosen += 1;
        Ok(7)
    }

    fn is_ready(&mut self, _: Duration) -> bool {
        self.chosen == 0 || self.others.load(Ordering::Relaxed) > 0
    }
}

#[test]
fn whoever_waits_for_a_chooser_keeps_nobody_waiting() {
    let engine = engine_for(64, Some(4));
    let mut scheduler = Scheduler::new(&engine).wait().expect("there is memory");
    let others = Arc::new(AtomicUsize::new(0));
    let late = Late {
        others: Arc::clone(&others),
        chosen: 0,
    };
    let request = Request {
        choice: Choice::Host(Box::new(late)),
        ..greedy(&[5, 6], 4)
    };
    let late = scheduler.submit(request).expect("it fits");
    let other = Request {
        owner: Owner { peer: 1, order: 1 },
        ..greedy(&[8, 9], 9)
    };
    let other = scheduler.submit(other).expect("it fits");
    let found = all(&mut scheduler, |id, event| {
        if id == other && matches!(event, Event::Ended(_)) {
            others.fetch_add(1, Ordering::Relaxed);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(tokens(&found[&late]), [7; 4], "{:?}", found[&late]);
    let alone = Request {
        choice: Choice::Host(Box::new(Late { others, chosen: 0 })),
        ..greedy(&[5, 6], 4)
    };
    let alone = scheduler.submit(alone).expect("it fits");
    assert_eq!(tokens(&all(&mut scheduler, goes_on)[&alone]), [7; 4]);
}
