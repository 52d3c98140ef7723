//! Protects a server from those who want to silence it: each test is a bounded attack on loopback, and others have to be served meanwhile.

mod bodies;
#[cfg(target_os = "linux")]
mod connections;
mod served;
