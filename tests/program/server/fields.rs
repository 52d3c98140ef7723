//! Protects who sends fields that other servers know: each is done, refused by name, or named as ignored.

use serde_json::{Value, json};

use super::client::Response;
use super::{CHAT, COMPLETIONS, scripted_server, with};

const RESPONSES: &str = "/v1/responses";
const INPUT_TOKENS: &str = "/v1/responses/input_tokens";
const MESSAGES: &str = "/v1/messages";
const COMPLETION: &str = "/completion";
const TALK: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

/// The treatment of a field.
enum Becomes {
    Done,
    Ignored(&'static str),
    Refused(&'static str),
}

use Becomes::{Done, Ignored, Refused};

/// A request to which nothing is to be said.
fn plain(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    match path {
        CHAT | MESSAGES => json!({"messages": messages, "max_tokens": 1}),
        COMPLETIONS => json!({"prompt": "Hi", "max_tokens": 1}),
        RESPONSES => json!({"input": "Hi", "max_output_tokens": 1}),
        INPUT_TOKENS => json!({"input": "Hi"}),
        COMPLETION => json!({"prompt": "Hi", "n_predict": 1}),
        TALK => json!({"messages": messages, "stream": false}),
        _ => json!({"prompt": "Hi", "stream": false}),
    }
}

fn of_chats() -> Vec<(Value, Becomes)> {
    vec![
        (
            json!({"skip_special_tokens": false}),
            Refused("skip_special_tokens"),
        ),
        (json!({"skip_special_tokens": true}), Done),
        (
            json!({"include_reasoning": false}),
            Refused("include_reasoning"),
        ),
        (
            json!({"parse_tool_calls": false}),
            Refused("parse_tool_calls"),
        ),
        (
            json!({"reasoning_budget_tokens": 10}),
            Refused("reasoning_budget_tokens"),
        ),
        (json!({"reasoning_budget_tokens": -1}), Done),
        (
            json!({"logprob_token_ids": [1]}),
            Refused("logprob_token_ids"),
        ),
        (
            json!({"structured_outputs": {"choice": ["a"], "regex": "b"}}),
            Refused("structured_outputs.choice"),
        ),
        (
            json!({"structured_outputs": {"json": {}, "choice": ["a"]}}),
            Refused("structured_outputs.choice"),
        ),
        (json!({"n_cmpl": 2}), Done),
        (json!({"n_cmpl": 0}), Refused("n_cmpl")),
        (json!({"seed": 1u64 << 63}), Refused("seed")),
        (json!({"max_tokens": 1.5}), Refused("max_tokens")),
        (json!({"stop": ["a", null]}), Refused("stop")),
        (json!({"logit_bias": {"5": "1"}}), Refused("logit_bias.5")),
        (json!({"logit_bias": {"5": null}}), Done),
        (
            json!({"response_format": "json"}),
            Refused("response_format"),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": null}}}),
            Refused("response_format.json_schema.schema"),
        ),
        (
            json!({"tools": [{"type": "web_search"}]}),
            Refused("tools[0].type"),
        ),
        (json!({"tool_choice": "required"}), Refused("tool_choice")),
        (json!({"function_call": "none"}), Done),
        (json!({"moderation": {"x": 1}}), Ignored("moderation")),
        (json!({"guided_json": "{"}), Refused("guided_json")),
        (json!({"samplers": "kmt"}), Refused("samplers")),
        (json!({"top_k": -2}), Refused("top_k")),
        (json!({"vllm_xargs": {"a": 1}}), Ignored("vllm_xargs")),
    ]
}

fn of_completions() -> Vec<(Value, Becomes)> {
    vec![
        (json!({"prompt": [{"prompt_string": "Hi"}, "b"]}), Done),
        (
            json!({"prompt": {"prompt_string": "Hi", "multimodal_data": ["x"]}}),
            Refused("prompt"),
        ),
        (json!({"prompt": {"prompt_string": 3}}), Refused("prompt")),
        (
            json!({"prompt": {"prompt_string": {"prompt_string": "Hi"}}}),
            Refused("prompt"),
        ),
        (json!({"prompt": [["a"]]}), Refused("prompt")),
        (json!({"prompt": ["a", null]}), Refused("prompt")),
        (json!({"prompt": [3, [4]]}), Refused("prompt")),
        (json!({"prompt": [-1]}), Refused("prompt")),
        (json!({"logprobs": true}), Refused("logprobs")),
        (json!({"messages": []}), Ignored("messages")),
        (json!({"tools": [{}]}), Ignored("tools")),
    ]
}

fn of_responses() -> Vec<(Value, Becomes)> {
    vec![
        (
            json!({"messages": [{"role": "user", "content": "x"}]}),
            Ignored("messages"),
        ),
        (json!({"include": ["x"]}), Refused("include")),
        (json!({"include": [3]}), Refused("include")),
        (json!({"include": ["file_search_call.results"]}), Done),
        (json!({"metadata": {"a": "b"}}), Done),
        (json!({"metadata": "x"}), Refused("metadata")),
        (json!({"text": {"bogus": 1}}), Ignored("text.bogus")),
        (
            json!({"reasoning": {"effort": "bogus"}}),
            Refused("reasoning.effort"),
        ),
        (json!({"truncation": "x"}), Refused("truncation")),
        (
            json!({"previous_response_id": 3}),
            Refused("previous_response_id"),
        ),
        (json!({"background": true}), Refused("background")),
        (json!({"n_cmpl": 2}), Refused("n_cmpl")),
        (json!({"temperature": 0.5, "service_tier": "auto"}), Done),
    ]
}

fn of_messages() -> Vec<(Value, Becomes)> {
    vec![
        (
            json!({"output_config": {"effort": "bogus"}}),
            Refused("output_config.effort"),
        ),
        (json!({"output_config": {"effort": "low"}}), Done),
        (json!({"thinking": true}), Refused("thinking")),
        (json!({"stop_sequences": [3]}), Refused("stop_sequences")),
        (json!({"tool_choice": "auto"}), Refused("tool_choice")),
        (json!({"mcp_servers": []}), Done),
        (json!({"container": "x"}), Refused("container")),
        (
            json!({"system": [{"type": "image"}]}),
            Refused("system[0].type"),
        ),
        (json!({"metadata": {"user_id": "x"}}), Done),
        (json!({"input": "x"}), Ignored("input")),
    ]
}

fn of_llama_cpp() -> Vec<(Value, Becomes)> {
    vec![
        (
            json!({"t_max_predict_ms": 0, "n_indent": 0, "n_discard": 0}),
            Done,
        ),
        (json!({"min_keep": 0, "lora": [], "image_data": []}), Done),
        (
            json!({"t_max_predict_ms": 100}),
            Refused("t_max_predict_ms"),
        ),
        (json!({"n_indent": 2}), Refused("n_indent")),
        (json!({"echo": true}), Ignored("echo")),
        (json!({"logprobs": 3}), Ignored("logprobs")),
        (
            json!({"post_sampling_probs": true}),
            Refused("post_sampling_probs"),
        ),
        (json!({"parse_special": false}), Ignored("parse_special")),
        (json!({"n_predict": "2"}), Refused("n_predict")),
        (json!({"max_tokens": "2"}), Refused("max_tokens")),
        (
            json!({"cache_prompt": true, "id_slot": -1, "n_keep": -1}),
            Done,
        ),
    ]
}

fn of_talks() -> Vec<(Value, Becomes)> {
    vec![
        (json!({"prompt": "x"}), Ignored("prompt")),
        (json!({"template": "x"}), Ignored("template")),
        (json!({"images": ["x"]}), Refused("images")),
        (json!({"think": "bogus"}), Refused("think")),
        (json!({"format": "yaml"}), Refused("format")),
        (
            json!({"options": {"num_predict": 0}}),
            Refused("options.num_predict"),
        ),
        (json!({"options": {"bogus": 1}}), Ignored("options.bogus")),
        (
            json!({"options": {"seed": 1, "num_ctx": 9}, "keep_alive": "5m"}),
            Done,
        ),
    ]
}

fn of_generating() -> Vec<(Value, Becomes)> {
    vec![
        (json!({"messages": []}), Ignored("messages")),
        (json!({"tools": [{}]}), Ignored("tools")),
        (json!({"raw": "x"}), Refused("raw")),
        (json!({"suffix": "x"}), Refused("suffix")),
        (json!({"context": [1]}), Refused("context")),
        (json!({"context": [], "system": "Be brief."}), Done),
    ]
}

#[track_caller]
fn check(response: &Response, becomes: &Becomes, what: &str) {
    let ignored = response.header("x-glimt-ignored");
    match becomes {
        Done => assert_eq!(
            (response.status, ignored),
            (200, None),
            "{what}: {response:?}"
        ),
        Ignored(name) => {
            assert_eq!(
                (response.status, ignored),
                (200, Some(*name)),
                "{what}: {response:?}"
            );
        }
        Refused(name) => {
            assert_eq!(response.status, 400, "{what}: {response:?}");
            let is_named = response.body.contains(&format!("'{name}'"));
            assert!(is_named, "{what}: {response:?}");
        }
    }
}

#[test]
fn fields_are_done_or_refused_or_named() {
    let (server, _folder) = scripted_server();
    for (path, all) in [
        (CHAT, of_chats()),
        (COMPLETIONS, of_completions()),
        (RESPONSES, of_responses()),
        (INPUT_TOKENS, vec![(json!({"bogus": 1}), Ignored("bogus"))]),
        (MESSAGES, of_messages()),
        (COMPLETION, of_llama_cpp()),
        (TALK, of_talks()),
        (GENERATE, of_generating()),
    ] {
        for (more, becomes) in all {
            let response = server.post(path, &with(plain(path), more.clone()));
            check(&response, &becomes, &format!("{path} {more}"));
        }
    }
}
