//! Protects programs that wait by themselves: a session whose futures are only polled, or dropped, gives the same answers.

use std::ops::ControlFlow;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use glimt::engine::{DeviceChoice, Engine, ModelSource, Opened, Sampling, Tier, Wait};

use crate::built_in::options;

/// The result of `future` by being polled alone, and how often it was not there yet.
fn polled<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut pending = 0;
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return (result, pending),
            Poll::Pending => pending += 1,
        }
    }
}

/// The built-in model on the first adapter, even if it is software, opened and loaded by polling.
fn polled_engine(tier: Option<Tier>) -> Engine {
    let options = options(DeviceChoice::Index(0), tier, Some(128));
    let (opened, _) = polled(Opened::new(&ModelSource::Embedded, &options));
    let opened = opened.expect("these tests need a GPU");
    let (engine, _) = polled(Engine::load(opened, &mut |_| {}));
    engine.expect("the built-in model loads")
}

#[test]
#[ignore = "long: scripts/test --all"]
fn polling_alone_gives_the_same_answer() {
    for tier in [None, Some(Tier::Plain)] {
        let engine = polled_engine(tier);
        let tokenizer = engine.tokenizer();
        // A prompt that goes through chunks, and one that goes token by token.
        let times = if tier.is_none() { 3 } else { 1 };
        let long =
            "Once upon a time there was a little girl who had a big red ball. ".repeat(times);
        for text in [long.as_str(), "Once upon a time"] {
            let prompt = tokenizer.encode(text, true).expect("plain text");
            let mut expected = vec![];
            let mut session = engine.session().wait().expect("there is memory");
            let stats = session
                .generate(&prompt, &Sampling::GREEDY, 20, &mut |token| {
                    expected.push(token);
                    ControlFlow::Continue(())
                })
                .wait();
            let expected_stats = stats.expect("it fits");

            let mut found = vec![];
            let mut session = polled(engine.session()).0.expect("there is memory");
            let on_token = &mut |token| {
                found.push(token);
                ControlFlow::Continue(())
            };
            let unwatched = &mut |_| ControlFlow::Continue(());
            let (stats, pending) = polled(session.generate_watched(
                &prompt,
                &Sampling::GREEDY,
                20,
                unwatched,
                on_token,
            ));
            let stats = stats.expect("it fits");
            assert!(pending > 0, "the device was done before it was asked");
            assert_eq!(found, expected);
            assert_eq!(
                (stats.generated, stats.steps, stats.stop),
                (
                    expected_stats.generated,
                    expected_stats.steps,
                    expected_stats.stop
                )
            );
            assert_eq!(session.position(), prompt.len() + found.len());
        }
    }
}

#[test]
fn logits_come_by_polling_alone() {
    let engine = polled_engine(None);
    let tokenizer = engine.tokenizer();
    let text = "Once upon a time there was a little girl who had a big red ball. ";
    let tokens = tokenizer.encode(text, true).expect("plain text");
    let mut rows = [vec![], vec![]];
    let [expected, found] = &mut rows;
    let mut session = engine.session().wait().expect("there is memory");
    let keep = &mut |_, row: &[f32]| {
        expected.push(row.to_vec());
        ControlFlow::Continue(())
    };
    session.logits(&tokens, 2, keep).wait().expect("they fit");
    let mut session = engine.session().wait().expect("there is memory");
    let keep = &mut |_, row: &[f32]| {
        found.push(row.to_vec());
        ControlFlow::Continue(())
    };
    let unwatched = &mut |_| ControlFlow::Continue(());
    let (done, pending) = polled(session.logits_watched(&tokens, 2, unwatched, keep));
    assert_eq!(done.expect("they fit"), tokens.len());
    assert!(pending > 0, "the device was done before it was asked");
    let [expected, found] = rows;
    assert!(found == expected, "the logits differ");
}

#[test]
fn a_session_whose_future_was_dropped_goes_on() {
    let engine = polled_engine(None);
    let tokenizer = engine.tokenizer();
    let prompt = tokenizer.encode("Once upon a time", true);
    let prompt = prompt.expect("plain text");
    let mut session = engine.session().wait().expect("there is memory");
    // Dropped after so many polls: in the prompt, and while tokens are in flight.
    for polls in [1, 5, 50, 500, 5000] {
        let (mut on_prompt, mut on_token) = (
            |_| ControlFlow::Continue(()),
            |_| ControlFlow::<()>::Continue(()),
        );
        session.reset();
        let mut future = pin!(session.generate_watched(
            &prompt,
            &Sampling::GREEDY,
            40,
            &mut on_prompt,
            &mut on_token,
        ));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..polls {
            if future.as_mut().poll(&mut context).is_ready() {
                break;
            }
        }
    }
    session.reset();
    let mut said = prompt.clone();
    let stats = session
        .generate(&prompt, &Sampling::GREEDY, 9, &mut |token| {
            said.push(token);
            ControlFlow::Continue(())
        })
        .wait();
    assert_eq!(stats.expect("it fits").generated, 9);
    let (mut fresh, mut expected) = (
        engine.session().wait().expect("there is memory"),
        prompt.clone(),
    );
    let stats = fresh
        .generate(&prompt, &Sampling::GREEDY, 9, &mut |token| {
            expected.push(token);
            ControlFlow::Continue(())
        })
        .wait();
    assert_eq!(stats.expect("it fits").generated, 9);
    assert_eq!(said, expected);
}
