// A product's rows, rotated if `angles` is bound (--precompose qk). Rows from ROTATED on are heads of ROPE values, of which each pair (2i, 2i+1)
// rotates by the angle of (position, i). A workgroup owns WG / LANES rows, of which the first is even.
#word pos?: u32                                                      // of the one token
#read angles?: array<vec2<f32>> @floats(CONTEXT * ROPE)              // (n_ctx, ROPE / 2) of (cos, sin)
#ifdef angles
#number ROPE ROTATED  // rotated values of a head, the first rotated row
#import own_token
#import table
var<workgroup> row_sums: array<f32, WG / LANES>;
#ifdef table
fn rotated_by() -> u32 { return table[2u * own_token].x; }
#else
fn rotated_by() -> u32 { return p.pos; }
#endif
// The place of the token's row in y. There the rows of all tokens that are not rotated precede the others.
#ifdef SEVERAL
#number STEP_TOKENS  // tokens that y has room for
fn rotated_place(row: u32) -> u32 {
  if (row < ROTATED) { return own_token * ROTATED + row; }
  return (STEP_TOKENS - own_token) * ROTATED + own_token * TOKEN_ROWS + row - ROTATED;
}
#else
fn rotated_place(row: u32) -> u32 { return row; }
#endif
#endif

// The sum of a row, known to the row's first lane, after rotation. Every thread of the workgroup must call.
fn rotated(sum: f32, row: u32, t: u32) -> f32 {
#ifdef angles
  if ((t & (LANES - 1u)) == 0u) { row_sums[t / LANES] = sum; }
  workgroupBarrier();
  let other = row_sums[(t / LANES) ^ 1u];
  if (row >= ROTATED) {
    let angle = angles[rotated_by() * (ROPE / 2u) + (((row - ROTATED) % ROPE) >> 1u)];
    return sum * angle.x + select(-other, other, (row & 1u) == 1u) * angle.y;
  }
#endif
  return sum;
}
