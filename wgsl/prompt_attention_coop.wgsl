// What prompt_attention.wgsl computes, by cooperative matrices (MAT x MAT, f16 in, sums in f32): keys, values,
// queries and weights rounded to f16.
//
// Division: grid (heads, tiles of TOKENS tokens, the longest first); a subgroup makes all of its MAT tokens, queries
// and sums in registers. A workgroup takes the block in tiles of ROWS rows. In a turn a subgroup
// 1. multiplies weights, from a place of its own, with the values of a tile;
// 2. makes the weights of the next tile from its scores, which lie in a place of its own: SPREAD threads per token, relative to a
//    reference that is raised only where a score exceeds it by SLACK, since matrices in registers can be scaled only through memory;
// 3. makes the scores of the tile after that.
// Keys and values lie in workgroup memory twice: one tile of each is worked on, another comes in, so that loads and what stores
// them stand between the same barriers, of which a turn needs one.
// Bound by: the matrix units, 2 * (NOPE + ROPE + V) flops per token, row and head; workgroup memory, from which every subgroup
// loads all keys and values; registers, which let few of those loads be on their way.
enable f16;
enable wgpu_cooperative_matrix;
#word pos: u32      // of the first token
#word tokens: u32
#word begin: u32    // first context row of the block
#word rows: u32     // of the block
#word ends: u32     // 1: the first block, 2: the last
#word scale: f32
#import coop_stage
#import coop_few as scores
#read q: array<vec4<f32>> @floats(p.tokens * HEADS * (NOPE + ROPE))    // (tokens, HEADS, (NOPE + ROPE) / 4)
#read angles: array<vec4<f32>> @floats(CONTEXT * ROPE)                 // (n_ctx, ROPE / 4) of (cos, sin, cos, sin)
#read cache: array<vec4<f16>> @cache(CONTEXT * (KV_LORA + ROPE))       // (n_ctx, (KV_LORA + ROPE) / 4)
#read kv: array<vec4<f16>> @halves(p.rows * HEADS * (NOPE + V))        // (block, HEADS * (NOPE + V) / 4)
#write values: array<Few> @floats(p.tokens * HEADS * V)                // (tokens, HEADS, V / FEW)
#write stats: array<vec2<f32>> @floats(p.tokens * HEADS * 2)           // (tokens, HEADS) of (what weights are relative to, sum)
#import MATRICES as c
#import rotate_pairs
#import coop_own

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK: f16 ends at 2^16.
const SLACK = 15.0;
const MOST = 65504.0;
const TOKENS = GROUPS * MAT;
const ROWS = ROW_TILES * MAT;
const CACHE_ROW = (KV_LORA + ROPE) / 4u;
const KV_ROW = HEADS * (NOPE + V) / 4u;
// Rows in workgroup memory are 16 bytes longer: 8 of them lie in different banks.
const KEY_PITCH = NOPE + ROPE + 8u;
const VALUE_PITCH = V + 8u;
const QUERY_PITCH = QUERY_COLUMNS + 8u;
const SCORE_PITCH = ROWS + 4u;
const KEYS = ROWS * KEY_PITCH;
const VALUES = ROWS * VALUE_PITCH;
const SPREAD = LANES / MAT;
// Threads that load a row, LOADERS vectors at a time, and rows at once.
const AT_ONCE = WG / LOADERS;

var<workgroup> keys: array<Stage, 2u * KEYS / STAGE>;                        // two of (row, column); before, of subgroups the queries
var<workgroup> rows: array<Stage, 2u * VALUES / STAGE>;                      // two of (row, column): values
var<workgroup> scores: array<Sum, GROUPS * MAT * SCORE_PITCH / SUM>;    // (token, row)
var<workgroup> weights: array<Stage, GROUPS * MAT * ROWS / STAGE>;           // (token, row)

fn spread_max(v: f32) -> f32 {
  var best = v;
  if (SPREAD > 2u) { best = max(best, subgroupShuffleXor(best, 2u)); }
  if (SPREAD > 1u) { best = max(best, subgroupShuffleXor(best, 1u)); }
  return best;
}

