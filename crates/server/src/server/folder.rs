//! The files of a folder over HTTP, for a page that computes in the browser: GET and HEAD of what lies there, and nothing else.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::ServerError;

/// The most bytes of a request's head.
const HEAD: u64 = 16 << 10;
/// How long a request or a part of an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder behind a socket.
pub struct Folder {
    listener: TcpListener,
    folder: Arc<Path>,
}

impl Folder {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`ServerError::Bind`] or [`ServerError::System`].
    pub fn bind(address: SocketAddr, folder: &Path) -> Result<Self, ServerError> {
        let bound = TcpListener::bind(address);
        Ok(Self {
            listener: bound.map_err(|source| ServerError::Bind { address, source })?,
            folder: folder.into(),
        })
    }

    /// The address on which it listens.
    ///
    /// # Errors
    /// [`ServerError::System`].
    pub fn address(&self) -> Result<SocketAddr, ServerError> {
        Ok(self.listener.local_addr()?)
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// [`ServerError::System`] where the system gives no thread.
    pub fn run(self) -> Result<(), ServerError> {
        for stream in self.listener.incoming() {
            // A connection that is gone before it is taken is nobody's failure.
            let Ok(stream) = stream else { continue };
            let folder = Arc::clone(&self.folder);
            let name = thread::Builder::new().name("page".to_owned());
            name.spawn(move || {
                if let Err(error) = answer(&stream, &folder) {
                    log::debug!("a request for a file: {error}");
                }
            })?;
        }
        Ok(())
    }
}

/// Answers the one request of a connection.
fn answer(mut stream: &TcpStream, folder: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.take(HEAD)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    // To its end: a connection closed over unread bytes is reset.
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let words: Vec<_> = first.split(' ').collect();
    let refused = |status, why: &str| (status, TEXT, why.as_bytes().to_vec());
    let (status, kind, bytes) = match words[..] {
        ["GET" | "HEAD", target, _] => {
            let read = |name: PathBuf| {
                let bytes = std::fs::read(folder.join(&name)).ok()?;
                Some(("200 OK", kind(&name), bytes))
            };
            let missing = || refused("404 Not Found", "there is no such file\n");
            file(target).and_then(read).unwrap_or_else(missing)
        }
        _ => refused("405 Method Not Allowed", "files can be read only\n"),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        bytes.len()
    )?;
    if !matches!(words[..], ["HEAD", _, _]) {
        stream.write_all(&bytes)?;
    }
    stream.flush()
}

/// The file in the folder that a target names; none where it leads elsewhere.
fn file(target: &str) -> Option<PathBuf> {
    let path = target.split(['?', '#']).next()?.strip_prefix('/')?;
    let path = Path::new(if path.is_empty() { "index.html" } else { path });
    let plain = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().is_some_and(|name| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.starts_with('.') && name.chars().all(known)
        }),
        _ => false,
    };
    path.components().all(plain).then(|| path.to_owned())
}

const TEXT: &str = "text/plain; charset=utf-8";

/// The media type of a file, by the ending of its name.
fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_do_not_lead_out_of_the_folder() {
        let name = |target| file(target).map(|path| path.display().to_string());
        assert_eq!(name("/").as_deref(), Some("index.html"));
        assert_eq!(name("/?tier=plain").as_deref(), Some("index.html"));
        assert_eq!(
            name("/snippets/a-1/b.js").as_deref(),
            Some("snippets/a-1/b.js")
        );
        for other in [
            "/../a",
            "//etc/passwd",
            "/a/../../b",
            "/.git",
            "/a%2f..",
            "a",
            "",
            "/C:\\a",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    /// The whole response of the server to a request.
    fn said(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut said = String::new();
        stream
            .read_to_string(&mut said)
            .expect("it answers in text");
        said
    }

    #[test]
    fn files_are_served_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(folder.path().join("index.html"), "<p>here").expect("it can be written");
        let served = Folder::bind(([127, 0, 0, 1], 0).into(), folder.path());
        let served = served.unwrap_or_else(|e| panic!("{e}"));
        let address = served.address().unwrap_or_else(|e| panic!("{e}"));
        thread::spawn(move || served.run());
        let page = said(address, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\n<p>here"),
            "{page}"
        );
        let head = said(address, "HEAD / HTTP/1.1\r\n\r\n");
        assert!(
            head.contains("Content-Length: 7\r\n") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        for (request, status) in [
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("GET /../Cargo.toml HTTP/1.1\r\n\r\n", "404"),
            ("POST / HTTP/1.1\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "405"),
        ] {
            let found = said(address, request);
            assert!(
                found.starts_with(&format!("HTTP/1.1 {status}")),
                "{request}: {found}"
            );
        }
    }
}
