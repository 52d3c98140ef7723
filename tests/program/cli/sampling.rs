//! Protects sampling as people type it: names, ranges, who chooses and what is recommended, and `generate --json`.

use glimt::gguf::{Gguf, GgufWriter, Value as Meta};

use super::{EMBEDDED, error_line, failure, glimt, json, run, stderr, stdout, text, write};

/// An answer on the CPU with a fixed seed.
fn answer(rest: &[&str]) -> (String, String) {
    first_tokens(24, rest)
}

/// The answer of `tokens` tokens and the messages.
fn first_tokens(tokens: usize, rest: &[&str]) -> (String, String) {
    let tokens = tokens.to_string();
    let first = [
        "generate", "--device", "cpu", "-v", "-s", "7", "-n", &tokens,
    ];
    let output = run(&[&first, rest, &["Tell me a story."]].concat());
    assert!(output.status.success(), "{rest:?}: {}", stderr(&output));
    (stdout(&output).to_owned(), stderr(&output).to_owned())
}

fn line<'a>(messages: &'a str, begin: &str) -> Option<&'a str> {
    messages.lines().find_map(|line| line.strip_prefix(begin))
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    for (flag, value) in [
        ("--temp", "-1"),
        ("--top-k", "-2"),
        ("--min-p", "2"),
        ("--repeat-last-n", "-2"),
        ("--presence-penalty", "inf"),
        ("--frequency-penalty", "much"),
        ("--typical", "1.5"),
        ("--xtc-probability", "-0.1"),
        ("--xtc-threshold", "2"),
        ("--dry-multiplier", "-1"),
        ("--dry-base", "0.5"),
        ("--dry-penalty-last-n", "-2"),
        ("--mirostat", "1"),
        ("--mirostat-lr", "-1"),
        ("--seed", "-2"),
        ("-n", "-2"),
    ] {
        let message = failure(&["generate", flag, value, "x"], 2);
        let expected = format!("invalid value '{value}' for '{flag}");
        let short = format!("invalid value '{value}' for '--");
        let named = message.contains(&expected)
            || flag == "-n" && message.contains(&short)
            || message.contains(&format!("invalid value '{value}' for '-"));
        assert!(named, "{flag} {value}: {message}");
    }
    for bias in ["7", "x+1", "7+inf", "7+nan"] {
        failure(&["generate", "--logit-bias", bias, "x"], 2);
    }
    failure(&["generate", "--logprobs", "2", "x"], 2);
    let on_cpu = ["generate", "--device", "cpu"];
    let foreign = [&on_cpu[..], &["--logit-bias", "999999+1", "x"]].concat();
    let message = failure(&foreign, 1);
    assert!(error_line(&message).contains("token 999999"), "{message}");
    let idle = [&on_cpu[..], &["--mirostat", "2", "--top-k", "5", "x"]].concat();
    let message = failure(&idle, 2);
    assert!(error_line(&message).contains("--top-k"), "{message}");
}

#[test]
fn minus_one_is_random_or_all() {
    let (first, messages) = answer(&[]);
    assert!(!messages.contains("; seed "), "{messages}");
    let (_, messages) = answer(&["--repeat-last-n", "-1"]);
    assert!(messages.contains("repeat-penalty 1.05"), "{messages}");
    let args = [
        "generate", "--device", "cpu", "-n", "4", "--seed", "-1", "A",
    ];
    assert!(stderr(&run(&args)).contains("; seed "));
    // To the end of the context.
    let args = [
        "generate", "--device", "cpu", "-c", "24", "-n", "-1", "--raw", "-s", "7", "Once",
    ];
    let output = run(&args);
    let last = stderr(&output).lines().last().expect("a statistics line");
    assert!(last.contains("(context full)"), "{last}");
    assert!(!first.is_empty());
}

