// A unit of weights with integer codes: `$W_load` requests it, and `$W_add` adds its product with a record (shared/bytes.wgsl) to a sum.
#import bytes
struct $W_Loaded { codes: W32Codes, affine: vec4<f32> }

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_Loaded($W_codes(u), $W_affine(u, sub));
}

fn $W_add(sum: f32, w: $W_Loaded, x: Record) -> f32 {
  let lo = bytes_sum16(w.codes.lo, x.lo);
  let hi = bytes_sum16(w.codes.hi, x.hi);
  if ($W_CENTRED && $W_CENTRE == 0.0) { return fma(w.affine.x, x.scales.x * lo, fma(w.affine.z, x.scales.y * hi, sum)); }
  if ($W_CENTRED) {
    let first = fma(w.affine.x, fma(x.scales.x, lo, -$W_CENTRE * x.scales.z), sum);
    return fma(w.affine.z, fma(x.scales.y, hi, -$W_CENTRE * x.scales.w), first);
  }
  let first = fma(w.affine.x, x.scales.x * lo, fma(w.affine.y, x.scales.z, sum));
  return fma(w.affine.z, x.scales.y * hi, fma(w.affine.w, x.scales.w, first));
}
