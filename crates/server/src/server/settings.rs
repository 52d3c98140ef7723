//! How a server behaves.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::keys::Keys;

/// How a server behaves.
#[derive(Clone)]
pub struct Settings {
    /// The address on which it listens. Port 0 is any that is free.
    pub address: SocketAddr,
    /// The keys of those who are served.
    pub keys: Keys,
    /// Whether all connections come from a proxy, so that their addresses do not tell who asks.
    pub behind_proxy: bool,
    /// Whether the page, `/health` and `/metrics` want a key, too.
    pub guard_all: bool,
    /// Whether there is a page for browsers at `/`.
    pub page: bool,
    /// The origins whose web pages may ask; `*` is all.
    pub cors: Vec<String>,
    /// The names that it answers to on this machine's own addresses, beside those of the machine; `*` is all.
    pub hosts: BTreeSet<String>,
    /// Requests that may wait, beside those that are answered.
    pub queue: usize,
    /// How long an answer may take, with the time in the queue; `None` is for ever.
    pub timeout: Option<Duration>,
    /// The most bytes of a request.
    pub max_body: usize,
    /// How long requests are answered for after the server was asked to end.
    pub drain: Duration,
    /// The folder of the session files that slots are saved to, where that may be asked for.
    pub slots: Option<PathBuf>,
}

#[cfg(test)]
impl Settings {
    /// The settings of a server that opens no socket.
    pub(super) fn for_tests() -> Self {
        Self {
            address: ([127, 0, 0, 1], 0).into(),
            keys: Keys::default(),
            behind_proxy: false,
            guard_all: false,
            page: false,
            cors: vec![],
            hosts: BTreeSet::new(),
            queue: 4,
            timeout: None,
            max_body: 1 << 20,
            drain: Duration::ZERO,
            slots: None,
        }
    }
}
