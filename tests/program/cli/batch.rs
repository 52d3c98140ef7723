//! Protects who has many requests answered: each has its answer exactly once, whatever ends a run, and what is wrong is told by its line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

#[cfg(unix)]
use super::random::{Rng, rounds};
use super::{error_line, failure, glimt, run, stderr, stdout, write};

/// A line of a batch.
fn request(custom_id: &str, url: &str, body: &Value) -> String {
    format!(
        "{}\n",
        json!({"custom_id": custom_id, "method": "POST", "url": url, "body": body})
    )
}

/// Requests of several kinds, with texts of several writings.
fn requests(count: usize, tokens: usize) -> String {
    let line = |i: usize| match i % 3 {
        0 => {
            let body = json!({"prompt": "Once upon a time", "max_tokens": 1 + (i * 7) % tokens, "temperature": 0});
            request(&format!("text-{i}"), "/v1/completions", &body)
        }
        1 => {
            let body = json!({"messages": [{"role": "user", "content": "讲一个狐狸的故事。"}], "max_tokens": tokens, "seed": i});
            request(&format!("狐狸-{i}"), "/v1/chat/completions", &body)
        }
        _ => {
            let body = json!({"prompt": "The crow", "max_tokens": 2, "temperature": 101});
            request(&format!("wrong-{i}"), "/v1/completions", &body)
        }
    };
    (0..count).map(line).collect()
}

/// The `custom_id` of each line.
fn ids(path: &str) -> Vec<String> {
    let text = fs::read_to_string(path).expect("the file is there");
    let id = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"));
        value["custom_id"].as_str().expect("a text").to_owned()
    };
    text.lines().map(id).collect()
}

fn batch<'a>(files: &[&'a str]) -> Vec<&'a str> {
    [&["batch", "--device", "cpu", "-c", "128"], files].concat()
}

/// Runs a batch that must succeed, also if requests fail; what it told.
fn done(files: &[&str]) -> String {
    let output = run(&batch(&[&["--allow-errors"], files].concat()));
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output).to_owned()
}

/// The lines of a file by their `custom_id`.
fn answers(path: &str) -> BTreeMap<String, Value> {
    let text = fs::read_to_string(path).expect("the file is there");
    let lines = text.lines().map(|line| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"));
        (
            value["custom_id"].as_str().expect("a text").to_owned(),
            value,
        )
    });
    let all: Vec<_> = lines.collect();
    let map: BTreeMap<_, _> = all.iter().cloned().collect();
    assert_eq!(map.len(), all.len(), "one is answered twice");
    map
}

#[test]
fn answers_have_openais_form_and_errors_are_answers() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(6, 8).as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    let told = done(&[&input, &output]);
    assert!(
        told.contains("6 of 6 requests answered (2 errors)"),
        "{told}"
    );
    assert!(
        told.contains("the CPU computes, more slowly than a GPU would"),
        "{told}"
    );
    let found = answers(&output);
    let text = &found["text-0"];
    assert_eq!(text["error"], Value::Null);
    assert_eq!(text["response"]["status_code"], 200);
    assert!(
        text["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("batch_req_"))
    );
    assert!(text["response"]["request_id"].is_string());
    assert_eq!(text["response"]["body"]["object"], "text_completion");
    let chat = &found["狐狸-1"]["response"]["body"];
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(chat["usage"]["completion_tokens"], 8);
    let wrong = &found["wrong-2"]["response"];
    assert_eq!(wrong["status_code"], 400);
    assert_eq!(wrong["body"]["error"]["param"], "temperature");
    // Again, nothing is computed, and nothing is changed.
    let before = fs::read(&output).expect("it is there");
    let told = done(&[&input, &output]);
    assert!(
        told.contains("answered in") && !told.contains("device:"),
        "{told}"
    );
    assert_eq!(fs::read(&output).expect("it is there"), before);
}

