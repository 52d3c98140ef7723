//! Protects the limits of templates: none takes a second, a gigabyte or the stack, whatever it is made of.

use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

use super::{Program, value_of};

/// The part of the limits that the templates here get, one in so many. They exceed it in no time.
const SHARE: u64 = 100;

fn run(source: &str) -> Result<String, Error> {
    let map: serde_json::Map<_, _> = (0..5000).map(|n| (n.to_string(), n.into())).collect();
    let variables = value_of(&serde_json::json!({
        "map": map,
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    }));
    let mut program = Program::parse("test", source)?;
    program.take_less(SHARE);
    program.render(variables)
}

/// Each of these templates is stopped, and soon.
#[track_caller]
fn stopped(sources: &[String]) {
    ended(sources, |kind| {
        matches!(kind, ErrorKind::OutOfFuel | ErrorKind::SyntaxError)
    });
}

/// Each of these templates ends soon with an error that `expected` accepts.
#[track_caller]
fn ended(sources: &[String], expected: fn(ErrorKind) -> bool) {
    for source in sources {
        let start = Instant::now();
        let result = run(source);
        let shown: String = source.chars().take(150).collect();
        let took = start.elapsed();
        match result {
            Ok(text) => panic!("{shown}: {} bytes", text.len()),
            Err(error) => assert!(expected(error.kind()), "{shown}: {error}"),
        }
        assert!(took < Duration::from_secs(5), "{shown}: {took:?}");
    }
}

/// `body` done `times`, with a namespace.
fn repeated(start: &str, body: &str, times: usize, end: &str) -> String {
    format!(
        "{{% set ns = namespace({start}) %}}{{% for i in range({times}) %}}{body}{{% endfor %}}{end}"
    )
}

/// Two lists that hold themselves often: they are compared in no time that anybody has.
fn shared(end: &str) -> String {
    let twice = "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}";
    repeated("x=[1], y=[1]", twice, 40, end)
}

#[test]
fn values_that_hold_themselves_often_are_stopped() {
    let uses = [
        "{{ ns.x == ns.y }}",
        "{{ ns.x < ns.y }}",
        "{{ 0 < ns.x < ns.y }}",
        "{{ ns.x in [ns.y] }}",
        "{{ [ns.x, ns.y] | unique | list }}",
        "{{ [ns.x, ns.y] | sort }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x }}",
        "{{ '' ~ ns.x }}",
        "{{ {ns.x: 1} }}",
        "{{ {}[ns.x] }}",
        "{{ [ns.x].index(ns.y) }}",
        "{{ ns.x is eq ns.y }}",
        "{{ [ns.x] | select('equalto', ns.y) | list }}",
        "{% for i in range(2) %}{{ loop.changed(ns.x) }}{% endfor %}",
        "{{ '%s' | format(ns.x) }}",
        "{{ ns.x | string | length }}",
        "{{ ns.x | join }}",
        "{{ ns.x | pprint }}",
    ];
    stopped(&uses.map(shared));
}

