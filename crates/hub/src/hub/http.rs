//! Requests to a hub: redirects are followed here, so that the access token never leaves the hub's own host.

use std::io::Read;
use std::time::Duration;

use ureq::http::{Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::event::Event;
use super::steady::{Steady, crawls};
use super::{HubError, Patience, Settings, Token};

/// The most redirects that are followed for one request.
const REDIRECTS: usize = 10;
/// The longest wait that a hub may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The longest wait that doubles.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why a request did not succeed.
pub(super) struct Trouble {
    /// The error, where it is not tried again.
    error: HubError,
    /// Whether another try may succeed.
    passing: bool,
    /// How long the hub asks to wait before that.
    wait: Option<Duration>,
}

impl Trouble {
    /// A trouble that will not pass.
    pub(super) fn lasting(error: HubError) -> Self {
        Self {
            error,
            passing: false,
            wait: None,
        }
    }

    /// A trouble that may pass until the next try. The hub may ask for a wait before that.
    fn passing(error: HubError, wait: Option<Duration>) -> Self {
        Self {
            error,
            passing: true,
            wait,
        }
    }

    /// An answer that cannot be used.
    pub(super) fn answer(url: &str, problem: String, advice: &'static str) -> Self {
        let url = url.to_owned();
        Self::lasting(HubError::Answer {
            url,
            problem,
            advice,
        })
    }

    /// The trouble that ended the reading of an answer. `after` says how far it came.
    pub(super) fn reading(
        url: &str,
        error: &std::io::Error,
        after: impl std::fmt::Display,
    ) -> Self {
        const SLOW: &str = "nothing is left to wait for: look at the connection and at HF_ENDPOINT, and run the command again later: what is fetched is kept";
        let problem = format!("{error}{after}");
        match crawls(error) {
            true => Self::answer(&bare(url), problem, SLOW),
            false => Self::line(url, problem),
        }
    }

    /// A line that broke, or what looks like one.
    pub(super) fn line(url: &str, problem: impl ToString) -> Self {
        const CERTIFICATE: &str = "install the root certificates of the system (on Debian: ca-certificates), or name a file with them in SSL_CERT_FILE";
        const CONNECTION: &str =
            "look at the connection, and run the command again: what is fetched is kept";
        let problem = problem.to_string();
        match problem.to_lowercase().contains("certificate") {
            true => Self::answer(&bare(url), problem, CERTIFICATE),
            false => Self {
                passing: true,
                ..Self::answer(&bare(url), problem, CONNECTION)
            },
        }
    }

    /// Waits before try number `tried + 1`.
    ///
    /// # Errors
    /// The error, if another try is of no use or more than `tries`.
    pub(super) fn wait(
        self,
        patience: &Patience,
        tried: u32,
        tries: u32,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), HubError> {
        let pause = self.pause(patience, tried);
        let Some(wait) = pause.filter(|_| tried < tries) else {
            return Err(self.error);
        };
        let why = &self.error;
        told(Event::Again { why, wait });
        std::thread::sleep(wait);
        Ok(())
    }

    /// How long to wait before try number `tried + 1`; nothing where that is of no use.
    fn pause(&self, patience: &Patience, tried: u32) -> Option<Duration> {
        let own = patience
            .first_wait
            .saturating_mul(1 << tried.saturating_sub(1).min(16));
        let wait = self.wait.unwrap_or(own.min(LONGEST_PAUSE));
        (self.passing && wait <= LONGEST_WAIT).then_some(wait)
    }
}

/// The part that is wanted of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Only the headers.
    Head,
    /// The first bytes of this number, or more if the hub knows no ranges.
    First(u64),
    /// All bytes from this one on.
    From(u64),
}

/// Asks a hub.
pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: String,
    silence: Duration,
    token: Option<Token>,
}

