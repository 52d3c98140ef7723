//! A chat template from a file: it is refused with a reason, or what it renders is bounded in time and memory.
//!
//! An input is a template, and after a byte of zero what the user says. Its first byte says what else is in the conversation.

#![no_main]

use glimt::tokenizer::{ChatTemplate, Message, Rendering, ToolCall};
use glimt_fuzz::{TEMPLATE, container, file, metadata, others_may_panic, seeds};
use libfuzzer_sys::fuzz_target;

/// Bytes that a template renders at most, of messages as short as these.
const MOST: usize = 64 << 20;

fn messages(flags: u8, said: &str) -> Vec<Message> {
    let mut messages = vec![];
    if flags & 1 != 0 {
        messages.push(Message::new("system", "Be brief."));
    }
    messages.push(Message::new("user", said));
    if flags & 2 != 0 {
        let mut answer = Message::new("assistant", "Let me look.");
        answer.reasoning_content = Some("Where is it?".to_owned());
        answer.tool_calls = vec![ToolCall {
            id: "call_1".to_owned(),
            name: "look".to_owned(),
            arguments: serde_json::json!({"where": said, "deep": [1, 2.5, null, true]})
                .as_object()
                .cloned()
                .unwrap_or_default(),
        }];
        messages.push(answer);
        messages.push(Message::new("user", "And?"));
    }
    messages
}

fuzz_target!(
    init: {
        others_may_panic();
        seeds(|| {
        let own = |flags: u8, text: &str| [&[flags], text.as_bytes(), b"\0Hello <|user|> there"].concat();
        vec![
            ("own", own(31, TEMPLATE)),
            ("loops", own(3, "{% for i in range(9) %}{% set ns = namespace(s='a') %}{% set ns.s = ns.s ~ ns.s %}{{ ns.s|upper }}{{ loop.index }}{% if i > 3 %}{% break %}{% endif %}{% endfor %}")),
            ("filters", own(1, "{{ messages[0]['content'].split(' ')|join('-')|replace('a', 'b')|trim }}{{ '%5d'|format(3) }}{{ [3,1]|sort|tojson(indent=2) }}{{ 'x' * 3 }}{{ 'ab'.startswith('a') }}{{ messages|map(attribute='role')|list|unique|join }}")),
            ("macros", own(5, "{% macro f(x) -%}{% if x %}{{ f(x - 1) }}{{ x }}{% endif %}{%- endmacro %}{{ f(4) }}{{ raise_exception('no') if false }}{{ strftime_now('%Y') }}")),
        ]
    });
    },
    |data: &[u8]| {
        let Some((&flags, rest)) = data.split_first() else {
            return;
        };
        let mut parts = rest.splitn(2, |byte| *byte == 0);
        let mut part = || String::from_utf8_lossy(parts.next().unwrap_or(b"hi")).into_owned();
        let (source, said) = (part(), part());
        let mut pairs = metadata(&source);
        pairs.retain(|(key, _)| !key.starts_with("deepseek2"));
        let gguf = file(&pairs).and_then(container).expect("any text can be a template");
        let Ok(Some(template)) = ChatTemplate::from_gguf(&gguf) else {
            return;
        };
        let tool = serde_json::json!({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"where": {"type": "string"}}}}});
        let rendering = Rendering {
            add_generation_prompt: flags & 4 != 0,
            think: (flags & 8 != 0 && template.supports_thinking()).then_some(flags & 64 != 0),
            tools: if flags & 16 != 0 { vec![tool] } else { vec![] },
            ..Rendering::default()
        };
        match template.render_with(&messages(flags, &said), &rendering) {
            Ok(text) => assert!(text.len() <= MOST, "{} bytes", text.len()),
            Err(error) => assert!(error.to_string().len() < 1 << 20, "a message of {} bytes", error.to_string().len()),
        }
    }
);
