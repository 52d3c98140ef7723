//! Tables of the documents that tests compute.

use std::sync::Mutex;

use crate::ROOT;

/// Compares the table of a document that begins with `head`, or writes it anew if `GLIMT_WRITE` is set.
///
/// # Panics
/// If the document has another table, or cannot be read.
pub fn compare(document: &str, head: &str, table: &str) {
    // Two tests may write the file.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one = WRITING.lock().unwrap_or_else(|e| e.into_inner());
    let path = format!("{ROOT}/{document}");
    let written = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    println!("{table}");
    let begin = written.find(head).expect("it has the table");
    let end = written[begin..].find("\n\n").map(|end| begin + end + 1);
    let end = end.unwrap_or(written.len());
    if std::env::var_os("GLIMT_WRITE").is_some() {
        let new = [&written[..begin], table, &written[end..]].concat();
        std::fs::write(&path, new).unwrap_or_else(|e| panic!("{path}: {e}"));
        return;
    }
    for (now, then) in table.lines().zip(written[begin..end].lines()) {
        assert_eq!(now, then, "GLIMT_WRITE=1 writes {path} anew");
    }
    assert_eq!(table, &written[begin..end], "{path}");
}
