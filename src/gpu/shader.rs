//! WGSL templates: a small preprocessor.
//!
//! A kernel is a file of WGSL in which lines that begin with `#` are directives:
//! - `#import name` inserts `wgsl/shared/name.wgsl` once;
//! - `#import NAME as x` inserts the module that the variant calls NAME, with `$W` replaced by `x`
//!   (how one kernel reads two weight types under two names), or the shared module NAME where the variant has none;
//! - `#ifdef FLAG`, `#ifndef FLAG`, `#else`, `#endif` keep or drop lines by flags given from outside only;
//! - `#read name: type` and `#write name: type` declare the next storage binding of group 0, numbered in order of those kept;
//!   `#input name: type` one that is read only but bound as if it were written where the flag EXCLUSIVE is given: compilers move
//!   loads of what nobody writes to where they are used, past barriers and whatever was to hide their latency;
//! - `#fetch`, first thing in `main`, has subgroups ask for the descriptors of the bindings and for the parameters, a part of
//!   them each, where the flag FETCHES is given: NVIDIA GPUs load them as constants when they are first used, and a kernel
//!   that uses one part after the other waits for each (measured: benches/notes.md,
//!   "Constants asked for at the start of a kernel");
//! - `#for i N` ... `#endfor` repeats the lines N times with `$i` replaced, N a number or a constant of the variant:
//!   naga has no unrolling, and private arrays must be indexed by constants.
//!
//! Numbers of the variant become `const NAME: u32` lines at the head, so a kernel reads as plain WGSL.

use super::{GpuError, Tier};
use std::collections::{BTreeMap, BTreeSet};

/// What makes one pipeline out of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variant {
    /// Numbers that become constants of the shader.
    pub consts: BTreeMap<&'static str, u32>,
    /// Flags for `#ifdef`.
    pub flags: BTreeSet<&'static str>,
    /// Modules for `#import NAME as x`, by NAME.
    pub modules: BTreeMap<&'static str, &'static str>,
}

impl Variant {
    /// Adds a constant.
    pub fn number(mut self, name: &'static str, value: u32) -> Self {
        self.consts.insert(name, value);
        self
    }

    /// Adds a flag where `on`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Self {
        if on {
            self.flags.insert(name);
        }
        self
    }

    /// Names a module for `#import NAME as x`.
    pub fn module(mut self, name: &'static str, module: &'static str) -> Self {
        self.modules.insert(name, module);
        self
    }
}

/// Expands the template `source` of `kernel` for `variant` and `tier`.
///
/// # Errors
/// [`GpuError::Shader`] naming the kernel and line where a directive is unknown, unbalanced or names nothing.
pub fn expand(
    kernel: &str,
    source: &str,
    variant: &Variant,
    tier: Tier,
) -> Result<String, GpuError> {
    let mut flags = variant.flags.clone();
    flags.insert(match tier {
        Tier::Plain => "PLAIN",
        Tier::Subgroup | Tier::Int8 => "SUBGROUP",
    });
    let mut expander = Expander {
        kernel,
        variant,
        flags,
        imported: BTreeSet::new(),
        bindings: 0,
        names: vec![],
        param: None,
        head: String::new(),
        out: String::new(),
    };
    for (name, value) in &variant.consts {
        expander
            .out
            .push_str(&format!("const {name}: u32 = {value}u;\n"));
    }
    let lines: Vec<_> = source.lines().enumerate().collect();
    expander.lines(&lines)?;
    Ok(expander.head + &expander.out)
}

/// The flag of those who have `#fetch` do something.
pub const FETCHES: &str = "FETCHES";

/// Descriptors that a device loads together, of 16 bytes each as NVIDIA's: a line of 128 bytes.
const FETCHED_AT_ONCE: usize = 8;

/// What the first parameter of no kernel is: it is a number of something, or an epsilon.
const NEVER: &str = "0xffffffffu";

/// What `name: type` declares.
fn name_of(declaration: &str) -> &str {
    declaration.split(':').next().unwrap_or("").trim()
}

