//! Kernels whose subgroups are larger than the adapter's, for tests: their numbers come from the local index, and what subgroups do
//! goes through workgroup memory.
//!
//! Threads of a subgroup wait for each other by counting arrivals. Until all have come they give way at a barrier of the workgroup,
//! wherever it stands. This is not portable. llvmpipe runs the threads of a workgroup in turn, goes on with the next ones at every
//! barrier, and ends the workgroup when the first ones are through: so all wait for each other once more at the end. What this cannot
//! show: kernels by cooperative matrices, and what depends on lanes in lockstep.

use naga::{Expression, Function, Handle, Module, ScalarKind, Type, TypeInner};
use std::collections::BTreeSet;

/// An operation of subgroups, or a load between barriers, in a text: where its call begins, its name and the type of its result.
struct Call {
    at: usize,
    name: String,
    ty: String,
}

/// `source` in subgroups of `size` threads.
pub fn emulated(source: &str, size: u32) -> String {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string(source)));
    assert!(!source.contains("subgroupBarrier()"), "{source}");
    let mut text = String::new();
    let mut done = 0;
    let mut used = BTreeSet::new();
    for Call { at, name, ty } in calls(&module, source) {
        let function = format!("{name}_{}", ty.replace(['<', '>'], "_"));
        text += &source[done..at];
        text += &function;
        done = at + name.len();
        used.insert((function, name, ty));
    }
    text += &source[done..];
    // Pointers to workgroup memory pass to no function: all kernels name what they load so alike.
    let loads = [
        "workgroupUniformLoad_u32(&told)",
        "workgroupUniformLoad_u32()",
    ];
    text = text.replace(loads[0], loads[1]);
    text = text.replace("workgroupBarrier()", "wave_barrier()");
    let Some(mut text) = with_entry(text) else {
        // Threads without numbers of subgroups have nothing to do with them.
        assert!(used.is_empty(), "{source}");
        return source.to_owned();
    };
    let words = used.iter().map(|(.., ty)| components(ty)).max();
    for (function, name, ty) in &used {
        text += &operation(function, name, ty);
    }
    let threads: u32 = module.entry_points[0].workgroup_size.iter().product();
    for (name, value) in [
        ("WAVE", size),
        ("WAVES", threads.div_ceil(size)),
        ("WAVE_THREADS", threads),
        ("WAVE_WORDS", words.unwrap_or(1)),
    ] {
        text += &format!("const {name} = {value}u;\n");
    }
    text + include_str!("wait.wgsl")
}

/// The calls at which threads wait, in the order of the text.
fn calls(module: &Module, source: &str) -> Vec<Call> {
    use Expression::{SubgroupOperationResult, WorkGroupUniformLoadResult};
    let found = |function: &Function| {
        let calls = function.expressions.iter().filter_map(|(handle, result)| {
            let (SubgroupOperationResult { ty } | WorkGroupUniformLoadResult { ty }) = result
            else {
                return None;
            };
            let span = function.expressions.get_span(handle).to_range();
            let range = span.expect("a call stands somewhere");
            let name = source[range.clone()].split('(').next();
            let (at, name) = (range.start, name.expect("a name").to_owned());
            let ty = named(module, *ty);
            Some(Call { at, name, ty })
        });
        calls.collect::<Vec<_>>()
    };
    let functions = module.functions.iter().map(|(_, f)| f);
    let functions = functions.chain([&module.entry_points[0].function]);
    let mut calls: Vec<_> = functions.flat_map(found).collect();
    calls.sort_by_key(|call| call.at);
    calls.dedup_by_key(|call| call.at);
    calls
}

