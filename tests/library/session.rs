//! Protects what a session keeps between calls: an answer that ended, was broken off or was interrupted can be continued.

use std::ops::ControlFlow;
use std::sync::Mutex;

use glimt::engine::chooser::{Chain, ChainSettings, Chooser, ChooserError};
use glimt::engine::perplexity::Perplexity;
use glimt::engine::{DeviceChoice, Engine, EngineError, Sampling, Session, StopReason, Wait};

use crate::built_in::{engine_on, grouped_on_cpu, last_logits};

/// An engine on the CPU reference, with a context of `ctx` tokens.
fn engine(ctx: usize) -> Engine {
    engine_on(DeviceChoice::Cpu, None, Some(ctx))
}

/// Engines of both families on the CPU.
fn engines(ctx: usize) -> Vec<Engine> {
    [engine(ctx)]
        .into_iter()
        .chain(grouped_on_cpu(ctx))
        .collect()
}

/// On the first adapter, even if it is software, with a context of 128 tokens.
fn gpu_engine() -> Engine {
    engine_on(DeviceChoice::Index(0), None, Some(128))
}

/// A session goes on as if everything said so far had been its prompt.
fn assert_continues(session: &mut Session, said: &[u32]) {
    assert_eq!(session.position(), said.len());
    let next = session
        .engine()
        .tokenizer()
        .encode(" and then", false)
        .expect("plain text");
    let whole = [said, &next].concat();
    let mut fresh = session.engine().session().wait().expect("there is memory");
    let expected = last_logits(&mut fresh, &whole);
    assert_eq!(last_logits(session, &next), expected);
    assert_eq!(session.position(), whole.len());
}

#[test]
fn an_answer_that_reached_its_limit_can_be_continued() {
    for engine in engines(64) {
        let mut session = engine.session().wait().expect("there is memory");
        let mut said = engine
            .tokenizer()
            .encode("Once upon a time", true)
            .expect("plain text");
        let prompt = said.clone();
        let stats = session
            .generate(&prompt, &Sampling::GREEDY, 9, &mut |token| {
                said.push(token);
                ControlFlow::Continue(())
            })
            .wait()
            .expect("it fits");
        assert_eq!(
            (stats.generated, stats.steps, stats.stop),
            (9, 8, StopReason::Limit)
        );
        assert_eq!(stats.prompt_tokens, prompt.len());
        assert_continues(&mut session, &said);
    }
}

