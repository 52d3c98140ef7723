//! Protects what a session file keeps: a conversation goes on from it bit for bit, a save appends what is new, and journals count.

use super::*;
use glimt::engine::Wait;

#[test]
fn a_conversation_goes_on_from_its_file_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (i, engine) in engines_of_families().iter().enumerate() {
        let path = folder.path().join(format!("{i}.session"));
        let mut said = engine.session().wait().expect("there is memory");
        let mut file = open(&path, engine);
        assert_eq!(
            (file.tokens(), file.cached(), file.data()),
            (&[][..], 0, &[][..])
        );
        say(&mut said, "Once upon a time there was a king", 9);
        file.save(&mut said, b"one")
            .wait()
            .expect("it can be written");
        say(&mut said, " and a queen", 7);
        file.save(&mut said, b"two")
            .wait()
            .expect("it can be written");
        assert_eq!(file.differs(), None);
        drop(file);

        let mut file = open(&path, engine);
        assert_eq!(file.tokens(), said.tokens());
        assert_eq!(file.cached(), said.cached());
        assert_eq!(file.data(), b"two");
        assert_eq!(file.differs(), None);
        let mut restored = engine.session().wait().expect("there is memory");
        file.restore(&mut restored).wait().expect("it is whole");
        assert_eq!(restored.tokens(), said.tokens());
        assert_eq!(restored.cached(), said.cached());
        let next = encode(engine, " who lived");
        let expected = last_logits(&mut said, &next);
        assert_eq!(last_logits(&mut restored, &next), expected);
    }
}

#[test]
fn a_file_of_one_type_of_cache_is_refused_with_the_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("codes.session");
    let [halves, codes] = [cpu(), built_in::engine_with_codes(DeviceChoice::Cpu)];
    for [own, other] in [[&codes, &halves], [&halves, &codes]] {
        let mut said = own.session().wait().expect("there is memory");
        say(&mut said, "Once upon a time", 3);
        let mut file = open(&path, own);
        let saved = file.save(&mut said, b"").wait();
        saved.expect("it can be written");
        drop(file);
        let before = std::fs::read(&path).expect("it is there");
        let error = SessionFile::open(&path, other).err();
        let Some(SessionFileError::OtherCache {
            found, expected, ..
        }) = &error
        else {
            panic!("{error:?}");
        };
        let types = [own, other].map(|engine| engine.model().cache_type().name());
        assert_eq!([found, expected], types);
        let advice = format!("give --cache-type {found}, or");
        assert!(refusal(&path, other).contains(&advice));
        assert_eq!(std::fs::read(&path).expect("it is there"), before);
        std::fs::remove_file(&path).expect("it is there");
    }
}

/// A session after `tokens` tokens with made-up rows, which takes no computing.
pub fn made_up(engine: &Engine, tokens: usize, salt: u8) -> Session {
    let mut session = engine.session().wait().expect("there is memory");
    let said: Vec<u32> = (0..tokens as u32).map(|i| 60 + i).collect();
    session.resume(&said).expect("they fit");
    let bytes = tokens * session.row_bytes();
    // Small finite f16 values: the high byte stays below that of infinity.
    let rows: Vec<u8> = (0..bytes).map(|i| (i % 59) as u8 ^ (salt & 7)).collect();
    session.push_rows(&rows).wait().expect("they fit");
    session
}

pub fn length(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").len()
}

#[test]
fn a_save_costs_what_is_new() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut session = made_up(&engine, 100, 0);
    let row = session.row_bytes() as u64;
    let mut file = open(&path, &engine);
    file.save(&mut session, b"data")
        .wait()
        .expect("it can be written");
    let first = length(&path);
    assert!(first > 100 * row, "{first}");
    file.save(&mut session, b"data")
        .wait()
        .expect("nothing to do");
    assert_eq!(length(&path), first);
    say(&mut session, " and", 3);
    let new = session.cached() as u64 - 100;
    file.save(&mut session, b"data")
        .wait()
        .expect("it can be written");
    let spent = length(&path) - first - new * row;
    assert!(spent < 300, "{spent} bytes beside the rows");
    // After a restart, too.
    drop(file);
    let mut file = open(&path, &engine);
    let mut restored = engine.session().wait().expect("there is memory");
    file.restore(&mut restored).wait().expect("it is whole");
    let before = length(&path);
    say(&mut restored, " then", 2);
    file.save(&mut restored, b"more")
        .wait()
        .expect("it can be written");
    let new = (restored.cached() - session.cached()) as u64;
    let spent = length(&path) - before - new * row;
    assert!(spent < 300, "{spent} bytes beside the rows");
    assert_eq!(open_again(file, &path, &engine).tokens(), restored.tokens());
}

