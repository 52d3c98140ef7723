//! WGSL templates: a small preprocessor.
//!
//! A kernel is a file of WGSL in which lines that begin with `#` are directives:
//! - `#import name` inserts `wgsl/shared/name.wgsl` once;
//! - `#import NAME as x` inserts the module that the variant calls NAME, with `$W` replaced by `x`
//!   (how one kernel reads two weight types under two names), or the shared module NAME where the variant has none;
//! - `#ifdef FLAG`, `#ifndef FLAG`, `#else`, `#endif` keep or drop lines by flags given from outside only;
//! - `#read name: type @role(length)` and `#write name: type @role(length)` declare the next storage binding of group 0, numbered in
//!   order of those kept; `#input` one that is read only but bound as if it were written where the flag EXCLUSIVE is given: compilers
//!   move loads of what nobody writes to where they are used, past barriers and whatever was to hide their latency;
//! - `#word name: type` declares the next parameter, read as `p.name`;
//! - a `?` behind the name of a binding or parameter makes it optional: it is there where the call gives it, and then its name is a flag.
//!   An optional binding is read by `name_at(i)`, 0 where it is not there, or written by `name_put(i, v)`, nothing where it is not;
//! - `#number NAME... // meaning` declares numbers of the variant, which the same file must use: they become `const NAME: u32`. The variant must
//!   give exactly the numbers that the kernel and its modules declare;
//! - `#length NAME expression` names a length that declarations of bindings use;
//! - `#main` begins the entry point: the number of the workgroup `wid`, of the thread `t`, and what subgroups tell;
//! - `#flag NAME` declares `const NAME: bool`, true where the variant has the flag: for branches that need no directive;
//! - `#each i N` has every later line of the file that mentions `$i` written N times, with `$i` replaced by 0, 1, 2...;
//! - `#fetch`, first thing in `main`, has subgroups ask for the descriptors of the bindings and for the parameters, a part of
//!   them each, where the flag FETCHES is given: NVIDIA GPUs load them as constants when they are first used, and a kernel
//!   that uses one part after the other waits for each (measured: benches/notes.md,
//!   "Constants asked for at the start of a kernel");
//! - `#for i N` ... `#endfor` repeats the lines N times with `$i` replaced, N a number or a constant of the variant:
//!   naga has no unrolling, and private arrays must be indexed by constants.
//!
//! The declarations of numbers, bindings and parameters are a kernel's whole interface: calls are checked against it
//! (`gpu/interface.rs`). docs/shaders.md says what modules must have.

mod aliases;

use super::machine::DESCRIPTORS_OF_LINE;
use super::{GpuError, Tier};
use include_dir::{Dir, include_dir};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// How a kernel uses a storage binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

impl Access {
    /// The access mode in WGSL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "read_write",
        }
    }
}

/// The choices that make one pipeline out of a template.
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

/// A binding as a kernel declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The binding's name in the shader.
    pub name: String,
    /// The access that the kernel has to the binding.
    pub access: Access,
    /// Whether calls may leave it out.
    pub optional: bool,
    /// `role(length)`, what is in it and how much at least; empty where nothing is said.
    pub content: String,
}

/// A template expanded for a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    /// The shader.
    pub text: String,
    /// The shader's bindings, in order.
    pub bindings: Vec<Declared>,
    /// The names and types of its parameters, in order; `None` where it writes its `struct Params` itself.
    pub words: Option<Vec<[String; 2]>>,
    /// The names of those parameters that every call gives.
    pub needed_words: Vec<String>,
    /// Lengths that have names (`#length`).
    pub lengths: BTreeMap<String, String>,
    /// The shared modules in it.
    #[cfg(any(test, feature = "testing"))]
    pub modules: BTreeSet<String>,
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
) -> Result<Expanded, GpuError> {
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
        bindings: vec![],
        words: vec![],
        param: None,
        each: vec![],
        needed_words: vec![],
        numbers: BTreeSet::new(),
        file: String::new(),
        lengths: BTreeMap::new(),
        head: String::new(),
        out: String::new(),
    };
    for (name, value) in &variant.consts {
        expander.out += &format!("const {name}: u32 = {value}u;\n");
    }
    expander.file(&as_tested(kernel, source))?;
    let mut given = variant.consts.keys();
    if let Some(name) = given.find(|name| !expander.numbers.contains(**name)) {
        return Err(GpuError::Shader {
            kernel: kernel.to_owned(),
            reason: format!("no #number declares {name}, which the variant gives"),
        });
    }
    Ok(expander.finish())
}

/// The flag of those who have `#fetch` do something.
pub const FETCHES: &str = "FETCHES";

