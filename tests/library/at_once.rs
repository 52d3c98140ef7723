//! Protects answers with drafts that are given beside others: they are what they are without drafts and alone.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use glimt::engine::draft::{DraftOptions, DraftSource};
use glimt::engine::scheduler::{Choice, Event, Owner, Request, RequestId, Scheduler};
use glimt::engine::{Biases, DeviceChoice, Engine, ModelSource, Opened, Sampling, Serving, Wait};
use serde_json::Value;

use crate::built_in::options;
use crate::golden::fixture;

/// Sequences of the scheduler.
const AT_ONCE: u32 = 4;

/// The trained model of the fixtures for several at once, with drafts of any source.
fn trained() -> Option<Engine> {
    let path = fixture("tales64/tales64-Q4_0.gguf")?;
    let mut options = options(DeviceChoice::Cpu, None, Some(256));
    options.draft = DraftOptions {
        source: DraftSource::Mtp,
        most: None,
    };
    options.serving = Some(Serving {
        parallel: Some(AT_ONCE),
        cache_tokens: None,
    });
    let opened = Opened::new(&ModelSource::File(path), &options).wait();
    let engine = Engine::load(opened.expect("it opens"), &mut |_| {}).wait();
    Some(engine.expect("it loads"))
}

/// The prompts of the fixture.
fn prompts() -> Option<Vec<Vec<u32>>> {
    let texts = std::fs::read_to_string(fixture("tales64/acceptance.json")?).expect("it is there");
    let texts: BTreeMap<String, Vec<Value>> = serde_json::from_str(&texts).expect("it is valid");
    let prompt = |text: Value| serde_json::from_value(text["prompt"].clone()).expect("tokens");
    Some(texts.into_values().flatten().map(prompt).collect())
}

/// The answers to all prompts, of which `at_once` are answered at a time.
fn answers(
    engine: &Engine,
    prompts: &[Vec<u32>],
    (at_once, source): (u32, DraftSource),
    sampling: Sampling,
) -> Vec<Vec<u32>> {
    let mut scheduler = Scheduler::new(engine).wait().expect("there is memory");
    let mut answers = vec![vec![]; prompts.len()];
    let (mut known, mut next): (HashMap<RequestId, usize>, _) = (HashMap::new(), 0);
    while next < prompts.len() || !scheduler.is_idle() {
        let counts = scheduler.counts();
        if next < prompts.len() && counts.running + counts.waiting < at_once as usize {
            let seed = sampling.seed + next as u64;
            let request = Request {
                prompt: prompts[next].clone(),
                choice: Choice::Device(Sampling { seed, ..sampling }, Biases::default()),
                limit: 96,
                owner: Owner::default(),
                slot: None,
                drafts: DraftOptions { source, most: None },
                expected: vec![],
            };
            known.insert(scheduler.submit(request).expect("it fits"), next);
            next += 1;
            continue;
        }
        let told = &mut |id, event| {
            match event {
                Event::Token(token) => answers[known[&id]].push(token),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        scheduler.step(told).wait().expect("the device works");
    }
    let accepted: u64 = scheduler.counts().drafts.accepted.iter().sum();
    eprintln!("{source:?}, {at_once} at once: {accepted} drafts accepted");
    assert_eq!(accepted > 0, source != DraftSource::Off);
    answers
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_of_a_trained_model_beside_others_are_those_alone() {
    let (Some(engine), Some(prompts)) = (trained(), prompts()) else {
        return;
    };
    let seeded = Sampling {
        temperature: 0.8,
        repeat_penalty: 1.1,
        seed: 5,
        ..Sampling::GREEDY
    };
    for sampling in [Sampling::GREEDY, seeded] {
        let expected = answers(&engine, &prompts, (1, DraftSource::Off), sampling);
        for source in [DraftSource::Mtp, DraftSource::Ngram] {
            let found = answers(&engine, &prompts, (AT_ONCE, source), sampling);
            for (number, pair) in found.iter().zip(&expected).enumerate() {
                assert_eq!(pair.0, pair.1, "{source:?}, text {number}");
            }
        }
    }
}