struct Expander<'a> {
    kernel: &'a str,
    variant: &'a Variant,
    flags: BTreeSet<&'static str>,
    imported: BTreeSet<(String, String)>,
    bindings: u32,
    /// Of the bindings.
    names: Vec<String>,
    /// The name of the first parameter, once known.
    param: Option<String>,
    /// `enable` directives of WGSL, which must come before everything else.
    head: String,
    out: String,
}

impl Expander<'_> {
    fn error<T>(&self, line: usize, reason: impl std::fmt::Display) -> Result<T, GpuError> {
        Err(GpuError::Shader {
            kernel: self.kernel.to_owned(),
            reason: format!("line {}: {reason}", line + 1),
        })
    }

    fn lines(&mut self, lines: &[(usize, &str)]) -> Result<(), GpuError> {
        let mut i = 0;
        while i < lines.len() {
            let (number, line) = lines[i];
            let words: Vec<_> = line.split_whitespace().collect();
            match words.as_slice() {
                ["#import", name] => self.import(number, name, name, "")?,
                ["#import", name, "as", prefix] => {
                    let named = self.variant.modules.get(name).copied();
                    let fixed = || SHARED.iter().map(|(n, _)| *n).find(|n| n == name);
                    let Some(module) = named.or_else(fixed) else {
                        return self
                            .error(number, format!("the variant names no module for {name}"));
                    };
                    self.import(number, module, module, prefix)?;
                }
                ["#read" | "#write" | "#input", ..] => {
                    let exclusive = words[0] == "#input" && self.flags.contains("EXCLUSIVE");
                    let access = if words[0] == "#write" || exclusive {
                        "read_write"
                    } else {
                        "read"
                    };
                    let rest = line.trim_start().trim_start_matches(words[0]);
                    let (declaration, comment) = rest.split_once("//").unwrap_or((rest, ""));
                    let (declaration, comment) = (declaration.trim(), comment.trim());
                    self.out.push_str(&format!(
                        "@group(0) @binding({}) var<storage, {access}> {declaration}; // {comment}\n",
                        self.bindings
                    ));
                    self.bindings += 1;
                    self.names.push(name_of(declaration).to_owned());
                }
                ["#ifdef" | "#ifndef", flag] => {
                    let (end, middle) = self.block(lines, i, "#endif")?;
                    let keep = self.flags.contains(flag) == (words[0] == "#ifdef");
                    let split = middle.unwrap_or(end);
                    let chosen = if keep {
                        &lines[i + 1..split]
                    } else {
                        &lines[(split + 1).min(end)..end]
                    };
                    self.lines(chosen)?;
                    i = end;
                }
                ["#for", name, count] => {
                    let (end, _) = self.block(lines, i, "#endfor")?;
                    let known = count
                        .parse()
                        .ok()
                        .or_else(|| self.variant.consts.get(count).copied());
                    let Some(count) = known else {
                        return self.error(
                            number,
                            format!("{count} is neither a number nor a constant of the variant"),
                        );
                    };
                    for k in 0..count {
                        let texts: Vec<_> = lines[i + 1..end]
                            .iter()
                            .map(|(n, l)| (*n, l.replace(&format!("${name}"), &k.to_string())))
                            .collect();
                        let body: Vec<_> = texts.iter().map(|(n, l)| (*n, l.as_str())).collect();
                        self.lines(&body)?;
                    }
                    i = end;
                }
                ["#fetch"] => self.fetch(),
                ["enable", ..] => {
                    self.head.push_str(line);
                    self.head.push('\n');
                }
                [first, ..] if first.starts_with('#') => {
                    return self.error(number, format!("unknown or misplaced directive '{line}'"));
                }
                _ => {
                    self.note_param(line);
                    self.out.push_str(line);
                    self.out.push('\n');
                }
            }
            i += 1;
        }
        Ok(())
    }

    /// Keeps the name of the first member of `struct Params`.
    fn note_param(&mut self, line: &str) {
        if line.starts_with("struct Params") {
            self.param = Some(String::new());
        } else if let Some(name) = &mut self.param
            && name.is_empty()
        {
            *name = name_of(line).to_owned();
        }
    }

    /// What `#fetch` stands for. No binding is empty, but a compiler must believe that what is asked for matters; and it must be a
    /// way out, since it makes every subgroup ask for all of them, one after the other, if a branch could be done without.
    fn fetch(&mut self) {
        if !self.flags.contains(FETCHES) {
            return;
        }
        let of_param = self
            .param
            .iter()
            .map(|name| format!("bitcast<u32>(p.{name}) == {NEVER}"));
        let of_bindings = self
            .names
            .iter()
            .skip(1)
            .step_by(FETCHED_AT_ONCE)
            .map(|name| format!("arrayLength(&{name}) == 0u"));
        for (i, asks) in of_param.chain(of_bindings).enumerate() {
            let subgroup = i + 1;
            self.out.push_str(&format!(
                "  if (subgroup == {subgroup}u) {{ if ({asks}) {{ return; }} }}\n"
            ));
        }
    }

    /// The line that ends the block begun at `start`, and the `#else` of the same block.
    fn block(
        &self,
        lines: &[(usize, &str)],
        start: usize,
        end: &str,
    ) -> Result<(usize, Option<usize>), GpuError> {
        let mut depth = vec![end];
        let mut middle = None;
        for (i, (number, line)) in lines.iter().enumerate().skip(start + 1) {
            match line.split_whitespace().next().unwrap_or("") {
                "#ifdef" | "#ifndef" => depth.push("#endif"),
                "#for" => depth.push("#endfor"),
                "#else" if depth.len() == 1 && end == "#endif" => middle = Some(i),
                word @ ("#endif" | "#endfor") => {
                    if depth.pop() != Some(word) {
                        return self.error(*number, format!("{word} closes another block"));
                    }
                    if depth.is_empty() {
                        return Ok((i, middle));
                    }
                }
                _ => {}
            }
        }
        self.error(lines[start].0, format!("no {end} for this line"))
    }

    fn import(
        &mut self,
        number: usize,
        name: &str,
        module: &str,
        prefix: &str,
    ) -> Result<(), GpuError> {
        if !self.imported.insert((module.to_owned(), prefix.to_owned())) {
            return Ok(());
        }
        let Some((_, source)) = SHARED.iter().find(|(n, _)| *n == module) else {
            return self.error(number, format!("no shared module is called {name}"));
        };
        let text = source.replace("$W", prefix);
        let lines: Vec<_> = text.lines().enumerate().collect();
        self.lines(&lines)
    }
}

