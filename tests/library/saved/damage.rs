//! Protects against files that were cut, damaged or written for something else: they are refused, or have their last whole commit.

use super::*;
use glimt::engine::Wait;
use glimt::engine::{ModelSource, Opened};

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = cpu();
    let path = folder.path().join("text");
    std::fs::write(&path, "Once upon a time").expect("it can be written");
    let message = refusal(&path, &engine);
    assert!(
        message.contains("is no session file: it begins with \"Once upo\""),
        "{message}"
    );
    assert_eq!(
        std::fs::read(&path).expect("it is there"),
        b"Once upon a time"
    );
    assert!(refusal(folder.path(), &engine).contains("it is a directory"));
    // All of that can be told before the weights are loaded.
    let early = |path: &Path| SessionFile::check(path, &engine).map_err(|e| e.to_string());
    assert_eq!(early(&path), Err(message));
    assert!(early(folder.path()).is_err());
    assert!(early(&folder.path().join("no/such")).is_err());
    let new = folder.path().join("new");
    assert_eq!(early(&new), Ok(()));
    assert!(!new.exists());
    drop(SessionFile::open(&new, &engine).expect("it is begun"));
    assert_eq!(early(&new), Ok(()));
}

/// The contents that a process finds in a file: tokens, rows, data.
type State = (Vec<u32>, usize, Vec<u8>);

fn state(file: &SessionFile) -> State {
    (file.tokens().to_vec(), file.cached(), file.data().to_vec())
}

/// A file that was saved, journaled, saved again with something forgotten, and journaled again; the length after each step, and what is
/// in the file then.
fn steps(path: &Path, engine: &Engine) -> Vec<(u64, State)> {
    let mut session = engine.session().wait().expect("there is memory");
    let mut file = open(path, engine);
    let mut steps = vec![];
    let mut note = |file: &SessionFile| {
        let length = std::fs::metadata(path).expect("it is there").len();
        steps.push((length, state(file)));
    };
    note(&file);
    last_logits(&mut session, &[60, 61]);
    file.save(&mut session, b"first")
        .wait()
        .expect("it can be written");
    note(&file);
    file.journal(&[63]).expect("it can be written");
    note(&file);
    file.journal(&[64, 65]).expect("it can be written");
    note(&file);
    session.truncate(1);
    last_logits(&mut session, &[66]);
    file.save(&mut session, b"second")
        .wait()
        .expect("it can be written");
    note(&file);
    file.journal(&[68]).expect("it can be written");
    note(&file);
    steps
}

/// A folder in memory, where the system has one: thousands of files are written.
fn in_memory() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a temporary folder")
}

#[test]
fn cut_anywhere_a_file_has_its_last_whole_commit() {
    let folder = in_memory();
    let [path, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    let engine = cpu();
    let steps = steps(&path, &engine);
    let bytes = std::fs::read(&path).expect("it is there");
    let mut session = engine.session().wait().expect("there is memory");
    for length in 0..=bytes.len() {
        std::fs::write(&cut, &bytes[..length]).expect("it can be written");
        let mut file = open(&cut, &engine);
        let whole = steps.iter().rev().find(|(end, _)| *end <= length as u64);
        let expected = whole.map_or(State::default(), |(_, state)| state.clone());
        assert_eq!(state(&file), expected, "cut to {length} of {}", bytes.len());
        if length % 499 == 0 {
            file.restore(&mut session).wait().expect("it is whole");
            // It can be written again, and what is written is there.
            file.save(&mut session, b"third")
                .wait()
                .expect("it can be written");
            drop(file);
            let file = open(&cut, &engine);
            assert_eq!(state(&file), (expected.0, expected.1, b"third".to_vec()));
        }
    }
}

#[test]
fn a_flipped_bit_is_refused_or_harmless() {
    let folder = in_memory();
    let [path, flipped] = ["whole", "flipped"].map(|name| folder.path().join(name));
    let engine = cpu();
    let steps = steps(&path, &engine);
    let (_, expected) = steps.last().expect("there are some");
    let bytes = std::fs::read(&path).expect("it is there");
    let mut session = engine.session().wait().expect("there is memory");
    open(&path, &engine)
        .restore(&mut session)
        .wait()
        .expect("it is whole");
    let rows = session
        .read_rows(0..expected.1)
        .wait()
        .expect("they are there");
    let (mut refused, mut harmless) = (0, 0);
    let mut random = 1u64;
    for _ in 0..2000 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let bit = (random >> 20) as usize % (8 * bytes.len());
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&flipped, &damaged).expect("it can be written");
        let mut file = match SessionFile::open(&flipped, &engine) {
            Ok(file) => file,
            Err(error) => {
                refused += 1;
                let message = error.to_string();
                assert!(message.contains("flipped"), "{message}");
                // It is as it was.
                assert_eq!(
                    std::fs::read(&flipped).expect("it is there"),
                    damaged,
                    "bit {bit}"
                );
                continue;
            }
        };
        assert_eq!(&state(&file), expected, "bit {bit}");
        match file.restore(&mut session).wait() {
            Ok(()) => {
                harmless += 1;
                let found = session
                    .read_rows(0..expected.1)
                    .wait()
                    .expect("they are there");
                assert!(found == rows, "bit {bit}: other rows");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("is damaged at byte"), "{error}");
                assert_eq!(session.position(), 0, "nothing of it is used");
            }
        }
    }
    // Rows that were forgotten are not read any more. They are about half of the file.
    assert!(
        refused > 900 && harmless > 900,
        "{refused} refused, {harmless} harmless"
    );
}

