//! Protects agreement with Python where templates format, wrap, slice and call.
//!
//! Expected texts come from Jinja2 3.1 with the settings of `transformers`' `apply_chat_template`.

use super::tests::check;

#[test]
fn operators() {
    check(&[
        (
            "{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2.0 ** 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }}",
            "1024 0.5 8.0 4 64",
        ),
        (
            "{{ 'a' * 3 }} {{ 3 * 'a' }} {{ [1] * 2 }} {{ 2 * [1, 'x'] }} {{ 'a' * 0 }} {{ 'a' * -1 }}x{{ [1] * -1 }}",
            "aaa aaa [1, 1] [1, 'x', 1, 'x']  x[]",
        ),
    ]);
}

#[test]
fn what_stands_behind_a_percent_sign() {
    check(&[
        ("{{ 'a %s b' % 'x' }}", "a x b"),
        ("{{ '%s and %s' % ('a', 'b') }}", "a and b"),
        (
            "{{ '%.2f' % 3.14159 }} {{ '%f' % 1 }} {{ '%8.3f|' % 3.14159 }} {{ '%-8.1f|' % 2.25 }} {{ '%e' % 12345.678 }} {{ '%g' % 0.00001 }} {{ '%g' % 1234567 }} {{ '%G' % 1e-10 }} {{ '%E' % 1.5 }} {{ '%.3g' % 1234.5 }} {{ '%#.3g' % 1.0 }}",
            "3.14 1.000000    3.142| 2.2     | 1.234568e+04 1e-05 1.23457e+06 1E-10 1.500000E+00 1.23e+03 1.00",
        ),
        ("{{ '%(a)s-%(b)05d' % {'a': 'x', 'b': 3} }}", "x-00003"),
        ("{{ '%%' % () }}", "%"),
        ("{{ '100%%' % () }} {{ '%d%%' % 50 }}", "100% 50%"),
        (
            "{{ '%s' % none }} {{ '%s' % true }} {{ '%s' % [1, 'a'] }} {{ '%r' % 'a' }} {{ '%r' % [1] }} {{ '%s' % {'a': 1} }}",
            "None True [1, 'a'] 'a' [1] {'a': 1}",
        ),
        (
            "{{ '%d' % 3.9 }} {{ '%d' % true }} {{ '%i' % -3 }} {{ '%u' % 3 }}",
            "3 1 -3 3",
        ),
        ("{{ '%c%c' % ('a', 98) }}", "ab"),
        (
            "{{ '%5s|%-5s|%.2s' % ('ab', 'cd', 'efgh') }}",
            "   ab|cd   |ef",
        ),
        (
            "{{ '%*d' % (5, 42) }} {{ '%.*f' % (2, 3.14159) }}",
            "   42 3.14",
        ),
        ("{{ '%s' % undefinedx }}|", "|"),
        ("{{ '%s' % (none,) }}", "None"),
        ("{{ 'no' % () }}", "no"),
        ("{{ 'no' % {} }}", "no"),
        ("{{ 'no' % d }}", "no"),
        ("{{ 'x' % [] }}", "x"),
        (
            "{{ '%s' % 1.0 }} {{ '%s' % 1e22 }} {{ '%r' % 0.1 }}",
            "1.0 1e+22 0.1",
        ),
        ("{{ ('%s' % 'a') ~ 'b' | upper }}", "aB"),
        ("{% set fmt = '%s=%d' %}{{ fmt % ('a', 1) }}", "a=1"),
        ("{{ '%ld' % 3 }} {{ '%hd' % 4 }}", "3 4"),
        ("{{ '%s' % ((1, 2),) }}", "(1, 2)"),
        ("{{ '%(a)s %(a)s' % {'a': 1} }}", "1 1"),
        (
            "{{ '%+.1e|%010.2f|% f' % (1234.5, -3.14159, 2) }}",
            "+1.2e+03|-000003.14| 2.000000",
        ),
        ("{{ '%.0f %.0f %.0f' % (0.5, 1.5, 2.5) }}", "0 2 2"),
        (
            "{{ '%x' % -255 }} {{ '%#X' % 255 }} {{ '%08x' % 255 }} {{ '%#010x' % 255 }}",
            "-ff 0XFF 000000ff 0x000000ff",
        ),
        ("{{ '%d' % 1e30 }}", "1000000000000000019884624838656"),
        ("{{ '%.3d' % 5 }} {{ '%5.3d|' % 5 }}", "005   005|"),
    ]);
}

