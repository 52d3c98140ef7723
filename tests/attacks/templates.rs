//! Protects against templates that are harmless for one message and never end for two: they refuse the requests that they are too much for,
//! and no other.

use std::time::{Duration, Instant};

use glimt::gguf::Value as Meta;
use serde_json::{Value, json};

use super::{CHAT, Server, edited};

/// The hostile text of a template, which runs if there are two messages.
const HOSTILE: [&str; 6] = [
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set x = range(100000) | list %}{% for i in range(100000) %}{% if 999999 in x %}{% endif %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = range(100000) | unique | list %}{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{{ '%100000000000d' | format(1) }}",
];

/// How long a template may take, with the time in which a build for tests computes everything else.
const PATIENCE: Duration = Duration::from_secs(15);

/// A request with a conversation of `messages` messages.
fn conversation(messages: usize) -> Value {
    let message = json!({"role": "user", "content": "a"});
    json!({"messages": vec![message; messages], "max_tokens": 1})
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_template_refuses_the_requests_that_it_is_too_much_for() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (i, hostile) in HOSTILE.into_iter().enumerate() {
        let template = format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{{% if messages | length > 1 %}}{hostile}{{% endif %}}"
        );
        let template = ("tokenizer.chat_template", Meta::from(template));
        let model = edited::edited(folder.path(), &format!("{i}.gguf"), &[template], |_, _| {});
        let server = Server::start(&["-c", "256", "-m", &model]);
        server.answer(CHAT, &conversation(1));
        let begin = Instant::now();
        let refused: Vec<_> = (0..4)
            .map(|_| server.begin(CHAT, &conversation(2)))
            .collect();
        for refused in refused {
            let answer = refused.response();
            assert_eq!(answer.status, 400, "{hostile}: {answer:?}");
            let names_it = answer.body.contains("tokenizer.chat_template");
            assert!(names_it, "{answer:?}");
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{hostile}: {:?}",
            begin.elapsed()
        );
        // It computes nothing for them any more, and answers others.
        let begin = Instant::now();
        server.answer(CHAT, &conversation(1));
        assert!(begin.elapsed() < PATIENCE / 3, "{hostile}");
    }
}
