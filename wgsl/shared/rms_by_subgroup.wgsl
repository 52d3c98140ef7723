// One over the root mean square of a prepared input, by one subgroup, where `squares` come with it: what all of them repeat costs as
// much as the products, since they are many and share the multiprocessors' issue slots.
#word eps?: f32                                        // of the norm
#read squares?: array<f32> @floats(2 * UNITS)          // sums of squares of 16 values
#ifdef squares
var<workgroup> token_scale: f32;
#endif

// The first subgroup makes it. A barrier must follow.
fn rms_put(subgroup: u32, subgroup_size: u32, lane_id: u32) {
#ifdef squares
  if (subgroup == 0u) {
    var total = 0.0;
#for i SQUARES
    total += select(0.0, squares[min($iu * subgroup_size + lane_id, UNITS * 2u - 1u)], $iu * subgroup_size + lane_id < UNITS * 2u);
#endfor
    let scale = inverseSqrt(subgroupAdd(total) / f32(UNITS * 32u) + p.eps);
    if (lane_id == 0u) { token_scale = scale; }
  }
#endif
}

// Behind the barrier.
fn rms_scale() -> f32 {
#ifdef squares
  return token_scale;
#else
  return 1.0;
#endif
}