/// The file as the next process finds it.
fn open_again(file: SessionFile, path: &Path, engine: &Engine) -> SessionFile {
    drop(file);
    open(path, engine)
}

/// The file holds what the session has, bit for bit.
pub fn assert_holds(file: &mut SessionFile, session: &mut Session) {
    assert_eq!(file.tokens(), session.tokens());
    assert_eq!(file.cached(), session.cached());
    let mut restored = session.engine().session().wait().expect("there is memory");
    file.restore(&mut restored).wait().expect("it is whole");
    assert_eq!(restored.tokens(), session.tokens());
    let all = 0..session.cached();
    let expected = session
        .read_rows(all.clone())
        .wait()
        .expect("they are there");
    assert_eq!(
        restored.read_rows(all).wait().expect("they are there"),
        expected
    );
}

#[test]
fn what_was_forgotten_and_said_anew_is_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut file = open(&path, &engine);
    let mut session = engine.session().wait().expect("there is memory");
    say(&mut session, "Once upon a time there was a king", 6);
    file.save(&mut session, b"")
        .wait()
        .expect("it can be written");
    // These tokens were computed anew, so their rows count as others.
    let tokens = session.tokens().to_vec();
    session.truncate(4);
    last_logits(&mut session, &tokens[4..9]);
    file.save(&mut session, b"")
        .wait()
        .expect("it can be written");
    let mut file = open_again(file, &path, &engine);
    assert_holds(&mut file, &mut session);
    // Another session altogether, and a branch of it.
    let mut other = engine.session().wait().expect("there is memory");
    say(&mut other, "A fox", 4);
    file.save(&mut other, b"")
        .wait()
        .expect("it can be written");
    let mut branch = other.branch().wait().expect("there is memory");
    let before = length(&path);
    say(&mut branch, " ran", 2);
    file.save(&mut branch, b"")
        .wait()
        .expect("it can be written");
    let new = (branch.cached() - other.cached()) * branch.row_bytes();
    assert!(length(&path) - before < new as u64 + 300);
    assert_holds(&mut open_again(file, &path, &engine), &mut branch);
}

#[test]
fn journaled_tokens_are_there_after_a_kill_and_replaced_by_a_save() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut session = made_up(&engine, 10, 0);
    let mut file = open(&path, &engine);
    file.save(&mut session, b"data")
        .wait()
        .expect("it can be written");
    file.journal(&[300, 301]).expect("it can be written");
    file.journal(&[302]).expect("it can be written");
    let mut file = open_again(file, &path, &engine);
    let said: Vec<u32> = (60..70).chain([300, 301, 302]).collect();
    assert_eq!(
        (file.tokens(), file.cached(), file.data()),
        (&said[..], 10, &b"data"[..])
    );
    let mut restored = engine.session().wait().expect("there is memory");
    file.restore(&mut restored).wait().expect("it is whole");
    assert_eq!((restored.tokens(), restored.cached()), (&said[..], 10));
    // The rows that are missing are computed with the next prompt.
    let next = encode(&engine, " and");
    let expected = last_logits(&mut session, &[&said[10..], &next].concat());
    assert_eq!(last_logits(&mut restored, &next), expected);
    file.save(&mut restored, b"data")
        .wait()
        .expect("it can be written");
    let mut file = open_again(file, &path, &engine);
    assert_holds(&mut file, &mut restored);
    // Journaled, and then nothing of it said.
    file.journal(&[303]).expect("it can be written");
    file.save(&mut restored, b"data")
        .wait()
        .expect("it can be written");
    assert_eq!(open_again(file, &path, &engine).tokens(), restored.tokens());
}

