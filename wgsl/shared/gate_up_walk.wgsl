// A thread's shares of the products of AT_ONCE rows of G ($Wg), and of the same rows of U ($Wu), and the kernel's input x: those of each column
// (shared/columns.wgsl), as the kernel's Columns. The rows begin at `units`.
#number UNROLL COLS AT_ONCE  // units that a thread requests at once, tokens of a workgroup, rows of a thread
#import columns
#each k UNROLL
#each c COLS
#each r AT_ONCE
fn $Wg_rows(units: Rows, u: u32, sub: u32) -> array<$Wg_Loaded, AT_ONCE> {
  return array<$Wg_Loaded, AT_ONCE>(
    $Wg_load(units[$r] + u, sub),
  );
}

fn $Wu_rows(units: Rows, u: u32, sub: u32) -> array<$Wu_Loaded, AT_ONCE> {
  return array<$Wu_Loaded, AT_ONCE>(
    $Wu_load(units[$r] + u, sub),
  );
}

fn $W_multiply(sums: Pairs, g: array<$Wg_Loaded, AT_ONCE>, u: array<$Wu_Loaded, AT_ONCE>, v: x_Unit) -> Pairs {
  return Pairs(
    vec2<f32>($Wg_add(sums[$r].x, g[$r], v), $Wu_add(sums[$r].y, u[$r], v)),
  );
}

fn $W_walk(wid: vec3<u32>, units: Rows, lane: u32, g_sub: u32, u_sub: u32) -> Columns {
  var sums$c = Pairs();
  turn_to(wid, $cu); let own$c = x_row(UNITS);
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
    let g$k = $Wg_rows(units, unit_at(b, $ku), g_sub); let u$k = $Wu_rows(units, unit_at(b, $ku), u_sub);
    if (is_wanted($cu) && in_row(b, $ku)) { sums$c = $W_multiply(sums$c, g$k, u$k, x_unit(own$c + unit_at(b, $ku))); }
    b += UNROLL * LANES;
  }
  return Columns(
    sums$c,
  );
}
