// The choice of experts: probabilities of the router's logits, the USED best, their weights.
//
// logits (tokens, EXPERTS) -> ids (tokens, USED), best first, the lower id first among equals; weights (tokens, USED).
// Softmax or sigmoid (SIGMOID); BIAS is added for the choice only; NORM divides the weights by their sum.
// Division: a workgroup per token, a thread per expert. Every thread counts the experts that rank before its own: that number
// is its place, so there is no sorting and no pass per chosen expert.
// Bound by: latency, EXPERTS / 2 reads of workgroup memory and two barriers on the way.
struct Params {
  scale: f32,   // of the weights
}
@group(0) @binding(0) var<storage, read> logits: array<f32>;            // (tokens, EXPERTS)
@group(0) @binding(1) var<storage, read_write> ids: array<u32>;         // (tokens, USED)
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;     // (tokens, USED)
#ifdef BIAS
@group(0) @binding(3) var<storage, read> bias: array<f32>;              // (EXPERTS)
#endif
#import params
#import reduce
#import order

// What ggml clamps the sum of the chosen weights to: the smallest normal f16.
const MIN_WEIGHT_SUM = 6.103515625e-5;

// Numbers, not vectors: threads write one each, and Metal and DX12 may write the whole vector.
var<workgroup> shared_logits: array<f32, WG>;
var<workgroup> keys: array<u32, WG>;
var<workgroup> chosen: array<f32, USED>;

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let token = wid.x;
  var logit = -1e30;
  if (t < EXPERTS) { logit = logits[token * EXPERTS + t]; }
#ifdef SIGMOID
  // exp(87) is still finite; the clamp may drop NaN.
  var prob = 1.0 / (1.0 + exp(clamp(-logit, -87.0, 87.0)));
  if ((bitcast<u32>(logit) & 0x7fffffffu) > 0x7f800000u) { prob = logit; }
#else
  shared_logits[t] = logit;
  workgroupBarrier();
  var most = vec4(-1e30);
  var i = 0u;
  loop {
    if (i >= WG) { break; }
    most = max(most, vec4(shared_logits[i], shared_logits[i + 1u], shared_logits[i + 2u], shared_logits[i + 3u]));
    i += 4u;
  }
  let greatest = max(max(most.x, most.y), max(most.z, most.w));
  var part = 0.0;
  if (t < EXPERTS) { part = exp(logit - greatest); }
  let prob = part / workgroup_sum(part, t, subgroup, subgroups, lane_id);
#endif
  var key = 0u;
  if (t < EXPERTS) {
#ifdef BIAS
    key = order(prob + bias[t]);
#else
    key = order(prob);
#endif
  }
  keys[t] = key;
  workgroupBarrier();

  // Threads without an expert have the lowest key and the highest ids: they come last.
  var before = vec4(0u);
  var j = 0u;
  loop {
    if (j >= WG) { break; }
    let other = vec4(keys[j], keys[j + 1u], keys[j + 2u], keys[j + 3u]);
    let id = vec4(j) + vec4(0u, 1u, 2u, 3u);
    let ahead = (other > vec4(key)) | ((other == vec4(key)) & (id < vec4(t)));
    before += select(vec4(0u), vec4(1u), ahead);
    j += 4u;
  }
  let place = before.x + before.y + before.z + before.w;
  if (place < USED) { chosen[place] = prob; }
  workgroupBarrier();
  if (place < USED) {
    var weight = prob;
#ifdef NORM
    var sum = 0.0;
    var k = 0u;
    loop {
      if (k >= USED) { break; }
      sum += chosen[k];
      k += 1u;
    }
    weight /= max(sum, MIN_WEIGHT_SUM);
#endif
    ids[token * USED + place] = t;
    weights[token * USED + place] = weight * p.scale;
  }
}
