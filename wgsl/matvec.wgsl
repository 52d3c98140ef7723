// y = W norm(x) + residual, for COLS tokens at a time: every projection of the models.
//
// x (tokens, x_stride), W (groups * rows, 32 * units), y (tokens, out_stride). Group g of W reads x from g * x_group_stride on
// (GROUPS): that is how attn_k_b and attn_v_b read their head. NORM divides x by its root mean square and multiplies by g, in every
// workgroup again: cheaper than a dispatch. RESIDUAL adds a row of the residual stream.
// Division: a workgroup owns WG / LANES rows and COLS tokens; LANES threads share a row, unit by unit.
// Bound by: the bytes of W, read once per COLS tokens.
struct Params {
  rows: u32,            // of this part
  first_row: u32,       // of this part among all rows
  units: u32,           // of 32 weights, per row
  sub: u32,             // sub-plane of the scales, in words
  tokens: u32,
  x_offset: u32,        // in vec4
  x_stride: u32,        // in vec4
  x_group_stride: u32,  // in vec4, with GROUPS
  out_stride: u32,
  row_tiles: u32,       // workgroups along x; y continues them
  eps: f32,
#ifdef ROTATE
  pos: u32,             // of the token
#endif
}
@group(0) @binding(0) var<storage, read> w_q: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_s: array<w_Scales>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;           // (tokens, x_stride)
@group(0) @binding(3) var<storage, read_write> y: array<f32>;           // (tokens, out_stride)
#ifdef NORM
@group(0) @binding(4) var<storage, read> norm: array<vec4<f32>>;        // (32 * units)
#endif
#ifdef RESIDUAL
@group(0) @binding(4) var<storage, read> residual: array<f32>;          // (tokens, out_stride)
#endif
#ifdef ROTATE
@group(0) @binding(5) var<storage, read> angles: array<vec2<f32>>;      // (n_ctx, ROPE / 2) of (cos, sin)
#endif
#import params
#import reduce
#import w32
#import w32_math
#import WEIGHT as w
#ifdef ROTATE
#import rotate_rows
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let lane = t & (LANES - 1u);
  let row = (wid.x + wid.y * p.row_tiles) * (WG / LANES) + t / LANES;
#ifdef GROUPS
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
#ifdef NORM
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
#ifdef NORM
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
#ifdef ROTATE
  sum0 = rotated(sum0, p.first_row + row, t);
#endif
  if (lane == 0u && row < p.rows) {
#for c COLS
    if (token + $cu < p.tokens) {
      let at = (token + $cu) * p.out_stride + p.first_row + row;
#ifdef RESIDUAL
      y[at] = sum$c + residual[at];
#else
      y[at] = sum$c;
#endif
    }
#endfor
  }
}
