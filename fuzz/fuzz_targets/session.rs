//! A session file: it is refused and stays as it is, or what it has is restored, and saving it again keeps that.
//!
//! The first byte says how the rest is taken. Even: as the bytes behind a valid header. Odd: as records, each a byte of its kind, two of its
//! length, and its payload, to which the checksums are added; without them, no change of a byte would be seen by what reads records.

#![no_main]

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use glimt::engine::{Engine, SessionFile};
use glimt_fuzz::{engine, now, own_file, seeds};
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

struct Fuzzed {
    engine: Engine,
    /// How a file for the engine begins.
    header: Vec<u8>,
}

fn fuzzed() -> &'static Fuzzed {
    static FUZZED: OnceLock<Fuzzed> = OnceLock::new();
    FUZZED.get_or_init(|| {
        let (engine, path) = (engine(), own_file("header"));
        let _ = fs::remove_file(&path);
        drop(SessionFile::open(&path, &engine).expect("a new file is begun"));
        let header = fs::read(&path).expect("it is there");
        let _ = fs::remove_file(&path);
        Fuzzed { engine, header }
    })
}

/// A record at a position.
fn record(at: usize, kind: u8, payload: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| XxHash3_64::oneshot_with_seed(at as u64, bytes).to_le_bytes();
    let head = [u32::from(kind), payload.len() as u32]
        .map(u32::to_le_bytes)
        .concat();
    [&head[..], &sum(&head), payload, &sum(payload)].concat()
}

/// The records of an input.
fn records(mut input: &[u8], mut file: Vec<u8>) -> Vec<u8> {
    while let Some((&[kind, low, high], rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (payload, rest) = rest.split_at(length);
        file.extend(record(file.len(), kind, payload));
        input = rest;
    }
    file
}

/// The input whose records these are.
fn input(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let one = |(kind, payload): &(u8, Vec<u8>)| {
        [&[*kind][..], &(payload.len() as u16).to_le_bytes(), payload].concat()
    };
    [vec![1], records.iter().flat_map(one).collect()].concat()
}

fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let counts = |tokens: u64, rows: u64| [tokens, rows].map(u64::to_le_bytes).concat();
    let tokens = |ids: &[u32]| {
        ids.iter()
            .flat_map(|id| id.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let row =
        |first: u64, rows: usize| [&first.to_le_bytes()[..], &vec![0x3c; rows * 128]].concat();
    let writer = br#"{"version":"0.2.0","device":"the CPU reference","driver":"","tier":"none","composed":"off"}"#;
    let saved = vec![
        (2, tokens(&[60, 61, 62])),
        (4, writer.to_vec()),
        (3, row(0, 2)),
        (5, b"{}".to_vec()),
        (6, counts(3, 2)),
    ];
    let mut forgotten = saved.clone();
    forgotten.extend([
        (7, tokens(&[63])),
        (1, counts(1, 1)),
        (2, tokens(&[64, 65])),
        (3, row(1, 1)),
        (6, counts(3, 2)),
        (7, tokens(&[66, 67])),
    ]);
    vec![
        ("saved", input(&saved)),
        ("forgotten", input(&forgotten)),
        ("zeros", vec![0; 40]),
    ]
}

fn check(path: &Path, bytes: &[u8], engine: &Engine) {
    let mut file = match SessionFile::open(path, engine) {
        Ok(file) => file,
        Err(error) => {
            assert!(error.to_string().len() < 4096, "{error}");
            assert_eq!(
                fs::read(path).expect("it is there"),
                bytes,
                "a refused file was changed"
            );
            return;
        }
    };
    let whole = fs::read(path).expect("it is there");
    assert!(bytes.starts_with(&whole), "more than its end was cut off");
    let (tokens, cached, data) = (file.tokens().to_vec(), file.cached(), file.data().to_vec());
    assert!(cached <= tokens.len());
    let mut session = now(engine.session()).expect("there is memory");
    if now(file.restore(&mut session)).is_err() {
        assert_eq!(
            (session.position(), session.tokens().len()),
            (0, 0),
            "a part was restored"
        );
        return;
    }
    assert_eq!(session.tokens(), tokens);
    now(file.save(&mut session, b"again")).expect("it can be written");
    assert_eq!(file.tokens(), tokens);
    drop(file);
    let file =
        SessionFile::open(path, engine).unwrap_or_else(|error| panic!("what was saved: {error}"));
    assert_eq!(
        (file.tokens(), file.cached(), file.data()),
        (&tokens[..], cached, &b"again"[..])
    );
    let _ = data;
}

fuzz_target!(
    init: seeds(examples),
    |data: &[u8]| {
        let Some((how, rest)) = data.split_first() else {
            return;
        };
        let Fuzzed { engine, header } = fuzzed();
        let bytes = match how % 2 {
            0 => [header, rest].concat(),
            _ => records(rest, header.clone()),
        };
        let path = own_file("session");
        fs::write(&path, &bytes).expect("the folder can be written");
        check(&path, &bytes, engine);
        let _ = fs::remove_file(&path);
    }
);
