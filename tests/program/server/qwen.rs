//! Protects the thoughts of Qwen3 over every API: the model opens and closes them itself, the template closes them where they are not wanted, and
//! those of earlier answers are dropped as the template does. Calls stand behind them.

use serde_json::{Value, json};

use super::{CHAT, Server, anthropic, ollama, responses, scripted, streamed, with};

/// A template of this test's own with the constructs of Qwen3's. Its last token tells the scripted model what to answer.
const TEMPLATE: &str = "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}A call is \
     <tool_call>\n{\"name\": NAME, \"arguments\": ARGUMENTS}\n</tool_call><|im_end|>\n{% endif %}\
     {% set ns = namespace(searching=true, last=messages | length - 1) %}\
     {% for m in messages[::-1] %}{% set i = messages | length - 1 - loop.index0 %}\
     {% if ns.searching and m.role == 'user' and not m.content.startswith('<tool_response>') %}\
     {% set ns.searching = false %}{% set ns.last = i %}{% endif %}{% endfor %}\
     {% for m in messages %}{% if m.role == 'assistant' %}\
     {% set content = m.content %}{% set thoughts = m.reasoning_content or '' %}\
     {% if not thoughts and '</think>' in content %}\
     {% set thoughts = content.split('</think>')[0].split('<think>')[-1] %}{% set content = content.split('</think>')[-1] %}{% endif %}\
     <|im_start|>assistant\n{% if loop.index0 > ns.last and (loop.last or thoughts) %}<think>\n{{ thoughts.strip('\n') }}\n</think>\n\n{% endif %}\
     {{ content.lstrip('\n') }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n\
     {% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n\
     {% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n\
     {% set quiet = enable_thinking is defined and enable_thinking is false %}\
     {% if quiet %}<think>\n\n</think>\n\n{% endif %}\
     {% if tools %}<|step{{ messages | selectattr('role', 'equalto', 'assistant') | list | length }}|>\
     {% elif quiet %}<|quiet|>{% else %}<|none|>{% endif %}{% endif %}";

const THOUGHTS: &str = "Somebody greets me, so I greet back.";
const TEXT: &str = "Good morning to all of you!";

/// A server of a model that writes line breaks around its thoughts, as Qwen3 does.
fn server() -> (Server, tempfile::TempDir) {
    let (thoughts, text) = (format!("\n{THOUGHTS}\n"), format!("\n\n{TEXT}"));
    let script = scripted::Script {
        steps: &[
            "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a b.txt\"}}\n</tool_call>",
            "It is read.",
        ],
        thoughts: &thoughts,
        text: &text,
        context: 4096,
        template: Some(TEMPLATE),
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let model = scripted::scripted(folder.path(), "script", &script);
    let model = model.to_str().expect("temporary paths are UTF-8 here");
    (Server::start(&["-m", model, "--temp", "0"]), folder)
}

/// A text that the scripted model begins with line breaks although the template has written them.
fn quiet_text(found: &Value) -> &str {
    found.as_str().expect("a text").trim_start()
}

/// The prompt that the template makes of a request.
fn prompt(server: &Server, body: &Value) -> String {
    let tokens = server.answer("/tokenize", body)["tokens"].clone();
    let back = server.answer("/detokenize", &json!({ "tokens": tokens }));
    back["prompt"].as_str().expect("a text").to_owned()
}

fn tool() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    json!({"type": "function", "function": {"name": "read", "parameters": parameters}})
}

