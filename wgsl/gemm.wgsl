// y = x W^T (+ residual) for many tokens, or with a second weight silu(x W^T) * (x U^T), in f32: the products of a prompt where there
// are no cooperative matrices, and the router's logits everywhere.
//
// x (tokens, x_stride), W (groups, rows, 32 * units), y (tokens, y_stride). Group g of W (a head) reads x from
// g * x_group_stride on. Groups may also be experts, or ranges of the columns (split-K): see shared/gemm_place.wgsl.
// Division: a workgroup owns BM tokens and BN rows; in steps of 32 columns it moves a tile of x and one of W, dequantised, to
// workgroup memory, from which each thread multiplies RM tokens by RN rows. Threads that differ in their row lie side by side:
// a subgroup reads few rows of x.
// Bound by: reading workgroup memory, (RM + RN) / (RM RN) vectors per product of vectors.
#input x: array<vec4<f32>> @floats(X_LENGTH)
#each i RM
#each l X_LOADS
#each w W_LOADS
#import gemm_floats

// Vectors of 4 columns, as in `ws`.
var<workgroup> xs: array<vec4<f32>, BM * 8u>;

fn put_x(row: u32, column: u32, v: vec4<f32>) { xs[row * 8u + ((column ^ row) & 7u)] = v; }

#main
#ifdef tiles
  let tile = tiles[wid.y];
  let expert = tile.x - p.first_group;
  // Nothing left; an expert of another piece: one before this piece wraps around. Only so does naga see that all threads return together.
  if (tile.z == 0u) { return; }
  if (expert >= p.groups) { return; }
  let at = Place(tile.y, tile.z, expert, wid.x * BN);
#else
  let at = Place(wid.y * BM, min(BM, p.tokens - wid.y * BM), wid.z, wid.x * BN);
#endif
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
