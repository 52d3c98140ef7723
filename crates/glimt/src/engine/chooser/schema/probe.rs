//! Asks llguidance whether it takes a schema.

use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::Value;

use crate::effort;

/// The outcome of giving a schema to llguidance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Taken,
    /// No value fulfils it. There may be others to choose from beside it.
    Empty,
    Refused,
}

/// The verdict of llguidance on a schema.
pub(super) fn verdict(schema: Value) -> Verdict {
    // Whoever goes through the schema is stopped soon.
    if effort::check().is_err() {
        return Verdict::Refused;
    }
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    match JsonCompileOptions::default().json_to_llg_no_validate(builder, schema) {
        Ok(_) => Verdict::Taken,
        Err(error) if format!("{error:#}").contains("Unsatisfiable schema") => Verdict::Empty,
        Err(_) => Verdict::Refused,
    }
}

/// Whether llguidance can follow a schema.
pub(super) fn takes(schema: Value) -> bool {
    verdict(schema) != Verdict::Refused
}
