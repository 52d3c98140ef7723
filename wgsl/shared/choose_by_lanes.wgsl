// The choice of a workgroup's expert by its first subgroup (shared/router_lanes.wgsl).
#ifdef BIAS
var<workgroup> biases: array<f32, EXPERTS>;
fn bias_ask(t: u32) -> f32 { return bias[min(t, EXPERTS - 1u)]; }
fn bias_put(asked: f32, t: u32) { if (t < EXPERTS) { biases[t] = asked; } }
fn bias_of(expert: u32) -> f32 { return biases[expert]; }
#else
fn bias_ask(t: u32) -> f32 { return 0.0; }
fn bias_put(asked: f32, t: u32) { }
fn bias_of(expert: u32) -> f32 { return 0.0; }
#endif
#import router_lanes

// Stores the expert of `slot` in slot_expert. With `all` it writes all chosen experts and their weights to `ids` and `weights`. Every thread
// must call.
fn choose(slot: u32, all: bool, t: u32, subgroup: u32, subgroups: u32, lane_id: u32, lanes: u32) {
  if (subgroup != 0u) { return; }
  let own = router_lanes(select(slot, USED - 1u, all), lane_id, lanes, logit_scale());
  if (all && lane_id < USED) {
    ids_put(own_token * USED + lane_id, min(own.expert, EXPERTS - 1u));
    weights_put(own_token * USED + lane_id, own.weight * weights_scale());
  }
  if (lane_id == 0u) { slot_expert = select(own.asked, own.expert, all); }
}
