//! Protects how prompts join whoever decodes, and what they need not compute.

use super::*;
use crate::recipes::BatchSizes;

#[test]
#[ignore = "long: scripts/test --all"]
fn pieces_of_prompts_join_whoever_decodes_by_the_pace() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    // Fewer tokens in a step than the prompts have, also where the device takes more.
    let most = 128;
    let sizes = engine.batch_sizes().map(|sizes| BatchSizes {
        tokens: most as u32,
        ..sizes
    });
    let weights = engine.0.weights.as_ref().zip(sizes);
    let (weights, sizes) = weights.expect("it is for many");
    let batch = complete(GpuBatch::new(Arc::clone(weights), sizes));
    let mut many = Many::of(engine.clone(), Box::new(batch.expect("there is memory")));
    let mut ended = 0;
    let told = &mut |_, event| {
        ended += usize::from(matches!(event, Event::Ended(_)));
        ControlFlow::Continue(())
    };
    let story = engine.tokenizer().encode("Once upon a time", true);
    let decoding = Job::new(story.expect("a text"), 40);
    let submitted = many.submit(RequestId(0), decoding.request());
    submitted.expect("it fits");
    complete(many.step(told)).expect("the device works");
    while !many.flights.is_empty() {
        complete(many.land(told)).expect("the device works");
    }
    assert_eq!(many.running.len(), 1, "a story is not so short");
    for id in 1..4 {
        let long = Job::new(
            (0..90).map(|i| (i * 7 + id as u32 * 130) % VOCAB).collect(),
            2,
        );
        many.submit(RequestId(id), long.request()).expect("it fits");
    }
    many.admit(told);
    let fly = |many: &mut Many, millis| {
        let full = Filled {
            tokens: 100,
            prompts: 100,
            is_run: false,
            is_full: true,
            at: Instant::now(),
        };
        for _ in 0..20 {
            many.pace.took(full, Duration::from_millis(millis));
        }
        assert!(complete(many.fly()).expect("the device works"));
        let flight = many.flights.back().expect("it was submitted");
        let ends = flight.parts.iter().map(|(_, end)| *end).collect::<Vec<_>>();
        (flight.filled.tokens, ends)
    };
    // Quick steps are full: the prompts share them in the order in which they came.
    let (tokens, ends) = fly(&mut many, 1);
    assert_eq!((tokens, ends[1], ends[2]), (most, 90, most - 91));
    let decoded = ends[0];
    // Nobody reads it yet.
    many.running[0].answer.first = Some(Instant::now());
    // Slow ones have little of the prompts, and one token of whoever decodes as before.
    let (tokens, ends) = fly(&mut many, 10_000);
    assert_eq!(tokens, 2 + 32);
    assert_eq!(ends, [decoded + 1, 91, most - 91 + 32]);
    while !many.is_idle() {
        complete(many.step(told)).expect("the device works");
    }
    assert_eq!((ended, many.pages.held()), (4, 0));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_common_beginning_that_ends_within_a_page_is_computed_once() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let mut many = many(&engine);
    let most = 2 * ROWS + 40;
    let common: Vec<u32> = (0..most as u32).map(|i| i * 7 % VOCAB).collect();
    let job = |own: &[u32], limit| Job::new([&common[..], own].concat(), limit);
    let asked = job(&[50, 51], 3);
    let alone = text(&run(&mut many, std::slice::from_ref(&asked))[0]);
    many.pages.forget();
    // From a page that is kept.
    run(&mut many, &[job(&[60; 40], 1)]);
    let found = run(&mut many, std::slice::from_ref(&asked));
    assert_eq!((cached(&found[0]), text(&found[0])), (most, alone.clone()));
    many.pages.forget();
    // From the page of one that goes on, by two at once.
    let endless = Job {
        on_host: true,
        ..job(&[70], 40).without(engine.tokenizer().stop_tokens())
    };
    let later = Job { comes: 20, ..asked };
    let found = run(&mut many, &[endless, later.clone(), later]);
    assert_eq!(cached(&found[0]), 0);
    for found in &found[1..] {
        assert_eq!((cached(found), text(found)), (most, alone.clone()));
    }
}

#[test]
fn a_common_beginning_is_computed_once() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let mut many = many(&engine);
    let common: Vec<u32> = (0..2 * ROWS as u32 + 5).map(|i| i * 7 % VOCAB).collect();
    let jobs: Vec<Job> = (0..4)
        .map(|i| Job::new([&common[..], &[50 + i]].concat(), 3))
        .collect();
    let found = run(&mut many, &jobs);
    let cached: Vec<usize> = found.iter().map(|events| cached(events)).collect();
    assert_eq!(cached, [0, 2 * ROWS, 2 * ROWS, 2 * ROWS]);
    let counts = many.counts();
    assert_eq!(counts.prefix_found, 6 * ROWS as u64);
    assert_eq!(counts.prefix_asked, 4 * (common.len() as u64 + 1));
    assert_eq!((counts.rows, counts.rows_in_all), (0, 4 * N_CTX));
}
