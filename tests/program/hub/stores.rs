//! Protects finding models that other programs have fetched, and that these are only read.

use std::fs;

use serde_json::{Value, json};

use super::server::{Server, sha256};
use super::{Home, TALES, files, noise, stderr};

const GREEDY: [&str; 8] = [
    "generate", "--device", "cpu", "--raw", "--temp", "0", "-n", "4",
];

/// Puts a model into ollama's store.
fn into_ollama(home: &Home, name: &str, weights: &[u8], kind: &str) {
    let digest = |bytes: &[u8]| {
        let blobs = home.path("ollama/blobs");
        fs::create_dir_all(&blobs).expect("it can be made");
        let sum = sha256(bytes);
        fs::write(blobs.join(format!("sha256-{sum}")), bytes).expect("it can be written");
        format!("sha256:{sum}")
    };
    let config = json!({ "model_format": "gguf", "model_family": "deepseek2", "file_type": kind })
        .to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": { "mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest(config.as_bytes()), "size": config.len() },
        "layers": [
            { "mediaType": "application/vnd.ollama.image.template", "digest": digest(b"{{ .Prompt }}"), "size": 13 },
            { "mediaType": "application/vnd.ollama.image.model", "digest": digest(weights), "size": weights.len() },
        ],
    });
    let path = home.path("ollama/manifests").join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
    fs::write(path, manifest.to_string()).expect("it can be written");
}

/// Puts a model into LM Studio's folder.
fn into_lm_studio(home: &Home, name: &str, bytes: &[u8]) {
    let path = home.path(".lmstudio/models").join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
    fs::write(path, bytes).expect("it can be written");
}

fn listed(home: &Home, server: &Server) -> Vec<Value> {
    let listed: Value =
        serde_json::from_str(&home.text(server, &["list", "--json"])).expect("it is JSON");
    listed["models"].as_array().expect("a list").clone()
}

#[test]
fn models_of_other_programs_are_found_and_generate_text() {
    let (server, home) = (Server::start(), Home::new());
    let built_in = home.text(&server, &[&GREEDY[..], &["Once"]].concat());
    into_ollama(
        &home,
        "registry.ollama.ai/library/tales/latest",
        TALES,
        "Q4_K_M",
    );
    into_ollama(&home, "registry.ollama.ai/teller/more/16m", TALES, "Q4_K_M");
    into_ollama(
        &home,
        "hf.example/teller/Tales-GGUF/Q4_K_M",
        TALES,
        "unknown",
    );
    into_lm_studio(&home, "teller/Tales-GGUF/tales-Q4_K_M.gguf", TALES);
    let before = files(home.folder.path());
    for (name, store) in [
        ("tales", "ollama"),
        ("tales:latest", "ollama"),
        ("ollama:tales", "ollama"),
        ("ollama:TALES:latest", "ollama"),
        ("ollama:teller/more", "ollama"),
        ("ollama:hf.example/teller/Tales-GGUF:Q4_K_M", "ollama"),
        ("teller/Tales-GGUF", "LM Studio"),
        ("teller/Tales-GGUF:Q4_K_M", "LM Studio"),
    ] {
        let output = home.run(&server, &[&GREEDY[..], &["-m", name, "Once"]].concat());
        let told = stderr(&output);
        assert!(
            output.status.success() && told.contains(&format!("({store})")),
            "{name}: {told}"
        );
        assert_eq!(super::stdout(&output), built_in);
    }
    let names: Vec<_> = listed(&home, &server)
        .iter()
        .map(|model| model["name"].clone())
        .collect();
    assert_eq!(
        names,
        [
            "teller/Tales-GGUF",
            "ollama:hf.example/teller/Tales-GGUF:Q4_K_M",
            "ollama:tales:latest",
            "ollama:teller/more:16m"
        ]
    );
    let table = home.text(&server, &["list"]);
    let expected = "ollama:tales:latest                         Q4_K_M";
    assert!(table.contains(expected), "{table}");
    assert_eq!(files(home.folder.path()), before, "they are only read");
    assert!(server.asked().is_empty());
}

#[test]
fn a_name_that_several_tags_have_is_told() {
    let (server, home) = (Server::start(), Home::new());
    into_ollama(
        &home,
        "registry.ollama.ai/library/tales/q4",
        TALES,
        "Q4_K_M",
    );
    into_ollama(&home, "registry.ollama.ai/library/tales/q8", TALES, "Q8_0");
    let error = home.failure(&server, &["inspect", "tales"], 1);
    assert!(
        error.contains("name one: ollama:tales:q4, ollama:tales:q8"),
        "{error}"
    );
    home.text(&server, &["inspect", "tales:q8"]);
    let error = home.failure(&server, &["inspect", "tales:q5"], 1);
    assert!(error.contains("no such file"), "{error}");
}

