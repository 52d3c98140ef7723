//! Protects others from connections that are held and do nothing.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::attacked::{PATIENCE, answered, bystander, chat, request, sent};
use super::{CHAT, Server};

/// More than the places of one address, and fewer than the files that a process may usually open.
const MANY: usize = 450;

/// The head of a request whose body never comes.
const NO_BODY: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";

/// Sends bytes on each of these connections, again and again, until it is dropped.
struct Sending(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Sending {
    fn new(streams: &Arc<Vec<TcpStream>>, bytes: usize, pause: Duration) -> Self {
        let streams = Arc::clone(streams);
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for mut stream in streams.iter() {
                    let _ = stream.write(&vec![b' '; bytes]);
                }
                std::thread::sleep(pause);
            }
        });
        Self(ends, Some(thread))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

#[test]
fn an_honest_client_of_the_same_address_is_served_beside_connections_without_progress() {
    let unread = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
    for (bytes, drips) in [
        (&b""[..], false),
        (b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ", false),
        (b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ", true),
        (NO_BODY, false),
        (NO_BODY, true),
        (unread.as_bytes(), false),
    ] {
        let server = Server::start(&[]);
        let held = (0..MANY).map(|_| {
            let mut stream = TcpStream::connect(server.address).expect("it listens");
            stream.set_nonblocking(true).expect("it can be told");
            let _ = stream.write(bytes);
            stream
        });
        let held = Arc::new(held.collect());
        let pause = Duration::from_millis(200);
        let _dripping = drips.then(|| Sending::new(&held, 1, pause));
        for _ in 0..20 {
            assert!(bystander(&server) < PATIENCE);
        }
        assert_eq!(server.get("/health").status, 200);
    }
}

#[test]
fn connections_that_make_progress_stay_beside_those_that_make_none() {
    let server = Server::start(&[]);
    let _held: Vec<_> = (0..MANY).map(|_| sent(&server, NO_BODY)).collect();
    std::thread::sleep(Duration::from_millis(1200));
    // A stream that is read, an answer that is waited for, and a body that comes slowly.
    let [streamed, whole] = [true, false].map(|stream| {
        let body = chat(serde_json::json!({"stream": stream, "max_tokens": 8})).to_string();
        sent(&server, request(CHAT, &body).as_bytes())
    });
    let long = serde_json::json!({"prompt": "a ".repeat(6000)}).to_string();
    let long = request("/tokenize", &long);
    let (begin, rest) = long.as_bytes().split_at(1000);
    let mut slow = sent(&server, begin);
    for piece in rest.chunks(1000) {
        assert!(bystander(&server) < PATIENCE);
        slow.write_all(piece).expect("it is read");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(answered(slow).status, 200);
    let streamed = answered(streamed);
    assert!(streamed.body.contains("[DONE]"), "{streamed:?}");
    assert_eq!(answered(whole).status, 200);
}

#[test]
fn an_address_that_uses_its_places_leaves_those_of_others_and_the_state_of_the_server() {
    let server = Server::start(&[]);
    let head = String::from_utf8_lossy(NO_BODY).replace(": 1000", ": 60000");
    // All of them make progress.
    let hold = |count: usize| {
        let held = (0..count).map(|_| sent(&server, head.as_bytes()));
        Sending::new(&Arc::new(held.collect()), 500, Duration::from_millis(200))
    };
    let mut held = vec![hold(MANY)];
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    // Some may have waited while they were opened, and have left a place to who asks.
    let tries = (0..40).map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        held.push(hold(1));
        server.get("/v1/models")
    });
    let mut refused = tries.filter(|answer| answer.status != 200);
    let refused = refused.next().expect("there is no place");
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
    let sent = stream.write_all(request(CHAT, &body).as_bytes());
    sent.expect("it reads");
    assert_eq!(answered(stream).status, 200);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_that_nobody_reads_end_their_connections() {
    let server = Server::start(&[]);
    let many = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
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
