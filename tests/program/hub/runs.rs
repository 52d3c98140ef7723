//! Protects that what would not run is known before it is fetched, and marked where models are listed.

use std::fs;

use glimt::gguf::GgufWriter;
use serde_json::Value;

use super::server::{Asked, Manners, Server};
use super::{Home, TALES, failed, files, noise, stderr, stdout};

/// Bytes of a file that may be read before it is refused.
const HEAD: usize = 1 << 16;

/// A file of a megabyte that begins as one with a model of this architecture does, behind `others` other keys.
fn file(architecture: &str, others: u32) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new());
    for number in 0..others {
        let key = format!("other.key.{number}");
        writer
            .metadata(&key, "x".repeat(100).as_str())
            .expect("it is new");
    }
    writer
        .metadata("general.architecture", architecture)
        .expect("it is new");
    let mut bytes = writer
        .begin_data()
        .expect("it is memory")
        .finish()
        .expect("there are no tensors");
    bytes.extend(noise(1 << 20, 3));
    bytes
}

fn server(says: &'static str, bytes: Vec<u8>) -> Server {
    let server = Server::start();
    server.put("a/b", "m-Q4_K_M.gguf", bytes);
    server.behave(Manners {
        architecture: Some(says),
        ..Manners::default()
    });
    server
}

#[test]
fn a_model_that_would_not_run_is_refused_before_it_is_fetched() {
    for (says, architecture, others) in [
        ("gemma3", "gemma3", 0),
        ("", "qwen3next", 0),
        ("", "gemma3", 200),
    ] {
        let (server, home) = (server(says, file(architecture, others)), Home::new());
        let error = home.failure(&server, &["pull", "a/b"], 1);
        let expected = format!(
            "a/b:Q4_K_M was not fetched, since glimt does not run it: its architecture is \"{architecture}\", and glimt runs \"deepseek2\""
        );
        assert!(error.starts_with(&expected), "{error}");
        let asked = server.asked();
        let range = |asked: &Asked| asked.headers.get("range").cloned();
        let ranges: Vec<_> = asked.iter().map(range).collect();
        assert_eq!(ranges, [None, Some(format!("bytes=0-{}", HEAD - 1))]);
        assert!(files(&home.hub()).is_empty());
    }
}

#[test]
fn the_file_is_believed_more_than_what_the_hub_says_of_the_repository() {
    // The hub's words may be about a file with a part for pictures.
    let (server, home) = (server("clip", TALES.to_vec()), Home::new());
    let path = home.text(&server, &["pull", "a/b"]);
    assert_eq!(fs::read(path.trim()).expect("it is there"), TALES);
}

#[test]
fn what_tells_no_architecture_is_fetched_all_the_same() {
    // It stands too far behind the beginning.
    let (server, home) = (server("", file("deepseek2", 1000)), Home::new());
    home.text(&server, &["pull", "a/b"]);
}

#[test]
fn a_hub_without_ranges_sends_no_more_than_is_read() {
    let (server, home) = (server("", file("gemma3", 0)), Home::new());
    server.behave(Manners {
        architecture: Some(""),
        no_ranges: Some(200),
        ..Manners::default()
    });
    let error = home.failure(&server, &["pull", "a/b"], 1);
    assert!(error.contains("its architecture is \"gemma3\""), "{error}");
}

