// Computes what gemm.wgsl does, on devices whose subgroups all have 8 lanes: Vulkan in software.
//
// Division: as in gemm.wgsl, but x does not pass through workgroup memory. A subgroup owns RM tokens. Lane i loads from the row of x of
// its i-th token and broadcasts to the other lanes. That takes few addresses and few loads, which software cannot hide behind other work.
// Bound by: the multiply-adds.
#number WG RM W_LOADS W_ROWS  // threads of a workgroup, tokens of a thread, loads of W of a thread, rows that a workgroup dequantises
#input x: array<vec4<f32>> @floats(X_LENGTH)    // (X_ROWS, x_stride)
#each i RM
#each w W_LOADS
#import gemm_floats

#main
#import gemm_tile
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
