// The choice that a dispatch before has made, as shared/logits_given.wgsl has it.
fn bias_ask(t: u32) -> f32 { return 0.0; }
fn bias_put(asked: f32, t: u32) { }

// Stores the expert of `slot` in slot_expert. Every thread must call.
fn choose(slot: u32, all: bool, t: u32, subgroup: u32, subgroups: u32, lane_id: u32, lanes: u32) {
  if (t == 0u) { slot_expert = given_experts[slot]; }
}