macro_rules! shared {
    ($($name:literal),* $(,)?) => {
        /// The modules of wgsl/shared, by name.
        pub const SHARED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../wgsl/shared/", $name, ".wgsl")))),*];
    };
}
shared!(
    "add_parts",
    "best",
    "bf16",
    "builtins",
    "bytes",
    "cache_row",
    "choose_few",
    "choose_many",
    "codes_by_bytes",
    "codes_by_floats",
    "codes_by_halves",
    "coop16",
    "coop8",
    "coop_few",
    "coop_own",
    "coop_stage",
    "f16",
    "f32",
    "floats",
    "floats_by_bytes",
    "floats_by_floats",
    "floats_by_halves",
    "gate_up_walk",
    "gemm_begin",
    "gemm_halves",
    "gemm_place",
    "gemm_stages",
    "halve",
    "halve_quad",
    "halve_unit",
    "halves",
    "halves_math",
    "iq4_nl",
    "iq4_xs",
    "kept_units",
    "lanes",
    "logits_in_parts",
    "logits_load",
    "logits_put",
    "merge",
    "merge_head",
    "nibbles_by_bytes",
    "nibbles_by_halves",
    "order",
    "params",
    "part_codes",
    "part_floats",
    "q2_k",
    "q3_k",
    "q4_0",
    "q4_1",
    "q4_k",
    "q5_0",
    "q5_1",
    "q5_k",
    "q6_k",
    "q8_0",
    "quantize",
    "quantize_quad",
    "reduce",
    "rms_by_subgroup",
    "rms_in_runs",
    "rms_load",
    "rms_scale",
    "rotate_pairs",
    "rotate_rows",
    "router_choice",
    "router_lanes",
    "router_parts",
    "router_put",
    "router_weights",
    "row_walk",
    "squares_load",
    "squares_put",
    "stage_bytes",
    "stage_halves",
    "stage_load",
    "stage_put",
    "thread_index",
    "token_store",
    "w32",
    "w32_math",
    "x_bytes",
    "x_floats",
    "x_halves",
    "x_times_norm",
);

