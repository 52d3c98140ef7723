//! Protects how the page shows Markdown: as it is meant, the same while a text grows as at once, and in linear time.

use serde_json::Value;

use super::Server;
use super::browser::Browser;
use super::page_in_chromium::opened;

/// The HTML that the page makes of a text.
fn shown(browser: &mut Browser, text: &str) -> String {
    let expression = format!(
        "(() => {{ const node = document.createElement('div'); new Prose(node).show({}); return node.innerHTML; }})()",
        Value::from(text)
    );
    let html = browser.value(&expression);
    html.as_str().expect("a text").to_owned()
}

const CASES: [(&str, &str); 34] = [
    ("plain", "<p>plain</p>"),
    ("one\ntwo\r\n\r\nthree", "<p>one\ntwo</p><p>three</p>"),
    (
        "a *b* _c_ **d** __e__ ~~f~~",
        "<p>a <em>b</em> <em>c</em> <strong>d</strong> <strong>e</strong> <del>f</del></p>",
    ),
    (
        "***both*** **a *b* c**",
        "<p><strong><em>both</em></strong> <strong>a <em>b</em> c</strong></p>",
    ),
    (
        "2 * 3 * 4, a_b_c, 5*, **, *",
        "<p>2 * 3 * 4, a_b_c, 5*, **, *</p>",
    ),
    ("**open and *open", "<p>**open and *open</p>"),
    ("**粗体**文字", "<p><strong>粗体</strong>文字</p>"),
    (
        "`a *b* <c>` ``x ` y`` `open",
        "<p><code>a *b* &lt;c&gt;</code> <code>x ` y</code> `open</p>",
    ),
    (r"\*no\* \_no\_ \( x \) \d", r"<p>*no* _no_ \( x \) \d</p>"),
    (
        "<b>no</b> &amp; &lt;",
        "<p>&lt;b&gt;no&lt;/b&gt; &amp;amp; &amp;lt;</p>",
    ),
    (
        "# One #\n## Two\n####### seven\n#no",
        "<h3>One</h3><h4>Two</h4><p>####### seven\n#no</p>",
    ),
    ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
    ("* a\n\n* b\n\nc", "<ul><li>a</li><li>b</li></ul><p>c</p>"),
    ("3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>"),
    ("1) a\n   b\n2) c", "<ol><li>a\nb</li><li>c</li></ol>"),
    (
        "- a\n  - b\n    - c\n- d",
        "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>",
    ),
    (
        "1. a\n   - b\n\n   c\n2. d",
        "<ol><li>a<ul><li>b</li></ul><p>c</p></li><li>d</li></ol>",
    ),
    ("- a\n1. b", "<ul><li>a</li></ul><ol><li>b</li></ol>"),
    ("text\n- a", "<p>text</p><ul><li>a</li></ul>"),
    ("In\n1984. no", "<p>In\n1984. no</p>"),
    ("- a\n\n\ttext", "<ul><li>a<p>text</p></li></ul>"),
    (
        "> a\n> > b\nc",
        "<blockquote><p>a</p><blockquote><p>b\nc</p></blockquote></blockquote>",
    ),
    ("a\n\n---\n\n***\nb", "<p>a</p><hr><hr><p>b</p>"),
    ("- - -", "<hr>"),
    (
        "[a](https://e.org/x_(y)) [b](mailto:a@e.org)",
        "<p><a href=\"https://e.org/x_(y)\">a</a> <a href=\"mailto:a@e.org\">b</a></p>",
    ),
    (
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](/d)",
        "<p>[a](javascript:alert(1)) [b](data:text/html,x) [c](/d)</p>",
    ),
    (
        "See https://e.org/a_b?c=d. (http://e.org/)",
        "<p>See <a href=\"https://e.org/a_b?c=d\">https://e.org/a_b?c=d</a>. (<a href=\"http://e.org/\">http://e.org/</a>)</p>",
    ),
    (
        "![a](https://e.org/a.png)",
        "<p>!<a href=\"https://e.org/a.png\">a</a></p>",
    ),
    (
        "| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |\n| 2 |",
        "<table><thead><tr><th class=\"center\">a</th><th class=\"right\">b</th></tr></thead><tbody><tr><td class=\"center\">1</td><td class=\"right\"><code>x|y</code></td></tr><tr><td class=\"center\">2</td><td class=\"right\"></td></tr></tbody></table>",
    ),
    ("a | b\nc | d", "<p>a | b\nc | d</p>"),
    (
        "```rust\nfn f() {\n\n    1\n}\n```\nafter",
        "<code>fn f() {\n\n    1\n}</code><p>after</p>",
    ),
    ("~~~\n```\n~~~", "<code>```</code>"),
    ("```\nopen\n- no", "<code>open\n- no</code>"),
    (
        "- a\n  ```sh\n  ls -l\n    x\n  ```\n- b",
        "<ul><li>a<code>ls -l\n  x</code></li><li>b</li></ul>",
    ),
];

