// Floats as unsigned integers (keys) of the same order. Comparing keys is exact even under fast math. -0 equals 0, and NaN counts as minus
// infinity.
const LOWEST = 0x007fffffu;      // the key of minus infinity and NaN
const INFINITE = 0xff800000u;    // the key of infinity

// Whether x is infinite or NaN, by its bits: fast math may take every number for finite.
fn is_broken(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u;
}

fn order(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return LOWEST; }
  if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The float of a key that is strictly between LOWEST and INFINITE.
fn value(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}
