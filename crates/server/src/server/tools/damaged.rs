//! Protects calls as models really write them: with tags left out, doubled or others than they should be, and cut anywhere.

use serde_json::json;

use super::testing::{found, is, now, searched, tools};
use super::*;

const FIRST: &str = "<arg_key>query</arg_key><arg_value>last days</arg_value>";
const SECOND: &str = "<arg_key>limit</arg_key><arg_value>3</arg_value>";

#[test]
fn tags_that_are_missing_doubled_or_others_lose_nothing() {
    let both = json!({"query": "last days", "limit": 3});
    for answer in [
        // As it should be, also with white space.
        format!("<tool_call>search{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>\nsearch\n{FIRST}\n{SECOND}\n</tool_call>\n"),
        // Missing.
        format!("search{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>searchquery</arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search query</arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search\nquery<arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query<arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><arg_value>last days{SECOND}</tool_call>"),
        format!("<tool_call>search{FIRST}limit</arg_key><arg_value>3</arg_value></tool_call>"),
        format!("<tool_call>search{FIRST}limit<arg_value>3</arg_value></tool_call>"),
        format!("<tool_call>search{FIRST}<arg_key>limit<arg_value>3</arg_value></tool_call>"),
        format!("<tool_call>search{FIRST}<arg_key>limit</arg_key>3</arg_value></tool_call>"),
        format!("<tool_call>search{FIRST}<arg_key>limit</arg_key><arg_value>3</tool_call>"),
        format!("<tool_call>search{FIRST}{SECOND}"),
        // Doubled.
        format!("<tool_call><tool_call>search{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>search<tool_call>search{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key></arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><arg_value><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search{FIRST}</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search{FIRST}<arg_key>{SECOND}</arg_value></tool_call></tool_call>"),
        // Others than they should be, or where none should be.
        format!("<tool_call>search<tool_call>query</arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_value>query</arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_value><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</tool_call><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key><arg_value>query</arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query<arg_value></arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query<arg_key></arg_key><arg_value>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><arg_key>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><tool_call>last days</arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><arg_value>last days</arg_key>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><arg_value>last days<arg_value>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key><arg_value>last days</tool_call>{SECOND}</tool_call>"),
        format!("<tool_call>search{FIRST}<tool_call>limit</arg_key><arg_value>3</arg_value></tool_call>"),
        format!("<tool_call>search{FIRST}<arg_value>limit</arg_key><arg_value>3</arg_value></tool_call>"),
        format!("<tool_call>search{FIRST}, {SECOND}</tool_call>"),
        format!("<tool_call>functions.search{FIRST}{SECOND}</tool_call>"),
        // JSON in place of tags.
        "<tool_call>search{\"query\": \"last days\", \"limit\": 3}</tool_call>".to_owned(),
        "<tool_call>search\n{\"query\": \"last days\", \"limit\": 3}\n</tool_call>".to_owned(),
        "<tool_call>search\n```json\n{\"query\": \"last days\", \"limit\": 3}\n```\n</tool_call>".to_owned(),
        "<tool_call>search<arg_key>{\"query\": \"last days\", \"limit\": 3}</arg_key></tool_call>".to_owned(),
        "<tool_call>search<arg_value>{\"query\": \"last days\", \"limit\": 3}</arg_value></tool_call>".to_owned(),
        "<tool_call>search<arg_key>arguments</arg_key><arg_value>{\"query\": \"last days\", \"limit\": 3}</arg_value></tool_call>".to_owned(),
        "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3}}</tool_call>".to_owned(),
        "<tool_call>{'name': 'search', 'arguments': {'query': 'last days', 'limit': 3,}}</tool_call>".to_owned(),
        "<tool_call>\n{\"name\": \"functions.search\", \"parameters\": {\"query\": \"last days\", \"limit\": 3}}\n".to_owned(),
        "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3}, \"id\": 7}</tool_call>".to_owned(),
        "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3</tool_call>".to_owned(),
        "<tool_call>{\"arguments\": {\"query\": \"last days\", \"limit\": 3}, \"name\": \"search\"}</tool_call>".to_owned(),
        "<tool_call>{\"name\": \"search\", \"arguments\": \"{\\\"query\\\": \\\"last days\\\", \\\"limit\\\": 3}\"}</tool_call>".to_owned(),
        "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3}}}</tool_call>".to_owned(),
        "<tool_call>[{\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3}}]</tool_call>".to_owned(),
        "<tool_call>```json\n{\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3}}\n```</tool_call>".to_owned(),
    ] {
        is(Format::Tagged, &answer, "", &[searched(both.clone())]);
    }
}

