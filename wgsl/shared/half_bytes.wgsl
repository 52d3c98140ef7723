// Half a unit of prepared values, as matrices of halves take it: of records (shared/bytes.wgsl).
#import bytes
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units, 3)
struct $W_Half { codes: vec4<u32>, scale: f32 }

fn $W_half(u: u32, half: u32) -> $W_Half {
  let scales = bitcast<vec4<f32>>($W[3u * u + 2u]);
  return $W_Half($W[3u * u + half], select(scales.x, scales.y, half == 1u));
}

// The largest value that the half may have.
fn $W_largest(u: u32, half: u32) -> f32 {
  let scales = bitcast<vec4<f32>>($W[3u * u + 2u]);
  return 127.0 * select(scales.x, scales.y, half == 1u);
}

// Values 4i .. 4i + 4 of the half, times `factor`.
fn $W_four(v: $W_Half, i: u32, factor: f32) -> vec4<f16> {
  return vec4<f16>(vec4<f32>(unpack4xI8(v.codes[i])) * (v.scale * factor));
}