#[test]
fn what_is_no_model_is_refused_by_its_first_bytes() {
    let (server, home) = (server("", noise(100_000, 4)), Home::new());
    let error = home.failure(&server, &["pull", "a/b"], 1);
    for expected in [
        "the hub offers no model: m-Q4_K_M.gguf of a/b",
        "is not a GGUF file",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(files(&home.hub()).is_empty());
}

#[test]
fn quantisations_that_are_not_computed_are_marked_and_refused() {
    let (server, home) = (Server::start(), Home::new());
    for (quantisation, seed) in [("Q4_K_M", 1), ("TQ2_0", 2), ("Q8_0", 3)] {
        server.put("a/b", &format!("m-{quantisation}.gguf"), noise(5000, seed));
    }
    let told = stderr(&home.run(&server, &["pull", "a/b"]));
    let expected = "it also has Q8_0 (5000 bytes), TQ2_0 (5000 bytes, glimt does not run it)";
    assert!(told.contains(expected), "{told}");
    server.asked();
    let error = home.failure(&server, &["pull", "a/b:TQ2_0"], 1);
    for expected in [
        "a/b:TQ2_0 was not fetched",
        "Q4_K",
        "it also has Q4_K_M (5000 bytes)",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    let sent: usize = server.asked().iter().map(|asked| asked.sent).sum();
    assert_eq!(sent, 0);
}

#[test]
fn models_that_would_not_run_are_marked_in_the_list() {
    let (server, home) = (Server::start(), Home::new());
    let folder = home.path(".lmstudio/models/teller");
    for (repo, bytes) in [
        ("Tales-GGUF", TALES.to_vec()),
        ("Other-GGUF", file("gemma3", 0)),
        ("Torn-GGUF", noise(900, 6)),
    ] {
        fs::create_dir_all(folder.join(repo)).expect("it can be made");
        fs::write(folder.join(repo).join("m-Q4_K_M.gguf"), bytes).expect("it can be written");
    }
    let table = home.text(&server, &["list"]);
    let line = |name: &str| table.lines().find(|line| line.contains(name)).expect(name);
    assert!(!line("Tales").contains("does not run"), "{table}");
    assert!(
        line("Other").ends_with("  does not run: its architecture is gemma3"),
        "{table}"
    );
    assert!(line("Torn").contains("is not a GGUF file"), "{table}");
    let listed: Value =
        serde_json::from_str(&home.text(&server, &["list", "--json"])).expect("it is JSON");
    let runs = |name: &str| {
        let models = listed["models"].as_array().expect("a list");
        let model = models
            .iter()
            .find(|m| m["name"].as_str().is_some_and(|n| n.contains(name)));
        model.expect(name)["runs"].clone()
    };
    assert_eq!([runs("Tales"), runs("Other")], [true, false]);
}

#[test]
fn names_of_synthetic_models_say_how_to_use_them() {
    let (server, home) = (Server::start(), Home::new());
    for args in [
        &["pull", "tiny"][..],
        &["generate", "-m", "tiny:q8_0", "x"],
        &["pull", "tiny-glm:Q8_0"],
    ] {
        let output = home.run(&server, args);
        let error = failed(&output, 1);
        assert!(error.starts_with("no model 'tiny"), "{error}");
        // The advice of the error works.
        let name = error
            .split("--synthetic ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let (model, recipe) = name.and_then(|name| name.split_once(':')).expect("a name");
        let out = home.path("out.gguf");
        let out = out.to_str().expect("a plain path");
        let made = home.run(&server, &["synth", model, recipe, out]);
        assert!(made.status.success(), "{}", stderr(&made));
    }
    assert!(server.asked().is_empty());
}

#[test]
fn short_names_are_those_of_synth_and_bench() {
    let (server, home) = (Server::start(), Home::new());
    let (_, repo) = glimt_formats::aliases::ALIASES[3];
    server.put(repo, "m-Q4_K_M.gguf", TALES);
    let paths = ["youtu-llm", "youtu-llm-2b", "Youtu-LLM-2B:q4_k_m"]
        .map(|name| stdout(&home.run(&server, &["pull", name])));
    assert!(paths[0].ends_with("m-Q4_K_M.gguf\n") && paths.iter().all(|path| *path == paths[0]));
    let out = home.path("out.gguf");
    let out = out.to_str().expect("a plain path");
    for name in ["youtu-llm", "Youtu-LLM-2B"] {
        home.text(&server, &["synth", name, "Q4_0", out, "--layers", "1"]);
    }
}
