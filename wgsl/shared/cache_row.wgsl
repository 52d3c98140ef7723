// Writes the cache row of a new token: the normed latent, then the rotated key, in f16 or with codes (shared/cache_codes.wgsl). `rotate` is also used alone: pairs (2i, 2i+1) rotate
// by the angle of (position, i). All buffers are seen as pairs of floats. The kernel declares `angles` (n_ctx, ROPE / 2) of (cos, sin).
// LATENT_PAIRS * WG pairs cover the latent. With the parameter `partial_sums`, kv_a holds partial sums.
#number KV_LORA LATENT_PAIRS  // width of a latent, pairs of the latent of a thread
#ifdef partial_sums
#read kv_a: array<vec2<f32>> @floats(2 * (p.partial_sums - 1) * p.partial_stride + TOKENS * (KV_LORA + ROPE))   // (partial_sums, tokens, (KV_LORA + ROPE) / 2)
#else
#read kv_a: array<vec2<f32>> @floats(TOKENS * (KV_LORA + ROPE))     // (tokens, (KV_LORA + ROPE) / 2)
#endif
#read norm: array<vec2<f32>> @floats(KV_LORA)                       // (KV_LORA / 2)
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#write cache: array<u32> @cache(CACHE_ROWS * CACHE_WORDS)           // (rows, CACHE_WORDS / 2) words, see shared/cache_codes.wgsl
const MOST_CODED = KV_LORA;
#import write_codes
#else
#write cache: array<u32> @cache(CACHE_ROWS * (KV_LORA + ROPE))      // (rows, (KV_LORA + ROPE) / 2) pairs of f16
#endif
#import reduce
#each n LATENT_PAIRS

alias kv_a_Value = vec2<f32>;
#import add_partial_sums as kv_a

fn rotate(x: vec2<f32>, angle: vec2<f32>) -> vec2<f32> {
  return vec2(x.x * angle.x - x.y * angle.y, x.x * angle.y + x.y * angle.x);
}

// Writes row `to` of the KV cache, which belongs to position `pos`, from row `token` of kv_a. The whole workgroup must call. Everything is loaded before the first barrier.
fn cache_row(token: u32, pos: u32, to: u32, eps: f32, t: u32, subgroup: u32, subgroups: u32, lane_id: u32) {
  let row = token * ((KV_LORA + ROPE) / 2u);
#ifdef CODES
  let to_row = to * (CACHE_WORDS / 2u);
#else
  let to_row = to * ((KV_LORA + ROPE) / 2u);
#endif
  var squares = 0.0;
  let at$n = min(t + $nu * WG, KV_LORA / 2u - 1u);
  let x$n = kv_a_sum(row + at$n);
  let g$n = norm[at$n];
  squares += select(0.0, dot(x$n, x$n), t + $nu * WG < KV_LORA / 2u);
  var i = t;
  loop {
    if (i >= ROPE / 2u) { break; }
    let at = KV_LORA / 2u + i;
#ifdef CODES
    cache[to_row + ROTATED_AT + i] = pack2x16float(rotate(kv_a_sum(row + at), angles[pos * (ROPE / 2u) + i]));
#else
    cache[to_row + at] = pack2x16float(rotate(kv_a_sum(row + at), angles[pos * (ROPE / 2u) + i]));
#endif
    i += WG;
  }
  let scale = inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(KV_LORA) + eps);
#ifdef CODES
  if (t + $nu * WG < KV_LORA / 2u) { row_values[at$n] = x$n * scale * g$n; }
  write_codes(to_row, 0u, KV_LORA, t);
#else
  if (t + $nu * WG < KV_LORA / 2u) { cache[to_row + at$n] = pack2x16float(x$n * scale * g$n); }
#endif
}
