//! The sampling that a model's file or its publisher recommends.

use super::Sampling;
use crate::gguf::{Gguf, Value};
use crate::model::Config;

/// Values for samplers; `None` where nothing is recommended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingValues {
    /// [`Sampling::temperature`](super::Sampling::temperature).
    pub temperature: Option<f32>,
    /// [`Sampling::top_k`](super::Sampling::top_k).
    pub top_k: Option<u32>,
    /// [`Sampling::top_p`](super::Sampling::top_p).
    pub top_p: Option<f32>,
    /// [`Sampling::min_p`](super::Sampling::min_p).
    pub min_p: Option<f32>,
    /// [`Sampling::repeat_penalty`](super::Sampling::repeat_penalty).
    pub repeat_penalty: Option<f32>,
    /// [`Sampling::repeat_last_n`](super::Sampling::repeat_last_n).
    pub repeat_last_n: Option<u32>,
    /// [`Xtc::probability`](super::chooser::Xtc::probability).
    pub xtc_probability: Option<f32>,
    /// [`Xtc::threshold`](super::chooser::Xtc::threshold).
    pub xtc_threshold: Option<f32>,
    /// The version of Mirostat, 0 or 2.
    pub mirostat: Option<u32>,
    /// [`Mirostat::tau`](super::chooser::Mirostat::tau).
    pub mirostat_tau: Option<f32>,
    /// [`Mirostat::eta`](super::chooser::Mirostat::eta).
    pub mirostat_eta: Option<f32>,
}

/// A model whose publisher recommends a sampling. What is not named is off.
#[derive(Debug, PartialEq)]
pub struct Publisher {
    /// The model.
    pub model: &'static str,
    /// The numbers of blocks and tokens by which its files are known.
    sizes: (usize, usize),
    /// A part of the model's name, in lower case, if others have its sizes.
    only: Option<&'static str>,
    /// A part of the name of another model of the same sizes, in lower case.
    not: Option<&'static str>,
    /// Whether the model's answers seldom end by themselves.
    runs_on: bool,
    /// The values where it thinks, or cannot.
    thinking: SamplingValues,
    /// The values where it is told not to think.
    answering: SamplingValues,
}

/// Temperature, top-k, top-p and repeat penalty, and no more.
const fn values(temperature: f32, top_k: u32, top_p: f32, repeat_penalty: f32) -> SamplingValues {
    SamplingValues {
        temperature: Some(temperature),
        top_k: Some(top_k),
        top_p: Some(top_p),
        min_p: Some(0.0),
        repeat_penalty: Some(repeat_penalty),
        repeat_last_n: None,
        xtc_probability: None,
        xtc_threshold: None,
        mirostat: None,
        mirostat_tau: None,
        mirostat_eta: None,
    }
}

/// The recommendations of publishers, and where they are from.
static PUBLISHERS: [Publisher; 4] = [
    // The defaults of GLM-4.7 in its publisher's guide (docs.z.ai/guides/overview/migrate-to-glm-new). Not compared with the model's own
    // card.
    Publisher {
        model: "GLM-4.7-Flash",
        sizes: (47, 154_880),
        only: None,
        not: None,
        runs_on: false,
        thinking: values(1.0, 0, 0.95, 1.0),
        answering: values(1.0, 0, 0.95, 1.0),
    },
    // generation_config.json of the chat model, as others quote it. Not compared with the file itself.
    Publisher {
        model: "DeepSeek-V2-Lite",
        sizes: (27, 102_400),
        only: None,
        // DeepSeek-Coder-V2-Lite.
        not: Some("coder"),
        runs_on: false,
        thinking: values(0.3, 0, 0.95, 1.0),
        answering: values(0.3, 0, 0.95, 1.0),
    },
    // "Recommended Decoding Parameters" in the publisher's README.
    Publisher {
        model: "Youtu-LLM-2B",
        sizes: (32, 128_256),
        only: None,
        not: None,
        runs_on: false,
        thinking: values(1.0, 20, 0.95, 1.05),
        answering: values(0.7, 20, 0.8, 1.0),
    },
    // The built-in model (assets/README.md). With so few parameters it repeats itself without a penalty, and loses its subject with a
    // larger one or a higher temperature (benches/notes.md, "Whether the built-in model follows a chat prompt").
    Publisher {
        model: "Tales 16M",
        sizes: (6, 4096),
        only: Some("tales"),
        not: None,
        runs_on: true,
        thinking: TALES,
        answering: TALES,
    },
];

/// The sampling that suits the built-in model.
const TALES: SamplingValues = SamplingValues {
    min_p: Some(0.2),
    ..values(0.5, 20, 0.95, 1.05)
};

