//! Calls held against what their kernels declare, without a device: names, roles, parameters, and whether every buffer is large enough
//! for the largest replay. Shaders run unchecked, so this is what proves that no index leaves its buffer.

use super::buffer::{Buffer, Range, Role};
use super::call::{Block, Call, Extent, Most, State, Word, extent};
use super::pipeline::Spec;
use super::shader::{Declared, Expanded, Variant, expand, kernel_source};
use super::{GpuError, Tier};
use crate::quant::activation::Activation;
use crate::quant::repack::{plane_bytes, shader_module, sub_plane_words};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

/// The most slices of the context of all tokens of a step together, unless there are more tokens: what bounds the partial sums of the
/// attention. Tokens of several sequences may each have one more.
pub const MAX_SLICES: usize = 256;

/// A call in the order of its kernel's declarations.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The pipeline.
    pub spec: Spec,
    /// Bindings 0, 1, 2...
    pub bindings: Vec<Range>,
    /// The binding that takes another buffer per replay or block, and those buffers.
    pub alternatives: Option<(usize, Vec<Range>)>,
    /// The parameters.
    pub params: Vec<Word>,
    /// The buffer from which the number of its workgroups is read.
    pub counts: Option<Buffer>,
    /// Whether a level begins with it.
    pub begins_level: bool,
}

/// A call whose names and roles are right, for replays of up to `most`.
///
/// # Errors
/// [`GpuError::Interface`], [`GpuError::Shader`].
pub fn resolve(call: &Call, most: Most) -> Result<Resolved, GpuError> {
    let kernel = call.kernel;
    let (resolved, expanded) = named(call)?;
    let most = call.most.unwrap_or(most);
    if let Some(blocks) = call.blocks
        && u64::from(blocks.rows) * u64::from(blocks.most) < u64::from(most.context)
    {
        let what = format!("{blocks:?} do not hold the context of {most:?}");
        return Err(GpuError::Interface { kernel, what });
    }
    let scope = Scope {
        call,
        most,
        lengths: &expanded.lengths,
    };
    let declared = expanded.bindings.iter();
    let mut bound: Vec<_> = declared.zip(&resolved.bindings).collect();
    if let Some((index, ranges)) = &resolved.alternatives {
        let declared = &expanded.bindings[*index];
        bound.extend(ranges.iter().map(|range| (declared, range)));
    }
    for (declared, range) in bound {
        let checked = scope.check(declared, range);
        checked.map_err(|what| GpuError::Interface { kernel, what })?;
    }
    Ok(resolved)
}

/// The pipeline of a call.
///
/// # Errors
/// The errors of [`resolve`], except those of sizes.
pub fn spec(call: &Call) -> Result<Spec, GpuError> {
    Ok(named(call)?.0.spec)
}

/// A call by the names alone, and what its kernel declares.
fn named(call: &Call) -> Result<(Resolved, Arc<Expanded>), GpuError> {
    let kernel = call.kernel;
    let wrong = |what: String| GpuError::Interface { kernel, what };
    let Some(source) = call.source.or_else(|| kernel_source(kernel)) else {
        return Err(wrong("there is no kernel of that name".to_owned()));
    };
    let mut variant = call.variant.clone();
    let bound = call.bindings.iter().map(|(name, _)| *name);
    let given = call.words.iter().map(|(name, _)| *name);
    variant.flags.extend(bound.chain(given));
    let expanded = interface(kernel, source, &variant)?;
    // Only what a kernel may do without makes a difference to the pipeline.
    let needed = expanded.bindings.iter().filter(|b| !b.optional);
    for name in needed.map(|b| &b.name).chain(&expanded.needed_words) {
        variant.flags.remove(name.as_str());
    }
    let mut bindings = vec![];
    for declared in &expanded.bindings {
        let Some(range) = call.bound(&declared.name) else {
            return Err(wrong(format!("nothing is bound to {}", declared.name)));
        };
        bindings.push(range.clone());
    }
    let number = |name: &str| {
        let found = expanded.bindings.iter().position(|b| b.name == name);
        found.ok_or_else(|| wrong(format!("it has no binding {name}")))
    };
    for (name, _) in &call.bindings {
        number(name)?;
    }
    let words = expanded.words.as_deref().unwrap_or_default();
    let mut params = vec![];
    for [name, ty] in words {
        let Some(word) = call.given(name) else {
            return Err(wrong(format!("nobody gives its parameter {name}")));
        };
        let right = match word {
            Word::F(_) => ty == "f32",
            // Floats travel as their bits.
            Word::Sampling(_) => true,
            _ => ty == "u32",
        };
        if !right {
            return Err(wrong(format!(
                "its parameter {name} is a {ty}, not {word:?}"
            )));
        }
        params.push(word);
    }
    for (name, _) in &call.words {
        if !words.iter().any(|[declared, _]| declared == name) {
            return Err(wrong(format!("it has no parameter {name}")));
        }
    }
    let alternatives = match &call.alternatives {
        None => None,
        Some((name, ranges)) => Some((number(name)?, ranges.clone())),
    };
    // Only tests replace shaders.
    #[cfg(any(test, feature = "testing"))]
    let (source, variant) = match call.compiled {
        Some(compiled) => (compiled, Variant::default()),
        None => (source, variant),
    };
    let spec = Spec {
        kernel,
        source,
        variant,
        access: expanded.bindings.iter().map(|b| b.access).collect(),
    };
    let resolved = Resolved {
        spec,
        bindings,
        alternatives,
        params,
        counts: call.counts.as_ref().map(|counts| counts.buffer.clone()),
        begins_level: call.begins_level,
    };
    Ok((resolved, expanded))
}

