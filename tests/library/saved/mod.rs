//! Protects session files and what they rest on: rows that are read and written again are the same bits, a conversation goes on from its
//! file as if it had never been interrupted, and a file that is cut, damaged or foreign is refused or has its last whole commit.

mod damage;
mod files;
mod nextn;
mod rewrites;
mod rows;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use glimt::engine::{
    DeviceChoice, Engine, Sampling, Session, SessionFile, SessionFileError, Tier, Wait,
};

use crate::built_in::{self, last_logits};

/// The built-in model on a device with a context of 256 tokens.
fn engine_on(device: DeviceChoice, tier: Option<Tier>) -> Engine {
    built_in::engine_on(device, tier, Some(256))
}

/// On the CPU reference.
fn cpu() -> Engine {
    engine_on(DeviceChoice::Cpu, None)
}

/// On the CPU and on the first adapter, even if it is software.
fn engines() -> [Engine; 2] {
    [cpu(), engine_on(DeviceChoice::Index(0), None)]
}

/// These, with a cache in q8_0 besides, and models of the other family on the CPU.
fn engines_of_families() -> Vec<Engine> {
    let with_codes = [DeviceChoice::Cpu, DeviceChoice::Index(0)];
    engines()
        .into_iter()
        .chain(with_codes.map(built_in::engine_with_codes))
        .chain(built_in::grouped_on_cpu(256))
        .collect()
}

fn encode(engine: &Engine, text: &str) -> Vec<u32> {
    let tokens = engine.tokenizer().encode(text, false);
    tokens.expect("plain text")
}

/// Says `prompt` and an answer of `n` tokens, which are returned.
fn say(session: &mut Session, prompt: &str, n: usize) -> Vec<u32> {
    let mut answer = vec![];
    let prompt = encode(session.engine(), prompt);
    let stats = session
        .generate(&prompt, &Sampling::GREEDY, n, &mut |token| {
            answer.push(token);
            ControlFlow::Continue(())
        })
        .wait();
    stats.expect("it fits");
    answer
}

fn open(path: &Path, engine: &Engine) -> SessionFile {
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        match SessionFile::open(path, engine) {
            // A program that another test starts has the open files of this one for a moment, and so their locks.
            Err(SessionFileError::InUse { .. }) if Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// Why a file is not opened.
fn refusal(path: &Path, engine: &Engine) -> String {
    let error = SessionFile::open(path, engine).err();
    error.expect("it must be refused").to_string()
}
