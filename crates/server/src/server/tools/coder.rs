//! Protects Qwen3-Coder's calls: values keep their lines and have the types of the tool's schema, and damaged calls are read as they were meant.

use serde_json::json;

use super::testing::{found, is, now, searched};
use super::*;

/// A call of `search` with these values, as the model's template writes it.
fn call(values: &[(&str, &str)]) -> String {
    let values = values
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"));
    let values: String = values.collect();
    format!("<tool_call>\n<function=search>\n{values}</function>\n</tool_call>")
}

#[test]
fn calls_and_the_text_before_and_behind_them_are_told_apart() {
    let answer = format!(
        "I look.\n\n{}\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        call(&[("query", "a \"b\" <c>"), ("limit", "3")])
    );
    let first = searched(json!({"query": "a \"b\" <c>", "limit": 3}));
    is(Format::Xml, &answer, "I look.", &[first, now()]);
    let answer = format!("A\n{}\nB", call(&[("query", "x")]));
    is(
        Format::Xml,
        &answer,
        "A\nB",
        &[searched(json!({"query": "x"}))],
    );
    let text = " a <parameter=query> and <func, <function=fly>\n</function> \n ";
    is(Format::Xml, text, text, &[]);
}

#[test]
fn values_keep_their_lines() {
    for (written, value) in [
        ("one\ntwo\n", "one\ntwo\n"),
        ("\n  indented\n\n", "\n  indented\n\n"),
        ("", ""),
        ("\r\nx", "\r\nx"),
        ("a < b </param </parameter x", "a < b </param </parameter x"),
    ] {
        let answer = call(&[("query", written), ("limit", "7")]);
        let expected = searched(json!({"query": value, "limit": 7}));
        is(Format::Xml, &answer, "", &[expected]);
    }
    // Lines of a program for Windows, and a value in the line of its tags.
    for answer in [
        "<tool_call>\r\n<function=search>\r\n<parameter=query>\r\nx\r\n</parameter>\r\n</function>\r\n</tool_call>",
        "<tool_call><function=search><parameter=query>x</parameter></function></tool_call>",
    ] {
        is(Format::Xml, answer, "", &[searched(json!({"query": "x"}))]);
    }
}

#[test]
fn values_have_the_types_of_the_schema() {
    for (key, written, value) in [
        ("limit", "3", json!(3)),
        ("limit", "three", json!("three")),
        ("note", "null", json!(null)),
        ("note", "None", json!(null)),
        ("note", "nullify", json!("nullify")),
        ("note", "12", json!("12")),
        ("tags", "[\"a\", \"b\"]", json!(["a", "b"])),
        ("tags", "['a',\n 'b']", json!(["a", "b"])),
        ("query", "[1]", json!("[1]")),
        ("other", "True", json!(true)),
        ("other", "{\"a\": 1}", json!({"a": 1})),
        ("other", "word", json!("word")),
    ] {
        let mut arguments = json!({"query": "x"});
        arguments[key] = value;
        let values = match key {
            "query" => vec![(key, written)],
            _ => vec![("query", "x"), (key, written)],
        };
        is(Format::Xml, &call(&values), "", &[searched(arguments)]);
    }
}

#[test]
fn tags_in_a_value_belong_to_it() {
    for value in [
        "ends with </parameter> or not</parameter>.",
        "a </function> in a line",
        "the tag </tool_call> ends it",
        "use <function=fly>, then <parameter=height>",
        "in a line <parameter=limit>",
        "<tool_call>\n<function=search>\n<parameter=limit>\n1\n</parameter>\n</function>\n</tool_call>\nis a call",
        "<function=now>\n</function>",
    ] {
        let answer = call(&[("query", value), ("limit", "7")]);
        let expected = searched(json!({"query": value, "limit": 7}));
        is(Format::Xml, &answer, "", &[expected]);
    }
}

#[test]
fn damaged_calls_are_read_as_they_were_meant() {
    let both = || searched(json!({"query": "last days", "limit": 3}));
    let (query, limit) = (
        "<parameter=query>\nlast days\n</parameter>\n",
        "<parameter=limit>\n3\n</parameter>\n",
    );
    let ends = "</function>\n</tool_call>";
    for answer in [
        // The outer tags are missing, one of them, or doubled.
        format!("<function=search>\n{query}{limit}</function>"),
        format!("<function=search>\n{query}{limit}{ends}"),
        format!("<tool_call>\n<function=search>\n{query}{limit}</function>"),
        format!("<tool_call>\n<function=search>\n{query}{limit}</tool_call>"),
        format!("<tool_call>\n<function=search>\n{query}{limit}"),
        format!("<tool_call>\n<tool_call>\n<function=search>\n{query}{limit}{ends}\n</tool_call>"),
        format!("<tool_call>\n<function=search>\n<function=search>\n{query}{limit}{ends}"),
        // The name without its tag, or in quotes.
        format!("<tool_call>\nsearch\n{query}{limit}{ends}"),
        format!("<tool_call>\n<function=\"search\">\n{query}{limit}{ends}"),
        format!("<tool_call>\n<function=functions.search>\n{query}{limit}{ends}"),
        // The end of a value is missing or doubled.
        format!("<tool_call>\n<function=search>\n<parameter=query>\nlast days\n{limit}{ends}"),
        format!("<tool_call>\n<function=search>\n{query}<parameter=limit>\n3\n{ends}"),
        format!("<tool_call>\n<function=search>\n{query}<parameter=limit>\n3\n</tool_call>"),
        format!("<tool_call>\n<function=search>\n{query}</parameter>\n{limit}{ends}"),
        // The arguments are JSON.
        format!("<tool_call>\n<function=search>\n{{\"query\": \"last days\", \"limit\": 3}}\n{ends}"),
        "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"last days\", \"limit\": 3}}\n</tool_call>".to_owned(),
        "<tool_call>\n{'name': 'search', 'arguments': {'query': 'last days', 'limit': 3,}}\n</tool_call>".to_owned(),
    ] {
        is(Format::Xml, &answer, "", &[both()]);
    }
    // Two calls in the same tags, and a second one where the first was not ended.
    for between in ["</function>\n", "", "</function>\n</tool_call>\n"] {
        let answer = format!(
            "<tool_call>\n<function=search>\n{query}{limit}{between}<function=now>\n{ends}"
        );
        is(Format::Xml, &answer, "", &[both(), now()]);
    }
}

#[test]
fn what_is_cut_or_no_call_is_not_lost() {
    let cut = found(
        Format::Xml,
        &[],
        &["<tool_call>\n<function=search>\n<parameter=query>\nlast d"],
        false,
    );
    assert_eq!(cut.calls(), [searched(json!({"query": "last d"}))]);
    assert!(!cut.whole);
    for text in [
        "<tool_call>\n<function=fly>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=search>\nno tag",
        "<tool_call>\n<function=sear",
        "The form is `<function=now></function>`, is it not?",
        "```\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n```\nis a call.",
    ] {
        is(Format::Xml, text, text, &[]);
    }
    // A call among thoughts is one if the answer has nothing else.
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let thought = found(Format::Xml, &["I call.\n", call], &[], true);
    assert_eq!(
        (thought.thoughts.as_str(), thought.calls()),
        ("I call.", vec![now()])
    );
}