/// The declarations of a variant. Tiers differ in code, not in declarations.
fn interface(
    kernel: &'static str,
    source: &str,
    variant: &Variant,
) -> Result<Arc<Expanded>, GpuError> {
    type Known = Mutex<HashMap<(&'static str, usize, Variant), Arc<Expanded>>>;
    static KNOWN: OnceLock<Known> = OnceLock::new();
    let known = KNOWN.get_or_init(Known::default);
    // Templates of tests may share a name.
    let key = (kernel, source.as_ptr() as usize, variant.clone());
    let find = || known.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(found) = find().get(&key) {
        return Ok(Arc::clone(found));
    }
    let mut expanded = expand(kernel, source, variant, Tier::Subgroup)?;
    expanded.text.clear();
    let expanded = Arc::new(expanded);
    find().insert(key, Arc::clone(&expanded));
    Ok(expanded)
}

/// The values of the names in the lengths of a call's bindings.
struct Scope<'a> {
    call: &'a Call,
    most: Most,
    lengths: &'a BTreeMap<String, String>,
}

impl Scope<'_> {
    /// Whether `range` is what is declared, and large enough.
    fn check(&self, declared: &Declared, range: &Range) -> Result<(), String> {
        let Declared { name, content, .. } = declared;
        let wrong = |what: String| format!("binding {name} @{content}: {what}");
        if range.offset + range.size > range.buffer.size() {
            return Err(wrong(format!("{range:?} leaves its buffer")));
        }
        let Some((role, length)) = content.strip_suffix(')').and_then(|c| c.split_once('(')) else {
            return Err(wrong("the declaration has no role(length)".to_owned()));
        };
        let (role, bytes) = self.needs(role, length).map_err(wrong)?;
        if range.role != role {
            return Err(wrong(format!(
                "{:?} holds {:?}, not {role:?}",
                range.buffer, range.role
            )));
        }
        if range.size < bytes {
            return Err(wrong(format!(
                "{:?} has {} bytes, the kernel reaches {bytes} for {:?}",
                range.buffer, range.size, self.most
            )));
        }
        Ok(())
    }

    /// The role and the bytes that a declaration stands for. Scales may be said with the word where their sub-plane begins: behind the
    /// records of the whole weight, of which a kernel may reach less.
    fn needs(&self, role: &str, length: &str) -> Result<(Role, u64), String> {
        let number = |length: &str| Expression::evaluate(length, self);
        Ok(match role {
            "floats" => (Role::Floats, number(length)? * 4),
            "words" => (Role::Words, number(length)? * 4),
            "halves" => (Role::Halves, number(length)? * 2),
            "cache" => (Role::Cache, number(length)? * 2),
            "prepared" => {
                let flag = |name| self.call.variant.flags.contains(name);
                let activation = match () {
                    () if flag("BYTES") => Activation::Bytes,
                    () if flag("HALVES") => Activation::Halves { packed: false },
                    () => Activation::Floats,
                };
                let bytes = activation.bytes(number(length)?);
                (Role::prepared(activation), bytes)
            }
            "codes" | "scales" => {
                let Some((module, rest)) = length.split_once(',') else {
                    return Err("codes and scales are said of a type".to_owned());
                };
                let Some(module) = self.call.variant.modules.get(module.trim()) else {
                    return Err(format!("the variant names no module for {module}"));
                };
                let mut types = crate::quant::GgmlType::ALL.iter().copied();
                let Some(ty) = types.find(|ty| shader_module(*ty) == *module) else {
                    return Err(format!("{module} is no type of weights"));
                };
                let numbers = Expression::list(rest, self)?;
                let (units, sub) = match numbers[..] {
                    [units] => (units, 0),
                    [units, sub] if role == "scales" => (units, sub * 4),
                    _ => return Err(format!("'{rest}' is no number of units")),
                };
                let weights = (units as usize * 32).next_multiple_of(ty.block_len());
                let (codes, scales) = plane_bytes(ty, 1, weights);
                let records = sub_plane_words(ty, 1, weights) as u64 * 4;
                match role {
                    "codes" => (Role::Codes(ty), codes as u64),
                    _ => (
                        Role::Scales(ty),
                        records.max(sub) + (scales as u64 - records),
                    ),
                }
            }
            _ => return Err(format!("there is no role {role}")),
        })
    }

    /// The most workgroups along a dimension.
    fn workgroups(&self, along: Extent) -> Result<u64, String> {
        match along {
            Extent::Slices | Extent::SlicesOf(_) => Err("slices of tokens: see SLICES".to_owned()),
            Extent::BlockRowsBy(n) => Ok(self.value("BLOCK_ROWS")?.div_ceil(u64::from(n))),
            other => {
                let state = State {
                    tokens: self.most.tokens,
                    ..State::default()
                };
                Ok(u64::from(extent(other, &state, Block::default())))
            }
        }
    }

    /// The greatest value of `name`: of a parameter `p.NAME`, a constant, a length or a size of the step.
    fn value(&self, name: &str) -> Result<u64, String> {
        let Most { tokens, context } = self.most;
        if let Some(parameter) = name.strip_prefix("p.") {
            let Some(word) = self.call.given(parameter) else {
                return Err(format!("there is no parameter {parameter}"));
            };
            return match word {
                Word::U(value) => Ok(u64::from(value)),
                Word::Tokens => Ok(u64::from(tokens)),
                Word::LastTokenTimes(n) => Ok(u64::from(tokens - 1) * u64::from(n)),
                Word::Workgroups(along) => self.workgroups(along),
                Word::BlockRows => self.value("BLOCK_ROWS"),
                _ => Err(format!(
                    "{parameter} has no largest value: see CONTEXT, SLICES"
                )),
            };
        }
        match name {
            "TOKENS" => Ok(u64::from(tokens)),
            "CONTEXT" => Ok(u64::from(context)),
            "SLICES" => Ok(match (self.call.slices, self.call.bound("table")) {
                (Some(slices), _) => u64::from(slices),
                (None, Some(_)) => u64::from(tokens) + MAX_SLICES as u64,
                (None, None) => u64::from(tokens).max(MAX_SLICES as u64),
            }),
            "GRID_X" => self.workgroups(self.call.grid[0]),
            "GRID_Y" => self.workgroups(self.call.grid[1]),
            "GRID_Z" => self.workgroups(self.call.grid[2]),
            "BLOCK_ROWS" => match self.call.blocks {
                Some(blocks) => Ok(u64::from(blocks.rows)),
                None => Err("the call is not repeated for blocks".to_owned()),
            },
            _ => match (self.call.variant.consts.get(name), self.lengths.get(name)) {
                (Some(value), _) => Ok(u64::from(*value)),
                (None, Some(length)) => Expression::evaluate(length, self),
                (None, None) => Err(format!("there is no constant {name}")),
            },
        }
    }
}

