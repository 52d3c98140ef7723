// codes_by_bytes for weights without integer codes.
#import bytes
alias $W_Loaded = W32;

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_unit(u, sub);
}

fn $W_add(sum: f32, w: $W_Loaded, x: Record) -> f32 {
  return sum + bytes_float_dot(w, x);
}