#[cfg(test)]
mod tests {
    use super::*;

    fn go(source: &str, variant: &Variant) -> Result<String, GpuError> {
        expand("test", source, variant, Tier::Plain)
    }

    #[test]
    fn flags_keep_or_drop_lines_and_nest() {
        let v = Variant::default().flag("A", true).flag("B", false);
        let text = "#ifdef A\na\n#ifdef B\nab\n#else\nanotb\n#endif\n#else\nnota\n#endif\n#ifndef B\nnb\n#endif\n";
        assert_eq!(go(text, &v).unwrap(), "a\nanotb\nnb\n");
    }

    #[test]
    fn subgroups_fetch_a_part_of_what_a_kernel_is_given_each() {
        let bindings: String = (0..10)
            .map(|i| format!("#read b{i}: array<u32>\n"))
            .collect();
        let source = format!("struct Params {{\n  rows: u32,\n  sub: u32,\n}}\n{bindings}#fetch\n");
        let plain = go(&source, &Variant::default()).unwrap();
        assert!(!plain.contains("subgroup"), "{plain}");
        let text = go(&source, &Variant::default().flag(FETCHES, true)).unwrap();
        let asks: Vec<_> = text.lines().filter(|l| l.contains("return")).collect();
        assert_eq!(asks.len(), 3, "{text}");
        for (i, what) in ["p.rows", "&b1)", "&b9)"].iter().enumerate() {
            let subgroup = format!("subgroup == {}u", i + 1);
            assert!(
                asks[i].contains(&subgroup) && asks[i].contains(what),
                "{text}"
            );
        }
    }

    #[test]
    fn loops_unroll_and_constants_head_the_shader() {
        let v = Variant::default().number("COLS", 2);
        let out = go("#for c COLS\nx$c += y[$c];\n#endfor\n", &v).unwrap();
        assert_eq!(out, "const COLS: u32 = 2u;\nx0 += y[0];\nx1 += y[1];\n");
    }

    #[test]
    fn bindings_are_numbered_in_the_order_of_those_kept() {
        let v = Variant::default().flag("A", true);
        let text = "#read a: array<u32> // (n)\n#ifndef A\n#read b: array<f32>\n#endif\n#write c: array<f32>\n";
        let out = go(text, &v).unwrap();
        let first = "@group(0) @binding(0) var<storage, read> a: array<u32>; // (n)\n";
        assert_eq!(
            out,
            format!("{first}@group(0) @binding(1) var<storage, read_write> c: array<f32>; // \n")
        );
    }

    #[test]
    fn extensions_are_enabled_before_everything_else() {
        let v = Variant::default().number("N", 1);
        let out = go("// a kernel\nenable f16;\nx\n", &v).unwrap();
        assert_eq!(out, "enable f16;\nconst N: u32 = 1u;\n// a kernel\nx\n");
    }

    #[test]
    fn shared_modules_take_a_prefix_too() {
        let out = go("#import codes_by_bytes as w\n", &Variant::default()).unwrap();
        assert!(out.contains("fn w_load(") && !out.contains('$'), "{out}");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let v = Variant::default();
        for (text, part) in [
            ("#ifdef A\n", "line 1: no #endif"),
            ("x\n#endif\n", "line 2: unknown or misplaced"),
            ("#import nothing\n", "no shared module is called nothing"),
            ("#import T as w\n", "names no module for T"),
            ("#for i N\n#endfor\n", "N is neither a number"),
            ("#for i 2\n#endif\n", "closes another block"),
        ] {
            let e = go(text, &v).unwrap_err().to_string();
            assert!(e.contains(part), "{e} lacks {part}");
        }
    }
}
