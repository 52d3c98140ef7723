// Rotates queries, and writes the cache rows of new tokens: the normed latent, then the rotated key, in f16 (shared/cache_row.wgsl).
//
// q (tokens, HEADS, NOPE + ROPE) -> q_pe (tokens, HEADS, ROPE); kv_a (tokens, KV_LORA + ROPE) -> the token's row of the KV cache (shared/sequences.wgsl).
// With the parameter `partial_sums`, kv_a holds so many partial sums of each value, which are added up. Pairs (2i, 2i+1) rotate by the angle
// of (position, i). All buffers are seen as pairs of floats.
// Division: grid (HEADS + 1, tokens). Workgroup h < HEADS rotates head h, and the last one writes the cache row. Without `q` the grid is
// (1, tokens): then the product that makes the queries has rotated them (shared/rotated.wgsl).
// Bound by: latency, for a few KiB per token. So everything is loaded before the first barrier.
#number ROPE WG  // rotated values of a head, threads of a workgroup
#ifdef q
#number HEADS NOPE  // query heads, values of a head that are not rotated
#endif
#import sequences
#word cache_eps: f32      // of the norm
#word partial_sums?: u32     // of each value of kv_a
#word partial_stride?: u32   // pairs from one partial sum of a value to the next
#import cache_row
#read angles: array<vec2<f32>> @floats(CONTEXT * ROPE)                 // (n_ctx, ROPE / 2) of (cos, sin)
#read q?: array<vec2<f32>> @floats(TOKENS * HEADS * (NOPE + ROPE))     // (tokens, HEADS, (NOPE + ROPE) / 2)
#write q_pe?: array<vec2<f32>> @floats(TOKENS * HEADS * ROPE)          // (tokens, HEADS, ROPE / 2)

#main
#fetch
  let token = wid.y;
#ifdef q
  if (wid.x < HEADS) {
    let first = position(token) * (ROPE / 2u);
    let head = token * HEADS + wid.x;
    let from_q = head * ((NOPE + ROPE) / 2u) + NOPE / 2u;
    var i = t;
    loop {
      if (i >= ROPE / 2u) { break; }
      q_pe[head * (ROPE / 2u) + i] = rotate(q[from_q + i], angles[first + i]);
      i += WG;
    }
  } else
#endif
  {
    let own = position(token);
    cache_row(token, own, cache_row_at(first_page(token), own), p.cache_eps, t, subgroup, subgroups, lane_id);
  }
}
