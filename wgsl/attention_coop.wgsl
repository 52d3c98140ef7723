// Latent attention over a slice of the context by cooperative matrices (f16 in, f32 out): what attention.wgsl
// computes, with queries and weights rounded to f16. Not normalised: attention_merge joins the slices.
//
// Division: grid (splits, head groups, tokens). A workgroup takes HEAD_TILES tiles of MAT heads (the last one begins
// early enough to be full: heads in two tiles are computed twice, and written by the first) and walks its slice in tiles of TILE rows:
// 1. the rows move to workgroup memory, loaded to registers while the tile before is worked on;
// 2. scores: each subgroup multiplies one tile of heads, MAT rows and one of SHARES shares of the columns;
// 3. softmax: SPREAD threads per head, relative to a reference that is raised only where a score exceeds it by SLACK,
//    since matrices in registers can be scaled only through memory;
// 4. values: a subgroup owns VALUE_TILES tiles of MAT columns of all its heads, in registers.
// Bound by: the cache, read once per head group; on few workgroups by the steps 2 to 4, one after the other.
enable f16;
enable wgpu_cooperative_matrix;
#word pos: u32         // of the first token
#word splits: u32
#word split_rows: u32
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<vec4<f32>> @floats(TOKENS * HEADS * ROPE)          // (tokens, HEADS, ROPE / 4)
// (n_ctx, (KV_LORA + ROPE) / 4). Never written, but as if it were: compilers move loads of what nobody writes past barriers to
// where they are used, and then a tile waits for all of its bytes.
#write cache: array<vec4<f16>> @cache(CONTEXT * (KV_LORA + ROPE))
#write parts: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, splits, KV_LORA / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, splits) of (max, sum)
#import MATRICES as c
#import coop_stage
#ifdef VECTORS
alias Pair = vec2<f32>;
alias HalfPair = vec2<f16>;
const PAIR = 2u;
#else
alias Pair = f32;
alias HalfPair = f16;
const PAIR = 1u;
#endif

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK: f16 ends at 2^16. The greater, the fewer sums are scaled.
const SLACK = 15.0;
const CACHE_ROW = (KV_LORA + ROPE) / 4u;
// A row in workgroup memory, 16 bytes longer: 8 rows lie in different banks.
const PITCH = KV_LORA + ROPE + 8u;
const TILE = ROW_TILES * MAT;
const HEADS_HERE = HEAD_TILES * MAT;
// Vectors of 4 sums in a row of a matrix, and sums in a matrix.
const QUADS = MAT / 4u;
const MATRIX = MAT * MAT;
const SPREAD = WG / HEADS_HERE;
const WEIGHT_PITCH = TILE + 8u;
// LOADERS threads load a row, LOADERS vectors at a time: all addresses are one and a constant.
const AT_ONCE = WG / LOADERS;

// Vectors, or numbers where a language wants pointers to numbers (Metal). Places in all of them are counted in numbers.
var<workgroup> rows: array<Stage, max(TILE, HEADS_HERE) * PITCH / STAGE>;   // (row) of the cache; before, (head) of the queries
var<workgroup> products: array<Pair, WG / LANES * MATRIX / PAIR>;           // (subgroup) of (head of a tile, row of a tile); in the end of sums
var<workgroup> weights: array<HalfPair, HEADS_HERE * WEIGHT_PITCH / PAIR>;  // (head, row)
var<workgroup> decay: array<f32, HEADS_HERE>;                           // of what earlier tiles summed up
// Whether a tile raised a reference. Sixteen bytes, as the size of every array here is a multiple of: drivers place one behind
// the other, and matrices are loaded from multiples of 16 bytes only.
var<workgroup> raised: vec4<u32>;

fn put_row(at: u32, v: vec4<f16>) {
#ifdef VECTORS
  rows[at / STAGE] = v;
#else
  rows[at] = v.x;
  rows[at + 1u] = v.y;
  rows[at + 2u] = v.z;
  rows[at + 3u] = v.w;
#endif
}

fn two_products(at: u32) -> vec2<f32> {
#ifdef VECTORS
  return products[at / PAIR];
#else
  return vec2(products[at], products[at + 1u]);
#endif
}

fn put_products(at: u32, v: vec2<f32>) {
#ifdef VECTORS
  products[at / PAIR] = v;
#else
  products[at] = v.x;
  products[at + 1u] = v.y;
#endif
}

fn put_weights(at: u32, v: vec2<f16>) {
#ifdef VECTORS
  weights[at / PAIR] = v;
#else
  weights[at] = v.x;
  weights[at + 1u] = v.y;
#endif
}

