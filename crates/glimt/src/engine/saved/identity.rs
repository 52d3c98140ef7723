//! Which model a session file belongs to, and what computed its rows.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::engine::device::Device;
use crate::engine::{Engine, EngineError, Opened};
use crate::gguf::{Gguf, GgufError};
use crate::models::Model;

/// Bytes of each tensor that tell its weights from others.
const SAMPLE: usize = 64;

/// The identity of a model: with all of it alike, cache rows mean the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct Identity {
    architecture: String,
    name: String,
    /// A hash of the sizes and factors that its family reads from the file.
    configuration: String,
    /// A hash of the tensor table: names, types and shapes.
    tensors: String,
    /// A hash of some bytes of each tensor.
    weights: String,
    /// Tokens of the vocabulary, and a hash of them.
    vocabulary: (usize, String),
    /// Layers of the cache, bytes of a position in all of them, and their format. The prediction layer counts if it is in use.
    rows: (usize, u64, String),
    /// A hash of the prediction layer that made its rows: names, types, shapes and some bytes of its matrices. `None` if it is not in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<String>,
}

impl Identity {
    /// The identity of the model that was opened. This reads a few bytes of each tensor.
    pub(in crate::engine) fn of(opened: &Opened) -> Result<Self, EngineError> {
        let (model, config) = (opened.model(), opened.model().config());
        let gguf = model.gguf();
        let prefix = format!("{}.", config.architecture);
        let metadata = gguf.metadata();
        let own = metadata.filter(|(key, _)| key.starts_with(&prefix));
        let tensors = gguf.tensors().iter();
        let tokens = gguf.get_str_array("tokenizer.ggml.tokens")?.unwrap_or(&[]);
        Ok(Self {
            architecture: config.architecture.clone(),
            name: config.name.clone(),
            configuration: hash(own.map(|(key, value)| format!("{key}: {value:?}"))),
            tensors: hash(tensors.map(|t| format!("{} {:?} {:?}", t.name, t.ty, t.dims))),
            weights: weights(gguf, model.has_data())?,
            vocabulary: (config.vocab_size, hash(tokens)),
            rows: (
                config.block_count + usize::from(model.nextn()),
                model.cache_bytes_per_token(),
                model.cache_type().name().to_owned(),
            ),
            layer: model.nextn().then(|| layer(model)),
        })
    }

    /// The identity of the same model without its prediction layer.
    fn without_layer(&self) -> Self {
        let (layers, bytes, format) = &self.rows;
        let used = layers - usize::from(self.layer.is_some());
        let bytes = bytes / (*layers).max(1) as u64 * used as u64;
        Self {
            rows: (used, bytes, format.clone()),
            layer: None,
            ..self.clone()
        }
    }

    /// Whether rows with this identity go with a model of the `other` one. Its prediction layer may be in use for one of them alone, but there are
    /// no two such layers.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        let both = self.layer.as_ref().zip(other.layer.as_ref());
        both.is_none_or(|(a, b)| a == b) && self.without_layer() == other.without_layer()
    }

    /// The types of the caches, where these are all that differs from `own`.
    pub(super) fn types_of_cache<'a>(&'a self, own: &'a Self) -> Option<[&'a str; 2]> {
        let [found, expected] = [self, own].map(|of| of.rows.2.as_str());
        let [read, here] = [self, own].map(Self::without_layer);
        let with_rows_of_own = Self {
            rows: here.rows.clone(),
            ..read
        };
        let is_all = found != expected && with_rows_of_own == here;
        is_all.then_some([found, expected])
    }

    /// Bytes of a token's rows.
    pub(super) fn row_bytes(&self) -> u64 {
        self.rows.1
    }

    /// The name of the first property that differs from `own`, with both values.
    pub(super) fn difference(&self, own: &Self) -> Option<(&'static str, String, String)> {
        let values = |of: &Self| {
            let (tokens, vocabulary) = &of.vocabulary;
            let (layers, bytes, format) = &of.rows;
            [
                ("architecture", of.architecture.clone()),
                ("name", format!("{:?}", of.name)),
                (
                    "layout of cache rows",
                    format!("{bytes} bytes of {format} in {layers} layers"),
                ),
                ("number of tokens in the vocabulary", tokens.to_string()),
                ("hash of the vocabulary", vocabulary.clone()),
                ("hash of the configuration", of.configuration.clone()),
                ("hash of the tensor table", of.tensors.clone()),
                ("hash of the weights", of.weights.clone()),
                (
                    "hash of the prediction layer",
                    of.layer.clone().unwrap_or_default(),
                ),
            ]
        };
        let pairs = values(self).into_iter().zip(values(own));
        let mut different = pairs.filter(|(found, own)| found != own);
        let ((what, found), (_, own)) = different.next()?;
        Some((what, found, own))
    }
}

/// A hash of texts in their order.
fn hash(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut all = Vec::new();
    for text in texts {
        let text = text.as_ref().as_bytes();
        all.extend((text.len() as u64).to_le_bytes());
        all.extend(text);
    }
    format!("{:016x}", XxHash3_64::oneshot(&all))
}

