//! The metadata of a file: its pairs in order, each found by its key.

use std::collections::HashMap;

use super::{GgufError, Value};

/// Pairs of keys and values, every key once.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub pairs: Vec<(String, Value)>,
    /// The index of each key.
    keys: HashMap<String, usize>,
    /// The string in a key's value that is not valid UTF-8, by the key. Such a value can be shown but not used.
    invalid: HashMap<String, String>,
}

impl Metadata {
    /// Adds a pair.
    ///
    /// # Errors
    /// For a key that is there already.
    pub fn push(&mut self, key: String, value: Value) -> Result<(), GgufError> {
        if self.keys.insert(key.clone(), self.pairs.len()).is_some() {
            return Err(GgufError::key(&key, "appears twice"));
        }
        self.pairs.push((key, value));
        Ok(())
    }

    /// Notes that a string in the value of `key` is not valid UTF-8, so that whoever reads the key is told.
    pub fn note_invalid(&mut self, key: &str, what: String) {
        log::warn!("{what} is not valid UTF-8, so it can only be shown");
        self.invalid.insert(key.to_owned(), what);
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|&i| &self.pairs[i].1)
    }

    /// The value of `key` as what `convert` makes of it, if it is there.
    ///
    /// # Errors
    /// For a value that cannot be converted, or that is not valid UTF-8.
    pub fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        if let Some(what) = self.invalid.get(key) {
            return Err(GgufError::InvalidUtf8 { what: what.clone() });
        }
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(GgufError::wrong_type(key, value, expected)),
        }
    }
}
