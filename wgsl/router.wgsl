// Chooses the USED best experts of each token by the router's logits, and computes their weights (shared/router_choice.wgsl).
//
// logits (tokens, EXPERTS), or partial sums of them -> ids (tokens, USED) with the best first, and the lower id first among equals; weights
// (tokens, USED).
// Division: a workgroup per token, a thread per expert.
// Bound by: latency, above all EXPERTS reads of workgroup memory in a row.
#number EXPERTS USED  // experts of a layer, experts of a token
#word scale: f32            // by which the weights are multiplied
#word partial_sums?: u32    // of each logit
#word partial_stride?: u32  // logits from one partial sum of a logit to the next
#ifdef partial_sums
#length LOGITS (p.partial_sums - 1) * p.partial_stride + GRID_X * EXPERTS
#else
#length LOGITS GRID_X * EXPERTS
#endif
#read logits: array<f32> @floats(LOGITS)                                             // (partial_sums, tokens, EXPERTS)
#write ids: array<u32> @words(GRID_X * USED)                                         // (tokens, USED)
#write weights: array<f32> @floats(GRID_X * USED)                                    // (tokens, USED)
#read bias?: array<f32> @floats(EXPERTS)                                             // (EXPERTS)
#import router_choice
alias logits_Value = f32;
#import add_partial_sums as logits

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
