// Rotates queries at the end of the product that makes them (--precompose qk). Rows from ROTATED on are heads of ROPE values, of which each
// pair (2i, 2i+1) rotates by the angle of (position, i). The kernel declares `angles` and `p.pos`. A workgroup owns WG / LANES rows, of which
// the first is even.
var<workgroup> rotate_rows: array<f32, WG / LANES>;

// The sum of a row, known to the row's first lane, after rotation. Every thread of the workgroup must call.
fn rotated(sum: f32, row: u32, t: u32) -> f32 {
  if ((t & (LANES - 1u)) == 0u) { rotate_rows[t / LANES] = sum; }
  workgroupBarrier();
  let other = rotate_rows[(t / LANES) ^ 1u];
  if (row < ROTATED) { return sum; }
  let angle = angles[p.pos * (ROPE / 2u) + (((row - ROTATED) % ROPE) >> 1u)];
  return sum * angle.x + select(-other, other, (row & 1u) == 1u) * angle.y;
}
