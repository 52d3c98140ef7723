//! Protects conversations that a server saves: the files are those of `generate --session`, the server goes on from either, and a refusal says
//! why.

use std::process::Command;

use serde_json::json;

use super::Server;

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
