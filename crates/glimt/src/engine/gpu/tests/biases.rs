//! Protects biases of logits: they move what a backend chooses as long as they are set.

use super::*;

/// Asserts that biases which were set move what a backend chooses, and none after they were taken back.
fn assert_biased(backend: &mut dyn Backend) {
    let context = tokens(20);
    let mut first = |biases: &[(u32, f32)]| {
        let mut chosen = vec![];
        let on_row = &mut |_, _: &[f32]| ControlFlow::Continue(());
        backend.set_biases(Biases::new(biases).expect("not many"));
        complete(backend.logits_watched(&context, 0, &mut |_| ControlFlow::Continue(()), on_row))
            .expect("it fits");
        let on_token = &mut |token| {
            chosen.push(token);
            ControlFlow::Continue(())
        };
        let decoded = backend
            .decode(&context, &Sampling::GREEDY, 3, on_token)
            .wait();
        decoded.expect("the prompt is there");
        chosen
    };
    let free = first(&[]);
    let other = first(&[(free[0], f32::NEG_INFINITY)]);
    assert!(!other.contains(&free[0]), "{other:?}");
    assert_eq!(first(&[(7, 1e6)]), [7; 3]);
    assert_eq!(first(&[]), free);
}

#[test]
fn biases_are_added_for_one_sequence() {
    let model = models::load(Arc::new(small_model())).expect("a supported model");
    let cpu = CpuBackend::new(model, Products::Exact, 64);
    assert_biased(&mut cpu.expect("there is memory"));
    for tier in some(&[Tier::Plain, Tier::Subgroup], 1) {
        if let Some(mut backend) = backend(tier, 64, 32) {
            assert_biased(&mut backend);
        }
    }
}
