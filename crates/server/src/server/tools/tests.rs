//! Protects calls of tools: they are found in every form, wherever the stream cuts the text, and all else stays text.

use std::path::Path;

use serde_json::{Value, json};

use super::marks::{CALL_BEGIN, SEPARATOR};
use super::*;
use crate::engine::ModelSource;
use crate::engine::chooser::Grammar;
use crate::gguf::{Array, Gguf, GgufWriter, Value as Meta};
use crate::tokenizer::{ChatTemplate, Message, Rendering, Tokenizer, ToolCall};

fn tools() -> Vec<Tool> {
    let body = json!({"tools": [
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "more": {},
            },
            "required": ["place"],
        }}},
        {"type": "function", "function": {"name": "clock"}},
    ]});
    let fields = Fields::of_body(&body).expect("it is an object");
    read(&fields)
        .expect("they are right")
        .expect("there are some")
        .all
}

/// The text and the calls of an answer that comes in these pieces.
fn parsed(format: Format, pieces: &[&str], whole: bool) -> (String, Vec<(String, String)>) {
    let mut parser = Parser::new(format, tools(), false);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish(whole));
    let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for delta in deltas {
        match delta {
            Delta::Thought(thought) => panic!("{thought} is no text of an answer"),
            Delta::Text(more) => text += &more,
            Delta::Call { index, name } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            Delta::Arguments { index, text } => {
                assert_eq!(index + 1, calls.len());
                calls[index].1 += &text;
            }
        }
    }
    (text, calls)
}

/// Holds an answer against what it is, cut at every place, and in single characters.
fn check(format: Format, answer: &str, text: &str, calls: &[(&str, Value)]) {
    let holds = |pieces: &[&str]| {
        let (found, found_calls) = parsed(format, pieces, true);
        assert_eq!(found, text, "{pieces:?}");
        let read = found_calls.iter().map(|(name, arguments)| {
            let arguments: Value = serde_json::from_str(arguments)
                .unwrap_or_else(|error| panic!("{error}: {arguments:?} of {pieces:?}"));
            (name.as_str(), arguments)
        });
        assert_eq!(read.collect::<Vec<_>>(), calls, "{pieces:?}");
    };
    for (at, _) in answer.char_indices() {
        holds(&[&answer[..at], &answer[at..]]);
    }
    let single: Vec<&str> = answer.split_inclusive(|_: char| true).collect();
    holds(&single);
}

#[test]
fn glms_calls_are_found_at_every_cut() {
    let answer = "I look.\n<tool_call>weather<arg_key>place</arg_key><arg_value>Köln \"Süd\" <b></arg_value>\
         <arg_key>days</arg_key><arg_value>3</arg_value></tool_call>";
    let call = ("weather", json!({"place": "Köln \"Süd\" <b>", "days": 3}));
    check(Format::Tagged, answer, "I look.", &[call]);
    let answer = "<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>12</arg_value>\n<arg_key>more</arg_key>\n\
         <arg_value>[1, {\"a\": null}]</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>";
    let calls = [
        ("weather", json!({"place": "12", "more": [1, {"a": null}]})),
        ("clock", json!({})),
    ];
    check(Format::Tagged, answer, "", &calls);
}

#[test]
fn calls_in_json_are_found_at_every_cut() {
    let answer = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"a <b>\"}}\n</tool_call>\n\
         <tool_call>{\"name\": \"clock\"}</tool_call>";
    let calls = [("weather", json!({"place": "a <b>"})), ("clock", json!({}))];
    check(Format::Json, answer, "", &calls);
}

#[test]
fn deepseeks_calls_are_found_at_every_cut() {
    let answer = "So:\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"place\": \"Köln\"}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let calls = [("weather", json!({"place": "Köln"})), ("clock", json!({}))];
    check(Format::DeepSeek, answer, "So:", &calls);
    let answer = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"place\": \"`x`\"}\n```\
         <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let calls = [("weather", json!({"place": "`x`"})), ("clock", json!({}))];
    check(Format::DeepSeekFenced, answer, "", &calls);
}

