// A thread's shares of the products of a row of G ($Wg), and of the same row of U ($Wu), and the kernel's input x.
#number UNROLL  // units that a thread requests at once
#each k UNROLL
fn $W_walk(unit: u32, lane: u32, g_sub: u32, u_sub: u32) -> vec2<f32> {
  var sums = vec2<f32>(0.0);
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
    let g$k = $Wg_load(unit + unit_at(b, $ku), g_sub); let u$k = $Wu_load(unit + unit_at(b, $ku), u_sub);
    if (in_row(b, $ku)) { let v = x_unit(x_row(UNITS) + unit_at(b, $ku)); sums = vec2<f32>($Wg_add(sums.x, g$k, v), $Wu_add(sums.y, u$k, v)); }
    b += UNROLL * LANES;
  }
  return sums;
}
