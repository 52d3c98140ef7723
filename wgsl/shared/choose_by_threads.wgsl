// The choice of a workgroup's expert, with a thread per expert (shared/router_choice.wgsl).
fn bias_ask(t: u32) -> f32 { return 0.0; }
fn bias_put(asked: f32, t: u32) { }
#import router_choice

// Stores the expert of `slot` in slot_expert. With `all` it writes all chosen experts and their weights to `ids` and `weights`. Every thread
// must call.
fn choose(slot: u32, all: bool, t: u32, subgroup: u32, subgroups: u32, lane_id: u32, lanes: u32) {
  var logit = -1e30;
  if (t < EXPERTS) { logit = logit_of(t) * logit_scale(); }
  let own = router_place(logit, t, subgroup, subgroups, lane_id);
  if (own.place == slot) { slot_expert = t; }
  if (all) {
    let weight = router_weight(own);
    if (own.place < USED) {
      ids_put(own_token * USED + own.place, t);
      weights_put(own_token * USED + own.place, weight * weights_scale());
    }
  }
}
