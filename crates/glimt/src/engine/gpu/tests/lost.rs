//! Protects whoever waits for work that the device leaves out: it is an error, and no text.

use super::*;
use crate::gpu::stamps::Stamping;
use crate::gpu::wait::Wait;

#[test]
#[ignore = "long: scripts/test --all"]
fn a_token_whose_step_was_left_out_is_an_error_and_no_text() {
    let context = tokens(20);
    for tier in some(&[Tier::Plain, Tier::Subgroup, Tier::Int8], 1) {
        let Some(mut backend) = backend(tier, 64, 32) else {
            continue;
        };
        backend.prefill(&context, 0).wait().expect("it fits");
        let (expected, ended) = decode(&mut backend, &context);
        ended.expect("nothing is left out");
        // The first step only chooses; later ones come through slots of the ring that hold earlier results.
        for left_out in [0, 1, 2, 5, 7] {
            backend.prefill(&context, 0).wait().expect("it fits");
            let gpu = Arc::clone(&backend.batch.model.gpu);
            gpu.leave_out(left_out);
            let (found, ended) = decode(&mut backend, &context);
            assert_eq!(found, expected[..left_out], "tier {}", tier.name());
            let Err(BackendError::Gpu(error)) = ended else {
                panic!("step {left_out} was left out: {ended:?}");
            };
            let GpuError::WorkLost {
                expected: number,
                found,
                ..
            } = *error
            else {
                panic!("{error}");
            };
            assert_ne!(found, number);
            assert!(error.to_string().contains("--ubatch"), "{error}");
        }
        backend.prefill(&context, 0).wait().expect("it fits");
        assert_eq!(decode(&mut backend, &context).0, expected);
    }
}

/// Whether `result` tells of lost work.
#[track_caller]
fn assert_lost<T: std::fmt::Debug>(result: Result<T, BackendError>) {
    match result {
        Err(BackendError::Gpu(error)) if matches!(*error, GpuError::WorkLost { .. }) => {}
        other => panic!("work was left out: {other:?}"),
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_submission_of_a_prompt_that_was_left_out_is_an_error() {
    let tokens = tokens(100);
    for tier in some(&[Tier::Plain, Tier::Subgroup], 1) {
        let Some(mut backend) = backend(tier, 128, 64) else {
            continue;
        };
        uncut(&mut backend);
        backend.prefill(&tokens, 0).wait().expect("it fits");
        let expected = kept(&backend);
        let gpu = Arc::clone(&backend.batch.model.gpu);
        // Of two submissions in flight the first and the second; of many one in the middle and the last.
        let whole = [0, 1];
        for left_out in whole {
            gpu.leave_out(left_out);
            assert_lost(backend.prefill(&tokens, 0).wait());
        }
        let all = submissions(&mut backend, |backend| {
            cut_everywhere(backend);
            backend.prefill(&tokens, 0).wait().expect("it fits");
        });
        for left_out in [0, 7, all - 2] {
            gpu.leave_out(left_out);
            assert_lost(backend.prefill(&tokens, 0).wait());
            assert!(matches!(
                decode(&mut backend, &tokens).1,
                Err(BackendError::NotPrefilled { .. })
            ));
        }
        backend
            .prefill(&tokens, 0)
            .wait()
            .expect("nothing is left out");
        assert!(kept(&backend) == expected, "tier {}", tier.name());
        // One token alone, and the head over all tokens with its logits.
        gpu.leave_out(0);
        assert_lost(backend.prefill(&tokens[..1], 0).wait());
        uncut(&mut backend);
        for (left_out, n) in [(0, 30), (1, 30), (2, 30), (0, 1)] {
            gpu.leave_out(left_out);
            let mut rows = 0;
            let lost = backend
                .logits(&tokens[..n], 0, &mut |_, _| {
                    rows += 1;
                    ControlFlow::Continue(())
                })
                .wait();
            assert_lost(lost);
            // The last one only carries a row back to the device. Of one token alone it is there already.
            assert_eq!(rows, if left_out == 2 { n } else { 0 });
        }
    }
}

#[test]
fn a_pass_that_was_left_out_is_an_error() {
    let mut backend = backend(Tier::Subgroup, 32, 32).expect("this adapter has subgroups");
    let gpu = Arc::clone(&backend.batch.model.gpu);
    let mut submit = |left_out: u32| {
        backend.batch.proof.begin();
        let passes = |encoder: &mut wgpu::CommandEncoder, mark: &Recording| {
            for _ in 0..3 - left_out {
                mark.encode(&gpu, encoder, &State::default());
            }
            3
        };
        let receipt = backend.batch.proof.submit(&gpu, passes, |_| {});
        complete(backend.batch.proof.check(&gpu, receipt))
    };
    submit(0).expect("all passes are there");
    let error = submit(1).expect_err("one is not");
    let GpuError::WorkLost {
        expected, found, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((expected, found), (3, 2));
    submit(0).expect("counted anew");
}

/// Each pass is a command buffer on Metal and may fail alone: one that did would leave no proof.
#[test]
fn a_decoded_token_is_one_pass() {
    for tier in [Tier::Plain, Tier::Subgroup, Tier::Int8] {
        let Some(backend) = backend(tier, 600, 32) else {
            continue;
        };
        let gpu = backend.gpu();
        for pos in [3, 500] {
            let state = backend.state(pos, 1);
            for recording in [&backend.batch.token.decode, &backend.batch.token.sample] {
                let replay = recording.replay(gpu, &state);
                let mut encoder = gpu.device.create_command_encoder(&Default::default());
                let mark = &backend.batch.token.sample;
                let passes =
                    replay.encode(&mut encoder, 0..replay.len(), Stamping::None, Some(mark));
                assert_eq!(passes, 1, "tier {}", tier.name());
            }
        }
    }
}
