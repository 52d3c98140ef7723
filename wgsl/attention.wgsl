// Latent attention over a slice of the context: all heads read the same cache rows, whose first KV_LORA values are also the
// values (MQA form of MLA). Online softmax, not normalised: attention_merge joins the slices.
//
// Token t sees rows 0..=pos+t. Slice s holds rows from s * slice_rows on; one that begins after them leaves (-1e30, 0) and zeros.
// Division: grid (slices, head groups, tokens). A workgroup takes 4 heads, so that each cache value it loads serves 4
// multiply-adds, and walks its slice in tiles of TILE rows:
// 1. scores: 8 lanes share ROWS rows, 8 columns at a time; the workgroup's 32 groups of lanes make the tile;
// 2. softmax: 8 lanes per head;
// 3. values: a thread owns 8 columns of all 4 heads in registers; PHASES threads share them, row by row.
// Bound by: long contexts, the multiply-adds (2 * (2 * KV_LORA + ROPE) flops per row and head) and the cache, read once per
// head group, mostly from the second-level cache; short contexts, the latency of one tile.
#word pos: u32         // of the first token
#word slices: u32
#word slice_rows: u32
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<vec4<f32>> @floats(TOKENS * HEADS * ROPE)          // (tokens, HEADS, ROPE / 4)
#read cache: array<vec4<u32>> @cache(CONTEXT * (KV_LORA + ROPE))     // (n_ctx, (KV_LORA + ROPE) / 8) of 8 f16
#write slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, slices, KV_LORA / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)
#import reduce

const LOWEST = -1e30;
const CACHE_ROW = (KV_LORA + ROPE) / 8u;
const TILE = (WG / LANES) * ROWS;
const OWNERS = KV_LORA / 8u;          // threads that cover the columns of a row
const PHASES = WG / OWNERS;           // such sets of threads

var<workgroup> scores: array<vec4<f32>, TILE>;    // (row) of 4 heads
// Numbers, not vectors, where threads write components: Metal and DX12 may write the whole vector, and the last would win.
var<workgroup> weights: array<f32, TILE * 4u>;    // (row, head)
var<workgroup> maxima: array<f32, 4u * LANES>;    // (head, lane)
var<workgroup> decay: array<f32, 4>;              // of what earlier tiles summed up, per head
var<workgroup> sums: array<vec4<f32>, WG * 2u>;   // (phase, KV_LORA / 4) of one head

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn widen(x: vec4<u32>) -> Eight {
  return Eight(
    vec4(unpack2x16float(x.x), unpack2x16float(x.y)),
    vec4(unpack2x16float(x.z), unpack2x16float(x.w)),
  );
}

#main
  let lane = t & (LANES - 1u);
  let lanes = t / LANES;
  let token = wid.z;
  let first_head = wid.y * 4u;
#for h 4
  let q$h = token * HEADS + min(first_head + $hu, HEADS - 1u);
#endfor
  let begin = wid.x * p.slice_rows;
  let end = min(begin + p.slice_rows, p.pos + token + 1u);
  let head = lanes & 3u;      // of this thread in the softmax
  let owner = t % OWNERS;
  let phase = t / OWNERS;
  var m = LOWEST;             // the greatest score so far, of `head`
  var l = 0.0;                // this lane's share of the sum of weights, of `head`
#for h 4
  var lo$h = vec4(0.0);
  var hi$h = vec4(0.0);
#endfor

  var first = begin;
  loop {
    if (first >= end) { break; }
#for r ROWS
    // Rows beyond the end are never read: what lies there may not even be a number.
    let row$r = min(first + lanes * ROWS + $ru, end - 1u) * CACHE_ROW;
    var score$r = vec4(0.0);
#endfor
    var c = lane;
    loop {
      if (c >= KV_LORA / 8u) { break; }
#for r ROWS
      let k$r = widen(cache[row$r + c]);
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
      let k$r = widen(cache[row$r + KV_LORA / 8u + c]);
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
      let i = lanes * ROWS + $ru;
      scores[i] = select(vec4(LOWEST), score$r * p.scale, first + i < end);
    }
#endfor
    workgroupBarrier();

    if (lanes < 4u) {
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
    if (lanes < 4u) {
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
        let v = widen(cache[(first + r) * CACHE_ROW + owner]);
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
  if (lanes < 4u && lane == 0u && first_head + head < HEADS) {
    stats[(token * HEADS + first_head + head) * p.slices + wid.x] = vec2(m, sum);
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
      slice_sums[(q$h * p.slices + wid.x) * (KV_LORA / 4u) + c] = total;
      c += WG;
    }
  }
#endfor
}
