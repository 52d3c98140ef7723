//! Protects what holds for any answer: valid arguments of known tools, the same in all pieces, and no text that is lost.

use super::marks::*;
use super::testing::{Random, cut, found};
use super::*;

/// Damages an answer: leaves out, doubles, replaces or cuts one of its parts.
fn damage(parts: &mut Vec<String>, marks: &[&str], random: &mut Random) {
    if parts.is_empty() {
        return;
    }
    let at = random.below(parts.len());
    match random.below(7) {
        0 => drop(parts.remove(at)),
        1 => parts.insert(at, parts[at].clone()),
        2 => parts[at] = marks[random.below(marks.len())].to_owned(),
        3 => parts.insert(at, marks[random.below(marks.len())].to_owned()),
        4 => {
            let length = random.below(parts[at].chars().count() + 1);
            parts[at] = parts[at].chars().take(length).collect();
        }
        5 => parts.truncate(at),
        _ => {
            let others = [
                " ", "\n", "x", "`", "```\n", "{", "}", "\"", "now", "query", "é",
            ];
            parts.insert(at, others[random.below(others.len())].to_owned());
        }
    }
}

/// Reads damaged answers of one form: in any pieces the same, with valid arguments of known tools, and without losing a text beside calls.
fn survives(format: Format, parts: &[&str], marks: &[&str], seed: u64) {
    let mut random = Random(seed);
    for _ in 0..400 {
        let mut damaged: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        for _ in 0..random.below(4) {
            damage(&mut damaged, marks, &mut random);
        }
        let answer = damaged.concat();
        let whole = random.below(2) == 0;
        let split = answer
            .char_indices()
            .nth(random.below(answer.len() + 1))
            .map_or(0, |(at, _)| at);
        let (thoughts, text) = match random.below(4) {
            0 => answer.split_at(split),
            _ => ("", answer.as_str()),
        };
        let first = found(format, &[thoughts], &[text], whole);
        for (name, arguments) in first.calls() {
            assert!(["search", "search_web", "now"].contains(&name), "{answer}");
            assert!(arguments.is_object(), "{arguments} of {answer}");
        }
        if first.calls.is_empty() {
            assert_eq!(format!("{}{}", first.thoughts, first.text), answer);
            assert!(!first.whole, "{answer}");
        }
        for _ in 0..3 {
            let (thoughts, text) = (cut(thoughts, &mut random), cut(text, &mut random));
            let again = found(format, &thoughts, &text, whole);
            assert_eq!(again, first, "{thoughts:?} {text:?} {whole}");
        }
    }
}

const TAGS: [&str; 6] = [
    TAG_BEGIN,
    TAG_END,
    KEY_BEGIN,
    KEY_END,
    VALUE_BEGIN,
    VALUE_END,
];

#[test]
fn damaged_tagged_calls_are_read_the_same_in_any_pieces() {
    let glm = [
        "I look.\n",
        "<tool_call>",
        "search",
        "<arg_key>",
        "query",
        "</arg_key>",
        "<arg_value>",
        "last days",
        "</arg_value>",
        "<arg_key>",
        "limit",
        "</arg_key>",
        "<arg_value>",
        "3",
        "</arg_value>",
        "<arg_key>",
        "note",
        "</arg_key>",
        "<arg_value>",
        "null",
        "</arg_value>",
        "</tool_call>",
        "\n",
        "<tool_call>",
        "now",
        "</tool_call>",
    ];
    survives(Format::Tagged, &glm, &TAGS, 1);
}

#[test]
fn damaged_calls_of_json_are_read_the_same_in_any_pieces() {
    let json = [
        "I look.\n",
        "<tool_call>",
        "{",
        "\"name\": ",
        "\"search\"",
        ", ",
        "\"arguments\": ",
        "{\"query\": ",
        "\"last ",
        "days\"",
        ", \"tags\": ",
        "[\"a\", ",
        "1.5",
        "]",
        "}",
        "}",
        "</tool_call>",
        "<tool_call>",
        "{\"name\": ",
        "\"now\"",
        "}",
        "</tool_call>",
    ];
    survives(Format::Json, &json, &TAGS, 2);
    survives(Format::Tagged, &json, &TAGS, 3);
}

#[test]
fn damaged_calls_of_deepseek_are_read_the_same_in_any_pieces() {
    let marks = [CALLS_BEGIN, CALL_BEGIN, CALL_END, CALLS_END, SEPARATOR];
    let deepseek = [
        "I look.",
        CALLS_BEGIN,
        CALL_BEGIN,
        "search",
        SEPARATOR,
        "{\"query\": ",
        "\"last days\"",
        ", \"limit\": ",
        "3",
        "}",
        CALL_END,
        CALL_BEGIN,
        "function",
        SEPARATOR,
        "now",
        "\n```json\n",
        "{",
        "}",
        "\n```",
        CALL_END,
        CALLS_END,
    ];
    survives(Format::DeepSeek, &deepseek, &marks, 4);
}

#[test]
fn damaged_calls_of_qwen3_coder_are_read_the_same_in_any_pieces() {
    let marks = [
        TAG_BEGIN,
        TAG_END,
        FUNCTION_END,
        PARAMETER_END,
        "<function=search>",
        "<function=",
        "<parameter=query>",
        "<parameter=",
        "\n",
        "\r\n",
    ];
    let coder = [
        "I look.\n",
        "<tool_call>",
        "\n",
        "<function=",
        "search",
        ">\n",
        "<parameter=",
        "query",
        ">\n",
        "last\ndays",
        "\n",
        "</parameter>",
        "\n<parameter=",
        "limit>",
        "\n3",
        "\n</parameter>\n",
        "<parameter=note>\n",
        "null",
        "\n</parameter>\n",
        "</function>",
        "\n",
        "</tool_call>",
        "\n<tool_call>\n",
        "<function=now>\n",
        "</function>\n",
        "</tool_call>",
    ];
    survives(Format::Xml, &coder, &marks, 5);
    survives(Format::Xml, &["{\"name\": ", "\"now\"}"], &marks, 6);
}
