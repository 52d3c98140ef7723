//! Protects the counts of instructions: those of small shaders were made by hand.

use super::{Cost, Counted, count};

/// A shader of these functions and this body, with words `w`, floats `f` and an output `y`.
fn shader(functions: &str, body: &str) -> Result<Counted, String> {
    let enable = if body.contains("f16") {
        "enable f16;"
    } else {
        ""
    };
    let text = format!(
        "{enable}
        @group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
        @group(0) @binding(1) var<storage, read> f: array<vec4<f32>>;
        @group(0) @binding(2) var<storage, read_write> y: array<f32>;
        {functions}
        @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) t: u32) {{ {body} }}"
    );
    let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
    count(&module)
}

#[track_caller]
fn outside(functions: &str, body: &str) -> (f64, f64) {
    let counted = shader(functions, body).unwrap_or_else(|e| panic!("{e}"));
    let Cost { slow, fast } = counted.outside.cost().unwrap_or_else(|e| panic!("{e}"));
    (slow, fast)
}

/// Fails unless the operations of `body`, which has no loops, cost `slow` on the slow and `fast` on the fast pipe.
#[track_caller]
fn costs(body: &str, slow: f64, fast: f64) {
    assert_eq!(outside("", body), (slow, fast), "{body}");
}

#[test]
fn floats_cost_one_step_for_each_component() {
    costs("y[t] = f[t].x + f[t].y;", 0.0, 1.0);
    costs("y[t] = f[t].x * f[t].y;", 0.0, 1.0);
    costs("let s = f[t] - f[0]; y[t] = s.x; y[0] = s.y;", 0.0, 2.0);
    costs(
        "let s = f[t] + f[0]; y[t] = (s.x + s.y) + (s.z + s.w);",
        0.0,
        7.0,
    );
    // The components of a vector with a scalar.
    costs(
        "let s = f[t] * f[0].x; y[t] = min(min(s.x, s.y), max(s.z, s.w));",
        0.0,
        7.0,
    );
    costs("y[t] = clamp(f[t].x, 0.0, 1.0);", 0.0, 2.0);
    costs("y[t] = f[t].x / f[t].y;", 6.0, 1.0);
}

#[test]
fn a_product_is_part_of_the_one_addition_that_needs_it() {
    costs("y[t] = f[t].x * f[t].y + f[t].z;", 0.0, 1.0);
    costs("y[t] = f[t].z - f[t].x * f[t].y;", 0.0, 1.0);
    costs("y[t] = fma(f[t].x, f[t].y, f[t].z);", 0.0, 1.0);
    // One of two products.
    costs("y[t] = f[t].x * f[t].y + f[t].z * f[t].w;", 0.0, 2.0);
    // The sign of an operand costs nothing.
    costs("y[t] = f[t].z + -(f[t].x * f[t].y);", 0.0, 1.0);
    costs("y[t] = -f[t].x * f[t].y;", 0.0, 1.0);
    // Where it is stored too, and where two additions need it.
    costs(
        "let p = f[t].x * f[t].y; y[t] = p + f[t].z; y[0] = p;",
        0.0,
        2.0,
    );
    costs(
        "let p = f[t].x * f[t].y; y[t] = (p + f[t].z) * (p + f[t].w);",
        0.0,
        4.0,
    );
    costs("y[t] = dot(f[t], f[0]);", 0.0, 4.0);
    costs("y[t] = dot(f[t], f[0]) + f[1].x;", 0.0, 5.0);
    costs("y[t] = dot(f[t], vec4<f32>(1.0));", 0.0, 3.0);
}

