//! The body of a request: it is refused as the client's fault, in few words, or becomes orders that the server could take.
//!
//! The first byte of an input is a letter for a route, in the order of `Route::ALL`. The body follows.

#![no_main]

use std::sync::OnceLock;

use glimt_fuzz::{engine, others_may_panic, seeds};
use glimt_server::server::fuzz::{Read, Requests, Route};
use libfuzzer_sys::fuzz_target;

/// Answers to a request at most.
const MOST: usize = 1024;

fn requests() -> &'static Requests {
    static REQUESTS: OnceLock<Requests> = OnceLock::new();
    REQUESTS.get_or_init(|| Requests::new(engine()))
}

fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let tool = r#"{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object","properties":{"where":{"type":"string","maxLength":9},"deep":{"type":["integer","null"]}},"required":["where"]}}}"#;
    let chat = format!(
        r#"{{"model":"glimt","messages":[{{"role":"system","content":"Be brief."}},{{"role":"user","content":[{{"type":"text","text":"hi <|user|>"}}]}},{{"role":"assistant","content":null,"tool_calls":[{{"id":"c1","type":"function","function":{{"name":"look","arguments":"{{\"where\":\"x\"}}"}}}}]}},{{"role":"tool","tool_call_id":"c1","content":"y"}}],"tools":[{tool}],"tool_choice":"auto","parallel_tool_calls":false,"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.05,"n":2,"stop":["x","yz"],"max_tokens":5,"seed":7,"logprobs":true,"top_logprobs":3,"logit_bias":{{"5":-1,"7":2.5}},"stream":true,"stream_options":{{"include_usage":true}},"chat_template_kwargs":{{"enable_thinking":false}}}}"#
    );
    let schema = r##"{"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object","properties":{"a":{"enum":[1,"x",null]},"b":{"type":"array","items":{"$ref":"#/$defs/c"},"maxItems":3}},"required":["a"],"$defs":{"c":{"type":"string","pattern":"^a+$"}}}}}}"##;
    let completion = r#"{"prompt":["a",[60,61]],"n":2,"best_of":2,"echo":true,"logprobs":2,"max_tokens":4,"presence_penalty":0.5,"frequency_penalty":0.5,"repetition_penalty":1.1,"guided_choice":["a","b"],"ignore_eos":true}"#;
    let response = r#"{"model":"glimt","previous_response_id":"resp_1","instructions":"Be brief.","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","call_id":"c","name":"look","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"y"}],"text":{"format":{"type":"json_object"}},"max_output_tokens":5,"reasoning":{"effort":"none"},"store":false}"#;
    let message = r#"{"model":"glimt","max_tokens":5,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":""},{"type":"tool_use","id":"t","name":"look","input":{"where":"x"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"y"}]}],"tools":[{"name":"look","description":"Looks.","input_schema":{"type":"object","properties":{"where":{"type":"string"}}}}],"tool_choice":{"type":"any"},"thinking":{"type":"enabled","budget_tokens":1024},"stop_sequences":["x"]}"#;
    let continued = r#"{"prompt":"a","n_predict":4,"grammar":"root ::= \"a\" [b-d]* | [^x]{1,3}","samplers":["top_k","temperature"],"mirostat":2,"dry_multiplier":0.8,"dry_sequence_breakers":["\n"],"xtc_probability":0.5,"logit_bias":[[5,-1],["a",false]],"n_probs":3,"stop":["x"]}"#;
    let talk = format!(
        r#"{{"model":"glimt","messages":[{{"role":"user","content":"hi"}}],"tools":[{tool}],"format":{{"type":"object"}},"think":false,"stream":false,"options":{{"num_predict":5,"temperature":0.5,"stop":["x"]}}}}"#
    );
    let generate = r#"{"model":"glimt","prompt":"hi","system":"Be brief.","raw":false,"format":"json","options":{"seed":1}}"#;
    let bodies = [
        ("chat", 0, chat.as_str()),
        ("schema", 0, schema),
        ("completion", 1, completion),
        ("response", 2, response),
        ("message", 3, message),
        ("continued", 4, continued),
        ("talk", 5, &talk),
        ("generate", 6, generate),
        (
            "tokenize",
            7,
            r#"{"prompt":"a <|user|> b","add_special_tokens":false,"return_token_strs":true}"#,
        ),
        (
            "content",
            7,
            r#"{"content":"a b","add_special":true,"with_pieces":true}"#,
        ),
        ("detokenize", 8, r#"{"tokens":[60,61,300]}"#),
        ("count_tokens", 9, message),
        ("input_tokens", 10, response),
        (
            "apply_template",
            11,
            r#"{"messages":[{"role":"user","content":"hi"}]}"#,
        ),
        ("show", 12, r#"{"model":"glimt"}"#),
    ];
    let input = |(name, route, body): (&'static str, u8, &str)| {
        (name, [&[b'a' + route], body.as_bytes()].concat())
    };
    bodies.map(input).into()
}

fuzz_target!(
    init: {
        others_may_panic();
        seeds(examples);
    },
    |data: &[u8]| {
        let Some((letter, body)) = data.split_first() else {
            return;
        };
        let route = Route::ALL[usize::from(letter.wrapping_sub(b'a')) % Route::ALL.len()];
        match requests().read(route, body) {
            Read::Orders { answers, each, .. } => {
                assert!((1..=MOST).contains(&answers), "{answers} answers");
                assert_eq!(answers % each, 0, "{answers} answers, {each} to each prompt");
            }
            Read::Answer(answer) => assert!(serde_json::from_str::<serde_json::Value>(&answer).is_ok(), "{answer}"),
            Read::Refused(status, said) => {
                assert!((400..500).contains(&status), "{status} {said}");
                // A message repeats at most names and texts of the body.
                assert!(said.len() < 10 * body.len() + 20_000, "{} bytes about {}: {said:.300}", said.len(), body.len());
            }
        }
    }
);