#[test]
fn the_host_chooses_only_where_it_must_and_says_why() {
    let says = |flags: &[&str]| first_tokens(1, flags).1;
    let messages = says(&["--presence-penalty", "0.5", "--frequency-penalty", "0.5"]);
    assert!(!messages.contains("on the host"), "{messages}");
    let many = many_biases();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (flags, why) in [
        (&["--dry-multiplier", "0.8"][..], "--dry-multiplier"),
        (&["--typical", "0.9"], "--typical"),
        (&["--typical-p", "0.9"], "--typical"),
        (&["--xtc-probability", "0.5"], "--xtc-probability"),
        (
            &[
                "--mirostat",
                "2",
                "--mirostat-ent",
                "3",
                "--mirostat-lr",
                "0.2",
            ],
            "--mirostat",
        ),
        (&many, "--logit-bias"),
        (
            &[
                "--logit-bias",
                "5+1",
                "--dry-multiplier",
                "1",
                "--dry-sequence-breaker",
                r"\n",
            ],
            "--dry-multiplier",
        ),
    ] {
        let messages = says(flags);
        let said = line(&messages, "tokens are chosen on the host, one at a time: ");
        assert_eq!(said, Some(why), "{flags:?}");
    }
    for flags in [
        &["--typical", "0.9", "--xtc-probability", "0.5"][..],
        &["--dry-multiplier", "1", "--dry-sequence-breaker", r"\n"],
        &["--mirostat", "2", "--logit-bias", "5-inf"],
    ] {
        let [first, second] = [answer(flags), answer(flags)].map(|answer| answer.0);
        assert_eq!(first, second, "a seed repeats an answer: {flags:?}");
    }
    for off in [
        &["--dry-multiplier", "0", "--dry-base", "2"][..],
        &["--typical", "1"],
        &["--xtc-probability", "0.5", "--xtc-threshold", "0.6"],
        &["--mirostat", "0", "--top-k", "5"],
        &["--logit-bias", "5-inf"],
    ] {
        let messages = says(off);
        assert!(!messages.contains("on the host"), "{off:?}: {messages}");
    }
}

/// Biases of nothing, more than a device takes.
fn many_biases() -> Vec<String> {
    let bias = |token: usize| ["--logit-bias".to_owned(), format!("{token}+0")];
    (0..65).flat_map(bias).collect()
}

/// Host and backend choose alike where both can: many biases of nothing change who chooses and no more.
#[test]
fn the_host_tells_the_same_tale_as_the_backend() {
    for flags in [
        &["--temp", "0"][..],
        &["--temp", "1.2", "--top-k", "0", "--top-p", "0.9"],
        &["--presence-penalty", "0.5", "--repeat-last-n", "-1"],
    ] {
        let (expected, _) = answer(flags);
        let many = many_biases();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (found, messages) = answer(&[flags, &many].concat());
        assert!(messages.contains("on the host"), "{messages}");
        assert_eq!(found, expected, "{flags:?}");
    }
    let listing = json(&text(&["devices", "--json"]));
    let adapters = listing["adapters"].as_array().expect("a list");
    if adapters.is_empty() {
        eprintln!("skipped: no GPU adapter (install mesa-vulkan-drivers, or your GPU's driver)");
        return;
    }
    let on_gpu = [
        "generate", "--device", "0", "--raw", "--temp", "0", "-n", "24",
    ];
    let prompt = ["Once upon a time"];
    let device = text(&[&on_gpu[..], &prompt].concat());
    let many = many_biases();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for biases in [&many[..], &["--logit-bias", "5+0"]] {
        let biased = text(&[&on_gpu[..], biases, &prompt].concat());
        assert_eq!(biased, device);
    }
}

