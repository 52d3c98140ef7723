// What $W holds at i, of the type that the kernel calls $W_Value; where it comes in p.parts parts, p.part_stride apart, they are added up.
#ifdef parts
fn $W_sum(i: u32) -> $W_Value {
  var sum = $W[i];
  var part = 1u;
  loop {
    if (part >= p.parts) { break; }
    sum += $W[part * p.part_stride + i];
    part += 1u;
  }
  return sum;
}
#else
fn $W_sum(i: u32) -> $W_Value { return $W[i]; }
#endif
