//! Macros that take more arguments than they name: `varargs` and `kwargs`, defaults that name other arguments, and namespaces that a macro
//! sets. `minijinja` has none of them, so they are written into the declaration, and a call fills them.

use std::fmt;
use std::sync::Arc;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, ObjectRepr, Tuple};
use minijinja::{Error, State, Value};

/// The names by which a macro reads what it was given beyond its arguments.
const EXTRA: [(&str, &str); 2] = [("varargs", "()"), ("kwargs", "{}")];

/// A macro that is being read.
#[derive(Default)]
struct Declared<'s> {
    /// The names of the macro's arguments.
    names: Vec<&'s str>,
    /// The names of [`EXTRA`] that it reads.
    reads: Vec<&'s str>,
    /// The text that is written at the beginning of the macro's body.
    prelude: String,
    /// The namespaces that it sets.
    sets: Vec<&'s str>,
    /// The end of its list of arguments, and whether more may follow without a comma.
    close: usize,
    bare: bool,
    /// The beginning of its body.
    body: usize,
    /// The sign before the end of its tag.
    sign: &'s str,
}

/// `source` with what macros read declared as arguments. Lines keep their numbers.
///
/// # Errors
/// An error where `source` cannot be read.
pub(super) fn declared(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    if !source.contains("macro") {
        return Ok(source.to_owned());
    }
    let tokens: Vec<_> = tokenize(source, false, syntax.clone()).collect::<Result<_, _>>()?;
    let mut edits: Vec<(usize, usize, String)> = Vec::new();
    let mut open: Vec<Declared<'_>> = Vec::new();
    let mut at = 0;
    while let Some((token, _)) = tokens.get(at) {
        let next = |on: usize| tokens.get(at + on).map(|(token, _)| token);
        match (token, next(1), next(2), next(3)) {
            (Token::BlockStart, Some(Token::Ident("macro")), Some(_), Some(Token::ParenOpen)) => {
                let (found, end) = arguments(source, &tokens, at + 4, &mut edits);
                open.push(found);
                at = end;
                continue;
            }
            (Token::BlockStart, Some(Token::Ident("endmacro")), _, _) => {
                edits.extend(open.pop().into_iter().flat_map(Declared::edits));
            }
            (Token::BlockStart, Some(Token::Ident("set")), Some(Token::Ident(name)), dot) => {
                if let (Some(found), Some(Token::Dot)) = (open.last_mut(), dot) {
                    found.sets.push(*name);
                }
            }
            (Token::Ident(name), after, _, _) => {
                let before = at.checked_sub(1).map(|at| &tokens[at].0);
                let extra = EXTRA.iter().any(|(extra, _)| extra == name);
                let other =
                    matches!(before, Some(Token::Dot)) || matches!(after, Some(Token::Assign));
                if let (Some(found), true, false) = (open.last_mut(), extra, other) {
                    found.reads.push(*name);
                }
            }
            _ => {}
        }
        at += 1;
    }
    edits.sort_by_key(|(from, _, _)| *from);
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    for (from, to, text) in edits {
        out += source.get(copied..from).unwrap_or_default();
        out += &text;
        copied = to;
    }
    Ok(out + source.get(copied..).unwrap_or_default())
}

/// Reads the arguments of a macro, from behind the parenthesis on. Returned is also where its tag ends.
fn arguments<'s>(
    source: &'s str,
    tokens: &[(Token<'s>, minijinja::machinery::Span)],
    start: usize,
    edits: &mut Vec<(usize, usize, String)>,
) -> (Declared<'s>, usize) {
    let mut found = Declared {
        bare: true,
        ..Declared::default()
    };
    let mut depth = 0_usize;
    let mut at = start;
    // Where the default begins that is being read, and whether it names an argument.
    let mut default: Option<(usize, bool)> = None;
    while let Some((token, span)) = tokens.get(at) {
        let ends = depth == 0 && matches!(token, Token::Comma | Token::ParenClose);
        if let (true, Some((from, true))) = (ends, default.take_if(|_| ends)) {
            // It is computed in the body, where the other arguments are known.
            let to = span.start_offset as usize;
            let value = source.get(from..to).unwrap_or_default();
            if let Some(name) = found.names.last() {
                found.prelude += &format!(
                    "{{% if {name} is undefined %}}{{% set {name} {value} %}}{{% endif %}}"
                );
                edits.push((from, to, "=undefined".to_owned()));
            }
        }
        match token {
            Token::ParenClose if depth == 0 => {
                found.close = span.start_offset as usize;
                break;
            }
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                depth = depth.saturating_sub(1);
            }
            Token::Assign if depth == 0 => default = Some((span.start_offset as usize, false)),
            Token::Ident(name) => match &mut default {
                Some((_, names)) => *names |= found.names.contains(name),
                None => found.names.push(*name),
            },
            _ => {}
        }
        found.bare = depth == 0 && matches!(token, Token::Comma);
        at += 1;
    }
    found.bare |= found.names.is_empty();
    if let Some(end) = source.get(found.close..).and_then(|rest| rest.find("%}")) {
        found.body = found.close + end + 2;
        found.sign = match source[found.close..found.body].chars().rev().nth(2) {
            Some('-') => "-",
            Some('+') => "+",
            _ => "",
        };
    }
    while tokens
        .get(at)
        .is_some_and(|(token, _)| !matches!(token, Token::BlockEnd))
    {
        at += 1;
    }
    (found, at)
}

