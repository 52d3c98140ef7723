//! Protects where flags take their values from: the command line, the environment, the config file, and in this order.

use std::process::{Command, Output};

use super::{error_line, glimt, json, run, stderr, stdout, write};

/// A command with a config file of this content.
fn configured(content: &str, args: &[&str], more: impl FnOnce(&mut Command)) -> Output {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = write(directory.path(), "config.toml", content.as_bytes());
    let mut command = glimt(args);
    command.env("GLIMT_CONFIG", path);
    more(&mut command);
    command
        .output()
        .expect("the binary was built with this test")
}

/// How many tokens `glimt logits` lists.
fn listed(content: &str, args: &[&str]) -> usize {
    let args = [&["logits", "--device", "cpu", "--tokens", "1"], args].concat();
    let output = configured(content, &args, |_| ());
    assert!(output.status.success(), "{}", stderr(&output));
    json(stdout(&output))["top"]
        .as_array()
        .expect("a list")
        .len()
}

#[test]
fn the_command_line_goes_before_the_file_and_its_tables_before_its_top() {
    assert_eq!(listed("", &[]), 20);
    assert_eq!(listed("top = 2", &[]), 2);
    assert_eq!(listed("top = 2\n[logits]\ntop = 3", &[]), 3);
    assert_eq!(listed("[logits]\ntop = \"3\"", &["--top", "4"]), 4);
    assert_eq!(
        listed("[bench]\nn-prompt = [16, 32]\nno-matrices = true", &[]),
        20
    );
}

#[test]
fn a_list_gives_a_flag_several_values() {
    let file = "device = \"cpu\"\n[logits]\ntokens = [1, 2, 3]";
    let output = configured(file, &["logits"], |_| ());
    assert_eq!(stdout(&output).lines().count(), 3, "{}", stderr(&output));
}

