// codes_by_floats for weights without integer codes.
#import w32_math
alias $W_Loaded = W32;

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_unit(u, sub);
}

fn $W_add(sum: f32, w: $W_Loaded, x: W32) -> f32 {
  return sum + w32_dot(w, x.v0, x.v1, x.v2, x.v3, x.v4, x.v5, x.v6, x.v7);
}
