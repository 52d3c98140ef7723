// A thread's share of the product of a row of $W, which begins at unit `unit`, and the kernel's input x from unit `first` on.
#number UNROLL  // units that a thread requests at once
#each k UNROLL
fn $W_walk(unit: u32, first: u32, lane: u32, sub: u32) -> f32 {
  var sum = 0.0;
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
    let w$k = $W_load(unit + unit_at(b, $ku), sub);
    if (in_row(b, $ku)) { sum = $W_add(sum, w$k, x_unit(first + unit_at(b, $ku))); }
    b += UNROLL * LANES;
  }
  return sum;
}
