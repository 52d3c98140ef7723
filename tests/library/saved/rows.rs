//! Protects cache rows: read and written again, or branched, they are the same bits.

use super::*;
use glimt::engine::Wait;

#[test]
fn rows_written_into_a_fresh_session_give_the_same_logits() {
    for engine in engines_of_families() {
        let mut said = engine.session().wait().expect("there is memory");
        say(&mut said, "Once upon a time there was a king", 9);
        let tokens = said.tokens().to_vec();
        let cached = said.cached();
        assert_eq!(cached, tokens.len() - 1);
        let all = said.read_rows(0..cached).wait().expect("they are there");
        assert_eq!(all.len(), cached * said.row_bytes());
        assert!(all.iter().any(|byte| *byte != 0));

        let mut fresh = engine.session().wait().expect("there is memory");
        fresh.resume(&tokens).expect("they fit");
        // In pieces of different lengths.
        for range in [0..1, 1..8, 8..cached] {
            let rows = said.read_rows(range).wait().expect("they are there");
            fresh.push_rows(&rows).wait().expect("they fit");
        }
        assert_eq!(fresh.cached(), cached);
        assert_eq!(
            fresh.read_rows(0..cached).wait().expect("they are there"),
            all
        );
        let next = encode(&engine, " and a queen");
        let expected = last_logits(&mut said, &next);
        assert_eq!(last_logits(&mut fresh, &next), expected);
    }
}

#[test]
fn the_history_of_tokens_comes_back_with_the_rows() {
    // The device looks at earlier tokens when it punishes repetitions.
    let sampling = Sampling {
        repeat_penalty: 2.0,
        repeat_last_n: 64,
        ..Sampling::GREEDY
    };
    for engine in engines_of_families() {
        let answer = |session: &mut Session| {
            let mut answer = vec![];
            let prompt = encode(&engine, " and");
            let stats = session
                .generate(&prompt, &sampling, 20, &mut |token| {
                    answer.push(token);
                    ControlFlow::Continue(())
                })
                .wait();
            stats.expect("it fits");
            answer
        };
        let mut said = engine.session().wait().expect("there is memory");
        say(&mut said, "Once upon a time there was a king", 9);
        let mut fresh = engine.session().wait().expect("there is memory");
        fresh.resume(said.tokens()).expect("they fit");
        let rows = said
            .read_rows(0..said.cached())
            .wait()
            .expect("they are there");
        fresh.push_rows(&rows).wait().expect("they fit");
        let mut branch = said.branch().wait().expect("there is memory");
        let expected = answer(&mut said);
        assert_eq!(answer(&mut fresh), expected);
        assert_eq!(answer(&mut branch), expected);
    }
}

#[test]
fn a_branch_goes_on_by_itself() {
    for engine in engines_of_families() {
        let mut trunk = engine.session().wait().expect("there is memory");
        say(&mut trunk, "Once upon a time there was a king", 5);
        let mut branch = trunk.branch().wait().expect("there is memory");
        assert_eq!(branch.tokens(), trunk.tokens());
        assert_eq!(branch.cached(), trunk.cached());
        let [next, other] = [" and a queen", " who had"].map(|text| encode(&engine, text));
        // Tokens of the branch leave the trunk alone.
        last_logits(&mut branch, &other);
        let mut second = trunk.branch().wait().expect("there is memory");
        let expected = last_logits(&mut trunk, &next);
        assert_eq!(last_logits(&mut second, &next), expected);
        let empty = engine.session().wait().expect("there is memory");
        assert_eq!(
            empty.branch().wait().expect("there is memory").position(),
            0
        );
    }
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let engine = cpu();
    let mut session = engine.session().wait().expect("there is memory");
    let row = session.row_bytes();
    let message = |result: Result<(), glimt::engine::EngineError>| {
        result.expect_err("it must be refused").to_string()
    };
    let read = session.read_rows(0..1).wait().map(drop);
    assert!(message(read).starts_with("1 row of the cache were asked for"));
    session.resume(&[60, 61]).expect("they fit");
    let error = message(session.push_rows(&vec![0; 3 * row]).wait());
    assert!(
        error.starts_with("3 rows of the cache were given for 2 tokens"),
        "{error}"
    );
    let error = message(session.push_rows(&vec![0; row + 1]).wait());
    assert!(error.contains("give whole rows"), "{error}");
    assert_eq!(session.cached(), 0);
    let vocab = engine.model().config().vocab_size as u32;
    let error = message(session.resume(&[60, vocab]));
    assert!(error.contains("does not exist"), "{error}");
    assert_eq!(session.tokens(), [60, 61]);
    assert!(message(session.resume(&[60; 257])).contains("the context holds 256"));
}

#[test]
fn what_two_conversations_have_in_common_is_not_computed_again() {
    let engine = cpu();
    let mut session = engine.session().wait().expect("there is memory");
    let first = encode(&engine, "Once upon a time there was a king");
    assert_eq!(
        say(&mut session, "Once upon a time there was a king", 4).len(),
        4
    );
    assert_eq!(session.position(), first.len() + 4);

    let other = encode(&engine, "Once upon a time there was a fox");
    let common = other.len() - 1;
    assert_eq!(session.sync(&other), &other[common..]);
    assert_eq!(session.tokens(), &other[..common]);
    let mut fresh = engine.session().wait().expect("there is memory");
    let expected = last_logits(&mut fresh, &other);
    assert_eq!(last_logits(&mut session, &other[common..]), expected);

    // The last token is left to be computed again, since its logits are needed.
    assert_eq!(session.sync(&other), &other[common..]);
    assert!(session.sync(&[]).is_empty());
    assert_eq!(session.position(), 0);
}
