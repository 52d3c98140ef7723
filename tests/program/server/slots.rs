//! Protects conversations that a server saves: the files are those of `generate --session`, the server goes on from either, and a refusal says
//! why.

use std::fs::File;
use std::process::Command;

use serde_json::json;

use super::Server;
use super::llama::events;

#[test]
fn a_conversation_goes_on_in_the_server_and_on_the_command_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("temporary paths are UTF-8");
    let mut server = Server::start(&["-c", "256", "--parallel", "2", "--slot-save-path", path]);
    let act = |server: &Server, action: &str, name: &str| {
        let route = format!("/slots/1?action={action}");
        server.post(&route, &json!({"filename": name}))
    };
    let said = server.answer(
        "/completion",
        &json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0, "id_slot": 1, "return_tokens": true}),
    );
    let answered = said["tokens"].as_array().expect("tokens").len();
    let saved = act(&server, "save", "tale").json();
    let tokens = said["tokens_evaluated"].as_u64().expect("a count") + answered as u64;
    assert_eq!(saved["n_saved"], tokens, "{saved}");
    let file = std::fs::metadata(folder.path().join("tale")).expect("it is there");
    assert_eq!(saved["n_written"], file.len(), "{saved}");

    let mut generate = Command::new(env!("CARGO_BIN_EXE_glimt"));
    generate.args([
        "generate", "--raw", "--device", "cpu", "--temp", "0", "-n", "4", "-c", "256",
    ]);
    generate.args(["--session", &format!("{path}/tale"), " and then"]);
    let output = generate.output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let goes_on = format!("{tokens} tokens, {} of them in the cache", tokens - 1);
    assert!(output.status.success() && told.contains(&goes_on), "{told}");
    let more = String::from_utf8_lossy(&output.stdout).into_owned();

    let erased = server.post("/slots/1?action=erase", &json!({})).json();
    assert_eq!(erased["n_erased"], tokens, "{erased}");
    let restored = act(&server, "restore", "tale").json();
    let longer = restored["n_restored"].as_u64().expect("a count");
    assert!(longer > tokens, "{restored}");
    // The command line may have written the beginning as well.
    let begins = said["content"].as_str().expect("a text");
    let more = more.trim_end_matches('\n');
    let more = more.find(" and then").map_or(more, |at| &more[at..]);
    let more = more.strip_prefix(" and then").unwrap_or(more);
    let prompt = format!("Once upon a time{begins} and then{more} he");
    let next = server.answer("/completion", &json!({"prompt": prompt, "n_predict": 1}));
    let found = next["timings"]["cache_n"].as_u64().expect("a count");
    assert!(found >= longer - 2, "{found} of {longer}: {prompt:?}");

    let status = |server: &Server, route: &str, name: &str| {
        let refused = server.post(route, &json!({"filename": name}));
        let message = refused.json()["error"]["message"].to_string();
        (refused.status, message)
    };
    for (route, name, expected) in [
        ("/slots/2?action=save", "tale", 404),
        ("/slots/1?action=save", "../tale", 400),
        ("/slots/1?action=restore", "none", 404),
        ("/slots/1?action=fetch", "tale", 400),
    ] {
        let (found, message) = status(&server, route, name);
        assert_eq!(found, expected, "{route} {name}: {message}");
    }
    std::fs::write(folder.path().join("foreign"), "no session").expect("it is written");
    let (found, message) = status(&server, "/slots/1?action=restore", "foreign");
    assert!(
        found == 400 && message.contains("is no session file"),
        "{message}"
    );
    let refused = server.post("/completion", &json!({"prompt": "a", "id_slot": 2}));
    assert_eq!(refused.status, 400, "{refused:?}");
    server.child.kill().expect("it runs");
}

#[test]
fn a_file_in_use_is_a_conflict_and_a_full_cache_is_told_for_later() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("temporary paths are UTF-8");
    let mut server = Server::start(&[
        "-c",
        "256",
        "--parallel",
        "2",
        "--cache-tokens",
        "256",
        "--slot-save-path",
        path,
    ]);
    let act = |action: &str| {
        let route = format!("/slots/1?action={action}");
        server.post(&route, &json!({"filename": "tale"}))
    };
    // The cache has four pages of 64 rows, and this takes two.
    server.answer(
        "/completion",
        &json!({"prompt": vec![300; 100], "n_predict": 1, "id_slot": 1}),
    );
    assert_eq!(act("save").status, 200);
    let file = File::options()
        .write(true)
        .open(folder.path().join("tale"))
        .expect("it was saved");
    file.lock().expect("nobody else has it");
    for action in ["save", "restore"] {
        let refused = act(action);
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(refused.error().1, "busy");
    }
    drop(file);
    // Another conversation holds three while it is answered.
    let long = json!({
        "prompt": vec![400; 150], "n_predict": 100, "id_slot": 0, "stream": true, "ignore_eos": true,
    });
    let mut running = server.begin("/completion", &long);
    assert_eq!(running.head().0, 200);
    running.chunk();
    let refused = act("restore");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.error().1, "cache_full");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("rows of the cache"), "{message}");
    drop(running);
    server.until_idle();
    assert_eq!(act("restore").status, 200);
    server.child.kill().expect("it runs");
}

#[test]
fn an_answer_tells_the_slot_that_it_is_kept_in() {
    let mut server = Server::start(&["-c", "256", "--parallel", "2"]);
    let ask = |more: serde_json::Value| {
        let mut body = json!({"prompt": "Once", "n_predict": 2, "temperature": 0});
        let more = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(more);
        body
    };
    for slot in [1, 0] {
        let said = server.answer("/completion", &ask(json!({"id_slot": slot})));
        assert_eq!(said["id_slot"], slot, "{said}");
        let events = events(&server, ask(json!({"id_slot": slot, "stream": true})));
        assert!(events.len() > 1);
        for event in events {
            assert_eq!(event["id_slot"], slot, "{event}");
        }
    }
    // Two answers at once have a slot each.
    let both = server.answer("/completion", &ask(json!({"prompt": ["One", "Two"]})));
    let mut slots: Vec<_> = both.as_array().expect("two answers").iter().collect();
    slots.sort_by_key(|answer| answer["id_slot"].as_u64());
    let slots: Vec<_> = slots.iter().map(|answer| &answer["id_slot"]).collect();
    assert_eq!(slots, [0, 1]);
    server.child.kill().expect("it runs");
}
