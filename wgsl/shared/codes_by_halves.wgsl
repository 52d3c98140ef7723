// codes_by_bytes for an input of halves (shared/halves.wgsl).
#import halves
#import halves_math
struct $W_Loaded { codes: W32Codes, affine: vec4<f32>, bits: u32 }

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
#ifdef PACKED
  return $W_Loaded($W_codes(u), $W_affine(u, sub), halves_hidden(0x00800080u, sub));
#else
  return $W_Loaded($W_codes(u), $W_affine(u, sub), halves_hidden(HALVES_BIAS, sub) ^ 0x00800080u);
#endif
}

fn $W_half(sum: f32, codes: vec4<u32>, turned: u32, affine: vec2<f32>, first: vec4<u32>, second: vec4<u32>, scale: vec2<f32>) -> f32 {
  let mask = vec4<u32>(0x00ff00ffu);
  let bits = vec4<u32>(turned);
  let odd = codes >> vec4<u32>(8u);
#ifdef PACKED
  if ($W_CENTRED && $W_CENTRE == 0.0) {
    // Codes are signed bytes. Adding 128 makes them positive, and it is subtracted again.
    let dot = halves_centred_dot16((codes & mask) ^ bits, (odd & mask) ^ bits, turned, first, second);
    return fma(HALVES_ONE * affine.x, scale.x * dot, sum);
  }
  let dot = halves_dot16(codes & mask, odd & mask, first, second);
  return fma(HALVES_ONE * affine.x, scale.x * dot, fma(affine.y, scale.y, sum));
#else
  // Codes are signed bytes. Adding 128 makes them positive.
  let dot = halves_dot16((codes & mask) ^ bits, (odd & mask) ^ bits, 1152.0 + $W_CENTRE, first, second, scale);
  let product = fma(affine.x, dot, sum);
  if ($W_CENTRED) { return product; }
  return fma(fma($W_CENTRE, affine.x, affine.y), scale.y, product);
#endif
}

fn $W_add(sum: f32, w: $W_Loaded, x: Halves) -> f32 {
  let first = $W_half(sum, w.codes.lo, w.bits, w.affine.xy, x.a, x.b, x.scales.xy);
  return $W_half(first, w.codes.hi, w.bits, w.affine.zw, x.c, x.d, x.scales.zw);
}
