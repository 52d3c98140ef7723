//! OpenAI's `prediction`: a text that an answer is expected to repeat, in which its drafts are looked for.

use super::ask::{Ask, unread};
use super::error::ApiError;
use super::fields::Fields;
use super::messages;
use super::model::Model;

/// The tokens of the text, none where there is none. Without drafts it changes nothing, and is told as ignored.
///
/// # Errors
/// If it is no such text.
pub(super) fn read(fields: &Fields<'_>, model: &Model, ask: &Ask) -> Result<Vec<u32>, ApiError> {
    if !ask.has_drafts(model) {
        return Ok(vec![]);
    }
    let Some(prediction) = fields.object("prediction")? else {
        return Ok(vec![]);
    };
    prediction.one_of("type", &["content"])?;
    let text = messages::content(&prediction, "content")?;
    let text = text.ok_or_else(|| prediction.wrong("content", "is missing"))?;
    let tokens = model.engine.tokenizer().encode(&text, false);
    tokens.map_err(|error| unread(error, "prediction", model))
}
