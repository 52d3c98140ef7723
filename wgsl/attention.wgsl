// Latent attention over a slice of the context. All heads read the same cache rows, whose first KV_LORA values are also the values (the
// MQA form of MLA). The softmax is online and its sums are not normalised: attention_merge joins the slices.
//
// A token sees the rows of its sequence up to its own position (shared/sequences.wgsl). A slice of which the token sees no row leaves zeros
// with the maximum -1e30.
// Division: grid (slices, groups of 4 heads, tokens), see shared/own_slice.wgsl. A workgroup walks its slice in tiles of TILE rows. It takes 4 heads, so that each
// cache value that it loads serves 4 multiply-adds.
// 1. Scores: LANES threads share ROWS rows and take 8 columns each at a time. The WG / LANES such runs of threads make the tile.
// 2. Softmax: LANES threads per head.
// 3. Values: a thread keeps the sums of 8 columns of all 4 heads in registers. PHASES threads with the same columns share the rows.
// Bound by: in long contexts the multiply-adds, 2 * (2 * KV_LORA + ROPE) flops per row and head, and the KV cache, which each group of
// heads reads once, mostly from the second-level cache; in short contexts the latency of one tile.
#number HEADS KV_LORA ROPE WG  // query heads, width of a latent, rotated values of a head, threads of a workgroup
#number LANES ROWS  // threads that share a row, rows that a thread takes together
#import own_slice
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<vec4<f32>> @floats(TOKENS * HEADS * ROPE)          // (tokens, HEADS, ROPE / 4)
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#read cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)       // (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#else
#read cache: array<vec4<u32>> @cache(CACHE_ROWS * (KV_LORA + ROPE))  // (rows, (KV_LORA + ROPE) / 8) of 8 f16
#endif
#write slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, slices, KV_LORA / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)
#import reduce

const LOWEST = -1e30;
#ifdef CODES
const CACHE_ROW = CACHE_WORDS / 4u;
#else
const CACHE_ROW = (KV_LORA + ROPE) / 8u;
#endif
const TILE = (WG / LANES) * ROWS;
const OWNERS = KV_LORA / 8u;          // threads that own the columns of a row
const PHASES = WG / OWNERS;           // runs of so many threads

var<workgroup> scores: array<vec4<f32>, TILE>;    // (row) of 4 heads
// Scalars, since threads write them one by one: Metal and DX12 may store a whole vector to write one component of it.
var<workgroup> weights: array<f32, TILE * 4u>;    // (row, head)
var<workgroup> maxima: array<f32, 4u * LANES>;    // (head, lane)
var<workgroup> decay: array<f32, 4>;              // (head), the factor for the sums of earlier tiles
var<workgroup> sums: array<vec4<f32>, WG * 2u>;   // (phase, KV_LORA / 4) of one head

#ifdef CODES
#import cache_eights
#else
#import eight
#endif

#main
  let lane = t & (LANES - 1u);
  let run = t / LANES;
  let own = own_slice(wid);
  let token = own.token;
  let first_head = wid.y * 4u;
#for h 4
  let q$h = token * HEADS + min(first_head + $hu, HEADS - 1u);
#endfor
  let begin = own.begin;
  let end = own.end;
  let head = run & 3u;        // of this thread in the softmax
  let owner = t % OWNERS;
  let phase = t / OWNERS;
  var m = LOWEST;             // the greatest score of `head` so far
  var l = 0.0;                // this lane's share of the sum of weights of `head`
#for h 4
  var lo$h = vec4(0.0);
  var hi$h = vec4(0.0);