#[test]
fn requests_that_failed_are_a_failure_unless_that_is_allowed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(6, 2).as_bytes());
    let [output, errors] =
        ["out.jsonl", "err.jsonl"].map(|name| folder.path().join(name).display().to_string());
    // The second time all answers are there.
    for _ in 0..2 {
        let told = failure(&batch(&[&input, &output]), 1);
        let error = error_line(&told);
        assert!(error.starts_with("2 of 6 requests failed"), "{error}");
        assert!(
            error.contains("out.jsonl") && error.contains("--allow-errors"),
            "{error}"
        );
    }
    done(&[&input, &output]);
    fs::remove_file(&output).expect("it is there");
    let told = failure(&batch(&[&input, &output, "--errors", &errors]), 1);
    assert!(
        error_line(&told).contains("err.jsonl has their errors"),
        "{told}"
    );
    let good: String = requests(2, 2);
    let input = write(folder.path(), "good.jsonl", good.as_bytes());
    let output = folder.path().join("good-out.jsonl").display().to_string();
    assert!(run(&batch(&[&input, &output])).status.success());
}

#[test]
fn names_of_models_are_checked_before_one_is_loaded() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let body = |model: &str| json!({"model": model, "prompt": "A", "max_tokens": 1});
    let of = |i: usize, model: &str| request(&i.to_string(), "/v1/completions", &body(model));
    let text = [
        of(1, "glimt"),
        of(2, "fable"),
        of(3, "fable"),
        of(4, "saga"),
    ]
    .concat();
    let input = write(folder.path(), "in.jsonl", text.as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    // There is no such device, which would be found out when the model is loaded.
    let nowhere = ["batch", "--device", "no-such-device", "--strict-model"];
    let args = [&nowhere[..], &[&*input, &*output]].concat();
    let told = failure(&args, 1);
    let error = error_line(&told);
    for expected in ["line 2", "'fable'", "'glimt'", "3 lines", "--alias"] {
        assert!(error.contains(expected), "{error}");
    }
    let args = [&args[..], &["--alias", "fable"]].concat();
    assert!(error_line(&failure(&args, 1)).contains("line 1"));
}

#[test]
fn errors_have_a_file_of_their_own_where_it_is_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(9, 4).as_bytes());
    let [output, errors] =
        ["out.jsonl", "err.jsonl"].map(|name| folder.path().join(name).display().to_string());
    let all = [&*input, &*output, "--errors", &*errors, "--ordered"];
    done(&all);
    assert_eq!(
        ids(&output),
        ["text-0", "狐狸-1", "text-3", "狐狸-4", "text-6", "狐狸-7"]
    );
    assert_eq!(ids(&errors), ["wrong-2", "wrong-5", "wrong-8"]);
    assert!(done(&all).contains("9 answers kept from before (3 errors)"));
    // Without them they are asked once more, but not in order.
    fs::remove_file(&errors).expect("it is there");
    let refused = failure(&batch(&all), 1);
    assert!(
        error_line(&refused).contains("without --ordered"),
        "{refused}"
    );
    done(&all[..4]);
    assert_eq!(ids(&errors).len(), 3);
}

#[test]
fn what_a_kill_leaves_of_a_line_is_computed_again() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(5, 4).as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    done(&[&input, &output, "--ordered"]);
    let whole = fs::read(&output).expect("it is there");
    let last = whole[..whole.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .expect("lines");
    let first = whole.iter().position(|byte| *byte == b'\n').expect("lines");
    // Nothing of the last line, a part, all but its line break; then with zeros behind it, and the first line alone.
    for end in [
        last + 1,
        last + 2,
        last + 30,
        whole.len() - 2,
        whole.len() - 1,
        first + 1,
        first / 2,
        0,
    ] {
        for zeros in [0, 7] {
            if zeros > 0 && (end == whole.len() - 1 || end == 0) {
                continue;
            }
            let mut cut = whole[..end].to_vec();
            cut.resize(end + zeros, 0);
            fs::write(&output, &cut).expect("it can be written");
            let told = done(&[&input, &output, "--ordered"]);
            let found = ids(&output);
            assert_eq!(
                found,
                ["text-0", "狐狸-1", "wrong-2", "text-3", "狐狸-4"],
                "{end} {zeros}"
            );
            let kept = cut
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            let now = fs::read(&output).expect("it is there");
            assert_eq!(now[..kept], whole[..kept], "{end}: {told}");
        }
    }
}

