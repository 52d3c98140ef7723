// The tokens that chose the expert of a workgroup's slot. Of the workgroups whose slots have the same expert and tile, the one of the first token
// multiplies the inputs of all these tokens, two at a time, so that the expert is read and its codes are decoded once for two. The others end at
// once. A token chooses an expert no more than once, and a step has up to 32 tokens.
#import columns
#read chosen: array<u32> @words(TOKENS * USED)   // (tokens, USED)
var<workgroup> together_bits: u32;                    // (token), of those that chose the expert
var<workgroup> together_slots: array<u32, 32u>;       // (token), its slot that has the expert

// The first subgroup finds them. A barrier must follow.
fn together_put(expert: u32, subgroup: u32, lane_id: u32, lanes: u32) {
  if (subgroup != 0u) { return; }
  var bits = 0u;
  var token = lane_id;
  loop {
    if (token >= p.tokens) { break; }
    var slot = 0u;
    loop {
      if (slot >= USED) { break; }
      if (chosen[token * USED + slot] == expert) {
        bits |= 1u << token;
        together_slots[token] = slot;
      }
      slot += 1u;
    }
    token += lanes;
  }
  // No two lanes have the same bit.
  bits = subgroupAdd(bits);
  if (lane_id == 0u) { together_bits = bits; }
}