/// The flag of devices with subgroups that have no immediates: parameters are uniforms, as they always are in tier `plain`.
pub const UNIFORMS: &str = "UNIFORMS";

/// A value that the first parameter of a kernel never has: it is a count or an epsilon.
const NEVER: &str = "0xffffffffu";

/// The rest of what begins the entry point, without subgroups and with them.
const PLAIN_THREAD: &str = "  @builtin(local_invocation_index) t: u32,
) {
  let subgroup = 0u;
  let subgroups = 0u;
  let subgroup_size = 0u;
  let lane_id = 0u;
";
const THREAD_OF_SUBGROUP: &str = "  @builtin(subgroup_id) subgroup: u32,
  @builtin(num_subgroups) subgroups: u32,
  @builtin(subgroup_size) subgroup_size: u32,
  @builtin(subgroup_invocation_id) lane_id: u32,
) {
  let t = subgroup * subgroup_size + lane_id;
";

/// The function by which a kernel reads or writes what it may do without: `name?: array<T>` gives `name_at(i)`, which is 0 where nothing
/// is bound, or `name_put(i, v)`, which does nothing then.
fn accessor(name: &str, ty: &str, directive: &str, bound: bool) -> String {
    // Types that a module declares may be missing with it.
    let mut numbers = "f32 u32 vec2<f32> vec4<f32> vec2<u32> vec4<u32>".split(' ');
    let Some(element) = numbers.find(|number| ty == format!("array<{number}>")) else {
        return String::new();
    };
    match (directive, bound) {
        ("#write", true) => format!("fn {name}_put(i: u32, v: {element}) {{ {name}[i] = v; }}\n"),
        ("#write", false) => format!("fn {name}_put(i: u32, v: {element}) {{ }}\n"),
        (_, true) => format!("fn {name}_at(i: u32) -> {element} {{ return {name}[i]; }}\n"),
        (_, false) => format!("fn {name}_at(i: u32) -> {element} {{ return {element}(); }}\n"),
    }
}

struct Expander<'a> {
    kernel: &'a str,
    variant: &'a Variant,
    flags: BTreeSet<&'static str>,
    imported: BTreeSet<(String, String)>,
    bindings: Vec<Declared>,
    /// Parameters declared by `#word`, and their types.
    words: Vec<[String; 2]>,
    /// The name of the first parameter, once known.
    param: Option<String>,
    /// Names of `#each` and how often, in order.
    each: Vec<(String, u32)>,
    needed_words: Vec<String>,
    /// Numbers declared by `#number`.
    numbers: BTreeSet<String>,
    /// The text of the file whose lines are expanded.
    file: String,
    lengths: BTreeMap<String, String>,
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
                ["#import", name] => self.import(number, name, "")?,
                ["#import", name, "as", prefix] => {
                    let named = self.variant.modules.get(name).copied();
                    let fixed = || shared_source(name).map(|_| *name);
                    let Some(module) = named.or_else(fixed) else {
                        return self
                            .error(number, format!("the variant names no module for {name}"));
                    };
                    self.import(number, module, prefix)?;
                }
                ["#read" | "#write" | "#input", ..] => self.binding(number, line, words[0])?,
                ["#word", ..] => self.word(number, line)?,
                ["#number", ..] => self.number(number, line)?,
                ["#flag", flag, ..] => {
                    let on = self.flags.contains(flag);
                    self.out += &format!("const {flag}: bool = {on};\n");
                }
                ["#each", name, count, ..] => {
                    let count = self.count(number, count)?;
                    self.each.push((format!("${name}"), count));
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
                    let count = self.count(number, count)?;
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
                ["#main"] => self.main(),
                ["#length", name, ..] => {
                    let rest = line.trim_start().trim_start_matches("#length").trim_start();
                    let expression = rest.trim_start_matches(name);
                    let expression = expression.split("//").next().unwrap_or("").trim();
                    self.lengths
                        .insert((*name).to_owned(), expression.to_owned());
                }
                ["enable", ..] => {
                    self.head.push_str(line);
                    self.head.push('\n');
                }
                [first, ..] if first.starts_with('#') => {
                    return self.error(number, format!("unknown or misplaced directive '{line}'"));
                }
                _ => {
                    self.note_param(line);
                    self.repeated(line, 0);
                }
            }
            i += 1;
        }
        Ok(())
    }

    /// Writes a line, once for each number of every `#each` that it mentions from `from` on.
    fn repeated(&mut self, line: &str, from: usize) {
        let mentions = |(i, each): (usize, &(String, u32))| line.contains(&each.0).then_some(i);
        let mentioned = self.each.iter().enumerate().skip(from).find_map(mentions);
        let Some(i) = mentioned else {
            self.out += line;
            self.out.push('\n');
            return;
        };
        let (name, count) = self.each[i].clone();
        for k in 0..count {
            self.repeated(&line.replace(&name, &k.to_string()), i + 1);
        }
    }

    /// The number that `count` stands for: a numeral, or the name of a constant.
    fn count(&self, number: usize, count: &str) -> Result<u32, GpuError> {
        let known = self.variant.consts.get(count).copied();
        match count.parse().ok().or(known) {
            Some(count) => Ok(count),
            None => self.error(
                number,
                format!("{count} is neither a number nor a constant of the variant"),
            ),
        }
    }

    /// Name and what follows the colon of a declaration, whether it is optional, and whether the call gives it.
    fn declaration<'l>(
        &self,
        number: usize,
        text: &'l str,
    ) -> Result<(&'l str, &'l str, bool, bool), GpuError> {
        let Some((name, rest)) = text.split_once(':') else {
            return self.error(number, format!("'{text}' has no type"));
        };
        let (name, rest) = (name.trim(), rest.trim());
        Ok(match name.strip_suffix('?') {
            None => (name, rest, false, true),
            Some(name) => (name, rest, true, self.flags.contains(name)),
        })
    }

    /// `#read`, `#write` or `#input`.
    fn binding(&mut self, number: usize, line: &str, directive: &str) -> Result<(), GpuError> {
        let rest = line.trim_start().trim_start_matches(directive);
        let (text, comment) = rest.split_once("//").unwrap_or((rest, ""));
        let (name, rest, optional, given) = self.declaration(number, text)?;
        let (ty, content) = rest.split_once('@').unwrap_or((rest, ""));
        let ty = ty.trim();
        if optional {
            self.out += &accessor(name, ty, directive, given);
        }
        if !given {
            return Ok(());
        }
        let exclusive = directive == "#input" && self.flags.contains("EXCLUSIVE");
        let access = match directive == "#write" || exclusive {
            true => Access::Write,
            false => Access::Read,
        };
        self.out += &format!(
            "@group(0) @binding({}) var<storage, {}> {name}: {ty}; // {}\n",
            self.bindings.len(),
            access.name(),
            comment.trim()
        );
        self.bindings.push(Declared {
            name: name.to_owned(),
            access,
            optional,
            content: content.trim().to_owned(),
        });
        Ok(())
    }

    /// `#word`.
    fn word(&mut self, number: usize, line: &str) -> Result<(), GpuError> {
        let rest = line.trim_start().trim_start_matches("#word");
        let text = rest.split("//").next().unwrap_or("");
        let (name, ty, optional, given) = self.declaration(number, text)?;
        if !given {
            return Ok(());
        }
        if !optional {
            self.needed_words.push(name.to_owned());
        }
        if !["u32", "f32"].contains(&ty) {
            return self.error(number, format!("parameter {name} is a {ty}, no u32 or f32"));
        }
        self.words.push([name.to_owned(), ty.to_owned()]);
        Ok(())
    }

    /// `#number`.
    fn number(&mut self, number: usize, line: &str) -> Result<(), GpuError> {
        let text = line.split("//").next().unwrap_or("");
        for name in text.split_whitespace().skip(1) {
            if !self.variant.consts.contains_key(name) {
                return self.error(number, format!("the variant gives no number {name}"));
            }
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let mut lines = self
                .file
                .lines()
                .filter(|line| !line.starts_with("#number"));
            let used = lines.any(|line| {
                let code = line.split("//").next().unwrap_or("");
                code.split(|c| !is_name(c)).any(|word| word == name)
            });
            if !used {
                return self.error(number, format!("nothing uses the number {name}"));
            }
            self.numbers.insert(name.to_owned());
        }
        Ok(())
    }

    /// The shader: what must come first, the parameters, and the rest.
    fn finish(mut self) -> Expanded {
        let own = self.param.is_some();
        if !self.words.is_empty() {
            self.head += "struct Params {\n";
            for [name, ty] in &self.words {
                self.head += &format!("  {name}: {ty},\n");
            }
            // Immediates, or a uniform with a dynamic offset where there are none.
            let uniform = self.flags.contains("PLAIN") || self.flags.contains(UNIFORMS);
            self.head += match uniform {
                true => "}\n@group(1) @binding(0) var<uniform> p: Params;\n",
                false => "}\nvar<immediate> p: Params;\n",
            };
        }
        Expanded {
            text: aliases::without_names_of_arrays(&(self.head + &self.out)),
            bindings: self.bindings,
            words: (!own).then_some(self.words),
            needed_words: self.needed_words,
            lengths: self.lengths,
            #[cfg(any(test, feature = "testing"))]
            modules: self.imported.into_iter().map(|(name, _)| name).collect(),
        }
    }

    /// Keeps the name of the first member of `struct Params`.
    fn note_param(&mut self, line: &str) {
        if line.starts_with("struct Params") {
            self.param = Some(String::new());
        } else if let Some(name) = &mut self.param
            && name.is_empty()
        {
            let declared = line.split(':').next().unwrap_or("");
            *name = declared.trim().to_owned();
        }
    }

    /// Writes the lines for `#main`, the beginning of the entry point. `t` is the number of the thread in its workgroup, numbered so that
    /// neighbours share a subgroup.
    fn main(&mut self) {
        self.out += "@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) wid: vec3<u32>,
";
        self.out += match self.flags.contains("PLAIN") {
            true => PLAIN_THREAD,
            false => THREAD_OF_SUBGROUP,
        };
    }

    /// Writes the lines for `#fetch`. Each of the first subgroups loads a parameter or the length of a binding, and returns early on a
    /// value that never comes. The loaded values decide the return, so the compiler cannot drop the loads. It has to be a return: any
    /// other branch could be flattened, and then every subgroup would load all of them, one after the other.
    fn fetch(&mut self) {
        if !self.flags.contains(FETCHES) {
            return;
        }
        let first = self.words.first().map(|[name, _]| name);
        let of_param = first.or(self.param.as_ref());
        let of_param = of_param.map(|name| format!("bitcast<u32>(p.{name}) == {NEVER}"));
        let of_bindings = self.bindings.iter().skip(1).step_by(DESCRIPTORS_OF_LINE);
        let of_bindings = of_bindings.map(|b| format!("arrayLength(&{}) == 0u", b.name));
        for (subgroup, asks) in (1..).zip(of_param.into_iter().chain(of_bindings)) {
            self.out +=
                &format!("  if (subgroup == {subgroup}u) {{ if ({asks}) {{ return; }} }}\n");
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

    fn import(&mut self, number: usize, module: &str, prefix: &str) -> Result<(), GpuError> {
        if !self.imported.insert((module.to_owned(), prefix.to_owned())) {
            return Ok(());
        }
        let Some(source) = shared_source(module) else {
            return self.error(number, format!("no shared module is called {module}"));
        };
        let source = as_tested(&format!("shared/{module}"), source);
        let outer = std::mem::take(&mut self.each);
        let done = self.file(&source.replace("$W", prefix));
        self.each = outer;
        done
    }

    /// The lines of a file.
    fn file(&mut self, text: &str) -> Result<(), GpuError> {
        let outer = std::mem::replace(&mut self.file, text.to_owned());
        let lines: Vec<_> = text.lines().enumerate().collect();
        let done = self.lines(&lines);
        self.file = outer;
        done
    }
}

/// The templates of kernels, and in `shared` the modules that they import.
static WGSL: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wgsl");

/// The template of a kernel.
pub fn kernel_source(name: &str) -> Option<&'static str> {
    WGSL.get_file(format!("{name}.wgsl"))?.contents_utf8()
}

