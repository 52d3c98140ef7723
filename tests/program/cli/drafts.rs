//! Protects the flags of drafts: an answer with drafts is the answer without, and rows of `bench` tell how many were accepted.

use super::{failure, greedy_text, json, run, stderr, stdout, text};

#[test]
fn an_answer_with_drafts_is_that_without_and_its_line_tells_of_them() {
    let tale = "The king said: bring me the fox. The king said: bring me the fox. The king said:";
    let plain = greedy_text(&["-n", "16", "--draft", "off", tale]);
    // llama.cpp's names of the same.
    let flags = [
        "-n",
        "16",
        "--spec-type",
        "ngram-simple",
        "--spec-draft-n-max",
        "4",
        tale,
    ];
    assert_eq!(greedy_text(&flags), plain);

    let refused = run(&["generate", "--device", "cpu", "--draft", "mtp", "Hello"]);
    assert!(!refused.status.success());
    let told = stderr(&refused);
    assert!(
        told.contains("prediction layer") || told.contains("nextn"),
        "{told}"
    );
    for (flags, expected) in [
        (["--draft", "3"], "--draft-max 3"),
        (["--draft", "some"], "auto, off, mtp or ngram"),
        (["--draft-min", "1"], "the share that is accepted"),
    ] {
        let message = failure(&[&["generate"], &flags[..], &["Hello"]].concat(), 2);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn bench_follows_a_text_and_tells_of_its_drafts() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("tale.txt");
    std::fs::write(&path, "The king and the fox. ".repeat(40)).expect("there is room");
    let path = path.display().to_string();
    let bench = [
        "bench", "--device", "cpu", "-p", "0", "-n", "24", "-r", "1", "-o", "jsonl",
    ];
    let drafted = ["--draft", "ngram", "--text", &path];
    let output = run(&[&bench[..], &drafted].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let row = json(stdout(&output));
    assert_eq!(row["draft"], "ngram text");
    // The text repeats itself, so every draft is what follows.
    assert_eq!(row["accepted"], row["drafted"], "{row}");
    let row = json(&text(&bench));
    assert!(row["draft"].is_null() && row["drafted"].is_null(), "{row}");
    let long = [
        "bench", "--device", "cpu", "-n", "900", "--draft", "ngram", "--text", &path,
    ];
    let output = run(&long);
    assert!(
        stderr(&output).contains("give a longer one"),
        "{}",
        stderr(&output)
    );
    let wrong = ["bench", "--draft", "mtp", "--accept", "0.5,0.9"];
    assert!(failure(&wrong, 2).contains("0.83,0.65,0.49"));
}
