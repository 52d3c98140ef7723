// What prompt_attention.wgsl computes, by cooperative matrices (MAT x MAT, f16 in, sums in f32): keys, values,
// queries and weights rounded to f16.
//
// Division: grid (heads, tiles of TOKENS tokens, the longest first); subgroups are GROUPS of tokens by SHARES. A workgroup takes
// the block in tiles of ROWS rows:
// 1. keys move to workgroup memory, loaded to registers a tile ahead, as the values are;
// 2. scores: a subgroup multiplies its group's queries, in registers, by its share of the rows;
// 3. softmax: SPREAD threads per token, relative to a reference that is raised only where a score exceeds it by SLACK, since
//    matrices in registers can be scaled only through memory;
// 4. values take the place of the keys; a subgroup sums its share of the columns for its group's tokens, in registers.
// Bound by: the matrix units, 2 * (NOPE + ROPE + V) flops per token, row and head; workgroup memory, from which every group
// of tokens loads all keys and values; barriers.
enable f16;
enable wgpu_cooperative_matrix;
struct Params {
  pos: u32,      // of the first token
  tokens: u32,
  begin: u32,    // first context row of the block
  rows: u32,     // of the block
  ends: u32,     // 1: the first block, 2: the last
  scale: f32,
}
@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;              // (tokens, HEADS, (NOPE + ROPE) / 4)
@group(0) @binding(1) var<storage, read> angles: array<vec4<f32>>;         // (n_ctx, ROPE / 4) of (cos, sin, cos, sin)
@group(0) @binding(2) var<storage, read> cache: array<vec4<f16>>;          // (n_ctx, (KV_LORA + ROPE) / 4)
@group(0) @binding(3) var<storage, read> kv: array<vec4<f16>>;             // (block, HEADS * (NOPE + V) / 4)
@group(0) @binding(4) var<storage, read_write> values: array<f32>;         // (tokens, HEADS, V)
@group(0) @binding(5) var<storage, read_write> stats: array<vec2<f32>>;    // (tokens, HEADS) of (what weights are relative to, sum)
#import params
#import MATRICES as c
#import coop_stage
#import rotate_pairs

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK: f16 ends at 2^16.
const SLACK = 8.0;
const MOST = 65504.0;
const TOKENS = GROUPS * TOKEN_TILES * MAT;
const ROWS = SHARES * ROW_TILES * MAT;
const CACHE_ROW = (KV_LORA + ROPE) / 4u;
const KV_ROW = HEADS * (NOPE + V) / 4u;
// Rows in workgroup memory are 16 bytes longer: 8 of them lie in different banks.
const PITCH = max(NOPE + ROPE, V) + 8u;
const QUERY_PITCH = QUERY_COLUMNS + 8u;
const SCORE_PITCH = ROWS + 4u;
const WEIGHT_PITCH = ROWS + 8u;
const QUERY_ROWS = TOKEN_TILES * MAT;
const SUBGROUPS = GROUPS * SHARES;
const SPREAD = WG / TOKENS;
const SQUARE = MAT * MAT;

var<workgroup> tile: array<Stage, max(ROWS * PITCH, SUBGROUPS * QUERY_ROWS * QUERY_PITCH) / STAGE>;   // (row) of keys or values
var<workgroup> scores: array<f32, max(TOKENS * SCORE_PITCH, SUBGROUPS * SQUARE)>;                     // (token, row)
var<workgroup> weights: array<f16, TOKENS * WEIGHT_PITCH>;                                           // (token, row)
var<workgroup> factors: array<f32, TOKENS>;   // of what was summed up before; in the end of all
// Whether a tile raised a reference. Sixteen bytes, as the size of every array here is a multiple of: drivers place one behind
// the other, and matrices are loaded from multiples of 16 bytes only.
var<workgroup> raised: array<u32, 4>;

fn spread_max(v: f32) -> f32 {
  var best = v;
  if (SPREAD > 8u) { best = max(best, subgroupShuffleXor(best, 8u)); }
  if (SPREAD > 4u) { best = max(best, subgroupShuffleXor(best, 4u)); }
  if (SPREAD > 2u) { best = max(best, subgroupShuffleXor(best, 2u)); }
  if (SPREAD > 1u) { best = max(best, subgroupShuffleXor(best, 1u)); }
  return best;
}

