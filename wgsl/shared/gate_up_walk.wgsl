// A thread's shares of the products of a row of G ($Wg), and of the same row of U ($Wu), and the kernel's input x: one for each column
// (shared/columns.wgsl), as the kernel's Columns.
#number UNROLL COLS  // units that a thread requests at once, tokens of a workgroup
#import columns
#each k UNROLL
#each c COLS
fn $W_walk(wid: vec3<u32>, unit: u32, lane: u32, g_sub: u32, u_sub: u32) -> Columns {
  var sums$c = vec2<f32>(0.0);
  turn_to(wid, $cu); let own$c = x_row(UNITS);
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
    let g$k = $Wg_load(unit + unit_at(b, $ku), g_sub); let u$k = $Wu_load(unit + unit_at(b, $ku), u_sub);
    if (in_row(b, $ku)) { let v = x_unit(own$c + unit_at(b, $ku)); sums$c = vec2<f32>($Wg_add(sums$c.x, g$k, v), $Wu_add(sums$c.y, u$k, v)); }
    b += UNROLL * LANES;
  }
  return Columns(
    sums$c,
  );
}
