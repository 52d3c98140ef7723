//! Protects the polled core: nothing that a browser runs blocks a thread.

use super::source::tokens;
use super::sources;

/// The rooms that a browser needs.
const CORE: [&str; 7] = [
    "gpu", "kernels", "recipes", "models", "engine", "chat", "web",
];
/// The one file that waits for a device.
const WAITS: &str = "gpu::wait";
/// The files that use threads, which no browser has: they encode a token ahead, read a vocabulary beside the opening of a device, follow a
/// grammar, touch what an idle session needs, read experts before they are asked for, compile beside an answer, and compute on the CPU.
const THREADS: [&str; 7] = [
    "engine::apart",
    "engine::gpu::ahead",
    "engine::gpu::batch::compiled",
    "engine::gpu::pilot",
    "engine::beside",
    "engine::chooser::threads",
    "engine::warm",
];
/// The files that may wait for a future: those which decode, open or compile with a second thread, measurements, comparisons of kernels, and what a
/// program of five lines uses.
const WAITING: [&str; 10] = [
    "kernels::cases::lab",
    "engine::gpu::batch::compiled",
    "engine::gpu::pilot",
    "engine::beside",
    "engine::bandwidth",
    "engine::gpu::measure",
    "engine::gpu::batch::measure",
    "engine::gpu::tune",
    "engine",
    "chat::blocking",
];
/// The calls by which code waits for a device.
const OF_DEVICE: [&str; 3] = ["PollType::Wait", "PollType::wait", "wait_indefinitely"];
/// Other calls that block.
const BLOCKING: [&str; 7] = [
    "block_on",
    "thread::",
    ".recv()",
    ".recv_timeout(",
    "sleep(",
    "park(",
    "Condvar",
];
/// The calls by which code waits for a future.
const OF_FUTURES: [&str; 3] = [".wait()", "complete(", "Wait::wait"];

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
fn only_one_file_waits_for_a_device() {
    let found = found(&OF_DEVICE);
    assert!(!found.is_empty(), "it waits otherwise now");
    let wrong = beside(&found, &[WAITS]);
    assert!(wrong.is_empty(), "these files wait for a device:\n{wrong}");
}

#[test]
fn nothing_that_a_browser_runs_blocks() {
    let found = found(&BLOCKING);
    assert!(found.len() > THREADS.len(), "they block otherwise now");
    let wrong = beside(&found, &[&[WAITS][..], &THREADS].concat());
    assert!(wrong.is_empty(), "these files block:\n{wrong}");
}

#[test]
fn futures_are_awaited_where_a_browser_runs() {
    let found = found(&OF_FUTURES);
    assert!(
        found.len() > WAITING.len(),
        "they are waited for otherwise now"
    );
    let wrong = beside(&found, &[&[WAITS][..], &WAITING].concat());
    assert!(wrong.is_empty(), "these files wait:\n{wrong}");
}
