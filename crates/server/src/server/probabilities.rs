//! Log-probabilities in the forms of OpenAI's API.

use serde_json::{Map, Value, json};

use crate::engine::chooser::TokenLogProbs;
use crate::tokenizer::Tokenizer;

/// JSON has no infinity; this is what vLLM writes.
const LEAST: f32 = -9999.0;

fn number(log_prob: f32) -> f32 {
    match log_prob.is_finite() {
        true => log_prob,
        false => LEAST,
    }
}

fn token(tokenizer: &Tokenizer, id: u32, log_prob: f32) -> Value {
    json!({
        "token": tokenizer.piece(id),
        "logprob": number(log_prob),
        "bytes": tokenizer.token_bytes(id),
    })
}

/// The probabilities of tokens, as chats have them.
pub(super) fn list(tokenizer: &Tokenizer, all: &[TokenLogProbs]) -> Vec<Value> {
    let one = |found: &TokenLogProbs| {
        let mut value = token(tokenizer, found.token, found.log_prob);
        let top = found.top.iter();
        let top = top.map(|&(id, log_prob)| token(tokenizer, id, log_prob));
        value["top_logprobs"] = top.collect();
        value
    };
    all.iter().map(one).collect()
}

/// The probabilities of tokens, as completions have them. The text of the first begins at the character `offset`, which then is where the
/// next does.
pub(super) fn table(tokenizer: &Tokenizer, all: &[TokenLogProbs], offset: &mut usize) -> Value {
    let (mut tokens, mut log_probs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for found in all {
        let text = tokenizer.piece(found.token);
        offsets.push(*offset);
        *offset += text.chars().count();
        tokens.push(text);
        log_probs.push(number(found.log_prob));
        let top = found.top.iter();
        let top = top.map(|&(id, log_prob)| (tokenizer.piece(id), number(log_prob).into()));
        let mut top: Map<String, Value> = top.collect();
        top.entry(tokenizer.piece(found.token))
            .or_insert_with(|| number(found.log_prob).into());
        tops.push(top);
    }
    json!({
        "tokens": tokens,
        "token_logprobs": log_probs,
        "top_logprobs": tops,
        "text_offset": offsets,
    })
}