fn spread_sum(v: f32) -> f32 {
  var sum = v;
  if (SPREAD > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  if (SPREAD > 1u) { sum += subgroupShuffleXor(sum, 1u); }
  return sum;
}

fn put_weights(at: u32, v: FewHalves) {
#ifdef VECTORS
  weights[at / 4u] = v;
#else
  weights[at] = v.x;
  weights[at + 1u] = v.y;
#endif
}

// Scores of which the token sees the first `seen`.
fn seen_few(v: Few, seen: i32) -> Few {
#ifdef VECTORS
  return select(Few(LOWEST), v, vec4(0, 1, 2, 3) < vec4(seen));
#else
  return select(Few(LOWEST), v, vec2(0, 1) < vec2(seen));
#endif
}

fn highest(v: Few) -> f32 {
#ifdef VECTORS
  return max(max(v.x, v.y), max(v.z, v.w));
#else
  return max(v.x, v.y);
#endif
}

fn total(v: Few) -> f32 {
#ifdef VECTORS
  return (v.x + v.y) + (v.z + v.w);
#else
  return v.x + v.y;
#endif
}

// Four values from number `at` on.
fn put_key(at: u32, v: vec4<f16>) {
#ifdef VECTORS
  keys[at / 4u] = v;
#else
  keys[at] = v.x;
  keys[at + 1u] = v.y;
  keys[at + 2u] = v.z;
  keys[at + 3u] = v.w;
#endif
}

fn put_value(at: u32, v: vec4<f16>) {
#ifdef VECTORS
  rows[at / 4u] = v;
#else
  rows[at] = v.x;
  rows[at + 1u] = v.y;
  rows[at + 2u] = v.z;
  rows[at + 3u] = v.w;
#endif
}

#main
  // The device is one whose subgroups have LANES lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let head = wid.x;
  let first_token = ((p.tokens - 1u) / TOKENS - wid.y) * TOKENS;
  // Rows of the block that the last of these tokens sees.
  let seen = p.pos + min(first_token + TOKENS, p.tokens);
  let end = min(p.rows, max(seen, p.begin) - p.begin);
  // Rows beyond the end are never read: what lies there may not even be a number.
  let last_row = max(end, 1u) - 1u;

  // Queries, rotated where they are to be, scaled to scores that are powers of 2, QUERY_COLUMNS at a time through a place of the subgroup's own.
  let own_queries = group * (MAT * QUERY_PITCH);
#for c QUERY_PARTS
#for i QUERY_LOADS
  let query$c_$i = ($iu * LANES + lane) / (QUERY_COLUMNS / 4u);
  let column$c_$i = $cu * (QUERY_COLUMNS / 4u) + ($iu * LANES + lane) % (QUERY_COLUMNS / 4u);
  let token$c_$i = min(first_token + group * MAT + query$c_$i, p.tokens - 1u);
  var loaded$c_$i = q[(token$c_$i * HEADS + head) * ((NOPE + ROPE) / 4u) + column$c_$i];
  if ($cu * QUERY_COLUMNS >= NOPE) {
    loaded$c_$i = rotate_pairs(loaded$c_$i, angles[(p.pos + token$c_$i) * (ROPE / 4u) + column$c_$i - NOPE / 4u]);
  }
#endfor
#for i QUERY_LOADS
  put_key(own_queries + query$c_$i * QUERY_PITCH + (($iu * LANES + lane) % (QUERY_COLUMNS / 4u)) * 4u,
    vec4<f16>(clamp(loaded$c_$i * (p.scale * LOG2_E), vec4(-MOST), vec4(MOST))));
#endfor
  own_barrier();
#for k QUERY_STEPS
  let q$c_$k = coopLoadT<cLeft>(&keys[(own_queries + $ku * MAT) / STAGE], QUERY_PITCH / STAGE);
#endfor
  own_barrier();
#endfor

  // In the softmax: this thread's token, and its rows in turns of FEW; likewise columns where sums pass through memory.
  let own = group * (MAT * SCORE_PITCH);
  let part = lane % SPREAD;
  let mine = (own + lane / SPREAD * SCORE_PITCH + part * FEW) / SUM;
  let own_weights = (group * MAT + lane / SPREAD) * ROWS + part * FEW;
  let token = first_token + t / SPREAD;
  let at = min(token, p.tokens - 1u) * HEADS + head;
  let value_row = (at * V + part * FEW) / FEW;
  // Rows of the block that the token sees.
  let visible = min(end, max(p.pos + token + 1u, p.begin) - p.begin);
  var m = LOWEST;   // what the weights are relative to, as a power of 2
  var l = 0.0;      // this thread's part of the sum of weights
#for n VALUE_TILES
  var out$n: cSums;
#endfor
  let fresh = (p.ends & 1u) != 0u;
  if (!fresh) {
    let before = stats[at];
    m = before.x;
    if (part == 0u) { l = before.y; }
  }

  // The first tiles: the part of the keys of this head alone, then the part of all heads; values.
  let loader = t / LOADERS;
  let loaded = t % LOADERS;
  let kv_at = head * (NOPE / 4u) + loaded;
  let rope_at = p.begin * CACHE_ROW + KV_LORA / 4u + loaded;
  let value_at = (HEADS * NOPE + head * V) / 4u + loaded;
  let key_to = loader * KEY_PITCH + loaded * 4u;
  let value_to = loader * VALUE_PITCH + loaded * 4u;
#for j ROW_PASSES
  let first_row$j = min($ju * AT_ONCE + loader, last_row);
#for i KEY_LOADS
  let first_key$j_$i = kv[first_row$j * KV_ROW + kv_at + $iu * LOADERS];
#endfor
#for i ROPE_LOADS
  let first_rope$j_$i = cache[first_row$j * CACHE_ROW + rope_at + $iu * LOADERS];
#endfor
#endfor
#for j ROW_PASSES
  let second_row$j = min(ROWS + $ju * AT_ONCE + loader, last_row);
#for i KEY_LOADS
  let second_key$j_$i = kv[second_row$j * KV_ROW + kv_at + $iu * LOADERS];
#endfor
#for i ROPE_LOADS
  let second_rope$j_$i = cache[second_row$j * CACHE_ROW + rope_at + $iu * LOADERS];
#endfor
#endfor
#for j ROW_PASSES
#for i VALUE_LOADS
  let first_value$j_$i = kv[first_row$j * KV_ROW + value_at + $iu * LOADERS];
#endfor
#endfor
  // All have taken their queries from there.
  workgroupBarrier();
#for j ROW_PASSES
#for i KEY_LOADS
  put_key(key_to + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 4u), first_key$j_$i);
