//! Protects the page at `/`: browsers get it without a key, run nothing but its own script, and load nothing from elsewhere.

use serde_json::json;

use super::Server;
use super::client::{Response, send};

fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response {
    send(server.address, "GET", path, headers, "").response()
}

#[test]
fn the_page_is_given_without_a_key_and_under_a_strict_policy() {
    let mut server = Server::start(&["--api-key", "first"]);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let policy = page.header("content-security-policy").unwrap_or_default();
    for part in [
        "default-src 'none'",
        "script-src 'sha256-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(part), "{part} is not in {policy}");
    }
    assert!(page.body.starts_with("<!doctype html>"));
    assert!(page.body.trim_end().ends_with("</html>"));
    assert_eq!(server.logged("/")["status"], 200);
    // The rest wants a key, however much it looks like the page.
    for path in ["/v1/models", "//", "/?", "/index.html", "/./v1/models"] {
        let expected = if path == "/?" { 200 } else { 401 };
        assert_eq!(server.get(path).status, expected, "{path}");
    }
}

#[test]
fn a_browser_that_has_the_page_gets_it_once() {
    let server = Server::start(&[]);
    let tag = server
        .get("/")
        .header("etag")
        .expect("it has one")
        .to_owned();
    for known in [tag.clone(), format!("\"other\", W/{tag}")] {
        let again = get(&server, "/", &[("If-None-Match", &known)]);
        assert_eq!((again.status, again.body.as_str()), (304, ""), "{known}");
        assert_eq!(again.header("etag"), Some(tag.as_str()));
    }
    assert_eq!(
        get(&server, "/", &[("If-None-Match", "\"other\"")]).status,
        200
    );
    let head = send(server.address, "HEAD", "/", &[], "").response();
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(server.post("/", &json!({})).status, 405);
}

#[test]
fn a_server_may_have_no_page_or_ask_for_a_key_there_too() {
    let none = Server::start(&["--no-page"]);
    assert_eq!(none.get("/").status, 404);
    let guarded = Server::listening(&["--api-key", "first", "--key-everywhere"]);
    let with = |headers: &[(&str, &str)]| get(&guarded, "/", headers).status;
    // /health wants one, too, so it is not waited for here.
    assert_eq!(with(&[]), 401);
    assert_eq!(with(&[("Authorization", "Bearer first")]), 200);
}

#[test]
fn the_page_is_told_what_it_can_set() {
    let flags = [
        "--temp", "0.7", "--top-p", "0.9", "--top-k", "33", "--min-p", "0.1",
    ];
    let server = Server::start(&flags);
    let model = &server.get("/v1/models").json()["data"][0];
    let expected = json!({"temperature": 0.7, "top_p": 0.9, "top_k": 33, "min_p": 0.1});
    assert_eq!(model["sampling"], expected);
    assert_eq!(model["thinking_switch"], false);
}
