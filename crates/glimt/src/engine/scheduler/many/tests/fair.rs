//! Protects who comes to a GPU whose places somebody else has taken.

use super::*;

/// A job of a peer and its order that only its limit ends.
fn job(engine: &Engine, (peer, order): (u64, u64), first: u32, length: usize, limit: usize) -> Job {
    let tokens = (0..length as u32)
        .map(|i| (i * 7 + first) % VOCAB)
        .collect();
    let job = Job::new(tokens, limit).without(engine.tokenizer().stop_tokens());
    Job {
        owner: Owner { peer, order },
        ..job
    }
}

/// Whether each of the jobs has its first token when the first of all has ended.
fn begun_at_the_first_end(many: &mut Many, jobs: &[Job]) -> Vec<bool> {
    let mut begun = vec![false; jobs.len()];
    let mut found = None;
    for (which, job) in jobs.iter().enumerate() {
        let id = RequestId(which as u64);
        many.submit(id, job.request()).expect("it fits");
        if which + 1 < jobs.len() {
            continue;
        }
        while !many.is_idle() {
            let told = &mut |id: RequestId, event| {
                match event {
                    Event::Token(_) => begun[id.0 as usize] = true,
                    Event::Ended(_) => drop(found.get_or_insert_with(|| begun.clone())),
                    _ => {}
                }
                ControlFlow::Continue(())
            };
            complete(many.step(told)).expect("the device works");
            check(many);
        }
    }
    found.expect("all have ended")
}

#[test]
#[ignore = "long: scripts/test --all"]
fn whoever_has_more_than_its_share_gives_a_place_and_goes_on_with_the_same_answer() {
    let Some(engine) = engine(Tier::Subgroup, 6 * N_CTX) else {
        return;
    };
    let mut many = many(&engine);
    // Six answers of one order for four places, then somebody else and another order of the same peer.
    let mut jobs: Vec<Job> = (0..6).map(|i| job(&engine, (1, 1), i, 20, 40)).collect();
    jobs.push(job(&engine, (2, 2), 60, 20, 8));
    jobs.push(job(&engine, (1, 3), 70, 20, 8));
    for job in &mut jobs[6..] {
        job.comes = 12;
    }
    assert!(
        assert_alone(&engine, &mut many, &jobs) > jobs.len() as u64,
        "one was taken back"
    );
    for job in &mut jobs[6..] {
        job.comes = 0;
    }
    many.pages.forget();
    let begun = begun_at_the_first_end(&mut many, &jobs);
    assert!(begun[6] && begun[7], "{begun:?}");
}

#[test]
fn a_short_prompt_takes_the_place_of_a_long_one_that_is_not_the_oldest() {
    let Some(engine) = engine(Tier::Subgroup, 8 * N_CTX) else {
        return;
    };
    let mut many = many(&engine);
    let mut jobs: Vec<Job> = (0..6)
        .map(|i| job(&engine, (1, u64::from(i)), i * 31, 220, 2))
        .collect();
    jobs.push(job(&engine, (1, 9), 300, 5, 2));
    for submitted in 0..6u64 {
        let request = jobs[submitted as usize].request();
        many.submit(RequestId(submitted), request).expect("it fits");
    }
    let told = &mut |_, _| ControlFlow::Continue(());
    many.admit(told);
    assert_eq!((many.running.len(), many.waiting.len()), (4, 2));
    many.submit(RequestId(6), jobs[6].request())
        .expect("it fits");
    many.admit(told);
    let ids: Vec<u64> = many.running.iter().map(|s| s.answer.id.0).collect();
    assert!(
        ids.contains(&6) && ids.contains(&0) && ids.len() == 4,
        "{ids:?}"
    );
    // The long ones that wait are no shorter than those that run.
    many.admit(told);
    assert_eq!(many.waiting.len(), 3);
    (0..7).for_each(|id| many.cancel(RequestId(id)));
    assert_eq!(many.pages.held(), 0);
}

#[test]
fn who_holds_most_pages_gives_them_back_whoever_is_the_youngest() {
    let Some(engine) = engine(Tier::Subgroup, 5 * ROWS) else {
        return;
    };
    let mut many = many(&engine);
    // Two of a peer and a younger one of another need a second page each, of which there are two.
    let near = ROWS - 4;
    let jobs = [
        job(&engine, (1, 1), 0, near, 30),
        job(&engine, (1, 2), 31, near, 30),
        job(&engine, (2, 3), 62, near, 20),
    ];
    for (id, job) in (0..).zip(&jobs) {
        many.submit(RequestId(id), job.request()).expect("it fits");
    }
    let mut ended = vec![];
    let mut taken_back = vec![];
    while !many.is_idle() {
        let told = &mut |id: RequestId, event| {
            if matches!(event, Event::Ended(_)) {
                ended.push(id.0);
            }
            ControlFlow::Continue(())
        };
        complete(many.step(told)).expect("the device works");
        check(&many);
        taken_back.extend(many.waiting.iter().map(|answer| answer.id.0));
    }
    taken_back.dedup();
    assert_eq!(taken_back, [1], "the younger one of the peer that has two");
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2]);
    assert!(assert_alone(&engine, &mut many, &jobs) > 3);
}