#[test]
fn the_message_of_a_damaged_file_says_how_to_keep_what_is_before() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("damaged");
    let engine = cpu();
    let steps = steps(&path, &engine);
    let (keep, state_before) = &steps[3];
    let mut bytes = std::fs::read(&path).expect("it is there");
    bytes[*keep as usize + 3] ^= 1;
    std::fs::write(&path, &bytes).expect("it can be written");
    let message = refusal(&path, &engine);
    let expected = format!("is damaged at byte {keep}: found the head of a record");
    assert!(message.contains(&expected), "{message}");
    assert!(
        message.contains(&format!("ends at byte {keep}")),
        "{message}"
    );
    bytes.truncate(*keep as usize);
    std::fs::write(&path, &bytes).expect("it can be written");
    assert_eq!(&state(&open(&path, &engine)), state_before);
    // A file that the system made longer, but did not write, is no damage.
    bytes.resize(bytes.len() + 5000, 0);
    std::fs::write(&path, &bytes).expect("it can be written");
    assert_eq!(&state(&open(&path, &engine)), state_before);
}

#[test]
fn newer_versions_and_other_models_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = cpu();
    let path = folder.path().join("newer");
    steps(&path, &engine);
    let whole = std::fs::read(&path).expect("it is there");
    let mut newer = whole.clone();
    newer[8] = 2;
    std::fs::write(&path, &newer).expect("it can be written");
    let message = refusal(&path, &engine);
    assert!(
        message.contains("has version 2, but this glimt reads version 1"),
        "{message}"
    );

    std::fs::write(&path, &whole).expect("it can be written");
    let model = include_bytes!("../../../assets/tales-q4_k_m.gguf");
    let gguf = glimt::gguf::Gguf::from_bytes(model, "built-in").expect("it opens");
    let tensor = gguf.tensors().iter().max_by_key(|tensor| tensor.byte_len());
    let bytes = gguf.data(tensor.expect("there are some"));
    let middle = bytes.as_ptr() as usize + bytes.len() / 2 - model.as_ptr() as usize;
    let mut other = model.to_vec();
    other[middle] ^= 1;
    let file = folder.path().join("other.gguf");
    std::fs::write(&file, &other).expect("it can be written");
    let options = built_in::options(DeviceChoice::Cpu, None, Some(256));
    let opened = Opened::new(&ModelSource::File(file), &options)
        .wait()
        .expect("it opens");
    let other = Engine::load(opened, &mut |_| {}).wait().expect("it loads");
    let message = refusal(&path, &other);
    assert!(
        message.contains("belongs to another model: its hash of the weights is"),
        "{message}"
    );
    assert_eq!(std::fs::read(&path).expect("it is there"), whole);
    // Nor is a session of the one kept in a file of the other.
    let mut session = other.session().wait().expect("there is memory");
    let mut file = open(&path, &engine);
    for result in [
        file.restore(&mut session).wait(),
        file.save(&mut session, b"").wait(),
    ] {
        let message = result.expect_err("it is another model").to_string();
        assert!(
            message.contains("was opened for another model"),
            "{message}"
        );
    }
}
