// Half a unit of prepared values, as matrices of halves take it: of halves with scales (shared/halves.wgsl).
#import halves
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 5, 8), shared/halves.wgsl
struct $W_Half { first: vec4<u32>, second: vec4<u32>, scale: f32 }

fn $W_scale(u: u32, half: u32) -> f32 {
  let scales = bitcast<vec4<f32>>($W[halves_place(u) + HALVES_SCALES]);
  return select(scales.x, scales.z, half == 1u);
}

fn $W_half(u: u32, half: u32) -> $W_Half {
  let at = halves_place(u) + 2u * half * HALVES_PLANE;
  return $W_Half($W[at], $W[at + HALVES_PLANE], $W_scale(u, half));
}

// The largest value that the half may have: halves lie below 2^15.
fn $W_largest(u: u32, half: u32) -> f32 { return 32768.0 * $W_scale(u, half); }

// Values 4i .. 4i + 4 of the half, times `factor`.
fn $W_four(v: $W_Half, i: u32, factor: f32) -> vec4<f16> {
  let eight = select(v.first, v.second, vec4(i >= 2u));
  let two = select(eight.xy, eight.zw, vec2((i & 1u) == 1u));
  let even = unpack2x16float(two.x);
  let odd = unpack2x16float(two.y);
  return vec4<f16>(vec4(even.x, odd.x, even.y, odd.y) * (v.scale * factor));
}
