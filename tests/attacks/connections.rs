//! Protects others from connections that are held and do nothing.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::attacked::{PATIENCE, bystander, chat, request, sent};
use super::client::Connection;
use super::{CHAT, Server};

/// More than the places of one address, and fewer than the files that a process may usually open.
const MANY: usize = 450;

/// The head of a request whose body never comes.
const NO_BODY: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";

#[test]
fn connections_that_wait_give_their_places_to_others() {
    for bytes in [&b""[..], b"POST /v1/chat/completions HTTP/1.1\r\nX-A: "] {
        let server = Server::start(&[]);
        let held: Vec<_> = (0..MANY).map(|_| sent(&server, bytes)).collect();
        let began = Instant::now();
        assert_eq!(server.get("/health").status, 200);
        assert!(bystander(&server) < PATIENCE);
        assert!(began.elapsed() < 2 * PATIENCE);
        // The oldest was ended.
        let mut oldest = &held[0];
        assert!(matches!(oldest.read(&mut [0; 512]), Ok(_) | Err(_)));
    }
}

#[test]
fn an_address_that_holds_its_places_leaves_those_of_others_and_the_state_of_the_server() {
    let server = Server::start(&[]);
    let held: Vec<_> = (0..MANY).map(|_| sent(&server, NO_BODY)).collect();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    let refused = server.get("/v1/models");
    assert_eq!(
        (refused.status, refused.error().1.as_str()),
        (503, "too_many_connections")
    );
    // Others come from elsewhere.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let elsewhere: std::net::SocketAddr = ([127, 0, 0, 2], 0).into();
    socket
        .bind(&elsewhere.into())
        .expect("an address of loopback");
    socket.connect(&server.address.into()).expect("it listens");
    let mut stream = TcpStream::from(socket);
    let body = chat(serde_json::json!({})).to_string();
    let written = stream.write_all(request(CHAT, &body).as_bytes());
    written.expect("it reads");
    let answer = Connection(BufReader::new(stream)).response();
    assert_eq!(answer.status, 200);
    drop(held);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_that_nobody_reads_end_their_connections() {
    let server = Server::start(&[]);
    let many = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    let unread: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).expect("it listens");
            stream.set_nonblocking(true).expect("it can be told");
            let _ = stream.write(many.as_bytes());
            stream
        })
        .collect();
    let began = Instant::now();
    let is_over = |stream: &TcpStream| {
        // Who writes to a connection that the server has ended is told so.
        let mut stream = stream;
        matches!(stream.write(b"GET"), Err(error) if error.kind() != std::io::ErrorKind::WouldBlock)
    };
    while !unread.iter().all(is_over) {
        assert!(began.elapsed() < Duration::from_secs(60), "they are held");
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(bystander(&server) < PATIENCE);
}