#[test]
fn the_environment_stands_between_the_line_and_the_file() {
    let args = ["logits", "--tokens", "1"];
    let file = "device = \"from the file\"";
    let output = configured(file, &args, |_| ());
    assert!(
        stderr(&output).contains("from the file"),
        "{}",
        stderr(&output)
    );
    let output = configured(file, &args, |command| {
        command.env("GLIMT_DEVICE", "cpu");
    });
    assert!(output.status.success(), "{}", stderr(&output));
    let output = configured("device = \"cpu\"", &args, |command| {
        // An empty variable is none.
        command.env("GLIMT_DEVICE", "").env("GLIMT_MODEL", "");
    });
    assert!(output.status.success(), "{}", stderr(&output));
    let typed = [&args[..], &["--device", "cpu"]].concat();
    let output = configured(file, &typed, |command| {
        command.env("GLIMT_DEVICE", "from the environment");
    });
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn what_is_typed_conflicts_with_nothing_from_elsewhere() {
    // Synthetic weights are refused on the CPU, and a missing model everywhere: the message tells what was taken.
    let measure = ["bench", "--device", "cpu", "-p", "1", "-n", "0", "-r", "1"];
    let synthetic = [&measure[..], &["--synthetic", "tiny:q4_0"]].concat();
    let output = configured("model = \"missing.gguf\"", &synthetic, |command| {
        command.env("GLIMT_MODEL", "missing-too.gguf");
    });
    let message = stderr(&output);
    assert!(
        error_line(message).contains("synthetic") && !message.contains("missing"),
        "{message}"
    );
    let file = "[bench]\nsynthetic = \"tiny:q4_0\"";
    let output = configured(
        file,
        &[&measure[..], &["-m", "missing.gguf"]].concat(),
        |_| (),
    );
    assert!(
        error_line(stderr(&output)).contains("missing.gguf"),
        "{}",
        stderr(&output)
    );
    let both = run(&[&synthetic[..], &["-m", "missing.gguf"]].concat());
    assert!(
        stderr(&both).contains("cannot be used with"),
        "{}",
        stderr(&both)
    );

    let args = ["generate", "--system", "Be brief.", "Hello"];
    let file =
        "device = \"cpu\"\n[generate]\nraw = true\nn-predict = 2\ntemp = 0\nstop = [\"x\", \"y\"]";
    let output = configured(file, &args, |_| ());
    assert!(output.status.success(), "{}", stderr(&output));
    // Within the file it does, where it is on.
    for (raw, works) in [("true", false), ("false", true)] {
        let file = format!(
            "[generate]\nraw = {raw}\nsystem = \"Be brief.\"\ndevice = \"cpu\"\nn-predict = 1"
        );
        let output = configured(&file, &["generate", "Hello"], |_| ());
        assert_eq!(output.status.success(), works, "{}", stderr(&output));
        assert!(works || error_line(stderr(&output)).contains("cannot be used together with"));
    }
}

#[test]
fn what_is_wrong_in_the_file_is_named_with_its_line() {
    for (content, expected) in [
        (
            "temp = 0.5\ntemperatur = 1",
            &["line 2, temperatur: unknown key"][..],
        ),
        (
            "[generate]\ntop-o = 1",
            &[
                "top-o in [generate]",
                "glimt generate --help",
                "a similar one is top-",
            ],
        ),
        (
            "[generat]\ntemp = 1",
            &["temp in [generat]", "generate, serve, batch, web, pull"],
        ),
        (
            "[generate]\ntemp = \"warm\"",
            &[
                "line 2, temp in [generate]: invalid value 'warm'",
                "not a number",
            ],
        ),
        ("[generate]\nthink = 1", &["invalid value '1'", "on, off"]),
        (
            "[generate]\nraw = \"yes\"",
            &["found yes, expected true or false"],
        ),
        (
            "json = [true, true]",
            &["found a list, expected true or false"],
        ),
        (
            "[generate]\ntemp = [0.1, 0.2]",
            &["found a list of 2 values, expected one value"],
        ),
        ("[generate]\nstop = [[\"a\"]]", &["found a list of lists"]),
        ("model = 1979-05-27", &["found a date"]),
        (
            "output = \"csv\"",
            &["invalid value 'csv'", "in glimt profile"],
        ),
        ("help = true", &["help: unknown key"]),
        ("model = ", &["line 1"]),
    ] {
        for command in ["devices", "config"] {
            let output = configured(content, &[command], |_| ());
            let message = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{content}: {message}");
            let error = error_line(message);
            for expected in [&["config.toml"], expected].concat() {
                assert!(error.contains(expected), "{content}: {error}");
            }
        }
        for args in [
            &["--help"][..],
            &["generate", "--help"],
            &["completions", "bash"],
        ] {
            assert!(
                configured(content, args, |_| ()).status.success(),
                "{args:?}: {content}"
            );
        }
    }
    let long = format!("model = \"{}\"", "a".repeat(2 << 20));
    let output = configured(&long, &["config"], |_| ());
    assert!(
        error_line(stderr(&output)).contains("shorter"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn config_shows_the_file_and_what_it_sets() {
    let file = "device = \"cpu\"\n[generate]\ntemp = 0.5\nstop = [\"a\", \"b\"]\n";
    let output = configured(file, &["config"], |_| ());
    let shown = stdout(&output);
    assert!(
        shown
            .lines()
            .next()
            .expect("the file")
            .ends_with("config.toml"),
        "{shown}"
    );
    let rest: Vec<_> = shown.lines().skip(1).collect();
    assert_eq!(
        rest,
        [
            "all commands: device = cpu",
            "generate: stop = a, b",
            "generate: temp = 0.5"
        ]
    );
    assert!(stdout(&run(&["config"])).contains("no config file"));
    let missing = glimt(&["config"])
        .env("GLIMT_CONFIG", "no/such.toml")
        .output();
    let missing = missing.expect("it runs");
    assert_eq!(missing.status.code(), Some(2));
    assert!(error_line(stderr(&missing)).contains("no/such.toml"));
}

#[cfg(target_os = "linux")]
#[test]
fn the_file_is_in_the_folder_of_the_platform() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let shown = || {
        let mut command = glimt(&["config"]);
        command
            .env_remove("GLIMT_CONFIG")
            .env("XDG_CONFIG_HOME", directory.path());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).to_owned()
    };
    assert!(
        shown().contains("glimt/config.toml\nThere is no such file"),
        "{}",
        shown()
    );
    std::fs::create_dir(directory.path().join("glimt")).expect("it can be made");
    write(
        &directory.path().join("glimt"),
        "config.toml",
        b"ctx = 2048",
    );
    assert!(
        shown().ends_with("glimt/config.toml\nall commands: ctx = 2048\n"),
        "{}",
        shown()
    );
}

#[test]
fn what_is_switched_on_elsewhere_can_be_switched_off() {
    let file = "device = \"cpu\"\n[generate]\njson = true\nraw = true\nn-predict = 2\ntemp = 0";
    let prints_json = |args: &[&str]| {
        let output = configured(file, &[&["generate", "Hello"], args].concat(), |_| ());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).starts_with('{')
    };
    assert!(prints_json(&[]));
    assert!(!prints_json(&["--json=false"]));
    assert!(prints_json(&["--json=true"]));
    // The last one counts.
    assert!(prints_json(&["--json=false", "--json"]));
    assert!(!prints_json(&["--json", "--json=false"]));
    // A switch that is off conflicts with nothing.
    let both = [
        "generate",
        "--device",
        "cpu",
        "-n",
        "1",
        "--raw=false",
        "--system",
        "Be brief.",
        "Hi",
    ];
    let output = run(&both);
    assert!(output.status.success(), "{}", stderr(&output));
    // Behind -- nothing is a flag, and other values are refused.
    let output = run(&["tokenize", "--", "--json=false"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&output).is_empty());
    let output = run(&["generate", "--raw=maybe", "Hello"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--raw"), "{}", stderr(&output));
}