#[test]
fn lines_that_cannot_be_asked_are_told_by_their_numbers() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let good = request(
        "a",
        "/v1/completions",
        &json!({"prompt": "A", "max_tokens": 1}),
    );
    let lines = [
        &*good,
        "\n",
        &good,
        "{\"custom_id\": \"b\"\n",
        &good.replace("\"a\"", "\"c\"").replace("POST", "GET"),
        &request("d", "/v1/embeddings", &json!({})),
    ];
    let input = write(folder.path(), "in.jsonl", lines.concat().as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    let message = failure(&batch(&[&input, &output]), 1);
    assert!(
        error_line(&message).contains("4 lines cannot be asked"),
        "{message}"
    );
    for part in [
        "line 3 has the custom_id of line 1, \"a\"",
        "line 4 is not JSON",
        "line 5 'method' is \"GET\"; expected \"POST\"",
        "line 6 'url' is \"/v1/embeddings\"; expected /v1/chat/completions or /v1/completions",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(!Path::new(&output).exists());
    let empty = write(folder.path(), "empty.jsonl", b"\n \n");
    assert!(failure(&batch(&[&empty, &output]), 1).contains("nothing is asked"));
    let missing = failure(&batch(&["no.jsonl", &output]), 1);
    assert!(
        error_line(&missing).contains("cannot read no.jsonl"),
        "{missing}"
    );
    let not_text = write(folder.path(), "bytes.jsonl", b"{\"custom_id\": \"\xff\"}\n");
    assert!(failure(&batch(&[&not_text, &output]), 1).contains("line 1 is not JSON"));
}

#[test]
fn files_of_others_are_refused_and_stay_as_they_are() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(3, 2).as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    done(&[&input, &output]);
    let answered = fs::read(&output).expect("it is there");
    for (was, is, part) in [
        (
            "Once",
            "Twice",
            "answers another request named \"text-0\" than line 1 asks",
        ),
        (
            "狐狸-1",
            "狐狸-9",
            "answers a request that is not asked, \"狐狸-1\"",
        ),
    ] {
        let others = requests(3, 2).replace(was, is);
        let changed = write(folder.path(), "changed.jsonl", others.as_bytes());
        let message = failure(&batch(&[&changed, &output]), 1);
        assert!(error_line(&message).contains(part), "{message}");
    }
    let message = failure(&batch(&[&input, &output, "--alias", "other"]), 1);
    assert!(
        message.contains("the model 'glimt', and not of 'other'"),
        "{message}"
    );
    for content in ["My diary\nDay one", "My diary", "{\"id\": 7}\n", "[]"] {
        let diary = write(folder.path(), "diary.txt", content.as_bytes());
        let message = failure(&batch(&[&input, &diary]), 1);
        assert!(
            error_line(&message).contains("name another file"),
            "{message}"
        );
        assert_eq!(fs::read_to_string(&diary).expect("it is there"), content);
    }
    let message = failure(&batch(&[&input, &input]), 2);
    assert!(error_line(&message).contains("is named twice"), "{message}");
    failure(&batch(&[&input, &output, "--errors", &output]), 2);
    let twice = [&*answered, &*answered].concat();
    fs::write(&output, &twice).expect("it can be written");
    assert!(failure(&batch(&[&input, &output]), 1).contains("a second time"));
    assert_eq!(fs::read(&output).expect("it is there"), twice);
}

#[test]
fn two_runs_do_not_write_the_same_file() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(3, 2).as_bytes());
    let output = write(folder.path(), "out.jsonl", b"");
    let held = fs::OpenOptions::new()
        .append(true)
        .open(&output)
        .expect("it is there");
    held.lock().expect("nobody has it");
    let message = failure(&batch(&[&input, &output]), 1);
    assert!(
        error_line(&message).contains("is being written by another process"),
        "{message}"
    );
    drop(held);
    done(&[&input, &output]);
}

