// The choice of experts by one subgroup, without workgroup memory: what router_choice.wgsl chooses. A lane holds CHUNKS experts,
// lanes apart; each round finds the best of those that are left, the lower id first among equals. The kernel declares `logit_of`
// and, with BIAS, `bias_of`; the subgroup has USED lanes or more.
#import order
#import router_weights

// Experts and their weights: of the place asked for; of place r in lane r.
struct RouterLanes { asked: u32, expert: u32, weight: f32 }

// Logits are multiplied by `scale`. Every lane of the subgroup must call. Places beyond `last` are not chosen, and then weights are not normed.
fn router_lanes(last: u32, lane: u32, lanes: u32, scale: f32) -> RouterLanes {
#for c CHUNKS
  let id$c = $cu * lanes + lane;
  let here$c = id$c < EXPERTS;
  let logit$c = logit_of(min(id$c, EXPERTS - 1u)) * scale;
#ifdef BIAS
  let bias$c = bias_of[min(id$c, EXPERTS - 1u)];
#endif
#endfor
#ifdef SIGMOID
#for c CHUNKS
  let prob$c = router_sigmoid(logit$c);
#endfor
#else
  var most = -1e30;
#for c CHUNKS
  most = max(most, logit$c);
#endfor
  let greatest = subgroupMax(most);
  var total = 0.0;
#for c CHUNKS
  let part$c = select(0.0, exp(logit$c - greatest), here$c);
  total += part$c;
#endfor
  total = subgroupAdd(total);
#for c CHUNKS
  let prob$c = part$c / total;
#endfor
#endif
#for c CHUNKS
#ifdef BIAS
  let key$c = order(prob$c + bias$c);
#else
  let key$c = order(prob$c);
#endif
  var left$c = here$c;
#endfor
  var own = RouterLanes(0u, 0u, 0.0);
  var sum = 0.0;
  var place = 0u;
  loop {
    if (place > last) { break; }
    var best = 0u;
#for c CHUNKS
    best = max(best, select(0u, key$c, left$c));
#endfor
    best = subgroupMax(best);
    var first = EXPERTS;
#for c CHUNKS
    first = min(first, select(EXPERTS, id$c, left$c && key$c == best));
#endfor
    own.asked = subgroupMin(first);
    var prob = 0.0;
#for c CHUNKS
    if (id$c == own.asked) {
      prob = prob$c;
      left$c = false;
    }
#endfor
#ifdef ids
    // From the lane that holds it.
    prob = subgroupShuffle(prob, own.asked & (lanes - 1u));
    sum += prob;
    if (lane == place) {
      own.expert = own.asked;
      own.weight = prob;
    }
#endif
    place += 1u;
  }
#ifdef NORM
  own.weight /= max(sum, MIN_WEIGHT_SUM);
#endif
  return own;
}