#[test]
fn text_without_calls_stays_as_it_is() {
    let answer = " a < b, <tool, <tool_cal and <｜tool▁ \n ";
    for format in [Format::Tagged, Format::Json, Format::DeepSeek] {
        check(format, answer, answer, &[]);
    }
    // A text that begins like a call and is none is not lost.
    check(
        Format::Json,
        "<tool_call>{no json}</tool_call>",
        "<tool_call>{no json}</tool_call>",
        &[],
    );
    check(Format::Tagged, "<tool_call>wea", "<tool_call>wea", &[]);
}

#[test]
fn a_call_that_is_cut_keeps_what_there_is() {
    let answer = "<tool_call>weather<arg_key>place</arg_key><arg_value>Kö";
    let (text, calls) = parsed(Format::Tagged, &[answer], false);
    assert_eq!(text, "");
    assert_eq!(
        calls,
        [("weather".to_owned(), "{\"place\": \"Kö\"}".to_owned())]
    );
}

#[test]
fn a_call_may_end_with_the_answer() {
    for (format, answer) in [
        (
            Format::Tagged,
            "<tool_call>weather<arg_key>place</arg_key><arg_value>x</arg_value>",
        ),
        (
            Format::Json,
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"x\"}}",
        ),
        (
            Format::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"place\": \"x\"}",
        ),
    ] {
        check(format, answer, "", &[("weather", json!({"place": "x"}))]);
    }
    check(
        Format::Tagged,
        "<tool_call>clock",
        "",
        &[("clock", json!({}))],
    );
}

#[test]
fn forms_are_known_by_their_templates() {
    assert_eq!(
        Format::of_template("x<tool_call>y<arg_key>"),
        Some(Format::Tagged)
    );
    assert_eq!(Format::of_template("x<tool_call>y"), Some(Format::Json));
    assert_eq!(
        Format::of_template("<tool_call>\\n<function=' + name + '>\\n<parameter="),
        Some(Format::Xml)
    );
    assert_eq!(Format::of_template(CALL_BEGIN), Some(Format::DeepSeek));
    let fenced = format!("{CALL_BEGIN}```json");
    assert_eq!(Format::of_template(&fenced), Some(Format::DeepSeekFenced));
    let llama =
        "<|start_header_id|>{{ '{\"name\": \"' + call.name + '\", ' }}{{ '\"parameters\": ' }}";
    assert_eq!(Format::of_template(llama), Some(Format::Llama));
    assert!(!Format::Llama.is_single(llama));
    let other = format!("{llama}<function={{{{ call.name }}}}>");
    assert_eq!(Format::of_template(&other), None);
    assert_eq!(Format::of_template("{{ messages }}"), None);
}

/// Chat templates of publishers in the folders that two variables name: the variable, the file and the form of calls.
const TEMPLATES: [(&str, &str, Format); 8] = [
    ("GLIMT_FIXTURES", "glm-4.7-flash", Format::Tagged),
    ("GLIMT_FIXTURES", "deepseek-v3.1", Format::DeepSeek),
    ("GLIMT_REAL", "Qwen-Qwen2.5-7B-Instruct", Format::Json),
    ("GLIMT_REAL", "Qwen-Qwen3-0.6B", Format::Json),
    ("GLIMT_REAL", "Qwen3-Coder", Format::Xml),
    (
        "GLIMT_REAL",
        "meta-llama-Llama-3.1-8B-Instruct",
        Format::Llama,
    ),
    (
        "GLIMT_REAL",
        "meta-llama-Llama-3.2-3B-Instruct",
        Format::Llama,
    ),
    (
        "GLIMT_REAL",
        "meta-llama-Llama-3.3-70B-Instruct",
        Format::Llama,
    ),
];

