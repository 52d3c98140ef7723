//! Ollama's store: `manifests/HOST/USER/NAME/TAG` is JSON that names layers, and `blobs/sha256-...` are their bytes. A model's weights
//! are a GGUF file in a layer of their own kind.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cache::walk;
use super::{HubError, Sum};
use crate::plural;

const HOST: &str = "registry.ollama.ai";
const LIBRARY: &str = "library";
/// The tag of a name without one.
const LATEST: &str = "latest";
const WEIGHTS: &str = "application/vnd.ollama.image.model";
/// The longest manifest or configuration that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// A model of ollama's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OllamaModel {
    /// The name that ollama lists, without the tag.
    pub(super) name: String,
    pub(super) tag: String,
    pub(super) quantisation: Option<String>,
    pub(super) bytes: u64,
    pub(super) path: PathBuf,
}

#[derive(Deserialize)]
struct Manifest {
    config: Option<Layer>,
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    #[serde(default)]
    media_type: String,
    digest: String,
}

#[derive(Deserialize)]
struct Config {
    file_type: Option<String>,
}

/// The models of the stores at `roots`. What cannot be read is added to `unread`.
pub(super) fn models(roots: &[PathBuf], unread: &mut Vec<HubError>) -> Vec<OllamaModel> {
    let mut found: Vec<OllamaModel> = vec![];
    for root in roots {
        let mut manifests = vec![];
        if let Err(error) = walk(&root.join("manifests"), "", 4, &mut manifests) {
            unread.push(error);
        }
        for (name, path) in manifests {
            let Some(model) = read(root, &name, &path) else {
                continue;
            };
            if !found
                .iter()
                .any(|other| (&other.name, &other.tag) == (&model.name, &model.tag))
            {
                found.push(model);
            }
        }
    }
    found
}

/// The model of a manifest; nothing where it is none, or is not whole.
fn read(root: &Path, name: &str, path: &Path) -> Option<OllamaModel> {
    let parts: Vec<&str> = name.split('/').collect();
    let (name, tag) = match parts[..] {
        [HOST, LIBRARY, name, tag] => (name.to_owned(), tag),
        [HOST, user, name, tag] => (format!("{user}/{name}"), tag),
        [host, user, name, tag] => (format!("{host}/{user}/{name}"), tag),
        _ => return None,
    };
    let manifest: Manifest = json(path)?;
    let weights = manifest
        .layers
        .iter()
        .find(|layer| layer.media_type == WEIGHTS)?;
    let path = blob(root, weights)?;
    let config: Option<Config> = manifest.config.and_then(|layer| json(&blob(root, &layer)?));
    Some(OllamaModel {
        name,
        tag: tag.to_owned(),
        quantisation: config
            .and_then(|config| config.file_type)
            .filter(|kind| !kind.is_empty()),
        bytes: fs::metadata(&path)
            .ok()
            .filter(|there| there.is_file())?
            .len(),
        path,
    })
}

/// The file with the bytes of a layer. What is no checksum names no file.
fn blob(root: &Path, layer: &Layer) -> Option<PathBuf> {
    let sum = Sum::read(layer.digest.strip_prefix("sha256:")?)?;
    let name = format!("sha256-{}", sum.as_str());
    Some(root.join("blobs").join(name))
}

fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let there = fs::metadata(path).ok()?;
    if !there.is_file() || there.len() > LONGEST {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The model of a name and a tag. Without a tag it is `latest`, or the only one.
///
/// # Errors
/// [`HubError::Several`].
pub(super) fn choose<'a>(
    models: &'a [OllamaModel],
    name: &str,
    tag: Option<&str>,
) -> Result<Option<&'a OllamaModel>, HubError> {
    let named: Vec<_> = models
        .iter()
        .filter(|model| model.name.eq_ignore_ascii_case(name))
        .collect();
    let tagged = |tag: &str| {
        named
            .iter()
            .find(|model| model.tag.eq_ignore_ascii_case(tag))
            .copied()
    };
    if let Some(tag) = tag {
        return Ok(tagged(tag));
    }
    match (tagged(LATEST), named.as_slice()) {
        (Some(latest), _) => Ok(Some(latest)),
        (None, []) => Ok(None),
        (None, [one]) => Ok(Some(one)),
        (None, several) => {
            let tags = several
                .iter()
                .map(|model| format!("ollama:{name}:{}", model.tag));
            Err(HubError::Several {
                repo: format!("ollama's {name}"),
                wanted: None,
                found: plural::named(tags, several.len()),
            })
        }
    }
}
