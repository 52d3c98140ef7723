// Joins the slices of attention and normalises the result: the softmax over the slices (shared/merge.wgsl).
//
// slice_sums (tokens, HEADS, slices, KV_LORA), stats (tokens, HEADS, slices) -> merged (tokens, HEADS, KV_LORA): in f32, with BYTES as
// records (shared/bytes.wgsl), with HALVES as halves (shared/halves.wgsl) of one token.
// Division: grid (HEADS, blocks of COLUMNS vectors, tokens). PHASES threads share a vector of 4 columns, each with its slices.
// Bound by: reading the slices, slices * HEADS * KV_LORA * 4 bytes per token, from the second-level cache.
#import token_slices
#read slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)              // (tokens, HEADS, slices, KV_LORA / 4)
#read stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)                    // (tokens, HEADS, slices) of (max, sum)
#ifdef BYTES
#write merged: array<vec4<u32>> @prepared(TOKENS * HEADS * KV_LORA / 32)     // (tokens, HEADS, KV_LORA / 32, 3)
#import quantize
#else
#ifdef HALVES
#write merged: array<vec4<u32>> @prepared(TOKENS * HEADS * KV_LORA / 32)     // (HEADS * KV_LORA / 256, 5, 8)
#import halve_unit
#else
#write merged: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)            // (tokens, HEADS, KV_LORA / 4)
#endif
#endif
#import merge

var<workgroup> maxima: array<f32, WG>;         // (phase, vector)
var<workgroup> totals: array<f32, WG>;         // (phase, vector)
var<workgroup> values: array<vec4<f32>, WG>;   // (phase, vector)

#main
  let head = wid.z * HEADS + wid.x;
  let column = wid.y * COLUMNS + t % COLUMNS;
  let phase = t / COLUMNS;
  // In the last block, threads behind the last column repeat it and do not write.
  let slices = token_slices(wid.z);
  let own = merge(slices.place + wid.x * slices.count, min(column, KV_LORA / 4u - 1u), phase, PHASES, slices.count);
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
#ifdef UNITS_OUT
  if (phase == 0u) { values[t] = result; }
  workgroupBarrier();
  // One thread makes a unit, since no two may write the same vec4.
  let unit = wid.y * (COLUMNS / 8u) + t;
  if (t < COLUMNS / 8u && unit < KV_LORA / 32u) {
#for i 8
    let v$i = values[t * 8u + $iu];
#endfor
#ifdef BYTES
    let lo = quantize_half(v0, v1, v2, v3);
    let hi = quantize_half(v4, v5, v6, v7);
    let at = (head * (KV_LORA / 32u) + unit) * 3u;
    merged[at] = lo.codes;
    merged[at + 1u] = hi.codes;
    merged[at + 2u] = bitcast<vec4<u32>>(vec4(lo.scale, hi.scale, lo.scaled_sum, hi.scaled_sum));
#else
    let own = halve_unit(v0, v1, v2, v3, v4, v5, v6, v7);
    let at = halves_place(head * (KV_LORA / 32u) + unit);
    merged[at] = own.a;
    merged[at + HALVES_PLANE] = own.b;
    merged[at + 2u * HALVES_PLANE] = own.c;
    merged[at + 3u * HALVES_PLANE] = own.d;
    merged[at + HALVES_SCALES] = bitcast<vec4<u32>>(own.scales);
#endif
  }
#else
  if (phase == 0u && column < KV_LORA / 4u) { merged[head * (KV_LORA / 4u) + column] = result; }
#endif
}
