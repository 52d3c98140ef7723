//! Protects against files that are cut while they are used: the process ends with a sentence.

use std::io::Read;
use std::process::Stdio;

use super::{EMBEDDED, GREEDY, error_line, glimt, write};

#[cfg(unix)]
#[test]
fn a_file_that_is_cut_while_the_cpu_reads_it_ends_in_a_sentence() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let model = write(directory.path(), "cut.gguf", EMBEDDED);
    let mut child = glimt(&[&GREEDY[..], &["-m", &model, "-c", "0", "A fox"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    let mut answer = child.stdout.take().expect("it is piped");
    // It has begun; nobody reads on, so that it is still there when the file is cut.
    let mut first = [0; 1];
    answer.read_exact(&mut first).expect("an answer");
    let file = std::fs::OpenOptions::new().write(true).open(&model);
    let cut = file.and_then(|file| file.set_len(4096));
    cut.expect("the temporary directory is writable");
    let reader = std::thread::spawn(move || answer.read_to_end(&mut vec![]));
    let output = child.wait_with_output().expect("it was started");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(error_line(&told).contains("was cut"), "{told}");
    reader.join().expect("reading ends").expect("a pipe");
}