#[test]
fn what_grows_is_stopped() {
    let grows = [
        ("s='aaaaaaaa'", "{% set ns.s = ns.s ~ ns.s %}"),
        ("s='aaaaaaaa'", "{% set ns.s = ns.s + ns.s %}"),
        ("s='aaaaaaaa'", "{% set ns.s = ns.s * 10 %}"),
        ("s=[1, 2]", "{% set ns.s = ns.s + ns.s %}"),
        ("s=[1, 2]", "{% set ns.s = ns.s * 10 %}"),
        ("s=[1, 2]", "{% set ns.s = ns.s | chain(ns.s) | list %}"),
        ("s=[1, 2]", "{% set ns.s = (ns.s, ns.s) %}"),
        (
            "s='aa'",
            "{% set ns.s = ns.s | replace('a', 'aaaaaaaaaa') %}",
        ),
        ("s='aa'", "{% set ns.s = ns.s.replace('a', 'aaaaaaaaaa') %}"),
        ("s='aa'", "{% set ns.s = [ns.s, ns.s, ns.s, ns.s] | join %}"),
        ("s='aa'", "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}"),
        ("s='aa'", "{% set ns.s = '{0}{0}'.format(ns.s) %}"),
        ("s='aa'", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        ("s='aa'", "{% set ns.s = ns.s | tojson | tojson %}"),
        ("s='aa'", "{% set ns.s = ns.s.join('aaaa') %}"),
        ("s={'a': 1}", "{% set ns.s = dict(a=ns.s, b=ns.s) %}"),
        ("s=[[1]]", "{% set ns.s = ns.s | batch(1) | list %}"),
        ("s=[1]", "{% set ns.s = [ns.s] %}"),
        ("s=[1]", "{% set ns.s = [ns.s] | map('list') | list %}"),
    ];
    let grows = grows.map(|(start, body)| repeated(start, body, 1000, "{{ ns.s | length }}"));
    stopped(&grows);
}

#[test]
fn large_results_are_refused_before_they_are_made() {
    let sources = [
        "{{ ('a' * 4000 * (messages | length)) | length }}{{ 'a' * (messages | length * 50000000) }}",
        "{{ [1] * (messages | length * 50000000) }}",
        "{{ range(100000) | map('center', 100000) | list }}",
        "{{ range(100000) | batch(1000000000, 0) }}",
        "{{ range(100000) | slice(100000000) }}",
        "{{ '%100000000000d' | format(1) }}",
        "{{ '%*d' | format(100000000000, 1) }}",
        "{{ '{:>10000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 10000000000) }}",
        "{{ ('%99999d' * 3000) | format(1) }}",
        "{{ ('\\t' * 4000).expandtabs(99999) }}",
        "{% set s = 'a' * messages | length * 100 %}{% for i in range(100000) %}{{ 'a'.ljust(100000) }}{% endfor %}",
        "{% set s = 'a'.ljust(99999) %}{{ s.replace(' ', s) | length }}",
        "{% set s = 'a'.ljust(99999) %}{{ range(100000) | join(s) }}",
        "{% set s = 'a'.ljust(99999) %}{% for i in range(100000) %}{{ s }}{% endfor %}",
    ];
    ended(&sources.map(str::to_owned), |_| true);
    // A text of the template itself, many times.
    let text = "a".repeat(100_000);
    stopped(&[format!(
        "{{% for i in range(100000) %}}{text}{{% endfor %}}"
    )]);
}

#[test]
fn work_that_is_no_instruction_is_counted() {
    let bodies = [
        "{% set x = range(100000) | list %}",
        "{% set x = range(100000) | unique | list %}",
        "{% set x = range(100000) | sort(reverse=true) %}",
        "{% set x = range(100000) | sum %}",
        "{% if 999999 in ns.l %}{% endif %}",
        "{% if 'aaab' in ns.s %}{% endif %}",
        "{% if ns.s == ns.s ~ '' %}{% endif %}",
        "{% set x = ns.l[1:] %}",
        "{% set x = ns.s[99998:] %}",
        "{% set x = ns.s[99998] %}",
        "{% set x = ns.l | length %}{% for a in ns.m %}{% break %}{% endfor %}",
        "{% set x = ns.s | upper | length %}",
        "{% set x = ns.s.strip(ns.s) %}",
        "{% set x = ns.s.count('b') %}",
        "{% set x = dict(ns.m) %}",
        "{% set x = dict(**ns.m) %}",
        "{% set x = cycler(*ns.l) %}",
        "{% set x = ns.l | select('odd') | list %}",
        "{% set x = ns.l | map(attribute='a.b.c') | list %}",
        "{% set x = ns.l | groupby('a') %}",
        "{% set x = ns.l | map('string') | list %}",
    ];
    let values = "l=range(100000) | list, s='a'.ljust(99999), m=map";
    let sources = bodies.map(|body| repeated(values, body, 100_000, ""));
    stopped(&sources);
    stopped(&["{% set ns = namespace(s=['a'.ljust(99999)] * 100) %}{{ ns.s | sum(start='') }}{% for i in range(99999) %}{{ ns.s | sum(start='') | length }}{% endfor %}".to_owned()]);
}

#[test]
fn depth_is_bounded_before_it_is_parsed_and_while_it_is_rendered() {
    for times in [500, 20_000, 120_000] {
        let n = |text: &str| text.repeat(times.min(240_000 / text.len()));
        stopped(&[
            format!("{{{{ {}1 }}}}", n("not ")),
            format!("{{{{ {}1 }}}}", n("-")),
            format!("{{{{ 1{} }}}}", n("|abs")),
            format!("{{{{ messages{} }}}}", n(".a")),
            format!("{{{{ messages{} }}}}", n("[0]")),
            format!("{{{{ 1{} }}}}", n("+1")),
            format!("{{{{ 1{} }}}}", n("~1")),
            format!("{{{{ 1{} }}}}", n(" and 1")),
            format!("{{{{ 1{} }}}}", n(" if 1 else 1")),
            format!("{{{{ 1{} }}}}", n(" is odd")),
            format!("{{{{ f{} }}}}", n("()")),
            format!("{{{{ {} }}}}", n("(")),
            format!("{{{{ {} }}}}", n("[")),
            format!("{{{{ {} }}}}", n("{1:")),
            format!("{{% if 0 %}}{}{{% endif %}}", n("{% elif 0 %}")),
            n("{% if 1 %}"),
            n("{% for a in b %}"),
            n("{% with %}"),
            n("{% filter upper %}"),
            n("{% macro a() %}"),
            n("{% call a() %}"),
            n("{% block a %}"),
        ]);
    }
    stopped(&["x".repeat(1 << 20)]);
    let recursive = [
        "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% else %}aaaaaaaaaaaaaaaa{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ caller }}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
        "{% for x in [[[[[1]]]]] recursive %}{{ loop([x]) }}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}",
        "{% set ns = namespace() %}{% for x in [ns] %}{% set ns.l = loop %}{% endfor %}",
        "{% set ns = namespace() %}{% for x in [ns] %}{{ loop.changed(loop) }}{% endfor %}",
    ];
    ended(&recursive.map(str::to_owned), |_| true);
}

#[test]
fn constants_are_not_computed_without_bounds() {
    let sum = ["('a' * 100000000)"; 300].join(" ~ ");
    let sources = [
        format!("{{{{ {sum} }}}}"),
        "{{ ('a' * 1000 * 1000 * 1000) | length }}".to_owned(),
        "{{ [1] * 100000000 == [1] * 100000000 }}".to_owned(),
        "{{ 0 if messages else [[1] * 4000] * 4000 }}".to_owned(),
        "{% macro f(a='a' * 100000000) %}{% endmacro %}".to_owned(),
    ];
    stopped(&sources);
    assert_eq!(run("{{ '=' * 80 }}").unwrap().len(), 80);
}

#[test]
fn other_templates_are_not_read() {
    for source in [
        "{% include 'test' %}",
        "{% extends 'test' %}",
        "{% import 'test' as t %}",
        "{% include '/etc/passwd' %}",
    ] {
        run(source).expect_err(source);
    }
}

#[test]
fn guarded_instructions_do_what_they_stand_for() {
    for (source, expected) in [
        (
            "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 3 < 2 < 1 }}",
            "TrueFalseFalse",
        ),
        ("{{ 1 in [1] == [1] }}{{ 1 not in [2] != [1] }}", "TrueTrue"),
        ("{% if 1 %}a{% else %}b{% endif %}c", "ac"),
        (
            "{% for a, b in [[1, 2], [3, 4]] if a > 1 %}{{ a }}{{ b }}{% else %}n{% endfor %}",
            "34",
        ),
        ("{% for a in [] %}{% else %}none{% endfor %}", "none"),
        (
            "{% macro m(a, b=2) %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ m(1) }}{{ m(*[1, 3]) }}{{ m(**{'a': 5}) }}{% call m(0) %}x{% endcall %}",
            "[12][13][52][02x]",
        ),
        (
            "{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}",
            "12",
        ),
        (
            "{% for a in [1, 1, 2] %}{{ loop.changed(a) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
            "TrueaFalsebTruea",
        ),
        ("{{ ('a' or 'b') ~ ([] or 'c') ~ (1 and 2) }}", "ac2"),
        (
            "{{ messages[0]['role'][1:3] }}{{ messages[-1].content }}{{ 'ab'[-1] }}",
            "sebb",
        ),
        (
            "{{ ['a', 'b'] | map('upper') | join('-') }}{{ [1, 2] | select('odd') | list }}",
            "A-B[1]",
        ),
        (
            "{% set ns = namespace(a=1) %}{% set ns.a = [ns.a] + [2] %}{{ ns.a }}",
            "[1, 2]",
        ),
        ("{% block x %}in {{ 1 + 1 }}{% endblock %}", "in 2"),
        ("{{ dict(a=1, **{'b': 2}) }}", "{'a': 1, 'b': 2}"),
    ] {
        let found = run(source);
        assert_eq!(
            found.map_err(|error| error.to_string()).as_deref(),
            Ok(expected),
            "{source}"
        );
    }
    let error = run("\n\n{{ [1] * 'a' }}").unwrap_err();
    assert_eq!(error.line(), Some(3), "{error}");
    let error = run("a\n{% for i in messages %}\n{{ i.x.y }}{% endfor %}").unwrap_err();
    assert_eq!(error.line(), Some(3), "{error}");
    assert_eq!(run("{{ nothing }}").unwrap(), "");
}