#endfor
#for i ROPE_LOADS
  put_key(key_to + ($ju * AT_ONCE * KEY_PITCH + NOPE + $iu * LOADERS * 4u), first_rope$j_$i);
#endfor
#endfor
#for j ROW_PASSES
#for i KEY_LOADS
  put_key(key_to + KEYS + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 4u), second_key$j_$i);
#endfor
#for i ROPE_LOADS
  put_key(key_to + KEYS + ($ju * AT_ONCE * KEY_PITCH + NOPE + $iu * LOADERS * 4u), second_rope$j_$i);
#endfor
#endfor
#for j ROW_PASSES
#for i VALUE_LOADS
  put_value(value_to + ($ju * AT_ONCE * VALUE_PITCH + $iu * LOADERS * 4u), first_value$j_$i);
#endfor
#endfor
#for j ROW_PASSES
  let third_row$j = min(2u * ROWS + $ju * AT_ONCE + loader, last_row);
#for i KEY_LOADS
  let third_key$j_$i = kv[third_row$j * KV_ROW + kv_at + $iu * LOADERS];
#endfor
#for i ROPE_LOADS
  let third_rope$j_$i = cache[third_row$j * CACHE_ROW + rope_at + $iu * LOADERS];
#endfor
#endfor
  workgroupBarrier();
#for r ROW_TILES
  var score0_$r: cSums;