#[test]
fn integers_cost_what_their_pipe_takes() {
    costs("y[t] = bitcast<f32>(w[t].x + w[t].y);", 0.0, 1.0);
    costs(
        "y[t] = bitcast<f32>((w[t].x & w[t].y) | ~w[t].z);",
        0.0,
        3.0,
    );
    costs("y[t] = bitcast<f32>(w[t].x * w[t].y);", 4.0, 0.0);
    costs("y[t] = bitcast<f32>(w[t].x << 3u);", 4.0, 0.0);
    costs("y[t] = bitcast<f32>(w[t].x >> 3u);", 4.0, 0.0);
    costs("y[t] = bitcast<f32>(w[t].x >> w[t].y);", 8.0, 0.0);
    costs("y[t] = bitcast<f32>(w[t].x << w[t].y);", 4.0, 0.0);
    costs(
        "y[t] = bitcast<f32>(extractBits(w[t].x, w[t].y, 4u));",
        4.0,
        0.0,
    );
    costs("y[t] = bitcast<f32>(w[t].x / 8u);", 4.0, 0.0);
    costs("y[t] = bitcast<f32>(w[t].x % 8u);", 0.0, 1.0);
    costs("y[t] = bitcast<f32>(w[t].x / 48u);", 12.0, 0.0);
    costs("y[t] = f32(w[t].x);", 4.0, 0.0);
    costs("y[t] = f32(i32(w[t].x));", 4.0, 0.0);
    costs("y[t] = select(f[t].x, f[t].y, w[t].x == 3u);", 0.0, 2.0);
    // Four bytes: extraction and conversion of each, and their sum.
    costs(
        "y[t] = dot(vec4<f32>(unpack4xI8(w[t].x)), f[t]);",
        32.0,
        4.0,
    );
    // A shift by nothing is none.
    costs(
        "let s = vec2<u32>(w[t].x) >> vec2<u32>(0u, 8u); y[t] = bitcast<f32>(s.x ^ s.y);",
        4.0,
        1.0,
    );
    // Addresses as they are written.
    costs("y[t] = f[3u * t + 1u].x;", 4.0, 1.0);
}

#[test]
fn halves_widen_for_nothing_where_they_are_operands() {
    costs(
        "y[t] = unpack2x16float(w[t].x).x * f[t].x + f[t].y;",
        0.0,
        1.0,
    );
    costs("y[t] = -unpack2x16float(w[t].x).y * f[t].x;", 0.0, 1.0);
    costs(
        "let a = unpack2x16float(w[t].x) * unpack2x16float(w[t].y); y[t] = a.x + a.y;",
        0.0,
        2.0,
    );
    // Stored as it is, a half has to become a float.
    costs("y[t] = unpack2x16float(w[t].x).x;", 0.0, 1.0);
    // A constant shift of what is not known to be a half.
    costs(
        "y[t] = unpack2x16float(w[t].x >> (16u * (t & 1u))).x * f[t].x;",
        12.0,
        2.0,
    );
    let both = "y[t] = f32(a.x) + f32(a.y);";
    // Operations of pairs of halves are two.
    let (slow, fast) = outside(
        "",
        &format!(
            "let a = vec2<f16>(unpack2x16float(w[t].x)) * vec2<f16>(unpack2x16float(w[t].y)); {both}"
        ),
    );
    assert_eq!((slow, fast), (0.0, 3.0));
    let (slow, fast) = outside("", &format!(
        "let b = vec2<f16>(unpack2x16float(w[t].x)) - vec2<f16>(1032.0h);
        let a = fma(b, vec2<f16>(unpack2x16float(w[t].y)), vec2<f16>(unpack2x16float(w[t].z))); {both}"
    ));
    assert_eq!((slow, fast), (0.0, 5.0));
}

#[test]
fn equal_values_count_once_wherever_they_are_written() {
    costs("let s = f[t].x + f[t].y; y[t] = s * s;", 0.0, 2.0);
    costs("y[t] = (f[t].x + f[t].y) * (f[t].y + f[t].x);", 0.0, 2.0);
    let functions = "fn sum(i: u32) -> f32 { return f[i].x + f[i].y; }
        fn square(i: u32) -> f32 { return sum(i) * sum(i); }";
    assert_eq!(outside(functions, "y[t] = square(t);"), (0.0, 2.0));
    // Memory that is written is read again.
    costs("y[t] = y[0] + 1.0; y[1] = y[0] + 1.0;", 0.0, 2.0);
    costs("y[t] = f[0].x + 1.0; y[1] = f[0].x + 1.0;", 0.0, 1.0);
}

