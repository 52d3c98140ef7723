// A product's rows, rotated if `angles` is bound (--precompose qk). Rows from ROTATED on are heads of ROPE values, of which each pair (2i, 2i+1)
// rotates by the angle of (position, i). A workgroup owns WG / LANES rows, of which the first is even.
#word pos?: u32                                                      // of the token
#read angles?: array<vec2<f32>> @floats(CONTEXT * ROPE)              // (n_ctx, ROPE / 2) of (cos, sin)
#ifdef angles
#number ROPE ROTATED  // rotated values of a head, the first rotated row
var<workgroup> row_sums: array<f32, WG / LANES>;
#endif

// The sum of a row, known to the row's first lane, after rotation. Every thread of the workgroup must call.
fn rotated(sum: f32, row: u32, t: u32) -> f32 {
#ifdef angles
  if ((t & (LANES - 1u)) == 0u) { row_sums[t / LANES] = sum; }
  workgroupBarrier();
  let other = row_sums[(t / LANES) ^ 1u];
  if (row >= ROTATED) {
    let angle = angles[p.pos * (ROPE / 2u) + (((row - ROTATED) % ROPE) >> 1u)];
    return sum * angle.x + select(-other, other, (row & 1u) == 1u) * angle.y;
  }
#endif
  return sum;
}
