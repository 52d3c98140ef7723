//! Protects tools and thoughts over HTTP, with the built-in model in templates that know them.

use glimt::gguf::Value as Meta;
use serde_json::{Value, json};

use super::edited::{edited, thinking};
use super::{CHAT, Server, chat, text};

/// A template that tells of tools in its own words and writes calls as GLM does.
pub const TAGGED: &str = "[gMASK]<sop>{% for t in tools %}Tool: {{ t.function.name }}\n{% endfor %}\
     {% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
     {% for c in m.tool_calls %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\
     <arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// One that writes them as DeepSeek does.
const DEEPSEEK: &str = "{% for t in tools %}Tool: {{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n\
     {% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>\
     {% endfor %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// One that knows calls in DeepSeek's form and is told of no tools.
const UNTOLD: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% for c in m.tool_calls %}<｜tool▁call▁begin｜>\
     {{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}assistant: {% endif %}";

/// One that writes them as Kimi-K2 does.
const KIMI: &str = "{% for t in tools %}Tool: {{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n\
     {% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>\
     {% endfor %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// One that writes them as GigaChat does.
const GIGACHAT: &str = "{% for t in tools %}Tool: {{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}<|role_sep|>{{ m.content }}\
     <|message_sep|>{% for c in m.tool_calls %}function call<|role_sep|>{{ c.function | tojson }}<|message_sep|>{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}assistant<|role_sep|>{% endif %}";

/// One that writes them as Llama 3 does, one in a message.
const LLAMA: &str = "{% for t in tools %}Tool: {{ t | tojson }}\n{% endfor %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
     {% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}\
     {% for c in m.tool_calls %}{{ '{\"name\": \"' + c.function.name + '\", \"parameters\": ' }}{{ c.function.arguments | tojson }}}\
     {% else %}{{ m.content }}{% endfor %}<|eot_id|>{% endfor %}\
     {% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";

/// One that knows tools in a form that nobody else has.
const UNKNOWN: &str = "{% for t in tools %}Tool: {{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n\
     {% for c in m.tool_calls %}CALL {{ c.function.name }}{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}assistant: {% endif %}";

/// One that knows neither calls nor tools.
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
     {% if add_generation_prompt %}assistant: {% endif %}";

fn server(template: &str) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let template = ("tokenizer.chat_template", Meta::from(template));
    let model = edited(folder.path(), "tools.gguf", &[template], |_, _| {});
    (Server::start(&["-m", &model, "-c", "512"]), folder)
}

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Köln", "Bonn"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["place", "days"],
        },
    }})
}

/// The call that a stream makes, of its deltas.
fn call(events: &[Value]) -> (Value, String, String) {
    let (mut id, mut name, mut arguments) = (Value::Null, String::new(), String::new());
    for event in events {
        let Some(call) = event["choices"][0]["delta"]["tool_calls"].get(0) else {
            continue;
        };
        assert_eq!(call["index"], 0);
        if let Some(found) = call["function"]["name"].as_str() {
            assert_eq!(
                (name.as_str(), call["type"].as_str()),
                ("", Some("function"))
            );
            name = found.to_owned();
            id = call["id"].clone();
        }
        arguments += call["function"]["arguments"].as_str().unwrap_or_default();
    }
    (id, name, arguments)
}

#[test]
fn a_demanded_call_comes_in_the_form_of_the_api() {
    for template in [TAGGED, DEEPSEEK, KIMI, GIGACHAT, LLAMA] {
        let (server, _folder) = server(template);
        let named = json!({"type": "function", "function": {"name": "weather"}});
        for choice in [json!("required"), named] {
            let body =
                chat(json!({"tools": [weather()], "tool_choice": choice, "max_tokens": 120}));
            let answer = server.answer(CHAT, &body);
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
            assert_eq!(choice["message"]["content"], Value::Null);
            let found = &choice["message"]["tool_calls"][0];
            assert!(
                found["id"]
                    .as_str()
                    .is_some_and(|id| id.starts_with("call_"))
            );
            assert_eq!(found["function"]["name"], "weather");
            let written = found["function"]["arguments"].as_str().expect("a text");
            let arguments: Value = serde_json::from_str(written).expect("they are JSON");
            assert!(
                arguments["days"].is_u64() && arguments["place"].is_string(),
                "{written}"
            );
            let events = server
                .post(CHAT, &super::with(body, json!({"stream": true})))
                .events();
            let (id, name, streamed) = call(&events);
            assert!(id.is_string());
            assert_eq!((name.as_str(), streamed.as_str()), ("weather", written));
            let last = &events[events.len() - 1];
            assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
        }
    }
}

