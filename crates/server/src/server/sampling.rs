//! How a request has tokens chosen.

use std::collections::HashSet;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::{samplers, tree};
use crate::engine::chooser::{ChainSettings, Language, Sampling};
use crate::tokenizer::Tokenizer;

/// Reads the fields of sampling. Those that are missing are as in `defaults`. A missing seed is `seed`, or a random one if that is `None`.
/// `penalty_asked` tells whether a flag of the server sets the repeat penalty.
///
/// # Errors
/// A value of a wrong type or out of its range.
pub(super) fn read(
    fields: &Fields<'_>,
    defaults: &ChainSettings,
    seed: Option<u64>,
    penalty_asked: bool,
    tokenizer: &Tokenizer,
) -> Result<ChainSettings, ApiError> {
    let mut chain = defaults.clone();
    let sampling = &mut chain.sampling;
    let set = |to: &mut f32, found: Option<f32>| *to = found.unwrap_or(*to);
    set(
        &mut sampling.temperature,
        fields.number("temperature", 0.0..=100.0)?,
    );
    set(&mut sampling.top_p, fields.number("top_p", 0.0..=1.0)?);
    set(&mut sampling.min_p, fields.number("min_p", 0.0..=1.0)?);
    if let Some(k) = fields.count("top_k", -1..=i64::from(u32::MAX))? {
        // Both are off.
        sampling.top_k = u32::try_from(k).unwrap_or(0);
    }
    let mut penalty = None;
    for name in ["repeat_penalty", "repetition_penalty"] {
        let range = f64::from(f32::MIN_POSITIVE)..=100.0;
        penalty = fields.number(name, range)?.or(penalty);
    }
    // Greedy stays the plain argmax, whatever is recommended for draws.
    let greedy = sampling.temperature <= 0.0 && !penalty_asked;
    set(
        &mut sampling.repeat_penalty,
        penalty.or(greedy.then_some(1.0)),
    );
    if let Some(last) = fields.count("repeat_last_n", -1..=i64::from(u32::MAX))? {
        sampling.repeat_last_n = u32::try_from(last).unwrap_or(u32::MAX);
    }
    let presence = fields.number("presence_penalty", -2.0..=2.0)?;
    set(&mut sampling.presence_penalty, presence);
    let frequency = fields.number("frequency_penalty", -2.0..=2.0)?;
    set(&mut sampling.frequency_penalty, frequency);
    sampling.seed = match fields.count("seed", i64::MIN..=i64::MAX)? {
        Some(-1) => Sampling::random_seed(),
        Some(seed) => seed.cast_unsigned(),
        None => seed.unwrap_or_else(Sampling::random_seed),
    };
    samplers::read(fields, &mut chain, tokenizer)?;
    let mut all = chain.logit_bias.to_vec();
    all.extend(biases(fields, tokenizer)?);
    if fields.flag("ignore_eos")? == Some(true) {
        let stops = tokenizer.stop_tokens().iter();
        all.extend(stops.map(|&token| (token, f32::NEG_INFINITY)));
    }
    chain.logit_bias = all.into();
    Ok(chain)
}

/// The biases of tokens: an object by their ids, or llama.cpp's list of pairs, where false excludes a token.
fn biases(fields: &Fields<'_>, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, ApiError> {
    let known = |id: &u32| (*id as usize) < tokenizer.vocab_size();
    let foreign = |token: &str| {
        let last = tokenizer.vocab_size() - 1;
        let message = format!(
            "must name tokens by their ids, 0 to {last} without signs, spaces or zeros in front, not {token}"
        );
        fields.wrong("logit_bias", &message)
    };
    let mut found = vec![];
    if let Some(Value::Array(pairs)) = fields.get("logit_bias") {
        let mut named = HashSet::new();
        for pair in pairs {
            let [token, bias] = pair.as_array().map_or(&[][..], Vec::as_slice) else {
                return Err(fields.wrong("logit_bias", "must be a list of pairs [token, bias]"));
            };
            let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id
                .filter(known)
                .ok_or_else(|| foreign(&token.to_string()))?;
            let bias = match bias {
                Value::Bool(false) => Some(f64::NEG_INFINITY),
                bias => bias.as_f64(),
            };
            let Some(bias) = bias else {
                return Err(fields.wrong("logit_bias", "must have numbers or false as biases"));
            };
            if !named.insert(id) {
                let message = format!("must name each token once, but names {id} twice");
                return Err(fields.wrong("logit_bias", &message));
            }
            found.push((id, bias as f32));
        }
        return Ok(found);
    }
    let Some(biases) = fields.object("logit_bias")? else {
        return Ok(found);
    };
    for token in biases.all().keys() {
        let id = token.parse::<u32>().ok().filter(known);
        // Other ways to write a number would name the same token more than once.
        let id = id.filter(|id| id.to_string() == *token);
        let id = id.ok_or_else(|| foreign(&format!("{token:?}")))?;
        if let Some(bias) = biases.number(token, -100.0..=100.0)? {
            found.push((id, bias));
        }
    }
    Ok(found)
}

