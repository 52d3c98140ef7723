// The first half of a choice: applies the penalties to a row of logits, and finds the best of each slice of WG tokens.
//
// logits (VOCAB) -> keys (slices, WG), the logits as integers of the same order (shared/order.wgsl), 0 behind the vocabulary; maxima (slices)
// of (key, lowest id, mass as bits, whether a logit is not finite); quarters (slices), the greatest keys of a slice's four quarters. The
// mass of a slice is the sum of exp(logit - the greatest one), if `masses` asks for it. The penalties apply to the last_n tokens before
// position pos + tokens: their logits are divided, or multiplied below 0, and lowered.
// Division: a workgroup per slice, a thread per token.
// Bound by: reading and writing VOCAB words.
#word pos: u32       // of the first token of the step
#word tokens: u32    // of the step
#word last_n: u32    // 0 where nothing is penalised
#word penalty: f32
#word presence: f32  // subtracted once from each of them
#word frequency: f32 // subtracted for each time that they occur
#word masses: u32    // 1 if they are needed
#read logits: array<f32> @floats(VOCAB)                     // (VOCAB)
#read history: array<u32> @words(CONTEXT)                   // ids by position
#write keys: array<u32> @words(GRID_X * WG)                 // (slices, WG)
#write maxima: array<vec4<u32>> @words(4 * GRID_X)          // (slices) of (key, id, mass as bits, 0)
#write quarters: array<vec4<u32>> @words(4 * GRID_X)        // (slices)
#import order
#import best
#import reduce

var<workgroup> counts: array<atomic<u32>, WG>;   // how often each token is among the last
var<workgroup> quarter: array<atomic<u32>, 4>;
var<workgroup> broken: atomic<u32>;

#main
#fetch
  let first = wid.x * WG;
  let id = first + t;
  // It is being loaded while the penalty looks for the token.
  var logit = logits[min(id, VOCAB - 1u)];
  if (t < 4u) { atomicStore(&quarter[t], 0u); }
  if (t == 0u) { atomicStore(&broken, 0u); }
  workgroupBarrier();
  if (is_broken(logit)) { atomicStore(&broken, 1u); }
  if (p.last_n > 0u) {
    atomicStore(&counts[t], 0u);
    workgroupBarrier();
    let end = p.pos + p.tokens;
    let n = min(p.last_n, end);
    var i = t;
    loop {
      if (i >= n) { break; }
      // Ids before the slice wrap around to large numbers.
      let recent = history[end - n + i] - first;
      if (recent < WG) { atomicAdd(&counts[recent], 1u); }
      i += WG;
    }
    workgroupBarrier();
    let count = atomicLoad(&counts[t]);
    if (count > 0u) {
      if (logit > 0.0) { logit /= p.penalty; } else { logit *= p.penalty; }
      logit -= f32(count) * p.frequency + p.presence;
    }
  }
  let key = select(0u, order(logit), id < VOCAB);
  keys[id] = key;
#ifdef PLAIN
  atomicMax(&quarter[t / (WG / 4u)], key);
#else
  let highest = subgroupMax(key);
  // A subgroup larger than a quarter has tokens of two.
  if (lane_id == 0u || subgroup_size > WG / 4u) {
    atomicMax(&quarter[t / (WG / 4u)], select(highest, key, subgroup_size > WG / 4u));
  }
#endif
  let best = workgroup_best(vec2(key, id), t, subgroup, subgroups, lane_id);
  var mass = 0.0;
  if (p.masses == 1u) {
    // A slice of minus infinity has no mass.
    if (key > LOWEST && best.x < INFINITE) { mass = exp(value(key) - value(best.x)); }
    mass = workgroup_sum(mass, t, subgroup, subgroups, lane_id);
  }
  if (t == 0u) {
    maxima[wid.x] = vec4(best, bitcast<u32>(mass), atomicLoad(&broken));
    quarters[wid.x] = vec4(atomicLoad(&quarter[0]), atomicLoad(&quarter[1]), atomicLoad(&quarter[2]), atomicLoad(&quarter[3]));
  }
}
