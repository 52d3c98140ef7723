//! Protects a server on this machine's own addresses from web pages that have a browser ask for it under a name of theirs.

use serde_json::{Value, json};

use super::client::send;
use super::{COMPLETIONS, Server, completion};

/// Status and error of a request for a host, beside that which the connection names.
fn asked(server: &Server, host: &str, method: &str, path: &str) -> (u16, Value) {
    let body = completion(json!({"max_tokens": 1})).to_string();
    let body = if method == "POST" { body.as_str() } else { "" };
    let sent = send(server.address, method, path, &[("Host", host)], body);
    let answer = sent.response();
    (answer.status, answer.json()["error"].clone())
}

#[test]
fn a_name_of_others_is_refused_in_words() {
    let server = Server::start(&["--allow-host", "Glimt.example"]);
    for (method, path) in [
        ("GET", "/v1/models"),
        ("POST", COMPLETIONS),
        ("GET", "/health"),
    ] {
        for own in [
            "localhost",
            "127.0.0.1:8080",
            "[::1]:1",
            "glimt.example:443",
        ] {
            assert_eq!(asked(&server, own, method, path).0, 200, "{own} {path}");
        }
        let (status, error) = asked(&server, "evil.example:8080", method, path);
        assert_eq!(
            (status, &error["code"]),
            (403, &json!("host_not_allowed")),
            "{path}"
        );
        let message = error["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("'evil.example:8080'") && message.contains("--allow-host"),
            "{message}"
        );
    }
}