/// Scheme, host and port: what a token is for.
fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let port = uri.port_u16().unwrap_or(port);
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// The target of a redirect from `url`.
fn target(url: &str, location: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let joined = match location {
        _ if location.contains("://") => location.to_owned(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ => {
            let folder = uri.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{location}")
        }
    };
    // Fragments are for readers of pages.
    let joined = joined.split('#').next()?.to_owned();
    origin(&joined).map(|_| joined)
}

/// `path` with everything escaped that an address cannot have.
pub(super) fn escaped(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(one).collect()
}

/// An address without its query, which may be a signature that nobody else should see.
fn bare(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

/// A header as text.
pub(super) fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Self {
        let silence = Some(settings.patience.silence);
        let config = Agent::config_builder()
            // A company's own roots are among the system's.
            .tls_config(
                TlsConfig::builder()
                    .root_certs(RootCerts::PlatformVerifier)
                    .build(),
            )
            .user_agent(concat!("glimt/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .timeout_recv_response(silence.map(|silence| 3 * silence))
            .build();
        Self {
            agent: config.new_agent(),
            endpoint: settings.endpoint.clone(),
            silence: settings.patience.silence,
            token: settings.token.clone(),
        }
    }

    /// Reads an answer as it comes, as long as it comes at some pace.
    pub(super) fn reader<'a>(&self, response: &'a mut Response<Body>) -> impl Read + use<'a> {
        Steady::new(response.body_mut().as_reader(), self.silence)
    }

    /// One answer to a request that is no redirect; with [`Wanted::Head`] the first answer from the hub's own host that is none
    /// to a place on it. `what` is the repository or file, for errors.
    ///
    /// # Errors
    /// An error of the line or of the hub.
    pub(super) fn ask(
        &self,
        asked: &str,
        what: &str,
        wanted: Wanted,
    ) -> Result<Response<Body>, Trouble> {
        const ADVICE: &str = "the hub is not to be trusted like this, look at HF_ENDPOINT";
        let wrong = |problem| Trouble::answer(asked, problem, ADVICE);
        let own = origin(&self.endpoint);
        let mut url = asked.to_owned();
        for _ in 0..=REDIRECTS {
            let is_own = own.is_some() && origin(&url) == own;
            let response = self.once(&url, wanted, is_own)?;
            let status = response.status().as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return self.checked(response, what, &url, is_own);
            }
            let location = header(&response, "location").unwrap_or_default();
            let next = target(&url, location).ok_or_else(|| {
                wrong(format!("it redirects to '{location}', which is no address"))
            })?;
            if wanted == Wanted::Head && origin(&next) != own {
                return Ok(response);
            }
            if url.starts_with("https:") && !next.starts_with("https:") {
                return Err(wrong(format!(
                    "it redirects to {next}, which is not encrypted"
                )));
            }
            url = next;
        }
        Err(wrong("it redirects again and again".to_owned()))
    }

    fn once(&self, url: &str, wanted: Wanted, is_own: bool) -> Result<Response<Body>, Trouble> {
        let mut asked = match wanted {
            Wanted::Head => self.agent.head(url),
            Wanted::First(_) | Wanted::From(_) => self.agent.get(url),
        };
        asked = asked.header("accept-encoding", "identity");
        if let Some(token) = self.token.as_ref().filter(|_| is_own) {
            asked = asked.header("authorization", token.header());
        }
        let range = match wanted {
            Wanted::From(first @ 1..) => Some(format!("bytes={first}-")),
            Wanted::First(count) => Some(format!("bytes=0-{}", count.saturating_sub(1))),
            Wanted::Head | Wanted::From(0) => None,
        };
        if let Some(range) = range {
            asked = asked.header("range", range);
        }
        asked.call().map_err(|error| Trouble::line(url, error))
    }

    /// The answer, where its status is one that carries what was asked for.
    fn checked(
        &self,
        response: Response<Body>,
        what: &str,
        url: &str,
        is_own: bool,
    ) -> Result<Response<Body>, Trouble> {
        let status = response.status().as_u16();
        let repo = || what.to_owned();
        let told = |advice| {
            let url = bare(url);
            HubError::Status {
                url,
                status,
                advice,
            }
        };
        let lasting = |error| Err(Trouble::lasting(error));
        match status {
            // The last two say that there is no such range, which the caller handles.
            200 | 206 | 416 => Ok(response),
            401 if is_own => lasting(HubError::Unauthorized {
                repo: repo(),
                advice: match self.token {
                    None => {
                        "look at the name, and set HF_TOKEN to a token of an account that may read it"
                    }
                    Some(_) => {
                        "look at the name, and at the token in HF_TOKEN, which the hub does not accept for it"
                    }
                },
            }),
            403 if is_own => lasting(HubError::Forbidden {
                repo: repo(),
                page: format!(
                    "{}/{}",
                    self.endpoint,
                    what.split(' ').next_back().unwrap_or_default()
                ),
            }),
            404 => lasting(HubError::NotFound {
                what: repo(),
                endpoint: self.endpoint.clone(),
            }),
            429 => {
                let wait = header(&response, "retry-after")
                    .and_then(|seconds| seconds.trim().parse().ok());
                let wait_for = wait.map(Duration::from_secs);
                Err(Trouble::passing(HubError::Busy(wait), wait_for))
            }
            // Signed addresses of other hosts run out; asking the hub again gives a new one.
            401 | 403 | 408 | 500.. => {
                let error = told("the hub or its storage is at fault; try again later");
                Err(Trouble::passing(error, None))
            }
            _ => lasting(told("look at HF_ENDPOINT, which must name a hub")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        let from = "https://hub.example:8080/a/b?x=1";
        for (location, expected) in [
            ("/c", Some("https://hub.example:8080/c")),
            ("c?d#e", Some("https://hub.example:8080/a/c?d")),
            ("//other/c", Some("https://other/c")),
            ("http://other/c", Some("http://other/c")),
            ("file:///etc/passwd", None),
            ("https://", None),
        ] {
            assert_eq!(target(from, location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a, b| origin(a).is_some() && origin(a) == origin(b);
        assert!(same("https://hub/a", "https://HUB:443/b"));
        for other in [
            "http://hub/a",
            "https://hub:444/",
            "https://hub.evil/",
            "https://hub@evil/",
            "https://evil/hub",
        ] {
            assert!(!same("https://hub/a", other), "{other}");
        }
        assert_eq!(escaped("a b/ü%?.gguf"), "a%20b/%C3%BC%25%3F.gguf");
    }

    #[test]
    fn a_certificate_that_nobody_vouches_for_is_not_asked_again() {
        for problem in [
            "invalid peer certificate: UnknownIssuer",
            "rustls: unexpected error: No CA certificates were loaded from the system",
        ] {
            let trouble = Trouble::line("https://hub", problem);
            assert!(!trouble.passing);
            let said = trouble.error.to_string();
            assert!(said.contains("SSL_CERT_FILE"), "{said}");
        }
    }

    #[test]
    fn waits_grow_to_a_bound() {
        let patience = Patience::default();
        let trouble = Trouble::line("u", "p");
        let wait = |tried| {
            trouble
                .pause(&patience, tried)
                .expect("it passes")
                .as_millis()
        };
        assert_eq!(
            [wait(1), wait(2), wait(3), wait(40)],
            [500, 1000, 2000, 30_000]
        );
        let long = Trouble {
            wait: Some(Duration::from_secs(3600)),
            ..trouble
        };
        assert_eq!(long.pause(&patience, 1), None);
    }
}
