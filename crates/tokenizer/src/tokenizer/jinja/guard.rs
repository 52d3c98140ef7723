//! Filters, tests, functions, methods and operators that ask the [`budget`] before they work and after.
//!
//! The environment that renders has nothing else. What they do then is done in another one, [`PLAIN`], which has all of Jinja.

use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Expression, State, Value, filters};

use super::budget::{self, flat, iterated, made, read, repeated, work};
use super::costs;
use super::{filters as own_filters, methods, plain, printf, python, slice, variadic};

/// The names in a template: all words, and the texts that may name a filter or a test.
pub(super) type Names = std::collections::BTreeSet<String>;

/// The names of the filters that stand for operators. A template can name them only in a text, and that does no harm.
pub(super) const COMPARISONS: [&str; 7] = [":eq", ":ne", ":lt", ":le", ":gt", ":ge", ":in"];
pub(super) const PRESERVED: [&str; 8] = [
    ":eq+", ":ne+", ":lt+", ":le+", ":gt+", ":ge+", ":in+", ":notin+",
];
pub(super) const MUL: &str = ":mul";
pub(super) const REM: &str = ":rem";
pub(super) const NEG: &str = ":neg";
pub(super) const MACRO: &str = ":macro";
pub(super) const UNPACKED: &str = ":unpacked";
pub(super) const CONCAT: &str = ":concat";
pub(super) const FLAT: &str = ":flat";
pub(super) const ITEM: &str = ":item";
pub(super) const SLICE: &str = ":slice";
pub(super) const MADE: &str = ":made";
pub(super) const SPLAT: &str = ":splat";
pub(super) const MERGED: &str = ":merged";
pub(super) const ITERATED: &str = ":iterated";
pub(super) const KEPT: &str = ":kept";
pub(super) const CHANGED: &str = ":changed";

/// Filters that call other filters or tests by name, which must be the guarded ones.
const CALLERS: [&str; 5] = ["map", "select", "reject", "selectattr", "rejectattr"];
/// Tests whose cost does not depend on what they look at.
const QUICK_TESTS: [&str; 16] = [
    "defined",
    "undefined",
    "none",
    "boolean",
    "number",
    "integer",
    "int",
    "float",
    "string",
    "sequence",
    "mapping",
    "true",
    "false",
    "odd",
    "even",
    "safe",
];

/// All of Jinja, without limits.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(plain);
static PRODUCT: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| expression("a * b"));
static REST: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| expression("a % b"));
static MINUS: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| expression("-a"));

fn expression(source: &'static str) -> Expression<'static, 'static> {
    let compiled = PLAIN.compile_expression(source);
    compiled.expect("the expression is one of this file")
}

/// The value of an expression. Its error gets the line of the template, not one of its own.
fn evaluated<const N: usize>(
    expression: &Expression<'_, '_>,
    operands: [(&str, Value); N],
) -> Result<Value, Error> {
    let result = expression.eval(Value::from_pairs(operands));
    result.map_err(|error| {
        let detail = error.detail().map(str::to_owned);
        detail.map_or(Error::from(error.kind()), |detail| {
            Error::new(error.kind(), detail)
        })
    })
}

/// Whether there is a filter of this name.
pub(super) fn is_filter(name: &str) -> bool {
    let known = PLAIN.empty_state().apply_filter(name, &[]);
    !known.is_err_and(|error| error.kind() == ErrorKind::UnknownFilter)
}

/// Whether there is a test of this name.
pub(super) fn is_test(name: &str) -> bool {
    let known = PLAIN.empty_state().perform_test(name, &[]);
    !known.is_err_and(|error| error.kind() == ErrorKind::UnknownTest)
}

/// Adds the operators, and what `names` has of filters, tests and functions.
pub(super) fn add(environment: &mut Environment<'_>, names: &Names) {
    add_operators(environment);
    environment.set_unknown_method_callback(|state, value, method, args| {
        read(value)?;
        args.iter().try_for_each(|arg| read(arg).map(drop))?;
        costs::of_method(method, value, args)?;
        made(methods::call(state, value, method, args)?)
    });
    let probe = PLAIN.empty_state();
    environment.add_filter(":map", filters::map);
    environment.add_filter(":select", filters::select);
    environment.add_filter(":reject", filters::reject);
    environment.add_filter(":selectattr", filters::selectattr);
    environment.add_filter(":rejectattr", filters::rejectattr);
    for name in names {
        if is_filter(name) {
            add_filter(environment, name.clone());
        }
        if is_test(name) {
            add_test(environment, name.clone());
        }
        if let Some(function) = probe.lookup(name) {
            add_function(environment, name.clone(), function);
        }
    }
}