#[test]
fn what_publishers_templates_write_is_read_back() {
    for (variable, name, format) in TEMPLATES {
        let Some(root) = std::env::var_os(variable) else {
            eprintln!("skipped: {name} ({variable} not set)");
            continue;
        };
        let folder = match variable {
            "GLIMT_REAL" => "models/templates",
            _ => "templates",
        };
        let path = Path::new(&root).join(format!("{folder}/{name}.jinja"));
        let source = std::fs::read_to_string(path).expect("the file is there");
        assert_eq!(Format::of_template(&source), Some(format), "{name}");
        let template = ChatTemplate::parse(name, &source, "", "").expect("it can be parsed");
        let weather = json!({"place": "Köln <b>\n", "days": 2});
        let call = |name: &str, arguments: &Value| ToolCall {
            id: "c".to_owned(),
            name: name.to_owned(),
            arguments: arguments.as_object().expect("an object").clone(),
        };
        // Llama's templates refuse several calls, and leave out a text before one.
        let (is_single, text) = match format.is_single(&source) {
            true => (true, ""),
            false => (false, "I look."),
        };
        let mut tool_calls = vec![call("weather", &weather), call("clock", &json!({}))];
        tool_calls.truncate(if is_single { 1 } else { 2 });
        let messages = [
            Message::new("user", "Weather?"),
            Message {
                tool_calls,
                ..Message::new("assistant", text)
            },
        ];
        let rendered = template.render_with(&messages, &Rendering::default());
        let rendered = rendered.expect("it knows calls");
        let begin = match is_single {
            true => rendered.rfind("<|end_header_id|>").map(|at| at + 17),
            false => rendered.find(text),
        };
        let answer = rendered[begin.expect("it is there")..].trim();
        let ends = ["<｜end▁of▁sentence｜>", "<|im_end|>", "<|eot_id|>"];
        let answer = ends
            .iter()
            .fold(answer, |text, end| text.trim_end_matches(end));
        let calls = [("weather", weather), ("clock", json!({}))];
        let calls = &calls[..if is_single { 1 } else { 2 }];
        check(format, answer.trim_end(), text, calls);
    }
}

#[test]
fn a_forced_answer_is_a_call() {
    let gguf = ModelSource::Embedded.open().expect("it is whole");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("it has one");
    let tools = Tools {
        described: vec![],
        all: tools(),
        forced: true,
        parallel: true,
    };
    for (format, answer) in [
        (
            Format::Tagged,
            "weather<arg_key>place</arg_key><arg_value>a town</arg_value>",
        ),
        (
            Format::Tagged,
            "weather<arg_key>place</arg_key><arg_value>a < b</arg_value><arg_key>days</arg_key><arg_value>3</arg_value>\
             <arg_key>unit</arg_key><arg_value>c</arg_value>",
        ),
        (Format::Tagged, "clock"),
        (
            Format::Json,
            "{\"name\": \"weather\", \"arguments\": {\"place\": \"x\"}}",
        ),
        (
            Format::DeepSeekFenced,
            "weather\n```json\n{\"place\": \"x\"}\n```",
        ),
        (
            Format::Xml,
            "weather>\n<parameter=place>\na < b\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
             <parameter=unit>\nc\n</parameter>\n",
        ),
        (Format::Xml, "clock>\n"),
    ] {
        let grammar =
            Grammar::of(&tokenizer, forced(format, &tools, &tokenizer)).expect("it can be read");
        let tokens = tokenizer.encode(answer, false).expect("it has tokens");
        assert!(grammar.accepts(&tokens), "{answer}");
        for wrong in ["", "wind", "weather<arg_key>place</arg_key><arg_value>x"] {
            let tokens = tokenizer.encode(wrong, false).expect("it has tokens");
            assert!(!grammar.accepts(&tokens), "{wrong}");
        }
        let opening = format.opening();
        let whole = [opening.as_str(), answer];
        let (text, calls) = parsed(format, &whole, true);
        assert_eq!((text.as_str(), calls.len()), ("", 1), "{answer}");
        assert!(
            serde_json::from_str::<Value>(&calls[0].1).is_ok(),
            "{calls:?}"
        );
    }
}