#[test]
fn json_beside_tags_loses_nothing() {
    let both = json!({"query": "last days", "limit": 3});
    for answer in [
        format!("<tool_call>search{{\"query\": \"last days\"}}{SECOND}</tool_call>"),
        format!("<tool_call>search{{\"query\": \"last days\"}}\n{SECOND}"),
        format!("<tool_call>search{{}}{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>search{FIRST}{{\"limit\": 3}}</tool_call>"),
        format!("<tool_call>{{\"name\": \"search\"{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>{{\"name\": \"search\",\n{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>{{\"name\": \"search\"}}\n{FIRST}{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query: last days</arg_key>{SECOND}</tool_call>"),
        format!("<tool_call>search<arg_key>query=last days</arg_key>{SECOND}</tool_call>"),
        format!("<tool_call>search\nsearch{FIRST}{SECOND}</tool_call>"),
    ] {
        is(Format::Tagged, &answer, "", &[searched(both.clone())]);
    }
    let unknown = "<tool_call>search<arg_key>the query</arg_key></tool_call>";
    is(Format::Tagged, unknown, unknown, &[]);
    let big = "<tool_call>{\"arguments\": {\"query\": \"x\", \"limit\": 98765432109876543210}, \"name\": \"search\"}</tool_call>";
    let found = found(Format::Json, &[], &[big], true);
    assert_eq!(
        found.calls[0].1,
        "{\"query\":\"x\",\"limit\":98765432109876543210}"
    );
}

#[test]
fn tags_that_are_half_written_at_the_end_are_left_out() {
    let call = [searched(json!({"query": "last days"}))];
    for end in [
        "</arg_value></tool_call",
        "</arg_value></",
        "</arg_value",
        "</arg",
        "</tool_",
    ] {
        let answer = format!("<tool_call>search<arg_key>query</arg_key><arg_value>last days{end}");
        is(Format::Tagged, &answer, "", &call);
    }
    let answer = "<tool_call>search<arg_key>query</arg_key><arg_value>a <";
    is(
        Format::Tagged,
        answer,
        "",
        &[searched(json!({"query": "a <"}))],
    );
}

#[test]
fn fences_around_calls() {
    let call = format!("<tool_call>search{FIRST}</tool_call>");
    let first = [searched(json!({"query": "last days"}))];
    for fence in ["```", "```xml"] {
        // The answer is nothing but the call.
        let answer = format!("{fence}\n{call}\n```");
        is(Format::Tagged, &answer, &format!("{fence}\n```"), &first);
        for text in [
            format!("So:\n{fence}\n{call}\n```"),
            format!("{fence}\n{call}\n```\nThat is all."),
            format!("{fence}\nSo {call}\n```"),
        ] {
            is(Format::Tagged, &text, &text, &[]);
        }
    }
}

