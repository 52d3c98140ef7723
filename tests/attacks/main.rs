//! Protects everybody else from one client that asks for too much: each test is a bounded attack on loopback, which is refused or has to
//! wait, and the others are served.

mod attacked;
mod bodies;
#[path = "../common/client.rs"]
#[allow(dead_code)]
mod client;
#[cfg(target_os = "linux")]
mod connections;
#[path = "../common/edited.rs"]
#[allow(dead_code)]
mod edited;
mod fair;
mod grammars;
mod orders;
#[path = "../common/served.rs"]
#[allow(dead_code)]
mod served;
mod templates;

use client::Response;
use serde_json::{Value, json};
use served::Server;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Sends a request with a key.
fn post_as(server: &Server, key: &str, path: &str, body: &Value) -> Response {
    let key = format!("Bearer {key}");
    let headers = [("Authorization", key.as_str())];
    client::send(server.address, "POST", path, &headers, &body.to_string()).response()
}

/// A friendly request that must be answered.
fn friendly(server: &Server) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0});
    server.answer(COMPLETIONS, &body);
}
