//! Access to the metadata keys of one architecture, with the checks every size and constant gets.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;

use super::ModelError;
use crate::gguf::{Gguf, GgufError, Value};

/// No size of a model is larger; products of two then fit 64 bits easily.
const MAX_SIZE: usize = 1 << 24;

/// Keys that nothing asks for in some models (no experts, no YaRN, one expert group), and that change nothing there.
const WITHOUT_EFFECT: &[&str] = &[
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "feed_forward_length",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "attention.temperature_length",
];

/// The keys `<architecture>.*` of a file.
pub struct Keys<'a> {
    gguf: &'a Gguf,
    prefix: String,
    /// Full names of the keys that were asked for.
    known: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    /// The keys of the file's architecture.
    pub fn of(gguf: &'a Gguf) -> Result<Self, ModelError> {
        let architecture = gguf.require_str("general.architecture")?;
        Ok(Keys {
            gguf,
            prefix: format!("{architecture}."),
            known: RefCell::default(),
        })
    }

    /// Refuses `count` times `width` values where no model has so many, so that later arithmetic cannot overflow.
    pub fn check_product(&self, name: &str, count: usize, width: usize) -> Result<(), ModelError> {
        match count.checked_mul(width) {
            Some(all) if all <= MAX_SIZE => Ok(()),
            _ => {
                let expected = format!("at most {MAX_SIZE} in all for {width} each");
                Err(self.invalid(name, count, expected))
            }
        }
    }

    fn full(&self, name: &str) -> String {
        let full = format!("{}{name}", self.prefix);
        self.known.borrow_mut().insert(full.clone());
        full
    }

    /// A whole number, 0 included. Some converters write a value per layer: they must agree.
    pub fn count(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.full(name);
        let Some(value) = self.gguf.get(&key) else {
            return Ok(None);
        };
        let count = match value {
            Value::Array(_) => match value.as_u32_array().as_deref() {
                Some([first, rest @ ..]) if rest.iter().all(|n| n == first) => *first,
                Some([_, ..]) => {
                    let found = format!("{value} that differ from layer to layer");
                    return Err(self.unsupported(
                        name,
                        found,
                        "one value for all layers".to_owned(),
                    ));
                }
                _ => return Err(GgufError::wrong_type(&key, value, "a whole number").into()),
            },
            _ => self.gguf.require_u32(&key)?,
        };
        if count as usize > MAX_SIZE {
            return Err(self.invalid(name, count, format!("at most {MAX_SIZE}")));
        }
        Ok(Some(count as usize))
    }

    /// A whole number, or `default`.
    pub fn count_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        Ok(self.count(name)?.unwrap_or(default))
    }

    /// A whole number above 0 that must be there.
    pub fn size(&self, name: &str) -> Result<usize, ModelError> {
        match self.count(name)? {
            Some(0) => Err(self.invalid(name, 0, "at least 1".to_owned())),
            Some(size) => Ok(size),
            None => Err(GgufError::missing_key(&self.full(name), "a whole number").into()),
        }
    }

    /// A finite float.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        let found = self.gguf.get_f32(&self.full(name))?.unwrap_or(default);
        if found.is_finite() {
            Ok(found)
        } else {
            Err(self.invalid(name, found, "a finite number".to_owned()))
        }
    }

    /// A finite float above 0; the key must be there if there is no default.
    pub fn positive(&self, name: &str, default: Option<f32>) -> Result<f32, ModelError> {
        let key = self.full(name);
        let found = match (self.gguf.get_f32(&key)?, default) {
            (Some(found), _) => found,
            (None, Some(default)) => default,
            (None, None) => self.gguf.require_f32(&key)?,
        };
        if found.is_finite() && found > 0.0 {
            Ok(found)
        } else {
            Err(self.invalid(name, found, "a finite number above 0".to_owned()))
        }
    }

    /// A truth value, or `default`.
    pub fn bool_or(&self, name: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.gguf.get_bool(&self.full(name))?.unwrap_or(default))
    }

    /// A text, if it is there.
    pub fn str(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.gguf.get_str(&self.full(name))?)
    }

    /// Refuses a key that is there with any value but zero.
    pub fn refuse_nonzero(&self, name: &str) -> Result<(), ModelError> {
        match self.gguf.get(&self.full(name)) {
            None => Ok(()),
            Some(value) if value.as_u64() == Some(0) || value.as_f32() == Some(0.0) => Ok(()),
            Some(value) => Err(self.unsupported(name, value, "models without it".to_owned())),
        }
    }

    /// The refusal of a value that glimt does not support.
    pub fn unsupported(&self, name: &str, found: impl Display, supported: String) -> ModelError {
        ModelError::Unsupported {
            key: self.full(name),
            found: found.to_string(),
            supported,
        }
    }

    /// The refusal of a value that makes no sense.
    pub fn invalid(&self, name: &str, found: impl Display, expected: String) -> ModelError {
        ModelError::Invalid {
            key: self.full(name),
            found: found.to_string(),
            expected,
        }
    }

    /// Logs the architecture's keys that nothing asked for: a newer converter may have written what matters.
    pub fn warn_about_unknown(&self) {
        for name in WITHOUT_EFFECT {
            self.full(name);
        }
        let known = self.known.borrow();
        for (key, value) in self.gguf.metadata() {
            if key.starts_with(&self.prefix) && !known.contains(key) {
                log::warn!("metadata key {key} ({value}) is not known to glimt and has no effect");
            }
        }
    }
}
