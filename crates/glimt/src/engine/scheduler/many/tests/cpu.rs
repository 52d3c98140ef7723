//! Protects who shares the CPU: each answer is exactly that of a session, and whoever comes waits for no long step.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use super::*;
use crate::gpu::wait::Wait;

/// The answer of a session.
fn by_session(engine: &Engine, job: &Job) -> Vec<u32> {
    let mut session = engine.session().wait().expect("there is memory");
    let mut answer = vec![];
    let on_prompt = &mut |_| ControlFlow::Continue(());
    let on_token = &mut |token| {
        answer.push(token);
        ControlFlow::Continue(())
    };
    let (prompt, limit) = (&job.prompt, job.limit);
    let done = match job.request().choice {
        Choice::Device(sampling, biases) => {
            session.set_biases(biases);
            let drawn = session.generate_watched(prompt, &sampling, limit, on_prompt, on_token);
            drawn.wait()
        }
        Choice::Host(mut chooser) => {
            let chosen = session.generate_chosen(prompt, &mut *chooser, limit, on_prompt, on_token);
            chosen.wait()
        }
    };
    done.expect("it fits");
    answer
}

#[test]
fn answers_in_a_mix_are_exactly_those_of_sessions() {
    let mut rng = Rng::fresh();
    for rows in some(&[4 * N_CTX, 3 * ROWS], 1) {
        let engine = engine(None, rows).expect("there is a CPU");
        let mut many = many(&engine);
        let mut jobs: Vec<Job> = (0..4).map(|_| random_job(&mut rng, 90)).collect();
        jobs[0] = biased(&mut rng, &mut many, jobs[0].clone());
        many.pages.forget();
        let found = run(&mut many, &jobs);
        for (job, found) in jobs.iter().zip(&found) {
            assert_eq!(
                text(found),
                by_session(&engine, job),
                "{rows} rows, {job:?}"
            );
        }
    }
}

/// A prompt of 90 tokens, which is one step for a request that is alone.
fn long() -> Job {
    Job::new((0..90).map(|i| i * 7 % VOCAB).collect(), 2)
}

#[test]
fn a_long_step_is_broken_off_when_somebody_comes() {
    let engine = engine(None, 4 * N_CTX).expect("there is a CPU");
    let expected = by_session(&engine, &long());
    let mut many = many(&engine);
    let bell = Arc::clone(&many.bell);
    many.submit(RequestId(0), long().request())
        .expect("it fits");
    let mut found = vec![];
    let mut told = |_: RequestId, event| {
        bell.store(
            matches!(event, Event::Prompt { done: 30.., .. }),
            Ordering::Relaxed,
        );
        found.push(event);
        ControlFlow::Continue(())
    };
    complete(many.step(&mut told)).expect("the device works");
    assert_eq!((many.running[0].landed, many.running[0].submitted), (0, 0));
    bell.store(false, Ordering::Relaxed);
    complete(many.step(&mut told)).expect("the device works");
    let landed = many.running[0].landed;
    assert!(
        (1..90).contains(&landed),
        "nobody breaks off a short one: {landed}"
    );
    while !many.is_idle() {
        bell.store(true, Ordering::Relaxed);
        complete(many.step(&mut told)).expect("the device works");
    }
    assert_eq!(text(&found), expected);
    assert_eq!(many.pages.held(), 0);
}

#[test]
fn who_goes_away_during_a_long_step_leaves_nothing_behind() {
    let engine = engine(None, 4 * N_CTX).expect("there is a CPU");
    let mut many = many(&engine);
    let job = Job {
        goes: Some(2),
        ..long()
    };
    // The second one hears of it in what it is told.
    let found = run(
        &mut many,
        &[
            Job {
                goes: Some(0),
                ..long()
            },
            job,
        ],
    );
    assert!(found[1].len() <= 2, "{found:?}");
    let found = run(&mut many, &[long()]);
    assert_eq!(text(&found[0]), by_session(&engine, &long()));
}

#[test]
fn a_step_whose_future_is_dropped_is_computed_again() {
    let engine = engine(None, 4 * N_CTX).expect("there is a CPU");
    let mut rng = Rng::fresh();
    let with_chooser = Job {
        on_host: true,
        ..random_job(&mut rng, 40)
    };
    for jobs in [vec![long()], vec![long(), with_chooser]] {
        let mut many = many(&engine);
        for (which, job) in jobs.iter().enumerate() {
            let id = RequestId(which as u64);
            many.submit(id, job.request()).expect("it fits");
        }
        let mut found: Vec<Vec<Event>> = jobs.iter().map(|_| vec![]).collect();
        let mut dropped = 0;
        for step in 0.. {
            if many.is_idle() {
                break;
            }
            assert!(step < 1000, "it goes on: {:?}", many.counts());
            let told = &mut |id: RequestId, event| {
                found[id.0 as usize].push(event);
                ControlFlow::Continue(())
            };
            match step % 3 {
                // An event loop polls the step once, so that a thread of its own computes.
                0 => {
                    let mut context = Context::from_waker(Waker::noop());
                    dropped += usize::from(pin!(many.step(told)).poll(&mut context).is_pending());
                }
                _ => complete(many.step(told)).expect("the device works"),
            }
            check(&many);
        }
        assert!(dropped > 1);
        for (job, found) in jobs.iter().zip(&found) {
            assert_eq!(text(found), by_session(&engine, job), "{job:?}");
        }
        assert_eq!(many.pages.held(), 0);
    }
}
