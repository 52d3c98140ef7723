//! Protects a server that runs for long: after thousands of requests of random lengths, of which a third is given up, and hundreds of clients
//! that are gone in the middle, it has the memory that it had, all its pages, and no request.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::Server;
use super::client::send;
use super::manners::memory;

/// A number that looks random, another one for each `i`.
fn random(i: usize, below: usize) -> usize {
    let mixed = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33) as usize % below
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was answered, with this status.
    Status(u16),
    /// The client went away, on purpose.
    Gone,
}

/// Sends request `i`, and leaves it if it is one of those.
fn ask(address: SocketAddr, i: usize) -> Found {
    let common =
        "Once upon a time there was a little fox who lived in a wood. ".repeat(random(3 * i, 3));
    let own = "One day it met a bird. ".repeat(1 + random(i, 4));
    let stream = random(5 * i, 2) == 0;
    let body = json!({
        "prompt": format!("{common}{i} {own}"),
        "max_tokens": 1 + random(7 * i, 24),
        "temperature": if random(11 * i, 2) == 0 { 0.0 } else { 0.9 },
        "seed": i,
        "stream": stream,
    });
    let mut connection = send(address, "POST", "/v1/completions", &[], &body.to_string());
    if !i.is_multiple_of(3) {
        return Found::Status(connection.response().status);
    }
    std::thread::sleep(Duration::from_millis(random(13 * i, 60) as u64));
    if stream && random(17 * i, 2) == 0 && connection.head().0 == 200 {
        for _ in 0..random(19 * i, 6) {
            if connection.chunk().is_none() {
                break;
            }
        }
    }
    Found::Gone
}

/// Sends requests `first` .. `first + count` from twelve clients, and asserts that each got an answer or went away.
fn round(server: &Server, first: usize, count: usize) {
    const CLIENTS: usize = 12;
    let address = server.address;
    let found: Vec<Found> = std::thread::scope(|scope| {
        let of_client = |client: usize| {
            let own = (first..first + count).filter(move |i| i % CLIENTS == client);
            scope.spawn(move || own.map(|i| ask(address, i)).collect::<Vec<_>>())
        };
        let clients: Vec<_> = (0..CLIENTS).map(of_client).collect();
        let found = clients
            .into_iter()
            .flat_map(|client| client.join().expect("a client"));
        found.collect()
    });
    server.until_idle();
    let refused = |found: &&Found| !matches!(found, Found::Gone | Found::Status(200));
    let refused: Vec<_> = found.iter().filter(refused).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// `GLIMT_SOAK=2000` sends so many requests.
#[test]
#[ignore = "long: scripts/test --all"]
fn after_many_requests_a_gpu_has_the_memory_and_the_pages_that_it_had() {
    let asked = std::env::var("GLIMT_SOAK").ok();
    let requests: usize = asked.and_then(|n| n.parse().ok()).unwrap_or(96);
    let gpu = ["--device", "0", "--tier", "subgroup", "-c", "256"];
    let many = ["--parallel", "8", "--cache-tokens", "1024", "--queue", "64"];
    let server = Server::start(&[&gpu[..], &many[..]].concat());
    // One who never reads. Its answer waits in its connection and stops nobody.
    let body = json!({"prompt": "Once", "max_tokens": 200, "stream": true, "ignore_eos": true});
    let slow = send(
        server.address,
        "POST",
        "/v1/completions",
        &[],
        &body.to_string(),
    );
    let rounds = 4;
    let mut before = 0;
    for i in 0..rounds {
        let each = requests.div_ceil(rounds);
        round(&server, i * each, each);
        if i == 0 {
            before = memory(&server);
        }
    }
    drop(slow);
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more than {before}");
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(server.metric("vllm:num_requests_running"), 0.0);
}
