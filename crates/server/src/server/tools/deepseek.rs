//! Protects calls as DeepSeek's models really write them: with marks left out, doubled or spoken of.

use serde_json::json;

use super::testing::{is, now, searched};
use super::*;

/// The marks of DeepSeek's calls: of all and of one, and their ends.
const DEEPSEEK: [&str; 4] = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁end｜>",
];
const DEEPSEEK_CALL: &str = "search<｜tool▁sep｜>{\"query\": \"last days\"}";
const DEEPSEEK_OLD: &str = "function<｜tool▁sep｜>search\n```json\n{\"query\": \"last days\"}\n```";

#[test]
fn deepseek_leaves_marks_out() {
    let [all, one, all_end, one_end] = DEEPSEEK;
    let (call, old) = (DEEPSEEK_CALL, DEEPSEEK_OLD);
    let first = || searched(json!({"query": "last days"}));
    for answer in [
        format!("{all}{one}{call}{one_end}{all_end}"),
        format!("{all}{one}{call}{one_end}"),
        format!("{all}{one}{call}{all_end}"),
        format!("{all}{one}{call}"),
        format!("{one}{call}"),
        format!("{all}{call}{all_end}"),
        format!("{all}{all}{one}{one}{call}{one_end}{one_end}{all_end}{all_end}"),
        format!("{all}{one}search{{\"query\": \"last days\"}}{one_end}"),
        format!("{all}{one}search<｜tool▁sep｜>{{\"query\": \"last days\"{one_end}{all_end}"),
        format!("{all}{one}search<｜tool▁sep｜>{{\"query\": \"last days{one_end}{all_end}"),
        format!(
            "{all}{one}search<｜tool▁sep｜>```json\n{{\"query\": \"last days\"}}\n```{one_end}"
        ),
        format!("{all}{one}search<｜tool▁sep｜>{{'query': 'last days'}}{one_end}"),
        format!("{all}{one}functions.{call}{one_end}"),
        format!("{all}{one}{old}{one_end}{all_end}"),
        format!("{all}{one}{old}"),
        format!("{all}{one}{}{one_end}", old.trim_end_matches("\n```")),
        format!(
            "{all}{one}search<｜tool▁sep｜>\"{{\\\"query\\\": \\\"last days\\\"}}\"{one_end}{all_end}"
        ),
        format!(
            "{all}{one}{{\"name\": \"search\", \"arguments\": {{\"query\": \"last days\"}}}}{one_end}{all_end}"
        ),
        format!(
            "{all}{one}function<｜tool▁sep｜>{{\"name\": \"search\", \"arguments\": {{\"query\": \"last days\"}}}}{one_end}{all_end}"
        ),
    ] {
        for format in [Format::DeepSeek, Format::DeepSeekFenced] {
            is(format, &answer, "", &[first()]);
        }
    }
}

#[test]
fn deepseek_leaves_marks_out_between_calls_and_where_there_are_no_arguments() {
    let [all, one, all_end, one_end] = DEEPSEEK;
    let (call, old) = (DEEPSEEK_CALL, DEEPSEEK_OLD);
    let first = || searched(json!({"query": "last days"}));
    for (answer, calls) in [
        (
            format!("{all}{one}{call}{one}{call}{one_end}"),
            vec![first(), first()],
        ),
        (
            format!("{all}{one}{call}\n{one}{old}{all_end}"),
            vec![first(), first()],
        ),
        (
            format!("{all}{one}now<｜tool▁sep｜>{{}}{one_end}{one}{call}"),
            vec![now(), first()],
        ),
        (
            format!("{all}{one}now<｜tool▁sep｜>{one_end}{all_end}"),
            vec![now()],
        ),
        (
            format!("{all}{one}now{one_end}{one}{call}{one_end}"),
            vec![now(), first()],
        ),
        (format!("{all}{one}now<｜tool▁sep｜>"), vec![now()]),
        (
            format!("{all}{one}now<｜tool▁sep｜>null{one_end}{all_end}"),
            vec![now()],
        ),
    ] {
        for format in [Format::DeepSeek, Format::DeepSeekFenced] {
            is(format, &answer, "", &calls);
        }
    }
}

#[test]
fn a_remark_before_the_end_of_a_call_is_no_text() {
    let [all, one, all_end, one_end] = DEEPSEEK;
    let call = DEEPSEEK_CALL;
    let calls = [searched(json!({"query": "last days"}))];
    for remark in [" // now", "\n# Looked for today.\n", "; done", "\n```\nok"] {
        let answer = format!("{all}{one}{call}{remark}{one_end}{all_end}");
        is(Format::DeepSeek, &answer, "", &calls);
        let json = r#"{"name": "search", "arguments": {"query": "last days"}}"#;
        let answer = format!("<tool_call>{json}{remark}</tool_call>");
        is(Format::Json, &answer, "", &calls);
        is(Format::Tagged, &answer, "", &calls);
        let answer = format!("<tool_call>search{{\"query\": \"last days\"}}{remark}</tool_call>");
        is(Format::Tagged, &answer, "", &calls);
    }
    // Without the mark of the end, or behind a paragraph, a text belongs to the answer.
    for text in ["\nI have looked.", "\n\nI have looked."] {
        is(
            Format::DeepSeek,
            &format!("{all}{one}{call}{text}"),
            text,
            &calls,
        );
    }
    let long = format!(" {}", "word ".repeat(60).trim_end());
    is(
        Format::DeepSeek,
        &format!("{all}{one}{call}{long}"),
        &long,
        &calls,
    );
}

#[test]
fn deepseek_may_speak_of_marks() {
    let call = "search<｜tool▁sep｜>{\"query\": \"last days\"}";
    let (all, one) = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>");
    let (all_end, one_end) = ("<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>");
    for text in [
        format!("{all}{one}serch<｜tool▁sep｜>{{\"query\": \"x\"}}{one_end}{all_end}"),
        format!("{all}{one}function<｜tool▁sep｜>serch\n```json\n{{}}\n```{one_end}{all_end}"),
        format!("{all}{all_end}"),
        format!("The mark `{all}` begins calls."),
        format!("{all} begins calls."),
        format!("{one}search<｜tool▁sep｜>query: x{one_end}"),
    ] {
        is(Format::DeepSeek, &text, &text, &[]);
    }
    is(
        Format::DeepSeek,
        &format!("I look.\n{one}{call}{one_end}\nI wait."),
        "I look.\nI wait.",
        &[searched(json!({"query": "last days"}))],
    );
}
