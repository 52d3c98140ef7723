// The choice of experts: probabilities of the router's logits, the USED best, their weights (shared/router_choice.wgsl).
//
// logits (tokens, EXPERTS), or (parts, tokens, EXPERTS) to be added up where `parts` is given -> ids (tokens, USED), best first, the
// lower id first among equals; weights (tokens, USED).
// Division: a workgroup per token, a thread per expert.
// Bound by: latency, EXPERTS / 2 reads of workgroup memory and two barriers on the way.
#word scale: f32         // of the weights
#word parts?: u32
#word part_stride?: u32  // values from one part's logits to the next one's
#ifdef parts
#length LOGITS (p.parts - 1) * p.part_stride + GRID_X * EXPERTS
#else
#length LOGITS GRID_X * EXPERTS
#endif
#read logits: array<f32> @floats(LOGITS)                                             // (parts, tokens, EXPERTS)
#write ids: array<u32> @words(GRID_X * USED)                                         // (tokens, USED)
#write weights: array<f32> @floats(GRID_X * USED)                                    // (tokens, USED)
#read bias?: array<f32> @floats(EXPERTS)                                             // (EXPERTS)
#import router_choice
alias logits_Value = f32;
#import add_parts as logits

#main
  let token = wid.x;
  var logit = -1e30;
  if (t < EXPERTS) { logit = logits_sum(token * EXPERTS + t); }
  let own = router_place(logit, t, subgroup, subgroups, lane_id);
  let weight = router_weight(own);
  if (own.place < USED) {
    ids[token * USED + own.place] = t;
    weights[token * USED + own.place] = weight * p.scale;
  }
}
