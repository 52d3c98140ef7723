//! Protects who asks first: nothing is compiled for them, and they get what others get.

use super::*;

#[test]
#[ignore = "long: scripts/test --all"]
fn a_first_request_compiles_nothing_and_is_answered_as_if_nothing_had_been() {
    let Some(engine) = engine(Tier::Plain, 4 * N_CTX) else {
        return;
    };
    // So few tokens are one step, whatever the pace.
    let job = [Job::new(prompt(&mut Rng::fresh(), 30), 8)];
    let expected = text(&run(&mut many(&engine), &job)[0]);
    let mut warm = many(&engine);
    complete(warm.prepare()).expect("it compiles");
    let mut told = vec![];
    let on_step = &mut |done, of| told.push((done, of));
    complete(warm.warm_up(Duration::from_secs(600), on_step)).expect("it runs");
    let of = told.len() - 1;
    let in_order = told
        .iter()
        .enumerate()
        .all(|(done, one)| *one == (done, of));
    assert!(of > 2 && in_order, "{told:?}");
    assert!(warm.is_idle());
    let counts = warm.counts();
    assert_eq!(
        (counts.prefix_asked, counts.prefix_found, counts.rows),
        (0, 0, 0)
    );
    let gpu = &engine.0.weights.as_ref().expect("it is on a GPU").gpu;
    let compiled = gpu.compile_time();
    assert!(compiled > Duration::ZERO);
    let found = text(&run(&mut warm, &job)[0]);
    assert_eq!(gpu.compile_time(), compiled);
    assert_eq!(found, expected);
}