#[test]
fn a_call_ends_where_the_next_one_begins() {
    let first = || searched(json!({"query": "last days"}));
    for (answer, calls) in [
        (format!("<tool_call>search{FIRST}<tool_call>now</tool_call>"), vec![first(), now()]),
        (format!("<tool_call>search{FIRST}<tool_call>search{FIRST}</tool_call>"), vec![first(), first()]),
        (format!("<tool_call>search{FIRST}</tool_call>\n<tool_call>now"), vec![first(), now()]),
        (format!("<tool_call>search{FIRST}</tool_call>search{FIRST}</tool_call>"), vec![first(), first()]),
        (
            "<tool_call>search<arg_key>query</arg_key><arg_value>last days<tool_call>now</tool_call>".to_owned(),
            vec![first(), now()],
        ),
        (
            "<tool_call>search<arg_key>query</arg_key><arg_value>last days</tool_call>\n<tool_call>now</tool_call>".to_owned(),
            vec![first(), now()],
        ),
        ("<tool_call>now<tool_call>now</tool_call>".to_owned(), vec![now(), now()]),
        (format!("<tool_call>now<tool_call>search{FIRST}</tool_call>"), vec![now(), first()]),
        (
            "<tool_call>now<tool_call>searchquery</arg_key><arg_value>last days</arg_value></tool_call>".to_owned(),
            vec![now(), first()],
        ),
        (
            "<tool_call>{\"name\": \"now\"}<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"last days\"}}".to_owned(),
            vec![now(), first()],
        ),
        (
            "<tool_call>[{\"name\": \"now\"}, {\"name\": \"search\", \"arguments\": {\"query\": \"last days\"}}]".to_owned(),
            vec![now(), first()],
        ),
    ] {
        is(Format::Tagged, &answer, "", &calls);
    }
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "A `<tool_call>` tag opens a call.\nThen more text.",
        "The <tool_call> tag opens a call, </tool_call> ends it.",
        "<tool_call></tool_call>",
        "<tool_call>\n</tool_call>",
        "<tool_call>",
        "<tool_call>serch<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>",
        "<tool_call>{\"name\": \"serch\", \"arguments\": {\"query\": \"x\"}}</tool_call>",
        "<tool_call>{\"query\": \"x\"}</tool_call>",
        "<tool_call>search is the first tool.</tool_call>",
        "<tool_call>search</arg_value></tool_call>",
        "<tool_call>search<arg_key></arg_key></tool_call>",
        "<tool_call>search(query=\"x\")</tool_call>",
        "<tool_call>search<arg_value>x</arg_value></tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>",
        "Write `<tool_call>now</tool_call>` to know the time.",
        "So:\n```xml\n<tool_call>search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>\n```\nThat is all.",
        "research<arg_key>query</arg_key>",
        "The now tool. search",
    ] {
        is(Format::Tagged, text, text, &[]);
    }
}

#[test]
fn text_around_calls_stays() {
    let call = [searched(json!({"query": "last days"}))];
    for (answer, text) in [
        (
            format!("A `<tool_call>` tag.\n<tool_call>search{FIRST}</tool_call>"),
            "A `<tool_call>` tag.",
        ),
        (
            format!("<tool_call>serch<tool_call>search{FIRST}</tool_call>"),
            "<tool_call>serch",
        ),
        (
            format!("I look. <tool_call>search{FIRST}</tool_call>\nI wait."),
            "I look.\nI wait.",
        ),
        (format!("<tool_call>search{FIRST}\nI wait."), "\nI wait."),
        (
            "<tool_call>search<arg_key>query</arg_key><arg_value>last days</tool_call>\nI wait."
                .to_owned(),
            "\nI wait.",
        ),
        (
            format!("```\nx\n```\n<tool_call>search{FIRST}</tool_call>"),
            "```\nx\n```",
        ),
        // A block that the answer ends in explains nothing.
        (format!("```\n<tool_call>search{FIRST}</tool_call>"), "```"),
        (format!("Search:\nsearch{FIRST}"), "Search:"),
    ] {
        is(Format::Tagged, &answer, text, &call);
    }
}

#[test]
fn a_call_without_the_arguments_that_it_needs_is_damaged() {
    let answer = "<tool_call>search<tool_call>now</tool_call>";
    is(Format::Tagged, answer, "<tool_call>search", &[now()]);
    // The model ends it so.
    is(
        Format::Tagged,
        "<tool_call>search</tool_call>",
        "",
        &[searched(json!({}))],
    );
}