#[test]
fn what_nobody_needs_costs_nothing() {
    costs("let s = f[t] * f[0]; y[t] = s.x;", 0.0, 1.0);
    costs("var s = f[t].x * 2.0; s = f[t].y; y[t] = s;", 0.0, 0.0);
    let functions = "struct Pair { a: vec4<f32>, b: u32 }
        fn pair(i: u32) -> Pair { return Pair(f[i] * 2.0, w[i].x * w[i].y); }";
    assert_eq!(outside(functions, "y[t] = pair(t).a.z;"), (0.0, 1.0));
    // An assignment to a component leaves the others alone.
    costs(
        "var s = f[t] * f[0]; s.x = 0.5; y[t] = s.x + s.y;",
        0.0,
        1.0,
    );
}

#[test]
fn branches_on_constants_are_taken_and_others_count_on_both_sides() {
    let functions = "const CENTRED = true;
        fn half(pair: u32, odd: u32) -> f32 { return unpack2x16float(pair >> (16u * odd)).x; }
        fn affine(i: u32) -> f32 {
            let d = half(w[i].x, 1u) * f[i].x;
            if (CENTRED) { return d; }
            return d * f[i].y - f[i].z * f[i].w;
        }";
    assert_eq!(outside(functions, "y[t] = affine(t);"), (4.0, 1.0));
    costs(
        "var s = f[t].x; if (t < 3u) { s *= 2.0; } else { s -= 1.0; } y[t] = s;",
        0.0,
        3.0,
    );
    costs(
        "y[t] = select(f[t].x * 2.0, f[t].y + 1.0, false);",
        0.0,
        1.0,
    );
    // One function that returns in two places.
    let functions =
        "fn f2(i: u32) -> f32 { if (i > 3u) { return f[i].x * 2.0; } return f[i].y + 1.0; }";
    assert_eq!(outside(functions, "y[t] = f2(t);"), (0.0, 3.0));
}

#[test]
fn a_loop_counts_what_changes_with_its_passes() {
    let body = "
        let scale = f[0].x * f[0].y;
        var sum = 0.0;
        var i = t;
        loop {
            if (i >= 64u) { break; }
            let constant = f[1].x * f[1].y;
            var local = f[i].x * constant;
            local += f32(w[i].x & 15u);
            sum += local * scale;
            i += 32u;
        }
        y[t] = sum * 3.0;";
    let counted = shader("", body).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(counted.loops.len(), 1);
    let region = &counted.loops[0];
    // Compare, mask, two multiply-adds, the next index; a conversion.
    assert_eq!(
        region.cost(),
        Ok(Cost {
            slow: 4.0,
            fast: 5.0
        })
    );
    assert_eq!((region.function.as_str(), region.depth), ("main", 1));
    let loads: Vec<_> = region.loads.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(loads, [("f", 1), ("w", 1)]);
    // Two products before the loop, one after it.
    assert_eq!(
        counted.outside.cost(),
        Ok(Cost {
            slow: 0.0,
            fast: 3.0
        })
    );
}

