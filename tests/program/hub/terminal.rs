//! Protects the questions that are asked in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use std::ptr::null_mut;

use glimt::gguf::{Gguf, GgufWriter, Value};
use glimt::synth::{ModelName, Plan, Recipe, SynthOptions};

use super::server::Server;
use super::{Home, TALES, files, noise};

/// A pseudo-terminal: the side of whoever sits there, and that of the program.
fn terminal() -> (File, File) {
    let (mut user, mut program) = (0, 0);
    // SAFETY: both places are integers of this frame, and the last three may be null.
    let failed =
        unsafe { libc::openpty(&mut user, &mut program, null_mut(), null_mut(), null_mut()) };
    assert_eq!(failed, 0, "the system has pseudo-terminals");
    // SAFETY: the call gave two open descriptors that nothing else owns.
    let open = |descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) };
    (open(user).into(), open(program).into())
}

/// Runs a command in a terminal where `answer` is typed; returns whether it succeeded, its standard output, and the screen.
fn typed(home: &Home, server: &Server, args: &[&str], answer: &str) -> (bool, String, String) {
    let (mut user, program) = terminal();
    let clone = || Stdio::from(program.try_clone().expect("it is open"));
    let mut command = home.glimt(server, args);
    command
        .stdin(clone())
        .stderr(clone())
        .stdout(Stdio::piped());
    let child = command.spawn().expect("it runs");
    user.write_all(answer.as_bytes())
        .expect("it takes what is typed");
    drop((command, program));
    let mut screen = vec![];
    // The end is an error on some systems; what came before it counts.
    let _ = user.read_to_end(&mut screen);
    let output = child.wait_with_output().expect("it ends");
    let screen = String::from_utf8_lossy(&screen).into_owned();
    (output.status.success(), super::stdout(&output), screen)
}

#[test]
fn a_model_that_is_not_here_is_fetched_if_the_answer_is_yes() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "tales-Q4_K_M.gguf", TALES);
    server.put("a/b", "tales-Q8_0.gguf", noise(5000, 1));
    let generate = [
        "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "4", "-m", "a/b", "Once",
    ];
    let (succeeded, text, screen) = typed(&home, &server, &generate, "n\n");
    assert!(!succeeded && text.is_empty(), "{screen}");
    for expected in [
        "a/b:Q4_K_M",
        "MiB in 1 file",
        "it also has Q8_0",
        "all of it would run on ",
        "Fetch 9.5 MiB? [y/N]",
        "a/b was not fetched",
    ] {
        assert!(screen.contains(expected), "{expected}: {screen}");
    }
    assert!(files(&home.hub()).is_empty());
    let (succeeded, text, screen) = typed(&home, &server, &generate, "y\n");
    assert!(succeeded && !text.is_empty(), "{screen}");
}

/// The built-in model in two files.
fn shards() -> [Vec<u8>; 2] {
    let gguf = Gguf::from_bytes(TALES, "tales").expect("it is whole");
    let half = gguf.tensors().len() / 2;
    [0, 1].map(|no: usize| {
        let mut writer = GgufWriter::new(Vec::new());
        if no == 0 {
            for (key, value) in gguf.metadata() {
                writer.metadata(key, value.clone()).expect("a new key");
            }
        }
        for (key, value) in [("split.no", no as u16), ("split.count", 2)] {
            writer.metadata(key, Value::U16(value)).expect("a new key");
        }
        let (first, second) = gguf.tensors().split_at(half);
        let tensors = [first, second][no];
        for tensor in tensors {
            let added = writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
            added.expect("a new name");
        }
        let mut data = writer.begin_data().expect("memory takes it");
        for tensor in tensors {
            data.write(gguf.data(tensor)).expect("it has room");
        }
        data.finish().expect("memory takes it")
    })
}