#[test]
fn a_short_name_is_found_in_every_store() {
    let (server, home) = (Server::start(), Home::new());
    into_ollama(
        &home,
        "registry.ollama.ai/library/youtu-llm/latest",
        TALES,
        "Q4_K_M",
    );
    let told = |home: &Home| stderr(&home.run(&server, &["inspect", "youtu-llm"]));
    assert!(told(&home).contains("(ollama)"));
    into_lm_studio(
        &home,
        "tencent/Youtu-LLM-2B-GGUF/Youtu-LLM-2B-Q8_0.gguf",
        TALES,
    );
    assert!(told(&home).contains("(LM Studio)"));
}

#[test]
fn damaged_stores_are_no_models() {
    let (server, home) = (Server::start(), Home::new());
    into_ollama(
        &home,
        "registry.ollama.ai/library/whole/latest",
        TALES,
        "Q4_K_M",
    );
    for (name, text) in [
        ("half", "{\"layers\":[{\"mediaT"),
        (
            "evil",
            r#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:../../../etc/passwd"}]}"#,
        ),
        (
            "gone",
            &format!(
                r#"{{"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{}"}}]}}"#,
                "0".repeat(64)
            ),
        ),
        ("none", "[]"),
    ] {
        let path = home
            .path("ollama/manifests/registry.ollama.ai/library")
            .join(name);
        fs::create_dir_all(&path).expect("it can be made");
        fs::write(path.join("latest"), text).expect("it can be written");
    }
    into_lm_studio(&home, "a/b/m-Q4_0-00001-of-00002.gguf", &noise(100, 1));
    #[cfg(unix)]
    {
        let folder = home.hub().join("models--c--d/snapshots/0123456789abcdef");
        fs::create_dir_all(&folder).expect("it can be made");
        std::os::unix::fs::symlink("../../blobs/nothing", folder.join("m-Q4_0.gguf"))
            .expect("links are possible");
        // A circle of folders ends.
        std::os::unix::fs::symlink("..", home.path(".lmstudio/models/a/b/up"))
            .expect("links are possible");
    }
    let models = listed(&home, &server);
    let names: Vec<_> = models
        .iter()
        .map(|model| (model["name"].clone(), model["whole"].clone()))
        .collect();
    assert_eq!(
        names,
        [
            (json!("a/b"), json!(false)),
            (json!("ollama:whole:latest"), json!(true))
        ]
    );
    let error = home.failure(&server, &["inspect", "a/b"], 1);
    assert!(
        error.contains("lacks shards of Q4_0: m-Q4_0-00002-of-00002.gguf"),
        "{error}"
    );
}

#[test]
fn models_of_other_programs_are_theirs_to_remove() {
    let (server, home) = (Server::start(), Home::new());
    into_ollama(
        &home,
        "registry.ollama.ai/library/tales/latest",
        TALES,
        "Q4_K_M",
    );
    into_lm_studio(&home, "a/b/m-Q4_0.gguf", &noise(100, 1));
    let before = files(home.folder.path());
    let error = home.failure(&server, &["rm", "--yes", "tales"], 1);
    assert!(error.contains("ollama rm tales:latest"), "{error}");
    let error = home.failure(&server, &["rm", "--yes", "a/b"], 1);
    assert!(
        error.contains("LM Studio") && error.contains("a/b"),
        "{error}"
    );
    let error = home.failure(&server, &["rm", "--yes", "c/d"], 1);
    assert!(error.contains("glimt list"), "{error}");
    assert_eq!(files(home.folder.path()), before);
}

#[test]
fn lm_studio_is_read_where_its_pointer_says() {
    let (server, home) = (Server::start(), Home::new());
    let moved = home.path("big disk/lm");
    let model = moved.join("models/a/b/m-Q4_0.gguf");
    fs::create_dir_all(model.parent().expect("it has a folder")).expect("there is room");
    fs::write(&model, TALES).expect("there is room");
    let args = ["-m", "a/b", "--device", "cpu", "--raw", "-n", "1", "Once"];
    let generate = [&["generate"][..], &args].concat();
    assert!(home.failure(&server, &generate, 1).contains("a/b"));
    let pointer = home.path(".lmstudio-home-pointer");
    fs::write(pointer, format!("{}\n", moved.display())).expect("there is room");
    let list = home.text(&server, &["list"]);
    assert!(list.contains("a/b") && list.contains("LM Studio"), "{list}");
    home.text(&server, &generate);
}