impl Declared<'_> {
    fn edits(self) -> impl Iterator<Item = (usize, usize, String)> {
        let mut names = String::new();
        for (name, empty) in EXTRA {
            if self.reads.contains(&name) && !self.names.contains(&name) {
                if !self.bare || !names.is_empty() {
                    names += ", ";
                }
                names += &format!("{name}={empty}");
            }
        }
        let mut prelude = self.prelude;
        let mut sets = self.sets;
        sets.sort_unstable();
        sets.dedup();
        for name in sets {
            // A macro knows what it reads, and it would not know what it only sets.
            prelude += &format!("{{% if {name} %}}{{% endif %}}");
        }
        if prelude.ends_with("%}") {
            prelude.truncate(prelude.len() - 2);
            prelude += &format!("{}%}}", self.sign);
        }
        let edits = [
            (self.close, self.close, names),
            (self.body, self.body, prelude),
        ];
        edits.into_iter().filter(|(_, _, text)| !text.is_empty())
    }
}

/// A macro that takes what its declaration names, and more where it reads that.
struct Macro {
    name: Value,
    /// The arguments that it names, and those of [`EXTRA`].
    names: Vec<Value>,
    inner: Value,
}

/// The macro with all that Python's caller may give it.
///
/// # Errors
/// None but the interpreter's.
pub(super) fn widened(inner: Value) -> Result<Value, Error> {
    Ok(Value::from_object(Macro {
        name: inner.get_attr("name")?,
        names: inner.get_attr("arguments")?.try_iter()?.collect(),
        inner,
    }))
}

impl Macro {
    fn takes(&self, extra: &str) -> bool {
        self.names.iter().any(|name| name.as_str() == Some(extra))
    }

    /// The arguments in the form that the declaration has.
    fn sorted(&self, args: &[Value]) -> Result<Vec<Value>, Error> {
        let (given, named) = match args.split_last() {
            Some((last, given)) if last.is_kwargs() => (given, Kwargs::try_from(last.clone())?),
            _ => (args, Kwargs::from_iter(Vec::<(String, Value)>::new())),
        };
        let extra = |name: &Value| EXTRA.iter().any(|(extra, _)| name.as_str() == Some(extra));
        let own = self.names.iter().filter(|name| !extra(name)).count();
        let takes = EXTRA.map(|(name, _)| self.takes(name));
        let (known, more) = given.split_at(given.len().min(own));
        let mut all: Vec<Value> = known.to_vec();
        if !takes[0] {
            all.extend_from_slice(more);
        }
        let mut passed = Vec::new();
        let mut left = Vec::new();
        for name in named.args() {
            let value = named.get::<Value>(name)?;
            let known = name == "caller" || !takes[1] || self.takes(name);
            let list = if known { &mut passed } else { &mut left };
            list.push((name.to_owned(), value));
        }
        if takes[0] {
            let more = Value::from(Tuple::from(more.to_vec()));
            passed.push(("varargs".to_owned(), more));
        }
        if takes[1] {
            passed.push(("kwargs".to_owned(), Value::from_pairs(left)));
        }
        all.push(Kwargs::from_iter(passed).into());
        Ok(all)
    }
}

impl fmt::Debug for Macro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<Macro '{}'>", self.name)
    }
}

impl Object for Macro {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "name" => Some(self.name.clone()),
            "arguments" => {
                let own = self
                    .names
                    .iter()
                    .filter(|name| EXTRA.iter().all(|(extra, _)| name.as_str() != Some(extra)));
                Some(Value::from(Tuple::from(own.cloned().collect::<Vec<_>>())))
            }
            "caller" => self.inner.get_attr("caller").ok(),
            "catch_varargs" => Some(Value::from(self.takes("varargs"))),
            "catch_kwargs" => Some(Value::from(self.takes("kwargs"))),
            _ => None,
        }
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        if !self.takes("varargs") && !self.takes("kwargs") {
            return self.inner.call(state, args);
        }
        self.inner.call(state, &self.sorted(args)?)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