// Head h of the workgroup.
fn own_head(wid: vec3<u32>, h: u32) -> u32 {
  return min(wid.y * HEADS_HERE + (h & ~(MAT - 1u)), HEADS - MAT) + (h & (MAT - 1u));
}

// Whether that is the first one to take its head.
fn first_of(wid: vec3<u32>, h: u32) -> bool {
  return own_head(wid, h) >= wid.y * HEADS_HERE + (h & ~(MAT - 1u));
}

fn spread_max(v: f32) -> f32 {
  var best = v;
  if (SPREAD > 8u) { best = max(best, subgroupShuffleXor(best, 8u)); }
  if (SPREAD > 4u) { best = max(best, subgroupShuffleXor(best, 4u)); }
  if (SPREAD > 2u) { best = max(best, subgroupShuffleXor(best, 2u)); }
  return max(best, subgroupShuffleXor(best, 1u));
}

fn spread_sum(v: f32) -> f32 {
  var sum = v;
  if (SPREAD > 8u) { sum += subgroupShuffleXor(sum, 8u); }
  if (SPREAD > 4u) { sum += subgroupShuffleXor(sum, 4u); }
  if (SPREAD > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  return sum + subgroupShuffleXor(sum, 1u);
}

#main
  let begin = wid.x * p.split_rows;
  let end = min(begin + p.split_rows, p.pos + wid.z + 1u);
  // Rows beyond the end are never read: what lies there may not even be a number.
  let last = max(end, 1u) - 1u;
  let loader = t / LOADERS;
  let column = t % LOADERS;
#for j ROW_PASSES
  let from$j = min(begin + $ju * AT_ONCE + loader, last) * CACHE_ROW + column;
#for i ROW_LOADS
  var next$j_$i = cache[from$j + $iu * LOADERS];
#endfor
#endfor

  if (t == 0u) { raised = vec4(0u); }
  // All asked for before the first is used.
#for j HEAD_PASSES
  let head$j = wid.z * HEADS + own_head(wid, $ju * AT_ONCE + loader);
#for i LATENT_LOADS
  let q$j_$i = q_lat[head$j * (KV_LORA / 4u) + $iu * LOADERS + column];
#endfor
#for i PE_LOADS
  let pe$j_$i = q_pe[head$j * (ROPE / 4u) + $iu * LOADERS + column];
#endfor
#endfor
  let to = loader * PITCH + column * 4u;
#for j HEAD_PASSES
#for i LATENT_LOADS
  put_row(to + $ju * (AT_ONCE * PITCH) + $iu * (LOADERS * 4u), vec4<f16>(q$j_$i * (p.scale * LOG2_E)));
#endfor
#for i PE_LOADS
  put_row(to + $ju * (AT_ONCE * PITCH) + KV_LORA + $iu * (LOADERS * 4u), vec4<f16>(pe$j_$i * (p.scale * LOG2_E)));
#endfor
#endfor
  workgroupBarrier();
  // The device is one whose subgroups all have LANES lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let own_products = group * MATRIX;
  let share = (group / (HEAD_TILES * ROW_TILES)) * (STEPS * MAT);
  let own_heads = (group % HEAD_TILES) * MAT;
  let own_rows = ((group / HEAD_TILES) % ROW_TILES) * MAT;
#for k STEPS
  let left$k = coopLoadT<cLeft>(&rows[(own_heads * PITCH + share + $ku * MAT) / STAGE], PITCH / STAGE);
#endfor

#for m HEAD_TILES
#for n VALUE_TILES
  var out$m_$n: cSums;
#endfor
#endfor
  let own_values = group * (VALUE_TILES * MAT);
  // In the softmax.
  let h = t / SPREAD;
  let part = t % SPREAD;
  var m = LOWEST;     // what the weights of head h are relative to, as a power of 2
  var l = 0.0;        // this thread's part of the sum of weights

  var first = begin;
  loop {
    workgroupBarrier();
#for j ROW_PASSES
#for i ROW_LOADS
    put_row(to + $ju * (AT_ONCE * PITCH) + $iu * (LOADERS * 4u), next$j_$i);
#endfor
#endfor
    if (t == 0u) { raised = vec4(0u); }
    workgroupBarrier();
    // Between barriers, so that they are asked for now: neither before the stores, which would wait for them, too, nor after
    // the scores. A tile that does not exist loads the last row of the slice, from the first-level cache.
#for j ROW_PASSES
    let from$j = min(first + TILE + $ju * AT_ONCE + loader, last) * CACHE_ROW + column;
#for i ROW_LOADS
    next$j_$i = cache[from$j + $iu * LOADERS];
#endfor
#endfor
    workgroupBarrier();

    var product: cSums;
#for k STEPS
    let k$k = coopLoad<cRight>(&rows[(own_rows * PITCH + share + $ku * MAT) / STAGE], PITCH / STAGE);
    product = coopMultiplyAdd(left$k, k$k, product);
#endfor
    coopStoreT(product, &products[own_products / PAIR], MAT / PAIR);
    workgroupBarrier();

    var best = LOWEST;
#for i THREAD_PAIRS
    let r$i = 2u * (part * THREAD_PAIRS + $iu);
    var s$i = vec2(0.0);
#for s SHARES
    s$i += two_products(((($su * ROW_TILES) + r$i / MAT) * HEAD_TILES + h / MAT) * MATRIX + (h % MAT) * MAT + r$i % MAT);
#endfor
    s$i = select(vec2(LOWEST), s$i, vec2(first + r$i, first + r$i + 1u) < vec2(end));
    best = max(best, max(s$i.x, s$i.y));
#endfor
    var shrink = 1.0;
    if (subgroupAny(best > m + SLACK)) {
      best = spread_max(best);
      let reference = select(m, best, best > m + SLACK);
      shrink = exp2(m - reference);
      m = reference;
      l *= shrink;
      if (first != begin) { raised = vec4(1u); }
    }
#for i THREAD_PAIRS
    let w$i = vec2<f16>(exp2(s$i - m));
    put_weights(h * WEIGHT_PITCH + r$i, w$i);
    l += f32(w$i.x) + f32(w$i.y);
#endfor
    if (part == 0u) { decay[h] = shrink; }
    workgroupBarrier();
    if (raised.x == 1u) {
#for m HEAD_TILES
#for n VALUE_TILES
      let old$m_$n = out$m_$n;
      coopStoreT(old$m_$n, &products[own_products / PAIR], MAT / PAIR);
      workgroupBarrier();
#for i MATRIX_LOADS
      {
        let e = ($iu * LANES + lane) * 2u;
        put_products(own_products + e, two_products(own_products + e) * decay[$mu * MAT + e / MAT]);
      }
#endfor
      workgroupBarrier();
      out$m_$n = coopLoadT<cSums>(&products[own_products / PAIR], MAT / PAIR);
      // Before the next one takes its place.
      workgroupBarrier();
#endfor
#endfor
    }
#for j ROW_TILES
#for m HEAD_TILES
    let w$j_$m = coopLoadT<cLeft>(&weights[($mu * MAT * WEIGHT_PITCH + $ju * MAT) / PAIR], WEIGHT_PITCH / PAIR);
#endfor
#for n VALUE_TILES
    let v$j_$n = coopLoadT<cRight>(&rows[($ju * MAT * PITCH + own_values + $nu * MAT) / STAGE], PITCH / STAGE);
#for m HEAD_TILES
    out$m_$n = coopMultiplyAdd(w$j_$m, v$j_$n, out$m_$n);
#endfor
#endfor
#endfor
    first += TILE;
    if (first >= end) { break; }
  }

  let sum = spread_sum(l);
  if (part == 0u && first_of(wid, h)) {
    stats[(wid.z * HEADS + own_head(wid, h)) * p.splits + wid.x] = vec2(m / LOG2_E, sum);
  }
  // Through workgroup memory: matrices stored to a buffer leave as single numbers.
#for m HEAD_TILES
#for n VALUE_TILES
  // Named first: naga 30 would compute what stands in the call after the store.
  let value$m_$n = out$m_$n;
  coopStoreT(value$m_$n, &products[own_products / PAIR], MAT / PAIR);
  workgroupBarrier();
#for i OUT_STORES
  {
    let e = $iu * LANES + lane;
    let head = $mu * MAT + e / QUADS;
    if (e < MATRIX / 4u && first_of(wid, head)) {
      let row = ((wid.z * HEADS + own_head(wid, head)) * p.splits + wid.x) * (KV_LORA / 4u);
      let sums = vec4(two_products(own_products + 4u * e), two_products(own_products + 4u * e + 2u));
      parts[row + own_values / 4u + $nu * QUADS + e % QUADS] = sums;
    }
  }
#endfor
  // Before the next one takes its place.
  workgroupBarrier();
#endfor
#endfor
}
