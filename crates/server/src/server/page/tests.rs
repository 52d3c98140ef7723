//! Protects the page: what its policy lets run is what it holds, and it loads nothing from elsewhere.

use super::*;

#[test]
fn the_policy_names_the_script_and_the_style_of_the_page_and_nothing_else() {
    let html = &PAGE.html;
    let policy = policy();
    for (open, close, source) in [
        ("<script>", "</script>", "script-src"),
        ("<style>", "</style>", "style-src"),
    ] {
        assert_eq!(html.matches(close).count(), 1, "{close}");
        let inside = html
            .split(open)
            .nth(1)
            .and_then(|rest| rest.split(close).next());
        let digest = BASE64_STANDARD.encode(Sha256::digest(inside.expect("the page has one")));
        let allowed = format!("{source} 'sha256-{digest}';");
        assert!(policy.contains(&allowed), "{allowed} {policy}");
    }
    assert!(
        !policy.contains("unsafe") && !policy.contains('*'),
        "{policy}"
    );
    assert!(!html.contains("{{"), "a place was not filled");
    assert_eq!(PAGE.headers[header::CONTENT_SECURITY_POLICY], policy);
}

#[test]
fn it_loads_nothing_and_reads_no_text_as_html() {
    let html = &PAGE.html;
    // The name of SVG in its icon is no address that anybody asks.
    let elsewhere = html.replace("http://www.w3.org/2000/svg", "");
    for address in ["http://", "https://", "ws://", "src=", "@import", "url("] {
        let found = elsewhere.find(address);
        let near = found.map(|at| elsewhere[at..].chars().take(60).collect::<String>());
        assert_eq!(near, None);
    }
    for danger in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
        " onclick=",
        " style=",
    ] {
        assert!(!html.contains(danger), "{danger}");
    }
    assert!(html.len() < 80 << 10, "{} bytes are many", html.len());
}

#[test]
fn it_is_sent_once() {
    let first = page(&HeaderMap::new());
    assert_eq!(first.status(), StatusCode::OK);
    let mut asked = HeaderMap::new();
    asked.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
    assert_eq!(page(&asked).status(), StatusCode::NOT_MODIFIED);
    asked.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"other\""));
    assert_eq!(page(&asked).status(), StatusCode::OK);
}
