//! A small hub on loopback that speaks as Hugging Face's does, and misbehaves as a test asks. It also keeps what it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::Digest;

/// The faults of the hub, and how many of its answers have them.
#[derive(Clone, Default)]
pub struct Manners {
    /// Files come in pieces of this length, with a pause behind each.
    pub slow: Option<(usize, Duration)>,
    /// So many answers with content end after this many bytes.
    pub cut: Option<(usize, usize)>,
    /// So many answers with content fall silent after this many bytes, and stay open.
    pub silent: Option<(usize, usize)>,
    /// The answer to a request for the middle of a file: `Some(200)` sends all, `Some(416)` refuses.
    pub no_ranges: Option<u16>,
    /// So many answers have this status, and these headers.
    pub refuse: Option<(usize, u16, &'static str)>,
    /// The first bit of every file is flipped on the way.
    pub flip: bool,
    /// Files come from this address, by a redirect.
    pub storage: Option<String>,
    /// Redirects of files are given for this many steps on the hub itself first.
    pub hops: usize,
    /// The listing tells neither length nor checksum.
    pub terse: bool,
    /// The listing tells this length of every file.
    pub claim: Option<u64>,
    /// More bytes are sent than there are.
    pub more: bool,
    /// Only who has this token may ask.
    pub token: Option<&'static str>,
    /// The listing is this text.
    pub listing: Option<String>,
    /// The architecture that the listing tells, in place of one that runs; none if the text is empty.
    pub architecture: Option<&'static str>,
    /// The names of files in the listing, in place of the real ones.
    pub rename: Option<String>,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub path: String,
    /// With names in small letters.
    pub headers: BTreeMap<String, String>,
    /// Bytes of content that were sent.
    pub sent: usize,
    /// Which request of all.
    number: usize,
}

#[derive(Default)]
struct State {
    /// By repository and name.
    files: BTreeMap<(String, String), Arc<Vec<u8>>>,
    /// The lengths that the listing tells of files of which the hub has the beginning alone, by name.
    lengths: BTreeMap<String, u64>,
    manners: Manners,
    asked: Vec<Asked>,
    count: usize,
}

/// A hub that runs until the test ends.
pub struct Server {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// The commit of a repository: of its files, so that a new file makes a new one.
fn commit(files: &[(String, Arc<Vec<u8>>)]) -> String {
    let mut all = sha2::Sha256::new();
    for (name, bytes) in files {
        all.update(name);
        all.update(bytes.as_slice());
    }
    hex(&all.finalize())[..40].to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// The name that git gives a file.
pub fn git_sha1(bytes: &[u8]) -> String {
    let mut all = sha1::Sha1::new();
    all.update(format!("blob {}\0", bytes.len()));
    all.update(bytes);
    hex(&all.finalize())
}

/// Whether the hub keeps a file outside of git, as it does with large ones.
fn is_large(bytes: &[u8]) -> bool {
    bytes.len() > 1000
}

fn etag(bytes: &[u8]) -> String {
    if is_large(bytes) {
        sha256(bytes)
    } else {
        git_sha1(bytes)
    }
}

impl Server {
    /// Starts a hub without repositories.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A failure of a connection is told by the other side.
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a file into a repository.
    pub fn put(&self, repo: &str, name: &str, bytes: impl Into<Vec<u8>>) {
        let key = (repo.to_owned(), name.to_owned());
        self.state().files.insert(key, Arc::new(bytes.into()));
    }

    /// Puts the beginning of a file into a repository, whose listing tells the length of all of it.
    pub fn put_beginning(&self, repo: &str, name: &str, bytes: Vec<u8>, length: u64) {
        self.put(repo, name, bytes);
        self.state().lengths.insert(name.to_owned(), length);
    }

    /// From now on it behaves so.
    pub fn behave(&self, manners: Manners) {
        self.state().manners = manners;
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    /// The commit that a repository has now.
    pub fn commit(&self, repo: &str) -> String {
        commit(&of_repo(&self.state(), repo))
    }
}

fn of_repo(state: &State, repo: &str) -> Vec<(String, Arc<Vec<u8>>)> {
    let files = state.files.iter().filter(|((of, _), _)| of == repo);
    files
        .map(|((_, name), bytes)| (name.clone(), Arc::clone(bytes)))
        .collect()
}

/// One fault less of a kind that is counted; whether there was one.
fn spend(left: &mut usize) -> bool {
    let spent = *left > 0;
    *left = left.saturating_sub(1);
    spent
}

struct Reply {
    status: u16,
    headers: String,
    body: Arc<Vec<u8>>,
    /// Of the body, what is sent.
    from: usize,
    is_file: bool,
}

impl Reply {
    fn new(status: u16, headers: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: headers.into(),
            body: Arc::new(body.into()),
            from: 0,
            is_file: false,
        }
    }
}

/// Answers the one request of a connection.
fn answer(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let mut asked = Asked {
        method,
        path,
        headers,
        sent: 0,
        number: 0,
    };
    let (reply, manners) = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = reply(&mut state, &asked);
        let mut manners = state.manners.clone();
        if reply.is_file && asked.method == "GET" {
            let spent = |fault: &mut Option<(usize, usize)>| {
                let is = fault.as_mut().is_some_and(|(left, _)| spend(left));
                fault.filter(|_| is)
            };
            manners.cut = spent(&mut state.manners.cut);
            manners.silent = spent(&mut state.manners.silent);
        }
        state.count += 1;
        asked.number = state.count;
        state.asked.push(asked.clone());
        (reply, manners)
    };
    let mut told = |bytes| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = state
            .asked
            .iter_mut()
            .find(|kept| kept.number == asked.number)
        {
            kept.sent += bytes;
        }
    };
    send(stream, &asked, &reply, &manners, &mut told)
}

fn send(
    mut stream: TcpStream,
    asked: &Asked,
    reply: &Reply,
    manners: &Manners,
    told: &mut dyn FnMut(usize),
) -> Option<()> {
    let mut bytes = reply.body[reply.from..].to_vec();
    if reply.is_file && manners.flip && reply.from == 0 {
        bytes[0] ^= 1;
    }
    if reply.is_file && manners.more {
        bytes.extend([0; 100_000]);
    }
    let length = bytes.len();
    let head = format!(
        "HTTP/1.1 {} Status\r\nContent-Length: {length}\r\nConnection: close\r\n{}\r\n",
        reply.status, reply.headers
    );
    stream.write_all(head.as_bytes()).ok()?;
    if asked.method == "HEAD" {
        return Some(());
    }
    if !reply.is_file {
        return stream.write_all(&bytes).ok();
    }
    let cut = manners.cut.map(|(_, after)| after);
    let silent = manners.silent.map(|(_, after)| after);
    bytes.truncate(cut.or(silent).unwrap_or(length));
    let (piece, pause) = manners.slow.unwrap_or((1 << 16, Duration::ZERO));
    for piece in bytes.chunks(piece) {
        stream.write_all(piece).ok()?;
        told(piece.len());
        std::thread::sleep(pause);
    }
    if silent.is_some() {
        std::thread::sleep(Duration::from_secs(60));
    }
    Some(())
}

fn reply(state: &mut State, asked: &Asked) -> Reply {
    let manners = &mut state.manners;
    let own = |name: &str| asked.headers.get(name).map(String::as_str);
    let is_storage = asked.path.starts_with("/storage/");
    if let Some((left, status, headers)) = &mut manners.refuse
        && spend(left)
    {
        return Reply::new(*status, *headers, "{}");
    }
    if let Some(token) = manners.token
        && !is_storage
        && own("authorization") != Some(&format!("Bearer {token}"))
    {
        return Reply::new(401, "", "{\"error\":\"Repository not found\"}");
    }
    let path = asked.path.split('?').next().unwrap_or_default().to_owned();
    if let Some(rest) = path.strip_prefix("/api/models/") {
        let repo: Vec<&str> = rest.split('/').take(2).collect();
        return listing(state, &repo.join("/"));
    }
    file(state, asked, &path)
}

fn listing(state: &State, repo: &str) -> Reply {
    let files = of_repo(state, repo);
    let manners = &state.manners;
    if files.is_empty() {
        return Reply::new(404, "X-Error-Code: RepoNotFound\r\n", "{}");
    }
    if let Some(text) = &manners.listing {
        return Reply::new(200, "", text.as_str());
    }
    let sibling = |(name, bytes): &(String, Arc<Vec<u8>>)| {
        let length = state.lengths.get(name).copied();
        let size = manners.claim.or(length).unwrap_or(bytes.len() as u64);
        let name = manners.rename.as_ref().unwrap_or(name);
        let mut told = json!({ "rfilename": name });
        if !manners.terse {
            told["size"] = size.into();
            told["blobId"] = git_sha1(bytes).into();
        }
        if !manners.terse && is_large(bytes) {
            told["lfs"] = json!({ "sha256": sha256(bytes), "size": size, "pointerSize": 134 });
        }
        told
    };
    let siblings: Vec<Value> = files.iter().map(sibling).collect();
    let mut answer =
        json!({ "id": repo, "modelId": repo, "sha": commit(&files), "siblings": siblings });
    match manners.architecture.unwrap_or("deepseek2") {
        "" => {}
        told => {
            answer["gguf"] = json!({ "total": 1000, "architecture": told, "context_length": 4096 })
        }
    }
    Reply::new(
        200,
        "Content-Type: application/json\r\n",
        answer.to_string(),
    )
}

/// The first and the last byte that are asked for.
fn range(asked: &Asked) -> (Option<usize>, Option<usize>) {
    let range = asked
        .headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes="));
    let mut ends = range.iter().flat_map(|range| range.split('-'));
    let mut end = || ends.next()?.parse::<usize>().ok();
    (end(), end())
}

/// `/user/repo/resolve/REVISION/NAME`, and with `/storage` before it where redirects lead.
fn file(state: &State, asked: &Asked, path: &str) -> Reply {
    let manners = &state.manners;
    let (is_storage, plain) = match path.strip_prefix("/storage") {
        Some(plain) => (true, plain),
        None => (false, path),
    };
    let parts: Vec<&str> = plain.trim_start_matches('/').splitn(5, '/').collect();
    let [user, repo, "resolve", _, name] = parts[..] else {
        return Reply::new(404, "", "");
    };
    let repo = format!("{user}/{repo}");
    let files = of_repo(state, &repo);
    let commit = commit(&files);
    let Some((_, bytes)) = files
        .into_iter()
        .find(|(there, _)| there == &name.replace("%20", " "))
    else {
        return Reply::new(
            404,
            format!("X-Repo-Commit: {commit}\r\nX-Error-Code: EntryNotFound\r\n"),
            "",
        );
    };
    let etag = etag(&bytes);
    let mut headers = format!("X-Repo-Commit: {commit}\r\nAccept-Ranges: bytes\r\n");
    let hop = asked
        .path
        .split("hop=")
        .nth(1)
        .and_then(|hop| hop.parse::<usize>().ok())
        .unwrap_or(0);
    let to = match &manners.storage {
        _ if hop < manners.hops => Some(format!("{path}?hop={}", hop + 1)),
        Some(storage) if !is_storage => Some(format!("{storage}/storage{path}?signature=abc")),
        _ => None,
    };
    if is_large(&bytes) && !is_storage {
        headers += &format!(
            "X-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {}\r\n",
            bytes.len()
        );
    }
    if let Some(to) = to {
        return Reply::new(
            302,
            format!("{headers}Location: {to}\r\nETag: \"pointer\"\r\n"),
            "",
        );
    }
    headers += &format!("ETag: \"{etag}\"\r\n");
    let (from, to) = range(asked);
    let mut reply = Reply {
        status: 200,
        headers,
        body: bytes,
        from: 0,
        is_file: true,
    };
    let Some(from) = from else {
        return reply;
    };
    match manners.no_ranges {
        Some(416) => Reply::new(416, "", ""),
        Some(_) => reply,
        None if from >= reply.body.len() => Reply::new(416, "", ""),
        None => {
            let length = reply.body.len();
            let to = to.unwrap_or(length).min(length - 1);
            reply.headers += &format!("Content-Range: bytes {from}-{to}/{length}\r\n");
            reply.body = Arc::new(reply.body[..=to].to_vec());
            (reply.status, reply.from) = (206, from);
            reply
        }
    }
}
