//! Fields of other servers that are known and not followed. Some change no answer. Others would change it, so a request that has one of them
//! switched on is refused. Fields that are in none of these lists, and that nothing reads, are told in a header and in the log.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// Fields that change no answer of this server.
const SILENT: [&str; 28] = [
    // OpenAI: who asks, and what is kept.
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    // vLLM: which request goes first, and how it is computed.
    "priority",
    "request_id",
    "cache_salt",
    "guided_decoding_backend",
    "spaces_between_special_tokens",
    "data_parallel_rank",
    "add_special_tokens",
    // llama.cpp: slots, caches and a context that moves.
    "cache_prompt",
    "n_keep",
    "n_discard",
    "t_max_prompt_ms",
    "dynatemp_exponent",
    "adaptive_decay",
    "penalize_nl",
    "n_cache_reuse",
    "speculative.n_min",
    "speculative.p_min",
    "speculative.ngram_size_n",
    "speculative.ngram_size_m",
    "speculative.ngram_min_hits",
    // ollama: how long a model stays in memory.
    "keep_alive",
];

/// A field that would change the answer.
struct Unknown {
    name: &'static str,
    /// Values that switch it off, as JSON, beside null, 0 and what is empty, and beside false where true is none of them.
    off: &'static [&'static str],
    /// The advice on what to do instead.
    instead: &'static str,
}

const fn unknown(
    name: &'static str,
    off: &'static [&'static str],
    instead: &'static str,
) -> Unknown {
    Unknown { name, off, instead }
}

const LEAVE_OUT: &str = "leave it out";
const LOG_PROBS: &str = "use logprobs and top_logprobs";
const TEXT_ONLY: &str = "the models here read and write text alone";

/// Fields that would change the answer.
const UNKNOWN: [Unknown; 48] = [
    // OpenAI.
    unknown("audio", &[], TEXT_ONLY),
    unknown("modalities", &["[\"text\"]"], TEXT_ONLY),
    unknown("web_search_options", &[], "give a tool that searches"),
    // vLLM.
    unknown(
        "guided_regex",
        &["\"\""],
        "give structured_outputs with regex, its present name",
    ),
    unknown("structural_tag", &[], "use tools or a grammar"),
    unknown("guided_whitespace_pattern", &[], "use a grammar"),
    unknown("use_beam_search", &[], LEAVE_OUT),
    unknown("length_penalty", &["1"], LEAVE_OUT),
    unknown("early_stopping", &[], LEAVE_OUT),
    unknown("stop_token_ids", &[], "use stop with their texts"),
    unknown("include_stop_str_in_output", &[], LEAVE_OUT),
    unknown("min_tokens", &[], "use ignore_eos with max_tokens"),
    unknown("skip_special_tokens", &["true"], LEAVE_OUT),
    unknown("truncate_prompt_tokens", &["-1"], "shorten the prompt"),
    unknown("prompt_logprobs", &[], LEAVE_OUT),
    unknown("allowed_token_ids", &[], "use a grammar"),
    unknown("bad_words", &[], "use logit_bias"),
    unknown("logits_processors", &[], "use logit_bias or a grammar"),
    unknown("documents", &[], "put them into a message"),
    unknown(
        "chat_template",
        &[],
        "use the model's own, or /v1/completions",
    ),
    unknown("mm_processor_kwargs", &[], TEXT_ONLY),
    unknown("return_token_ids", &[], LOG_PROBS),
    unknown("return_tokens_as_token_ids", &[], LOG_PROBS),
    unknown("kv_transfer_params", &[], LEAVE_OUT),
    unknown("thinking_token_budget", &["-1"], "use reasoning_effort"),
    unknown("logprob_token_ids", &[], LOG_PROBS),
    unknown("repetition_detection", &[], "use dry_multiplier"),
    unknown("prompt_embeds", &[], "give a text or tokens"),
    unknown("include_reasoning", &["true"], "use reasoning_effort none"),
    // llama.cpp.
    unknown("n_probs", &[], LOG_PROBS),
    unknown("post_sampling_probs", &[], LOG_PROBS),
    unknown("return_tokens", &[], LOG_PROBS),
    unknown("image_data", &[], TEXT_ONLY),
    unknown("lora", &[], LEAVE_OUT),
    unknown("dynatemp_range", &[], "use temperature"),
    unknown("top_n_sigma", &["-1"], "use min_p"),
    unknown("adaptive_target", &["-1"], "use mirostat"),
    unknown("tfs_z", &["1"], "use typical_p or min_p"),
    unknown("min_keep", &["1"], LEAVE_OUT),
    unknown("t_max_predict_ms", &["-1"], "use max_tokens"),
    unknown("n_indent", &[], LEAVE_OUT),
    unknown("grammar_lazy", &[], "use tools"),
    unknown("grammar_triggers", &[], "use tools"),
    unknown(
        "reasoning_format",
        &["\"auto\"", "\"deepseek\""],
        "thoughts come as reasoning_content",
    ),
    unknown("thinking_forced_open", &[], LEAVE_OUT),
    unknown("reasoning_budget_tokens", &["-1"], "use reasoning_effort"),
    unknown("parse_tool_calls", &["true"], "leave out the tools"),
    // ollama.
    unknown(
        "options",
        &[],
        "give its fields beside the messages, such as temperature, top_k and seed",
    ),
];

