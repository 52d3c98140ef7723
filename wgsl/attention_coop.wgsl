// Latent attention over a slice of the context by cooperative matrices (f16 in, f32 out): what attention.wgsl
// computes, with queries and weights rounded to f16. Not normalised: attention_merge joins the slices.
//
// Division: grid (splits, head groups, tokens). A workgroup takes HEAD_TILES tiles of MAT heads (the last one begins
// early enough to be full: heads in two tiles are computed twice, alike) and walks its slice in tiles of TILE rows:
// 1. the rows move to workgroup memory, loaded to registers while the tile before is worked on;
// 2. scores: each subgroup multiplies one tile of heads, MAT rows and one of SHARES shares of the columns;
// 3. softmax: SPREAD threads per head, relative to a reference that is raised only where a score exceeds it by SLACK,
//    since matrices in registers can be scaled only through memory;
// 4. values: a subgroup owns VALUE_TILES tiles of MAT columns of all its heads, in registers.
// Bound by: the cache, read once per head group; where slices are short, the latency of one tile.
enable f16;
enable wgpu_cooperative_matrix;
struct Params {
  pos: u32,         // of the first token
  splits: u32,
  split_rows: u32,
  scale: f32,
}
@group(0) @binding(0) var<storage, read> q_lat: array<vec4<f32>>;         // (tokens, HEADS, KV_LORA / 4)
@group(0) @binding(1) var<storage, read> q_pe: array<vec4<f32>>;          // (tokens, HEADS, ROPE / 4)
@group(0) @binding(2) var<storage, read> cache: array<vec4<f16>>;         // (n_ctx, (KV_LORA + ROPE) / 4)
@group(0) @binding(3) var<storage, read_write> parts: array<vec4<f32>>;   // (tokens, HEADS, splits, KV_LORA / 4)
@group(0) @binding(4) var<storage, read_write> stats: array<vec2<f32>>;   // (tokens, HEADS, splits) of (max, sum)
#import params
#import MATRICES as c

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK: f16 ends at 2^16.
const SLACK = 8.0;
const CACHE_ROW = (KV_LORA + ROPE) / 4u;
// A row in workgroup memory, one vec4<u32> longer: 8 rows lie in different banks.
const PITCH = CACHE_ROW + 2u;
const TILE = ROW_TILES * MAT;
const HEADS_HERE = HEAD_TILES * MAT;
const MATRIX = MAT * MAT;
const SPREAD = WG / HEADS_HERE;
const ROWS_PER_THREAD = TILE / SPREAD;
const WEIGHT_PITCH = TILE + 8u;
// Sums leave OUT_TILES matrices of columns at once.
const OUT_COLUMNS = OUT_TILES * MAT / 4u;
const OUT_PITCH = OUT_TILES * MAT + 4u;

var<workgroup> rows: array<vec4<f16>, max(TILE, HEADS_HERE) * PITCH>;   // (row) of the cache; before, (head) of the queries
// (subgroup, head of a tile, row of a tile); in the end (subgroup, head of a tile, column)
var<workgroup> products: array<f32, WG / LANES * MAT * OUT_PITCH>;
var<workgroup> weights: array<f16, HEADS_HERE * WEIGHT_PITCH>;          // (head, row)
var<workgroup> decay: array<f32, HEADS_HERE>;                           // of what earlier tiles summed up
// Whether a tile raised a reference. Sixteen bytes, as the size of every array here is a multiple of: drivers place one behind
// the other, and matrices are loaded from multiples of 16 bytes only.
var<workgroup> raised: vec4<u32>;

