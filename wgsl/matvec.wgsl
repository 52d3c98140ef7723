// y = W norm(x) + residual, for COLS tokens at a time.
//
// x (tokens, x_stride), W (groups * rows, 32 * units), y (tokens, out_stride). With `x_group_stride`, group g of W reads x from
// g * x_group_stride on: so attn_k_b and attn_v_b read their head. With `norm`, x is divided by its root mean square and multiplied by the
// norm's weight. Every workgroup repeats this, which costs less than a dispatch. `residual` is the residual stream.
// Division: grid (tiles of WG / LANES rows in x and y, blocks of COLS tokens in z). LANES threads share a row, unit by unit.
// Bound by: the bytes of W, read once per COLS tokens.
#word rows: u32             // of this piece
#word first_row: u32        // of this piece among all rows
#word units: u32            // of 32 weights, per row
#word sub: u32              // sub-plane of the scales, in words
#word tokens: u32
#word x_offset: u32         // in vec4
#word x_stride: u32         // in vec4
#word x_group_stride?: u32  // in vec4
#word out_stride: u32
#word row_tiles: u32        // workgroups along x; further ones follow along y
#word eps?: f32             // of the norm
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * p.units)          // (rows, units) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * p.units, p.sub)   // (rows, units) units
#read x: array<vec4<f32>> @floats(4 * (p.x_offset + X_BEFORE + (p.tokens - 1) * p.x_stride + 8 * p.units))  // (tokens, x_stride)
#write y: array<f32> @floats((p.tokens - 1) * p.out_stride + p.first_row + p.rows)               // (tokens, out_stride)
#read norm?: array<vec4<f32>> @floats(32 * p.units)                                              // (8 * units)
#read residual?: array<f32> @floats((p.tokens - 1) * p.out_stride + p.first_row + p.rows)        // (tokens, out_stride)
#each c COLS
#import reduce
#import w32
#import w32_math
#import WEIGHT as w
#import rotated

// Where the input of a row begins within that of a token.
#ifdef x_group_stride
#length X_BEFORE (p.first_row + p.rows - 1) / ROWS_PER_GROUP * p.x_group_stride
fn group_begin(row: u32) -> u32 { return (p.first_row + min(row, p.rows - 1u)) / ROWS_PER_GROUP * p.x_group_stride; }
#else
#length X_BEFORE 0
fn group_begin(row: u32) -> u32 { return 0u; }
#endif

// Unit b of the row that begins at unit `unit`, times the norm's weight.
#ifdef norm
fn weighted(unit: u32, b: u32) -> W32 {
  let at = b * 8u;
  return w32_mul(w_unit(unit + b, p.sub), norm[at], norm[at + 1u], norm[at + 2u], norm[at + 3u], norm[at + 4u], norm[at + 5u], norm[at + 6u], norm[at + 7u]);
}

#import rms_of_row
#else
fn weighted(unit: u32, b: u32) -> W32 { return w_unit(unit + b, p.sub); }

fn rms_scale(begin: u32, t: u32, subgroup: u32, subgroups: u32, lane_id: u32) -> f32 { return 1.0; }
#endif

// The value to write at i, with the residual added if one is bound.
#ifdef residual
fn with_residual(i: u32, v: f32) -> f32 { return v + residual[i]; }
#else
fn with_residual(i: u32, v: f32) -> f32 { return v; }
#endif

fn product(w: W32, at: u32) -> f32 {
  return w32_dot(w, x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
}

fn store(token: u32, row: u32, sum: f32) {
  if (token >= p.tokens) { return; }
  let at = token * p.out_stride + p.first_row + row;
  y[at] = with_residual(at, sum);
}

#main
  let lane = t & (LANES - 1u);
  let row = (wid.x + wid.y * p.row_tiles) * (WG / LANES) + t / LANES;
  let input = p.x_offset + group_begin(row);
  let token = wid.z * COLS;
  let x$c = input + min(token + $cu, p.tokens - 1u) * p.x_stride;
  var sum$c = 0.0;
  let unit = min(row, p.rows - 1u) * p.units;
  var b = lane;
  loop {
    if (b >= p.units) { break; }
    let w = weighted(unit, b);
    sum$c += product(w, x$c + b * 8u);
    b += LANES;
  }
  sum$c = lanes_sum(sum$c, t);
  sum$c *= rms_scale(x$c, t, subgroup, subgroups, lane_id);
  // Only queries of one token rotate.
  sum0 = rotated(sum0, p.first_row + row, t);
  if (lane == 0u && row < p.rows) {
    store(token + $cu, row, sum$c);
  }
}
