//! Which names a server on this machine's own addresses answers to. A web page may point a name of its own at this machine and have a
//! browser ask for it; the browser then takes the server for a part of the page, and sends the name with each request.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::error::ApiError;

/// Refuses requests for names that are not this server's.
pub(super) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let settings = &app.settings;
    // Whoever is reached from other machines has names that only they know.
    if !settings.address.ip().is_loopback() {
        return next.run(request).await;
    }
    match foreign(request.headers(), request.uri(), &settings.hosts) {
        None => next.run(request).await,
        Some(name) => {
            let message = format!(
                "this server listens on this machine alone and answers to its own names, such as localhost, 127.0.0.1 and [::1], but the request is for the host '{name}'; a proxy that passes its own name on is allowed with --allow-host NAME"
            );
            let error = ApiError::new(StatusCode::FORBIDDEN, message);
            error.with_code("host_not_allowed").into_response()
        }
    }
}

/// A name that a request is for and that is neither this machine's nor one of `allowed`. Who names no host is no browser.
fn foreign(headers: &HeaderMap, uri: &Uri, allowed: &BTreeSet<String>) -> Option<String> {
    let named = headers.get_all(header::HOST).iter();
    let named = named.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let mut named = named.chain(uri.authority().map(ToString::to_string));
    named.find(|host| !is_own(host, allowed))
}

/// Whether a host, with or without a port, is this machine or allowed. A name without a dot may be anybody's: a network may complete it with
/// a domain of its own.
fn is_own(host: &str, allowed: &BTreeSet<String>) -> bool {
    let name = name(host);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_local
        // A request may name no host.
        || matches!(name.as_str(), "" | "localhost")
        || name.ends_with(".localhost")
        || allowed.contains("*")
        || allowed.contains(&name)
}

/// The name of a host without its port, as names are compared.
pub fn name(host: &str) -> String {
    let host = host.trim();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        // An IPv6 address stands in brackets if a port follows.
        Some((name, port)) if is_port(port) && (name.ends_with(']') || !name.contains(':')) => name,
        _ => host,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_and_allowed_ones_are_answered_to() {
        let allowed = BTreeSet::from(["glimt.example".to_owned()]);
        for own in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:9",
            "127.8.8.8",
            "[::1]",
            "[::1]:8080",
            "",
            "chat.localhost",
            "glimt.example",
            "Glimt.example:443",
        ] {
            assert!(is_own(own, &allowed), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:127.0.0.1",
            "localhost:80.evil.example",
            "localhost@evil.example",
            "::2",
            "192.168.0.1:8080",
            "[::2]:8080",
            "0.0.0.0",
            "glimt",
            "glimt:8080",
            "evil.",
            "2130706433",
            "0x7f000001",
            "glimt.example.evil",
        ] {
            assert!(!is_own(other, &allowed), "{other}");
        }
        assert!(is_own("evil.example", &BTreeSet::from(["*".to_owned()])));
    }
}