/// Looks at the fields that are known and not followed.
///
/// # Errors
/// If one of them would change the answer.
pub(super) fn check(fields: &Fields<'_>) -> Result<(), ApiError> {
    fields.skip(&SILENT);
    for Unknown { name, off, instead } in &UNKNOWN {
        if let Some(value) = fields.get(name)
            && !is_off(value, off)
        {
            let message = format!("is not supported by this server; {instead}");
            return Err(fields.wrong(name, &message));
        }
    }
    Ok(())
}

/// Whether a value switches a field off: one of `off`, or null, 0 or what is empty, or false where true is none of `off`.
pub(super) fn is_off(value: &Value, off: &[&str]) -> bool {
    let is_empty = match value {
        Value::Null => true,
        Value::Bool(false) => !off.contains(&"true"),
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    };
    let is_same = |off: &&str| match (value, serde_json::from_str::<Value>(off)) {
        (Value::Number(number), Ok(Value::Number(off))) => number.as_f64() == off.as_f64(),
        (value, Ok(off)) => *value == off,
        (_, Err(_)) => false,
    };
    is_empty || off.iter().any(is_same)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_would_change_the_answer_is_refused_by_name_unless_it_is_off() {
        let check = |body: &Value| check(&Fields::of_body(body).expect("it is an object"));
        for Unknown { name, off, .. } in &UNKNOWN {
            let error = check(&json!({ *name: "on" })).expect_err(name);
            assert_eq!(error.json()["error"]["param"], *name);
            let switch = if off.contains(&"true") {
                "true"
            } else {
                "false"
            };
            for off in off.iter().chain(&["null", switch, "0", "[]"]) {
                let off: Value = serde_json::from_str(off).expect("it is JSON");
                assert_eq!(check(&json!({ *name: off })), Ok(()), "{name}");
            }
            let on = switch != "true";
            assert!(check(&json!({ *name: on })).is_err(), "{name}");
        }
        let body = json!({"user": "u", "store": true, "top_n_sigma": -1.0, "verbosity": "low"});
        let fields = Fields::of_body(&body).expect("it is an object");
        assert_eq!(super::check(&fields), Ok(()));
        assert_eq!(fields.unread(), ["verbosity"]);
    }

    #[test]
    fn every_field_is_in_the_documents() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serving.md");
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let names = UNKNOWN.iter().map(|unknown| unknown.name).chain(SILENT);
        let missing: Vec<_> = names
            .filter(|name| !text.contains(&format!("`{name}`")))
            .collect();
        assert!(missing.is_empty(), "{path} does not name {missing:?}");
    }
}
