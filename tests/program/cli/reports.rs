//! Protects the commands that report: tokenize, logits, perplexity, inspect, devices.

use serde_json::Value;

use super::{EMBEDDED, error_line, failure, glimt, greedy_text, json, run, stderr, text, write};

#[test]
fn tokenize_prints_ids_and_pieces() {
    let tokens = json(&text(&["tokenize", "--json", "<|user|>Once upon a time"]));
    let ids: Vec<u64> = tokens["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    let pieces = tokens["pieces"].as_array().expect("a list");
    assert_eq!(ids.len(), pieces.len());
    // 4 is <|user|> in the built-in vocabulary: a special token, not its letters.
    assert_eq!(ids[0], 4);
    assert_eq!(pieces[0], "<|user|>");
    let joined: String = pieces[1..]
        .iter()
        .map(|piece| piece.as_str().unwrap())
        .collect();
    assert_eq!(joined, "Once upon a time");
    let lines = text(&["tokenize", "<|user|>Once upon a time"]);
    assert_eq!(lines.lines().count(), ids.len());
    assert_eq!(
        json(&text(&["tokenize", "--json", ""]))["ids"],
        serde_json::json!([])
    );
}

#[test]
fn logits_are_probabilities_best_first() {
    let lines = text(&[
        "logits", "--device", "cpu", "--tokens", "1,2,4,60", "--top", "all",
    ]);
    let rows: Vec<Value> = lines.lines().map(json).collect();
    assert_eq!(rows.len(), 4);
    for (pos, (row, token)) in rows.iter().zip([1, 2, 4, 60]).enumerate() {
        assert_eq!(row["pos"], pos);
        assert_eq!(row["token"], token);
        let top: Vec<(u64, f64)> = row["top"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_f64().unwrap()))
            .collect();
        assert_eq!(top.len(), 4096);
        let sum: f64 = top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "position {pos}: {sum}");
        assert!(
            top.windows(2).all(|pair| pair[0].1 >= pair[1].1),
            "position {pos}"
        );
        let mut ids: Vec<u64> = top.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..4096), "position {pos}");
    }
    let short = text(&["logits", "--device", "cpu", "--tokens", "1,2", "--top", "3"]);
    for (line, row) in short.lines().zip(&rows) {
        assert_eq!(
            json(line)["top"].as_array().unwrap()[..],
            row["top"].as_array().unwrap()[..3]
        );
    }
    let message = failure(&["logits", "--device", "cpu", "--tokens", "1,4096"], 1);
    assert!(error_line(&message).contains("4096 tokens"), "{message}");
}

#[test]
fn perplexity_reports_text_and_json() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tale = greedy_text(&["-n", "150", "Once upon a time"]);
    let file = write(directory.path(), "tale.txt", tale.as_bytes());
    let args = ["perplexity", "--device", "cpu", "-c", "32", "-f", &file];
    let line = text(&args);
    let report = json(&text(&[&args[..], &["--json"]].concat()));
    let perplexity = report["perplexity"].as_f64().expect("a number");
    assert!(
        line.starts_with(&format!("PPL = {perplexity:.4} +/- ")),
        "{line}"
    );
    // The model's own greedy choice surprises it little; a uniform guess would be 4096.
    assert!((1.0..20.0).contains(&perplexity), "{report}");
    let (tokens, chunks) = (
        report["tokens"].as_u64().unwrap(),
        report["chunks"].as_u64().unwrap(),
    );
    assert_eq!(chunks, tokens / 32);
    assert_eq!(report["scored"], chunks * 15);
    // Of a chunk of three tokens one is scored, of a shorter one none.
    let chunked = |chunk| {
        [
            "perplexity",
            "--device",
            "cpu",
            "--json",
            "-f",
            &file,
            "-c",
            chunk,
        ]
    };
    let report = json(&text(&chunked("3")));
    assert_eq!(report["scored"], report["chunks"]);
    for chunk in ["1", "2"] {
        let message = failure(&chunked(chunk), 2);
        assert!(error_line(&message).contains("-c 3"), "{message}");
    }
    let message = failure(&["perplexity", "--device", "cpu", "-f", &file], 1);
    let error = error_line(&message);
    assert!(
        error.contains(&format!("{tokens} tokens")) && error.contains("1024"),
        "{error}"
    );
}

/// tests/data/perplexity.txt was written by the model itself. The figure is that of llama-perplexity (ggml 0.25.3,
/// `-c 64 -b 64 -fa off`) on the built-in model's weights dequantised to F32, so that llama.cpp does not quantise
/// activations: `Final estimate: PPL = 7.1025 +/- 0.72528`.
#[test]
fn perplexity_agrees_with_llama_perplexity() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/perplexity.txt");
    let args = [
        "perplexity",
        "--cpu-products",
        "exact",
        "--device",
        "cpu",
        "-c",
        "64",
        "--json",
        "-f",
        file,
    ];
    let report = json(&text(&args));
    assert_eq!(report["chunks"], 8);
    let near = |key: &str, expected: f64| {
        let value = report[key].as_f64().expect("a number");
        assert!(
            (value / expected - 1.0).abs() < 5e-4,
            "{key}: {value}, not {expected}"
        );
    };
    near("perplexity", 7.1025);
    near("error", 0.72528);
}

