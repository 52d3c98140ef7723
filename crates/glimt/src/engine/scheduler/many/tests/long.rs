//! Protects long prompts: their parts are steps of their own, leave the rows that a session computes, and keep nobody waiting.

use super::*;
use crate::engine::gpu::batch::LEAST_RUN;
use crate::gpu::wait::Wait;

/// The greedy answer of a session.
fn by_session(engine: &Engine, job: &Job) -> Vec<u32> {
    let mut session = engine.session().wait().expect("there is memory");
    let mut answer = vec![];
    let on_token = &mut |token| {
        answer.push(token);
        ControlFlow::Continue(())
    };
    let generated = session.generate(&job.prompt, &job.sampling, job.limit, on_token);
    generated.wait().expect("it fits");
    answer
}

/// The pace of a fast device.
fn fast() -> Pace {
    let mut pace = Pace::new();
    let step = Filled {
        tokens: 500,
        prompts: 500,
        is_run: false,
        is_full: true,
        at: Instant::now(),
    };
    pace.took(step, Duration::from_millis(1));
    pace
}

/// Asserts that greedy answers are the same, or part where two tokens are as good as equal.
fn assert_same(engine: &Engine, job: &Job, found: &[u32], expected: &[u32]) {
    let pairs = found.iter().zip(expected);
    let common = pairs.take_while(|(a, b)| a == b).count();
    if let (Some(a), Some(b)) = (found.get(common), expected.get(common)) {
        assert_near(engine, job, &expected[..common], [*a, *b]);
    } else {
        assert_eq!(found, expected);
    }
}

#[test]
fn a_long_prompt_alone_is_computed_as_in_a_session() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let mut rng = Rng::fresh();
    let mut many = many(&engine);
    for length in [LEAST_RUN, LEAST_RUN + 1 + rng.below(N_CTX - LEAST_RUN - 20)] {
        // No other prompt begins alike, so all rows are computed.
        let own = (0..length).map(|_| rng.below(VOCAB as usize) as u32);
        let mut job = Job::new(own.collect(), 6);
        let expected = by_session(&engine, &job);
        for on_host in [false, true] {
            job.on_host = on_host;
            many.pages.forget();
            many.pace = fast();
            let before = many.flown;
            let found = text(&run(&mut many, std::slice::from_ref(&job))[0]);
            assert_same(&engine, &job, &found, &expected);
            // The parts of a prompt, and a step for each token but the first.
            let steps = (many.flown - before) as usize;
            assert!(steps <= 2 + job.limit, "{steps} steps for {length} tokens");
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn long_prompts_beside_others_are_answered_as_alone() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let mut rng = Rng::fresh();
    let jobs: Vec<Job> = (0..9)
        .map(|which| {
            let length = [20, 190, 220][which % 3];
            let own = (0..length).map(|_| rng.below(VOCAB as usize) as u32);
            let own = own.collect();
            Job {
                comes: rng.below(8),
                on_host: which % 4 == 0,
                owner: Owner {
                    peer: which as u64 % 2,
                    order: which as u64,
                },
                ..Job::new(own, 5)
            }
        })
        .collect();
    let mut many = many(&engine);
    let found = run(&mut many, &jobs);
    for (job, found) in jobs.iter().zip(&found) {
        let expected = by_session(&engine, job);
        assert_same(&engine, job, &text(found), &expected);
    }
}
