//! The built-in model, as it is and with something changed, written to a file.

use std::path::Path;

use glimt::gguf::{Gguf, GgufWriter, Value};
use glimt::synth::{ModelName, Recipe, SynthOptions};

/// The built-in model.
pub const EMBEDDED: &[u8] = include_bytes!("../../assets/tales-q4_k_m.gguf");

/// Writes a file, and returns its path.
pub fn write(directory: &Path, name: &str, content: &[u8]) -> String {
    let path = directory.join(name);
    std::fs::write(&path, content).expect("the temporary directory is writable");
    path.to_str()
        .expect("temporary paths are UTF-8 here")
        .to_owned()
}

/// The template of a model that thinks unless it is told not to.
const THINKING: &str = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>\
     Once upon a time there was a fox. He\
     {% if enable_thinking is defined and not enable_thinking %}</think>{% else %}<think>{% endif %}";

/// The built-in model with `metadata` in place of its own, and its tensors as `change` leaves their bytes.
pub fn edited(
    directory: &Path,
    name: &str,
    metadata: &[(&str, Value)],
    change: impl Fn(&str, &mut Vec<u8>),
) -> String {
    let model = Gguf::from_bytes(EMBEDDED, "built-in model").expect("it is sound");
    edited_of(&model, directory, name, metadata, change)
}

/// A model with something changed.
pub fn edited_of(
    model: &Gguf,
    directory: &Path,
    name: &str,
    metadata: &[(&str, Value)],
    change: impl Fn(&str, &mut Vec<u8>),
) -> String {
    let mut writer = GgufWriter::new(Vec::new());
    for (key, value) in model.metadata() {
        let other = metadata.iter().find(|(changed, _)| *changed == key);
        let value = other.map_or(value, |(_, other)| other);
        writer
            .metadata(key, value.clone())
            .expect("keys are unique");
    }
    for (key, value) in metadata.iter().filter(|(key, _)| model.get(key).is_none()) {
        writer.metadata(key, value.clone()).expect("it is new");
    }
    for tensor in model.tensors() {
        let added = writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
        added.expect("names are unique");
    }
    let mut data = writer.begin_data().expect("memory takes it");
    for tensor in model.tensors() {
        let mut bytes = model.data(tensor).to_vec();
        change(&tensor.name, &mut bytes);
        data.write(&bytes).expect("memory takes it");
    }
    let bytes = data.finish().expect("all tensors are there");
    write(directory, name, &bytes)
}

/// A synthetic model of two layers for 8192 tokens, with a chat template. Its vocabulary is bytes, and its text is noise.
pub fn synthetic(directory: &Path) -> String {
    synthetic_of(directory, ModelName::TinyDs2)
}

/// [`synthetic`] of these shapes.
pub fn synthetic_of(directory: &Path, model: ModelName) -> String {
    let path = directory.join("plain.gguf");
    let options = SynthOptions {
        layers: Some(2),
        ..SynthOptions::default()
    };
    glimt::synth::write(model, Recipe::Q4_0, &path, &options, &mut |_, _| {})
        .expect("there is room");
    let model = Gguf::open(&path).expect("it was just written");
    let template = "{% for m in messages %}\n{{ m.content }}{% endfor %}\n";
    let template = ("tokenizer.chat_template", Value::from(template));
    edited_of(&model, directory, "synthetic.gguf", &[template], |_, _| {})
}

/// A template that makes a model think, for `tokenizer.chat_template`.
pub fn thinking_template() -> Value {
    Value::from(THINKING)
}

/// The built-in model as one that thinks first. It has learnt no thoughts, and never ends them.
pub fn thinking(directory: &Path) -> String {
    let template = ("tokenizer.chat_template", thinking_template());
    edited(directory, "thinking.gguf", &[template], |_, _| {})
}