/// The form that the answer has to have, where a request asks for one, and the field that does.
///
/// # Errors
/// A form that is not known, or two at once.
pub(super) fn form(fields: &Fields<'_>) -> Result<Option<(&'static str, Language)>, ApiError> {
    let forms = [
        ("response_format", response_format(fields)?),
        ("json_schema", fields.get("json_schema").map(schema)),
        ("grammar", grammar(fields, "grammar")?),
        ("guided_json", fields.get("guided_json").map(schema)),
        ("guided_grammar", grammar(fields, "guided_grammar")?),
        ("guided_choice", choices(fields, "guided_choice")?),
        ("structured_outputs", structured(fields)?),
    ];
    let mut found = forms
        .into_iter()
        .filter_map(|(name, form)| Some((name, form?)));
    let form = found.next();
    if let (Some((other, _)), Some((name, _))) = (&form, found.next()) {
        let message = format!("cannot be given together with '{other}'");
        return Err(fields.wrong(name, &message));
    }
    Ok(form)
}

fn grammar(fields: &Fields<'_>, name: &str) -> Result<Option<Language>, ApiError> {
    // Some clients send an empty one for none.
    let text = fields.text(name)?.filter(|text| !text.trim().is_empty());
    Ok(text.map(|text| Language::of_grammar(text.to_owned())))
}

/// A schema, which may be a text that holds it.
fn schema(value: &Value) -> Language {
    let inner = value.as_str().and_then(|text| tree::value(text).ok());
    Language::JsonSchema(inner.unwrap_or_else(|| value.clone()))
}

fn response_format(fields: &Fields<'_>) -> Result<Option<Language>, ApiError> {
    let Some(format) = fields.object("response_format")? else {
        return Ok(None);
    };
    if format.is_empty() {
        return Ok(None);
    }
    match format.one_of("type", &["text", "json_object", "json_schema"])? {
        None => Err(format.wrong("type", "is missing")),
        Some("json_object") => {
            // llama.cpp takes a schema here, too.
            Ok(Some(format.get("schema").map_or_else(any_object, schema)))
        }
        Some("json_schema") => {
            if let (None, Some(found)) = (format.get("json_schema"), format.get("schema")) {
                return Ok(Some(schema(found)));
            }
            let named = format.needed_object("json_schema")?;
            named.skip(&["name", "strict", "description"]);
            match named.get("schema") {
                Some(found) => Ok(Some(schema(found))),
                None => Err(named.wrong("schema", "is missing")),
            }
        }
        Some(_) => Ok(None),
    }
}

fn any_object() -> Language {
    Language::JsonSchema(serde_json::json!({"type": "object"}))
}

fn structured(fields: &Fields<'_>) -> Result<Option<Language>, ApiError> {
    let Some(outputs) = fields.object("structured_outputs")? else {
        return Ok(None);
    };
    let is_off = |value: &Value| *value == false || *value == "";
    let is_there = |name: &&&str| outputs.get(name).is_some_and(|value| !is_off(value));
    let kinds = ["json", "json_object", "grammar", "regex", "choice"];
    let mut kinds = kinds.iter().filter(is_there);
    if let (Some(first), Some(second)) = (kinds.next(), kinds.next()) {
        let message = format!("cannot be given together with '{first}'");
        return Err(outputs.wrong(second, &message));
    }
    if let Some(found) = outputs.get("json") {
        return Ok(Some(schema(found)));
    }
    if outputs.flag("json_object")? == Some(true) {
        return Ok(Some(any_object()));
    }
    let regex = outputs.text("regex")?.filter(|text| !text.is_empty());
    let language = match (grammar(&outputs, "grammar")?, regex) {
        (Some(found), _) => Some(found),
        (None, Some(regex)) => Some(Language::Regex(regex.to_owned())),
        (None, None) => choices(&outputs, "choice")?,
    };
    let message =
        "must hold json, json_object, grammar, regex or choice; others are not known here";
    let missing = || fields.wrong("structured_outputs", message);
    language.ok_or_else(missing).map(Some)
}

