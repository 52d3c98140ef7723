//! Constructs of Jinja that chat templates use, each by itself: texts between tags, variables, loops, conditions and macros.
//!
//! Expected texts come from Jinja2 3.1.6 with the settings of `transformers`' `apply_chat_template`.

use minijinja::Value;
use serde_json::{Value as Json, json};

use super::ChatTemplate;

/// The text that `source` renders with these variables, also with those that no [`super::Message`] holds.
pub(super) fn render_with(source: &str, variables: &Value) -> Result<String, String> {
    let template = ChatTemplate::parse("test", source, "", "").map_err(|e| e.to_string())?;
    let rendered = template.program.render(variables.clone());
    rendered.map_err(|e| format!("{e:#}"))
}

/// Turns of every role, with parts, thoughts and calls of tools, and a few values more.
pub(super) fn variables() -> Value {
    from_json(json!({
        "bos_token": "<B>",
        "eos_token": "<E>",
        "add_generation_prompt": true,
        "messages": [
            {"role": "system", "content": "Rule."},
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "image", "url": "x"}, "two"]},
            {"role": "assistant", "content": "", "reasoning_content": "r1", "tool_calls": [
                {"function": {"name": "weather", "arguments": {"place": "Köln", "days": 2, "exact": true}}},
                {"name": "clock", "arguments": {}},
            ]},
            {"role": "tool", "content": "3 °C"},
            {"role": "tool", "content": "noon"},
            {"role": "assistant", "content": "<think>\nr2\n</think>\n\nCold. "},
            {"role": "user", "content": "Sure?"},
        ],
        "tools": [{"name": "weather", "needs": {"place": "a <city>, it's \"Köln\" & so on", "days": null}}],
        "count": 3,
        "none_of": null,
        "empty": "",
        "word": "-=Fox=-",
        "pairs": [["a", 1], ["b", 2]],
    }))
}

/// The template's value for one of JSON, whose numbers are whole here.
fn from_json(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(value),
        Json::Number(value) => Value::from(value.as_i64().expect("a whole number")),
        Json::String(value) => Value::from(value),
        Json::Array(items) => items.into_iter().map(from_json).collect(),
        Json::Object(items) => Value::from_pairs(items.into_iter().map(|(k, v)| (k, from_json(v)))),
    }
}

