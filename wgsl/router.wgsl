// The choice of experts: probabilities of the router's logits, the USED best, their weights (shared/router_choice.wgsl).
//
// logits (tokens, EXPERTS), or partial sums of them, which are added up -> ids (tokens, USED), best first, the
// lower id first among equals; weights (tokens, USED).
// Division: a workgroup per token, a thread per expert.
// Bound by: latency, EXPERTS / 2 reads of workgroup memory and two barriers on the way.
#word scale: f32         // of the weights
#word partial_sums?: u32
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
