//! Conversations for chat templates that know no tools: the system message tells of them, and calls and results are texts.

use serde_json::{Value, json};

use super::Format;
use super::marks::{
    CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, FUNCTION_END, GIGACHAT_BEGIN, KEY_BEGIN, KEY_END,
    KIMI_CALL_END, KIMI_CALLS_END, KIMI_SEPARATOR, PARAMETER, PARAMETER_END, SEPARATOR, TAG_BEGIN,
    TAG_END, VALUE_BEGIN, VALUE_END,
};
use crate::tokenizer::{Message, exact};

impl Format {
    /// A call in this form, with the arguments as JSON.
    fn example(self) -> String {
        let arguments = "{\"ARGUMENT\": VALUE}";
        match self {
            Self::Tagged => format!(
                "{TAG_BEGIN}NAME{KEY_BEGIN}ARGUMENT{KEY_END}{VALUE_BEGIN}VALUE{VALUE_END}{TAG_END}"
            ),
            Self::Json => json_call("NAME", arguments),
            Self::Xml => format!(
                "{}NAME>\n{PARAMETER}ARGUMENT>\nVALUE\n{PARAMETER_END}\n{FUNCTION_END}\n{TAG_END}",
                self.opening()
            ),
            Self::Kimi => format!(
                "{}NAME:0{KIMI_SEPARATOR}{arguments}{KIMI_CALL_END}{KIMI_CALLS_END}",
                self.opening()
            ),
            Self::GigaChat => {
                format!("{GIGACHAT_BEGIN}\n{{\"name\": \"NAME\", \"arguments\": {arguments}}}")
            }
            Self::Llama => format!("{{\"name\": \"NAME\", \"parameters\": {arguments}}}"),
            Self::DeepSeek => {
                format!("{CALLS_BEGIN}{CALL_BEGIN}NAME{SEPARATOR}{arguments}{CALL_END}{CALLS_END}")
            }
            Self::DeepSeekFenced => format!(
                "{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}NAME\n```json\n{arguments}\n```{CALL_END}{CALLS_END}"
            ),
        }
    }
}

fn json_call(name: &str, arguments: &str) -> String {
    let name = Value::from(name);
    format!("{TAG_BEGIN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{TAG_END}")
}

/// Tells of the tools in the system message.
pub(in crate::server) fn describe(messages: &mut Vec<Message>, tools: &[Value], format: Format) {
    let tools: String = tools.iter().map(|tool| format!("{tool}\n")).collect();
    let text = format!(
        "# Tools\n\nYou may call tools. Each line describes one:\n\n{tools}\n\
         To call a tool, end your answer with its name and its arguments in this form:\n\n{}\n\n\
         Then you are given what the tool returns.",
        format.example()
    );
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(first) if first.content.trim().is_empty() => first.content = text,
        Some(first) => first.content = format!("{}\n\n{text}", first.content),
        None => messages.insert(0, Message::new("system", text)),
    }
}

/// Gives earlier calls the ids that Kimi has learnt: the name of the tool and a number.
pub(in crate::server) fn number_calls(messages: &mut [Message]) {
    let mut known: Vec<(String, String)> = vec![];
    for message in messages {
        for call in &mut message.tool_calls {
            let id = format!("functions.{}:{}", call.name, known.len());
            known.push((std::mem::replace(&mut call.id, id.clone()), id));
        }
        if let Some(id) = &mut message.tool_call_id
            && let Some((_, new)) = known.iter().rev().find(|(old, _)| old == id)
        {
            id.clone_from(new);
        }
    }
}

/// Writes calls and results of tools as texts of those who speak.
pub(in crate::server) fn as_texts(messages: &mut [Message]) {
    for message in messages {
        if message.role == "tool" {
            message.role = "user".to_owned();
            message.content = format!("<tool_response>\n{}\n</tool_response>", message.content);
            message.tool_call_id = None;
        }
        let calls = std::mem::take(&mut message.tool_calls).into_iter();
        let calls = calls.map(|call| json_call(&call.name, &exact::json(&json!(call.arguments))));
        let texts = [message.content.clone()].into_iter().chain(calls);
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        message.content = texts.join("\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::ToolCall;

    #[test]
    fn the_system_message_tells_of_tools() {
        let tools = [json!({"type": "function", "function": {"name": "clock"}})];
        for format in [
            Format::Tagged,
            Format::Json,
            Format::Xml,
            Format::DeepSeek,
            Format::DeepSeekFenced,
            Format::Kimi,
            Format::GigaChat,
            Format::Llama,
        ] {
            let mut messages = vec![Message::new("user", "Hi")];
            describe(&mut messages, &tools, format);
            assert_eq!((messages.len(), messages[0].role.as_str()), (2, "system"));
            let text = &messages[0].content;
            assert!(text.contains(&tools[0].to_string()), "{text}");
            assert!(text.contains(&format.opening()), "{text}");
            messages[0].content = "Be brief.".to_owned();
            describe(&mut messages, &tools, format);
            assert!(messages[0].content.starts_with("Be brief.\n\n# Tools"));
        }
    }

    #[test]
    fn calls_are_numbered() {
        let call = |id: &str, name: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: json!({}).as_object().cloned().unwrap_or_default(),
        };
        let result = |id: &str| Message {
            tool_call_id: Some(id.to_owned()),
            ..Message::new("tool", "x")
        };
        let mut messages = [
            Message {
                tool_calls: vec![call("call_a", "now"), call("call_b", "search")],
                ..Message::new("assistant", "")
            },
            result("call_b"),
            result("unknown"),
        ];
        number_calls(&mut messages);
        assert_eq!(messages[0].tool_calls[0].id, "functions.now:0");
        assert_eq!(
            messages[1].tool_call_id.as_deref(),
            Some("functions.search:1")
        );
        assert_eq!(messages[2].tool_call_id.as_deref(), Some("unknown"));
    }

    #[test]
    fn calls_and_results_become_texts() {
        let call = ToolCall {
            id: "c".to_owned(),
            name: "clock".to_owned(),
            arguments: [("zone".to_owned(), json!("CET"))].into_iter().collect(),
        };
        let mut messages = [
            Message {
                tool_calls: vec![call],
                ..Message::new("assistant", "I look.")
            },
            Message {
                tool_call_id: Some("c".to_owned()),
                ..Message::new("tool", "noon")
            },
        ];
        as_texts(&mut messages);
        let expected = "I look.\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\":\"CET\"}}\n</tool_call>";
        assert_eq!(messages[0].content, expected);
        assert!(messages[0].tool_calls.is_empty());
        assert_eq!(messages[1].role, "user");
        assert_eq!(
            messages[1].content,
            "<tool_response>\nnoon\n</tool_response>"
        );
    }
}
