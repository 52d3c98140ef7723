//! Protects `bench` and `profile`: what they print, on a GPU adapter (a software one will do) and the smallest synthetic model.

use super::{EMBEDDED, error_line, failure, json, run, stderr, stdout, text};

const TINY: [&str; 2] = ["--synthetic", "tiny:q4_0"];

#[test]
fn a_synthetic_model_may_have_its_recipe_in_its_name() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (one, two, three) = (file("one.gguf"), file("two.gguf"), file("three.gguf"));
    text(&["synth", "tiny:q4_0", &one]);
    text(&["synth", "tiny", "q4_0", &two]);
    // The recipe that a name without one means elsewhere, too.
    text(&["synth", "tiny", &three]);
    let read = |path: &str| std::fs::read(path).expect("it was written");
    assert_eq!(read(&one), read(&two));
    text(&["synth", "tiny:q4_k_m", &two]);
    assert_eq!(read(&three), read(&two));
    for (args, told) in [
        (&["synth", "tiny:q4_0", "q4_0", &one][..], "two recipes"),
        (&["synth", "tiny", "q4_0"], "name the file to write"),
    ] {
        let message = failure(args, 2);
        assert!(message.contains(told), "{args:?}: {message}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn bench_says_that_a_tier_leaves_the_cpu() {
    let bench = ["bench", "-p", "4", "-n", "0", "-r", "1", "--tier", "plain"];
    let output = run(&bench);
    let software = stdout(&output).contains("llvmpipe");
    assert_eq!(
        stderr(&output).contains("for --tier plain this leaves the CPU"),
        software,
        "{}",
        stderr(&output)
    );
    let layers = run(&["bench", "-p", "4", "-n", "0", "-r", "1", "-ngl", "99"]);
    if stderr(&layers).contains("only software") {
        let told = "in place of --gpu-layers, --device 0 takes the software";
        assert!(stderr(&layers).contains(told), "{}", stderr(&layers));
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn profile_says_what_it_times() {
    let output = run(&[&["profile", "-n", "2", "-d", "3"][..], &TINY].concat());
    let told = "timing the kernels of 2 decoded tokens at a depth of 3";
    assert!(stderr(&output).contains(told), "{}", stderr(&output));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn bench_compares_tiers_on_a_model_without_a_file() {
    let args = [
        "bench", "--tier", "plain", "--tier", "subgroup", "-p", "9", "-n", "4", "-pg", "5,2", "-d",
        "0,70", "-r", "2", "-o", "jsonl",
    ];
    let lines = text(&[&args[..], &TINY].concat());
    let rows: Vec<_> = lines.lines().map(json).collect();
    assert_eq!(rows.len(), 2 * 2 * 3, "{lines}");
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row["tier"], ["plain", "subgroup"][i / 6], "{row}");
        assert_eq!(row["n_depth"], [0, 70][i / 3 % 2]);
        let (prompt, generate) = [(9, 0), (0, 4), (5, 2)][i % 3];
        assert_eq!(
            (&row["n_prompt"], &row["n_gen"]),
            (&prompt.into(), &generate.into())
        );
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} {b} {row}");
        let samples = row["samples_ns"].as_array().expect("a list");
        assert_eq!(samples.len(), 2);
        let mean: f64 = samples
            .iter()
            .map(|ns| f64::from(prompt + generate) * 1e9 / ns.as_f64().unwrap() / 2.0)
            .sum();
        near(number("avg_ts"), mean);
        assert!(number("peak_gb_per_s") > 0.0);
        if prompt == 0 {
            near(number("gb_per_s"), number("bytes_per_token") * mean / 1e9);
            assert!(number("dispatches_per_token") > 4.0 * 8.0, "{row}");
            let dependent = number("dependent_dispatches_per_token");
            assert!(0.0 < dependent && dependent <= number("dispatches_per_token"));
            assert!(number("host_ms_per_token") > 0.0);
            let idle = &row["gpu_idle"];
            assert!(
                idle.is_null() || (0.0..1.0).contains(&number("gpu_idle")),
                "{row}"
            );
        } else {
            assert!(row["bytes_per_token"].is_null(), "{row}");
        }
        // A submission of a prompt ends before the prompt does.
        let slowest = samples.iter().filter_map(serde_json::Value::as_f64);
        let slowest = slowest.fold(0.0, f64::max) / 1e6;
        let longest = &row["longest_submission_ms"];
        match longest.as_f64() {
            Some(longest) => assert!(prompt > 0 && longest > 0.0 && longest <= slowest, "{row}"),
            None => assert!(prompt == 0 && longest.is_null(), "{row}"),
        }
    }
    // 4 layers, 70 rows of 288 halves more, where depth 0 begins at position 1 too.
    let bytes = |i: usize| rows[i]["bytes_per_token"].as_f64().unwrap();
    assert_eq!(bytes(4) - bytes(1), 4.0 * 69.0 * 288.0 * 2.0);
}

#[test]
fn bench_measures_the_cpu_reference_on_a_file() {
    let lines = text(&[
        "bench", "--device", "cpu", "-p", "3", "-n", "2", "-d", "5", "-r", "1",
    ]);
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(
        lines[0].starts_with("| model                          |       size |     params | backend    |            test |                  t/s |"),
        "{}",
        lines[0]
    );
    assert!(lines[2].contains("| Tales 16M Q4_K "), "{}", lines[2]);
    assert!(lines[2].contains("|        pp3 @ d5 |") && lines[3].contains("|        tg2 @ d5 |"));
    let size = format!("| {:>6.2} MiB |", EMBEDDED.len() as f64 / (1 << 20) as f64);
    // The tensors are nearly all of the file.
    assert!(
        size.starts_with("|   9.") && lines[2].contains("|   9."),
        "{size}"
    );
}

#[test]
#[ignore = "long: scripts/test --all"]
fn products_of_weights_are_chosen_measured_and_told() {
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    let output = run(&words("generate --precompose auto --raw -vn1 Once"));
    let told = stderr(&output);
    for expected in "precompose: | MiB more; ms| off | qk | vo | both ".split('|') {
        assert!(told.contains(expected), "{expected} in {told}");
    }
    let [off, both] = ["off", "both"].map(|choice| {
        let bench = words("bench -p 0 -n 4 -r 1 -o jsonl --precompose");
        let row = json(&text(&[&bench[..], &[choice], &TINY].concat()));
        assert_eq!(row["precompose"], choice);
        row["dispatches_per_token"].as_u64().expect("a number")
    });
    // Without `vo` no dispatch joins the attention's slices, so that it saves none.
    assert_eq!(off - both, 4, "one in each of 4 layers");
    let profile = words("profile -n 1 -o json --precompose vo");
    let line = &json(&text(&[&profile[..], &TINY].concat()))["precompose"];
    let told = line.as_str().expect("a text");
    assert!(told.starts_with("precompose: vo, "), "{told}");
}

#[test]
fn profile_accounts_for_every_dispatch() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let picture = directory.path().join("token.svg");
    let picture = picture.to_str().expect("temporary paths are UTF-8 here");
    for separation in [&[][..], &["--passes"]] {
        let args = [
            "profile", "-n", "3", "-d", "40", "-o", "json", "--svg", picture,
        ];
        let profile = json(&text(&[&args[..], &TINY, separation].concat()));
        let dispatches = profile["dispatches"].as_u64().expect("a number");
        let kernels = profile["kernels"].as_array().expect("a list");
        let calls: u64 = kernels.iter().map(|k| k["calls"].as_u64().unwrap()).sum();
        assert_eq!(calls, dispatches);
        let dependent = profile["dependent_dispatches"].as_u64().expect("a number");
        assert!(0 < dependent && dependent <= dispatches);
        assert_eq!(profile["layers"].as_array().map(Vec::len), Some(4));
        assert_eq!(profile["first_moe"]["layer"], 1);
        for key in ["sum_us", "step_us", "token_us", "peak_gb_per_s"] {
            assert!(profile[key].as_f64().is_some_and(|v| v > 0.0), "{profile}");
        }
        let label = |k: &serde_json::Value| k["label"].as_str().unwrap().to_owned();
        let labels: Vec<_> = kernels.iter().map(label).collect();
        assert!(
            labels
                .iter()
                .any(|l| l.starts_with("token_matvec Q4_0 256x256")),
            "{labels:?}"
        );
        let attention = kernels.iter().find(|k| k["label"] == "attention");
        // 4 layers, rows 0 to 41 at the middle of positions 40, 41, 42.
        assert_eq!(attention.expect("it is there")["bytes"], 4 * 42 * 288 * 2);
        let drawn = std::fs::read_to_string(picture).expect("it was written");
        assert!(drawn.matches("<title>").count() as u64 >= dispatches);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn profile_accounts_for_every_dispatch_of_a_prompt() {
    for separation in [&[][..], &["--passes"]] {
        // Two pieces: 64 and 6 tokens.
        let args = [
            "profile", "--prompt", "70", "-d", "40", "-ub", "64", "-r", "2", "-o", "json",
        ];
        let profile = json(&text(&[&args[..], &TINY, separation].concat()));
        let number = |v: &serde_json::Value| v.as_f64().unwrap_or(f64::NAN);
        assert_eq!(profile["n_prompt"], 70, "{profile}");
        assert_eq!([&profile["n_ubatch"], &profile["piece"]], [64, 64]);
        let rate = number(&profile["prompt_us"]) * number(&profile["tokens_per_s"]);
        assert!((rate / 70e6 - 1.0).abs() < 1e-6, "{profile}");
        assert_eq!(profile["layers"].as_array().map(Vec::len), Some(4));
        let kernels = profile["kernels"].as_array().expect("a list");
        let calls: f64 = kernels.iter().map(|k| number(&k["calls"])).sum();
        assert_eq!(calls, number(&profile["dispatches"]));
        let sum: f64 = kernels.iter().map(|k| number(&k["us"])).sum();
        assert!(sum > 0.0 && number(&profile["sum_us"]) > 0.0);
        let of = |start: &str| {
            let label = |k: &&serde_json::Value| k["label"].as_str().unwrap().starts_with(start);
            let found: Vec<_> = kernels.iter().filter(label).collect();
            assert!(!found.is_empty(), "{start}: {profile}");
            found
        };
        // Some are as short as an empty pass.
        let reached = |k: &&serde_json::Value| number(&k["tflop_per_s"]) > 0.0;
        assert!(of("gemm").into_iter().any(|k| reached(&k)), "{profile}");
    }
    let args = ["profile", "--prompt", "9", "-r", "1"];
    let table = text(&[&args[..], &TINY].concat());
    for expected in [
        "a prompt of 9 tokens, ",
        " tokens/s.",
        "| us/prompt |",
        "| TFLOP/s |",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (args, code, expected) in [
        (&["bench", "-p", "0", "-n", "0"][..], 2, "turned off"),
        (&["bench", "-p", "x"], 2, "is no number"),
        (&["bench", "--pg", "5"], 2, "such as 512,128"),
        (
            &["bench", "--synthetic", "glm"],
            2,
            "glm-4.7-flash, deepseek-v2-lite",
        ),
        (&["bench", "--synthetic", "tiny:q9"], 2, "q4_k_m"),
        (&["bench", "--ubatch", "0"], 2, "from 1 to"),
        (&["bench", "-d", "4000"], 1, "the model's is 2048"),
        (
            &["bench", "-m", "no-such-file.gguf"],
            1,
            "no-such-file.gguf",
        ),
        (
            &["bench", "--device", "cpu", "--tier", "plain"],
            1,
            "--tier",
        ),
        (
            &["bench", "--device", "cpu", "--synthetic", "tiny:q4_0"],
            2,
            "glimt synth",
        ),
        (&["profile", "--device", "cpu"], 2, "--device"),
        (&["profile", "-n", "0"], 2, "0"),
        (&["profile", "--prompt", "0"], 2, "0"),
        (&["profile", "--prompt", "9", "--svg", "x.svg"], 2, "--svg"),
        (&["profile", "--prompt", "9", "-n", "3"], 2, "--tokens"),
        (&["profile", "--ubatch", "9"], 2, "--prompt"),
        (&["profile", "--prompt", "4000"], 1, "the model's is 2048"),
    ] {
        let message = failure(args, code);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
    let args = ["profile", "-n", "1", "--svg", "no/such/folder/x.svg"];
    let message = failure(&[&args[..], &TINY].concat(), 1);
    assert!(
        error_line(&message).contains("no/such/folder/x.svg"),
        "{message}"
    );
}

#[test]
fn what_has_no_room_is_refused_before_it_is_made() {
    let devices = json(&text(&["devices", "--json"]));
    let memory = devices["adapters"][0]["memory"].as_u64();
    if memory.is_none_or(|bytes| bytes > 40 << 30) {
        eprintln!("skipped: the adapter may have room for all");
        return;
    }
    for command in ["bench", "profile", "tune"] {
        let args = [command, "--device", "0", "--synthetic", "glm-4.7-flash:f16"];
        let output = run(&args);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let error = error_line(stderr(&output));
        assert!(error.contains("not enough memory"), "{error}");
        assert!(error.contains("--force"), "{error}");
    }
}
