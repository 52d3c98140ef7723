//! Protects calls with other spellings, other keys of JSON and several tags left out side by side, and the forms of Kimi and GigaChat.

use serde_json::{Value, json};

use super::testing::{Random, cut, found};
use super::*;

/// Holds an answer against what it is, in single characters and in other pieces.
#[track_caller]
fn is(format: Format, answer: &str, text: &str, calls: &[(&str, Value)]) {
    let first = found(format, &[], &[answer], true);
    assert_eq!(
        (first.text.as_str(), first.calls()),
        (text, calls.to_vec()),
        "{answer}"
    );
    let single: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
    assert_eq!(found(format, &[], &single, true), first, "{answer}");
    let mut random = Random(answer.len() as u64);
    for _ in 0..8 {
        let pieces = cut(answer, &mut random);
        assert_eq!(found(format, &[], &pieces, true), first, "{pieces:?}");
    }
}

fn both() -> [(&'static str, Value); 1] {
    [("search", json!({"query": "last days", "limit": 3}))]
}

fn now() -> (&'static str, Value) {
    ("now", json!({}))
}

const PAIRS: &str = "<arg_key>query</arg_key><arg_value>last days</arg_value><arg_key>limit</arg_key><arg_value>3</arg_value>";
const OBJECT: &str = "{\"query\": \"last days\", \"limit\": 3}";

#[test]
fn two_tags_that_are_missing_side_by_side_lose_nothing() {
    let second = "<arg_key>limit</arg_key><arg_value>3</arg_value>";
    let first = "<arg_key>query</arg_key><arg_value>last days</arg_value>";
    for answer in [
        format!("<tool_call>search<arg_key>query last days</arg_value>{second}</tool_call>"),
        format!("<tool_call>search<arg_key>query\nlast days</arg_value>{second}</tool_call>"),
        format!("<tool_call>search<arg_key>querylast days</arg_value>{second}</tool_call>"),
        format!("<tool_call>search<arg_key>query</arg_key>last days{second}</tool_call>"),
        format!("<tool_call>searchquery<arg_value>last days</arg_value>{second}</tool_call>"),
        format!("<tool_call>search{first}limit<arg_value>3</tool_call>"),
        format!("<tool_call>search{first}<arg_key>limit 3</arg_value></tool_call>"),
        format!("<tool_call>search{first}<arg_key>limit 3</tool_call>"),
        format!("<tool_call>search{first}<arg_key>limit</arg_key>3</tool_call>"),
        "<tool_call>search<arg_key>query</arg_key><arg_value>last days limit</arg_key><arg_value>3</arg_value></tool_call>".to_owned(),
        "<tool_call>search<arg_key>query</arg_key><arg_value>last days\nlimit</arg_key><arg_value>3</arg_value></tool_call>".to_owned(),
    ] {
        is(Format::Tagged, &answer, "", &both());
    }
    // A word that is no key, and one that no value follows.
    for value in [
        "the\nword</arg_key><arg_value>x",
        "the limit",
        "the limit</arg_key> x",
        "a lim",
    ] {
        let answer = format!(
            "<tool_call>search<arg_key>query</arg_key><arg_value>{value}</arg_value></tool_call>"
        );
        is(
            Format::Tagged,
            &answer,
            "",
            &[("search", json!({"query": value}))],
        );
    }
}

#[test]
fn names_may_have_quotes_and_brackets() {
    for name in [
        "\"search\"",
        "'search'",
        "`search`",
        "search:",
        "search()",
        "functions.search:0",
        "\"functions.search\"",
    ] {
        let answer = format!("<tool_call>{name}{PAIRS}</tool_call>");
        is(Format::Tagged, &answer, "", &both());
        let answer = format!("<tool_call>{name}\n{OBJECT}</tool_call>");
        is(Format::Tagged, &answer, "", &both());
    }
    let answer = format!("<tool_call>search({OBJECT})</tool_call>");
    is(Format::Tagged, &answer, "", &both());
    is(Format::Tagged, "<tool_call>now()</tool_call>", "", &[now()]);
    for text in [
        "The <tool_call>: now it begins.",
        "<tool_call>now: the time</tool_call>",
        "<tool_call>`",
        "<tool_call>search2</tool_call>",
    ] {
        is(Format::Tagged, text, text, &[]);
    }
}

#[test]
fn json_may_have_other_keys() {
    for json in [
        format!("{{\"tool\": \"search\", \"parameters\": {OBJECT}}}"),
        format!("{{\"tool_name\": \"search\", \"args\": {OBJECT}}}"),
        format!("{{\"function_name\": \"search\", \"arguments\": {OBJECT}}}"),
        format!("{{\"function\": \"search\", \"tool_input\": {OBJECT}}}"),
        format!("{{\"name\": \"search\", \"input\": {OBJECT}}}"),
        format!("{{\"search\": {OBJECT}}}"),
        "{\"name\": \"search\", \"query\": \"last days\", \"limit\": 3}".to_owned(),
        format!("{{\"id\": 1, \"name\": \"search\", \"arguments\": {OBJECT}}}"),
    ] {
        for format in [Format::Tagged, Format::Json] {
            let answer = format!("<tool_call>{json}</tool_call>");
            is(format, &answer, "", &both());
        }
    }
    let two = [both().to_vec(), vec![now()]].concat();
    let call = format!("{{\"name\": \"search\", \"arguments\": {OBJECT}}}");
    for between in ["", "\n", ",", ",\n"] {
        let answer = format!(
            "<tool_call>{call}{between}{{\"name\": \"now\", \"arguments\": {{}}}}</tool_call>"
        );
        is(Format::Json, &answer, "", &two);
    }
}

#[test]
fn a_call_that_ends_in_a_key_is_cut_there() {
    let first = "<tool_call>search<arg_key>query</arg_key><arg_value>x</arg_value>";
    for end in ["<arg_key>", "<arg_key>lim", "<arg_key>limit 3"] {
        let answer = format!("{first}{end}");
        is(
            Format::Tagged,
            &answer,
            "",
            &[("search", json!({"query": "x"}))],
        );
        assert!(!found(Format::Tagged, &[], &[&answer], true).whole);
    }
    // Nothing but a name is no call of a tool that needs arguments.
    for (format, answer) in [
        (Format::Tagged, "<tool_call>search"),
        (
            Format::DeepSeek,
            "<｜tool▁call▁begin｜>search<｜tool▁sep｜>",
        ),
    ] {
        is(format, answer, answer, &[]);
    }
}

#[test]
fn marks_of_deepseek_have_other_spellings() {
    let call = |begins: [&str; 2], separator: &str, ends: [&str; 2]| {
        format!(
            "{}{}search{separator}{OBJECT}{}{}",
            begins[0], begins[1], ends[0], ends[1]
        )
    };
    for answer in [
        call(
            ["<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"],
            "<｜tool_sep｜>",
            ["<｜tool_call_end｜>", "<｜tool_calls_end｜>"],
        ),
        call(
            ["<|tool_calls_begin|>", "<|tool_call_begin|>"],
            "<|tool_sep|>",
            ["<|tool_call_end|>", "<|tool_calls_end|>"],
        ),
        call(
            ["<｜tool calls begin｜>", "<｜tool▁call▁begin｜>"],
            "<｜tool▁sep｜>",
            ["<｜tool▁call▁end｜>", ""],
        ),
        call(
            ["<｜tool▁calls｜>", "<｜tool▁call▁begin｜>"],
            "<|tool▁sep|>",
            ["<|tool▁call▁end|>", "<|tool▁calls▁end|>"],
        ),
    ] {
        for format in [Format::DeepSeek, Format::DeepSeekFenced] {
            is(format, &answer, "", &both());
        }
        let old = answer
            .replace("search", "function<｜tool▁sep｜>search\n")
            .replace("_sep", "▁sep");
        let old = old.replacen("<|tool▁sep|>{", "```json\n{", 1);
        let old = old.replacen("<｜tool▁sep｜>{", "```json\n{", 1);
        is(Format::DeepSeekFenced, &old, "", &both());
    }
    let text = "The mark `<|tool_calls_begin|>` begins calls.";
    is(Format::DeepSeek, text, text, &[]);
}

#[test]
fn calls_of_kimi_are_read() {
    let call = |name: &str, arguments: &str| {
        format!("<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}")
    };
    let (begin, end) = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
    let first = call("functions.search:0", OBJECT);
    let second = call("functions.now:1", "{}");
    let two = [both().to_vec(), vec![now()]].concat();
    for (answer, calls) in [
        (
            format!("{begin}{first}<|tool_call_end|>{end}"),
            both().to_vec(),
        ),
        (
            format!("{begin} {first} <|tool_call_end|> {end}"),
            both().to_vec(),
        ),
        (format!("{begin}{first}"), both().to_vec()),
        (format!("{first}<|tool_call_end|>"), both().to_vec()),
        (
            format!("{begin}{}<|tool_call_end|>{end}", call("search", OBJECT)),
            both().to_vec(),
        ),
        (
            format!("{begin}{first}<|tool_call_end|>{second}<|tool_call_end|>{end}"),
            two.clone(),
        ),
        (format!("{begin}{first}{second}{end}"), two),
    ] {
        is(Format::Kimi, &answer, "", &calls);
        is(Format::Kimi, &format!("I look.{answer}"), "I look.", &calls);
    }
    let unknown = format!(
        "{begin}{}<|tool_call_end|>{end}",
        call("functions.serch:0", "{}")
    );
    is(Format::Kimi, &unknown, &unknown, &[]);
}

#[test]
fn calls_of_gigachat_are_read() {
    let call =
        format!("function call<|role_sep|>\n{{\"name\": \"search\", \"arguments\": {OBJECT}}}");
    for answer in [
        format!("<|message_sep|>\n\n{call}"),
        format!("<|message_sep|>\n\n{call}<|message_sep|>"),
        call.clone(),
    ] {
        is(Format::GigaChat, &answer, "", &both());
        is(
            Format::GigaChat,
            &format!("I look.{answer}"),
            "I look.",
            &both(),
        );
    }
    let text = "A function call<|role_sep|> is a role.";
    is(Format::GigaChat, text, text, &[]);
}
