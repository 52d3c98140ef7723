// 16 values as halves with a scale (shared/halves.wgsl), as half a unit of quant::halves.

// If the largest value is smaller, all become 0, so that the scale and its inverse are normal f32.
const HALVES_SMALLEST = 1e-33;

// The scale that puts the largest half between 2^14 and 2^15, and its inverse. Both are powers of two, or 0 if all values become 0.
fn halves_scale(largest: f32) -> vec2<f32> {
  let exponent = bitcast<u32>(max(largest, HALVES_SMALLEST)) >> 23u;
  let both = bitcast<vec2<f32>>(vec2<u32>(exponent - 14u, 268u - exponent) << vec2<u32>(23u));
  return select(vec2<f32>(0.0), both, largest >= HALVES_SMALLEST);
}

// Rounds values to the 11 bits of a half, by integers. A conversion to f16 and back might be removed, as NVIDIA's compiler does, and then the
// sums would not be those of the halves.
fn halves_round(v: vec4<f32>) -> vec4<f32> {
  let bits = bitcast<vec4<u32>>(v);
  let even = (bits >> vec4<u32>(13u)) & vec4<u32>(1u);
  return bitcast<vec4<f32>>((bits + vec4<u32>(0x0fffu) + even) & vec4<u32>(0xffffe000u));
}

// Four rounded values as two words of halves.
fn halves_words(v: vec4<f32>) -> vec2<u32> {
  return vec2<u32>(pack2x16float(v.xz), pack2x16float(v.yw));
}

// The sum of four values.
fn halves_sum(v: vec4<f32>) -> f32 {
  return (v.x + v.y) + (v.z + v.w);
}
