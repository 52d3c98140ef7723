//! Protects the preprocessor of the templates: what flags and constants keep, repeat and replace, and what it refuses.

use super::*;

fn go(source: &str, variant: &Variant) -> Result<String, GpuError> {
    expand("test", source, variant, Tier::Plain).map(|e| e.text)
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
    let out = go(
        "#number COLS // how many\n#for c COLS\nx$c += y[$c];\n#endfor\n",
        &v,
    )
    .unwrap();
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
    let out = go("// a kernel\nenable f16;\n#number N // one\nN\n", &v).unwrap();
    assert_eq!(out, "enable f16;\nconst N: u32 = 1u;\n// a kernel\nN\n");
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
        ("#number N\nN\n", "line 1: the variant gives no number N"),
    ] {
        let e = go(text, &v).unwrap_err().to_string();
        assert!(e.contains(part), "{e} lacks {part}");
    }
}

#[test]
fn numbers_are_those_that_a_file_declares_and_uses() {
    let v = Variant::default().number("A", 1).number("B", 2);
    for (text, expected) in [
        ("#number A B // two\nx[A] = B;\n", None),
        (
            "#number A B\n#read x: array<u32> @words(A)\n#for i B\n#endfor\n",
            None,
        ),
        ("#number A\nA B\n", Some("no #number declares B")),
        (
            "A\n#number A B\nx // B, AB\n",
            Some("line 2: nothing uses the number B"),
        ),
        (
            "#number A B C\nA B C\n",
            Some("line 1: the variant gives no number C"),
        ),
    ] {
        let error = go(text, &v).err().map(|e| e.to_string());
        let is_right = match (&error, expected) {
            (Some(error), Some(expected)) => error.contains(expected),
            (error, expected) => error.is_none() && expected.is_none(),
        };
        assert!(is_right, "{text}: {error:?}");
    }
}