#[test]
fn the_filter_format() {
    check(&[
        ("{{ '%s - %s' | format('a', 1) }}", "a - 1"),
        ("{{ '%(a)s' | format(a=3) }}", "3"),
        ("{{ '%.1f%%' | format(99.55) }}", "99.5%"),
        ("{{ '%02d:%02d' | format(5, 7) }}", "05:07"),
        ("{{ '%s' | format([1, 2]) }}", "[1, 2]"),
        ("{{ '%r' | format('x') }}", "'x'"),
        ("{{ 'é%s世%5.1f🦊' | format('ö', 2.25) }}", "éö世  2.2🦊"),
        (
            "{{ '%-10s|%10s|' | format('é', '世') }}",
            "é         |         世|",
        ),
        ("{{ '%(é)s' | format(**{'é': 1}) }}", "1"),
    ]);
}

#[test]
fn what_stands_in_braces() {
    check(&[
        (
            "{{ '{} {}'.format('a', 1) }} {{ '{1} {0}'.format('a', 'b') }} {{ '{x}'.format(x=3) }} {{ '{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c') }}",
            "a 1 b a 3     a|b    |  c  |",
        ),
        (
            "{{ '{:05d} {:+d} {:,} {:_}'.format(42, 42, 1234567, 1234567) }}",
            "00042 +42 1,234,567 1_234_567",
        ),
        (
            "{{ '{:.2f} {:e} {:g} {:%} {:.1%}'.format(3.14159, 12345.678, 0.0001, 0.25, 0.256) }}",
            "3.14 1.234568e+04 0.0001 25.000000% 25.6%",
        ),
        (
            "{{ '{:x} {:X} {:#x} {:b} {:#b} {:o} {:c}'.format(255, 255, 255, 5, 5, 8, 65) }}",
            "ff FF 0xff 101 0b101 10 A",
        ),
        ("{{ '{{}} {}'.format(1) }}", "{} 1"),
        ("{{ '{0[k]} {0[v]}'.format({'k': 1, 'v': 2}) }}", "1 2"),
        ("{{ '{!r} {!s}'.format('a', 'b') }}", "'a' b"),
        ("{{ '{:{w}}|'.format('a', w=5) }}", "a    |"),
        (
            "{{ '{:*^9}'.format('x') }} {{ '{:é>4}'.format('x') }}",
            "****x**** éééx",
        ),
        (
            "{{ '{}'.format(none) }} {{ '{}'.format(true) }} {{ '{}'.format([1,'a']) }} {{ '{}'.format(1.0) }}",
            "None True [1, 'a'] 1.0",
        ),
        ("{{ 'é{}ü'.format('ß') }}", "éßü"),
        (
            "{{ '{:10.3f}|{:<10.3}|'.format(3.14159, 'abcdef') }}",
            "     3.142|abc       |",
        ),
        ("{{ '{0[0]}{0[-1]}'.format([1,2]) }}", "1"),
        ("{{ '{:>{}}'.format('a', 4) }}", "   a"),
        (
            "{{ '{:=+5d}'.format(3) }} {{ '{:n}'.format(3) }} {{ '{:,.2f}'.format(1234567.891) }}",
            "+   3 3 1,234,567.89",
        ),
        (
            "{{ '{:}'.format(3) }} {{ '{: }'.format(3) }} {{ '{:<}|'.format(3) }}",
            "3  3 3|",
        ),
        (
            "{{ '{:.3}'.format(3.14159) }} {{ '{:}'.format(1e100) }} {{ '{:g}'.format(1e100) }}",
            "3.14 1e+100 1e+100",
        ),
        (
            "{{ '{a[b]}'.format(a={'b': 1}) }} {{ '{a.b}'.format(a={'b': 1}) }}",
            "1 1",
        ),
        ("{{ '{}'.format(undefinedx) }}|", "|"),
    ]);
}