#[test]
fn pipes_are_read_and_written() {
    use std::io::Write;
    use std::process::Stdio;
    let piped = |input: &str| {
        let mut child = glimt(&batch(&["-", "-", "--ordered"]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built with this test");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        child.wait_with_output().expect("it ends")
    };
    let output = piped(&requests(4, 4));
    // One of them is wrong.
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 4);
    assert!(stderr(&output).contains("cannot be gone on with"));
    // The requests before a wrong line are answered.
    let output = piped(&(requests(3, 4) + "{}\n" + &requests(1, 4)));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output).lines().count(), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("line 4 'custom_id' is missing"));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let full = write(folder.path(), "out.jsonl", b"{}\n");
    let message = failure(&batch(&["-", &full]), 1);
    assert!(
        error_line(&message).contains("holds answers already"),
        "{message}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(3, 2).as_bytes());
    let message = failure(&batch(&[&input, "/dev/full"]), 1);
    assert!(
        error_line(&message).contains("cannot write /dev/full: No space left"),
        "{message}"
    );
}

/// Kills a batch at random moments, and goes on each time.
#[cfg(unix)]
fn kill(times: usize, flags: &[&str]) {
    use std::time::Duration;
    let mut rng = Rng::fresh();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let text = requests(30, 24);
    let input = write(folder.path(), "in.jsonl", text.as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    let all = [&[&*input, &*output], flags].concat();
    let mut sizes = vec![0];
    for _ in 0..rounds(times) {
        let mut child = glimt(&batch(&all))
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the binary was built with this test");
        std::thread::sleep(Duration::from_millis(150 + rng.below(500) as u64));
        child.kill().expect("it is a child of this test");
        child.wait().expect("it ends");
        if let Ok(found) = fs::metadata(&output) {
            sizes.push(found.len());
        }
    }
    done(&all);
    let mut found = ids(&output);
    let mut expected: Vec<String> = text
        .lines()
        .map(|line| {
            super::json(line)["custom_id"]
                .as_str()
                .expect("a text")
                .to_owned()
        })
        .collect();
    if !flags.contains(&"--ordered") {
        found.sort();
        expected.sort();
    }
    assert_eq!(found, expected, "{sizes:?}");
}

#[cfg(unix)]
#[test]
#[ignore = "long: scripts/test --all"]
fn kills_lose_nothing() {
    kill(4, &[]);
    kill(3, &["--ordered"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_complete_and_says_how_to_go_on() {
    use std::time::{Duration, Instant};
    let folder = tempfile::tempdir().expect("a temporary directory");
    let line = |i: usize| {
        let body = json!({"prompt": "Once", "max_tokens": 20, "ignore_eos": true});
        request(&format!("{i}"), "/v1/completions", &body)
    };
    let text: String = (0..200).map(line).collect();
    let input = write(folder.path(), "in.jsonl", text.as_bytes());
    let output = folder.path().join("out.jsonl").display().to_string();
    let child = glimt(&batch(&[&input, &output]))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    let until = Instant::now() + Duration::from_secs(60);
    while fs::read(&output).map_or(0, |found| found.len()) < 500 {
        assert!(Instant::now() < until, "nothing is answered");
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: it takes two numbers; the process is a child of this one, and was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    let told = stderr(&ended);
    assert!(
        told.contains("of 200 requests answered") && told.contains("the same command goes on"),
        "{told}"
    );
    let found = fs::read_to_string(&output).expect("it is there");
    assert!(found.ends_with('\n') && ids(&output).len() < 200, "{told}");
}

/// On a GPU several are answered at once.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_gpu_answers_several_at_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let input = write(folder.path(), "in.jsonl", requests(14, 8).as_bytes());
    for flags in [&[][..], &["--ordered", "--cache-tokens", "256"]] {
        let output = folder
            .path()
            .join(format!("out-{}.jsonl", flags.len()))
            .display()
            .to_string();
        let args = [
            "batch",
            "--device",
            "0",
            "--tier",
            "subgroup",
            "-c",
            "128",
            "--parallel",
            "4",
            &input,
            &output,
        ];
        let ended = run(&[&args, flags].concat());
        assert!(ended.status.success(), "{ended:?}");
        assert!(
            stderr(&ended).contains("up to 4 requests at once"),
            "{}",
            stderr(&ended)
        );
        assert_eq!(answers(&output).len(), 14);
    }
}
