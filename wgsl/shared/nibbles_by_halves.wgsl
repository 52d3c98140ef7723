// codes_by_halves for types whose codes are four bits in one plane, with one scale and offset per unit. A thread keeps the words
// as they were loaded. It multiplies the upper nibbles without a shift, as 16 times the codes.
#import halves
#import halves_math
struct $W_Loaded { codes: vec4<u32>, affine: vec4<f32>, bits: u32 }

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
#ifdef PACKED
  // Stored with the top bit of each byte inverted.
  return $W_Loaded($W_q[u], $W_affine(u, sub), halves_hidden(0x00800080u, sub));
#else
  return $W_Loaded($W_q[u], $W_affine(u, sub), halves_hidden(HALVES_BIAS, sub));
#endif
}

fn $W_add(sum: f32, w: $W_Loaded, x: Halves) -> f32 {
  let odd = w.codes >> vec4<u32>(8u);
  let lower = vec4<u32>(0x000f000fu);
  let upper = vec4<u32>(0x00f000f0u);
  let bits = vec4<u32>(w.bits);
#ifdef PACKED
  let lo = halves_dot16(w.codes & lower, odd & lower, x.a, x.b);
  let hi = halves_dot16((w.codes & upper) ^ bits, (odd & upper) ^ bits, x.c, x.d);
  let product = fma(x.scales.x, lo, (0.0625 * x.scales.z) * hi);
  return fma(HALVES_ONE * w.affine.x, product, fma(w.affine.y, x.scales.y + x.scales.w, sum));
#else
  let turned = vec4<u32>(w.bits ^ 0x00800080u);
  let lo = halves_dot16((w.codes & lower) | bits, (odd & lower) | bits, 1024.0 + $W_CENTRE, x.a, x.b, x.scales.xy);
  let hi = halves_dot16((w.codes & upper) ^ turned, (odd & upper) ^ turned, 1024.0 + 16.0 * $W_CENTRE, x.c, x.d, x.scales.zw);
  let product = fma(w.affine.x, fma(0.0625, hi, lo), sum);
  if ($W_CENTRED) { return product; }
  return fma(fma($W_CENTRE, w.affine.x, w.affine.y), x.scales.y + x.scales.w, product);
#endif
}
