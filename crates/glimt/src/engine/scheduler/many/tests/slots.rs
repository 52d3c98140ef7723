//! Protects sequences in session files: they go on with the same bits, in a server or in a session, and a refusal changes nothing.

use super::*;
use crate::engine::scheduler::slots::{SlotAction, SlotDone, SlotError};
use crate::engine::{SessionFile, SessionFileError};
use crate::gpu::wait::Wait;
use std::path::Path;

fn act(many: &mut Many, slot: usize, action: &SlotAction) -> Result<SlotDone, SlotError> {
    complete(many.act(slot, action))
}

/// A conversation of `length` tokens and its answer, kept in slot 2.
fn said(many: &mut Many, length: u32) -> Vec<u32> {
    let job = Job::new((0..length).map(|i| i * 7 % VOCAB).collect(), 4);
    let request = Request {
        slot: Some(2),
        ..job.request()
    };
    many.submit(RequestId(0), request).expect("it fits");
    let mut events = vec![];
    while !many.is_idle() {
        let told = &mut |_, event| {
            events.push(event);
            ControlFlow::Continue(())
        };
        complete(many.step(told)).expect("the device works");
    }
    [job.prompt, text(&events)].concat()
}

/// The next answer after `tokens` and how many of their rows were there.
fn next(many: &mut Many, tokens: &[u32]) -> (usize, Vec<u32>) {
    let found = run(many, &[Job::new([tokens, &[9, 8]].concat(), 5)]).remove(0);
    (cached(&found), text(&found))
}

fn goes_on_everywhere(engine: &Engine) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let mut server = many(engine);
    let tokens = said(&mut server, ROWS as u32 + 21);
    let saved = act(&mut server, 2, &SlotAction::Save(first.clone())).expect("it is saved");
    let length = std::fs::metadata(&first).expect("it is there").len();
    assert_eq!(
        saved,
        SlotDone {
            tokens: tokens.len(),
            bytes: length
        }
    );
    let (kept, expected) = next(&mut server, &tokens);
    assert!(kept + 1 >= tokens.len(), "{kept} rows are still there");

    // In a session, which saves it again.
    let mut session = engine.session().wait().expect("there is memory");
    let mut file = SessionFile::open(&first, engine).expect("it is one");
    complete(file.restore(&mut session)).expect("it is whole");
    assert_eq!((session.tokens(), session.cached()), (&tokens[..], kept));
    let rows = complete(session.read_rows(0..kept)).expect("they are there");
    let mut other = SessionFile::open(&second, engine).expect("it begins");
    complete(other.save(&mut session, b"")).expect("it is saved");
    drop((file, other));

    for path in [&first, &second] {
        let mut server = many(engine);
        let restored = act(&mut server, 1, &SlotAction::Restore(path.clone()));
        assert_eq!(restored.expect("it is whole").tokens, tokens.len());
        assert_eq!(server.pages.held(), 0);
        let (pages, covered) = server.pages.covered(&tokens);
        assert_eq!(covered, kept);
        server.batch.write_pages(0, 0, &pages);
        let found = complete(server.batch.rows(0, 0..kept)).expect("they are there");
        assert!(found == rows, "the rows are the same bits");
        assert_eq!(next(&mut server, &tokens), (kept, expected.clone()));
        // Forgotten, all is computed again.
        for slot in 0..server.slots() {
            act(&mut server, slot, &SlotAction::Erase).expect("it is forgotten");
        }
        assert_eq!(next(&mut server, &tokens).0, 0);
    }
}

#[test]
fn a_sequence_goes_on_in_another_server_and_in_a_session_on_the_cpu() {
    goes_on_everywhere(&engine(None, 4 * N_CTX).expect("there is a CPU"));
}

#[test]
fn a_sequence_goes_on_in_another_server_and_in_a_session_on_a_gpu() {
    if let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) {
        goes_on_everywhere(&engine);
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| folder.path().join(name);
    let small = engine(None, 2 * ROWS).expect("there is a CPU");
    let mut many = many(&small);
    let tokens = said(&mut many, ROWS as u32 + 3);
    act(&mut many, 2, &SlotAction::Save(path("kept"))).expect("it is saved");

    let missing = SlotAction::Restore(path("missing"));
    let foreign = SlotAction::Restore(path("foreign"));
    std::fs::write(path("foreign"), "no session").expect("it is written");
    let kept = SlotAction::Restore(path("kept"));
    assert!(matches!(
        act(&mut many, 4, &kept),
        Err(SlotError::NoSuchSlot { slot: 4, slots: 4 })
    ));
    assert!(matches!(
        act(&mut many, 0, &missing),
        Err(SlotError::NoFile { .. })
    ));
    assert!(!path("missing").exists());
    assert!(matches!(
        act(&mut many, 0, &foreign),
        Err(SlotError::File(SessionFileError::Foreign { .. }))
    ));
    // A longer one than the cache has room for at all.
    let mut session = small.session().wait().expect("there is memory");
    session.resume(&[3; 2 * ROWS + 1]).expect("it fits");
    let mut file = SessionFile::open(Path::new(&path("long")), &small).expect("it begins");
    complete(file.save(&mut session, b"")).expect("it is saved");
    drop(file);
    assert!(matches!(
        act(&mut many, 0, &SlotAction::Restore(path("long"))),
        Err(SlotError::File(SessionFileError::TooLong {
            n_ctx: 128,
            ..
        }))
    ));
    // While somebody else holds a page of two.
    let job = Job::new(vec![5; 3], 4).request();
    let request = Request {
        slot: Some(1),
        ..job
    };
    many.submit(RequestId(1), request).expect("it fits");
    let told = &mut |_, _| ControlFlow::Continue(());
    complete(many.step(told)).expect("the device works");
    assert!(matches!(
        act(&mut many, 1, &kept),
        Err(SlotError::Busy { slot: 1 })
    ));
    assert!(matches!(
        act(&mut many, 0, &kept),
        Err(SlotError::NoRoom {
            needed: 128,
            available: 64
        })
    ));
    while !many.is_idle() {
        complete(many.step(told)).expect("the device works");
    }
    assert_eq!(many.pages.held(), 0);
    act(&mut many, 0, &kept).expect("there is room again");
    assert_eq!(next(&mut many, &tokens).0, tokens.len() - 1);
}
