//! Inputs of tools that have a grammar of their own.

use serde_json::Value;

use super::{Format, Tool, Tools};
use crate::engine::chooser::regex_in_lark;

/// The keyword for the grammar of a text in a tool's schema. Its value has `syntax` and `definition`, as OpenAI's custom tools have them.
pub(in crate::server) const GRAMMAR: &str = "grammar";

/// The syntax and the definition of the grammar that a schema demands.
fn grammar(schema: &Value) -> Option<(&str, &str)> {
    let grammar = schema.get(GRAMMAR)?;
    Some((
        grammar.get("syntax")?.as_str()?,
        grammar.get("definition")?.as_str()?,
    ))
}

/// The rule `name` in the notation of Lark for a text with a grammar and the mark `end` behind it.
pub(super) fn rule(name: &str, schema: &Value, end: &str) -> Option<String> {
    match grammar(schema)? {
        // A mark that is no token is told from the text by where the text may end.
        ("regex", regex) if end.starts_with('"') => {
            let regex = regex_in_lark(regex);
            Some(format!("{name}[suffix={end}]: /{regex}/"))
        }
        ("regex", regex) => Some(format!("{name}: /{}/ {end}", regex_in_lark(regex))),
        ("lark", lark) => Some(format!("{name}: %lark {{\n{lark}\n}} {end}")),
        _ => None,
    }
}

/// The grammars that an answer with these tools is not kept to: all if no call is demanded, and those in Lark where texts are written as JSON.
pub(in crate::server) fn not_enforced(format: Format, tools: &Tools) -> Vec<String> {
    let has_texts = matches!(format, Format::Tagged | Format::Xml);
    let is_kept = |syntax: &str| tools.forced && (has_texts || syntax == "regex");
    let loose = |tool: &Tool| {
        let inputs = tool.parameters.get("properties")?.as_object()?;
        let mut grammars = inputs.values().filter_map(grammar);
        grammars
            .any(|(syntax, _)| !is_kept(syntax))
            .then(|| format!("grammar of the tool {}", tool.name))
    };
    tools.all.iter().filter_map(loose).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::forced;
    use super::*;
    use crate::engine::ModelSource;
    use crate::engine::chooser::{Grammar, Vocabulary};
    use crate::tokenizer::Tokenizer;

    fn tools(syntax: &str, definition: &str) -> Tools {
        let mut input =
            json!({"type": "string", GRAMMAR: {"syntax": syntax, "definition": definition}});
        if syntax == "regex" {
            input["pattern"] = format!("^(?:{definition})$").into();
        }
        let tool = Tool {
            name: "f".to_owned(),
            parameters: json!({"type": "object", "properties": {"input": input}, "required": ["input"]}),
        };
        Tools {
            all: vec![tool],
            forced: true,
            ..Tools::default()
        }
    }

    #[test]
    fn a_forced_input_follows_its_grammar() {
        let gguf = ModelSource::Embedded.open().expect("it is whole");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("it has one");
        let vocabulary = Vocabulary::new(&tokenizer).expect("it is whole");
        let patch = "start: begin line+ \"end\" NL?\nbegin: \"begin\" NL\nline: \"+\" /[^\\n]*/ NL\nNL: /\\n/";
        let (right, wrong) = ("begin\n+a {b} \"c\"\nend", "begin\nend");
        for (syntax, definition, right, wrong) in [
            ("regex", "[0-9]{3}", "123", "12"),
            ("regex", "a/b|\\d+", "a/b", "a/b1"),
            ("lark", patch, right, wrong),
            ("lark", "start: INT\n%import common.INT", "17", "x"),
        ] {
            let tools = tools(syntax, definition);
            for format in [Format::Tagged, Format::Json, Format::DeepSeek] {
                let is_loose = syntax == "lark" && format != Format::Tagged;
                assert_eq!(
                    !not_enforced(format, &tools).is_empty(),
                    is_loose,
                    "{definition}"
                );
                let language = forced(format, &tools, &tokenizer);
                let grammar = Grammar::new(&vocabulary, language).expect("it can be read");
                let accepts = |input: &str| {
                    let arguments = json!({ "input": input }).to_string().replace(":\"", ": \"");
                    let call = match format {
                        Format::Tagged => {
                            format!("f<arg_key>input</arg_key><arg_value>{input}</arg_value>")
                        }
                        Format::Json => format!("{{\"name\": \"f\", \"arguments\": {arguments}}}"),
                        _ => format!("f{}{arguments}", "<｜tool▁sep｜>"),
                    };
                    let tokens = tokenizer.encode(&call, false).expect("it has tokens");
                    grammar.accepts(&tokens)
                };
                assert!(accepts(right), "{format:?} {definition}: {right}");
                assert_eq!(accepts(wrong), is_loose, "{format:?} {definition}: {wrong}");
            }
        }
    }

    #[test]
    fn grammars_are_kept_to_only_in_demanded_calls() {
        let free = Tools {
            forced: false,
            ..tools("regex", "a")
        };
        assert_eq!(
            not_enforced(Format::Tagged, &free),
            ["grammar of the tool f"]
        );
        assert_eq!(not_enforced(Format::Tagged, &Tools::default()), [""; 0]);
    }
}
