//! Protects everybody else from one client that asks for too much: each test is a bounded attack on loopback, which is refused or has to
//! wait, and the others are served.

mod attacked;
mod bodies;
#[path = "../server/client.rs"]
#[allow(dead_code)]
mod client;
#[cfg(target_os = "linux")]
mod connections;
mod grammars;
#[path = "../common/served.rs"]
#[allow(dead_code)]
mod served;
mod templates;
