//! The refusals of llguidance, in words for whoever wrote the grammar.

use super::ChooserError;

/// Sentences of llguidance, and what they mean to whoever wrote a schema.
const WORDS: [(&str, &str); 6] = [
    (
        "Unsatisfiable schema: ",
        "no value fulfils the JSON schema: ",
    ),
    (
        "schema too large",
        "the JSON schema has more parts than are read (50000)",
    ),
    (
        "Schema intersection stack level exceeded",
        "the JSON schema has too many schemas that apply to the same value, one within the other",
    ),
    (
        "circular references with sibling keys are not supported",
        "the JSON schema refers to itself within allOf or beside other keywords; move what stands beside the reference into the definition",
    ),
    (
        "min/maxProperties only supported when all keys listed in \"properties\" are required",
        "minProperties and maxProperties are enforced only if all properties are required; leave them out",
    ),
    (
        "Unable to determine if regex is empty",
        "a pattern of the JSON schema is too complex to be followed",
    ),
];

/// The reason in words, without the marks that llguidance puts behind it.
pub(super) fn refused(reason: impl ToString) -> ChooserError {
    let reason = reason.to_string();
    if reason.contains("<backtrace>") {
        return ChooserError::Panicked;
    }
    let reason = reason.split("\n<non-verbose/>").next().unwrap_or_default();
    if let Some((items, most)) = reason
        .rsplit_once("Current row has ")
        .and_then(|(_, row)| row.split_once(" items; max is "))
    {
        let most = most.split(';').next().unwrap_or_default();
        let reason = format!(
            "at one place {items} of its parts may go on, but at most {most} are followed; have fewer choices, optional properties or alternatives"
        );
        return ChooserError::Grammar { reason };
    }
    let mut reason = reason.trim_end().to_owned();
    for (theirs, ours) in WORDS {
        reason = reason.replace(theirs, ours);
    }
    ChooserError::Grammar { reason }
}