/// HTML without what has nothing to do with Markdown.
fn plain(html: &str) -> String {
    let mut text = html.to_owned();
    for (from, to) in [
        ("<div class=\"code\"><div class=\"bar\">", "</div><pre"),
        ("<pre", ">"),
        (" tabindex", "\"0\""),
        (" title=\"", "\""),
        (" target=", "nofollow\""),
    ] {
        while let Some(at) = text.find(from) {
            let rest = &text[at + from.len()..];
            let end = rest.find(to).expect("it is closed") + to.len();
            let kept = if to == "</div><pre" { "<pre" } else { "" };
            text = format!("{}{kept}{}", &text[..at], &rest[end..]);
        }
    }
    for mark in [" dir=\"ltr\"", "</pre></div>", "<div class=\"frame\">"] {
        text = text.replace(mark, "");
    }
    text.replace("</table></div>", "</table>")
}

#[test]
#[ignore = "long: scripts/test --all"]
fn markdown_is_shown_as_it_is_meant() {
    let server = Server::start(&[]);
    let (mut browser, _) = opened(&server);
    let mut wrong = vec![];
    for (text, expected) in CASES {
        let found = plain(&shown(&mut browser, text));
        if found != expected {
            wrong.push(format!("{text:?}\n    {found:?}\nnot {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_text_that_grows_looks_as_it_does_at_once() {
    let server = Server::start(&[]);
    let (mut browser, _) = opened(&server);
    let all: Vec<&str> = CASES.iter().map(|(text, _)| *text).collect();
    for between in ["\n", "\n\n", "\n    "] {
        let text = all.join(between);
        let same = browser.value(&format!(
            "(() => {{
                const text = {};
                const [grown, fresh] = [document.createElement('div'), document.createElement('div')];
                const prose = new Prose(grown);
                for (let end = 0; end <= text.length; end += 1) {{
                    prose.show(text.slice(0, end));
                    fresh.replaceChildren();
                    new Prose(fresh).show(text.slice(0, end));
                    if (grown.innerHTML !== fresh.innerHTML) return text.slice(0, end);
                }}
                return true;
            }})()",
            Value::from(text)
        ));
        assert_eq!(same, true);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn no_text_takes_long() {
    let server = Server::start(&[]);
    let (mut browser, _) = opened(&server);
    let long = [
        "*a ", "_a ", "**a", "~~a", "`a``b", "[", "[a](", "[a](b", "> ", "- ", "|", "http://",
        "\n", "\t", " ", "# a ", "``` ", "a\n- ", "1. a\n",
    ];
    for piece in long {
        let expression = format!(
            "(() => {{
                const text = {}.repeat({}) + 'end';
                const began = performance.now();
                new Prose(document.createElement('div')).show(text);
                return performance.now() - began;
            }})()",
            Value::from(piece),
            100_000 / piece.len()
        );
        let took = browser.value(&expression);
        let took = took.as_f64().expect("a number");
        // In quadratic time it would be minutes.
        assert!(took < 10_000.0, "{piece:?} takes {took} ms");
    }
}
