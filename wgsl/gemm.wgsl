// y = x W^T for many tokens in f32, plus a residual if one is bound. With a second weight U, a pair: y = silu(x W^T) * (x U^T).
// It computes a prompt's products where there are no cooperative matrices, and a prompt's router logits everywhere.
//
// x (tokens, x_stride), W and U (groups, rows, 32 * units), y (tokens, y_stride). Groups are heads, experts, or ranges of the columns
// (split-K): see shared/gemm_place.wgsl.
// Division: grid (rows / BN, tiles of BM tokens, groups); with a list of tiles its second dimension goes through the list. In steps of
// 32 columns a workgroup moves a tile of x and a dequantised tile of W to workgroup memory. A thread then multiplies RM tokens by RN
// rows. Neighbouring threads have different rows of W, so that a subgroup reads few rows of x.
// Bound by: loads from workgroup memory, RM + RN vectors for RM * RN dot products.
#number WG BM RM X_LOADS  // threads of a workgroup, tokens of a tile, tokens of a thread, loads of x of a thread
#number W_LOADS  // loads of W of a thread
#input x: array<vec4<f32>> @floats(X_LENGTH)    // (X_ROWS, x_stride)
#each i RM
#each l X_LOADS
#each w W_LOADS
#import gemm_floats

// The tile of x: (BM, vector of 4 columns), in the order of `ws` (shared/gemm_floats.wgsl).
var<workgroup> xs: array<vec4<f32>, BM * 8u>;

fn put_x(row: u32, column: u32, v: vec4<f32>) { xs[row * 8u + ((column ^ row) & 7u)] = v; }

#main
#import gemm_tile
  let tm = t >> 3u;
  let tn = t & 7u;
  let from$l = input_index(at, min(($lu * WG + t) >> 3u, at.count - 1u)) + (t & 7u);
  let unit$w = unit_of(at, $wu * WG + t);
  // The next tiles are loaded while these are multiplied.
  var next_x$l = x[from$l];
  var next_w$w = dequantised($wu * WG + t, unit$w);
  var sums: Sums;
  var unit = 0u;
  loop {
    if (unit >= p.units) { break; }
    workgroupBarrier();
    put_x(($lu * WG + t) >> 3u, t & 7u, next_x$l);
    put_w($wu * WG + t, next_w$w);
    workgroupBarrier();
    let next = min(unit + 1u, p.units - 1u);
    next_x$l = x[from$l + next * 8u];
    next_w$w = dequantised($wu * WG + t, unit$w + next);
    var k = 0u;
    loop {
      if (k >= 8u) { break; }
      let own = Inputs(
        xs[(tm + $iu * TM) * 8u + (k ^ (tm & 7u))],
      );
      multiply(own, tn, k, &sums);
      k += 1u;
    }
    unit += 1u;
  }
  store(at, tm + $iu * TM, tn, sums[$i]);
}
