// A unit of weights with integer codes: `$W_load` requests it, and `$W_times` multiplies it by a record (shared/bytes.wgsl).
#import bytes
struct $W_Loaded { codes: W32Codes, affine: vec4<f32> }

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_Loaded($W_codes(u), $W_affine(u, sub));
}

fn $W_times(w: $W_Loaded, x: Record) -> f32 {
  return bytes_codes_dot(w.codes, w.affine, x);
}
