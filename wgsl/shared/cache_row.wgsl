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
#import cache_codes
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

#ifdef CODES
var<workgroup> row_latent: array<vec2<f32>, KV_LORA / 2u>;   // the values whose codes are written

// The scale of a block of 32 values: the greatest magnitude is code 127. A block behind the last one has none.
fn block_scale(block: u32) -> f32 {
  if (block >= KV_LORA / 32u) { return 0.0; }
  var most = vec2(0.0);
#for i 16
  most = max(most, abs(row_latent[block * 16u + $iu]));
#endfor
  return max(most.x, most.y) / 127.0;
}

// Writes the codes of the latent from word `to_row` on, and the scales of its blocks.
fn write_codes(to_row: u32, t: u32) {
  var word = t;
  loop {
    if (word >= KV_LORA / 4u) { break; }
    let block = word / 8u;
    let one = block_scale(block);
    let inverse = select(0.0, 1.0 / one, one > 0.0);
    let codes = vec4<i32>(round(vec4(row_latent[2u * word], row_latent[2u * word + 1u]) * inverse));
    let bytes = bitcast<vec4<u32>>(codes) & vec4(255u);
    cache[to_row + word] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
    // A word holds the scales of two blocks. The thread of the first word of codes writes it.
    if (word % 16u == 0u) { cache[to_row + SCALES_AT + word / 16u] = pack2x16float(vec2(one, block_scale(block + 1u))); }
    word += WG;
  }
}
#endif

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
  if (t + $nu * WG < KV_LORA / 2u) { row_latent[at$n] = x$n * scale * g$n; }
  workgroupBarrier();
  write_codes(to_row, t);
#else
  if (t + $nu * WG < KV_LORA / 2u) { cache[to_row + at$n] = pack2x16float(x$n * scale * g$n); }
#endif
}
