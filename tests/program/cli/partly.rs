//! Protects models that a GPU has no room for: what is told of them, and that their text is the same.

use super::{error_line, failure, json, run, stderr, stdout, text};

/// The built-in model on a card of so much memory.
fn on_card(memory: &str, more: &[&str]) -> Vec<String> {
    let card = [
        "inspect",
        "--gpu",
        "nvidia rtx 4070",
        "--gpu-memory",
        memory,
    ];
    let args = [&card[..], more].concat();
    args.into_iter().map(str::to_owned).collect()
}

/// The lines of [`on_card`] for a cache in f16.
fn inspect(memory: &str, more: &[&str]) -> Vec<String> {
    on_card(memory, &[&["--cache-type", "f16"], more].concat())
}

#[test]
fn inspect_has_the_cache_in_codes_rather_than_experts_elsewhere() {
    let found = |memory: &str, more: &[&str]| {
        let args = on_card(memory, &[&["-c", "2048", "--json"], more].concat());
        json(&text(&args.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let [halves, codes] = ["f16", "q8_0"].map(|cache| {
        let found = found("12G", &["--cache-type", cache]);
        assert_eq!(found["cache_type"], cache);
        let sizes = ["weights", "cache", "scratch"].map(|of| found["memory"][of].as_u64());
        sizes.into_iter().flatten().sum::<u64>()
    });
    assert!(codes < halves);
    for (bytes, cache, whole) in [
        (halves, "f16", true),
        (halves - 1, "q8_0", true),
        (codes, "q8_0", true),
        (codes - 1, "f16", false),
    ] {
        let found = found(&format!("{}MB", bytes as f64 / 1e6), &[]);
        assert_eq!(found["cache_type"], cache, "{bytes}");
        assert_eq!(found["partly"].is_null(), whole, "{bytes}");
    }
    // The whole of the model's context has room in codes alone.
    let memory = format!("{}MB", (halves - 1) as f64 / 1e6);
    let of_both = &found(&memory, &[])["longest"];
    assert_eq!(of_both[1]["ctx"], 2048);
    assert_eq!(of_both[1]["whole"], true);
    assert!(of_both[0]["ctx"].as_u64() < Some(2048), "{of_both}");
    let args = on_card(&memory, &["-c", "2048"]);
    let page = text(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let expected = format!("longest ctx  {} in f16, 2048 in q8_0\n", of_both[0]["ctx"]);
    assert!(
        page.contains(&expected) && page.contains("a token, in q8_0)"),
        "{page}"
    );
}

#[test]
fn inspect_tells_of_a_machine_that_is_named_what_lies_where() {
    let page = |memory, more: &[&str]| {
        let args = inspect(memory, more);
        text(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let whole = page("12GiB", &["--host-memory", "32G"]);
    assert!(whole.contains("on RTX 4070: enough"), "{whole}");
    assert!(
        whole.contains("resident     all of it; computed: "),
        "{whole}"
    );
    let partly = page("58M", &["--host-memory", "32G", "--bus", "3x8"]);
    for expected in [
        "resident     partly: ",
        " of 8 experts of each layer; all experts, 4.5 MiB, lie in the machine's memory",
        "(PCIe 3 x8); computed: at least ",
    ] {
        assert!(partly.contains(expected), "{expected}: {partly}");
    }
    assert!(
        !partly.contains("--cpu-share"),
        "experts are too small: {partly}"
    );
    let slow = page(
        "57M",
        &["--host-memory", "32G", "--bus", "1x1", "--cpu-speed", "8"],
    );
    let shared = slow.lines().find(|line| line.starts_with("shared "));
    let shared = shared.unwrap_or_else(|| panic!("no share: {slow}"));
    assert!(
        shared.ends_with(" and a CPU that multiplies 8 GB/s"),
        "{shared}"
    );
    let found = json(&page("57M", &["--bus", "1x1", "--json"]));
    assert_eq!(found["cpu_share"]["processor"]["assumed"], true);
    let share = &found["cpu_share"]["tokens_per_s"];
    assert!(
        share.as_f64() > found["partly"]["tokens_per_s"].as_f64(),
        "{found}"
    );
    // A machine that has no memory for them, and a disk that is named.
    let from_file = page("58M", &["--host-memory", "3G", "--disk", "1.5"]);
    for expected in [
        "all experts, 4.5 MiB, stay in the file, and missing ones are read from the file (1.5 GB/s); computed: at least ",
        " tokens/s",
    ] {
        assert!(from_file.contains(expected), "{expected}: {from_file}");
    }
    let shorter = page("30M", &["-c", "1024"]);
    assert!(shorter.contains("prompts are computed"), "{shorter}");
    let found = json(&page("58M", &["--json", "--experts", "file"]));
    assert_eq!(found["memory"]["host"], 0);
    assert_eq!(found["memory"]["file"], found["partly"]["host"]);
    assert_eq!(found["partly"]["disk"]["told"], "assumed");
    let found = json(&page("58M", &["--json"]));
    let slots = found["memory"]["slots"].as_u64().expect("it has some");
    assert!((2..8).contains(&slots), "{slots}");
    assert_eq!(found["partly"]["slots"], slots);
    assert_eq!(found["memory"]["host"], found["partly"]["host"]);
    assert_eq!(
        found["computed_tokens_per_s"],
        found["partly"]["tokens_per_s"]
    );
    assert_eq!(found["gpu"], "RTX 4070");
}

#[test]
fn inspect_refuses_what_fits_no_part_of_a_machine() {
    let refused = |memory, more: &[&str]| {
        let args = inspect(memory, more);
        let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1), "{memory}");
        error_line(stderr(&output)).to_owned()
    };
    let told = refused("9M", &["-c", "1024"]);
    assert!(
        told.contains("are needed there without any expert"),
        "{told}"
    );
    let scarce = ["-c", "1024", "--host-memory", "3G", "--experts", "host"];
    let told = refused("58M", &scarce);
    assert!(
        told.contains("have no room in the machine's memory"),
        "{told}"
    );
}

#[test]
fn sizes_buses_and_names_that_mean_nothing_are_refused() {
    for (args, expected) in [
        (
            &["inspect", "--gpu-memory", "8"][..],
            "such as 8G or 10.5GiB",
        ),
        (&["generate", "--gpu-memory", "-8G", "x"], "such as 8G"),
        (&["bench", "--gpu-memory", "0G"], "no memory at all"),
        (&["inspect", "--bus", "4x3"], "such as 4x16"),
        (&["inspect", "--disk", "0"], "such as 3.5"),
        (&["inspect", "--cpu-speed", "0"], "such as 16"),
        (&["generate", "--experts", "cloud", "x"], "auto, host, file"),
        (
            &["inspect", "--gpu", "Voodoo 2", "--gpu-memory", "12M"],
            "it knows H200, ",
        ),
        (&["inspect", "--gpu", "RTX 4070"], "--gpu-memory <SIZE>"),
    ] {
        let told = failure(args, 2);
        assert!(told.contains(expected), "{args:?}: {told}");
    }
}

/// Needs an adapter; a software one will do.
#[test]
fn a_gpu_without_room_for_all_experts_gives_the_same_text_and_says_so() {
    let listing = run(&["devices", "--json"]);
    let adapters = &json(stdout(&listing))["adapters"];
    if adapters
        .get(0)
        .is_none_or(|adapter| adapter["kind"] != "software")
    {
        eprintln!("skipped: the sizes are those of a software adapter");
        return;
    }
    let generate = |more: &[&str]| {
        let usual = [
            "generate",
            "--device",
            "0",
            "--tier",
            "subgroup",
            "--cache-type",
            "f16",
            "-n",
            "4",
            "--temp",
            "0",
            "Hello",
        ];
        let output = run(&[&usual[..], more].concat());
        assert!(output.status.success(), "{more:?}: {}", stderr(&output));
        (stdout(&output).to_owned(), stderr(&output).to_owned())
    };
    let (whole, told) = generate(&[]);
    assert!(!told.contains("experts"), "{told}");
    let (partly, told) = generate(&["--gpu-memory", "34M"]);
    assert_eq!(partly, whole);
    assert!(
        told.contains("of 8 experts of each layer; all experts"),
        "{told}"
    );
    let (from_file, told) = generate(&["--gpu-memory", "34M", "--experts", "file"]);
    assert_eq!(from_file, whole);
    assert!(
        told.contains("are read from the file (")
            && told.contains(", measured with what the system has in memory)"),
        "{told}"
    );
    let (_, quiet) = generate(&["--gpu-memory", "34M", "-q"]);
    assert!(!quiet.contains("experts"), "{quiet}");
    let plain = [
        "generate",
        "--device",
        "0",
        "--tier",
        "plain",
        "--gpu-memory",
        "30M",
        "Hello",
    ];
    let told = failure(&plain, 1);
    assert!(told.contains("the tiers 'subgroup' and 'int8'"), "{told}");
}

/// Needs an adapter; a software one will do.
#[test]
fn a_profile_and_a_report_tell_of_experts_that_have_no_room() {
    let listing = run(&["devices", "--json"]);
    let adapters = &json(stdout(&listing))["adapters"];
    if adapters
        .get(0)
        .is_none_or(|adapter| adapter["kind"] != "software")
    {
        eprintln!("skipped: the sizes are those of a software adapter");
        return;
    }
    let device = ["--device", "0", "--tier", "subgroup", "--gpu-memory", "12M"];
    let profiled = |more: &[&str]| text(&[&["profile"], &device[..], more].concat());
    let found = json(&profiled(&["-n", "2", "-o", "json"]));
    let number = |name: &str| {
        found[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {found}"))
    };
    // A token has 2 experts in each of 5 layers.
    assert_eq!(number("expert_hits") + number("expert_misses"), 10.0);
    assert_eq!(number("bus_bytes") > 0.0, number("expert_misses") > 0.0);
    assert!(number("expert_slots") >= 2.0 && number("fills_us") > 0.0);
    assert_eq!(
        found.get("cpu_experts"),
        None,
        "software has no share of its own"
    );
    let shared = ["-n", "4", "-o", "json", "--cpu-share", "1"];
    let found = json(&profiled(&shared));
    let number = |name: &str| {
        found[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {found}"))
    };
    // Of two missing experts of a layer the CPU multiplies one, and the bus brings the other.
    assert!((0.0..=5.0).contains(&number("cpu_experts")), "{found}");
    assert_eq!(number("cpu_bytes") > 0.0, number("cpu_experts") > 0.0);
    assert_eq!(number("cpu_us") > 0.0, number("cpu_experts") > 0.0);
    // A prompt of 20 tokens brings all experts beside what computes.
    let more = ["--prompt", "20", "-r", "1", "-o", "json"];
    let found = json(&text(
        &[&["profile"], &device[..4], &["--gpu-memory", "15M"], &more].concat(),
    ));
    let brought = &found["beside_bytes"];
    assert!(brought.as_f64() > Some(0.0), "{found}");
    assert_eq!(&found["bus_bytes"], brought);
    assert!(found["fills_us"].as_f64() > Some(0.0), "{found}");
    let part = ["report", "-", "--only", "token"];
    let told = text(&[&part[..], &device].concat());
    for expected in [
        "$ glimt profile -n 2 --device 0 --gpu-memory 12M --tier subgroup\n",
        "Of 10.0 experts of a token ",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
}