#[test]
fn an_answer_that_was_broken_off_keeps_what_was_handed_out() {
    for engine in engines(64) {
        let mut session = engine.session().wait().expect("there is memory");
        let mut said = engine
            .tokenizer()
            .encode("Once upon a time", true)
            .expect("plain text");
        let prompt = said.clone();
        let stats = session
            .generate(&prompt, &Sampling::GREEDY, usize::MAX, &mut |token| {
                said.push(token);
                if said.len() == prompt.len() + 3 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .wait()
            .expect("it fits");
        assert_eq!((stats.generated, stats.stop), (3, StopReason::Caller));
        assert_continues(&mut session, &said);
    }
}

#[test]
fn a_stop_token_is_neither_handed_out_nor_kept() {
    let engine = engine(0);
    let tokenizer = engine.tokenizer();
    // The model was trained on whole tales, so with enough draws one ends; the seed only saves time.
    let sampling = Sampling {
        temperature: 0.8,
        seed: 3,
        ..Sampling::GREEDY
    };
    let prompt = tokenizer
        .encode("And they lived happily ever after.\n\nTHE END.", true)
        .unwrap();
    let mut session = engine.session().wait().expect("there is memory");
    let mut said = prompt.clone();
    let stats = session
        .generate(&prompt, &sampling, usize::MAX, &mut |token| {
            said.push(token);
            ControlFlow::Continue(())
        })
        .wait()
        .expect("it fits");
    assert_eq!(
        stats.stop,
        StopReason::StopToken,
        "after {} tokens",
        stats.generated
    );
    assert_eq!(stats.steps, stats.generated);
    assert!(
        said[prompt.len()..]
            .iter()
            .all(|&token| !tokenizer.is_stop(token))
    );
    assert_continues(&mut session, &said);
}

#[test]
fn the_context_bounds_prompt_and_answer() {
    let engine = engine(12);
    let mut session = engine.session().wait().expect("there is memory");
    let mut count = 0;
    let stats = session
        .generate(
            &[60, 61, 62, 63, 64],
            &Sampling::GREEDY,
            usize::MAX,
            &mut |_| {
                count += 1;
                ControlFlow::Continue(())
            },
        )
        .wait()
        .expect("it fits");
    assert_eq!((stats.generated, stats.stop), (7, StopReason::ContextFull));
    assert_eq!((count, session.position()), (7, 12));
    let refused = session
        .generate(&[60], &Sampling::GREEDY, 1, &mut |_| {
            ControlFlow::Continue(())
        })
        .wait();
    let expected = "the prompt has 1 token after 12 in the context, but the context holds 12;";
    let message = refused.expect_err("nothing fits any more").to_string();
    assert!(message.starts_with(expected), "{message}");
    session.reset();
    assert_eq!(session.position(), 0);
    assert_continues(&mut session, &[]);
}

#[test]
fn what_cannot_be_evaluated_leaves_the_session_as_it_was() {
    let engine = engine(16);
    let vocab = engine.model().config().vocab_size as u32;
    let mut session = engine.session().wait().expect("there is memory");
    let said = [60, 61, 62];
    last_logits(&mut session, &said);
    let mut refuse = |tokens: &[u32]| {
        let result = session
            .generate(tokens, &Sampling::GREEDY, 4, &mut |_| {
                ControlFlow::Continue(())
            })
            .wait();
        result.expect_err("it must be refused")
    };
    assert!(matches!(refuse(&[]), EngineError::NoTokens));
    let unknown = refuse(&[60, vocab]);
    assert!(matches!(unknown, EngineError::UnknownToken { token, .. } if token == vocab));
    let long = refuse(&[60; 14]);
    assert!(matches!(
        long,
        EngineError::PromptTooLong {
            prompt: 14,
            used: 3,
            n_ctx: 16,
            ..
        }
    ));
    assert_continues(&mut session, &said);
}

#[test]
fn logits_come_from_the_row_asked_for_and_may_be_broken_off() {
    let engine = engine(32);
    let tokens = [60, 435, 389, 267, 1594];
    let mut all = Vec::new();
    let mut session = engine.session().wait().expect("there is memory");
    session
        .logits(&tokens, 0, &mut |row, logits| {
            assert_eq!(row, all.len());
            all.push(logits.to_vec());
            ControlFlow::Continue(())
        })
        .wait()
        .expect("it fits");
    assert_eq!(all.len(), tokens.len());
    session.reset();
    let mut rows = Vec::new();
    session
        .logits(&tokens, 2, &mut |row, logits| {
            assert_eq!(logits, all[row]);
            rows.push(row);
            if row == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .wait()
        .expect("it fits");
    assert_eq!(rows, [2, 3]);
    assert_continues(&mut session, &tokens[..4]);
}

#[test]
fn logits_are_watched_and_broken_off_between_submissions() {
    let engine = gpu_engine();
    let mut session = engine.session().wait().expect("there is memory");
    let tokens: Vec<u32> = (300..400).collect();
    // The first submission of a session is one layer.
    let done = session
        .logits_watched(&tokens, 0, &mut |_| ControlFlow::Break(()), &mut |_, _| {
            panic!("there is no row")
        })
        .wait();
    assert_eq!(done.expect("it fits"), 0);
    assert_eq!(session.position(), 0);
    // Of a hundred rows a slice of 64 comes first; it goes on after them.
    let (told, all) = (Mutex::new(vec![]), Mutex::new(vec![]));
    let evaluate = |session: &mut Session, from, stop| {
        told.lock().expect("nobody panics").clear();
        all.lock().expect("nobody panics").clear();
        let done = session
            .logits_watched(
                &tokens,
                from,
                &mut |done| {
                    told.lock().expect("nobody panics").push(done);
                    match all.lock().expect("nobody panics").len() >= stop {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                },
                &mut |row, logits| {
                    assert_eq!(row, from + all.lock().expect("nobody panics").len());
                    all.lock().expect("nobody panics").push(logits.to_vec());
                    ControlFlow::Continue(())
                },
            )
            .wait();
        done.expect("it fits")
    };
    assert_eq!(evaluate(&mut session, 0, 1), 64);
    assert_eq!(all.lock().expect("nobody panics").len(), 64);
    assert_eq!(session.position(), 64);
    let found = last_logits(&mut session, &tokens[64..]);
    session.reset();
    assert_eq!(evaluate(&mut session, 30, usize::MAX), 100);
    let (told, all) = (
        told.lock().expect("nobody panics"),
        all.lock().expect("nobody panics"),
    );
    assert_eq!((session.position(), all.len()), (100, 70));
    assert!(
        told.is_sorted() && told.iter().all(|done| *done <= 100),
        "{told:?}"
    );
    assert!(told.iter().any(|done| *done > 30), "{told:?}");
    let off: f32 = found
        .iter()
        .zip(&all[69])
        .map(|(a, b)| (a - b).powi(2))
        .sum();
    let size: f32 = found.iter().map(|b| b.powi(2)).sum();
    assert!(off / size < 1e-3, "NMSE {}", off / size);
}

#[test]
fn an_interrupted_chunk_is_not_scored() {
    let engine = gpu_engine();
    let mut session = engine.session().wait().expect("there is memory");
    let chunk: Vec<u32> = (300..364).collect();
    let mut scores = Perplexity::default();
    let stop = &mut |_| ControlFlow::Break(());
    let whole = scores.add_chunk_watched(&mut session, &chunk, stop).wait();
    assert!(!whole.expect("it fits"));
    assert_eq!(scores.count(), 0);
    let on = &mut |_| ControlFlow::Continue(());
    let whole = scores.add_chunk_watched(&mut session, &chunk, on).wait();
    assert!(whole.expect("it fits"));
    assert_eq!(scores.count(), 31);
}

/// An answer of up to `limit` tokens that is broken off after the `last`-th, chosen on the host or by the backend.
fn greedy(
    session: &mut Session,
    prompt: &[u32],
    limit: usize,
    last: usize,
    host: bool,
) -> (Vec<u32>, StopReason) {
    let mut said = prompt.to_vec();
    let on_token = &mut |token| {
        said.push(token);
        match said.len() == prompt.len() + last {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let unwatched = &mut |_| ControlFlow::Continue(());
    let stats = if host {
        let mut chain = Chain::new(ChainSettings::new(Sampling::GREEDY));
        session
            .generate_chosen(prompt, &mut chain, limit, unwatched, on_token)
            .wait()
    } else {
        session
            .generate(prompt, &Sampling::GREEDY, limit, on_token)
            .wait()
    };
    let stats = stats.expect("it fits");
    assert_eq!(stats.generated, said.len() - prompt.len());
    assert_eq!(stats.steps, stats.generated - 1);
    (said, stats.stop)
}

#[test]
fn what_the_host_chooses_is_kept_like_what_the_backend_chooses() {
    for (engine, exact) in [(engine(64), true), (gpu_engine(), false)] {
        let prompt = engine
            .tokenizer()
            .encode("Once upon a time", true)
            .expect("plain text");
        for (limit, last) in [(9, 64), (usize::MAX, 3), (1, 64)] {
            let mut session = engine.session().wait().expect("there is memory");
            let (expected, stop) = greedy(&mut session, &prompt, limit, last, false);
            let mut session = engine.session().wait().expect("there is memory");
            let found = greedy(&mut session, &prompt, limit, last, true);
            assert_eq!(found, (expected.clone(), stop));
            // Rows of a GPU's prompts differ in their last digits from those of single tokens.
            if exact {
                assert_continues(&mut session, &expected);
            }
            // One after the other, in both orders.
            let next = engine
                .tokenizer()
                .encode(" and", false)
                .expect("plain text");
            session.reset();
            greedy(&mut session, &prompt, limit, last, true);
            let (then, _) = greedy(&mut session, &next, 4, 64, false);
            session.reset();
            greedy(&mut session, &prompt, limit, last, false);
            let found = greedy(&mut session, &next, 4, 64, true);
            assert_eq!(found.0, then);
        }
    }
}

#[test]
fn a_chooser_that_fails_leaves_the_session_after_the_prompt() {
    struct Fails(usize);
    impl Chooser for Fails {
        fn choose(&mut self, _: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
            self.0 -= 1;
            match self.0 {
                0 => Err(ChooserError::NothingLeft),
                _ => Ok(context[0]),
            }
        }
    }
    let engine = engine(64);
    let mut session = engine.session().wait().expect("there is memory");
    let prompt = engine
        .tokenizer()
        .encode("Once upon a time", true)
        .expect("plain text");
    let unwatched = &mut |_| ControlFlow::Continue(());
    let on_token = &mut |_| ControlFlow::Continue(());
    let failed = session
        .generate_chosen(&prompt, &mut Fails(3), 9, unwatched, on_token)
        .wait();
    assert!(matches!(
        failed,
        Err(EngineError::Chooser(ChooserError::NothingLeft))
    ));
    assert_continues(&mut session, &prompt);
}

/// A GPU is asked between the layers of a chunk, so a prompt may end before the row of the answer's last token is there.
#[test]
fn a_prompt_interrupted_in_its_first_layer_leaves_the_answer_before_it() {
    let engine = gpu_engine();
    let mut session = engine.session().wait().expect("there is memory");
    let mut said = engine
        .tokenizer()
        .encode("Once upon a time", true)
        .expect("plain text");
    let first = said.clone();
    session
        .generate(&first, &Sampling::GREEDY, 5, &mut |token| {
            said.push(token);
            ControlFlow::Continue(())
        })
        .wait()
        .expect("it fits");
    let next: Vec<u32> = (300..340).collect();
    let mut told = vec![];
    let stats = session
        .generate_watched(
            &next,
            &Sampling::GREEDY,
            5,
            &mut |done| {
                told.push(done);
                ControlFlow::Break(())
            },
            &mut |_| panic!("there is no answer"),
        )
        .wait()
        .expect("it fits");
    assert_eq!(told.len(), 1);
    assert!(told[0] < next.len(), "{told:?}");
    let found = (stats.prompt_tokens, stats.generated, stats.stop);
    assert_eq!(found, (0, 0, StopReason::Caller));
    assert_eq!(session.position(), said.len());
    // It goes on as if the interrupted prompt had never been.
    let found = last_logits(&mut session, &next);
    let whole = [said, next].concat();
    let mut fresh = engine.session().wait().expect("there is memory");
    let expected = last_logits(&mut fresh, &whole);
    let off: f32 = found
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b).powi(2))
        .sum();
    let size: f32 = expected.iter().map(|b| b.powi(2)).sum();
    assert!(off / size < 1e-3, "NMSE {}", off / size);
}