fn add_filter(environment: &mut Environment<'_>, name: String) {
    let caller = CALLERS.contains(&name.as_str()).then(|| format!(":{name}"));
    let own = name.clone();
    environment.add_filter(
        own,
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            costs::of_filter(&name, &args)?;
            let result = match &caller {
                Some(caller) => state.apply_filter(caller, &args)?,
                None => PLAIN.empty_state().apply_filter(&name, &args)?,
            };
            costs::result(&name, result)
        },
    );
}

fn add_test(environment: &mut Environment<'_>, name: String) {
    let quick = QUICK_TESTS.contains(&name.as_str());
    let own = name.clone();
    environment.add_test(
        own,
        move |_: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<bool, Error> {
            let args = args.into_values();
            if !quick {
                args.iter().try_for_each(|arg| read(arg).map(drop))?;
            }
            PLAIN.empty_state().perform_test(&name, &args)
        },
    );
}

fn add_function(environment: &mut Environment<'_>, name: String, function: Value) {
    // A range makes its numbers only when they are read.
    let lazy = name == "range";
    environment.add_function(
        name,
        move |_: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let args = args.into_values();
            args.iter().try_for_each(|arg| read(arg).map(drop))?;
            let result = function.call(&mut PLAIN.empty_state(), &args)?;
            if lazy { Ok(result) } else { made(result) }
        },
    );
}

fn add_operators(environment: &mut Environment<'_>) {
    for (place, name) in COMPARISONS.into_iter().enumerate() {
        environment.add_filter(name, move |left: Value, right: Value| {
            compared(place, &left, &right).map(Value::from)
        });
    }
    for (place, name) in PRESERVED.into_iter().enumerate() {
        environment.add_filter(
            name,
            move |left: Value, right: Value| -> Result<Value, Error> {
                let result = compared(place, &left, &right)?;
                Ok(Value::from(vec![Value::from(result), right]))
            },
        );
    }
    environment.add_filter(MUL, |left: Value, right: Value| -> Result<Value, Error> {
        let size = repeated(&left, &right)?;
        if size.is_some_and(|size| size > budget::SIZE) {
            return Err(budget::too_large());
        }
        let [left, right] = match size {
            Some(_) => [left, right].map(counted),
            None => [left, right],
        };
        flat(evaluated(&PRODUCT, [("a", left), ("b", right)])?)
    });
    environment.add_filter(REM, |left: Value, right: Value| -> Result<Value, Error> {
        let Some(text) = left.as_str() else {
            return evaluated(&REST, [("a", left), ("b", right)]);
        };
        read(&left)?;
        read(&right)?;
        flat(Value::from(printf::format(text, &right)?))
    });
    environment.add_filter(NEG, |value: Value| {
        let value = match value.kind() {
            ValueKind::Bool => Value::from(i64::from(value.is_true())),
            _ => value,
        };
        evaluated(&MINUS, [("a", value)])
    });
    environment.add_filter(MACRO, variadic::widened);
    environment.add_filter(
        CONCAT,
        |left: Value, right: Value| -> Result<Value, Error> {
            read(&left)?;
            read(&right)?;
            flat(Value::from(format!("{left}{right}")))
        },
    );
    environment.add_filter(FLAT, flat);
    environment.add_filter(ITEM, |of: Value, key: Value| -> Result<Value, Error> {
        read(&key)?;
        match of.kind() {
            ValueKind::String | ValueKind::Iterable => iterated(&of)?,
            _ => work(1)?,
        }
        of.get_item(&key)
    });
    environment.add_filter(
        SLICE,
        |of: Value, from: Value, to: Value, step: Value| -> Result<Value, Error> {
            iterated(&of)?;
            flat(slice::cut(&of, [&from, &to, &step])?)
        },
    );
    add_containers(environment);
}

