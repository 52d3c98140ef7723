//! Protects agreement with Python: values, JSON, methods and filters.
//!
//! Expected texts come from Jinja2 3.1 with the settings of `transformers`' `apply_chat_template`.

use minijinja::Value;

use super::{Program, value_of};

fn variables() -> Value {
    value_of(&serde_json::json!({
        "messages": [{"role": "system", "content": "Rule."}, {"role": "user", "content": "One"}],
        "floats": [1e-7, 1e22, 1.5, 100000.0, 1e16, 123456789012345.6, -0.0, 5e-324, 1.7976931348623157e308, 0.0001, 0.00001, 12345678901234567.0],
        "d": {"b": 1, "a": {"z": [true, null, 1.0]}, "C": "x"},
        "mixed": {"1": "x", "k": []},
        "nest": [[1, [2, [3]]], {"a": {"b": []}}],
        "text": "Hello World\nsecond line\r\nthird\tx  é ß İ ",
        "html": "<a href='x'>b & c</a>",
        "ints": [3, 1, 2],
        "pairs": [["b", 1], ["a", 2]],
        "yes": true,
        "big": 18446744073709551615u64,
    }))
}

/// Each case is a template, and what it writes.
#[track_caller]
pub(super) fn check(cases: &[(&str, &str)]) {
    let variables = variables();
    let mut failures = String::new();
    for (source, expected) in cases {
        let found = Program::parse("test", source)
            .and_then(|program| program.render(variables.clone()))
            .map_err(|error| error.to_string());
        if found.as_deref() != Ok(*expected) {
            failures += &format!("{source}: {found:?} instead of {expected:?}\n");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn the_tag_generation_is_a_scope() {
    check(&[
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            "Rule.One",
        ),
        (
            "a\n  {% generation %}\n x\n  {% endgeneration %}\nb",
            "a\n x\nb",
        ),
        (
            "a \n{%- generation -%}\n x {%- endgeneration -%}\n b",
            "axb",
        ),
        (
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
            "21",
        ),
        (
            "{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
            "12",
        ),
        (
            "{% set ns = namespace(a=1) %}{% generation %}{% set ns.a = 2 %}{% endgeneration %}{{ ns.a }}",
            "2",
        ),
        (
            "{% raw %}{% generation %}{% endraw %}|{# {% generation %} #}|{{ '{% generation %}' }}",
            "{% generation %}||{% generation %}",
        ),
    ]);
}

#[test]
fn json_as_python_writes_it() {
    check(&[
        (
            "{{ floats | tojson }}",
            "[1e-07, 1e+22, 1.5, 100000.0, 1e+16, 123456789012345.6, -0.0, 5e-324, 1.7976931348623157e+308, 0.0001, 1e-05, 1.2345678901234568e+16]",
        ),
        (
            "{{ floats | tojson(indent=0) }}",
            "[\n1e-07,\n1e+22,\n1.5,\n100000.0,\n1e+16,\n123456789012345.6,\n-0.0,\n5e-324,\n1.7976931348623157e+308,\n0.0001,\n1e-05,\n1.2345678901234568e+16\n]",
        ),
        (
            "{{ d | tojson(sort_keys=True) }}",
            "{\"C\": \"x\", \"a\": {\"z\": [true, null, 1.0]}, \"b\": 1}",
        ),
        (
            "{{ d | tojson(separators=(',',':')) }}",
            "{\"b\":1,\"a\":{\"z\":[true,null,1.0]},\"C\":\"x\"}",
        ),
        (
            "{{ d | tojson(indent='\\t') }}",
            "{\n\t\"b\": 1,\n\t\"a\": {\n\t\t\"z\": [\n\t\t\ttrue,\n\t\t\tnull,\n\t\t\t1.0\n\t\t]\n\t},\n\t\"C\": \"x\"\n}",
        ),
        (
            "{{ d | tojson(indent=4, separators=(',', ': ')) }}",
            "{\n    \"b\": 1,\n    \"a\": {\n        \"z\": [\n            true,\n            null,\n            1.0\n        ]\n    },\n    \"C\": \"x\"\n}",
        ),
        (
            "{{ d | tojson(false, none, (',',':'), true) }}",
            "{\"C\":\"x\",\"a\":{\"z\":[true,null,1.0]},\"b\":1}",
        ),
        ("{{ mixed | tojson(True) }}", "{\"1\": \"x\", \"k\": []}"),
        (
            "{{ d | tojson(indent=-1) }}",
            "{\n\"b\": 1,\n\"a\": {\n\"z\": [\ntrue,\nnull,\n1.0\n]\n},\n\"C\": \"x\"\n}",
        ),
        (
            "{{ d | tojson(indent=true) }}",
            "{\n \"b\": 1,\n \"a\": {\n  \"z\": [\n   true,\n   null,\n   1.0\n  ]\n },\n \"C\": \"x\"\n}",
        ),
        ("{{ ({1:2,'a':3}) | tojson }}", "{\"1\": 2, \"a\": 3}"),
        (
            "{{ ({true:1,none:2,1.5:3}) | tojson }}",
            "{\"true\": 1, \"null\": 2, \"1.5\": 3}",
        ),
        (
            "{{ ('\\u007f\\u2028é𝄞\\x01\\b\\f\\n\\r\\t/\"\\\\') | tojson }}",
            "\"\u{7f}\u{2028}é𝄞\\u0001\\b\\f\\n\\r\\t/\\\"\\\\\"",
        ),
        (
            "{{ ('\\u007f\\u2028é𝄞\\x01\\b\\f\\n\\r\\t/\"\\\\') | tojson(ensure_ascii=True) }}",
            "\"\\u007f\\u2028\\u00e9\\ud834\\udd1e\\u0001\\b\\f\\n\\r\\t/\\\"\\\\\"",
        ),
        (
            "{{ {2:1,10:2}|tojson(sort_keys=true) }}",
            "{\"2\": 1, \"10\": 2}",
        ),
        ("{{ (2**70) | tojson }}", "1180591620717411303424"),
        ("{{ (0.1+0.2) | tojson }}", "0.30000000000000004"),
        ("{{ big | tojson }}", "18446744073709551615"),
        ("{{ ((1,2)) | tojson }}", "[1, 2]"),
    ]);
}

#[test]
fn values_as_python_writes_them() {
    check(&[
        (
            "{{ floats }}",
            "[1e-07, 1e+22, 1.5, 100000.0, 1e+16, 123456789012345.6, -0.0, 5e-324, 1.7976931348623157e+308, 0.0001, 1e-05, 1.2345678901234568e+16]",
        ),
        ("{{ 1e-7 }}", "1e-07"),
        ("{{ 1e16 }}", "1e+16"),
        ("{{ 1/3 }}", "0.3333333333333333"),
        ("{{ -0.0 }}", "-0.0"),
        ("{{ 1e300*1e10 }}", "inf"),
        ("{{ none }}", "None"),
        ("{{ yes }}", "True"),
        ("{{ nest }}", "[[1, [2, [3]]], {'a': {'b': []}}]"),
        ("{{ (1,) }}", "(1,)"),
        ("{{ () }}", "()"),
        (
            "{{ ['it\\'s', 'a\"b', 'c\\'\"d', '\\n\\t\\\\', 'é', '\\x01'] }}",
            "[\"it's\", 'a\"b', 'c\\'\"d', '\\n\\t\\\\', 'é', '\\x01']",
        ),
        ("{{ [none, true] }}", "[None, True]"),
        ("{{ {1: none} }}", "{1: None}"),
        ("{{ 1e-7|string }}", "1e-07"),
        ("{{ [1,true]|string }}", "[1, True]"),
        ("{{ true|string }}", "True"),
        ("{{ [undefined_thing] }}", "[Undefined]"),
    ]);
}

#[test]
fn nothing_is_taken_backwards_of_nothing() {
    check(&[
        ("{{ ''[::-1] }}|{{ [][::-1] }}", "|[]"),
        (
            "{% for m in messages[2:][::-1] %}{{ m.role }}{% else %}none{% endfor %}",
            "none",
        ),
        ("{{ text[:0][::-2] }}{{ ints[::-1] }}", "[2, 1, 3]"),
    ]);
}

#[test]
fn methods_of_texts() {
    check(&[
        ("{{ 'Ab c'.swapcase() }}", "aB C"),
        ("{{ 'ß'.casefold() }}", "ss"),
        ("{{ 'ab'.center(7,'*') }}", "***ab**"),
        ("{{ 'ab'.ljust(5)+'|' }}", "ab   |"),
        ("{{ 'ab'.rjust(5,'.') }}", "...ab"),
        ("{{ '-7'.zfill(4) }}", "-007"),
        ("{{ 'a\\tb'.expandtabs(4) }}", "a   b"),
        ("{{ 'abc'.index('c') }}", "2"),
        ("{{ 'abcb'.rindex('b') }}", "3"),
        ("{{ 'abcabc'.find('a',1,3) }}", "-1"),
        ("{{ 'abcabc'.find('a',-3) }}", "3"),
        ("{{ 'abcabc'.rfind('a',0,3) }}", "0"),
        ("{{ 'abcabc'.count('a',1) }}", "1"),
        ("{{ 'abc'.startswith('b',1) }}", "True"),
        ("{{ 'abc'.startswith(('a','x')) }}", "True"),
        ("{{ 'abc'.endswith('b',0,2) }}", "True"),
        ("{{ 'a.b.c'.partition('.') }}", "('a', '.', 'b.c')"),
        ("{{ 'a.b.c'.rpartition('.') }}", "('a.b', '.', 'c')"),
        ("{{ 'abc'.partition('.') }}", "('abc', '', '')"),
        ("{{ 'abc'.rpartition('.') }}", "('', '', 'abc')"),
        ("{{ 'a.b.c'.rsplit('.',1) }}", "['a.b', 'c']"),
        ("{{ 'a b  c'.rsplit() }}", "['a', 'b', 'c']"),
        ("{{ 'a b  c'.rsplit(none,1) }}", "['a b', 'c']"),
        ("{{ 'a b  c '.split(none,1) }}", "['a', 'b  c ']"),
        ("{{ ' a b  c '.split(' ') }}", "['', 'a', 'b', '', 'c', '']"),
        ("{{ 'a,b,c'.split(',',maxsplit=1) }}", "['a', 'b,c']"),
        ("{{ 'a,b,c'.split(sep=',') }}", "['a', 'b', 'c']"),
        ("{{ ''.split() }}", "[]"),
        ("{{ ''.split(',') }}", "['']"),
        ("{{ 'prefixabc'.removeprefix('prefix') }}", "abc"),
        ("{{ 'abc'.removeprefix('x') }}", "abc"),
        ("{{ 'abc.txt'.removesuffix('.txt') }}", "abc"),
        ("{{ 'abc'.removesuffix('') }}", "abc"),
        (
            "{{ text.splitlines(keepends=true) }}",
            "['Hello World\\n', 'second line\\r\\n', 'third\\tx  é ß İ ']",
        ),
        (
            "{{ 'a\\x0bb\\x0cc\\x1cd\\u2028e\\x85f\\n\\ng'.splitlines() }}",
            "['a', 'b', 'c', 'd', 'e', 'f', '', 'g']",
        ),
        ("{{ \"it's tHe-end a1b\".title() }}", "It'S The-End A1B"),
        ("{{ 'Abc Def'.istitle() }}", "True"),
        ("{{ '²'.isdigit() }}", "True"),
        ("{{ '½'.isdigit() }}", "False"),
        ("{{ '²'.isdecimal() }}", "False"),
        ("{{ '1a'.isidentifier() }}", "False"),
        ("{{ 'a\\n'.isprintable() }}", "False"),
        ("{{ ' \\t'.isspace() }}", "True"),
        ("{{ ' \\x1c\\x1fa\\u3000'.strip() }}", "a"),
        ("{{ 'xxabyy'.strip('xy') }}", "ab"),
        ("{{ '{a} {b}'.format_map({'a':1,'b':2}) }}", "1 2"),
        (
            "{{ d.copy() }}",
            "{'b': 1, 'a': {'z': [True, None, 1.0]}, 'C': 'x'}",
        ),
        ("{{ ints.index(1) }}", "1"),
        ("{{ ints.copy() }}", "[3, 1, 2]"),
    ]);
}

#[test]
fn filters_and_tests() {
    check(&[
        ("{{ 'x'|int }}", "0"),
        ("{{ 'x'|int(7) }}", "7"),
        ("{{ '0x1A'|int(base=16) }}", "26"),
        ("{{ '1.5'|float }}", "1.5"),
        ("{{ ['b','A','c']|sort(true) }}", "['c', 'b', 'A']"),
        (
            "{{ d|dictsort(true) }}",
            "[('C', 'x'), ('a', {'z': [True, None, 1.0]}), ('b', 1)]",
        ),
        (
            "{{ d|dictsort(false,'key',true) }}",
            "[('C', 'x'), ('b', 1), ('a', {'z': [True, None, 1.0]})]",
        ),
        (
            "{{ html|e }}",
            "&lt;a href=&#39;x&#39;&gt;b &amp; c&lt;/a&gt;",
        ),
        ("{{ html|striptags }}", "b & c"),
        ("{{ 'a b&c/é?'|urlencode }}", "a%20b%26c/%C3%A9%3F"),
        ("{{ {'a':1,'b':'x y'}|urlencode }}", "a=1&b=x+y"),
        ("{{ [('a',1),('b','c d')]|urlencode }}", "a=1&b=c+d"),
        ("{{ 12|urlencode }}", "12"),
        (
            "{{ text|indent }}",
            "Hello World\n    second line\n    third\tx  é ß İ ",
        ),
        (
            "{{ text|indent(2,true) }}",
            "  Hello World\n  second line\n  third\tx  é ß İ ",
        ),
        (
            "{{ text|indent('>>') }}",
            "Hello World\n>>second line\n>>third\tx  é ß İ ",
        ),
        ("{{ 'a\\n\\nb'|indent(2) }}", "a\n\n  b"),
        ("{{ 'a\\n\\nb'|indent(2,blank=true) }}", "a\n  \n  b"),
        ("{{ text|wordcount }}", "9"),
        ("{{ 'foo bar baz qux'|truncate(9) }}", "foo..."),
        ("{{ 'foo bar baz qux'|truncate(9,true) }}", "foo ba..."),
        ("{{ 'foo bar baz qux'|truncate(11) }}", "foo bar baz qux"),
        (
            "{{ 'foo bar baz qux'|truncate(11,false,'...',0) }}",
            "foo bar...",
        ),
        ("{{ 'ab'|center(7) }}", "   ab  "),
        ("{{ 1000000|filesizeformat }}", "1.0 MB"),
        ("{{ 'abab'|replace('a','c',1) }}", "cbab"),
        ("{{ undefined_thing|length }}", "0"),
        ("{{ 'a' is sequence }}", "True"),
        ("{{ d is sequence }}", "True"),
        ("{{ none is iterable }}", "False"),
        ("{{ 'a' is iterable }}", "True"),
        ("{{ range is callable }}", "True"),
        ("{{ 1 is callable }}", "False"),
        ("{{ cycler('a','b').next() }}", "a"),
        (
            "{{ pairs|sort(attribute=1,reverse=true) }}",
            "[['a', 2], ['b', 1]]",
        ),
        ("{{ pairs|sum(attribute=1) }}", "3"),
        ("{{ pairs|max(attribute=1) }}", "['a', 2]"),
        ("{{ '5 '|int }}", "5"),
        (
            "{{ dict([('a',1),('b',2)]) }}{{ dict(a=1) }}",
            "{'a': 1, 'b': 2}{'a': 1}",
        ),
        ("{{ dict({'a':1,'c':2}, a=3) }}", "{'a': 3, 'c': 2}"),
        (
            "{% set j = joiner('; ') %}{% for i in ints %}{{ j() }}{{ i }}{% endfor %}",
            "3; 1; 2",
        ),
    ]);
}

#[test]
fn what_python_refuses_is_refused_with_a_reason() {
    for (source, reason) in [
        ("{{ 'a,b'.split('') }}", "empty separator"),
        ("{{ 'abc'.index('z') }}", "\"z\" is not in the text"),
        ("{{ ints.index(9) }}", "9 is not in the list"),
        (
            "{{ nothing | tojson }}",
            "undefined cannot be written as JSON",
        ),
        ("{{ d | tojson(bad=1) }}", "unknown keyword argument"),
        ("{{ d | tojson(indent=1.5) }}", "tojson has the indent 1.5"),
        ("{{ d | tojson(indent=65) }}", "tojson has an indent of 65"),
        (
            "{{ d | tojson(separators=',') }}",
            "two texts were expected",
        ),
        ("{{ 'x'.ljust(100001) }}", "at most 100000 was expected"),
        ("{{ 'x' | center(100001) }}", "at most 100000 was expected"),
        ("{{ d.pop('b') }}", "no method named pop"),
    ] {
        let program = Program::parse("test", source).expect("it can be parsed");
        let error = program.render(variables()).expect_err(source).to_string();
        assert!(error.contains(reason), "{source}: {error}");
    }
    assert!(Program::parse("test", "{% generation %}x").is_err());
}

#[test]
fn what_is_not_had_is_told_by_name_when_a_template_is_loaded() {
    let loaded = |source: &str| Program::parse("test", source).map_err(|error| error.to_string());
    for (source, name) in [
        ("a\n{{ 'x' | urlize }}", "line 2 uses the filter urlize"),
        ("{{ 1 is nosuch }}", "the test nosuch"),
        (
            "{% macro m() %}{{ 1 | random }}{% endmacro %}",
            "the filter random",
        ),
        ("{% include 'x' %}", "include"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape"),
    ] {
        let found = loaded(source).expect_err(source);
        assert!(found.contains(name), "{found}");
    }
    // Nobody may ever come there.
    check(&[
        ("{% if nothing %}{{ 'x' | urlize }}{% endif %}a", "a"),
        ("{{ 'x' | urlize if nothing else 'b' }}", "b"),
    ]);
    let run = |source: &str| {
        loaded(source)?
            .render(variables())
            .map_err(|error| error.to_string())
    };
    for source in [
        "{{ nothing < 1 }}",
        "{{ 'a' < floats[0] }}",
        "{{ floats[0] in text }}",
        "{{ 'a' in yes }}",
        "{{ '%\u{e9}' % 1 }}",
        "{{ '%d' % text }}",
        "{{ '%s%s' % text }}",
        "{{ '%s' | format(1, 2) }}",
        "{{ '{' ~ text | format }}{{ '{'.format(1) }}",
        "{{ '{}'.format() }}",
        "{{ '{:d}'.format(text) }}",
        "{{ '%99999999d' % 1 }}",
        "{{ 'a' | wordwrap(0) }}",
        "{{ {'a b': 1} | xmlattr }}",
        "{{ '9' * 60 | int }}{{ ('9' * 60) | int }}",
        "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    ] {
        let found = run(source);
        assert!(found.is_err(), "{source}: {found:?}");
    }
}
