// y = W norm(x) + residual, for COLS tokens at a time: every projection of the models.
//
// x (tokens, x_stride), W (groups * rows, 32 * units), y (tokens, out_stride). Group g of W reads x from g * x_group_stride on
// (`x_group_stride`): that is how attn_k_b and attn_v_b read their head. With `norm` x is divided by its root mean square and multiplied
// by that weight, in every workgroup again: cheaper than a dispatch. `residual` is a row of the residual stream.
// Division: a workgroup owns WG / LANES rows and COLS tokens; LANES threads share a row, unit by unit.
// Bound by: the bytes of W, read once per COLS tokens.
#word rows: u32             // of this part
#word first_row: u32        // of this part among all rows
#word units: u32            // of 32 weights, per row
#word sub: u32              // sub-plane of the scales, in words
#word tokens: u32
#word x_offset: u32         // in vec4
#word x_stride: u32         // in vec4
#word x_group_stride?: u32  // in vec4
#word out_stride: u32
#word row_tiles: u32        // workgroups along x; y continues them
#word eps?: f32             // of the norm
#word pos?: u32             // of the token
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * p.units)
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * p.units, p.sub)
#ifdef x_group_stride
#read x: array<vec4<f32>> @floats(4 * (p.x_offset + (p.first_row + p.rows - 1) / ROWS_PER_GROUP * p.x_group_stride + (p.tokens - 1) * p.x_stride + 8 * p.units))  // (tokens, x_stride)
#else
#read x: array<vec4<f32>> @floats(4 * (p.x_offset + (p.tokens - 1) * p.x_stride + 8 * p.units))  // (tokens, x_stride)
#endif
#write y: array<f32> @floats((p.tokens - 1) * p.out_stride + p.first_row + p.rows)               // (tokens, out_stride)
#read norm?: array<vec4<f32>> @floats(32 * p.units)                                              // (8 * units)
#read residual?: array<f32> @floats((p.tokens - 1) * p.out_stride + p.first_row + p.rows)        // (tokens, out_stride)
#read angles?: array<vec2<f32>> @floats(CONTEXT * ROPE)                                          // (n_ctx, ROPE / 2) of (cos, sin)
#import reduce
#import w32
#import w32_math
#import WEIGHT as w
#ifdef angles
#import rotate_rows
#endif

#main
  let lane = t & (LANES - 1u);
  let row = (wid.x + wid.y * p.row_tiles) * (WG / LANES) + t / LANES;
#ifdef x_group_stride
  let input = p.x_offset + (p.first_row + min(row, p.rows - 1u)) / ROWS_PER_GROUP * p.x_group_stride;
#else
  let input = p.x_offset;
#endif
  let token = wid.z * COLS;
#for c COLS
  let x$c = input + min(token + $cu, p.tokens - 1u) * p.x_stride;
  var sum$c = 0.0;
#endfor
  let unit = min(row, p.rows - 1u) * p.units;
  var b = lane;
  loop {
    if (b >= p.units) { break; }
#ifdef norm
    let w = w32_mul(w_unit(unit + b, p.sub), norm[b * 8u], norm[b * 8u + 1u], norm[b * 8u + 2u], norm[b * 8u + 3u], norm[b * 8u + 4u], norm[b * 8u + 5u], norm[b * 8u + 6u], norm[b * 8u + 7u]);
#else
    let w = w_unit(unit + b, p.sub);
#endif
#for c COLS
    sum$c += w32_dot(w, x[x$c + b * 8u], x[x$c + b * 8u + 1u], x[x$c + b * 8u + 2u], x[x$c + b * 8u + 3u], x[x$c + b * 8u + 4u], x[x$c + b * 8u + 5u], x[x$c + b * 8u + 6u], x[x$c + b * 8u + 7u]);
#endfor
    b += LANES;
  }
#for c COLS
  sum$c = lanes_sum(sum$c, t);
#endfor
#ifdef norm
#for c COLS
  {
    var squares = 0.0;
    var i = t;
    loop {
      if (i >= p.units * 8u) { break; }
      squares += dot(x[x$c + i], x[x$c + i]);
      i += WG;
    }
    sum$c *= inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(p.units * 32u) + p.eps);
  }
#endfor
#endif
#ifdef angles
  sum0 = rotated(sum0, p.first_row + row, t);
#endif
  if (lane == 0u && row < p.rows) {
#for c COLS
    if (token + $cu < p.tokens) {
      let at = (token + $cu) * p.out_stride + p.first_row + row;
#ifdef residual
      y[at] = sum$c + residual[at];
#else
      y[at] = sum$c;
#endif
    }
#endfor
  }
}