/// `text` with an entry point that numbers the threads, calls the kernel and waits for all; `None` where it asks for no number.
fn with_entry(mut text: String) -> Option<String> {
    let main = text.find("fn main(").expect("an entry point");
    let body = main + text[main..].find("{\n").expect("a body") + 2;
    let inputs = text[main..body].trim_end_matches([' ', '\n', '{', ')']);
    let [mut lets, mut kept, mut keep, mut keepers] = <[String; 4]>::default();
    let mut numbered = false;
    for input in inputs.split("@builtin(").skip(1) {
        let (builtin, declared) = input.split_once(") ").expect("a name");
        let declared = declared.trim().trim_end_matches(',');
        let (name, ty) = declared.split_once(": ").expect("a type");
        let number = match builtin {
            "subgroup_id" => "wave_t / WAVE",
            "num_subgroups" => "WAVES",
            "subgroup_size" => "WAVE",
            "subgroup_invocation_id" => "wave_t % WAVE",
            _ => {
                kept += &format!("@builtin({builtin}) {name}: {ty}, ");
                keep += &format!("  wave_in_{name} = {name};\n");
                keepers += &format!("var<private> wave_in_{name}: {ty};\n");
                lets += &format!("  let {name} = wave_in_{name};\n");
                continue;
            }
        };
        numbered = true;
        lets += &format!("  let {name} = {number};\n");
    }
    let entry = format!(
        "fn main({kept}@builtin(local_invocation_index) wave_index: u32) {{
  wave_begin(wave_index);
{keep}  wave_main();
  wave_wait(WAVES + 1u, WAVE_THREADS);
}}
{keepers}fn wave_main() {{
{lets}"
    );
    text.replace_range(main..body, &entry);
    numbered.then_some(text)
}

/// A type as WGSL writes it.
fn named(module: &Module, ty: Handle<Type>) -> String {
    let scalar = |kind| match kind {
        ScalarKind::Float => "f32",
        ScalarKind::Uint => "u32",
        ScalarKind::Sint => "i32",
        ScalarKind::Bool => "bool",
        other => panic!("{other:?} in subgroups"),
    };
    match &module.types[ty].inner {
        TypeInner::Scalar(one) => {
            assert!(one.width == 4 || one.kind == ScalarKind::Bool, "{one:?}");
            scalar(one.kind).to_owned()
        }
        TypeInner::Vector { size, scalar: one } => {
            format!("vec{}<{}>", *size as u32, scalar(one.kind))
        }
        other => panic!("{other:?} in subgroups"),
    }
}

/// Components of a type as [`named`] names it.
fn components(ty: &str) -> u32 {
    let number = ty
        .strip_prefix("vec")
        .and_then(|rest| rest[..1].parse().ok());
    number.unwrap_or(1)
}

/// The WGSL function that replaces one operation for one type.
fn operation(function: &str, name: &str, ty: &str) -> String {
    let mut keep = String::new();
    let mut words = vec![];
    for i in 0..components(ty) {
        let one = match components(ty) {
            1 => "v".to_owned(),
            _ => format!("v[{i}]"),
        };
        let word = match ty {
            "bool" => "u32(v)".to_owned(),
            _ => format!("bitcast<u32>({one})"),
        };
        keep += &format!("  wave_words[wave_t * WAVE_WORDS + {i}u] = {word};\n");
        words.push(format!("wave_words[other_t * WAVE_WORDS + {i}u]"));
    }
    let words = words.join(", ");
    let found = match components(ty) {
        1 if ty == "bool" => format!("{words} == 1u"),
        1 => format!("bitcast<{ty}>({words})"),
        n => format!("bitcast<{ty}>(vec{n}<u32>({words}))"),
    };
    let fold = |next: &str| {
        format!(
            "  var result = v;
  for (var i = 0u; i < wave_lanes(); i += 1u) {{
    let other_t = wave_first() + i;
    if (other_t == wave_t) {{ continue; }}
    let other = {found};
    result = {next};
  }}\n"
        )
    };
    let (more, from, sync) = match name {
        "workgroupUniformLoad" => {
            return format!(
                "
fn {function}() -> {ty} {{
  wave_barrier();
  let v = told;
  wave_barrier();
  return v;
}}
"
            );
        }
        // Two lanes of a row are there together, whatever the other rows of the subgroup do.
        "subgroupShuffleXor" => (
            ", mask: u32",
            "(wave_t % WAVE) ^ mask",
            "pair_sync(other_t, mask)",
        ),
        "subgroupShuffle" | "subgroupBroadcast" => (", lane: u32", "lane", "wave_sync()"),
        _ => ("", "0u", "wave_sync()"),
    };
    let body = match name {
        "subgroupAdd" => fold("result + other"),
        "subgroupMax" => fold("max(result, other)"),
        "subgroupMin" => fold("min(result, other)"),
        "subgroupAny" => fold("result || other"),
        _ if more.is_empty() => panic!("{name} has no stand-in"),
        _ => format!("  let result = {found};\n"),
    };
    format!(
        "
fn {function}(v: {ty}{more}) -> {ty} {{
  let other_t = wave_first() + ({from});
{keep}  {sync};
{body}  {sync};
  // A wrong result, should some have waited in vain.
  if (wave_lost) {{ return {ty}(); }}
  return result;
}}
"
    )
}