/// The template of a module of wgsl/shared.
fn shared_source(name: &str) -> Option<&'static str> {
    kernel_source(&format!("shared/{name}"))
}

/// The template `source` as it is expanded: with a mistake where a test asks for one in `wgsl/<name>.wgsl`.
#[cfg_attr(
    not(any(test, feature = "testing")),
    expect(unused_variables, reason = "only tests make mistakes")
)]
fn as_tested<'a>(name: &str, source: &'a str) -> Cow<'a, str> {
    #[cfg(any(test, feature = "testing"))]
    if kernel_source(name) == Some(source) {
        return super::testing::mutants::mutated(&format!("{name}.wgsl"), source);
    }
    Cow::Borrowed(source)
}

/// The file names and texts of all templates, those of shared modules, too.
#[cfg(any(test, feature = "testing"))]
pub fn templates() -> impl Iterator<Item = (String, &'static str)> {
    let shared = WGSL.dirs().flat_map(Dir::files);
    WGSL.files().chain(shared).filter_map(|file| {
        let name = file.path().to_str()?.replace('\\', "/");
        Some((name, file.contents_utf8()?))
    })
}

/// The names of all kernels.
pub fn kernels() -> impl Iterator<Item = &'static str> {
    WGSL.files()
        .filter_map(|file| file.path().file_stem()?.to_str())
}

#[cfg(test)]
mod tests;
