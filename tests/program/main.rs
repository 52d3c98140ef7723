//! The program as those meet it who call it, ask its server, or run it beside others. Tests of one module run alone by its name, such as
//! `cargo test --test program server::`.

mod cli;
#[path = "../common/client.rs"]
mod client;
#[path = "../common/edited.rs"]
mod edited;
mod hub;
#[path = "../common/others.rs"]
mod others;
#[cfg(unix)]
mod routers;
#[path = "../common/scripted.rs"]
mod scripted;
#[path = "../common/served.rs"]
mod served;
mod server;
#[path = "../../crates/formats/src/testing.rs"]
#[allow(dead_code, reason = "other tests use its other parts")]
mod testing;
#[cfg(unix)]
mod web;