#[test]
fn loops_in_loops_and_in_functions_are_told_apart() {
    let functions = "fn inner(i: u32) -> f32 {
            var sum = 0.0;
            for (var k = 0u; k < 4u; k += 1u) { sum += f[i + k].x * f[k].y; }
            return sum;
        }";
    let body = "var sum = 0.0;
        var i = t;
        loop {
            sum += 0.5 * inner(4u * i);
            i += 1u;
            if (i > 9u) { break; }
        }
        y[t] = sum;";
    let counted = shader(functions, body).unwrap_or_else(|e| panic!("{e}"));
    let found: Vec<_> = counted
        .loops
        .iter()
        .map(|l| (l.function.as_str(), l.depth, l.cost()))
        .collect();
    assert_eq!(
        found,
        [
            (
                "main",
                1,
                Ok(Cost {
                    slow: 4.0,
                    fast: 3.0
                })
            ),
            (
                "inner",
                2,
                Ok(Cost {
                    slow: 0.0,
                    fast: 4.0
                })
            )
        ]
    );
}

#[test]
fn lanes_and_workgroup_memory() {
    costs("y[t] = subgroupAdd(f[t].x);", 14.5, 0.0);
    costs("y[t] = subgroupShuffleXor(f[t].x, 4u) + f[t].x;", 2.0, 1.0);
    let functions = "var<workgroup> kept: array<vec4<f32>, 64>;";
    let body = "kept[t] = f[t] * 2.0; workgroupBarrier(); let v = kept[t ^ 1u]; y[t] = v.x + v.y;";
    assert_eq!(outside(functions, body), (0.0, 6.0));
}

#[test]
fn what_has_no_cost_is_named() {
    let counted = shader("", "y[t] = sin(f[t].x);").unwrap_or_else(|e| panic!("{e}"));
    let error = counted.outside.cost().expect_err("no cost");
    assert!(error.contains("Sin"), "{error}");
    let error = shader("", "switch (t) { case 1u: { y[0] = 1.0; } default: {} }");
    assert!(error.expect_err("a switch").contains("Switch"));
}

/// The cost of eight codes of Q4_0 in other forms, of which each word of a unit has eight: byte j holds the code of weight j in its low
/// and of weight j + 16 in its high nibble.
#[test]
fn forms_of_four_bit_codes() {
    let masks = "
        let c = w[t].x;
        let odd = c >> 8u;
        let a = (c & 0x000f000fu) | 0x64006400u;
        let b = (c & 0x00f000f0u) | 0x64006400u;
        let d = (odd & 0x000f000fu) | 0x64006400u;
        let e = (odd & 0x00f000f0u) | 0x64006400u;
        let x = w[t + 64u];";
    // Halves as operands of f32: a product and addition for each, two bit operations for each pair, a shift for all.
    let body = format!(
        "{masks}
        var s = vec2<f32>(f[0].x, f[0].y);
        s = fma(unpack2x16float(a), unpack2x16float(x.x), s);
        s = fma(unpack2x16float(b), unpack2x16float(x.y), s);
        s = fma(unpack2x16float(d), unpack2x16float(x.z), s);
        s = fma(unpack2x16float(e), unpack2x16float(x.w), s);
        y[t] = s.x; y[0] = s.y;"
    );
    // With the address of the input: one addition.
    assert_eq!(outside("", &body), (4.0, 8.0 + 8.0 + 1.0));
    // Taking the offset off pairs instead makes two more operations for each pair.
    let body = format!(
        "{masks}
        let o = vec2<f16>(1032.0h);
        let p = vec2<f16>(1152.0h);
        var s = vec2<f16>(unpack2x16float(w[0].x));
        s = fma(vec2<f16>(unpack2x16float(a)) - o, vec2<f16>(unpack2x16float(x.x)), s);
        s = fma(vec2<f16>(unpack2x16float(b)) - p, vec2<f16>(unpack2x16float(x.y)), s);
        s = fma(vec2<f16>(unpack2x16float(d)) - o, vec2<f16>(unpack2x16float(x.z)), s);
        s = fma(vec2<f16>(unpack2x16float(e)) - p, vec2<f16>(unpack2x16float(x.w)), s);
        let r = vec2<f32>(s) * f[0].xy; y[t] = r.x; y[0] = r.y;"
    );
    // Two products of the result, and the address.
    assert_eq!(outside("", &body), (4.0, 8.0 + 16.0 + 3.0));
}
