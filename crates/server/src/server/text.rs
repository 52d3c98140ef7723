//! `/tokenize` and `/detokenize`, in the forms of vLLM and of llama.cpp.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::json;

use super::ask::unread;
use super::chat::render;
use super::error::ApiError;
use super::fields::Fields;
use super::model::Model;

/// The tokens of a text. Long texts have very many, so this is no [`Value`](serde_json::Value).
#[derive(Serialize)]
struct Tokens<'a> {
    count: usize,
    max_model_len: usize,
    tokens: &'a [u32],
    token_strs: Option<Each<'a, String>>,
}

/// A token with its text.
#[derive(Serialize)]
struct Piece {
    id: u32,
    piece: String,
}

/// A list that is made of tokens while it is written: one item of `each` per token.
struct Each<'a, T> {
    tokens: &'a [u32],
    each: &'a dyn Fn(u32) -> T,
}

impl<T: Serialize> Serialize for Each<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.tokens.iter().map(|&id| (self.each)(id)))
    }
}

/// The most bytes of a text that tokens come to.
const MOST_BYTES: usize = 16 << 20;

fn written(tokens: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(tokens).map_err(|error| ApiError::internal(error.to_string()))
}

/// The tokens of a text, or of a conversation in the model's template.
pub(super) fn tokenize(fields: &Fields<'_>, model: &Model) -> Result<String, ApiError> {
    let tokenizer = model.engine.tokenizer();
    if fields.get("content").is_some() {
        return tokens_of_content(fields, model);
    }
    let tokens = match fields.text("prompt")? {
        Some(text) => {
            let add = fields.flag("add_special_tokens")?.unwrap_or(true);
            let encoded = tokenizer.encode(text, add);
            encoded.map_err(|error| unread(error, "prompt", model))?
        }
        None if fields.get("messages").is_some() => render(fields, model)?.prompt,
        None => return Err(fields.wrong("prompt", "is missing, and so is 'messages'")),
    };
    let texts = fields.flag("return_token_strs")?.unwrap_or(false);
    let text = |id| tokenizer.piece(id);
    written(&Tokens {
        count: tokens.len(),
        max_model_len: model.engine.n_ctx(),
        tokens: &tokens,
        token_strs: texts.then_some(Each {
            tokens: &tokens,
            each: &text,
        }),
    })
}

/// The tokens of a text as llama.cpp's clients ask for them.
fn tokens_of_content(fields: &Fields<'_>, model: &Model) -> Result<String, ApiError> {
    let tokenizer = model.engine.tokenizer();
    let add = fields.flag("add_special")?.unwrap_or(false);
    let encoded = tokenizer.encode(fields.needed_text("content")?, add);
    let tokens = encoded.map_err(|error| unread(error, "content", model))?;
    if !fields.flag("with_pieces")?.unwrap_or(false) {
        return written(&HashMap::from([("tokens", tokens)]));
    }
    let each = &|id| Piece {
        id,
        piece: tokenizer.piece(id),
    };
    let tokens = &tokens;
    written(&HashMap::from([("tokens", Each { tokens, each })]))
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
    let bytes: usize = ids.iter().map(|&id| tokenizer.token_bytes(id).len()).sum();
    if bytes > MOST_BYTES {
        let message =
            format!("come to a text of {bytes} bytes, where at most {MOST_BYTES} are told");
        return Err(fields.wrong("tokens", &message));
    }
    let text = tokenizer.decode(&ids);
    Ok(json!({"prompt": text, "content": text}).to_string())
}