/// One of a few texts.
fn choices(fields: &Fields<'_>, name: &str) -> Result<Option<Language>, ApiError> {
    let Some(texts) = fields.list(name)? else {
        return Ok(None);
    };
    let texts: Option<Vec<&str>> = texts.iter().map(Value::as_str).collect();
    match texts.filter(|texts| !texts.is_empty()) {
        Some(texts) => Ok(Some(Language::Lark(format!("start: {}", one_of(&texts))))),
        None => Err(fields.wrong(name, "must be a list of texts, at least one")),
    }
}

/// Alternatives in the notation of Lark.
pub(super) fn one_of(texts: &[&str]) -> String {
    let quoted = texts.iter().map(|text| Value::from(*text).to_string());
    quoted.collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::ModelSource;
    use crate::engine::chooser::{Mirostat, Xtc};

    fn tokenizer() -> Tokenizer {
        let gguf = ModelSource::Embedded.open().expect("it is whole");
        Tokenizer::from_gguf(&gguf).expect("it has one")
    }

    fn read_from(body: &Value) -> Result<ChainSettings, ApiError> {
        let fields = Fields::of_body(body).expect("it is an object");
        let defaults = ChainSettings::new(Sampling {
            temperature: 0.8,
            top_k: 40,
            repeat_penalty: 1.1,
            ..Sampling::GREEDY
        });
        read(&fields, &defaults, None, false, &tokenizer())
    }

    #[test]
    fn what_is_not_asked_for_is_the_default() {
        let found =
            read_from(&json!({"top_p": 0.5, "seed": -3, "top_k": -1})).expect("it is right");
        let random = |seed: i64| read_from(&json!({ "seed": seed })).expect("it is right");
        assert_ne!(random(-1).sampling.seed, random(-1).sampling.seed);
        assert!(found.on_device().is_some());
        let sampling = found.sampling;
        assert_eq!((sampling.temperature, sampling.top_p), (0.8, 0.5));
        assert_eq!(
            (sampling.top_k, sampling.seed),
            (0, (-3i64).cast_unsigned())
        );
        let one = read_from(&json!({})).expect("it is right").sampling;
        let other = read_from(&json!({})).expect("it is right").sampling;
        assert_eq!(one.top_k, 40);
        assert_ne!(one.seed, other.seed);
        assert_eq!(one.repeat_penalty, 1.1);
        let greedy = read_from(&json!({"temperature": 0})).expect("it is right");
        assert_eq!(greedy.sampling.repeat_penalty, 1.0);
    }

    #[test]
    fn only_many_biases_take_the_host() {
        let read = |body: Value| read_from(&body).expect("it is right");
        let on_host = |chain: &ChainSettings| chain.on_device().is_none();
        let found = read(json!({"logit_bias": {"7": -100, "8": 2.5}}));
        assert!(!on_host(&found));
        assert_eq!(*found.logit_bias, [(7, -100.0), (8, 2.5)]);
        let found = read(json!({"ignore_eos": true}));
        assert!(!on_host(&found));
        assert_eq!(found.logit_bias[0].1, f32::NEG_INFINITY);
        let excluded = found.logit_bias.len();
        for (count, expected) in [(64 - excluded, false), (65 - excluded, true)] {
            let biases = (0..count).map(|i| ((i + 1000).to_string(), json!(1)));
            let biases: serde_json::Map<_, _> = biases.collect();
            let body = json!({"logit_bias": biases, "ignore_eos": true});
            assert_eq!(on_host(&read(body)), expected);
        }
        let body = json!({"ignore_eos": true, "repeat_penalty": 1e-30});
        assert!(on_host(&read(body)));
        assert!(!on_host(&read(json!({"repeat_penalty": 1e-30}))));
    }

    #[test]
    fn samplers_of_the_host_are_those_of_the_command_line() {
        let body = json!({
            "typical_p": 0.9, "mirostat": 2, "mirostat_tau": 4, "xtc_probability": 0.5, "dry_multiplier": 0.8,
            "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "logit_bias": [[7, false], [8, 1.5]],
        });
        let chain = read_from(&body).expect("it is right");
        assert_eq!(chain.typical_p, 0.9);
        let mirostat = Mirostat { tau: 4.0, eta: 0.1 };
        assert_eq!(chain.mirostat, Some(mirostat));
        let xtc = Xtc {
            probability: 0.5,
            threshold: 0.1,
        };
        assert_eq!(chain.xtc, Some(xtc));
        let dry = chain.dry.as_ref().expect("it is on");
        assert_eq!((dry.multiplier, dry.base), (0.8, 1.75));
        assert_eq!((dry.allowed_length, dry.last_n), (2, u32::MAX));
        assert_eq!(*chain.logit_bias, [(7, f32::NEG_INFINITY), (8, 1.5)]);
        assert!(chain.on_device().is_none(), "the host chooses");
        let off = json!({"mirostat": 0, "mirostat_tau": 5, "xtc_probability": 0, "dry_multiplier": 0, "typical_p": 1});
        let chain = read_from(&off).expect("it is right");
        assert!(chain.on_device().is_some(), "the device chooses");
    }

    #[test]
    fn samplers_that_a_list_leaves_out_are_off() {
        let body =
            json!({"top_k": 5, "top_p": 0.5, "samplers": ["penalties", "top_k", "temperature"]});
        let sampling = read_from(&body).expect("it is right").sampling;
        assert_eq!((sampling.top_k, sampling.top_p), (5, 1.0));
        assert_eq!((sampling.repeat_penalty, sampling.temperature), (1.1, 0.8));
    }

    #[test]
    fn values_out_of_their_range_are_refused_by_name() {
        for (body, name) in [
            (json!({"temperature": -1}), "temperature"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"presence_penalty": 3}), "presence_penalty"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": {"99999999": 1}}), "logit_bias"),
            (json!({"logit_bias": {"01": 1}}), "logit_bias"),
            (json!({"logit_bias": {"+1": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1 ": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1.0": 1}}), "logit_bias"),
            (json!({"logit_bias": [[1.0, 1]]}), "logit_bias"),
            (
                json!({"logit_bias": [[7, 1], [8, 1], [7, 2]]}),
                "logit_bias",
            ),
            (json!({"logit_bias": {"7": 101}}), "logit_bias.7"),
            (json!({"seed": 0.5}), "seed"),
            (json!({"mirostat": 1}), "mirostat"),
            (json!({"typical_p": 2}), "typical_p"),
            (json!({"dry_multiplier": -1}), "dry_multiplier"),
            (json!({"xtc_probability": "x"}), "xtc_probability"),
            (json!({"samplers": ["top_p", "top_k"]}), "samplers"),
            (json!({"logit_bias": [[7]]}), "logit_bias"),
        ] {
            let Err(error) = read_from(&body) else {
                panic!("{body} is wrong");
            };
            assert_eq!(error.json()["error"]["param"], name, "{body}");
        }
    }

    #[test]
    fn forms_are_read_from_all_the_fields_that_have_them() {
        let found = |body: Value| {
            let fields = Fields::of_body(&body).expect("it is an object");
            form(&fields)
        };
        let schema = json!({"type": "integer"});
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
            json!({"guided_json": schema}),
            json!({"guided_json": schema.to_string()}),
            json!({"structured_outputs": {"json": schema}}),
        ] {
            let language = found(body).expect("it is right").expect("there is one").1;
            assert_eq!(language, Language::JsonSchema(schema.clone()));
        }
        let choice = found(json!({"guided_choice": ["a", "\"b"]}));
        let choice = choice.expect("it is right").expect("there is one").1;
        assert_eq!(choice, Language::Lark(r#"start: "a" | "\"b""#.to_owned()));
        let regex = found(json!({"structured_outputs": {"regex": "a"}}));
        let regex = regex.expect("it is right").expect("there is one").1;
        assert_eq!(regex, Language::Regex("a".to_owned()));
        for none in [
            json!({"response_format": {"type": "text"}}),
            json!({"response_format": {}}),
            json!({"grammar": ""}),
            json!({"guided_grammar": " ", "guided_json": null}),
        ] {
            assert!(found(none).is_ok_and(|form| form.is_none()));
        }
        for (body, name) in [
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"schema": {}}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.json_schema",
            ),
            (json!({"guided_json": {}, "grammar": "a"}), "guided_json"),
            (json!({"guided_choice": []}), "guided_choice"),
            (
                json!({"structured_outputs": {"structural_tag": "a"}}),
                "structured_outputs",
            ),
        ] {
            let error = found(body.clone()).expect_err("it is wrong");
            assert_eq!(error.json()["error"]["param"], name, "{body}");
        }
    }
}
