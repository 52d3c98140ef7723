//! Protects against files that were cut, damaged or written for something else: they are refused, or have their last whole commit.

use super::*;

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
}
