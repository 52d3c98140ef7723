//! Bounds of numbers. llguidance computes with them in double precision, and with integers of 64 bits.

use serde_json::{Map, Number, Value, json};

use super::SchemaError;
use super::probe::takes;
use super::walk::Walker;

/// The keywords of bounds, whether each is a lower one, and whether it excludes its value.
const BOUNDS: [(&str, bool, bool); 4] = [
    ("minimum", true, false),
    ("maximum", false, false),
    ("exclusiveMinimum", true, true),
    ("exclusiveMaximum", false, true),
];

impl Walker<'_> {
    /// Writes what `map` says of numbers to `out`.
    pub(super) fn numbers(
        &mut self,
        map: &Map<String, Value>,
        integers: bool,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        for (keyword, lower, _) in BOUNDS {
            match map.get(keyword) {
                None | Some(Value::Null | Value::Bool(false)) => {}
                // Drafts 3 and 4 say so that the bound itself is excluded.
                Some(Value::Bool(true)) if keyword.starts_with("exclusive") => {
                    let plain = if lower { "minimum" } else { "maximum" };
                    if let Some(bound) = out.remove(plain) {
                        out.insert(keyword.to_owned(), bound);
                    }
                }
                Some(Value::Number(bound)) => match inside(bound, lower, integers) {
                    Some(bound) => drop(out.insert(keyword.to_owned(), bound.into())),
                    // No number in double precision is beyond the largest.
                    None if bound.as_f64().is_some_and(|bound| bound.abs() >= f64::MAX) => {}
                    None => self.lose(format!("{keyword} {bound}")),
                },
                Some(other) => return Err(self.wrong(keyword, other, "a number")),
            }
        }
        match map.get("multipleOf") {
            None | Some(Value::Null) => {}
            Some(Value::Number(step)) if step.as_f64().is_some_and(|step| step > 0.0) => {
                out.insert("multipleOf".to_owned(), step.clone().into());
            }
            Some(other) => return Err(self.wrong("multipleOf", other, "a number above 0")),
        }
        let kind = if integers { "integer" } else { "number" };
        let taken = |out: &Map<String, Value>| {
            let mut probe = json!({ "type": kind });
            for keyword in BOUNDS.iter().map(|bound| bound.0).chain(["multipleOf"]) {
                if let Some(value) = out.get(keyword) {
                    probe[keyword] = value.clone();
                }
            }
            takes(probe)
        };
        for keyword in [
            "multipleOf",
            "maximum",
            "exclusiveMaximum",
            "minimum",
            "exclusiveMinimum",
        ] {
            if out.contains_key(keyword) && !taken(out) {
                out.shift_remove(keyword);
                self.lose(keyword);
            }
        }
        Ok(())
    }
}

/// The nearest bound in double precision that lets no value through which the given one excludes. `None` means that none can be followed.
fn inside(bound: &Number, lower: bool, integers: bool) -> Option<Number> {
    let exact = bound.as_i64().map(i128::from);
    let exact = exact.or_else(|| bound.as_u64().map(i128::from));
    let mut near = bound.as_f64()?;
    if let Some(exact) = exact {
        let rounded = near as i128;
        near = match lower {
            true if rounded < exact => near.next_up(),
            false if rounded > exact => near.next_down(),
            _ => near,
        };
        // Two integers of 64 bits are their own ends, and the next number in double precision towards 0 is followed.
        if exact.unsigned_abs() >= 1 << 63 && integers && i64::try_from(exact).is_ok() {
            near = if lower { near.next_up() } else { near };
        }
    }
    let most = if integers {
        9.223_372_036_854_775e18
    } else {
        1e18
    };
    if near.abs() > most {
        return None;
    }
    match near.fract() == 0.0 && near.abs() < 9e15 {
        true => Some((near as i64).into()),
        false => Number::from_f64(near),
    }
}