/// A hash of the prediction layer of a model.
fn layer(model: &dyn Model) -> String {
    let weights = model.nextn_weights().into_iter();
    hash(weights.map(|w| {
        let row = match w.has_data() {
            true => w.row(0, w.rows / 2),
            false => &[],
        };
        let bytes = &row[..row.len().min(SAMPLE)];
        let shape = [w.groups, w.rows, w.cols];
        format!("{} {:?} {shape:?} {bytes:?}", w.name, w.ty)
    }))
}

/// A hash of bytes in the middle of each tensor.
fn weights(gguf: &Gguf, has_data: bool) -> Result<String, GgufError> {
    let mut all = Vec::new();
    let tensors = gguf.tensors().iter().filter(|_| has_data);
    for tensor in tensors {
        let length = tensor.byte_len() as usize;
        let taken = length.min(SAMPLE);
        let begin = all.len();
        all.resize(begin + taken, 0);
        gguf.read(tensor, (length - taken) / 2, &mut all[begin..])?;
    }
    Ok(format!("{:016x}", XxHash3_64::oneshot(&all)))
}

/// The program and the device that compute rows: with all of it alike, they compute the same bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Writer {
    version: String,
    device: String,
    driver: String,
    tier: String,
    composed: String,
    /// Experts of a layer that the CPU multiplies at most; files of before that have none.
    #[serde(default)]
    share: u32,
}

impl Writer {
    /// The writer of the rows that `engine` computes.
    pub(super) fn of(engine: &Engine) -> Self {
        let (device, driver, tier) = match &engine.device {
            Device::Cpu { .. } => {
                let device = format!("the {}", engine.cpu_products.device());
                (device, String::new(), "none")
            }
            Device::Gpu(gpu) => {
                let info = &gpu.info;
                let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
                let device = format!("{} ({})", info.name, info.backend);
                (device, driver.trim().to_owned(), gpu.tier.name())
            }
        };
        let kept = engine.precomposed().map(|precomposed| precomposed.kept);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device,
            driver,
            tier: tier.to_owned(),
            composed: kept.unwrap_or_default().name().to_owned(),
            share: engine.cpu_share().map_or(0, |share| share.experts),
        }
    }

    /// The differences from `here`, as a sentence; nothing where all is alike.
    pub(super) fn difference(&self, here: &Self) -> Option<String> {
        let or_none = |text: &String| match text.is_empty() {
            true => "none".to_owned(),
            false => text.clone(),
        };
        let fields = |of: &Self| {
            [
                ("device", of.device.clone()),
                ("driver", or_none(&of.driver)),
                ("tier", of.tier.clone()),
                ("composed weights", of.composed.clone()),
                ("experts that the CPU multiplies", of.share.to_string()),
                ("version of glimt", of.version.clone()),
            ]
        };
        let pairs = fields(self).into_iter().zip(fields(here));
        let different: Vec<_> = pairs
            .filter(|(then, now)| then != now)
            .map(|((what, then), (_, now))| format!("{what}: {then} then, {now} now"))
            .collect();
        (!different.is_empty()).then(|| {
            format!(
                "the cache was computed elsewhere ({}), so answers may differ from those there",
                different.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::draft::{DraftOptions, DraftSource};
    use crate::engine::testing::{small_model, small_model_with_nextn};
    use crate::engine::{CacheType, DeviceChoice, EngineOptions, GpuOptions};
    use crate::gpu::wait::Wait;

    fn identity(source: DraftSource) -> Identity {
        identity_with(source, CacheType::F16)
    }

    fn identity_with(source: DraftSource, cache: CacheType) -> Identity {
        let options = EngineOptions {
            gpu: GpuOptions {
                device: DeviceChoice::Cpu,
                ..GpuOptions::default()
            },
            draft: DraftOptions { source, most: None },
            cache_type: Some(cache),
            ..EngineOptions::default()
        };
        let gguf = match source {
            DraftSource::Off => small_model(),
            _ => small_model_with_nextn(),
        };
        let opened = Opened::of_gguf(gguf, &options).wait().expect("it opens");
        Identity::of(&opened).expect("it reads")
    }

    #[test]
    fn rows_of_one_type_do_not_go_with_a_cache_of_another() {
        let [own, other] = CacheType::ALL.map(|cache| identity_with(DraftSource::Off, cache));
        assert!(!other.goes_with(&own) && !own.goes_with(&other));
        assert_eq!(other.types_of_cache(&own), Some(["q8_0", "f16"]));
        assert_eq!(own.types_of_cache(&own), None);
        let another = Identity {
            name: "another".to_owned(),
            ..other
        };
        assert_eq!(another.types_of_cache(&own), None);
    }

    #[test]
    fn rows_go_with_a_model_unless_another_layer_made_some_of_them() {
        let with = identity(DraftSource::Mtp);
        let without = identity(DraftSource::Ngram);
        assert_eq!(with.without_layer(), without);
        assert!(with.goes_with(&without) && without.goes_with(&with) && with.goes_with(&with));
        let other = Identity {
            layer: Some("another".to_owned()),
            ..with.clone()
        };
        assert!(!with.goes_with(&other) && !other.goes_with(&with));
        assert!(other.goes_with(&without) && without.goes_with(&other));
        let (what, found, expected) = other.difference(&with).expect("they differ");
        assert_eq!(what, "hash of the prediction layer");
        assert_eq!(
            [Some(found), Some(expected)],
            [other.layer, with.layer.clone()]
        );
        // A file without the layer is another model.
        assert!(!with.goes_with(&identity(DraftSource::Off)));
    }
}
