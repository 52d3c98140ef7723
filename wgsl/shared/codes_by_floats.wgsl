// codes_by_bytes for an input of floats. A thread keeps the codes until it multiplies them: 12 words instead of 32.
#import floats
struct $W_Loaded { codes: W32Codes, affine: vec4<f32> }

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_Loaded($W_codes(u), $W_affine(u, sub));
}

fn $W_add(sum: f32, w: $W_Loaded, x: W32) -> f32 {
  return sum + floats_codes_dot(w.codes, w.affine, x);
}