#for c QUERY_PARTS
#for k QUERY_STEPS
  let k0_$c_$k_$r = coopLoad<cRight>(&keys[($ru * MAT * KEY_PITCH + $cu * QUERY_COLUMNS + $ku * MAT) / STAGE], KEY_PITCH / STAGE);
  score0_$r = coopMultiplyAdd(q$c_$k, k0_$c_$k_$r, score0_$r);
#endfor
#endfor
#endfor
#for r ROW_TILES
  let scored0_$r = score0_$r;
  coopStoreT(scored0_$r, &scores[(own + $ru * MAT) / SUM], SCORE_PITCH / SUM);
#endfor
  own_barrier();
  // Behind so many rows the token sees nothing.
  let rest0 = i32(visible) - i32(part * FEW);
  var best0 = LOWEST;
#for i SCORE_FEWS
  let s0_$i = seen_few(scores_few(mine, $iu * SPREAD * FEW), rest0 - i32($iu * SPREAD * FEW));
  best0 = max(best0, highest(s0_$i));
#endfor
  best0 = spread_max(best0);
  let reference = select(m, best0, best0 > m + SLACK);
  let shrink = exp2(m - reference);
  m = reference;
  l *= shrink;
#for i SCORE_FEWS
  let w0_$i = FewHalves(exp2(s0_$i - m));
  put_weights(own_weights + $iu * SPREAD * FEW, w0_$i);
  l += total(Few(w0_$i));
#endfor
  own_barrier();
  if (!fresh) {
#for n VALUE_TILES
#for i SQUARE_FEWS
    scores_put(mine, $iu * SPREAD * FEW, values[value_row + $nu * (MAT / FEW) + $iu * SPREAD] * shrink);
#endfor
    own_barrier();
    out$n = coopLoadT<cSums>(&scores[own / SUM], SCORE_PITCH / SUM);
    own_barrier();
#endfor
  }
#for r ROW_TILES
  var score1_$r: cSums;
#for c QUERY_PARTS
#for k QUERY_STEPS
  let k1_$c_$k_$r = coopLoad<cRight>(&keys[(KEYS + $ru * MAT * KEY_PITCH + $cu * QUERY_COLUMNS + $ku * MAT) / STAGE], KEY_PITCH / STAGE);
  score1_$r = coopMultiplyAdd(q$c_$k, k1_$c_$k_$r, score1_$r);
#endfor
#endfor
#endfor
#for r ROW_TILES
  let scored1_$r = score1_$r;
  coopStoreT(scored1_$r, &scores[(own + $ru * MAT) / SUM], SCORE_PITCH / SUM);
#endfor
  workgroupBarrier();
#for j ROW_PASSES
#for i KEY_LOADS
  put_key(key_to + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 4u), third_key$j_$i);
#endfor
#for i ROPE_LOADS
  put_key(key_to + ($ju * AT_ONCE * KEY_PITCH + NOPE + $iu * LOADERS * 4u), third_rope$j_$i);
