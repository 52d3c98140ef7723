//! Protects files of sessions with a prediction layer: they keep its rows, and whoever does not use it can go on from them, too.

use super::*;
use glimt::engine::draft::{DraftOptions, DraftSource};
use glimt::engine::{EngineOptions, GpuOptions, Opened};
use glimt::gguf::Gguf;
use glimt::synth::{self, ModelName, Recipe, SynthOptions};

/// A synthetic model on the CPU, with its prediction layer in use or not.
fn engine(bytes: &[u8], source: DraftSource) -> Engine {
    let options = EngineOptions {
        gpu: GpuOptions {
            device: DeviceChoice::Cpu,
            ..GpuOptions::default()
        },
        ctx: Some(64),
        draft: DraftOptions { source, most: None },
        ..EngineOptions::default()
    };
    let gguf = Gguf::from_bytes(bytes.to_vec(), "tiny.gguf").expect("it is whole");
    let opened = Opened::of_gguf(gguf, &options).wait();
    let engine = Engine::load(opened.expect("it has the layer"), &mut |_| {}).wait();
    engine.expect("it is on the CPU")
}

/// A session after `tokens` tokens with made-up rows.
fn session(engine: &Engine, tokens: usize) -> Session {
    files::made_up(engine, tokens, 3)
}

fn rows(session: &mut Session) -> Vec<u8> {
    let all = 0..session.cached();
    session.read_rows(all).wait().expect("they are there")
}

/// The rows of the session that a file has for an engine.
fn restored(path: &Path, engine: &Engine) -> Vec<u8> {
    let mut session = engine.session().wait().expect("there is memory");
    let mut file = open(path, engine);
    file.restore(&mut session).wait().expect("it is whole");
    rows(&mut session)
}

fn save(path: &Path, engine: &Engine, session: &mut Session) {
    let mut file = open(path, engine);
    file.save(session, b"").wait().expect("it can be written");
}

#[test]
fn rows_of_the_prediction_layer_are_kept_where_it_is_in_use() {
    let options = SynthOptions {
        layers: Some(2),
        nextn: true,
        ..SynthOptions::default()
    };
    let bytes = synth::in_memory(ModelName::Tiny, Recipe::Q8_0, &options).expect("it is small");
    let with = engine(&bytes, DraftSource::Mtp);
    let without = engine(&bytes, DraftSource::Off);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let (three, two) = (&mut session(&with, 20), &mut session(&without, 20));
    let (all, of_both) = (rows(three), rows(two));
    assert_eq!((all.len(), of_both.len()), (20 * 3 * 576, 20 * 2 * 576));

    save(&path("three"), &with, three);
    assert!(restored(&path("three"), &with) == all);
    assert!(restored(&path("three"), &without) == all[..of_both.len()]);
    save(&path("two"), &without, two);
    let mut filled = of_both.clone();
    filled.resize(all.len(), 0);
    assert!(restored(&path("two"), &with) == filled);
    // A file stays what it was begun as.
    save(&path("two"), &with, three);
    assert!(restored(&path("two"), &without) == all[..of_both.len()]);
    save(&path("three"), &without, two);
    assert!(restored(&path("three"), &with) == filled);
}
