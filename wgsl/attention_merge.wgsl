// Joins the slices of attention and normalises the result: the softmax over the slices (shared/merge.wgsl).
//
// slice_sums (tokens, HEADS, slices, KV_LORA), stats (tokens, HEADS, slices) -> merged (tokens, HEADS, KV_LORA) in f32, or the same prepared for
// the next product (shared/token_write.wgsl).
// Division: grid (HEADS, blocks of COLUMNS vectors, tokens), with ACROSS (1, blocks of COLUMNS vectors of all heads, tokens). PHASES threads share
// a vector of 4 columns, each with its slices.
// Bound by: reading the slices, slices * HEADS * KV_LORA * 4 bytes per token, from the second-level cache.
// KV_LORA, the values of a head, is the width of a latent or that of a value head.
#number HEADS KV_LORA WG COLUMNS  // query heads, values of a head, threads of a workgroup, vectors of a workgroup
#number PHASES  // threads that share a column
#import token_slices
#read slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)              // (tokens, HEADS, slices, KV_LORA / 4)
#read stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)                    // (tokens, HEADS, slices) of (max, sum)
#length OUT_ROWS TOKENS * HEADS * KV_LORA
#ifdef prepared
#import token_write
#else
#write merged: array<vec4<f32>> @floats(OUT_ROWS)            // (tokens, HEADS, KV_LORA / 4)
#endif
#import merge

var<workgroup> maxima: array<f32, WG>;         // (phase, vector)
var<workgroup> totals: array<f32, WG>;         // (phase, vector)
var<workgroup> values: array<vec4<f32>, WG>;   // (phase, vector)

#main
  let phase = t / COLUMNS;
  // In the last block, threads behind the last column repeat it and do not write.
  let vector = wid.y * COLUMNS + t % COLUMNS;
#ifdef ACROSS
  let read = min(vector, HEADS * KV_LORA / 4u - 1u);
  let of_head = read / (KV_LORA / 4u);
  let column = read % (KV_LORA / 4u);
  let exists = vector < HEADS * KV_LORA / 4u;
#else
  let of_head = wid.x;
  let column = min(vector, KV_LORA / 4u - 1u);
  let exists = vector < KV_LORA / 4u;
#endif
  let head = wid.z * HEADS + of_head;
  let slices = token_slices(wid.z);
  let own = merge(slices.place + of_head * slices.count, column, phase, PHASES, slices.count);
  maxima[t] = own.max;
  totals[t] = own.sum;
  values[t] = own.value;
  workgroupBarrier();

  // Threads of phase 0 join the phases that have slices.
  let end = min(slices.count, PHASES) * COLUMNS;
  var result = vec4(0.0);
  if (phase == 0u) {
    var best = own.max;
    var i = t + COLUMNS;
    loop {
      if (i >= end) { break; }
      best = max(best, maxima[i]);
      i += COLUMNS;
    }
    var total = 0.0;
    i = t;
    loop {
      if (i >= end) { break; }
      let weight = exp(maxima[i] - best);
      total += weight * totals[i];
      result += weight * values[i];
      i += COLUMNS;
    }
    result = result / total;
  }
  if (phase == 0u && exists) {
#ifdef prepared
    token_write(head * KV_LORA + column * 4u, t, result);
#else
    merged[head * (KV_LORA / 4u) + column] = result;
#endif
  }
}
