//! Samplers that only the host has, in the fields of llama.cpp's server: with one of them, the host chooses each token.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use crate::engine::chooser::{Breakers, ChainSettings, Dry, Mirostat, Xtc};
use crate::tokenizer::Tokenizer;

/// The samplers in the order in which they are applied, under the names of llama.cpp, with other names of the same.
const ORDER: [&[&str]; 9] = [
    &["penalties"],
    &["dry"],
    &["top_n_sigma"],
    &["top_k"],
    &["typ_p", "typical", "typical_p"],
    &["top_p"],
    &["min_p"],
    &["xtc"],
    &["temperature", "temp"],
];

/// The most texts that may end a repetition: each is looked for in all tokens of the vocabulary.
const MOST_BREAKERS: usize = 256;

/// Any number that is not negative.
const FROM_0: std::ops::RangeInclusive<f64> = 0.0..=1e6;

/// Reads the fields of these samplers. Those that are missing are as in `chain`.
///
/// # Errors
/// A value of a wrong type or out of its range, or an order of samplers that is not the one here.
pub(super) fn read(
    fields: &Fields<'_>,
    chain: &mut ChainSettings,
    tokenizer: &Tokenizer,
) -> Result<(), ApiError> {
    for name in ["typical_p", "typical"] {
        let typical = fields.number(name, 0.0..=1.0)?;
        chain.typical_p = typical.unwrap_or(chain.typical_p);
    }
    dry(fields, chain, tokenizer)?;
    let probability = fields.number("xtc_probability", 0.0..=1.0)?;
    let threshold = fields.number("xtc_threshold", 0.0..=1.0)?;
    let known = chain.xtc;
    let xtc = Xtc {
        probability: probability
            .or(known.map(|xtc| xtc.probability))
            .unwrap_or(0.0),
        threshold: threshold
            .or(known.map(|xtc| xtc.threshold))
            .unwrap_or(Xtc::THRESHOLD),
    };
    chain.xtc = (xtc.probability > 0.0 && xtc.threshold <= 0.5).then_some(xtc);
    let tau = fields.number("mirostat_tau", FROM_0)?;
    let eta = fields.number("mirostat_eta", FROM_0)?;
    let version = fields.count("mirostat", 0..=2)?;
    if version == Some(1) {
        return Err(fields.wrong("mirostat", "must be 0 or 2; version 1 is not there"));
    }
    let is_on = version.map_or(chain.mirostat.is_some(), |version| version == 2);
    let known = chain.mirostat;
    let mirostat = Mirostat {
        tau: tau
            .or(known.map(|mirostat| mirostat.tau))
            .unwrap_or(Mirostat::TAU),
        eta: eta
            .or(known.map(|mirostat| mirostat.eta))
            .unwrap_or(Mirostat::ETA),
    };
    chain.mirostat = is_on.then_some(mirostat);
    order(fields, chain)
}

fn dry(
    fields: &Fields<'_>,
    chain: &mut ChainSettings,
    tokenizer: &Tokenizer,
) -> Result<(), ApiError> {
    let multiplier = fields.number("dry_multiplier", FROM_0)?;
    let base = fields.number("dry_base", 1.0..=1e6)?;
    let allowed = fields.count("dry_allowed_length", 0..=i64::from(u32::MAX))?;
    let last_n = fields.count("dry_penalty_last_n", -1..=i64::from(u32::MAX))?;
    let texts = texts(fields, "dry_sequence_breakers")?;
    if texts
        .as_ref()
        .is_some_and(|texts| texts.len() > MOST_BREAKERS)
    {
        let message = format!("may have at most {MOST_BREAKERS} texts");
        return Err(fields.wrong("dry_sequence_breakers", &message));
    }
    let known = chain.dry.take();
    let multiplier = multiplier.or(known.as_ref().map(|dry| dry.multiplier));
    let Some(multiplier) = multiplier.filter(|multiplier| *multiplier > 0.0) else {
        return Ok(());
    };
    let breakers = match (texts, &known) {
        (Some(texts), _) => Breakers::new(tokenizer, &texts),
        (None, Some(known)) => Ok(known.breakers.clone()),
        (None, None) => Breakers::new(tokenizer, &Dry::BREAKERS.map(str::to_owned)),
    };
    let wrong = |error: &dyn std::fmt::Display| {
        fields.wrong("dry_sequence_breakers", &format!("cannot be used: {error}"))
    };
    let known = known.as_ref();
    let known_last_n = known.map_or(Dry::LAST_N, |dry| dry.last_n);
    chain.dry = Some(Dry {
        multiplier,
        base: base.or(known.map(|dry| dry.base)).unwrap_or(Dry::BASE),
        allowed_length: allowed
            .map(|allowed| allowed as usize)
            .or(known.map(|dry| dry.allowed_length))
            .unwrap_or(Dry::ALLOWED_LENGTH as usize),
        last_n: last_n.map_or(known_last_n, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        breakers: breakers.map_err(|error| wrong(&error))?,
    });
    Ok(())
}

/// A list of texts, which may be written as a text of JSON.
fn texts(fields: &Fields<'_>, name: &str) -> Result<Option<Vec<String>>, ApiError> {
    let Some(value) = fields.get(name) else {
        return Ok(None);
    };
    let texts = match value {
        Value::String(text) => serde_json::from_str(text).ok(),
        value => serde_json::from_value(value.clone()).ok(),
    };
    let wrong = || fields.wrong(name, "must be a list of texts");
    texts.ok_or_else(wrong).map(Some)
}

/// The samplers that a request says are applied. Those that it leaves out are off.
fn order(fields: &Fields<'_>, chain: &mut ChainSettings) -> Result<(), ApiError> {
    let Some(names) = texts(fields, "samplers")? else {
        return Ok(());
    };
    let mut places = vec![];
    for name in &names {
        match ORDER
            .iter()
            .position(|names| names.contains(&name.as_str()))
        {
            Some(place) => places.push(place),
            None => {
                let message = format!("names {name:?}, which is not known here");
                return Err(fields.wrong("samplers", &message));
            }
        }
    }
    if !places.is_sorted_by(|a, b| a < b) {
        let order: Vec<&str> = ORDER.iter().map(|names| names[0]).collect();
        let message = format!(
            "must be in the order that is applied here: {}",
            order.join(", ")
        );
        return Err(fields.wrong("samplers", &message));
    }
    let off = |place: usize| !places.contains(&place);
    let sampling = &mut chain.sampling;
    if off(0) {
        sampling.repeat_penalty = 1.0;
        sampling.presence_penalty = 0.0;
        sampling.frequency_penalty = 0.0;
    }
    if off(1) {
        chain.dry = None;
    }
    if off(3) {
        sampling.top_k = 0;
    }
    if off(4) {
        chain.typical_p = 1.0;
    }
    if off(5) {
        sampling.top_p = 1.0;
    }
    if off(6) {
        sampling.min_p = 0.0;
    }
    if off(7) {
        chain.xtc = None;
    }
    if off(8) && sampling.temperature > 0.0 {
        sampling.temperature = 1.0;
    }
    Ok(())
}
