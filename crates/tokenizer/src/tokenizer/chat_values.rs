//! Values in Jinja that chat templates use: texts and their methods, tests, operators, filters and JSON.
//!
//! Expected texts come from Jinja2 3.1.6 with the settings of `transformers`' `apply_chat_template`.

use super::constructs::check;

#[test]
fn texts_cut_and_split() {
    check(&[
        (
            "strip",
            "{{ '[' + ' \\n a b\\t ' .strip() + ']' }}",
            "[a b]",
        ),
        ("strip with characters", "{{ word.strip('-=') }}", "Fox"),
        (
            "lstrip and rstrip",
            "{{ '[' + ' a '.lstrip() + '|' + ' a '.rstrip() + ']' }}",
            "[a | a]",
        ),
        (
            "lstrip and rstrip with a newline leave other whitespace",
            "{{ '[' + '\\n\\n a \\n'.lstrip('\\n') + '|' + '\\n a \\n\\n'.rstrip('\\n') + ']' }}",
            "[ a \n|\n a ]",
        ),
        (
            "the first and the last of split",
            "{{ 'a--b--c'.split('--')[0] }}{{ 'a--b--c'.split('--')[-1] }}",
            "ac",
        ),
        (
            "split where the separator is not there",
            "{{ 'abc'.split('--')[0] }}{{ 'abc'.split('--')[-1] }}{{ 'abc'.split('--') | length }}",
            "abcabc1",
        ),
        (
            "split with a limit keeps the rest",
            "{{ 'a--b--c'.split('--', 1)[1] }}",
            "b--c",
        ),
        (
            "split at whitespace",
            "{{ ' a  b\\nc '.split() | join(',') }}",
            "a,b,c",
        ),
        (
            "methods one after another",
            "{{ 'a = b; c = d '.split(';')[-1].strip().split('=')[0].rstrip() }}",
            "c",
        ),
        (
            "a text cut in two",
            "{% set parts = messages[5].content.split('</think>', 1) %}[{{ parts[1].lstrip('\\n') }}][\
             {{ parts[0].split('<think>')[-1].strip('\\n') }}]",
            "[Cold. ][r2]",
        ),
    ]);
}

#[test]
fn other_methods_and_filters_of_texts() {
    check(&[
        (
            "startswith and endswith",
            "{{ 1 if word.startswith('-=') else 0 }}{{ 1 if word.startswith('=') else 0 }}\
             {{ 1 if word.endswith('=-') else 0 }}{{ 1 if word.endswith('=') else 0 }}",
            "1010",
        ),
        (
            "replace",
            "{{ word.replace('=', '+') }}{{ word | replace('-', '') }}",
            "-+Fox+-=Fox=",
        ),
        (
            "upper, lower, title and capitalize",
            "{{ 'aB c'.upper() }}{{ 'aB c'.lower() }}{{ 'aB c'.title() }}{{ 'aB c'.capitalize() }}",
            "AB Cab cAb CAb c",
        ),
        (
            "find and count",
            "{{ word.find('Fox') }}{{ word.find('Hen') }}{{ word.count('=') }}",
            "2-12",
        ),
        (
            "join",
            "{{ ', '.join(['a', 'b']) }}{{ ['a', 'b'] | join('+') }}",
            "a, ba+b",
        ),
        (
            "the filters trim, length, upper, lower, title",
            "{{ '[' + '  a '|trim + ']' }}{{ word|length }}{{ 'a'|upper }}{{ 'B'|lower }}\
             {{ 'a b'|title }}",
            "[a]7AbA B",
        ),
    ]);
}

#[test]
fn parts_and_literals_of_texts() {
    check(&[
        (
            "a part is in a text or not",
            "{{ 1 if '</think>' in messages[5].content else 0 }}{{ 1 if '</think>' in word else 0 }}\
             {{ 1 if 'F' not in word else 0 }}",
            "100",
        ),
        (
            "slices of a text",
            "{{ word[2:5] }}{{ word[:2] }}{{ word[-2:] }}{{ word[::-1] }}{{ word[3] }}",
            "Fox-==--=xoF=-o",
        ),
        (
            "texts joined by + and by ~",
            "{{ 'a' + word + 'b' }}{{ 'a' ~ count ~ word }}",
            "a-=Fox=-ba3-=Fox=-",
        ),
        (
            "escapes in a literal",
            "{{ 'a\\n\\t\\'\\\\b' }}{{ \"c\\\"d\" }}",
            "a\n\t'\\bc\"d",
        ),
        (
            "a newline in a literal",
            "{{ 'a' + '\n\n' + 'b' }}",
            "a\n\nb",
        ),
        ("a delimiter in a literal", "{{ '%} }} {{' }}", "%} }} {{"),
        (
            "beyond ASCII",
            "{{ '<｜▁é𝄞｜>' + 'é𝄞'[1] }}{{ 'é𝄞' | length }}",
            "<｜▁é𝄞｜>𝄞2",
        ),
        (
            "nothing is escaped for HTML",
            "{{ tools[0].needs.place }}",
            "a <city>, it's \"Köln\" & so on",
        ),
    ]);
}

