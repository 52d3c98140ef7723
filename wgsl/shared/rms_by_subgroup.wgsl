// One over the root mean square of a prepared input, computed by one subgroup; 1 if `squares` is not bound. If all subgroups repeated this
// work, it would cost as much as the products, because they share the issue slots of a core.
#number SQUARES  // partial sums of squares that a thread adds up
#import own_token
#word eps?: f32                                        // of the norm
#read squares?: array<f32> @floats(TOKENS * 2 * UNITS) // (tokens, 2 * UNITS), each of 16 values
#each i SQUARES

// The first subgroup computes it. After a barrier rms_scale returns it.
#ifdef squares
var<workgroup> token_scale: f32;

fn rms_put(subgroup: u32, subgroup_size: u32, lane_id: u32) {
  if (subgroup != 0u) { return; }
  var total = 0.0;
  total += select(0.0, squares[own_token * (2u * UNITS) + min($iu * subgroup_size + lane_id, UNITS * 2u - 1u)], $iu * subgroup_size + lane_id < UNITS * 2u);
  let scale = inverseSqrt(subgroupAdd(total) / f32(UNITS * 32u) + p.eps);
  if (lane_id == 0u) { token_scale = scale; }
}

fn rms_scale() -> f32 { return token_scale; }
#else
fn rms_put(subgroup: u32, subgroup_size: u32, lane_id: u32) { }

fn rms_scale() -> f32 { return 1.0; }
#endif
