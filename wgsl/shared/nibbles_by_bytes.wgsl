// codes_by_bytes for types whose codes are four bits in one plane, with one scale and offset per unit. A thread keeps the words as
// they were loaded. It multiplies the lower nibbles as they are, and the upper ones without a shift: as signed bytes they are 16 (code - 8).
#import bytes
struct $W_Loaded { codes: vec4<u32>, affine: vec4<f32> }

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_Loaded($W_q[u], $W_affine(u, sub));
}

fn $W_add(sum: f32, w: $W_Loaded, x: Record) -> f32 {
  let lower = bytes_sum16(w.codes & vec4<u32>(0x0f0f0f0fu), x.lo);
  let upper = bytes_sum16(w.codes & vec4<u32>(0xf0f0f0f0u), x.hi);
  // The centre is 8, which the upper nibbles have subtracted already.
  if ($W_CENTRED) { return fma(w.affine.x, fma(x.scales.x, lower, fma(0.0625 * x.scales.y, upper, -8.0 * x.scales.z)), sum); }
  let product = fma(x.scales.x, lower, (0.0625 * x.scales.y) * upper);
  return fma(w.affine.x, product, fma(w.affine.y, x.scales.z, fma(fma(8.0, w.affine.x, w.affine.y), x.scales.w, sum)));
}
