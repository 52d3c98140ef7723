//! Slices of texts and lists, as Python takes them.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::budget::work;
use super::python::failed;

/// The part of `of` that `[from:to:step]` names.
///
/// # Errors
/// If `of` has no parts, or a bound is no whole number.
pub(super) fn cut(of: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let mut whole = [None; 3];
    for (bound, whole) in bounds.into_iter().zip(&mut whole) {
        *whole = match bound.is_none() {
            true => None,
            false => Some(bound.as_i64().ok_or_else(|| {
                failed(format!(
                    "a slice has the bound {bound}; a whole number was expected"
                ))
            })?),
        };
    }
    if let Some(text) = of.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let kept = places(chars.len(), whole)?.map(|at| chars[at]);
        return Ok(Value::from(kept.collect::<String>()));
    }
    let items = match of.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            of.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?
        }
        ValueKind::Undefined | ValueKind::None => Vec::new(),
        other => {
            return Err(failed(format!(
                "{other} has no slices; a text or a list was expected"
            )));
        }
    };
    work(items.len() as u64)?;
    let kept = places(items.len(), whole)?.map(|at| items[at].clone());
    let kept: Vec<Value> = kept.collect();
    Ok(match of.is_tuple() {
        true => Value::from(Tuple::from(kept)),
        false => Value::from(kept),
    })
}

/// The places that a slice of `len` items takes, in their order.
fn places(
    len: usize,
    [from, to, step]: [Option<i64>; 3],
) -> Result<impl Iterator<Item = usize>, Error> {
    let (len, step) = (len as i64, step.unwrap_or(1));
    if step == 0 {
        return Err(failed("a slice has the step 0"));
    }
    // Backwards the places go from the last one to before the first.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(at) if at < 0 => at.saturating_add(len).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (first, end) = match step > 0 {
        true => (place(from, low), place(to, high)),
        false => (place(from, high), place(to, low)),
    };
    let places = std::iter::successors(Some(first), move |at| at.checked_add(step));
    let within = move |at: &i64| if step > 0 { *at < end } else { *at > end };
    Ok(places.take_while(within).map(|at| at as usize))
}
