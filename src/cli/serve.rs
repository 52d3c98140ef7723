//! `glimt serve`: a model for many users, over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::bars;
use super::error::CliError;
use super::interrupt;
use super::output::{complain, note};
use super::served::ServedArgs;
use crate::engine::Serving;
use crate::server::{Ended, Keys, Server, Settings, Start, host_name};

const EXAMPLES: &str = "\
Examples:
  glimt serve
  glimt serve -m GLM-4.7-Flash-Q4_K_M.gguf -c 32768 --port 8000
  glimt serve -m GLM-4.7-Flash-Q4_K_M.gguf --host 0.0.0.0 --api-key-file keys.txt
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}]}'

docs/serving.md tells what is served, how Codex and Claude Code are set up, which fields requests may have, and what the metrics mean. Ctrl-C and SIGTERM end the \
server in order: requests that have come are answered, others refused. The second one ends it at once.";

/// Serve a model to many users, by the APIs of OpenAI, Anthropic, llama.cpp and ollama
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Serve {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    host: IpAddr,
    /// The port to listen on; 0 takes a free one, which is printed
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// A key that requests must have; may be given several times
    #[arg(long, value_name = "KEY", env = "GLIMT_API_KEY", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    api_key: Vec<String>,
    /// A file with such keys, one in each line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen on other addresses than this machine's own without a key: everybody who reaches it is served
    #[arg(long)]
    no_key: bool,
    /// Ask for a key on /health, /metrics and the page at /, too; browsers then cannot open the page
    #[arg(long, hide_short_help = true)]
    key_everywhere: bool,
    /// Serve no page for browsers at /
    #[arg(long)]
    no_page: bool,
    /// Count all who come without a key as one user: behind a proxy, addresses do not tell who asks
    #[arg(long)]
    behind_proxy: bool,
    /// Let web pages of this origin ask, such as https://example.org; * is all; may be given several times [default: none]
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// On this machine's own addresses, answer also to this name, which a proxy passes on; * is all; may be given several times [default: those of the machine, such as localhost]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    allow_host: Vec<String>,
    /// Answer so many requests at once, 64 at most; each may have the whole context (-c), as far as the cache has room for them
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(Serving::MOST)))]
    parallel: u32,
    /// Let so many requests wait; others are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=65536))]
    queue: u32,
    /// Give up an answer after so many seconds, the time in the queue included; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u32,
    /// Refuse requests of more than so many MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024), hide_short_help = true)]
    max_body: u32,
    /// When asked to end, answer for so many seconds what has come
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        hide_short_help = true
    )]
    drain: u32,
    /// Let POST /slots/N?action=save and restore keep conversations as session files in this folder
    #[arg(long, value_name = "FOLDER", value_parser = folder, hide_short_help = true)]
    slot_save_path: Option<PathBuf>,
    #[command(flatten)]
    served: ServedArgs,
}

fn folder(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.is_dir() {
        true => Ok(path),
        false => Err("it is no folder; make it first".to_owned()),
    }
}

pub(super) fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        text => text
            .parse()
            .map_err(|_| "not an address of this machine, such as 127.0.0.1 or 0.0.0.0".to_owned()),
    }
}

impl Serve {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let source = self.served.source()?;
        let server = Server::bind(self.settings()?)?;
        let address = server.address();
        note(format_args!(
            "listening on http://{address} while the model is loaded"
        ));
        let model = self.served.load(&source, Some(self.parallel))?;
        let (name, page) = (model.name.clone(), !self.no_page && !self.key_everywhere);
        interrupt::drain_with(Box::new(server.drainer()));
        let bar = bars::runs_bar("warming up".to_owned(), 0);
        let Ended { cut, idle } = server.run(model, move |start| match start {
            Start::Warming { done, of } => bar.at_of(done as u64, of as u64),
            Start::Ready => {
                bar.end();
                note(format_args!("serving {name} on http://{address}/v1"));
                if page {
                    note(format_args!("a chat for browsers is at http://{address}/"));
                }
            }
        })?;
        let ended = match cut {
            true => Err(CliError::CutAnswers),
            false => Ok(()),
        };
        if !idle {
            if let Err(error) = &ended {
                complain(format_args!("glimt: error: {error}"));
            }
            // A driver that is taken down while it is used may crash.
            interrupt::leave(i32::from(cut));
        }
        ended
    }

    fn settings(&self) -> Result<Settings, CliError> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            keys.extend(read_keys(path)?);
        }
        let keys = Keys::new(keys.iter().map(String::as_str));
        if keys.is_empty() && !self.no_key && !self.host.is_loopback() {
            return Err(CliError::NoKey { host: self.host });
        }
        Ok(Settings {
            address: SocketAddr::new(self.host, self.port),
            keys,
            behind_proxy: self.behind_proxy,
            guard_all: self.key_everywhere,
            page: !self.no_page,
            cors: self.cors.clone(),
            hosts: self.allow_host.iter().map(|host| host_name(host)).collect(),
            queue: self.queue as usize,
            timeout: (self.timeout > 0).then(|| Duration::from_secs(self.timeout.into())),
            max_body: (self.max_body as usize) << 20,
            drain: Duration::from_secs(self.drain.into()),
            slots: self.slot_save_path.clone(),
        })
    }
}

/// The keys in a file.
pub(super) fn read_keys(path: &Path) -> Result<Vec<String>, CliError> {
    let text = std::fs::read_to_string(path).map_err(|source| CliError::ReadText {
        path: path.display().to_string(),
        source,
    })?;
    // Some editors begin a file with a mark of its encoding.
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let keys: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    match keys.is_empty() {
        true => Err(CliError::EmptyText {
            what: "file of API keys",
        }),
        false => Ok(keys),
    }
}