impl Publisher {
    /// The recommended values for a model that is told not to think, or for any other.
    pub fn values(&self, no_thoughts: bool) -> &SamplingValues {
        match no_thoughts {
            true => &self.answering,
            false => &self.thinking,
        }
    }
}

/// The recommended sampling of a model.
#[derive(Debug, Default)]
pub struct Recommended {
    /// The recommendations of its file.
    pub file: SamplingValues,
    /// The recommendations of its publisher.
    pub publisher: Option<&'static Publisher>,
}

impl Recommended {
    /// The recommendations for `gguf`, whose sizes are those of `config`. A value that no sampler takes is ignored with a warning.
    pub fn new(gguf: &Gguf, config: &Config) -> Self {
        let sizes = (config.block_count, config.vocab_size);
        Self {
            file: SamplingValues::of(gguf),
            publisher: publisher(sizes, &names(gguf, config)),
        }
    }

    /// The sampling for a model that is told not to think, or for any other, with seed 0. Where neither file nor publisher recommend a
    /// value it is that of [`Sampling::DEFAULT`]. Samplers that only the host has are not in it.
    pub fn sampling(&self, no_thoughts: bool) -> Sampling {
        let publisher = self.publisher.map(|known| known.values(no_thoughts));
        let all = [Some(&self.file), publisher];
        let all = || all.iter().flatten();
        let number = |of: fn(&SamplingValues) -> Option<f32>, default| {
            all().find_map(|values| of(values)).unwrap_or(default)
        };
        let count = |of: fn(&SamplingValues) -> Option<u32>, default| {
            all().find_map(|values| of(values)).unwrap_or(default)
        };
        let default = Sampling::DEFAULT;
        Sampling {
            temperature: number(|values| values.temperature, default.temperature),
            top_k: count(|values| values.top_k, default.top_k),
            top_p: number(|values| values.top_p, default.top_p),
            min_p: number(|values| values.min_p, default.min_p),
            repeat_penalty: number(|values| values.repeat_penalty, default.repeat_penalty),
            repeat_last_n: count(|values| values.repeat_last_n, default.repeat_last_n),
            ..default
        }
    }

    /// Whether answers are to end with a sentence where the context is nearly full, since the model seldom ends them by itself.
    pub fn ends_sentences(&self) -> bool {
        self.publisher.is_some_and(|publisher| publisher.runs_on)
    }
}

/// The publisher of a model with these numbers of blocks and tokens, and these names in lower case.
fn publisher(sizes: (usize, usize), names: &[String]) -> Option<&'static Publisher> {
    PUBLISHERS.iter().find(|known| {
        let is_called = |called| names.iter().any(|name| name.contains(called));
        known.sizes == sizes
            && known.only.is_none_or(is_called)
            && !known.not.is_some_and(is_called)
    })
}

/// The names that the file gives its model, in lower case.
fn names(gguf: &Gguf, config: &Config) -> Vec<String> {
    let more = ["general.basename", "general.base_model.0.name"];
    let more = more.map(|key| gguf.get_str(key).ok().flatten());
    let more = more.into_iter().flatten().map(str::to_lowercase);
    more.chain([config.name.to_lowercase()]).collect()
}

impl SamplingValues {
    /// The keys `general.sampling.*`, as llama.cpp names them. A number of -1 keeps all tokens, or looks at all.
    fn of(gguf: &Gguf) -> Self {
        let number = |name, holds: fn(f32) -> bool| {
            read(gguf, name, |value| {
                let integer = value.as_u32().map(|value| value as f32);
                value.as_f32().or(integer).filter(|v| holds(*v))
            })
        };
        let count = |name, below: u32| {
            read(gguf, name, |value| match signed(value)? {
                -1 => Some(below),
                count => u32::try_from(count).ok(),
            })
        };
        let share = |v: f32| (0.0..=1.0).contains(&v);
        let not_negative = |v: f32| v.is_finite() && v >= 0.0;
        Self {
            temperature: number("temp", not_negative),
            top_k: count("top_k", 0),
            top_p: number("top_p", share),
            min_p: number("min_p", share),
            repeat_penalty: number("penalty_repeat", |v| v.is_normal() && v > 0.0),
            repeat_last_n: count("penalty_last_n", u32::MAX),
            xtc_probability: number("xtc_probability", share),
            xtc_threshold: number("xtc_threshold", share),
            mirostat: read(gguf, "mirostat", |value| {
                value.as_u32().filter(|version| [0, 2].contains(version))
            }),
            mirostat_tau: number("mirostat_tau", not_negative),
            mirostat_eta: number("mirostat_eta", not_negative),
        }
    }
}

fn signed(value: &Value) -> Option<i64> {
    match *value {
        Value::I8(v) => Some(v.into()),
        Value::I16(v) => Some(v.into()),
        Value::I32(v) => Some(v.into()),
        Value::I64(v) => Some(v),
        _ => value.as_u64()?.try_into().ok(),
    }
}