#[test]
fn tests_of_types() {
    check(&[
        (
            "is string",
            "{% for m in messages %}{{ 1 if m.content is string else 0 }}{% endfor %}",
            "1011111",
        ),
        (
            "an attribute is written where it is defined, the item itself where not",
            "{% for x in [{'out': 'a'}, 'b'] %}{{ x.out if x.out is defined else x }}{% endfor %}",
            "ab",
        ),
        (
            "an item is defined and true",
            "{% for x in [{}, {'go': false}, {'go': true}] %}\
             {{ 1 if x['go'] is defined and x['go'] and add_generation_prompt else 0 }}{% endfor %}",
            "001",
        ),
        (
            "is string is false for what is not there",
            "{% for m in messages %}{{ 1 if m.reasoning_content is string else 0 }}{% endfor %}",
            "0010000",
        ),
        (
            "is not string",
            "{% for p in messages[1].content %}{{ 1 if p is not string else 0 }}{% endfor %}",
            "110",
        ),
        (
            "is mapping",
            "{{ 1 if tools[0] is mapping else 0 }}{{ 1 if tools is mapping else 0 }}\
             {{ 1 if word is mapping else 0 }}",
            "100",
        ),
        (
            "is iterable and is not mapping",
            "{% for x in [tools[0], tools, count, [1]] %}\
             {{ 1 if x is iterable and x is not mapping else 0 }}{% endfor %}",
            "0101",
        ),
        (
            "is sequence",
            "{{ 1 if tools is sequence else 0 }}{{ 1 if count is sequence else 0 }}",
            "10",
        ),
    ]);
}

#[test]
fn tests_of_what_is_there() {
    check(&[
        (
            "is defined, of a variable",
            "{{ 1 if count is defined else 0 }}{{ 1 if colour is defined else 0 }}",
            "10",
        ),
        (
            "is defined, of an attribute and of an item",
            "{{ 1 if messages[0].content is defined else 0 }}\
             {{ 1 if messages[0].name is defined else 0 }}\
             {{ 1 if messages[0]['name'] is defined else 0 }}\
             {{ 1 if messages[0]['role'] is defined else 0 }}",
            "1001",
        ),
        (
            "is defined is true for none and for nothing",
            "{{ 1 if none_of is defined else 0 }}{{ 1 if empty is defined else 0 }}",
            "11",
        ),
        (
            "not ... is defined denies the test",
            "{{ 1 if not colour is defined else 0 }}{{ 1 if not count is defined else 0 }}",
            "10",
        ),
        (
            "is undefined",
            "{{ 1 if colour is undefined else 0 }}{{ 1 if count is undefined else 0 }}",
            "10",
        ),
        (
            "is none and is not none",
            "{{ 1 if none_of is none else 0 }}{{ 1 if empty is none else 0 }}\
             {{ 1 if none_of is not none else 0 }}",
            "100",
        ),
        (
            "is true, is false and is boolean",
            "{{ 1 if add_generation_prompt is true else 0 }}\
             {{ 1 if add_generation_prompt is false else 0 }}{{ 1 if false is boolean else 0 }}\
             {{ 1 if word is boolean else 0 }}",
            "1010",
        ),
        (
            "is number and is integer",
            "{{ 1 if count is number else 0 }}{{ 1 if word is number else 0 }}\
             {{ 1 if count is integer else 0 }}{{ 1 if 1.5 is integer else 0 }}",
            "1010",
        ),
        (
            "is even, is odd and is divisibleby",
            "{% for n in [3, 4] %}{{ 1 if n is odd else 0 }}{{ 1 if n is even else 0 }}\
             {{ 1 if n is divisibleby(3) else 0 }}{% endfor %}",
            "101010",
        ),
    ]);
}