#[test]
fn texts_about_tags_are_values() {
    for value in [
        "use </arg_value> in docs",
        "A call ends with </tool_call> here.",
        "<tool_call>x</tool_call>",
        "<tool_call>now</tool_call>",
        "so <tool_call>search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call> it is",
        "<tool_call>",
        "<arg_key>{k}</arg_key>",
        "a < b && c </arg",
        "<tool_call>{name}<arg_key>{key}</arg_key>",
    ] {
        let answer = format!(
            "<tool_call>search<arg_key>query</arg_key><arg_value>{value}</arg_value>{SECOND}</tool_call>"
        );
        let call = searched(json!({"query": value, "limit": 3}));
        is(Format::Tagged, &answer, "", &[call]);
    }
    let json = json!({"query": "ends with </tool_call> or </arg_value>", "limit": 3});
    for answer in [
        format!("<tool_call>search{json}</tool_call>"),
        format!("<tool_call>{{\"name\": \"search\", \"arguments\": {json}}}</tool_call>"),
    ] {
        is(Format::Json, &answer, "", &[searched(json.clone())]);
    }
}

#[test]
fn values_follow_their_schema() {
    for (key, value, expected) in [
        ("note", "12345", json!("12345")),
        ("note", "{\"a\": 1}", json!("{\"a\": 1}")),
        ("note", "null", json!(null)),
        ("note", "None", json!(null)),
        ("note", "nullable", json!("nullable")),
        ("note", "", json!("")),
        ("limit", "-7", json!(-7)),
        ("tags", "['a', 'b']", json!(["a", "b"])),
        (
            "tags",
            "[\"a\", \"</arg_value\"]",
            json!(["a", "</arg_value"]),
        ),
        ("other", "true", json!(true)),
    ] {
        let answer = format!(
            "<tool_call>search<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>"
        );
        is(
            Format::Tagged,
            &answer,
            "",
            &[searched(json!({key: expected}))],
        );
    }
    let answer = "<tool_call>search<arg_key>limit</arg_key><arg_value></arg_value></tool_call>";
    is(Format::Tagged, answer, "", &[searched(json!({}))]);
    let answer = "<tool_call>search<arg_key>limit</arg_key><arg_value>12345678901234567890123</arg_value></tool_call>";
    let found = found(Format::Tagged, &[], &[answer], true);
    assert_eq!(found.calls[0].1, "{\"limit\": 12345678901234567890123}");
}

#[test]
fn a_call_that_is_cut_is_closed_and_is_not_whole() {
    let begun = "<tool_call>search<arg_key>query</arg_key>";
    for (format, answer, text, arguments) in [
        (Format::Tagged, "<tool_call>sear", "<tool_call>sear", None),
        (
            Format::Tagged,
            "<tool_call>search<arg_key>que",
            "<tool_call>search<arg_key>que",
            None,
        ),
        (Format::Tagged, begun, "", Some("{}")),
        (
            Format::Tagged,
            &format!("{begun}<arg_value>last da"),
            "",
            Some("{\"query\": \"last da\"}"),
        ),
        (
            Format::Tagged,
            &format!(
                "{begun}<arg_value>x</arg_value><arg_key>tags</arg_key><arg_value>[\"a\", \"b"
            ),
            "",
            Some("{\"query\": \"x\", \"tags\": [\"a\", \"b\"]}"),
        ),
        (
            Format::Json,
            "<tool_call>{\"name\": \"search\", \"argum",
            "<tool_call>{\"name\": \"search\", \"argum",
            None,
        ),
        (
            Format::Json,
            "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"x",
            "",
            Some("{\"query\": \"x\"}"),
        ),
        (
            Format::DeepSeek,
            "<｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"query\": \"x\", \"lim",
            "",
            Some("{\"query\": \"x\"}"),
        ),
    ] {
        for whole in [true, false] {
            let found = found(format, &[], &[answer], whole);
            let calls: Vec<_> = found.calls.iter().map(|(_, a)| a.as_str()).collect();
            if format != Format::Json || arguments.is_some() {
                assert_eq!(found.text, text, "{answer}");
                assert_eq!(calls, arguments.into_iter().collect::<Vec<_>>(), "{answer}");
            }
            assert!(!found.whole, "{answer}");
        }
    }
    // The model says by ending that the call is whole, and a limit does not.
    let answer = format!("<tool_call>search{FIRST}");
    assert!(found(Format::Tagged, &[], &[&answer], true).whole);
    assert!(!found(Format::Tagged, &[], &[&answer], false).whole);
    // A whole one before it counts.
    let answer = format!("<tool_call>search{FIRST}</tool_call>{begun}");
    assert!(found(Format::Tagged, &[], &[&answer], false).whole);
}

