//! The work and the memory that one rendering may take.
//!
//! `minijinja` counts instructions, and an instruction may take any time: a comparison of two lists that hold themselves often, a filter over
//! a long text. So whatever reads or makes values asks here first ([`guard`](super::guard)). The counts belong to the thread, which renders
//! one template at a time.

use std::cell::Cell;
use std::time::Duration;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use web_time::Instant;

/// The most steps of work that a template may take: one for each value that is looked at, and for 16 bytes of a text. They take about a
/// second.
const WORK: u64 = 30_000_000;
/// The most bytes of all texts and lists that a template may make.
const MADE: u64 = 128 << 20;
/// The most bytes of one text, or of one value with all that is in it.
pub(super) const SIZE: u64 = 16 << 20;
/// The most levels of values within values. JSON that is read has at most 128.
const DEPTH: usize = 200;
/// Time that a template may take in all, in case a step takes far longer than is usual.
const TIME: Duration = Duration::from_secs(1);
/// Steps between two looks at the clock.
const STEPS: u64 = 4096;
/// Bytes that a value takes beside the text in it.
const VALUE: u64 = 16;

/// The rest of a rendering's budget.
#[derive(Clone, Copy)]
struct Left {
    work: u64,
    made: u64,
    /// Work that was left when the clock was looked at last.
    looked: u64,
    /// When the time is over. There is none outside of a rendering.
    end: Option<Instant>,
}

const FULL: Left = Left {
    work: WORK,
    made: MADE,
    looked: WORK,
    end: None,
};

thread_local! {
    static LEFT: Cell<Left> = const { Cell::new(FULL) };
}

/// Begins a rendering, which may take one in `share` of all.
pub(super) fn begin(share: u64) {
    LEFT.set(Left {
        work: WORK / share,
        made: MADE / share,
        looked: WORK / share,
        end: Some(Instant::now() + TIME),
    });
}

/// The error of a template that is stopped.
pub(super) fn stopped(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::OutOfFuel, detail.into())
}

/// The error of a value that is too large.
pub(super) fn too_large() -> Error {
    stopped(format!(
        "it makes or reads a value of more than {} MiB",
        SIZE >> 20
    ))
}

/// Takes `steps` of work.
pub(super) fn work(steps: u64) -> Result<(), Error> {
    let mut left = LEFT.get();
    left.work = left.work.saturating_sub(steps);
    let looks = left.looked - left.work >= STEPS;
    if looks {
        left.looked = left.work;
    }
    LEFT.set(left);
    if left.work == 0 {
        let detail = format!("it takes more than {WORK} steps of work");
        return Err(stopped(detail));
    }
    if looks && left.end.is_some_and(|end| Instant::now() > end) {
        let detail = format!("it takes longer than {} s", TIME.as_secs());
        return Err(stopped(detail));
    }
    Ok(())
}

/// Takes a text of `bytes` that is made.
pub(super) fn text(bytes: usize) -> Result<(), Error> {
    fits(bytes)?;
    let bytes = bytes as u64;
    work(bytes / 16)?;
    memory(bytes)
}

/// Checks the length of a text that is being made.
pub(super) fn fits(bytes: usize) -> Result<(), Error> {
    match bytes as u64 > SIZE {
        true => Err(too_large()),
        false => Ok(()),
    }
}

/// Takes `bytes` of memory.
fn memory(bytes: u64) -> Result<(), Error> {
    let mut left = LEFT.get();
    left.made = left.made.saturating_sub(bytes);
    LEFT.set(left);
    match left.made {
        0 => Err(stopped(format!(
            "it makes texts and lists of more than {} MiB in all",
            MADE >> 20
        ))),
        _ => Ok(()),
    }
}

/// Takes the work of going over what `value` holds, but not over what that holds.
pub(super) fn iterated(value: &Value) -> Result<(), Error> {
    work(match value.as_str() {
        Some(text) => text.len() as u64 / 16 + 1,
        None => value.len().unwrap_or(0) as u64 + 1,
    })
}

/// Takes the work of reading all of `value`. Returned is its size in bytes.
///
/// # Errors
/// If it is larger or deeper than values may be.
pub(super) fn read(value: &Value) -> Result<u64, Error> {
    let mut size = 0;
    walk(value, 0, &mut size)?;
    Ok(size)
}

fn walk(value: &Value, depth: usize, size: &mut u64) -> Result<(), Error> {
    let text = value.as_str().map_or(0, str::len) as u64;
    *size += VALUE + text;
    if *size > SIZE {
        return Err(too_large());
    }
    work(1 + text / 16)?;
    if depth > DEPTH {
        return Err(stopped(format!(
            "it has values within values, more than {DEPTH} levels deep"
        )));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                walk(&item?, depth + 1, size)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()?.checked() {
                let key = key?;
                walk(&key, depth + 1, size)?;
                walk(&value.get_item(&key)?, depth + 1, size)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Takes the memory of a value that was made of others. What is made lazily is made now, so that nobody reads it twice.
pub(super) fn flat(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => text(value.as_str().map_or(0, str::len))?,
        ValueKind::Seq | ValueKind::Map => memory(VALUE * value.len().unwrap_or(0) as u64)?,
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                work(1)?;
                memory(2 * VALUE)?;
                items.push(item?);
            }
            return Ok(Value::from(items));
        }
        _ => {}
    }
    Ok(value)
}

/// The value of [`flat`], for one that may be deeper than those that it was made of.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    let value = flat(value)?;
    if !matches!(value.kind(), ValueKind::String | ValueKind::Number) {
        read(&value)?;
    }
    Ok(value)
}

/// The size of a text or list that is repeated; `None` for other products.
///
/// # Errors
/// If what is repeated is larger than values may be.
pub(super) fn repeated(left: &Value, right: &Value) -> Result<Option<u64>, Error> {
    let is_repeated = |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Iterable
        )
    };
    let (of, times) = match (is_repeated(left), is_repeated(right)) {
        (true, _) => (left, right),
        (_, true) => (right, left),
        _ => return Ok(None),
    };
    let size = read(of)?;
    let times = times.as_usize().unwrap_or(0) as u64;
    Ok(Some(size.saturating_mul(times)))
}