#[test]
fn lines_of_a_width() {
    check(&[
        (
            "{{ 'a-b-c well-known hyphen-ated-words here' | wordwrap(8) }}",
            "a-b-c\nwell-\nknown\nhyphen-\nated-\nwords\nhere",
        ),
        (
            "{{ 'a-b-c well-known hyphen-ated-words here' | wordwrap(8, break_on_hyphens=false) }}",
            "a-b-c we\nll-known\nhyphen-a\nted-word\ns here",
        ),
        ("{{ '' | wordwrap }}", ""),
        ("{{ 'a  b   c    d' | wordwrap(4) }}", "a  b\nc\nd"),
        (
            "{{ 'abc def\n\n  ghi jkl mno' | wordwrap(7) }}",
            "abc def\n\n  ghi\njkl mno",
        ),
        (
            "{{ ('x' * 100) | wordwrap }}",
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\nxxxxxxxxxxxxxxxxxxxxx",
        ),
        (
            "{{ 'tab\there and\tthere' | wordwrap(6) }}",
            "tab\nhere\nand\nthere",
        ),
        (
            "{{ 'one -- two --- three—four' | wordwrap(6) }}",
            "one --\ntwo\n--- th\nree—fo\nur",
        ),
        (
            "{{ 'e-mail: foo-bar@x-y.com 2020-01-02 -5 a-1 1-a' | wordwrap(5) }}",
            "e-\nmail:\nfoo-b\nar@x-\ny.com\n2020-\n01-02\n-5\na-1\n1-a",
        ),
        (
            "{{ ('word ' * 5) | wordwrap(9) }}",
            "word word\nword word\nword",
        ),
        ("{{ 'ab cd' | wordwrap(1) }}", "a\nb\nc\nd"),
    ]);
}

#[test]
fn attributes_of_a_tag() {
    check(&[
        (
            "<a{{ {'class': 'x', 'id': none, 'n': 1, 'q': 'a\"<b'} | xmlattr }}>",
            "<a class=\"x\" n=\"1\" q=\"a&#34;&lt;b\">",
        ),
        ("<a{{ {} | xmlattr }}>", "<a>"),
        ("<a{{ {'a': 1} | xmlattr(false) }}>", "<aa=\"1\">"),
        (
            "<a{{ {'a': undefinedx, 'b': true} | xmlattr(autospace=false) }}>",
            "<ab=\"True\">",
        ),
    ]);
}

#[test]
fn macros() {
    check(&[
        (
            "{% macro m() %}{{ varargs }}|{{ kwargs }}{% endmacro %}{{ m() }} {{ m(1, 2) }} {{ m(a=1) }} {{ m(1, b=2) }}",
            "()|{} (1, 2)|{} ()|{'a': 1} (1,)|{'b': 2}",
        ),
        (
            "{% macro m(a, b=2) %}{{ a }},{{ b }},{{ varargs }},{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, 2, 3, 4) }} {{ m(1, c=5) }} {{ m(a=1, b=3, z=4) }}",
            "1,2,(),{} 1,2,(3, 4),{} 1,2,(),{'c': 5} 1,3,(),{'z': 4}",
        ),
        (
            "{% macro m(a) %}{{ a }}{% for v in varargs %}[{{ v }}]{% endfor %}{% for k, v in kwargs.items() %}{{ k }}={{ v }};{% endfor %}{% endmacro %}{{ m('x', 1, 2, q=3) }}",
            "x[1][2]q=3;",
        ),
        (
            "{% macro m() %}{{ m.name }}{% endmacro %}{{ m() }}{{ m.name }} {{ m.arguments }} {{ m.caller }} {{ m.catch_varargs }} {{ m.catch_kwargs }}",
            "mm () False False False",
        ),
        (
            "{% macro m(x) %}{{ x }}{% endmacro %}{{ m }}|{{ m is callable }}{{ m is defined }}",
            "<Macro 'm'>|TrueTrue",
        ),
        (
            "{% macro m() %}{{ kwargs.x }}{{ kwargs['y'] }}{{ kwargs.get('z', 'Z') }}{{ varargs | length }}{{ varargs[0] }}{% endmacro %}{{ m('v', x=1, y=2) }}",
            "12Z1v",
        ),
        (
            "{% macro outer() %}{% macro inner() %}{{ varargs }}{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}",
            "(1,)",
        ),
        (
            "{% macro m() %}{{ caller() }}{{ kwargs }}{% endmacro %}{% call m(a=1) %}x{% endcall %}",
            "x{'a': 1}",
        ),
        (
            "{% macro m(x) %}{% set ns.v = x %}{% endmacro %}{% set ns = namespace(v=0) %}{{ m(3) }}{{ ns.v }}",
            "3",
        ),
    ]);
}

