  // One over the root mean square of the input, by one subgroup: what all of them repeat costs as much as the products, since
  // they are many and share the multiprocessors' issue slots. The others read token_scale behind a barrier.
  var scale = 1.0;
  if (subgroup == 0u) {
    var total = 0.0;
#for i SQUARES
    let square_at$i = $iu * subgroup_size + lane_id;
    let square$i = squares[min(square_at$i, UNITS * 2u - 1u)];
    total += select(0.0, square$i, square_at$i < UNITS * 2u);
#endfor
    scale = inverseSqrt(subgroupAdd(total) / f32(UNITS * 32u) + p.eps);
    if (lane_id == 0u) { token_scale = scale; }
  }
