// The choice of experts by a workgroup, with a thread per expert: WG >= EXPERTS. Probabilities are a softmax, or with SIGMOID a sigmoid. With
// BIAS the choice adds `bias` to them, which the kernel declares. NORM divides the weights by their sum.
// Every thread counts the experts that rank before its own. That number is its expert's place, so nothing is sorted. Every thread of the
// workgroup must call. t is the thread's number.
#import reduce
#import order
#import router_weights

// EXPERTS, rounded up to whole vec4.
const CHOICES = (EXPERTS + 3u) / 4u * 4u;

// Scalars, since threads write them one by one: Metal and DX12 may store a whole vector to write one component of it.
#ifndef SIGMOID
var<workgroup> router_logits: array<f32, CHOICES>;
#endif
var<workgroup> router_keys: array<u32, CHOICES>;
var<workgroup> router_chosen: array<f32, USED>;

// The place of the thread's expert among all, and its probability. The best is first, and the lower id among equals. From USED on an expert
// is not chosen.
struct RouterPlace { place: u32, prob: f32 }

fn router_place(logit: f32, t: u32, subgroup: u32, subgroups: u32, lane_id: u32) -> RouterPlace {
#ifdef SIGMOID
  let prob = router_sigmoid(logit);
#else
  if (t < CHOICES) { router_logits[t] = select(-1e30, logit, t < EXPERTS); }
  workgroupBarrier();
  var most = vec4(-1e30);
  var i = 0u;
  loop {
    if (i >= CHOICES) { break; }
    most = max(most, vec4(router_logits[i], router_logits[i + 1u], router_logits[i + 2u], router_logits[i + 3u]));
    i += 4u;
  }
  let greatest = max(max(most.x, most.y), max(most.z, most.w));
  var weight = 0.0;
  if (t < EXPERTS) { weight = exp(logit - greatest); }
  let prob = weight / workgroup_sum(weight, t, subgroup, subgroups, lane_id);
#endif
  var key = 0u;
  if (t < EXPERTS) {
#ifdef BIAS
    key = order(prob + bias[t]);
#else
    key = order(prob);
#endif
  }
  // Threads without an expert have the lowest key and the highest ids, so they come last.
  if (t < CHOICES) { router_keys[t] = key; }
  workgroupBarrier();
  var place = CHOICES;
  if (t < EXPERTS) {
    var before = vec4(0u);
    var j = 0u;
    loop {
      if (j >= CHOICES) { break; }
      let other = vec4(router_keys[j], router_keys[j + 1u], router_keys[j + 2u], router_keys[j + 3u]);
      let id = vec4(j) + vec4(0u, 1u, 2u, 3u);
      let ahead = (other > vec4(key)) | ((other == vec4(key)) & (id < vec4(t)));
      before += select(vec4(0u), vec4(1u), ahead);
      j += 4u;
    }
    place = before.x + before.y + before.z + before.w;
  }
  return RouterPlace(place, prob);
}

// The weight of the thread's expert, if it is chosen.
fn router_weight(own: RouterPlace) -> f32 {
  var weight = own.prob;
#ifdef NORM
  if (own.place < USED) { router_chosen[own.place] = own.prob; }
  workgroupBarrier();
  var sum = 0.0;
  var k = 0u;
  loop {
    if (k >= USED) { break; }
    sum += router_chosen[k];
    k += 1u;
  }
  weight /= max(sum, MIN_WEIGHT_SUM);
#endif
  return weight;
}