#[test]
fn slices() {
    check(&[
        (
            "{{ 'abcdef'[4:1:-1] }} {{ 'abcdef'[1:4:-1] }}|{{ 'abcdef'[:-3:-1] }} {{ 'abcdef'[-100:100] }} {{ 'abcdef'[::-2] }} {{ 'abcdef'[-2:0:-2] }}",
            "edc |fe abcdef fdb ec",
        ),
        ("{{ (1,2,3)[1:] }} {{ (1,2,3)[::-1] }}", "(2, 3) (3, 2, 1)"),
    ]);
}

#[test]
fn filters() {
    check(&[
        (
            "{{ '3.5' | float }} {{ 'x' | float }} {{ 'x' | float(1.5) }} {{ 3 | float }} {{ true | float }} {{ none | float }} {{ 'inf' | float }} {{ 'nan' | float }} {{ '1_000' | float }} {{ '1e5' | float }}",
            "3.5 0.0 1.5 3.0 1.0 0.0 inf nan 1000.0 100000.0",
        ),
        (
            "{{ 'a\\n\\nb' | indent }}|{{ 'a\\n' | indent }}|{{ '' | indent(2, true) }}|",
            "a\n\n    b|a\n|  |",
        ),
        (
            "{{ 1000 | filesizeformat }} {{ 1024 | filesizeformat(true) }} {{ 1 | filesizeformat }} {{ 123456789 | filesizeformat }} {{ 0 | filesizeformat }} {{ '1500' | filesizeformat }}",
            "1.0 kB 1.0 KiB 1 Byte 123.5 MB 0 Bytes 1.5 kB",
        ),
        (
            "{{ 'a' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 5 | replace(5, 6) }}",
            "b bba 6",
        ),
        (
            "{% filter indent(2) | upper %}a\nb{% endfilter %}",
            "A\n  B",
        ),
    ]);
}

#[test]
fn namespaces() {
    check(&[(
        "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}",
        "12",
    )]);
}

#[test]
fn ends_of_lines() {
    check(&[
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("{%- raw -%} {{ x }} {%- endraw -%} y", "{{ x }}y"),
        ("a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n", "a\nb\nc"),
        ("{{ 'a\r\nb' | length }} {{ 'a\nb' | length }}", "3 3"),
        ("a {%- raw %} b {% endraw -%} c", "a b c"),
        ("{% if 1 %}\r\na\r{% endif %}\rb", "a\nb"),
    ]);
}

#[test]
fn numbers() {
    check(&[
        (
            "{{ (2 ** 70) | string }} {{ '%d' | format(2 ** 70) }} {{ (2 ** 70) | abs }} {{ -(2 ** 70) }} {{ (2 ** 70) is integer }} {{ (2 ** 70) is odd }} {{ [2 ** 70] | tojson }} {{ 2 ** 70 in [2 ** 70] }}",
            "1180591620717411303424 1180591620717411303424 1180591620717411303424 -1180591620717411303424 True False [1180591620717411303424] True",
        ),
        (
            "{{ 1.5 | round | int }} {{ 7 / 2 | int }} {{ (7 / 2) | int }} {{ (2.5).__class__ }}",
            "2 3.5 3 ",
        ),
        (
            "{{ true * 3 }} {{ true / 2 }} {{ true // 1 }} {{ true ** 2 }} {{ true % 2 }} {{ -true }} {{ 'a' * true }}",
            "3 0.5 1 1 1 -1 a",
        ),
        (
            "{{ [1,2][true] }} {{ {true: 'x'}[1] }} {{ {1: 'x'}[true] }} {{ {1: 'x'}[1.0] }}",
            "2 x x x",
        ),
    ]);
}