#[test]
fn operators_and_filters() {
    check(&[
        (
            "the count of a loop against a number in a namespace",
            "{% set ns = namespace(at=1) %}{% for m in messages %}\
             {{ 1 if loop.index0 > ns.at and (empty or add_generation_prompt) else 0 }}{% endfor %}",
            "0011111",
        ),
        (
            "arithmetic",
            "{{ count + 2 * 3 }}{{ count // 2 }}{{ count % 2 }}{{ count - 5 }}{{ (count + 1) * 2 }}",
            "911-28",
        ),
        (
            "an item is in a list or not",
            "{{ 1 if 'b' in ['a', 'b'] else 0 }}{{ 1 if 'c' not in ['a', 'b'] else 0 }}\
             {{ 1 if 'b' not in ['b'] else 0 }}{{ 1 if 'role' in messages[0] else 0 }}\
             {{ 1 if 'name' in messages[0] else 0 }}",
            "11010",
        ),
        (
            "literals of lists and mappings",
            "{% set m = {'a': [1, 'x'], 'b': {'c': 2}} %}{{ m.a[1] }}{{ m['b'].c }}",
            "x2",
        ),
        (
            "get with and without a default",
            "{{ messages[0].get('role') }}{{ messages[0].get('name', 'nobody') }}\
             {{ 1 if messages[0].get('name') is none else 0 }}",
            "systemnobody1",
        ),
        (
            "the filters default, first and last",
            "{{ colour | default('red') }}{{ empty | default('e', true) }}{{ pairs | first | last }}\
             {{ (pairs | last)[0] }}",
            "rede1b",
        ),
        (
            "the filters int, string, list, items",
            "{{ ('12' | int) + 1 }}{{ (count | string) + '!' }}{{ 1 if ('ab' | list) is string else 0 }}\
             {{ ('ab' | list)[1] }}{% for k, v in {'k': 'v'} | items %}{{ k + v }}{% endfor %}",
            "133!0bkv",
        ),
        (
            "the filters selectattr, rejectattr and map",
            "{{ messages | selectattr('role', 'equalto', 'tool') | map(attribute='content') | join(',') }}\
             {{ messages | rejectattr('role', 'equalto', 'tool') | list | length }}",
            "3 °C,noon5",
        ),
    ]);
}

#[test]
fn values_as_json() {
    check(&[
        (
            "in the order and with the separators of Python",
            "{{ messages[2].tool_calls[0].function.arguments | tojson }}",
            "{\"place\": \"Köln\", \"days\": 2, \"exact\": true}",
        ),
        (
            "ensure_ascii off",
            "{{ messages[2].tool_calls[0].function | tojson(ensure_ascii=False) }}",
            "{\"name\": \"weather\", \"arguments\": {\"place\": \"Köln\", \"days\": 2, \"exact\": true}}",
        ),
        (
            "ensure_ascii on",
            "{{ ['é𝄞', 1] | tojson(ensure_ascii=True) }}",
            "[\"\\u00e9\\ud834\\udd1e\", 1]",
        ),
        (
            "nothing is escaped for HTML, none is null",
            "{{ tools[0] | tojson }}",
            "{\"name\": \"weather\", \"needs\": {\"place\": \"a <city>, it's \\\"Köln\\\" & so on\", \"days\": null}}",
        ),
        (
            "a text",
            "{{ 'a\"b\\\\c\\nd\\te' | tojson }}",
            "\"a\\\"b\\\\c\\nd\\te\"",
        ),
        (
            "empty lists and mappings",
            "{{ [] | tojson }}{{ {} | tojson }}{{ [[], {}] | tojson }}",
            "[]{}[[], {}]",
        ),
        (
            "numbers",
            "{{ [0, -1, 1.5, 2.0, 12345678901] | tojson }}",
            "[0, -1, 1.5, 2.0, 12345678901]",
        ),
        (
            "indent",
            "{{ {'a': [1, {'b': none}], 'c': []} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"c\": []\n}",
        ),
        (
            "a loop over tools, one on each line",
            "<t>\n{% for t in tools + [{'name': 'clock'}] %}\n{{ t | tojson(ensure_ascii=False) }}\n\
             {% endfor %}\n</t>",
            "<t>\n{\"name\": \"weather\", \"needs\": {\"place\": \"a <city>, it's \\\"Köln\\\" & so on\", \"days\": null}}\n{\"name\": \"clock\"}\n</t>",
        ),
    ]);
}
