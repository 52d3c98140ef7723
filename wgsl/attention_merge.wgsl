// Joins the slices of attention: a softmax over the slices, weighted by their sums.
//
// slice_sums (tokens, HEADS, slices, KV_LORA) and stats (max, sum) of each -> merged (tokens, HEADS, KV_LORA); with BYTES as
// bytes for integer products, units of 32 values (tokens, HEADS, KV_LORA / 32); with HALVES as halves (shared/halves.wgsl), of one
// token.
// Division: grid (HEADS, column blocks, tokens); a workgroup owns COLUMNS vec4 of one head, PHASES threads share one,
// slice by slice. Bound by: reading the partial sums, slices * HEADS * KV_LORA * 4 bytes, from the second-level cache.
#word slices: u32
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

var<workgroup> maxima: array<f32, WG>;
var<workgroup> totals: array<f32, WG>;
var<workgroup> values: array<vec4<f32>, WG>;

#main
  let head = wid.z * HEADS + wid.x;
  let column = wid.y * COLUMNS + t % COLUMNS;
  let phase = t / COLUMNS;
  // Columns behind the last one, where the blocks do not divide the row, are joined like it and not written.
  let own = merge(head, min(column, KV_LORA / 4u - 1u), phase, PHASES, p.slices);
  maxima[t] = own.max;
  totals[t] = own.sum;
  values[t] = own.value;
  workgroupBarrier();

  // The first phase joins the phases that had slices.
  let end = min(p.slices, PHASES) * COLUMNS;
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
  // A thread per unit, so that no two write the same vec4.
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