#[test]
fn thoughts_are_told_apart_in_every_api() {
    let (server, _folder) = server();
    let ask = |more: Value| {
        let greeting = json!({"messages": [{"role": "user", "content": "Hi"}], "model": "script", "max_tokens": 200});
        with(greeting, more)
    };
    // OpenAI's chat completions, whole and streamed.
    let quiet = json!({"chat_template_kwargs": {"enable_thinking": false}});
    for (more, thoughts) in [(json!({}), THOUGHTS), (quiet, "")] {
        let answer = server.answer(CHAT, &ask(more.clone()));
        let message = &answer["choices"][0]["message"];
        let found = message["reasoning_content"].as_str().unwrap_or_default();
        let text = message["content"].as_str().expect("a text");
        assert_eq!(found.trim(), thoughts);
        match thoughts {
            "" => assert_eq!(text.trim_start(), TEXT),
            _ => assert_eq!(text, TEXT),
        }
        let body = with(ask(more), json!({"stream": true}));
        let events = server.post(CHAT, &body).events();
        let deltas = events.iter().filter_map(|event| event["choices"].get(0));
        let told: String = deltas
            .filter_map(|choice| choice["delta"]["reasoning_content"].as_str())
            .collect();
        assert_eq!((told.as_str(), streamed(&events).as_str()), (found, text));
    }
    // Anthropic's messages.
    let thinking = |kind| ask(json!({"thinking": {"type": kind, "budget_tokens": 1024}}));
    let content = anthropic::answered(&server, thinking("enabled"))["content"].clone();
    let found = content[0]["thinking"].as_str().expect("it thinks");
    assert_eq!(
        (found.trim(), &content[1]["text"]),
        (THOUGHTS, &json!(TEXT))
    );
    let content = anthropic::answered(&server, thinking("disabled"))["content"].clone();
    assert_eq!(
        (quiet_text(&content[0]["text"]), content.get(1)),
        (TEXT, None)
    );
    // OpenAI's responses.
    let input = |effort| json!({"input": "Hi", "model": "script", "reasoning": {"effort": effort}});
    let output = responses::answered(&server, input("high"))["output"].clone();
    let found = output[0]["content"][0]["text"].as_str().expect("it thinks");
    assert_eq!(found.trim(), THOUGHTS);
    assert_eq!(output[1]["content"][0]["text"], TEXT);
    let output = responses::answered(&server, input("none"))["output"].clone();
    assert_eq!(quiet_text(&output[0]["content"][0]["text"]), TEXT);
    // ollama's chat.
    let message = ollama::answered(&server, ask(json!({"think": true})))["message"].clone();
    let found = message["thinking"].as_str().expect("it thinks");
    assert_eq!(
        (found.trim(), &message["content"]),
        (THOUGHTS, &json!(TEXT))
    );
    let message = ollama::answered(&server, ask(json!({"think": false})))["message"].clone();
    assert_eq!(message.get("thinking"), None);
    assert_eq!(quiet_text(&message["content"]), TEXT);
}

#[test]
fn thoughts_of_earlier_answers_are_dropped_as_the_template_does() {
    let (server, _folder) = server();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"path\": \"x\"}"}});
    let messages = json!([
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two", "reasoning_content": "old"},
        {"role": "assistant", "content": "<think>\nolder\n</think>\n\nThree"},
        {"role": "user", "content": "Four"},
        {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "five"},
    ]);
    let body = json!({"messages": messages, "tools": [tool()]});
    let rendered = prompt(&server, &body);
    let expected = "<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\nTwo<|im_end|>\n<|im_start|>assistant\nThree<|im_end|>\n\
         <|im_start|>user\nFour<|im_end|>\n<|im_start|>assistant\n<think>\nnew\n</think>\n\n<tool_call>\n{\"name\": \"read\", \
         \"arguments\": {\"path\": \"x\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nfive\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<|step3|>";
    assert!(rendered.ends_with(expected), "{rendered}");
    // An answer without thoughts is begun for the model, also where it must call a tool.
    let begun = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let one = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let quiet = with(
        one.clone(),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    );
    assert!(prompt(&server, &quiet).ends_with(&format!("{begun}<|quiet|>")));
    assert!(prompt(&server, &one).ends_with("<|im_start|>assistant\n<|none|>"));
    let forced = with(one, json!({"tools": [tool()], "tool_choice": "required"}));
    assert!(prompt(&server, &forced).ends_with(&format!("{begun}<|step0|><tool_call>")));
}

#[test]
fn calls_in_json_come_in_the_form_of_each_api() {
    let (server, _folder) = server();
    let one = json!({"messages": [{"role": "user", "content": "Read a b.txt."}], "model": "script", "max_tokens": 200});
    let chat = with(one.clone(), json!({"tools": [tool()]}));
    let answer = server.answer(CHAT, &chat);
    let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(
        *function,
        json!({"name": "read", "arguments": "{\"path\": \"a b.txt\"}"})
    );
    let parameters = tool()["function"]["parameters"].clone();
    let own = json!([{"name": "read", "input_schema": parameters}]);
    let content =
        anthropic::answered(&server, with(one.clone(), json!({"tools": own})))["content"].clone();
    let used = (&content[0]["name"], &content[0]["input"]);
    assert_eq!(used, (&json!("read"), &json!({"path": "a b.txt"})));
    let message = ollama::answered(&server, chat)["message"].clone();
    let expected = json!({"name": "read", "arguments": {"path": "a b.txt"}});
    let found = &message["tool_calls"][0]["function"];
    assert_eq!(
        (&found["name"], &found["arguments"]),
        (&expected["name"], &expected["arguments"])
    );
    let own = json!([{"type": "function", "name": "read", "parameters": parameters}]);
    let asked = json!({"input": "Read a b.txt.", "model": "script", "tools": own});
    let output = responses::answered(&server, asked)["output"].clone();
    assert_eq!(output[0]["arguments"], "{\"path\": \"a b.txt\"}");
}
