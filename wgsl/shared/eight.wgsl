// Eight values, and a vector of 8 f16 as such.
struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn widen(x: vec4<u32>) -> Eight {
  return Eight(
    vec4(unpack2x16float(x.x), unpack2x16float(x.y)),
    vec4(unpack2x16float(x.z), unpack2x16float(x.w)),
  );
}
