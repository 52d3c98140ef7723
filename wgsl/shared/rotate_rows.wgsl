// The rotation of queries at the end of the product that makes them (--precompose qk): rows from ROTATED on are pairs (2i,
// 2i+1) of heads of ROPE values, and rotate by the angle of (position, i). The kernel declares `angles` and the parameter
// `pos`, and a workgroup owns WG / LANES rows from an even one on.
var<workgroup> rotate_rows: array<f32, WG / LANES>;

// The row's sum, known to its first lane, after rotation; every thread of the workgroup calls it.
fn rotated(sum: f32, row: u32, t: u32) -> f32 {
  if ((t & (LANES - 1u)) == 0u) { rotate_rows[t / LANES] = sum; }
  workgroupBarrier();
  let other = rotate_rows[(t / LANES) ^ 1u];
  if (row < ROTATED) { return sum; }
  let angle = angles[p.pos * (ROPE / 2u) + (((row - ROTATED) % ROPE) >> 1u)];
  return sum * angle.x + select(-other, other, (row & 1u) == 1u) * angle.y;
}