// Head h of the workgroup, among those of all tokens.
fn own_head(wid: vec3<u32>, h: u32) -> u32 {
  return wid.z * HEADS + min(wid.y * HEADS_HERE + (h & ~(MAT - 1u)), HEADS - MAT) + (h & (MAT - 1u));
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

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let token = wid.z;
  let begin = wid.x * p.split_rows;
  let end = min(begin + p.split_rows, p.pos + token + 1u);
  // Rows beyond the end are never read: what lies there may not even be a number.
  let last = max(end, 1u) * CACHE_ROW - 1u;
#for i ROW_LOADS
  var next$i = cache[min(begin * CACHE_ROW + $iu * WG + t, last)];
#endfor

  if (t == 0u) { raised = vec4(0u); }
  // The first head of each tile.
#for m HEAD_TILES
  let head$m = min((wid.y * HEAD_TILES + $mu) * MAT, HEADS - MAT);
#endfor
  // All asked for before the first is used.
#for i LATENT_LOADS
  let q_row$i = ($iu * WG + t) / (KV_LORA / 4u);
  let q_column$i = ($iu * WG + t) % (KV_LORA / 4u);
  let q$i = q_lat[own_head(wid, q_row$i) * (KV_LORA / 4u) + q_column$i];
#endfor
#for i PE_LOADS
  let pe_row$i = ($iu * WG + t) / (ROPE / 4u);
  let pe_column$i = ($iu * WG + t) % (ROPE / 4u);
  let pe$i = q_pe[own_head(wid, pe_row$i) * (ROPE / 4u) + pe_column$i];
#endfor
#for i LATENT_LOADS
  rows[q_row$i * PITCH + q_column$i] = vec4<f16>(q$i * (p.scale * LOG2_E));
#endfor
#for i PE_LOADS
  rows[pe_row$i * PITCH + KV_LORA / 4u + pe_column$i] = vec4<f16>(pe$i * (p.scale * LOG2_E));
#endfor
  workgroupBarrier();
  // The device is one whose subgroups all have LANES lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let own_products = group * MATRIX;
  let share = (group / (HEAD_TILES * ROW_TILES)) * (STEPS * (MAT / 4u));
  let own_heads = (group % HEAD_TILES) * MAT;
  let own_rows = ((group / HEAD_TILES) % ROW_TILES) * MAT;
#for k STEPS
  let left$k = coopLoadT<cLeft>(&rows[own_heads * PITCH + share + $ku * (MAT / 4u)], PITCH);
#endfor

#for m HEAD_TILES
#for n VALUE_TILES
  var out$m_$n: cSums;
#endfor
#endfor
  let own_values = group * (VALUE_TILES * (MAT / 4u));
  // In the softmax.
  let h = t / SPREAD;
  let part = t % SPREAD;
  var m = LOWEST;     // what the weights of head h are relative to, as a power of 2
  var l = 0.0;        // this thread's part of the sum of weights

  var first = begin;
  loop {
    if (first >= end) { break; }
    workgroupBarrier();
#for i ROW_LOADS
    {
      let e = $iu * WG + t;
      rows[e + (e / CACHE_ROW) * (PITCH - CACHE_ROW)] = next$i;
    }
#endfor
    workgroupBarrier();
    // A tile that does not exist loads the last value of the slice, from the first-level cache.
#for i ROW_LOADS
    next$i = cache[min((first + TILE) * CACHE_ROW + $iu * WG + t, last)];
#endfor

    var product: cSums;
#for k STEPS
    let k$k = coopLoad<cRight>(&rows[own_rows * PITCH + share + $ku * (MAT / 4u)], PITCH);
    product = coopMultiplyAdd(left$k, k$k, product);
#endfor
    coopStoreT(product, &products[own_products], MAT);
    workgroupBarrier();

    var best = LOWEST;
#for i THREAD_ROWS
    let r$i = part * ROWS_PER_THREAD + $iu;
    var s$i = 0.0;
#for s SHARES
    s$i += products[((($su * ROW_TILES) + r$i / MAT) * HEAD_TILES + h / MAT) * MATRIX + (h % MAT) * MAT + r$i % MAT];
#endfor
    if (first + r$i >= end) { s$i = LOWEST; }
    best = max(best, s$i);
#endfor
    best = spread_max(best);
    let reference = select(m, best, best > m + SLACK);
    let shrink = exp2(m - reference);
    m = reference;
    l *= shrink;
#for i THREAD_ROWS
    let w$i = f16(exp2(s$i - m));
    weights[h * WEIGHT_PITCH + r$i] = w$i;
    l += f32(w$i);
#endfor
    if (part == 0u) { decay[h] = shrink; }
    if (shrink < 1.0 && first != begin) { raised = vec4(1u); }
    let scaled = workgroupUniformLoad(&raised).x;
    if (t == 0u) { raised = vec4(0u); }
    if (scaled == 1u) {
#for m HEAD_TILES
#for n VALUE_TILES
      coopStoreT(out$m_$n, &products[own_products], MAT);
      workgroupBarrier();
#for i MATRIX_LOADS
      products[own_products + $iu * LANES + lane] *= decay[$mu * MAT + ($iu * LANES + lane) / MAT];
#endfor
      workgroupBarrier();
      out$m_$n = coopLoadT<cSums>(&products[own_products], MAT);
      // Before the next one takes its place.
      workgroupBarrier();
#endfor
#endfor
    }
#for j ROW_TILES
#for m HEAD_TILES
    let w$j_$m = coopLoadT<cLeft>(&weights[$mu * MAT * WEIGHT_PITCH + $ju * MAT], WEIGHT_PITCH);
#endfor
#for n VALUE_TILES
    let v$j_$n = coopLoadT<cRight>(&rows[$ju * MAT * PITCH + own_values + $nu * (MAT / 4u)], PITCH);
#for m HEAD_TILES
    out$m_$n = coopMultiplyAdd(w$j_$m, v$j_$n, out$m_$n);
#endfor
#endfor
#endfor
    first += TILE;
  }

  let sum = spread_sum(l);
  if (part == 0u) {
    stats[own_head(wid, h) * p.splits + wid.x] = vec2(m / LOG2_E, sum);
  }
  // Through workgroup memory: matrices stored to a buffer leave as single numbers.
  let own_out = group * (MAT * OUT_PITCH);
#for m HEAD_TILES
#for n VALUE_TILES
  // Named first: naga 30 would compute what stands in the call after the store.
  let value$m_$n = out$m_$n;
  coopStoreT(value$m_$n, &products[own_out + ($nu % OUT_TILES) * MAT], OUT_PITCH);
  if ($nu % OUT_TILES == OUT_TILES - 1u) {
    workgroupBarrier();
#for i OUT_STORES
    {
      let e = $iu * LANES + lane;
      let row = ((wid.z * HEADS + head$m + e / OUT_COLUMNS) * p.splits + wid.x) * (KV_LORA / 4u);
      let begin_out = own_out + e / OUT_COLUMNS * OUT_PITCH + e % OUT_COLUMNS * 4u;
      parts[row + own_values + $nu / OUT_TILES * OUT_COLUMNS + e % OUT_COLUMNS] = vec4(products[begin_out], products[begin_out + 1u], products[begin_out + 2u], products[begin_out + 3u]);
    }
#endfor
    workgroupBarrier();
  }
#endfor
#endfor
}
