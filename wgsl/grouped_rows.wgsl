// Finishes queries of grouped-query attention, and writes the cache rows of new tokens: the keys of all key heads, then their values, in f16
// or with codes (shared/cache_codes.wgsl).
//
// q (tokens, HEADS, KEY) -> finished (tokens, HEADS, KEY); k (tokens, KV_HEADS, KEY) and v (tokens, KV_HEADS, VALUE) -> the token's row of the
// KV cache (shared/sequences.wgsl). A query or key head gets its bias, is normed, and is rotated (shared/finished_head.wgsl); a value gets its
// bias. The first ROPE values of a head turn by the angles of the position: pairs (2i, 2i+1), or with ROTATES_HALVES (i, i + ROPE / 2).
// Each of q, k and v may be partial sums. All buffers are seen as pairs of neighbouring values.
// Division: grid (HEADS + KV_HEADS + blocks of WG pairs of a token's values, tokens). A workgroup has a head or a block. Workgroups for what
// is not bound of q, k and v are missing.
// Bound by: latency, for some KiB per token. So everything is loaded before the first barrier.
#number KV_HEADS KEY VALUE ROPE WG PAIRS  // key heads, values of a query or key head, of a value head, rotated ones, threads, pairs of a thread
#import sequences
#word eps?: f32   // of the norms
#read angles?: array<vec2<f32>> @floats(CONTEXT * ROPE)                           // (n_ctx, ROPE / 2) of (cos, sin)
#ifdef q
#number HEADS  // query heads
const QUERY_GROUPS = HEADS;
#read q?: array<vec2<f32>> @floats(2 * q_FURTHER + TOKENS * HEADS * KEY)          // (partial sums, tokens, HEADS, KEY / 2)
#write finished?: array<vec2<f32>> @floats(TOKENS * HEADS * KEY)                  // (tokens, HEADS, KEY / 2)
#read q_bias?: array<vec2<f32>> @floats(HEADS * KEY)                              // (HEADS, KEY / 2)
#read q_norm?: array<vec2<f32>> @floats(KEY)                                      // (KEY / 2)
#else
const QUERY_GROUPS = 0u;
#endif
#ifdef k
const KEY_GROUPS = KV_HEADS;
#read k?: array<vec2<f32>> @floats(2 * k_FURTHER + TOKENS * KV_HEADS * KEY)       // (partial sums, tokens, KV_HEADS, KEY / 2)
#read k_bias?: array<vec2<f32>> @floats(KV_HEADS * KEY)                           // (KV_HEADS, KEY / 2)
#read k_norm?: array<vec2<f32>> @floats(KEY)                                      // (KEY / 2)
#else
const KEY_GROUPS = 0u;
#endif
#ifdef v
#read v?: array<vec2<f32>> @floats(2 * v_FURTHER + TOKENS * KV_HEADS * VALUE)     // (partial sums, tokens, KV_HEADS, VALUE / 2)
#read v_bias?: array<vec2<f32>> @floats(KV_HEADS * VALUE)                         // (KV_HEADS, VALUE / 2)
#endif
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#write cache?: array<u32> @cache(CACHE_ROWS * CACHE_WORDS)                // (rows, CACHE_WORDS / 2) words, see shared/cache_codes.wgsl
const MOST_CODED = max(KEY, 2u * WG);
#import write_codes
#else
#write cache?: array<u32> @cache(CACHE_ROWS * KV_HEADS * (KEY + VALUE))   // (rows, KV_HEADS * (KEY + VALUE) / 2) pairs of f16
#endif
#import reduce
#each n PAIRS

#ifdef angles
alias Finished = array<vec2<f32>, PAIRS>;
// Cosine and sine of each of two neighbouring values.
struct Turn { cos: vec2<f32>, sin: vec2<f32> }

#ifdef ROTATES_HALVES
const QUARTER = ROPE / 4u;   // pairs of half of the rotated part

// The pair that turns together with this one.
fn other_of(pair: u32) -> u32 {
  if (pair >= 2u * QUARTER) { return pair; }
  return select(pair - QUARTER, pair + QUARTER, pair < QUARTER);
}

fn turn_of(pos: u32, pair: u32) -> Turn {
  let at = pos * (ROPE / 2u) + 2u * (pair % QUARTER);
  let first = angles[at];
  let second = angles[at + 1u];
  return Turn(vec2(first.x, second.x), vec2(first.y, second.y));
}

fn rotated(own: vec2<f32>, other: vec2<f32>, turn: Turn, pair: u32) -> vec2<f32> {
  if (pair >= 2u * QUARTER) { return own; }
  return fma(own, turn.cos, select(other, -other, pair < QUARTER) * turn.sin);
}
#else
fn other_of(pair: u32) -> u32 { return pair; }

fn turn_of(pos: u32, pair: u32) -> Turn {
  let angle = angles[pos * (ROPE / 2u) + min(pair, ROPE / 2u - 1u)];
  return Turn(angle.xx, vec2(-angle.y, angle.y));
}

fn rotated(own: vec2<f32>, other: vec2<f32>, turn: Turn, pair: u32) -> vec2<f32> {
  if (pair >= ROPE / 2u) { return own; }
  return fma(own, turn.cos, other.yx * turn.sin);
}
#endif

#ifdef q
#import finished_head as q
#endif
#ifdef k
#import finished_head as k
#endif
#endif
#ifdef v
alias v_Value = vec2<f32>;
#import partial_values as v
#endif

#ifdef cache
// The first word of the token's row in the cache.
fn row_at(token: u32) -> u32 {
#ifdef CODES
  return cache_row_at(first_page(token), position(token)) * (CACHE_WORDS / 2u);
#else
  return cache_row_at(first_page(token), position(token)) * (KV_HEADS * (KEY + VALUE) / 2u);
#endif
}
#endif

#main
#fetch
  let token = wid.y;
#ifdef q
  if (wid.x < QUERY_GROUPS) {
    let first = token * (HEADS * KEY / 2u);
    let head = q_finished(first, wid.x, position(token), t, subgroup, subgroups, lane_id);
    let to = first + wid.x * (KEY / 2u) + t;
    if (t + $nu * WG < KEY / 2u) { finished[to + $nu * WG] = head[$n]; }
    return;
  }
#endif
#ifdef k
  let key_head = wid.x - QUERY_GROUPS;
  if (key_head < KEY_GROUPS) {
    let head = k_finished(token * (KV_HEADS * KEY / 2u), key_head, position(token), t, subgroup, subgroups, lane_id);
#ifdef CODES
    if (t + $nu * WG < KEY / 2u) { row_values[t + $nu * WG] = head[$n]; }
    write_codes(row_at(token), key_head * KEY, KEY, t);
#else
    let to = row_at(token) + key_head * (KEY / 2u) + t;
    if (t + $nu * WG < KEY / 2u) { cache[to + $nu * WG] = pack2x16float(head[$n]); }
#endif
    return;
  }
#endif
#ifdef v
  let pair = (wid.x - QUERY_GROUPS - KEY_GROUPS) * WG + t;
  if (pair < KV_HEADS * VALUE / 2u) {
    let value = v_sum(token * (KV_HEADS * VALUE / 2u) + pair) + v_bias_at(pair);
#ifdef CODES
    row_values[t] = value;
#else
    cache[row_at(token) + KV_HEADS * KEY / 2u + pair] = pack2x16float(value);
#endif
  }
#ifdef CODES
  let first = 2u * (pair - t);
  write_codes(row_at(token), KV_HEADS * KEY + first, min(2u * WG, KV_HEADS * VALUE - first), t);
#endif
#endif
}