#[test]
fn excluded_tokens_do_not_come() {
    let report = |rest: &[&str]| {
        let args = [
            "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "8", "--json",
        ];
        json(&text(&[&args, rest, &["Once upon a time"]].concat()))
    };
    let first = report(&["--logprobs", "3"]);
    let tokens = first["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 8);
    let id = tokens[0]["id"].as_u64().expect("an id");
    let other = report(&["--logprobs", "0", "--logit-bias", &format!("{id}-inf")]);
    let tokens = other["tokens"].as_array().expect("a list");
    assert!(tokens.iter().all(|token| token["id"] != id), "{other}");
}

#[test]
fn json_tells_the_answer_and_how_it_came_about() {
    let args = [
        "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "8", "--json",
    ];
    let prompt = ["Once upon a time"];
    let plain = text(&[&args[..8], &prompt].concat());
    let output = run(&[&args[..], &["--logprobs", "3"], &prompt].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let report = json(stdout(&output));
    assert_eq!(
        format!("{}\n", report["text"].as_str().expect("text")),
        plain
    );
    assert!(report["reasoning"].is_null());
    assert_eq!(report["stopped"], "limit");
    assert_eq!(report["generated"]["tokens"], 8);
    assert!(report["prompt"]["tokens"].as_u64() > Some(0));
    assert!(report["generated"]["tokens_per_second"].as_f64() > Some(0.0));
    assert_eq!(report["sampling"]["temperature"], 0);
    let device = report["device"].as_str().expect("text");
    assert!(device.starts_with("CPU with "), "{device}");
    assert_eq!(report["context"], 1024);
    let tokens = report["tokens"].as_array().expect("a list");
    let joined: String = tokens
        .iter()
        .map(|token| token["text"].as_str().expect("text"))
        .collect();
    assert_eq!(report["text"], joined);
    for token in tokens {
        // Greedy takes the best, whose logarithm is the first.
        assert_eq!(token["top"].as_array().map(Vec::len), Some(3));
        assert_eq!(token["id"], token["top"][0][0]);
        assert_eq!(token["logprob"], token["top"][0][1]);
        assert!(token["logprob"].as_f64() <= Some(0.0), "{token}");
    }
    let report = json(&text(&[&args[..], &prompt].concat()));
    assert!(report.get("tokens").is_none());
}

#[test]
fn quiet_leaves_only_errors() {
    let args = ["generate", "--quiet", "--device", "cpu", "-n", "4"];
    let output = run(&[&args[..], &["Once"]].concat());
    assert!(output.status.success() && !stdout(&output).is_empty());
    assert_eq!(stderr(&output), "");
    let message = failure(
        &[&args[..], &["--mirostat", "2", "--top-k", "1", "x"]].concat(),
        2,
    );
    assert!(error_line(&message).contains("--mirostat 0"), "{message}");
}

/// The built-in model with further keys.
fn with_keys(keys: &[(&str, Meta)]) -> Vec<u8> {
    let gguf = Gguf::from_bytes(EMBEDDED, "built-in model").expect("it is whole");
    let mut writer = GgufWriter::new(Vec::new());
    for (key, value) in gguf.metadata() {
        writer.metadata(key, value.clone()).expect("a new key");
    }
    for (key, value) in keys {
        writer.metadata(key, value.clone()).expect("a new key");
    }
    for tensor in gguf.tensors() {
        writer
            .tensor(&tensor.name, tensor.ty, &tensor.dims)
            .expect("a new tensor");
    }
    let mut data = writer.begin_data().expect("memory takes it");
    for tensor in gguf.tensors() {
        data.write(gguf.data(tensor)).expect("its bytes");
    }
    data.finish().expect("memory takes it")
}

#[test]
fn what_the_file_recommends_is_taken_and_said() {
    let (_, messages) = answer(&[]);
    let expected = "temperature 0.5, top-k 20, top-p 0.95, min-p 0.2, repeat-penalty 1.05 (recommended for Tales 16M)";
    assert_eq!(line(&messages, "sampling: "), Some(expected));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let key = |name: &str| format!("general.sampling.{name}");
    let keys = [
        (key("temp"), Meta::F32(0.5)),
        (key("top_k"), Meta::I32(7)),
        (key("xtc_probability"), Meta::F32(0.25)),
        (key("min_p"), Meta::F32(7.0)),
    ];
    let keys: Vec<(&str, Meta)> = keys.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
    let file = write(directory.path(), "keys.gguf", &with_keys(&keys));
    let (_, messages) = answer(&["-m", &file, "--top-p", "0.9"]);
    assert_eq!(
        line(&messages, "sampling: "),
        Some(
            "temperature 0.5, top-k 7, xtc-probability 0.25 (recommended by the file); top-p 0.9 (as asked); \
             min-p 0.2, repeat-penalty 1.05 (recommended for Tales 16M); xtc-threshold 0.1 (default)"
        )
    );
    let said = line(&messages, "tokens are chosen on the host, one at a time: ");
    assert_eq!(said, Some("general.sampling.xtc_probability"));
    assert!(
        messages.contains("general.sampling.min_p of the model's file is ignored"),
        "{messages}"
    );
    let (_, messages) = answer(&["-m", &file, "--temp", "0", "--xtc-probability", "0"]);
    assert_eq!(line(&messages, "sampling: "), Some("greedy (as asked)"));
    assert!(!messages.contains("on the host"), "{messages}");
}

#[test]
fn a_long_text_ends_the_answer_without_a_report_of_errors() {
    let args = [
        "generate", "--device", "cpu", "--json", "--stop", "e", "-s", "1", "Once",
    ];
    let output = glimt(&args).output().expect("it runs");
    let report = json(stdout(&output));
    assert_eq!(report["stopped"], "stop text");
    assert!(!report["text"].as_str().expect("text").contains('e'));
}

#[test]
fn an_answer_is_kept_to_a_schema() {
    let schema = r#"{"type": "object", "properties": {"hero": {"enum": ["fox", "crow"]}}, "required": ["hero"], "additionalProperties": false}"#;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = write(directory.path(), "schema.json", schema.as_bytes());
    for given in [schema, &file] {
        let (answer, messages) = answer_of(&["--json-schema", given]);
        let hero = json(&answer)["hero"].as_str().expect("a text").to_owned();
        assert!(["fox", "crow"].contains(&hero.as_str()), "{answer}");
        let said = line(&messages, "tokens are chosen on the host, one at a time: ");
        assert_eq!(said, Some("--json-schema"));
        assert!(
            messages.trim_end().ends_with("stopped: end of text"),
            "{messages}"
        );
    }
    let grammar = write(directory.path(), "yes.lark", b"start: \"yes\" | \"no\"");
    let (answer, _) = answer_of(&["--grammar", &grammar, "--temp", "0"]);
    assert!(["yes\n", "no\n"].contains(&answer.as_str()), "{answer}");
    let wrong = write(directory.path(), "wrong.lark", b"start: missing");
    for (flag, value, expected) in [
        ("--grammar", wrong.as_str(), "missing"),
        ("--grammar", "no/such.lark", "no/such.lark"),
        ("--json-schema", "{\"type\": ", "is no JSON"),
        ("--json-schema", "no/such.json", "no/such.json"),
        ("--json-schema", "{\"type\": \"fox\"}", "fox"),
    ] {
        let message = failure(&["generate", "--device", "cpu", flag, value, "x"], 1);
        assert!(error_line(&message).contains(expected), "{message}");
    }
    failure(
        &[
            "generate",
            "--json-schema",
            schema,
            "--grammar",
            &grammar,
            "x",
        ],
        2,
    );
}

/// An answer on the CPU without a limit.
fn answer_of(flags: &[&str]) -> (String, String) {
    let first = ["generate", "--device", "cpu", "-v", "-s", "7"];
    let output = run(&[&first, flags, &["Who is the hero?"]].concat());
    assert!(output.status.success(), "{flags:?}: {}", stderr(&output));
    (stdout(&output).to_owned(), stderr(&output).to_owned())
}
