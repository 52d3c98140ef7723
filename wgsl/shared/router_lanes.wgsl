// The choice of experts of router_choice.wgsl, by one subgroup and without workgroup memory. A lane holds CHUNKS experts, whose ids
// are `lanes` apart. Each round finds the best of those that are left, the lower id among equals. The kernel declares `logit_of`, `bias_of`
// and LEAVES_CHOICE, which says whether weights are wanted. The subgroup has USED lanes or more.
#number CHUNKS  // experts of a lane
#import order
#import router_weights
#flag SIGMOID
#flag BIAS
#flag NORM
#each c CHUNKS

// `asked` is the expert of place `last`. In lane r, `expert` and `weight` are those of place r.
struct RouterLanes { asked: u32, expert: u32, weight: f32 }

// Logits are multiplied by `scale`. Every lane of the subgroup must call. Places behind `last` are not filled; weights are right only if
// `last` is USED - 1.
fn router_lanes(last: u32, lane: u32, lanes: u32, scale: f32) -> RouterLanes {
  let id$c = $cu * lanes + lane;
  let here$c = id$c < EXPERTS;
  let logit$c = logit_of(min(id$c, EXPERTS - 1u)) * scale;
  let bias$c = bias_of(min(id$c, EXPERTS - 1u));
  var prob$c = 0.0;
  if (SIGMOID) {
    prob$c = router_sigmoid(logit$c);
  } else {
    var most = -1e30;
    most = max(most, logit$c);
    let greatest = subgroupMax(most);
    var total = 0.0;
    prob$c = select(0.0, exp(logit$c - greatest), here$c);
    total += prob$c;
    total = subgroupAdd(total);
    prob$c /= total;
  }
  let key$c = router_key(prob$c, bias$c);
  var left$c = here$c;
  var own = RouterLanes(0u, 0u, 0.0);
  var sum = 0.0;
  var place = 0u;
  loop {
    if (place > last) { break; }
    var best = 0u;
    best = max(best, select(0u, key$c, left$c));
    best = subgroupMax(best);
    var first = EXPERTS;
    first = min(first, select(EXPERTS, id$c, left$c && key$c == best));
    own.asked = subgroupMin(first);
    var prob = 0.0;
    if (id$c == own.asked) { prob = prob$c; left$c = false; }
    if (LEAVES_CHOICE) {
      // From the lane that holds the expert.
      prob = subgroupShuffle(prob, own.asked & (lanes - 1u));
      sum += prob;
      if (lane == place) {
        own.expert = own.asked;
        own.weight = prob;
      }
    }
    place += 1u;
  }
  if (NORM) { own.weight /= max(sum, MIN_WEIGHT_SUM); }
  return own;
}

fn router_key(prob: f32, bias: f32) -> u32 {
  if (BIAS) { return order(prob + bias); }
  return order(prob);
}