#[test]
fn a_model_in_several_files_has_its_verdict_before_it_is_fetched() {
    let (server, home) = (Server::start(), Home::new());
    for (no, shard) in shards().into_iter().enumerate() {
        let name = format!("tales-Q4_K_M-0000{}-of-00002.gguf", no + 1);
        server.put("a/b", &name, shard);
    }
    let generate = [
        "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "4", "-m", "a/b", "Once",
    ];
    let (_, _, screen) = typed(&home, &server, &generate, "n\n");
    for expected in [
        "MiB in 2 files",
        "all of it would run on ",
        "Fetch 9.5 MiB?",
    ] {
        assert!(screen.contains(expected), "{expected}: {screen}");
    }
    assert!(files(&home.hub()).is_empty());
}

/// The beginning of a file of so many layers, up to its weights, and the length of all of it.
fn beginning(recipe: Recipe, layers: usize) -> (Vec<u8>, u64) {
    let options = SynthOptions {
        layers: Some(layers),
        ..SynthOptions::default()
    };
    let plan = Plan::new(ModelName::DeepseekV2Lite, recipe, &options).expect("a plan");
    let mut bytes = vec![];
    let mut writer = GgufWriter::new(&mut bytes);
    for (key, value) in &plan.metadata {
        writer.metadata(key, value.clone()).expect("a new key");
    }
    for tensor in &plan.tensors {
        let added = writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
        added.expect("a new name");
    }
    writer.begin_data().expect("memory takes it");
    let padding = 32 * plan.tensors.len() as u64;
    let length = bytes.len() as u64 + plan.byte_len() + padding;
    (bytes, length)
}

#[test]
fn a_model_that_would_be_refused_is_told_with_the_file_that_would_run() {
    let (server, home) = (Server::start(), Home::new());
    // Hundreds of gigabytes, and three that run.
    for (name, recipe, layers) in [
        ("m-Q8_0.gguf", Recipe::Q8_0, 1000),
        ("m-Q4_0.gguf", Recipe::Q4_0, 800),
        ("m-IQ3_XXS.gguf", Recipe::Iq3Xxs, 3),
        ("m-IQ2_M.gguf", Recipe::Iq2M, 2),
        ("m-IQ1_S.gguf", Recipe::Iq1S, 1),
    ] {
        let (bytes, length) = beginning(recipe, layers);
        server.put_beginning("a/b", name, bytes, length);
    }
    let (succeeded, _, screen) = typed(&home, &server, &["pull", "a/b:Q8_0"], "n\n");
    assert!(!succeeded, "{screen}");
    for expected in [
        "it would be refused here: ",
        "a/b has IQ3_XXS (",
        ", which would run here",
    ] {
        assert!(screen.contains(expected), "{expected}: {screen}");
    }
    assert!(files(&home.hub()).is_empty());
}

#[test]
fn short_names_and_removals_are_asked_about() {
    let (server, home) = (Server::start(), Home::new());
    let (alias, repo) = glimt_formats::aliases::ALIASES[0];
    server.put(repo, "m-Q4_K_M.gguf", noise(5000, 1));
    let (succeeded, _, screen) = typed(&home, &server, &["pull", alias], "\n");
    assert!(
        !succeeded && screen.contains(repo) && screen.contains("Fetch 4.9 KiB?"),
        "{screen}"
    );
    let (succeeded, path, screen) = typed(&home, &server, &["pull", alias], "yes\n");
    assert!(succeeded && path.ends_with("m-Q4_K_M.gguf\n"), "{screen}");
    let (succeeded, _, screen) = typed(&home, &server, &["rm", alias], "n\n");
    assert!(
        succeeded && screen.contains("Remove it?") && screen.contains("nothing was removed"),
        "{screen}"
    );
    let (succeeded, _, screen) = typed(&home, &server, &["rm", alias], "y\n");
    assert!(succeeded && screen.contains("are free again"), "{screen}");
    assert_eq!(files(&home.hub()), ["CACHEDIR.TAG"]);
}