/// An expression of whole numbers, names, `+ - * / %`, `min(a, b)`, `max(a, b)` and `ceil(a, b)` (a / b, rounded up).
struct Expression<'a, 'b> {
    tokens: Vec<&'a str>,
    at: usize,
    scope: &'b Scope<'b>,
}

impl<'a> Expression<'a, '_> {
    fn evaluate(text: &'a str, scope: &Scope<'_>) -> Result<u64, String> {
        match Self::list(text, scope)?[..] {
            [value] => Ok(value),
            _ => Err(format!("{text} is more than one length")),
        }
    }

    /// The values of expressions with commas between them.
    fn list(text: &'a str, scope: &Scope<'_>) -> Result<Vec<u64>, String> {
        let mut tokens = vec![];
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
            let end = match rest.find(|c: char| !of_name(c)) {
                Some(0) => rest.chars().next().map_or(1, char::len_utf8),
                Some(end) => end,
                None => rest.len(),
            };
            let (token, after) = rest.split_at(end);
            tokens.push(token);
            rest = after.trim_start();
        }
        let mut expression = Expression {
            tokens,
            at: 0,
            scope,
        };
        let mut values = vec![expression.sum()?];
        while expression.peek() == "," {
            expression.next();
            values.push(expression.sum()?);
        }
        match expression.peek() {
            "" => Ok(values),
            rest => Err(format!("'{rest}' does not belong into the length {text}")),
        }
    }

    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or("")
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.next() {
            found if found == token => Ok(()),
            found => Err(format!("'{found}' where '{token}' was expected")),
        }
    }

    fn sum(&mut self) -> Result<u64, String> {
        let mut value = self.product()?;
        while ["+", "-"].contains(&self.peek()) {
            let minus = self.next() == "-";
            let other = self.product()?;
            let sum = match minus {
                true => value.checked_sub(other),
                false => value.checked_add(other),
            };
            value = sum.ok_or("a length below zero, or beyond all numbers")?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<u64, String> {
        let mut value = self.factor()?;
        while ["*", "/", "%"].contains(&self.peek()) {
            let operator = self.next();
            let other = self.factor()?;
            let product = match operator {
                "*" => value.checked_mul(other),
                "/" => value.checked_div(other),
                _ => value.checked_rem(other),
            };
            value = product.ok_or("a division by zero, or a length beyond all numbers")?;
        }
        Ok(value)
    }

    fn factor(&mut self) -> Result<u64, String> {
        let token = self.next();
        match token {
            "(" => {
                let value = self.sum()?;
                self.expect(")")?;
                Ok(value)
            }
            "min" | "max" | "ceil" => {
                self.expect("(")?;
                let a = self.sum()?;
                self.expect(",")?;
                let b = self.sum()?;
                self.expect(")")?;
                Ok(match token {
                    "min" => a.min(b),
                    "max" => a.max(b),
                    _ if b == 0 => return Err("a division by zero".to_owned()),
                    _ => a.div_ceil(b),
                })
            }
            _ if token.starts_with(|c: char| c.is_ascii_digit()) => token
                .trim_end_matches('u')
                .parse()
                .map_err(|_| format!("'{token}' is no number")),
            _ => self.scope.value(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType;

    #[test]
    fn scales_reach_to_the_end_of_the_sub_plane_wherever_it_begins() {
        let rows = |ty, rows| plane_bytes(ty, rows, 256).1 as u64;
        let sub = |ty, rows| sub_plane_words(ty, rows, 256) as u32;
        for ty in [GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::Q4_K] {
            let call = Call::new("test")
                .module("W", shader_module(ty))
                .word("sub", sub(ty, 80));
            let scope = Scope {
                call: &call,
                most: Most::token(1),
                lengths: &BTreeMap::new(),
            };
            let needs = |length| scope.needs("scales", length).map(|(_, bytes)| bytes);
            assert_eq!(needs("W, 8 * 80"), Ok(rows(ty, 80)));
            assert_eq!(needs("W, 8 * max(80, 2), p.sub"), Ok(rows(ty, 80)));
            // The first rows of the same weight.
            let before = u64::from(sub(ty, 80) - sub(ty, 16)) * 4;
            assert_eq!(needs("W, 8 * 16, p.sub"), Ok(rows(ty, 16) + before));
            assert!(needs("W, 1, 2, 3").is_err() && needs("W").is_err());
        }
    }
}