#[test]
fn a_forced_call_follows_combined_schemas() {
    let gguf = ModelSource::Embedded.open().expect("it is whole");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("it has one");
    let named =
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/One"}}, "required": ["a"]});
    let other = json!({"properties": {"b": {"enum": ["x y", null]}}, "required": ["b"]});
    let definitions = json!({"A": named, "One": {"type": "integer", "minimum": 1, "maximum": 1}});
    let (a, b) = ("{\"a\": 1}", "{\"b\": \"x y\"}");
    let (tagged_a, tagged_b) = (
        "f<arg_key>a</arg_key><arg_value>1</arg_value>",
        "f<arg_key>b</arg_key><arg_value>x y</arg_value>",
    );
    for (schema, right, wrong) in [
        (
            json!({"$ref": "#/$defs/A"}),
            vec![(tagged_a, a)],
            vec![(tagged_b, b), ("f", "{}")],
        ),
        (
            json!({"type": "object", "anyOf": [{"$ref": "#/$defs/A"}, other]}),
            vec![(tagged_a, a), (tagged_b, b)],
            vec![("f", "{}")],
        ),
        (
            json!({"allOf": [{"$ref": "#/$defs/A"}], "properties": {"a": {"type": "integer"}}}),
            vec![(tagged_a, a)],
            vec![("f", "{}")],
        ),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/One"}, "c": {"$ref": "#/properties/a"}}, "required": ["c"]}),
            vec![(
                "f<arg_key>c</arg_key><arg_value>1</arg_value>",
                "{\"c\": 1}",
            )],
            vec![(
                "f<arg_key>c</arg_key><arg_value>2</arg_value>",
                "{\"c\": 2}",
            )],
        ),
    ] {
        let mut parameters = schema;
        parameters["$defs"] = definitions.clone();
        let tools = Tools {
            all: vec![Tool {
                name: "f".to_owned(),
                parameters: parameters.clone(),
            }],
            ..Tools::default()
        };
        for format in [Format::Tagged, Format::Json, Format::DeepSeek] {
            let written = |(tagged, json): &(&str, &str)| match format {
                Format::Tagged => (*tagged).to_owned(),
                Format::Json => format!("{{\"name\": \"f\", \"arguments\": {json}}}"),
                _ => format!("f{SEPARATOR}{json}"),
            };
            let grammar = Grammar::of(&tokenizer, forced(format, &tools, &tokenizer))
                .expect("it can be read");
            let accepts = |answer: &str| {
                let tokens = tokenizer.encode(answer, false).expect("it has tokens");
                grammar.accepts(&tokens)
            };
            for call in &right {
                assert!(accepts(&written(call)), "{} {parameters}", written(call));
            }
            for call in &wrong {
                assert!(!accepts(&written(call)), "{} {parameters}", written(call));
            }
        }
    }
}

/// The built-in vocabulary with all marks, each of which is a token of this kind.
fn with_marks(kind: i32) -> Tokenizer {
    let gguf = ModelSource::Embedded.open().expect("it is whole");
    let mut writer = GgufWriter::new(Vec::new());
    for (key, value) in gguf.metadata() {
        let mut value = value.clone();
        match &mut value {
            Meta::Array(Array::String(all)) if key == "tokenizer.ggml.tokens" => {
                all.extend(MARKS.map(str::to_owned));
            }
            Meta::Array(Array::I32(all)) if key == "tokenizer.ggml.token_type" => {
                all.extend(MARKS.map(|_| kind));
            }
            _ => {}
        }
        writer.metadata(key, value).expect("keys are unique");
    }
    let data = writer.begin_data().expect("memory takes it");
    let bytes = data.finish().expect("there are no tensors");
    let gguf = Gguf::from_bytes(bytes, "marks").expect("it is sound");
    Tokenizer::from_gguf(&gguf).expect("it has one")
}

