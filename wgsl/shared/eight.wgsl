// Eight values, and a vector of 8 f16 as such.
struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn widen(x: vec4<u32>) -> Eight {
  return Eight(
    vec4(unpack2x16float(x.x), unpack2x16float(x.y)),
    vec4(unpack2x16float(x.z), unpack2x16float(x.w)),
  );
}

// sum + (lo, hi) * k, as one chain of multiply-adds.
fn plus_eight(sum: f32, lo: vec4<f32>, hi: vec4<f32>, k: Eight) -> f32 {
  var s = sum;
  s += lo.x * k.lo.x;
  s += lo.y * k.lo.y;
  s += lo.z * k.lo.z;
  s += lo.w * k.lo.w;
  s += hi.x * k.hi.x;
  s += hi.y * k.hi.y;
  s += hi.z * k.hi.z;
  s += hi.w * k.hi.w;
  return s;
}
