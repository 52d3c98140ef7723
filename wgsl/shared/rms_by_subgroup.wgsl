// One over the root mean square of a prepared input, by one subgroup, where `squares` come with it: what all of them repeat costs as
// much as the products, since they are many and share the multiprocessors' issue slots.
#word eps?: f32                                        // of the norm
#read squares?: array<f32> @floats(2 * UNITS)          // sums of squares of 16 values
#each i SQUARES

// The first subgroup makes it. A barrier must follow, behind which rms_scale tells it.
#ifdef squares
var<workgroup> token_scale: f32;

fn rms_put(subgroup: u32, subgroup_size: u32, lane_id: u32) {
  if (subgroup != 0u) { return; }
  var total = 0.0;
  total += select(0.0, squares[min($iu * subgroup_size + lane_id, UNITS * 2u - 1u)], $iu * subgroup_size + lane_id < UNITS * 2u);
  let scale = inverseSqrt(subgroupAdd(total) / f32(UNITS * 32u) + p.eps);
  if (lane_id == 0u) { token_scale = scale; }
}

fn rms_scale() -> f32 { return token_scale; }
#else
fn rms_put(subgroup: u32, subgroup_size: u32, lane_id: u32) { }

fn rms_scale() -> f32 { return 1.0; }
#endif