fn spread_sum(v: f32) -> f32 {
  var sum = v;
  if (SPREAD > 8u) { sum += subgroupShuffleXor(sum, 8u); }
  if (SPREAD > 4u) { sum += subgroupShuffleXor(sum, 4u); }
  if (SPREAD > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  if (SPREAD > 1u) { sum += subgroupShuffleXor(sum, 1u); }
  return sum;
}

// Four values from number `at` on.
fn put(at: u32, v: vec4<f16>) {
#ifdef VECTORS
  tile[at / 4u] = v;
#else
  tile[at] = v.x;
  tile[at + 1u] = v.y;
  tile[at + 2u] = v.z;
  tile[at + 3u] = v.w;
#endif
}

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  // The device is one whose subgroups have LANES lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let own_tokens = group / SHARES * QUERY_ROWS;
  let share = group % SHARES;
  let head = wid.x;
  let first_token = ((p.tokens - 1u) / TOKENS - wid.y) * TOKENS;
  // Rows of the block that the last of these tokens sees.
  let seen = p.pos + min(first_token + TOKENS, p.tokens);
  let end = min(p.rows, max(seen, p.begin) - p.begin);
  // Rows beyond the end are never read: what lies there may not even be a number.
  let last_row = max(end, 1u) - 1u;

  // Keys of the first tile: the part of this head alone, then the part of all heads.
#for i KEY_LOADS
  let key_row$i = ($iu * WG + t) / (NOPE / 4u);
  let key_column$i = head * (NOPE / 4u) + ($iu * WG + t) % (NOPE / 4u);
  var key$i = kv[min(key_row$i, last_row) * KV_ROW + key_column$i];
#endfor
#for i ROPE_LOADS
  let rope_row$i = ($iu * WG + t) / (ROPE / 4u);
  let rope_column$i = p.begin * CACHE_ROW + KV_LORA / 4u + ($iu * WG + t) % (ROPE / 4u);
  var rope$i = cache[min(rope_row$i, last_row) * CACHE_ROW + rope_column$i];
#endfor

  // Its values.
#for i VALUE_LOADS
  let value_row$i = ($iu * WG + t) / (V / 4u);
  let value_column$i = HEADS * (NOPE / 4u) + head * (V / 4u) + ($iu * WG + t) % (V / 4u);
  var value$i = kv[min(value_row$i, last_row) * KV_ROW + value_column$i];
#endfor

  // Queries, rotated where they are to be, scaled to scores that are powers of 2, QUERY_COLUMNS at a time through a place of the subgroup's own.
  let own_queries = group * (QUERY_ROWS * QUERY_PITCH);
#for c QUERY_PARTS
#for i QUERY_LOADS
  let query$c_$i = ($iu * LANES + lane) / (QUERY_COLUMNS / 4u);
  let column$c_$i = $cu * (QUERY_COLUMNS / 4u) + ($iu * LANES + lane) % (QUERY_COLUMNS / 4u);
  let token$c_$i = min(first_token + own_tokens + query$c_$i, p.tokens - 1u);
  var loaded$c_$i = q[(token$c_$i * HEADS + head) * ((NOPE + ROPE) / 4u) + column$c_$i];
  if ($cu * QUERY_COLUMNS >= NOPE) {
    loaded$c_$i = rotate_pairs(loaded$c_$i, angles[(p.pos + token$c_$i) * (ROPE / 4u) + column$c_$i - NOPE / 4u]);
  }
#endfor
  workgroupBarrier();
#for i QUERY_LOADS
  put(own_queries + query$c_$i * QUERY_PITCH + (($iu * LANES + lane) % (QUERY_COLUMNS / 4u)) * 4u,
    vec4<f16>(clamp(loaded$c_$i * (p.scale * LOG2_E), vec4(-MOST), vec4(MOST))));
#endfor
  workgroupBarrier();
#for k QUERY_STEPS
#for m TOKEN_TILES
  let q$c_$k_$m = coopLoadT<cLeft>(&tile[(own_queries + $mu * MAT * QUERY_PITCH + $ku * MAT) / STAGE], QUERY_PITCH / STAGE);
#endfor
#endfor
#endfor

  // In the softmax: this thread's token, and its rows part * ROWS / SPREAD..
  let h = t / SPREAD;
  let part = t % SPREAD;
  let token = first_token + h;
  let at = min(token, p.tokens - 1u) * HEADS + head;
  let see = p.pos + token;
  var m = LOWEST;   // what the weights are relative to, as a power of 2
  var l = 0.0;      // this thread's part of the sum of weights
  let own_square = group * SQUARE;
#for m TOKEN_TILES
#for n VALUE_TILES
  var out$m_$n: cSums;
#endfor
#endfor
  if ((p.ends & 1u) == 0u) {
    let before = stats[at];
    m = before.x;
    if (part == 0u) { l = before.y; }
#for m TOKEN_TILES
#for n VALUE_TILES
#for i SQUARE_LOADS
    {
      let e = $iu * LANES + lane;
      let row = min(first_token + own_tokens + $mu * MAT + e / MAT, p.tokens - 1u);
      scores[own_square + e] = values[(row * HEADS + head) * V + (share * VALUE_TILES + $nu) * MAT + e % MAT];
    }
#endfor
    workgroupBarrier();
    out$m_$n = coopLoadT<cSums>(&scores[own_square], MAT);
    workgroupBarrier();
#endfor
#endfor
  }
  if (t == 0u) { raised[0] = 0u; }

  var first = 0u;
  loop {
    if (first >= end) { break; }
    workgroupBarrier();
#for i KEY_LOADS
    put(key_row$i * PITCH + ($iu * WG + t) % (NOPE / 4u) * 4u, key$i);
#endfor
#for i ROPE_LOADS
    put(rope_row$i * PITCH + NOPE + ($iu * WG + t) % (ROPE / 4u) * 4u, rope$i);
#endfor
    workgroupBarrier();
    // Keys of the next tile, a whole tile ahead; where there is none, the last row again, from the first-level cache.
#for i KEY_LOADS
    key$i = kv[min(first + ROWS + key_row$i, last_row) * KV_ROW + key_column$i];
#endfor
#for i ROPE_LOADS
    rope$i = cache[min(first + ROWS + rope_row$i, last_row) * CACHE_ROW + rope_column$i];
#endfor

#for m TOKEN_TILES
#for n ROW_TILES
    var score$m_$n: cSums;
#endfor
#endfor
#for c QUERY_PARTS
#for k QUERY_STEPS
#for n ROW_TILES
    let k$c_$k_$n = coopLoad<cRight>(&tile[((share * ROW_TILES + $nu) * MAT * PITCH + $cu * QUERY_COLUMNS + $ku * MAT) / STAGE], PITCH / STAGE);
#for m TOKEN_TILES
    score$m_$n = coopMultiplyAdd(q$c_$k_$m, k$c_$k_$n, score$m_$n);
#endfor
#endfor
#endfor
#endfor
#for m TOKEN_TILES
#for n ROW_TILES
    let scored$m_$n = score$m_$n;
    coopStoreT(scored$m_$n, &scores[(own_tokens + $mu * MAT) * SCORE_PITCH + (share * ROW_TILES + $nu) * MAT], SCORE_PITCH);
#endfor
#endfor
    workgroupBarrier();

#for i VALUE_LOADS
    put(value_row$i * PITCH + ($iu * WG + t) % (V / 4u) * 4u, value$i);
#endfor
    // As the keys.
#for i VALUE_LOADS
    value$i = kv[min(first + ROWS + value_row$i, last_row) * KV_ROW + value_column$i];
#endfor
    var best = LOWEST;
#for i THREAD_ROWS
    let r$i = part + $iu * SPREAD;
    var s$i = scores[h * SCORE_PITCH + r$i];
    if (first + r$i >= end || p.begin + first + r$i > see) { s$i = LOWEST; }
    best = max(best, s$i);
#endfor
    best = spread_max(best);
    let reference = select(m, best, best > m + SLACK);
    let shrink = exp2(m - reference);
    // Before the first tile there is nothing to scale.
    if (reference > m && m > LOWEST) { raised[0] = 1u; }
    m = reference;
    l *= shrink;
#for i THREAD_ROWS
    let w$i = f16(exp2(s$i - m));
    weights[h * WEIGHT_PITCH + r$i] = w$i;
    l += f32(w$i);
#endfor
    if (part == 0u) { factors[h] = shrink; }
    let scaled = workgroupUniformLoad(&raised[0]);
    if (t == 0u) { raised[0] = 0u; }
    if (scaled == 1u) {
#for m TOKEN_TILES
#for n VALUE_TILES
      let raised$m_$n = out$m_$n;
      coopStoreT(raised$m_$n, &scores[own_square], MAT);
      workgroupBarrier();
#for i SQUARE_LOADS
      scores[own_square + $iu * LANES + lane] *= factors[own_tokens + $mu * MAT + ($iu * LANES + lane) / MAT];
#endfor
      workgroupBarrier();
      out$m_$n = coopLoadT<cSums>(&scores[own_square], MAT);
      // Before the next one takes its place.
      workgroupBarrier();
#endfor
#endfor
    }

#for j WEIGHT_STEPS
#for m TOKEN_TILES
    let w$j_$m = coopLoadT<cLeft>(&weights[(own_tokens + $mu * MAT) * WEIGHT_PITCH + $ju * MAT], WEIGHT_PITCH);
#endfor
#for n VALUE_TILES
    let v$j_$n = coopLoadT<cRight>(&tile[($ju * MAT * PITCH + (share * VALUE_TILES + $nu) * MAT) / STAGE], PITCH / STAGE);
#for m TOKEN_TILES
    out$m_$n = coopMultiplyAdd(w$j_$m, v$j_$n, out$m_$n);
#endfor
#endfor
#endfor
    first += ROWS;
  }

  let sum = spread_sum(l);
  let divided = (p.ends & 2u) != 0u;
  workgroupBarrier();
  if (part == 0u) {
    factors[h] = select(1.0, 1.0 / sum, divided);
    if (token < p.tokens) { stats[at] = vec2(m, sum); }
  }
#for m TOKEN_TILES
#for n VALUE_TILES
  // Named first: naga 30 would compute what stands in the call after the store.
  let done$m_$n = out$m_$n;
  coopStoreT(done$m_$n, &scores[own_square], MAT);
  workgroupBarrier();
#for i SQUARE_LOADS
  {
    let e = $iu * LANES + lane;
    let row = own_tokens + $mu * MAT + e / MAT;
    if (first_token + row < p.tokens) {
      let to = ((first_token + row) * HEADS + head) * V + (share * VALUE_TILES + $nu) * MAT + e % MAT;
      values[to] = scores[own_square + e] * factors[row];
    }
  }
#endfor
  workgroupBarrier();
#endfor
#endfor
}
