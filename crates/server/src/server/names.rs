//! The fields of bodies that something reads, of all APIs. Others are not even made ([`tree`](super::tree)).

use serde_json::Value;

/// The fields at the top of a body. One that is missing here is told as ignored.
const READ: [&str; 183] = [
    "adaptive_decay",
    "adaptive_target",
    "add_generation_prompt",
    "add_special",
    "add_special_tokens",
    "allowed_token_ids",
    "audio",
    "background",
    "bad_words",
    "best_of",
    "betas",
    "cache_control",
    "cache_prompt",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "client_metadata",
    "container",
    "content",
    "context",
    "context_management",
    "continue_final_message",
    "conversation",
    "data_parallel_rank",
    "diagnostics",
    "documents",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "dynatemp_range",
    "early_stopping",
    "echo",
    "enable_thinking",
    "filename",
    "format",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "id_slot",
    "ignore_eos",
    "image_data",
    "images",
    "include",
    "include_reasoning",
    "include_stop_str_in_output",
    "inference_geo",
    "input",
    "instructions",
    "json_schema",
    "keep_alive",
    "kv_transfer_params",
    "length_penalty",
    "logit_bias",
    "logits_processors",
    "logprob_token_ids",
    "logprobs",
    "lora",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tool_calls",
    "mcp_servers",
    "messages",
    "metadata",
    "min_keep",
    "min_p",
    "min_tokens",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "mm_processor_kwargs",
    "modalities",
    "model",
    "n",
    "n_cache_reuse",
    "n_cmpl",
    "n_discard",
    "n_indent",
    "n_keep",
    "n_predict",
    "n_probs",
    "name",
    "options",
    "output_config",
    "output_format",
    "parallel_tool_calls",
    "parse_tool_calls",
    "penalize_nl",
    "post_sampling_probs",
    "prediction",
    "presence_penalty",
    "previous_response_id",
    "priority",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_embeds",
    "prompt_logprobs",
    "raw",
    "reasoning",
    "reasoning_budget_tokens",
    "reasoning_effort",
    "reasoning_format",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "response_fields",
    "response_format",
    "return_progress",
    "return_token_ids",
    "return_token_strs",
    "return_tokens",
    "return_tokens_as_token_ids",
    "safety_identifier",
    "samplers",
    "seed",
    "service_tier",
    "shift",
    "skip_special_tokens",
    "slot_id",
    "spaces_between_special_tokens",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.ngram_min_hits",
    "speculative.ngram_size_m",
    "speculative.ngram_size_n",
    "speculative.p_min",
    "speculative.type",
    "speed",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "store",
    "stream",
    "stream_options",
    "structural_tag",
    "structured_outputs",
    "suffix",
    "system",
    "t_max_predict_ms",
    "t_max_prompt_ms",
    "temperature",
    "template",
    "text",
    "tfs_z",
    "think",
    "thinking",
    "thinking_forced_open",
    "thinking_token_budget",
    "timings_per_token",
    "tokens",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_n_sigma",
    "top_p",
    "truncate",
    "truncate_prompt_tokens",
    "truncation",
    "typical",
    "typical_p",
    "use_beam_search",
    "user",
    "verbose",
    "web_search_options",
    "with_pieces",
    "xtc_probability",
    "xtc_threshold",
];

/// Whether something may read a field at the top of a body.
pub(super) fn is_known(name: &str) -> bool {
    READ.binary_search(&name).is_ok()
}

/// Fields that ask for a form of the answer, which takes time to be read.
const FORMS: [&str; 10] = [
    "response_format",
    "json_schema",
    "grammar",
    "guided_json",
    "guided_grammar",
    "guided_choice",
    "structured_outputs",
    // ollama's and Anthropic's.
    "format",
    "output_format",
    "output_config",
];

/// Whether a request asks for a form of the answer, or for a call of a tool, which is one.
pub(super) fn asks_for_form(body: &Value) -> bool {
    let has = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    let is_free = |choice: &Value| {
        let kind = choice.get("type").unwrap_or(choice);
        matches!(kind.as_str(), None | Some("auto" | "none"))
    };
    let demands = body
        .get("tool_choice")
        .is_some_and(|choice| !is_free(choice));
    // OpenAI's responses have it within another field.
    let text = body.get("text").and_then(|text| text.get("format"));
    let of_text = text.and_then(|format| format.get("type"));
    let of_text = of_text.is_some_and(|kind| kind != "text");
    FORMS.iter().any(|name| has(name)) || demands || of_text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_in_order_and_those_of_all_apis_are_among_them() {
        assert!(
            READ.is_sorted_by(|a, b| a < b),
            "they are searched by halves"
        );
        for name in [
            "messages",
            "system",
            "input",
            "keep_alive",
            "n_predict",
            "options",
        ] {
            assert!(is_known(name), "{name}");
        }
        assert!(!is_known("x"));
    }

    /// The names that a source reads of a body, as far as they stand in it as texts.
    #[test]
    fn fields_that_the_sources_read_are_known() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/server");
        let mut folders = vec![std::path::PathBuf::from(folder)];
        let mut missing = vec![];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("sources are there") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("sources are text");
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                for reader in [
                    "flag", "number", "count", "text", "list", "object", "objects",
                ] {
                    let call = format!("fields.{reader}(\"");
                    let names = code.split(&call).skip(1);
                    let names = names.filter_map(|rest| rest.split('"').next());
                    missing.extend(names.filter(|name| !is_known(name)).map(str::to_owned));
                }
            }
        }
        // The names of fields that are read of objects within a body.
        let inner = [
            "function",
            "parameters",
            "description",
            "strict",
            "type",
            "name",
            "id",
            "reasoning_content",
            "tool_calls",
            "input_schema",
            "tool_call_id",
            "custom",
        ];
        missing.retain(|name| !inner.contains(&name.as_str()));
        assert!(missing.is_empty(), "names.rs lacks {missing:?}");
    }

    #[test]
    fn requests_for_forms_are_told_apart() {
        for body in [
            json!({"guided_json": {}}),
            json!({"tools": [], "tool_choice": "required"}),
            json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            json!({"tool_choice": {"type": "any"}}),
            json!({"text": {"format": {"type": "json_schema"}}}),
        ] {
            assert!(asks_for_form(&body), "{body}");
        }
        for body in [
            json!({"guided_json": null, "tools": [{}]}),
            json!({"tool_choice": "auto"}),
            json!({"tool_choice": {"type": "auto"}}),
            json!({"text": "a"}),
            json!({"text": {"format": {"type": "text"}}}),
            json!([1]),
        ] {
            assert!(!asks_for_form(&body), "{body}");
        }
    }
}
