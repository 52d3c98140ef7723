// codes_by_halves for weights without integer codes.
#import halves
alias $W_Loaded = W32;

fn $W_load(u: u32, sub: u32) -> $W_Loaded {
  return $W_unit(u, sub);
}

fn $W_half(w0: vec4<f32>, w1: vec4<f32>, w2: vec4<f32>, w3: vec4<f32>, first: vec4<u32>, second: vec4<u32>) -> f32 {
  var even = w0.xz * unpack2x16float(first.x);
  var odd = w0.yw * unpack2x16float(first.y);
  even += w1.xz * unpack2x16float(first.z);
  odd += w1.yw * unpack2x16float(first.w);
  even += w2.xz * unpack2x16float(second.x);
  odd += w2.yw * unpack2x16float(second.y);
  even += w3.xz * unpack2x16float(second.z);
  odd += w3.yw * unpack2x16float(second.w);
  let both = even + odd;
  return both.x + both.y;
}

fn $W_add(sum: f32, w: $W_Loaded, x: Halves) -> f32 {
  let lo = $W_half(w.v0, w.v1, w.v2, w.v3, x.a, x.b);
  let hi = $W_half(w.v4, w.v5, w.v6, w.v7, x.c, x.d);
  return fma(x.scales.x, lo, fma(x.scales.z, hi, sum));
}
