//! `/tokenize` and `/detokenize`, in the forms of vLLM and of llama.cpp.

use serde::Serialize;
use serde_json::{Value, json};

use super::chat::render;
use super::error::ApiError;
use super::fields::Fields;
use super::model::Model;
use crate::tokenizer::Tokenizer;

/// What a text comes to. Long ones have millions of tokens, so it is no [`Value`].
#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// The tokens of a text, or of a conversation in the model's template.
pub(super) fn tokenize(fields: &Fields<'_>, model: &Model) -> Result<String, ApiError> {
    let tokenizer = model.engine.tokenizer();
    if fields.get("content").is_some() {
        return tokens_of_content(fields, tokenizer);
    }
    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let add = fields.flag("add_special_tokens")?.unwrap_or(true);
            let encoded = tokenizer.encode(text, add);
            encoded.map_err(|error| fields.wrong("prompt", &format!("cannot be read: {error}")))?
        }
        None if fields.get("messages").is_some() => render(fields, model)?.prompt,
        None => return Err(fields.wrong("prompt", "is missing, and so is 'messages'")),
    };
    let texts = fields.flag("return_token_strs")?.unwrap_or(false);
    let texts = texts.then(|| tokens.iter().map(|&id| tokenizer.piece(id)).collect());
    let tokens = Tokens {
        count: tokens.len(),
        max_model_len: model.engine.n_ctx(),
        tokens,
        token_strs: texts,
    };
    serde_json::to_string(&tokens).map_err(|error| ApiError::internal(error.to_string()))
}

/// The tokens of a text as llama.cpp's clients ask for them.
fn tokens_of_content(fields: &Fields<'_>, tokenizer: &Tokenizer) -> Result<String, ApiError> {
    let add = fields.flag("add_special")?.unwrap_or(false);
    let encoded = tokenizer.encode(fields.needed_text("content")?, add);
    let tokens =
        encoded.map_err(|error| fields.wrong("content", &format!("cannot be read: {error}")))?;
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let one = |id: u32| match pieces {
        true => json!({"id": id, "piece": tokenizer.piece(id)}),
        false => id.into(),
    };
    let tokens: Value = tokens.into_iter().map(one).collect();
    Ok(json!({ "tokens": tokens }).to_string())
}

/// The text of tokens.
pub(super) fn detokenize(fields: &Fields<'_>, model: &Model) -> Result<String, ApiError> {
    let Some(tokens) = fields.list("tokens")? else {
        return Err(fields.wrong("tokens", "is missing; it must be a list of tokens"));
    };
    let tokenizer = model.engine.tokenizer();
    let known = |id: &u64| (*id as usize) < tokenizer.vocab_size();
    let ids = tokens.iter().map(|token| token.as_u64().filter(known));
    let ids: Option<Vec<u32>> = ids.map(|id| u32::try_from(id?).ok()).collect();
    let Some(ids) = ids else {
        let message = format!("must be ids from 0 to {}", tokenizer.vocab_size() - 1);
        return Err(fields.wrong("tokens", &message));
    };
    let text = tokenizer.decode(&ids);
    Ok(json!({"prompt": text, "content": text}).to_string())
}