/// Each case is a construct, a template that shows it, and what that writes.
pub(super) fn check(cases: &[(&str, &str, &str)]) {
    let variables = variables();
    let mut failures = String::new();
    for (construct, source, expected) in cases {
        let found = render_with(source, &variables);
        if found.as_deref() != Ok(*expected) {
            failures += &format!("{construct}: {found:?} instead of {expected:?}\n");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn whitespace_and_text() {
    check(&[
        (
            "a newline after a block is dropped, one after an expression is not",
            "{% if true %}\na\n{% endif %}\n{{ 1 }}\nb",
            "a\n1\nb",
        ),
        (
            "blanks before a block that starts a line are dropped",
            "a\n  \t{% if true %}b{% endif %}",
            "a\nb",
        ),
        (
            "blanks before a block within a line stay",
            "a  {% if true %}b{% endif %}",
            "a  b",
        ),
        ("blanks before an expression stay", "a\n  {{ 1 }}", "a\n  1"),
        (
            "{%- takes all whitespace before it",
            "a \n\n {%- if true %}b{% endif %}",
            "ab",
        ),
        (
            "-%} takes all whitespace after it",
            "{% if true -%} \n\n b{% endif %}",
            "b",
        ),
        (
            "{%- at the end of a block does not touch what follows",
            "{% if true %}a \n{%- endif %} \n b",
            "a \n b",
        ),
        (
            "{{- and -}} take the whitespace on their sides",
            "a \n {{- 1 -}} \n b",
            "a1b",
        ),
        ("{{- leaves what follows", "a \n {{- 1 }} \n b", "a1 \n b"),
        (
            "{%+ keeps the blanks before it",
            "a\n  {%+ if true %}b{% endif %}",
            "a\n  b",
        ),
        (
            "{# comments #} go, with the newline after them",
            "a{# x #}b\n  {# y #}\nc{#- z -#} d",
            "ab\ncd",
        ),
        ("one newline at the end is dropped", "a\n\n", "a\n"),
        (
            "text outside of delimiters is copied, with braces and tags",
            "<a>{b}</a>{ % \\n ｜▁</b>",
            "<a>{b}</a>{ % \\n ｜▁</b>",
        ),
        (
            "-%} without - on the left keeps what stands before it",
            "a \n{% if true -%} \n b{% endif -%} \n c",
            "a \nbc",
        ),
        (
            "- at the borders of what a macro or loop repeats",
            "{%- for x in pairs -%}\n  <{{ x[0] }}>\n  {{ x[1] }}\n{%- endfor -%}\n.",
            "<a>\n  1<b>\n  2.",
        ),
        (
            "an empty line between two blocks stays",
            "{% if true %}\n\na{% endif %}",
            "\na",
        ),
    ]);
}

#[test]
fn variables_and_their_scopes() {
    check(&[
        (
            "an attribute of a namespace set in a loop outlives it",
            "{% set ns = namespace(n=-1, t='', on=false) %}{% for m in messages %}\
             {% if m.role == 'user' %}{% set ns.n = loop.index0 %}{% set ns.t = ns.t + m.role %}\
             {% set ns.on = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.t }}{% if ns.on %}!{% endif %}",
            "6useruser!",
        ),
        (
            "the initial values of a namespace",
            "{% set ns = namespace(n=-1, t='x', on=false) %}{{ ns.n }}{{ ns.t }}{% if not ns.on %}!\
             {% endif %}{% if ns.other is defined %}?{% endif %}",
            "-1x!",
        ),
        (
            "a plain variable set in a loop does not",
            "{% set n = 0 %}{% for m in messages %}{% set n = n + 1 %}{{ n }}{% endfor %}:{{ n }}",
            "1111111:0",
        ),
        (
            "a variable set in a condition outlives it",
            "{% if true %}{% set n = 5 %}{% endif %}{{ n }}",
            "5",
        ),
        (
            "a variable set in a condition within a loop lasts until the turn ends",
            "{% for m in messages %}{% set n = 'no' %}{% if m.role == 'tool' %}{% set n = 'yes' %}\
             {% endif %}{{ n }} {% endfor %}",
            "no no no yes yes no no ",
        ),
        (
            "the variable of a loop can be set anew within the turn",
            "{% for p in pairs %}{% if loop.first %}{% set p = ['z', 5] %}{% endif %}{{ p[0] }}\
             {% endfor %}",
            "zb",
        ),
        (
            "a default for what the caller left out",
            "{% if not colour is defined %}{% set colour = 'red' %}{% endif %}{{ colour }}",
            "red",
        ),
        (
            "no default for what the caller gave",
            "{% if not count is defined %}{% set count = 9 %}{% endif %}{{ count }}",
            "3",
        ),
        (
            "a default taken from another variable",
            "{% if not a is defined %}{% if count is defined %}{% set a = count %}{% else %}\
             {% set a = 0 %}{% endif %}{% endif %}{{ a }}",
            "3",
        ),
        (
            "a block of text as a variable",
            "{% set t %}\n<{{ word }}>\n{% endset %}{{ t }}{{ t | length }}",
            "<-=Fox=->\n10",
        ),
        (
            "several variables at once",
            "{% set a, b = 1, 'x' %}{{ b }}{{ a }}",
            "x1",
        ),
        (
            "names that begin with an underscore",
            "{% set _a = count %}{{ _a }}",
            "3",
        ),
    ]);
}

#[test]
fn counts_of_loops() {
    check(&[
        (
            "loop.index0 and loop.index",
            "{% for m in messages[:3] %}{{ loop.index0 }}{{ loop.index }} {% endfor %}",
            "01 12 23 ",
        ),
        (
            "loop.first",
            "{% for m in messages %}{{ '(' if loop.first else ',' }}{% endfor %}",
            "(,,,,,,",
        ),
        (
            "loop.last",
            "{% for m in messages %}{{ ')' if loop.last else ',' }}{% endfor %}",
            ",,,,,,)",
        ),
        (
            "loop.previtem",
            "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == 'tool' %}\
             {{ loop.index0 }}{% endif %}{% endfor %}",
            "45",
        ),
        (
            "loop.nextitem",
            "{% for m in messages %}{% if loop.nextitem is defined and loop.nextitem.role == 'tool' %}\
             {{ loop.index0 }}{% endif %}{% endfor %}",
            "23",
        ),
        (
            "loop.length, loop.revindex and loop.revindex0",
            "{% for x in pairs %}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
            "221 210 ",
        ),
        (
            "the turn before, by arithmetic in the index",
            "{% for m in messages %}{% if loop.index0 and messages[loop.index0 - 1].role == \"tool\" %}\
             {{ loop.index0 }}{% endif %}{% endfor %}",
            "45",
        ),
        (
            "an inner loop counts for itself and gives the outer count back",
            "{% for x in pairs %}{% for y in x %}{{ loop.index0 }}{% endfor %}{{ loop.index }} \
             {% endfor %}",
            "011 012 ",
        ),
        (
            "a loop within a condition within a loop",
            "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.name or '-' }}\
             {% endfor %}{% endif %}{% endfor %}",
            "-clock",
        ),
    ]);
}

#[test]
fn what_loops_go_over() {
    check(&[
        (
            "keys and values of a mapping in its order",
            "{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}{{ k }}=\
             {{ 1 if v is true else v }};{% endfor %}",
            "place=Köln;days=2;exact=1;",
        ),
        (
            "keys of a mapping",
            "{% for k in tools[0] %}{{ k }};{% endfor %}",
            "name;needs;",
        ),
        (
            "an empty mapping",
            "{% for k, v in messages[2].tool_calls[1].arguments.items() %}{{ k }}{% endfor %}.",
            ".",
        ),
        (
            "a list in reverse",
            "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}",
            "uattaus",
        ),
        (
            "a list without its first item",
            "{% for m in messages[1:] %}{{ m.role[0] }}{% endfor %}",
            "uattau",
        ),
        (
            "a list without its last item",
            "{% for m in messages[:-1] %}{{ m.role[0] }}{% endfor %}",
            "suatta",
        ),
        (
            "the filter reverse",
            "{% for x in pairs | reverse %}{{ x[0] }}{% endfor %}",
            "ba",
        ),
        (
            "a loop with a condition, whose counts are those of what passes",
            "{% for m in messages if m.role == 'user' %}{{ loop.index0 }}{{ loop.length }}{% endfor %}",
            "0212",
        ),
        (
            "else of a loop without items",
            "{% for x in [] %}x{% else %}none{% endfor %}",
            "none",
        ),
        (
            "break and continue",
            "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}\
             {% if m.role == 'tool' %}{% break %}{% endif %}{{ m.role }} {% endfor %}",
            "system assistant ",
        ),
        (
            "range",
            "{% for i in range(1, 4) %}{{ i }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}\
             {% endfor %}",
            "123321",
        ),
        (
            "pairs taken apart",
            "{% for a, b in pairs %}{{ b }}{{ a }}{% endfor %}",
            "1a2b",
        ),
    ]);
}

#[test]
fn items_and_conditions() {
    check(&[
        (
            "an attribute and an item by name are the same",
            "{{ messages[0].role }}{{ messages[0]['role'] }}{{ messages[-1]['content'] }}",
            "systemsystemSure?",
        ),
        (
            "an item of that name before a method",
            "{{ {'items': 'x'}['items'] }}",
            "x",
        ),
        (
            "what is not there is false and writes nothing",
            "{% if colour or messages[0].tool_calls or messages[0]['name'] %}x{% endif %}[{{ colour }}\
             {{ messages[0].name }}]",
            "[]",
        ),
        (
            "none, empty text, zero and empty lists are false",
            "{{ 1 if none_of or empty or 0 or [] or {} else 0 }}",
            "0",
        ),
        (
            "if, elif and else",
            "{% for m in messages %}{% if m.role == 'user' %}u{% elif m.role == 'tool' %}t\
             {% elif m.role == 'assistant' %}a{% else %}?{% endif %}{% endfor %}",
            "?uattau",
        ),
        (
            "a condition within an expression",
            "{{ 'y' if count > 2 else 'n' }}{{ 'y' if count > 3 else 'n' }}[{{ 'y' if count > 3 }}]",
            "yn[]",
        ),
        (
            "a filter binds closer than + and than a condition",
            "{{ 'a' + messages[2].tool_calls[1].arguments | tojson + 'b' }}\
             {{ [1] | tojson if word is not string else word }}",
            "a{}b-=Fox=-",
        ),
        (
            "not binds closer than and, and closer than or",
            "{{ 1 if not true and false or true else 0 }}{{ 1 if not (false or true) else 0 }}\
             {{ 1 if true or true and false else 0 }}{{ 1 if (true or true) and false else 0 }}",
            "1010",
        ),
        (
            "and and or decide before the right side is looked at",
            "{{ 1 if colour is defined and colour.a.b else 0 }}\
             {{ 1 if count is defined or colour.a.b else 0 }}",
            "01",
        ),
        (
            "and and or give back one of their sides",
            "{{ colour or 'x' }}{{ word and 'y' }}",
            "xy",
        ),
        (
            "comparisons",
            "{{ 1 if count == 3 else 0 }}{{ 1 if count != 3 else 0 }}{{ 1 if count > 3 else 0 }}\
             {{ 1 if count >= 3 else 0 }}{{ 1 if count <= 2 else 0 }}{{ 1 if count < 3 else 0 }}\
             {{ 1 if 'a' != \"a\" else 0 }}",
            "1001000",
        ),
    ]);
}

#[test]
fn macros() {
    check(&[
        (
            "what a macro writes is a text",
            "{%- macro m(x) -%}  <{{ x }}>  {%- endmacro -%}{{ m('a') }}{{ m('b') | length }}\
             {% set t = m('c') + '!' %}{{ t.strip('<') }}",
            "<a>3c>!",
        ),
        (
            "an empty macro is false",
            "{% macro m(x) %}{% if x %}x{% endif %}{% endmacro %}{{ 1 if m(false) else 0 }}\
             {{ 1 if m(true) else 0 }}",
            "01",
        ),
        (
            "arguments by name and by default",
            "{% macro m(a, b='B', c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m('x') }} \
             {{ m('x', 'y') }} {{ m('x', c=4) }}",
            "xB3 xy3 xB4",
        ),
        (
            "a macro sees the variables of the template and calls others",
            "{% macro m(x) %}[{{ x }}]{% endmacro %}{% macro n(x) %}{{ m(x) }}{{ word }}{% endmacro %}\
             {{ n(1) }}",
            "[1]-=Fox=-",
        ),
        (
            "the variables of a macro are its own",
            "{% set n = 1 %}{% macro m() %}{% set n = 2 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
            "21",
        ),
        (
            "loops and conditions in a macro",
            "{% macro show(x) %}\n  {% if x is mapping %}\n    {%- for k in x if k != 'type' -%}{{ k }}:\
             {{ x[k] }}{%- endfor -%}\n  {% elif x is string %}\n    {{- x -}}\n  {% else %}\n    \
             {{- '?' -}}\n  {% endif %}\n{% endmacro %}\n{% for x in messages[1].content + [count] %}\
             {{ show(x) }};{% endfor %}",
            "text:One;url:x;two;?;",
        ),
        (
            "a macro that calls itself",
            "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
            "3210",
        ),
    ]);
}