#endfor

  var first = begin;
  loop {
    if (first >= end) { break; }
#for r ROWS
    // Rows behind the end are never read, because they may hold anything, even NaN.
    let row$r = cache_row_at(own.page, min(first + run * ROWS + $ru, end - 1u)) * CACHE_ROW;
    var score$r = vec4(0.0);
#endfor
    var c = lane;
    loop {
      if (c >= KV_LORA / 8u) { break; }
#for r ROWS
#ifdef CODES
      let k$r = latent_eight(latent_asked(row$r, c), c);
#else
      let k$r = widen(cache[row$r + c]);
#endif
#endfor
#for h 4
      let lo_q$h = q_lat[q$h * (KV_LORA / 4u) + c * 2u];
      let hi_q$h = q_lat[q$h * (KV_LORA / 4u) + c * 2u + 1u];
#endfor
#for r ROWS
#for h 4
      score$r[$h] += dot(lo_q$h, k$r.lo) + dot(hi_q$h, k$r.hi);
#endfor
#endfor
      c += LANES;
    }
    c = lane;
    loop {
      if (c >= ROPE / 8u) { break; }
#for r ROWS
#ifdef CODES
      let k$r = widen(rotated_asked(row$r, c));
#else
      let k$r = widen(cache[row$r + KV_LORA / 8u + c]);
#endif
#endfor
#for h 4
      let lo_q$h = q_pe[q$h * (ROPE / 4u) + c * 2u];
      let hi_q$h = q_pe[q$h * (ROPE / 4u) + c * 2u + 1u];
#endfor
#for r ROWS
#for h 4
      score$r[$h] += dot(lo_q$h, k$r.lo) + dot(hi_q$h, k$r.hi);
#endfor
#endfor
      c += LANES;
    }
#for r ROWS
#for h 4
    score$r[$h] = lanes_sum(score$r[$h], t);
#endfor
    if (lane == 0u) {
      let i = run * ROWS + $ru;
      scores[i] = select(vec4(LOWEST), score$r * p.scale, first + i < end);
    }
#endfor
    workgroupBarrier();

    if (run < 4u) {
      var best = LOWEST;
      var i = lane;
      loop {
        if (i >= TILE) { break; }
        best = max(best, scores[i][head]);
        i += LANES;
      }
      maxima[t] = best;
    }
    workgroupBarrier();
    if (run < 4u) {
      var best = m;
#for i LANES
      best = max(best, maxima[head * LANES + $iu]);
#endfor
      let shrink = exp(m - best);
      l *= shrink;
      m = best;
      if (lane == 0u) { decay[head] = shrink; }
      var i = lane;
      loop {
        if (i >= TILE) { break; }
        let weight = exp(scores[i][head] - best);
        weights[i * 4u + head] = weight;
        l += weight;
        i += LANES;
      }
    }
    workgroupBarrier();

    if (phase < PHASES) {
#for h 4
      lo$h *= decay[$h];
      hi$h *= decay[$h];
#endfor
      let rows = min(TILE, end - first);
      var r = phase;
      loop {
        if (r >= rows) { break; }
#ifdef CODES
        let v = latent_eight(latent_asked(cache_row_at(own.page, first + r) * CACHE_ROW, owner), owner);
#else
        let v = widen(cache[cache_row_at(own.page, first + r) * CACHE_ROW + owner]);
#endif
#for h 4
        let w$h = weights[r * 4u + $hu];
        lo$h += w$h * v.lo;
        hi$h += w$h * v.hi;
#endfor
        r += PHASES;
      }
    }
    first += TILE;
  }

  let sum = lanes_sum(l, t);
  if (run < 4u && lane == 0u && first_head + head < HEADS) {
    stats[own.place + (first_head + head) * own.count] = vec2(m, sum);
  }
#for h 4
  workgroupBarrier();
  if (phase < PHASES) {
    sums[phase * (KV_LORA / 4u) + owner * 2u] = lo$h;
    sums[phase * (KV_LORA / 4u) + owner * 2u + 1u] = hi$h;
  }
  workgroupBarrier();
  if (first_head + $hu < HEADS) {
    var c = t;
    loop {
      if (c >= KV_LORA / 4u) { break; }
      var total = vec4(0.0);
      var i = c;
      loop {
        if (i >= PHASES * (KV_LORA / 4u)) { break; }
        total += sums[i];
        i += KV_LORA / 4u;
      }
      slice_sums[(own.place + (first_head + $hu) * own.count) * (KV_LORA / 4u) + c] = total;
      c += WG;
    }
  }
#endfor
}