#endfor
#endfor
  workgroupBarrier();

  var first = 0u;
  var now = 0u;   // which of two tiles is worked on
  loop {
    if (first >= end) { break; }
    // Keys three tiles ahead, values one; where there are none, the last row again, from the first-level cache.
#for j ROW_PASSES
    let key_row$j = min(first + 3u * ROWS + $ju * AT_ONCE + loader, last_row);
#for i KEY_LOADS
    let key$j_$i = kv[key_row$j * KV_ROW + kv_at + $iu * LOADERS];
#endfor
#for i ROPE_LOADS
    let rope$j_$i = cache[key_row$j * CACHE_ROW + rope_at + $iu * LOADERS];
#endfor
#endfor
#for j ROW_PASSES
    let value_row$j = min(first + ROWS + $ju * AT_ONCE + loader, last_row);
#for i VALUE_LOADS
    let value$j_$i = kv[value_row$j * KV_ROW + value_at + $iu * LOADERS];
#endfor
#endfor

    let value_tile = now * VALUES;
#for r ROW_TILES
    let weights$r = coopLoadT<cLeft>(&weights[(group * MAT * ROWS + $ru * MAT) / STAGE], ROWS / STAGE);
#for n VALUE_TILES
    let v$r_$n = coopLoadT<cRight>(&rows[(value_tile + $ru * MAT * VALUE_PITCH + $nu * MAT) / STAGE], VALUE_PITCH / STAGE);
    out$n = coopMultiplyAdd(weights$r, v$r_$n, out$n);
#endfor
#endfor
    // Behind so many rows the token sees nothing.
    let rest = i32(visible) - i32(first + ROWS + part * FEW);
    var best = LOWEST;
#for i SCORE_FEWS
    let s$i = seen_few(scores_few(mine, $iu * SPREAD * FEW), rest - i32($iu * SPREAD * FEW));
    best = max(best, highest(s$i));
#endfor
    // A loop that runs once at most: naga would not take matrices in a branch that it cannot tell to be taken by all, and compilers
    // would move the loads above behind it, to where they are used.
    loop {
      if (!own_any(best > m + SLACK)) { break; }
      best = spread_max(best);
      let reference = select(m, best, best > m + SLACK);
      let shrink = exp2(m - reference);
      m = reference;
      l *= shrink;
      own_barrier();
#for n VALUE_TILES
      let raised$n = out$n;
      coopStoreT(raised$n, &scores[own / SUM], SCORE_PITCH / SUM);
      own_barrier();
#for i SQUARE_FEWS
      scores_put(mine, $iu * SPREAD * FEW, scores_few(mine, $iu * SPREAD * FEW) * shrink);
#endfor
      own_barrier();
      out$n = coopLoadT<cSums>(&scores[own / SUM], SCORE_PITCH / SUM);
      own_barrier();
#endfor
    }
    own_barrier();
#for i SCORE_FEWS
    let w$i = FewHalves(exp2(s$i - m));
    put_weights(own_weights + $iu * SPREAD * FEW, w$i);
    l += total(Few(w$i));
#endfor
    let key_tile = now * KEYS;
#for r ROW_TILES
    var score$r: cSums;
#for c QUERY_PARTS
#for k QUERY_STEPS
    let k$c_$k_$r = coopLoad<cRight>(&keys[(key_tile + $ru * MAT * KEY_PITCH + $cu * QUERY_COLUMNS + $ku * MAT) / STAGE], KEY_PITCH / STAGE);
    score$r = coopMultiplyAdd(q$c_$k, k$c_$k_$r, score$r);
#endfor
#endfor
#endfor
#for r ROW_TILES
    let scored$r = score$r;
    coopStoreT(scored$r, &scores[(own + $ru * MAT) / SUM], SCORE_PITCH / SUM);
#endfor
    now = 1u - now;
#for j ROW_PASSES
#for i KEY_LOADS
    put_key(key_to + now * KEYS + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 4u), key$j_$i);
#endfor
#for i ROPE_LOADS
    put_key(key_to + now * KEYS + ($ju * AT_ONCE * KEY_PITCH + NOPE + $iu * LOADERS * 4u), rope$j_$i);
#endfor
#endfor
#for j ROW_PASSES
#for i VALUE_LOADS
    put_value(value_to + now * VALUES + ($ju * AT_ONCE * VALUE_PITCH + $iu * LOADERS * 4u), value$j_$i);
#endfor
#endfor
    workgroupBarrier();
    first += ROWS;
  }

  let sum = spread_sum(l);
  let factor = select(1.0, 1.0 / sum, (p.ends & 2u) != 0u);
  if (part == 0u && token < p.tokens) { stats[at] = vec2(m, sum); }
#for n VALUE_TILES
  // Named first: naga 30 would compute what stands in the call after the store.
  let done$n = out$n;
  coopStoreT(done$n, &scores[own / SUM], SCORE_PITCH / SUM);
  own_barrier();
#for i SQUARE_FEWS
  let done$n_$i = scores_few(mine, $iu * SPREAD * FEW) * factor;
#endfor
  if (token < p.tokens) {
#for i SQUARE_FEWS
    values[value_row + $nu * (MAT / FEW) + $iu * SPREAD] = done$n_$i;
#endfor
  }
  own_barrier();
#endfor
}