/// Adds the operators that make lists and maps, go through them, or keep values.
fn add_containers(environment: &mut Environment<'_>) {
    environment.add_filter(MADE, made);
    environment.add_filter(SPLAT, |lists: Rest<Value>| -> Result<Value, Error> {
        let mut items = Vec::new();
        for list in lists.iter() {
            iterated(list)?;
            for item in list.try_iter()?.checked() {
                let item = item?;
                iterated(&item)?;
                items.push(item);
            }
        }
        flat(Value::from(items))
    });
    environment.add_filter(
        MERGED,
        |maps: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let mut pairs = Vec::new();
            for map in &maps.into_values() {
                iterated(map)?;
                if map.kind() != ValueKind::Map {
                    // The interpreter says what is wrong with it.
                    return Ok(map.clone());
                }
                for key in map.try_iter()?.checked() {
                    let key = key?;
                    let value = map.get_item(&key)?;
                    pairs.push((key, value));
                }
            }
            flat(Value::from_pairs(pairs))
        },
    );
    environment.add_filter(ITERATED, |value: ValueOrKwargs| -> Result<Value, Error> {
        let value = value.into_value();
        iterated(&value)?;
        Ok(value)
    });
    environment.add_filter(UNPACKED, |value: Value| -> Result<Value, Error> {
        iterated(&value)?;
        Ok(match value.as_str() {
            Some(text) => text.chars().map(Value::from).collect(),
            None => value,
        })
    });
    environment.add_filter(KEPT, |value: Value| -> Result<Value, Error> {
        kept(&value)?;
        made(value)
    });
    environment.add_filter(
        CHANGED,
        |state: &mut State<'_, '_>, of: Value, args: Rest<Value>| -> Result<Value, Error> {
            for arg in args.iter() {
                read(arg)?;
                kept(arg)?;
            }
            of.call_method(state, "changed", &args)
        },
    );
}

/// The result of a comparison: `place` is its place in [`PRESERVED`].
fn compared(place: usize, left: &Value, right: &Value) -> Result<bool, Error> {
    read(left)?;
    read(right)?;
    if (2..6).contains(&place) {
        ordered(place, left, right)?;
    }
    Ok(match place {
        0 => left == right,
        1 => left != right,
        2 => left < right,
        3 => left <= right,
        4 => left > right,
        5 => left >= right,
        6 => contains(right, left)?,
        _ => !contains(right, left)?,
    })
}

/// Checks that one of two values can be less than the other: both are numbers, texts or lists.
fn ordered(place: usize, left: &Value, right: &Value) -> Result<(), Error> {
    let group = |value: &Value| match value.kind() {
        ValueKind::Number | ValueKind::Bool => 1,
        ValueKind::String => 2,
        ValueKind::Seq | ValueKind::Iterable => 3,
        _ => 0,
    };
    if group(left) != 0 && group(left) == group(right) {
        return Ok(());
    }
    let sign = ["<", "<=", ">", ">="][place - 2];
    let [left, right] = [left.kind(), right.kind()];
    Err(python::failed(format!(
        "tried to use the {sign} operator on {left} and {right}; two numbers, texts or lists were expected"
    )))
}

fn contains(all: &Value, one: &Value) -> Result<bool, Error> {
    match (all.kind(), one.kind()) {
        (ValueKind::String, ValueKind::String)
        | (ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Undefined, _) => {
            minijinja::tests::is_in(&PLAIN.empty_state(), one, all)
        }
        (of, found) => Err(python::failed(format!(
            "tried to look for {found} in {of}; a text in a text, or anything in a list or mapping, was expected"
        ))),
    }
}

/// How often something is repeated, at least not at all; or what is repeated.
fn counted(value: Value) -> Value {
    match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value < Value::from(0) => Value::from(0),
        _ => value,
    }
}

/// Checks that `value`, which a namespace or a loop is to keep, holds none of these: one that keeps itself would never be forgotten.
fn kept(value: &Value) -> Result<(), Error> {
    let keeps = value.as_object().is_some_and(|object| {
        own_filters::is_namespace(value) || object.type_name().ends_with("::Loop")
    });
    if keeps {
        let detail = "a namespace or a loop cannot be kept in another one";
        return Err(python::failed(detail));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            // The items were read before, so they are not too deep.
            for item in value.try_iter()?.checked() {
                let item = item?;
                work(1)?;
                match value.kind() {
                    ValueKind::Map => kept(&value.get_item(&item)?)?,
                    _ => kept(&item)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