#[test]
fn a_call_is_told_with_its_first_key_and_its_text_streams() {
    let mut parser = Parser::new(Format::Tagged, tools(), false);
    assert_eq!(parser.push("<tool_call>search<arg_key>query"), []);
    let told = parser.push("</arg_key>");
    let name = "search".to_owned();
    assert_eq!(told, [Delta::Call { index: 0, name }]);
    let text = |text: &str| Delta::Arguments {
        index: 0,
        text: text.to_owned(),
    };
    parser.push("<arg_value>");
    assert_eq!(parser.push("last "), [text("last")]);
    assert_eq!(parser.push("days "), [text(" days")]);
    let mut parser = Parser::new(Format::DeepSeek, tools(), false);
    assert_eq!(
        parser.push("<｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"query"),
        []
    );
    assert_eq!(parser.push("\":").len(), 2);
    assert_eq!(parser.push(" \"last "), [text("\"query\": \"last ")]);
    // An answer that may have one call is over with it.
    let mut parser = Parser::new(Format::Tagged, tools(), true);
    let told = parser.push("<tool_call>now</tool_call><tool_call>now</tool_call> x");
    assert_eq!((told.len(), parser.is_over()), (2, true));
    assert_eq!(parser.finish(true), []);
}

#[test]
fn a_call_among_thoughts_is_one_if_nothing_follows() {
    let call = format!("<tool_call>search{FIRST}</tool_call>");
    let first = [searched(json!({"query": "last days"}))];
    let thoughts = format!("I search. {call}");
    for (answer, whole, is_call) in [
        ("", true, true),
        ("\n\n", true, true),
        ("Done.", true, false),
        (" `", true, false),
    ] {
        for step in [1, 7, 400] {
            let split = |text: &str| -> Vec<String> {
                let chars: Vec<char> = text.chars().collect();
                chars.chunks(step).map(|c| c.iter().collect()).collect()
            };
            let (all, pieces) = (split(&thoughts), split(answer));
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let found = found(Format::Tagged, &all, &pieces, whole);
            if is_call {
                assert_eq!(
                    (found.thoughts.as_str(), found.calls()),
                    ("I search.", first.to_vec())
                );
            } else {
                let expected = (thoughts.as_str(), answer, vec![]);
                assert_eq!(
                    (found.thoughts.as_str(), found.text.as_str(), found.calls()),
                    expected
                );
            }
        }
    }
    // Thoughts that go on, or are cut in the call.
    let more = format!("{thoughts} Or not?");
    let cut = thoughts.trim_end_matches("</arg_value></tool_call>");
    for (thoughts, whole) in [(more.as_str(), true), (cut, false)] {
        let found = found(Format::Tagged, &[thoughts], &[], whole);
        assert_eq!((found.thoughts.as_str(), found.calls.len()), (thoughts, 0));
    }
    // The answer calls behind it.
    let found = found(Format::Tagged, &[&thoughts], &["\n", &call], true);
    assert_eq!(
        (found.thoughts.as_str(), found.calls()),
        (thoughts.as_str(), first.to_vec())
    );
}