fn read<T>(gguf: &Gguf, name: &str, value: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let key = format!("general.sampling.{name}");
    let found = gguf.get(&key)?;
    let value = value(found);
    if value.is_none() {
        let kind = found.type_name();
        log::warn!(
            "{key} of the model's file is ignored: its value, of type {kind}, is none that this sampler takes"
        );
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufWriter;

    /// The values that are read from a file with these keys.
    fn of(keys: &[(&str, Value)]) -> SamplingValues {
        let mut writer = GgufWriter::new(Vec::new());
        for (name, value) in keys {
            let key = format!("general.sampling.{name}");
            writer.metadata(&key, value.clone()).expect("a new key");
        }
        let data = writer.begin_data().expect("memory takes it");
        let bytes = data.finish().expect("memory takes it");
        let gguf = Gguf::from_bytes(bytes, "keys");
        SamplingValues::of(&gguf.expect("it was just written"))
    }

    #[test]
    fn the_files_keys_are_read() {
        assert_eq!(of(&[]), SamplingValues::default());
        let found = of(&[
            ("temp", Value::F32(0.6)),
            ("top_k", Value::I32(20)),
            ("top_p", Value::F32(0.9)),
            ("min_p", Value::F64(0.0)),
            ("penalty_repeat", Value::F32(1.05)),
            ("penalty_last_n", Value::I32(-1)),
            ("mirostat", Value::I32(2)),
            ("mirostat_tau", Value::U32(4)),
        ]);
        let expected = SamplingValues {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.9),
            min_p: Some(0.0),
            repeat_penalty: Some(1.05),
            repeat_last_n: Some(u32::MAX),
            mirostat: Some(2),
            mirostat_tau: Some(4.0),
            ..SamplingValues::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn models_of_the_same_sizes_are_told_apart_by_their_names() {
        let model = |sizes, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| name.to_lowercase()).collect();
            publisher(sizes, &names).map(|publisher| publisher.model)
        };
        let lite = (27, 102_400);
        assert_eq!(
            model(lite, &["DeepSeek V2 Lite Chat"]),
            Some("DeepSeek-V2-Lite")
        );
        assert_eq!(model(lite, &["my-model"]), Some("DeepSeek-V2-Lite"));
        assert_eq!(model(lite, &["DeepSeek Coder V2 Lite Instruct"]), None);
        assert_eq!(model(lite, &["mine", "DeepSeek-Coder-V2-Lite"]), None);
        assert_eq!(model((47, 154_880), &["coder"]), Some("GLM-4.7-Flash"));
        assert_eq!(model((47, 102_400), &["DeepSeek V2 Lite"]), None);
        let tales = (6, 4096);
        assert_eq!(model(tales, &["Tales 16M"]), Some("Tales 16M"));
        assert_eq!(model(tales, &["mine"]), None);
    }

    #[test]
    fn a_sampling_has_the_values_of_the_file_then_of_the_publisher_then_of_llama_cpp() {
        let mut known = Recommended::default();
        assert_eq!(known.sampling(false), Sampling::DEFAULT);
        known.publisher = publisher((32, 128_256), &[]);
        known.file.top_k = Some(7);
        known.file.repeat_last_n = Some(9);
        let expected = Sampling {
            temperature: 1.0,
            top_k: 7,
            top_p: 0.95,
            min_p: 0.0,
            repeat_penalty: 1.05,
            repeat_last_n: 9,
            ..Sampling::GREEDY
        };
        assert_eq!(known.sampling(false), expected);
        let answering = known.sampling(true);
        assert_eq!((answering.temperature, answering.top_p), (0.7, 0.8));
        assert!(!known.ends_sentences());
        let tales = publisher((6, 4096), &["tales 16m".to_owned()]);
        (known.publisher, known.file) = (tales, SamplingValues::default());
        let expected = Sampling {
            temperature: 0.5,
            top_k: 20,
            min_p: 0.2,
            repeat_penalty: 1.05,
            ..Sampling::DEFAULT
        };
        assert_eq!(known.sampling(true), expected);
        assert!(known.ends_sentences());
    }

    #[test]
    fn values_that_no_sampler_takes_are_ignored() {
        let found = of(&[
            ("temp", Value::F32(f32::NAN)),
            ("top_k", Value::I32(-7)),
            ("top_p", Value::F32(1.5)),
            ("min_p", Value::String("low".into())),
            ("penalty_repeat", Value::F32(0.0)),
            ("xtc_threshold", Value::Bool(true)),
            ("mirostat", Value::I32(1)),
        ]);
        assert_eq!(found, SamplingValues::default());
    }
}