#[test]
fn a_file_that_is_mostly_dead_becomes_shorter() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut file = open(&path, &engine);
    let (mut longest, mut written) = (0, 0);
    let mut salt = 0;
    let live = 250 * made_up(&engine, 1, 0).row_bytes() as u64;
    while written < 8 << 20 {
        let mut session = made_up(&engine, 250, salt);
        file.save(&mut session, &[salt; 10])
            .wait()
            .expect("it can be written");
        longest = longest.max(length(&path));
        written += live;
        salt = salt.wrapping_add(1);
        if written >= 8 << 20 {
            assert_holds(&mut open_again(file, &path, &engine), &mut session);
            break;
        }
    }
    let most = (1 << 20).max(2 * live) + 2 * live;
    assert!(longest < most, "{longest} bytes, {live} of them needed");
    let names = std::fs::read_dir(folder.path()).expect("it is there");
    assert_eq!(names.count(), 1, "nothing else is left");
    // It is still locked while it is open.
    let file = open(&path, &engine);
    assert!(refusal(&path, &engine).contains("in use by another process"));
    drop(file);
}

#[test]
fn a_second_process_is_told_that_the_file_is_in_use() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let first = open(&path, &engine);
    let message = refusal(&path, &engine);
    assert!(
        message.contains("is in use by another process"),
        "{message}"
    );
    drop(first);
    open(&path, &engine);
}

#[test]
fn another_device_says_what_differs_and_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let [cpu, gpu] = engines();
    let mut session = gpu.session().wait().expect("there is memory");
    say(&mut session, "Once upon a time", 3);
    let mut file = open(&path, &gpu);
    file.save(&mut session, b"")
        .wait()
        .expect("it can be written");
    let mut file = open_again(file, &path, &cpu);
    let differs = file.differs().expect("the device is another").to_owned();
    for expected in ["device: ", "the CPU with ", "tier: ", "none now"] {
        assert!(differs.contains(expected), "{differs}");
    }
    let mut restored = cpu.session().wait().expect("there is memory");
    file.restore(&mut restored).wait().expect("it is whole");
    say(&mut restored, " and", 2);
    file.save(&mut restored, b"")
        .wait()
        .expect("it can be written");
    // Now some rows are of the one and some of the other.
    let file = open_again(file, &path, &cpu);
    assert!(
        file.differs()
            .is_some_and(|differs| differs.contains(" now"))
    );
    let mut file = open_again(file, &path, &gpu);
    assert!(
        file.differs()
            .is_some_and(|differs| differs.contains("the CPU with "))
    );
    // Rows that are forgotten no longer count.
    file.restore(&mut session).wait().expect("it is whole");
    session.reset();
    say(&mut session, "Once", 2);
    file.save(&mut session, b"")
        .wait()
        .expect("it can be written");
    assert_eq!(file.differs(), None);

    let plain = engine_on(DeviceChoice::Index(0), Some(Tier::Plain));
    let file = open_again(file, &path, &plain);
    let differs = file.differs().expect("the tier is another");
    assert!(
        differs.contains("tier: ") && differs.contains("plain now"),
        "{differs}"
    );
    assert!(!differs.contains("device: "), "{differs}");
}

#[test]
fn a_context_that_is_too_short_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut file = open(&path, &engine);
    file.save(&mut made_up(&engine, 200, 0), b"")
        .wait()
        .expect("it can be written");
    drop(file);
    let short = built_in::engine_on(DeviceChoice::Cpu, None, Some(100));
    let mut session = short.session().wait().expect("there is memory");
    session.resume(&[60]).expect("it fits");
    let error = open(&path, &short)
        .restore(&mut session)
        .wait()
        .expect_err("no room");
    assert!(
        error
            .to_string()
            .contains("has 200 tokens, but the context holds 100"),
        "{error}"
    );
    assert_eq!(session.tokens(), [60]);
}