#[test]
fn templates_are_told_of_tools_calls_and_results() {
    let (server, _folder) = server(TAGGED);
    let call = json!({"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"place\": \"Bonn\"}"}});
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]);
    let asked = json!({"messages": messages, "tools": [weather()]});
    let tokens = server.answer("/tokenize", &asked)["tokens"].clone();
    let back = server.answer("/detokenize", &json!({ "tokens": tokens }));
    let rendered = back["prompt"].as_str().expect("a text");
    let expected = "Tool: weather\n<|user|>Weather?<|assistant|><tool_call>weather<arg_key>place</arg_key><arg_value>Bonn</arg_value>\
         </tool_call><|tool|>rain<|assistant|>";
    assert!(rendered.ends_with(expected), "{rendered}");
    let none = json!({"messages": messages, "tools": [weather()], "tool_choice": "none"});
    let tokens = server.answer("/tokenize", &none)["tokens"].clone();
    let back = server.answer("/detokenize", &json!({ "tokens": tokens }));
    assert!(!back["prompt"].to_string().contains("Tool:"), "{back}");
    // Nobody demands a call, and the model has learnt none.
    let answer = server.answer(CHAT, &chat(json!({"tools": [weather()]})));
    assert!(
        answer["choices"][0]["message"].get("tool_calls").is_none(),
        "{answer}"
    );
}

#[test]
fn kimi_gets_the_ids_that_it_has_learnt() {
    let (server, _folder) = server(KIMI);
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]);
    let asked = json!({"messages": messages, "tools": [weather()]});
    let rendered = server.answer("/apply-template", &asked);
    let rendered = rendered["prompt"].as_str().expect("a text");
    let expected = "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>tool: rain\nassistant: ";
    assert!(rendered.ends_with(expected), "{rendered}");
}

#[test]
fn templates_that_know_no_tools_have_a_system_message() {
    let call = json!({"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"place\": \"Bo"}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]);
    let as_texts = "assistant: <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\":\"Bo\"}}\n</tool_call>\n\
         user: <tool_response>\nrain\n</tool_response>\nassistant: ";
    for (template, form, history) in [
        (
            UNTOLD,
            "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
            "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"place\": \"Bo\"}<｜tool▁call▁end｜>tool: rain\nassistant: ",
        ),
        (PLAIN, "<tool_call>\n{\"name\": \"NAME\"", as_texts),
        (UNKNOWN, "<tool_call>\n{\"name\": \"NAME\"", as_texts),
    ] {
        let (server, _folder) = server(template);
        let asked = json!({"messages": messages, "tools": [weather()]});
        let tokens = server.answer("/tokenize", &asked)["tokens"].clone();
        let back = server.answer("/detokenize", &json!({ "tokens": tokens }));
        let rendered = back["prompt"].as_str().expect("a text");
        let (told, rest) = rendered
            .split_once("user: Weather?\n")
            .expect("it is there");
        assert!(told.starts_with("system: Be brief.\n\n# Tools"), "{told}");
        assert!(told.contains("\"name\":\"weather\""), "{told}");
        assert!(told.contains(form), "{told}");
        assert!(rest.ends_with(history), "{rest}");
        let body = chat(
            json!({"tools": [weather()], "tool_choice": "required", "max_tokens": 120,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}}),
        );
        let answer = server.answer(CHAT, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather", "{answer}");
        // Nobody demands a call, and the model has learnt none.
        let answer = server.answer(CHAT, &chat(json!({"tools": [weather()]})));
        assert!(!text(&answer).is_empty(), "{answer}");
    }
}

#[test]
fn thoughts_are_told_apart_and_can_be_switched_off() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Server::start(&["-m", &thinking(folder.path()), "-c", "256"]);
    let answer = server.answer(CHAT, &chat(json!({})));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    let thoughts = message["reasoning_content"].as_str().expect("it thinks");
    assert_eq!(
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"],
        8
    );
    let events = server.post(CHAT, &chat(json!({"stream": true}))).events();
    let deltas = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["reasoning_content"].as_str());
    assert_eq!(deltas.collect::<String>(), thoughts);
    for more in [
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"chat_template_kwargs": {"thinking": false}}),
        json!({"reasoning_effort": "none"}),
    ] {
        let answer = server.answer(CHAT, &chat(more));
        assert!(
            answer["choices"][0]["message"]
                .get("reasoning_content")
                .is_none()
        );
        assert!(!text(&answer).is_empty());
    }
    let plain = Server::start(&[
        "-m",
        &thinking(folder.path()),
        "-c",
        "256",
        "--think",
        "off",
    ]);
    assert!(!text(&plain.answer(CHAT, &chat(json!({})))).is_empty());
    let asked = chat(json!({"reasoning_effort": "high"}));
    let answer = plain.answer(CHAT, &asked);
    assert!(answer["choices"][0]["message"]["reasoning_content"].is_string());
}
