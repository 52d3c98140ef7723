//! Protects the polled core: nothing blocks a thread but the wrappers for native builds, and only measurements call these.

use super::source::tokens;
use super::sources;

/// The rooms that a browser needs to compute.
const CORE: [&str; 4] = ["gpu", "kernels", "models", "engine"];
/// The files that may block: the wrappers for native builds.
const WRAPPERS: [&str; 6] = [
    "gpu::wait",
    "engine::wait",
    "engine::gpu::wait",
    "engine::chooser::wait",
    "engine::scheduler::turns::wait",
    "engine::scheduler::wait",
];
/// The files that may call the wrappers: measurements, which native builds alone make.
const MEASUREMENTS: [&str; 3] = [
    "engine::bandwidth",
    "engine::gpu::measure",
    "engine::gpu::tune",
];
/// The phrases of code that block.
const BLOCKING: [&str; 9] = [
    "PollType::Wait",
    "PollType::wait",
    "block_on",
    "thread::",
    ".recv()",
    ".recv_timeout(",
    "sleep(",
    "park(",
    "Condvar",
];
/// The wrappers under their own names: the core takes those with `async`.
const WAITING: [&str; 20] = [
    "complete(",
    "Gpu::open(",
    "Recording::new(",
    "Stamps::new(",
    "Stamps::empty_pass(",
    "GpuModel::load(",
    "GpuModel::load_precomposed(",
    "GpuBackend::new(",
    "GpuBackend::with_chunk(",
    "gpu.wait(",
    "gpu().wait(",
    "gpu.storage(",
    "gpu.storage_with(",
    ".realise(",
    "gpu.read::<",
    "gpu.map_read(",
    "gpu.pipelines(",
    "wait::in_turn(",
    "wait::repeats(",
    "wait::repeated(",
];

/// Where the core says any of `phrases`: the file and the phrase.
fn found(phrases: &[&str]) -> Vec<(String, String)> {
    let phrases: Vec<_> = phrases.iter().map(|phrase| tokens(phrase)).collect();
    let sources = sources();
    let mut found = vec![];
    for (module, code) in sources.code() {
        if !module.first().is_some_and(|room| CORE.contains(&&**room)) {
            continue;
        }
        for phrase in &phrases {
            let said = code.windows(phrase.len()).any(|said| said == phrase);
            if said {
                found.push((module.join("::"), phrase.concat()));
            }
        }
    }
    found
}

/// The entries of `found` outside of `files`, a line each.
fn beside(found: &[(String, String)], files: &[&str]) -> String {
    let others = found
        .iter()
        .filter(|(file, _)| !files.contains(&&**file))
        .map(|(file, phrase)| format!("{file}: {phrase}"));
    others.collect::<Vec<_>>().join("\n")
}

#[test]
fn nothing_blocks_but_the_wrappers_for_native_builds() {
    let found = found(&BLOCKING);
    assert!(found.len() > 3, "the wrappers block otherwise now");
    let wrong = beside(&found, &WRAPPERS);
    assert!(wrong.is_empty(), "these files block:\n{wrong}");
}

#[test]
fn only_measurements_call_what_waits() {
    let found = found(&WAITING);
    assert!(found.len() > 10, "the wrappers have other names now");
    let wrong = beside(&found, &[&WRAPPERS[..], &MEASUREMENTS].concat());
    assert!(wrong.is_empty(), "these files wait:\n{wrong}");
}
