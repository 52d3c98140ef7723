// What gemm.wgsl computes, where all subgroups have 8 lanes, which software has.
//
// Division: as there, but for the tile of x: a subgroup owns RM tokens, and lane i reads the row of the i-th for all others. Software pays
// for every address, and hides no loads behind other work.
// Bound by: the multiply-adds.
#input x: array<vec4<f32>> @floats(X_LENGTH)
#each i RM
#each w W_LOADS
#import gemm_floats

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
  let begin = input_index(at, min(subgroup + min(lane_id, RM - 1u) * TM, at.count - 1u));
  let unit$w = unit_of(at, $wu * WG + t);
  var sums: Sums;
  var unit = 0u;
  loop {
    if (unit >= p.units) { break; }
    workgroupBarrier();
    if ($wu * WG + t < W_ROWS) { put_w($wu * WG + t, dequantised($wu * WG + t, unit$w + unit)); }
    workgroupBarrier();
    var k = 0u;
    loop {
      if (k >= 8u) { break; }
      let own = x[begin + unit * 8u + k];
      let all = Inputs(
        subgroupBroadcast(own, $iu),
      );
      multiply(all, lane_id, k, &sums);
      k += 1u;
    }
    unit += 1u;
  }
  store(at, subgroup + $iu * TM, lane_id, sums[$i]);
}