#[test]
fn a_forced_call_has_the_tokens_of_marks() {
    let (control, user_defined) = (3, 4);
    for kind in [control, user_defined] {
        let tokenizer = with_marks(kind);
        let tools = Tools {
            all: tools(),
            ..Tools::default()
        };
        let accepts = |format, tokens: &[u32]| {
            let language = forced(format, &tools, &tokenizer);
            let grammar = Grammar::of(&tokenizer, language).expect("it can be read");
            grammar.accepts(tokens)
        };
        let encoded = |text: &str| tokenizer.encode(text, false).expect("it has tokens");
        let answer = "weather<arg_key>place</arg_key><arg_value>a < b</arg_value>\
             <arg_key>days</arg_key><arg_value>3</arg_value>";
        assert!(accepts(Format::Tagged, &encoded(answer)), "{kind}");
        // The answer spelled out character by character lacks the tokens of the marks.
        let spelled: Vec<u32> = answer
            .chars()
            .flat_map(|c| encoded(&c.to_string()))
            .collect();
        assert!(!accepts(Format::Tagged, &spelled), "{kind}");
        let answer = format!("weather{SEPARATOR}{{\"place\": \"x\"}}");
        assert!(accepts(Format::DeepSeek, &encoded(&answer)), "{kind}");
    }
}

#[test]
fn choices_of_tools_are_read() {
    let listed = json!([{"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "b"}}]);
    let choose = |choice: Value| {
        let body = json!({"tools": listed, "tool_choice": choice});
        read(&Fields::of_body(&body).expect("it is an object"))
    };
    assert_eq!(choose(json!("none")), Ok(None));
    for (choice, names, forced) in [
        (json!(null), 2, false),
        (json!("auto"), 2, false),
        (json!("required"), 2, true),
        (
            json!({"type": "function", "function": {"name": "b"}}),
            1,
            true,
        ),
        // As the API of responses, Mistral and Anthropic have it.
        (json!("any"), 2, true),
        (json!({"type": "auto"}), 2, false),
        (json!({"type": "required"}), 2, true),
        (json!({"type": "any"}), 2, true),
        (json!({"type": "function", "name": "b"}), 1, true),
        (json!({"type": "tool", "name": "b"}), 1, true),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "b"}},
            ]}}),
            1,
            true,
        ),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "a"}]}),
            1,
            false,
        ),
    ] {
        let found = choose(choice)
            .expect("it is right")
            .expect("there are some");
        assert_eq!((found.all.len(), found.forced), (names, forced));
        assert_eq!(Value::from(found.described), listed);
    }
    assert_eq!(choose(json!({"type": "none"})), Ok(None));
    for wrong in [
        json!("all"),
        json!(3),
        json!({"type": "function", "function": {"name": "c"}}),
        json!({"type": "function"}),
        json!({"type": "web_search"}),
        json!({"type": "allowed_tools", "tools": []}),
    ] {
        let error = choose(wrong.clone()).expect_err("it is wrong").json();
        let param = error["error"]["param"].as_str().unwrap_or_default();
        assert!(param.starts_with("tool_choice"), "{wrong}: {param}");
    }
    for (body, name) in [
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0].function",
        ),
        (json!({"tools": [{"type": "web"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "tools[0].function.name",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"functions": [{"name": "a"}]}), "functions"),
        (json!({"function_call": "auto"}), "function_call"),
    ] {
        let error =
            read(&Fields::of_body(&body).expect("it is an object")).expect_err("it is wrong");
        assert_eq!(error.json()["error"]["param"], name, "{body}");
    }
}
