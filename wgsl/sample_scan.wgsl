// The first half of a choice, for each row of logits: applies the penalties, and finds the best of each slice of WG tokens.
//
// logits (rows, VOCAB) -> keys (rows, slices, WG), the logits as integers of the same order (shared/order.wgsl), 0 behind the vocabulary; maxima (rows,
// slices) of (key, lowest id, mass as bits, whether a logit is not finite); quarters (rows, slices), the greatest keys of a slice's four quarters. The
// mass of a slice is the sum of exp(logit - the greatest one), if `masses` asks for it. The penalties apply to the last_n tokens of
// the sequence: their logits are divided, or multiplied below 0, and lowered.
// Division: grid (slices, rows), a thread per token of the vocabulary. `table` has one record for each row (shared/choice.wgsl).
// Bound by: reading and writing VOCAB words of each row.
#number VOCAB WG SLICES_OF_ROW  // tokens of the vocabulary, threads of a workgroup, slices of a row
#import choice
#read logits: array<f32> @floats(GRID_Y * VOCAB)            // (rows, VOCAB)
#read history: array<u32> @words(IDS)                       // ids by position
#write keys: array<u32> @words(GRID_Y * GRID_X * WG)        // (rows, slices, WG)
#write maxima: array<vec4<u32>> @words(4 * GRID_Y * GRID_X) // (rows, slices) of (key, id, mass as bits, 0)
#write quarters: array<vec4<u32>> @words(4 * GRID_Y * GRID_X)  // (rows, slices)
#import order
#import best
#import reduce

var<workgroup> counts: array<atomic<u32>, WG>;   // how often each token is among the last
var<workgroup> quarter: array<atomic<u32>, 4>;
var<workgroup> broken: atomic<u32>;

#main
#fetch
  let own = own_penalties(wid.y);
  let slice = wid.y * SLICES_OF_ROW + wid.x;
  let first = wid.x * WG;
  let id = first + t;
  // It is being loaded while the penalty looks for the token.
  var logit = logits[wid.y * VOCAB + min(id, VOCAB - 1u)];
  if (t < 4u) { atomicStore(&quarter[t], 0u); }
  if (t == 0u) { atomicStore(&broken, 0u); }
  workgroupBarrier();
  if (is_broken(logit)) { atomicStore(&broken, 1u); }
  if (own.last_n > 0u) {
    atomicStore(&counts[t], 0u);
    workgroupBarrier();
    let n = min(own.last_n, own.end - own.first);
    var i = t;
    loop {
      if (i >= n) { break; }
      // Ids before the slice wrap around to large numbers.
      let recent = history[own.end - n + i] - first;
      if (recent < WG) { atomicAdd(&counts[recent], 1u); }
      i += WG;
    }
    workgroupBarrier();
    let count = atomicLoad(&counts[t]);
    if (count > 0u) {
      if (logit > 0.0) { logit /= own.penalty; } else { logit *= own.penalty; }
      logit -= f32(count) * own.frequency + own.presence;
    }
  }
  let key = select(0u, order(logit), id < VOCAB);
  keys[slice * WG + t] = key;
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
  if (own.masses == 1u) {
    // A slice of minus infinity has no mass.
    if (key > LOWEST && best.x < INFINITE) { mass = exp(value(key) - value(best.x)); }
    mass = workgroup_sum(mass, t, subgroup, subgroups, lane_id);
  }
  if (t == 0u) {
    maxima[slice] = vec4(best, bitcast<u32>(mass), atomicLoad(&broken));
    quarters[slice] = vec4(atomicLoad(&quarter[0]), atomicLoad(&quarter[1]), atomicLoad(&quarter[2]), atomicLoad(&quarter[3]));
  }
}
