//! Protects against damaged files: each ends in a sentence, without a crash, and `inspect` tells what `generate` would refuse.

use std::process::Output;
use std::time::{Duration, Instant};

use glimt::gguf::Gguf;

use super::memory::measured;
use super::random::{Rng, rounds};
use super::{EMBEDDED, error_line, stderr, write};

/// The built-in model with one to three places of its metadata and tensor table overwritten, or cut.
fn damaged(numbers: &mut Rng) -> Vec<u8> {
    let model = Gguf::from_bytes(EMBEDDED, "built-in model").expect("it is sound");
    let weights: u64 = model.tensors().iter().map(|t| t.byte_len()).sum();
    // Behind the tables the weights lie, which a change makes only worse.
    let tables = EMBEDDED.len() - weights as usize;
    let mut bytes = EMBEDDED.to_vec();
    if numbers.below(10) == 0 {
        bytes.truncate(numbers.below(EMBEDDED.len()));
        return bytes;
    }
    for _ in 0..=numbers.below(3) {
        // Most of the tables is vocabulary, so their beginning is hit more often.
        let reach = [64, 4096, tables][numbers.below(3)];
        let at = numbers.below(reach.min(tables - 8));
        match numbers.below(4) {
            0 => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes[at] = numbers.below(256) as u8,
            2 => bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes()),
            _ => bytes[at..at + 8].fill(0),
        }
    }
    bytes
}

/// Whether a command refused the file; it must have ended in order.
fn refused(output: &Output, what: &str) -> bool {
    match output.status.code() {
        Some(0) => false,
        Some(1) => {
            error_line(stderr(output));
            true
        }
        _ => panic!("{what}: {:?}: {}", output.status, stderr(output)),
    }
}

#[test]
fn damaged_files_end_in_a_sentence() {
    let files = rounds(40);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut numbers = Rng::fresh();
    let (mut passed, mut most) = (0, 0);
    for i in 0..files {
        let what = format!("file {i}");
        let model = write(directory.path(), "damaged.gguf", &damaged(&mut numbers));
        let began = Instant::now();
        let (inspected, to_inspect) = measured(&["inspect", &model]);
        let prompt = ["generate", "--device", "cpu", "-n", "1", "Hello", "-m"];
        let (generated, to_generate) = measured(&[&prompt[..], &[&model]].concat());
        most = most.max(to_inspect).max(to_generate);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(60), "{what}: {took:?}");
        let refusals = [refused(&inspected, &what), refused(&generated, &what)];
        let told = stderr(&generated);
        // Numbers that are not finite are seen only by computing, and a missing or broken template is told in the line of the template.
        let only_generated = ["not finite", "has no chat template", "cannot chat"];
        let computed = only_generated.iter().any(|why| told.contains(why));
        let both = [stderr(&inspected), told];
        assert!(computed || refusals[0] == refusals[1], "{what}: {both:?}");
        passed += usize::from(!refusals[1]);
    }
    assert!(passed < files, "nothing was refused");
    assert!(most < 1 << 30, "{most} bytes");
}
