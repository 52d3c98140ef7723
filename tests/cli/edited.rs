//! The built-in model with something changed, written to a file.

use std::path::Path;

use glimt::gguf::{Gguf, GgufWriter, Value};

use super::{EMBEDDED, write};

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
    let model = Gguf::from_static(EMBEDDED, "built-in model").expect("it is sound");
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

/// What makes a model think, for `tokenizer.chat_template`.
pub fn thinking_template() -> Value {
    Value::from(THINKING)
}

/// The built-in model as one that thinks first. It has learnt no thoughts, and never ends them.
pub fn thinking(directory: &Path) -> String {
    let template = ("tokenizer.chat_template", thinking_template());
    edited(directory, "thinking.gguf", &[template], |_, _| {})
}