#[test]
fn inspect_tells_the_model_and_its_memory() {
    let report = json(&text(&["inspect", "--json", "--ctx", "1000"]));
    assert_eq!(report["gguf_version"], 3);
    assert_eq!(report["file_bytes"], EMBEDDED.len());
    assert_eq!(report["memory"]["ctx"], 1000);
    // 6 layers of 576 halves.
    assert_eq!(report["memory"]["cache"], 1000 * 6 * 576 * 2);
    let scratch = report["memory"]["scratch"].as_u64();
    // The CPU reference takes hardly any beside the cache.
    let on_cpu = report["adapter"].is_null();
    assert!(
        scratch.is_some_and(|bytes| on_cpu == (bytes == 0)),
        "{report}"
    );
    let rows = report["tensors"].as_array().expect("a list");
    let count: u64 = rows
        .iter()
        .map(|row| row["tensors"].as_u64().unwrap())
        .sum();
    assert_eq!(count, 105);
    let parameters: u64 = rows
        .iter()
        .map(|row| row["parameters"].as_u64().unwrap())
        .sum();
    assert_eq!(report["parameters"], parameters);
    let page = text(&["inspect"]);
    for expected in ["Tales 16M", "deepseek2", "Q4_K", "2048"] {
        assert!(page.contains(expected), "{expected} is not in: {page}");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = write(directory.path(), "tales.gguf", EMBEDDED);
    let same = json(&text(&["inspect", "--json", "--ctx", "1000", &file]));
    assert_eq!(same["tensors"], report["tensors"]);
    // All layers of this model have experts.
    let file = directory.path().join("moe.gguf");
    let file = file.to_str().expect("it is UTF-8");
    text(&["synth", "tiny-qwen3moe", "q4_0", file]);
    let page = text(&["inspect", file]);
    let dense = page.lines().find(|line| line.starts_with("dense ff"));
    assert_eq!(dense, Some("dense ff     none"), "{page}");
}

#[test]
fn inspect_tells_the_memory_of_the_device_that_generate_takes() {
    let page = |args: &[&str]| text(&[&["inspect", "--ctx", "100"], args].concat());
    let on_cpu = page(&["--device", "cpu"]);
    assert!(
        on_cpu.contains("on CPU with ") && on_cpu.contains(": enough"),
        "{on_cpu}"
    );
    let output = run(&["generate", "--raw", "-n", "1", "-c", "100", "Hello"]);
    let told = stderr(&output);
    let device = told.split("device: ").nth(1).expect("the device is told");
    let device = device.split([';', '(']).next().expect("its name").trim();
    assert!(page(&[]).contains(&format!("on {device}: ")), "{device}");
    // The variable counts for inspect, too, and flags that generate refuses are refused.
    let output = glimt(&["inspect"]).env("GLIMT_DEVICE", "no such").output();
    let output = output.expect("the binary was built with this test");
    assert!(error_line(stderr(&output)).contains("no such"));
    let output = run(&["inspect", "--device", "cpu", "--tier", "int8"]);
    assert!(error_line(stderr(&output)).contains("--tier"));
}

#[test]
fn devices_lists_the_cpu_reference() {
    assert!(text(&["devices"]).contains("cpu: CPU with "));
    let listing = json(&text(&["devices", "--json"]));
    assert_eq!(listing["cpu"]["device"], "cpu");
    let adapters = listing["adapters"].as_array().expect("a list");
    for adapter in adapters {
        let machine = &adapter["machine"];
        let cores = machine["cores"].as_u64().expect("a number of cores");
        assert!(cores > 0 && machine["profile"].is_string(), "{adapter}");
        let told = text(&["devices"]);
        assert!(told.contains(&format!("{cores} cores")), "{told}");
    }
}

#[test]
fn a_synthetic_model_loads_and_answers() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("tiny.gguf");
    let file = file.to_str().expect("temporary paths are UTF-8 here");
    assert_eq!(
        text(&[
            "synth", "tiny", "q4_0", file, "--layers", "2", "--seed", "5"
        ]),
        ""
    );
    let report = json(&text(&["inspect", "--json", file]));
    assert_eq!(report["model"]["block_count"], 2);
    text(&[
        "generate", "-m", file, "--device", "cpu", "--raw", "-n", "4", "a",
    ]);
    let message = failure(&["generate", "-m", file, "--device", "cpu", "a"], 1);
    assert!(error_line(&message).contains("--raw"), "{message}");
    failure(&["synth", "no-such-model", "q4_0", file], 2);
    let message = failure(&["synth", "tiny", "q4_0", "no/such/folder/out.gguf"], 1);
    assert!(error_line(&message).contains("no/such/folder"), "{message}");
}
