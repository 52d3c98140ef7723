//! Jinja as Hugging Face's `apply_chat_template` has it, on `minijinja`: its filters, functions and methods, and values written as Python
//! writes them.

mod filters;
mod generation;
mod json;
mod methods;
mod python;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, Value};
use serde_json::{Map, Value as Json};

use python::failed;

use super::strftime::strftime_now;

/// Instructions that a template may execute, hundreds of times what a long conversation takes: one that never ends stops in a second.
pub(super) const FUEL: u64 = 10_000_000;

/// The environment of the template `source`, which has the name `key` in it.
///
/// # Errors
/// What `minijinja` says of a template that cannot be parsed.
pub(super) fn environment(key: &str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.expect("the standard delimiters are consistent"));
    environment.set_formatter(|out, _, value| python::write(out, value));
    environment.set_unknown_method_callback(methods::call);
    filters::add(&mut environment);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> { Err(failed(message)) },
    );
    environment.add_function("strftime_now", |format: String| {
        strftime_now(&format)
            .map_err(|error| failed(format!("strftime_now does not support {format:?}: {error}")))
    });
    environment.add_template_owned(key.to_owned(), generation::as_scopes(source))?;
    Ok(environment)
}

/// The template's value for one of JSON.
pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(items) => mapping(items),
    }
}

/// The template's value for an object of JSON.
pub(super) fn mapping(items: &Map<String, Json>) -> Value {
    Value::from_pairs(
        items
            .iter()
            .map(|(key, value)| (key.as_str(), value_of(value))),
    )
}

#[cfg(test)]
mod tests;
