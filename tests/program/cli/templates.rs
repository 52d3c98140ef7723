//! Protects against templates that files bring along: whatever they do, they end in a sentence, in little memory.

use std::time::{Duration, Instant};

use glimt::gguf::Value;

use super::edited::edited;
use super::memory::measured;
use super::random::some;
use super::{run, stderr, stdout};

/// Templates that never end, that grow without end, or that are none.
const HOSTILE: [&str; 30] = [
    // Texts that double: by every way that joins texts.
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x|replace('a', 'aa') %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = m(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', 'aaa') %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = (ns.x ~ ns.x)|upper %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x|tojson|tojson|tojson %}{% endfor %}",
    "{% set ns = namespace(x='\"\"\"\"') %}{% for i in range(60) %}{% set ns.x = ns.x|tojson %}{% endfor %}{{ ns.x }}",
    // Lists that double.
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|string|length }}",
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "{% set ns = namespace(x={'a': 1}) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = (ns.x + ns.x)|list %}{% endfor %}{{ ns.x|first }}",
    // Ends never.
    "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(200) }}",
    "{% for i in range(99999999999) %}x{% endfor %}",
    "{{ range(99999)|list|length }}{% for i in range(90000) %}{{ range(90000)|list }}{% endfor %}",
    // Much at once.
    "{{ 'a' * 100000000000 }}",
    "{{ '%1000000000000d'|format(1) }}",
    "{{ 'x'|center(100000000000) }}",
    "{{ 'x'.ljust(100000000000) }}",
    "{{ 'x\nx'|indent(100000000000) }}",
    // None at all.
    "{% for m in messages %}",
    "{{ messages[0].content.content.content }}{{ nothing.at.all }}",
    "{{ 1 / 0 }}{{ 9223372036854775807 + 1 }}{{ -9223372036854775808 // -1 }}",
    "{{ raise_exception('no') }}",
];

#[test]
fn a_template_that_cannot_be_read_or_fails_refuses_chat_alone() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (template, reason) in [
        (
            "{% foo %}",
            "tokenizer.chat_template cannot be parsed, line 1",
        ),
        (
            "{{ nothing.at.all }}",
            "tokenizer.chat_template failed, line 1",
        ),
    ] {
        let value = ("tokenizer.chat_template", Value::from(template));
        let model = edited(directory.path(), "template.gguf", &[value], |_, _| {});
        let told = run(&["inspect", "--device", "cpu", "-m", &model]);
        assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
        let page = stdout(&told);
        let refusal = page.lines().find(|line| line.starts_with("template"));
        let refusal = refusal.expect("it has a line of its own");
        assert!(
            refusal.contains("only --raw") && refusal.contains(reason),
            "{page}"
        );
        let generate = ["generate", "--device", "cpu", "-n", "1", "x", "-m", &model];
        let raw = run(&[&generate[..], &["--raw"]].concat());
        assert_eq!(raw.status.code(), Some(0), "{}", stderr(&raw));
        let chat = run(&generate);
        assert_eq!(chat.status.code(), Some(1));
        assert!(stderr(&chat).contains(reason), "{}", stderr(&chat));
    }
}

#[test]
fn a_template_that_looks_for_marks_is_told_of_unless_they_are_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    let value = ("tokenizer.chat_template", Value::from(source));
    let model = edited(directory.path(), "searching.gguf", &[value], |_, _| {});
    let generate = [
        "generate",
        "--device",
        "cpu",
        "-n",
        "1",
        "a</think>b",
        "-m",
        &model,
    ];
    for (flags, warnings) in [(&[][..], 1), (&["--parse-special"], 0)] {
        let found = run(&[&generate[..], flags].concat());
        assert_eq!(found.status.code(), Some(0), "{}", stderr(&found));
        let told = stderr(&found);
        let told = told.matches("looks for marks such as </think>").count();
        assert_eq!(told, warnings, "{flags:?}: {}", stderr(&found));
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn hostile_templates_end_in_a_sentence() {
    let deep = "(".repeat(100_000);
    let nested = format!("{{{{ {deep} }}}}");
    assert_refused(some(&HOSTILE, 2).into_iter().chain([nested.as_str()]));
}

/// Asserts that `inspect` and `generate` end within a minute and in little memory with each template, and that either both refuse it or
/// none does.
#[track_caller]
fn assert_refused<'a>(templates: impl Iterator<Item = &'a str>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut most = 0;
    for (i, template) in templates.enumerate() {
        let value = ("tokenizer.chat_template", Value::from(template));
        let model = edited(directory.path(), "hostile.gguf", &[value], |_, _| {});
        let mut refused = vec![];
        for command in [
            &["inspect", "-m", &model][..],
            &["generate", "--device", "cpu", "-n", "1", "x", "-m", &model],
        ] {
            let began = Instant::now();
            let (output, memory) = measured(command);
            most = most.max(memory);
            let (took, told) = (began.elapsed(), stderr(&output));
            let what = format!("{i}: {}: {told}", &template[..template.len().min(80)]);
            eprintln!("{i}: {took:.1?}");
            assert!(took < Duration::from_secs(60), "{took:?}, {what}");
            match output.status.code() {
                // `inspect` tells that chat is refused, but the file itself is sound.
                Some(0) => refused.push(stdout(&output).contains("--raw")),
                Some(1) => {
                    // The system's own words may stand beside it, where it had no memory to give.
                    assert!(told.contains("glimt: error: "), "{what}");
                    assert!(!told.contains("panicked"), "{what}");
                    refused.push(true);
                }
                _ => panic!("{:?}, {what}", output.status),
            }
        }
        assert_eq!(refused[0], refused[1], "{i}: inspect and generate agree");
    }
    assert!(most < 1 << 30, "{most} bytes");
}
