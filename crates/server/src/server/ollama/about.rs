//! The model in the terms of ollama's API.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::gguf::Value as Meta;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::model::Model;

/// The version of ollama whose API this is. Some clients ask for a least one.
const VERSION: &str = "0.12.6";

/// The version, with that of glimt.
pub(in crate::server) fn version() -> Value {
    json!({"version": VERSION, "glimt": env!("CARGO_PKG_VERSION")})
}

/// The name with a tag, as ollama has all names.
fn tagged(model: &Model) -> String {
    match model.name.contains(':') {
        true => model.name.clone(),
        false => format!("{}:latest", model.name),
    }
}

/// A number of parameters, shortened.
fn shortened(count: u64) -> String {
    match count as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// Kinds and sizes.
fn details(model: &Model) -> Value {
    let of = model.engine.model();
    let family = &of.config().architecture;
    let tensors = of.gguf().tensors();
    let parameters = tensors.iter().map(|tensor| tensor.element_count()).sum();
    // The type of most weights.
    let mut counts = BTreeMap::new();
    for tensor in tensors {
        *counts.entry(tensor.ty.name()).or_insert(0) += tensor.element_count();
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": shortened(parameters),
        "quantization_level": most.map(|(name, _)| name.to_uppercase()),
    })
}

/// When the model was loaded.
fn loaded_at(model: &Model) -> String {
    let loaded = jiff::Timestamp::from_second(model.created);
    loaded.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

/// The model as an entry of a list.
fn listed(model: &Model) -> Value {
    let (name, size) = (tagged(model), model.engine.model().gguf().file_size());
    // It tells models apart, and is not that of the file's bytes.
    let digest = Sha256::digest(format!("{name} {size}").as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": name,
        "model": name,
        "modified_at": loaded_at(model),
        "size": size,
        "digest": digest,
        "details": details(model),
    })
}

/// The models that there are: one.
pub(in crate::server) fn tags(model: &Model) -> Value {
    json!({"models": [listed(model)]})
}

/// The models that are loaded: the same one, until the server ends.
pub(in crate::server) fn running(model: &Model) -> Value {
    let mut listed = listed(model);
    let on_gpu = model.engine.tier().is_some();
    listed["size_vram"] = if on_gpu {
        listed["size"].clone()
    } else {
        0.into()
    };
    listed["context_length"] = model.engine.n_ctx().into();
    // A date that clients can read and nobody sees.
    listed["expires_at"] = "2318-01-01T00:00:00Z".into();
    json!({"models": [listed]})
}

/// Metadata of the file. Long lists are left out, as ollama does unless it is asked for all.
fn metadata(model: &Model) -> Value {
    let all = model.engine.model().gguf().metadata();
    let told = all.filter_map(|(key, value)| {
        let value = match value {
            Meta::String(text) => text.as_str().into(),
            Meta::Bool(flag) => (*flag).into(),
            Meta::F32(number) => (*number).into(),
            Meta::F64(number) => (*number).into(),
            Meta::I64(number) => (*number).into(),
            Meta::Array(_) => Value::Null,
            other => other.as_u64()?.into(),
        };
        (key != "tokenizer.chat_template").then(|| (key.to_owned(), value))
    });
    told.collect::<Map<_, _>>().into()
}

/// All that is told of the model.
///
/// # Errors
/// If another one is asked for.
pub(in crate::server) fn show(fields: &Fields<'_>, model: &Model) -> Result<String, ApiError> {
    fields.skip(&["name", "verbose"]);
    let template = model.engine.chat_template();
    let mut capabilities = vec!["completion"];
    if template.is_some_and(|template| template.supports_tools()) {
        capabilities.push("tools");
    }
    if model.may_switch_thinking() {
        capabilities.push("thinking");
    }
    let sampling = &model.thinking.sampling;
    let parameters = [
        ("temperature", sampling.temperature.to_string()),
        ("top_k", sampling.top_k.to_string()),
        ("top_p", sampling.top_p.to_string()),
        ("min_p", sampling.min_p.to_string()),
        ("num_ctx", model.engine.n_ctx().to_string()),
    ];
    let parameters = parameters.map(|(name, value)| format!("{name:<30} {value}"));
    let shown = json!({
        "license": "",
        "modelfile": format!("FROM {}", model.name),
        "parameters": parameters.join("\n"),
        "template": template.map_or("", |template| template.source()),
        "details": details(model),
        "model_info": metadata(model),
        "capabilities": capabilities,
        "modified_at": loaded_at(model),
    });
    Ok(shown.to_string())
}
