// One over the root mean square of a prepared input, computed by one subgroup; 1 if `squares` is not bound. If all subgroups repeated this
// work, it would cost as much as the products, because they share the issue slots of a core. A workgroup may have several tokens
// (shared/columns.wgsl).
#number SQUARES COLS  // partial sums of squares that a thread adds up, tokens of a workgroup
#import own_token
#word eps?: f32                                        // of the norm
#read squares?: array<f32> @floats(TOKENS * 2 * UNITS) // (tokens, 2 * UNITS), each of 16 values
#each i SQUARES

// Subgroup `by` computes it for the own token, which is in this column. After a barrier rms_scale returns it.
#ifdef squares
var<workgroup> token_scale: array<f32, COLS>;

fn rms_put(by: u32, column: u32, subgroup: u32, subgroup_size: u32, lane_id: u32) {
  if (subgroup != by) { return; }
  var total = 0.0;
  total += select(0.0, squares[own_token * (2u * UNITS) + min($iu * subgroup_size + lane_id, UNITS * 2u - 1u)], $iu * subgroup_size + lane_id < UNITS * 2u);
  let scale = inverseSqrt(subgroupAdd(total) / f32(UNITS * 32u) + p.eps);
  if (lane_id == 0u) { token_scale[column] = scale; }
}

fn rms_scale(column: u32) -> f32 { return token_scale[column]; }
#else
fn rms_put(by: u32, column: u32, subgroup: u32, subgroup_size: u32, lane_id: u32) { }

fn rms_scale(column: u32) -> f32 { return 1.0; }
#endif
