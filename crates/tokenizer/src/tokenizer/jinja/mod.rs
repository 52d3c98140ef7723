//! Jinja as Hugging Face's `apply_chat_template` has it, on `minijinja`: its filters, functions and methods, and values written as Python
//! writes them.

mod braces;
mod budget;
#[cfg(test)]
mod compared;
mod costs;
mod filters;
mod generation;
mod groups;
mod guard;
mod json;
#[cfg(test)]
mod limits;
mod methods;
mod printf;
mod program;
mod python;
mod shape;
mod slice;
mod spec;
mod variadic;
mod wrap;

use std::collections::HashSet;

use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, Value};
use serde_json::{Map, Value as Json};

use python::failed;

use super::exact::{self, Exact};
use super::strftime::strftime_now;

/// The most instructions that a template may execute, hundreds of times what a long conversation takes: one that never ends stops in a
/// second.
pub(super) const FUEL: u64 = 10_000_000;
/// Bytes of the stack on which templates are parsed and rendered. They may nest as deep as `shape` and `budget` allow.
#[cfg(not(target_arch = "wasm32"))]
const STACK: usize = 64 << 20;

/// A template that may be rendered.
#[derive(Debug)]
pub(super) struct Program {
    environment: Environment<'static>,
    key: String,
    /// The text of the template, with scopes in place of the tag `generation`.
    source: String,
    /// The part of the limits that the template may take: one in so many.
    share: u64,
}

impl Program {
    /// Parses `source`; `key` names it in messages.
    ///
    /// # Errors
    /// An error where the template cannot be parsed, or is too long or too deep to be.
    pub(super) fn parse(key: &str, source: &str) -> Result<Self, Error> {
        on_large_stack(|| {
            // Python reads every end of a line as a newline.
            let source = &source.replace("\r\n", "\n").replace('\r', "\n");
            let names = shape::check(source, &syntax())?;
            let mut environment = Environment::empty();
            environment.set_fuel(Some(FUEL));
            environment.set_formatter(|out, _, value| {
                budget::read(value)?;
                python::write(out, value)
            });
            guard::add(&mut environment, &names);
            let source = generation::as_scopes(source);
            let source = variadic::declared(&source, &syntax())?;
            shape::parsed(&parse(&source, key, syntax())?)?;
            Ok(Self {
                environment,
                key: key.to_owned(),
                source,
                share: 1,
            })
        })
    }

    /// Lets it take only one in `share` of what templates may.
    #[cfg(test)]
    pub(super) fn take_less(&mut self, share: u64) {
        self.environment.set_fuel(Some(FUEL / share));
        self.share = share;
    }

    /// The variables that the template reads and does not set.
    ///
    /// # Errors
    /// An error where the template cannot be parsed.
    pub(super) fn variables(&self) -> Result<HashSet<String>, Error> {
        on_large_stack(|| {
            let mut environment = Environment::empty();
            environment.set_syntax(syntax());
            let template = environment.template_from_named_str(&self.key, &self.source)?;
            Ok(template.undeclared_variables(false))
        })
    }

    /// The text that the template makes of `variables`.
    ///
    /// # Errors
    /// Where the template fails, or where it is stopped: `ErrorKind::OutOfFuel` with a detail.
    pub(super) fn render(&self, variables: Value) -> Result<String, Error> {
        on_large_stack(|| {
            budget::begin(self.share);
            let parsed = parse(&self.source, &self.key, syntax())?;
            let names = (self.key.as_str(), self.source.as_str());
            let text = program::render(&self.environment, names, &parsed, variables)?;
            budget::text(text.len())?;
            Ok(text)
        })
    }
}

fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    syntax.expect("the standard delimiters are consistent")
}

/// Runs `work` on a stack of its own, which is large enough for what may be nested. A browser has only one stack.
#[cfg(target_arch = "wasm32")]
fn on_large_stack<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    work()
}

/// Runs `work` on a stack of its own, which is large enough for what may be nested.
#[cfg(not(target_arch = "wasm32"))]
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work);
        let thread = thread.map_err(|error| {
            failed(format!(
                "no thread could be started for the template: {error}"
            ))
        })?;
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err(failed("the interpreter of templates failed within itself")))
    })
}

/// An environment with all of Jinja, and without limits.
fn plain() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(false);
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
    environment
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
        Json::String(text) => match exact::digits(text) {
            Some(digits) => Exact::value(digits),
            None => Value::from(text.as_str()),
        },
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
