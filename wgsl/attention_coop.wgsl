// Computes what attention.wgsl does, by cooperative matrices (MAT x MAT): queries and weights are rounded to f16, sums are in f32.
//
// Division: grid (slices, groups of HEADS_HERE queries, tokens). A query is that of one head of a token. Tokens of a sequence that follow
// each other may share workgroups (shared/own_slice.wgsl), because a group of HEADS_HERE is not full with the heads of one token. A workgroup
// takes HEAD_TILES tiles of MAT queries. The last tile begins early enough to be full, so that some queries are computed twice. The first tile
// that has a query writes it. A workgroup walks its slice in tiles of TILE rows:
// 1. Rows: they move to workgroup memory from registers, to which they are loaded while the tile before is computed.
// 2. Scores: a subgroup multiplies one tile of heads by MAT rows, over one of SHARES shares of the columns.
// 3. Softmax: SPREAD threads per head. Weights are relative to a reference, which rises only where a score exceeds it by SLACK, because
//    matrices in registers can only be scaled through memory.
// 4. Values: a subgroup keeps the sums of VALUE_TILES * MAT columns of all heads of the workgroup in registers.
// Bound by: the bytes of the KV cache, read once per group of heads; with few workgroups the steps 2 to 4, one after the other.
enable f16;
enable wgpu_cooperative_matrix;
#number HEADS KV_LORA ROPE WG  // query heads, width of a latent, rotated values of a head, threads of a workgroup
#number LANES MAT HEAD_TILES SHARES  // threads of a subgroup, rows of a matrix, tiles of MAT queries, shares of the columns
#number VALUE_TILES ROW_PASSES  // tiles of MAT columns of a subgroup, rows that a thread loads for
#number ROW_LOADS  // vectors of a row's latent that a thread loads
#number HEAD_PASSES  // heads that a thread loads for
#number LATENT_LOADS PE_LOADS  // quads of a query's latent that a thread loads, of its rotated part
#number STEPS ROW_TILES THREAD_PAIRS  // matrices along a share, tiles of MAT rows, pairs of weights of a thread
#number MATRIX_LOADS OUT_STORES  // pairs of a matrix that a thread moves, vectors of a matrix that a thread writes
#number LOADERS QUERY_LOADERS  // threads that load a row of the cache, of the queries
#import own_slice
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<vec4<f32>> @floats(TOKENS * HEADS * ROPE)          // (tokens, HEADS, ROPE / 4)
// (rows, (KV_LORA + ROPE) / 8) of 8 f16. It is only read. It is declared as written because compilers move loads of read-only data past barriers to
// where they are used, and then a tile waits for all of its bytes.
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#write cache: array<vec4<u32>> @cache(CACHE_ROWS * CACHE_WORDS)   // in Q8_0 (rows, CACHE_WORDS / 8) of 4 words, see shared/cache_codes.wgsl
#import cache_halves
#else
#import word_halves
#write cache: array<vec4<u32>> @cache(CACHE_ROWS * (KV_LORA + ROPE))
#endif
#write slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, slices, KV_LORA / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)
#import MATRICES as c
#import coop_put as rows
#each j ROW_PASSES
#each i ROW_LOADS
#each q HEAD_PASSES
#each l LATENT_LOADS
#each e PE_LOADS
#each k STEPS
#each r ROW_TILES
#each m HEAD_TILES
#each n VALUE_TILES
#each s THREAD_PAIRS
#each h SHARES
#each x MATRIX_LOADS
#each o OUT_STORES

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK, and f16 ends at 2^16. The greater SLACK is, the less often sums are scaled.
const SLACK = 15.0;
#ifdef CODES
const CACHE_ROW = CACHE_WORDS / 8u;
const ROTATED = ROTATED_AT / 4u;   // the vector of a row with which the rotated part begins
const QUADS_OF = 4u;   // quads of values that a vector of the cache has
#else
const CACHE_ROW = (KV_LORA + ROPE) / 8u;
const ROTATED = KV_LORA / 8u;
const QUADS_OF = 2u;
#endif
const_assert ROPE == 8u * LOADERS;
// A row in workgroup memory, padded by 16 bytes so that 8 rows lie in different banks.
const PITCH = KV_LORA + ROPE + 8u;
const TILE = ROW_TILES * MAT;
const HEADS_HERE = HEAD_TILES * MAT;
// Vectors of 4 sums in a row of a matrix, and single sums in a matrix.
const QUADS = MAT / 4u;
const MATRIX = MAT * MAT;
const SPREAD = WG / HEADS_HERE;
const WEIGHT_PITCH = TILE + 8u;
// LOADERS threads load a row, LOADERS vectors at a time. So a thread's addresses differ from its first one by constants.
const AT_ONCE = WG / LOADERS;

// The arrays hold vectors, or scalars for Metal, which loads matrices through pointers to scalars. Indices count scalars in all of them.
var<workgroup> rows: array<Stage, max(TILE, HEADS_HERE) * PITCH / STAGE>;   // (row) of the KV cache; before that (head) of the queries
var<workgroup> products: array<Pair, WG / LANES * MATRIX / PAIR>;           // (subgroup, head, row) of partial scores, or sums
var<workgroup> weights: array<HalfPair, HEADS_HERE * WEIGHT_PITCH / PAIR>;  // (head, row)
var<workgroup> decay: array<f32, HEADS_HERE>;                           // (head), the factor for the sums of earlier tiles
// Whether a tile raised a reference. The size of each variable here is a multiple of 16 bytes, because drivers place one behind the other
// and matrices must be loaded from multiples of 16 bytes.
var<workgroup> raised: vec4<u32>;

// Two sums or weights at once.
#ifdef VECTORS
alias Pair = vec2<f32>;
alias HalfPair = vec2<f16>;
const PAIR = 2u;

fn two_products(at: u32) -> vec2<f32> { return products[at / PAIR]; }

fn put_products(at: u32, v: vec2<f32>) { products[at / PAIR] = v; }

fn put_weights(at: u32, v: vec2<f16>) { weights[at / PAIR] = v; }
#else
alias Pair = f32;
alias HalfPair = f16;
const PAIR = 1u;

fn two_products(at: u32) -> vec2<f32> { return vec2(products[at], products[at + 1u]); }

fn put_products(at: u32, v: vec2<f32>) {
  products[at] = v.x;
  products[at + 1u] = v.y;
}

fn put_weights(at: u32, v: vec2<f16>) {
  weights[at] = v.x;
  weights[at + 1u] = v.y;
}
#endif

// The number of the workgroup's query h among the queries (tokens, HEADS) of its slice.
fn own_query(wid: vec3<u32>, own: Slice, h: u32) -> u32 {
  return min(own.first + wid.y * HEADS_HERE + (h & ~(MAT - 1u)), own.queries - MAT) + (h & (MAT - 1u));
}

// Whether no earlier tile has this query.
fn first_of(wid: vec3<u32>, own: Slice, h: u32) -> bool {
  return own_query(wid, own, h) >= own.first + wid.y * HEADS_HERE + (h & ~(MAT - 1u));
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

// A subgroup's sums: (tile of heads, tile of columns).
alias Sums = array<cSums, HEAD_TILES * VALUE_TILES>;

// Whether neighbouring quads of a vector of the latent take each other's places in workgroup memory. The 16 threads that store at once have the
// vectors of two rows. So their quads lie in different banks.
#ifdef CODES
fn turned(vector: u32) -> u32 { return vector / 4u % 2u; }
#else
fn turned(vector: u32) -> u32 { return vector % 2u; }
#endif

// The number of the quad at place `at`, which is its own inverse.
fn quad_at(at: u32) -> u32 { return at ^ turned(at / QUADS_OF); }

// The values of a quad in the order of workgroup memory, or back. Codes lie there in the order that `apart_halves` gives them.
#ifdef CODES
fn ordered(v: vec4<f32>) -> vec4<f32> { return v.xzyw; }
#else
fn ordered(v: vec4<f32>) -> vec4<f32> { return v; }
#endif

// Moves the queries to workgroup memory, scaled so that scores are exponents of 2. All are requested before the first is used.
fn bring_queries(wid: vec3<u32>, own: Slice, t: u32) {
  let heads = WG / QUERY_LOADERS;   // heads at a time
  let loader = t / QUERY_LOADERS;
  let column = t % QUERY_LOADERS;
  let to = loader * PITCH + column * 4u;
  let head$q = own.token * HEADS + own_query(wid, own, $qu * heads + loader);
  let latent$q_$l = ordered(q_lat[head$q * (KV_LORA / 4u) + quad_at($lu * QUERY_LOADERS + column)]);
  let pe$q_$e = q_pe[head$q * (ROPE / 4u) + $eu * QUERY_LOADERS + column];
  rows_put((to + $qu * (heads * PITCH) + $lu * (QUERY_LOADERS * 4u)) / STAGE, vec4<f16>(latent$q_$l * (p.scale * LOG2_E)));
  rows_put((to + $qu * (heads * PITCH) + KV_LORA + $eu * (QUERY_LOADERS * 4u)) / STAGE, vec4<f16>(pe$q_$e * (p.scale * LOG2_E)));
}

// A thread's vectors of the rows of a tile.
struct Asked {
  latent: array<vec4<u32>, ROW_PASSES * ROW_LOADS>,
#ifdef CODES
  scales: array<u32, ROW_PASSES * ROW_LOADS>,
#endif
  rotated: array<vec4<u32>, ROW_PASSES>,
}

// Requests them. The thread's first row is row `first` of the context. Rows behind the last are never read, because they may hold anything, even
// NaN. The last one is read instead, from the first-level cache.
fn ask(page: u32, last: u32, first: u32, column: u32) -> Asked {
  let row$j = cache_row_at(page, min(first + $ju * AT_ONCE, last)) * CACHE_ROW;
  return Asked(
    array(
      cache[row$j + $iu * LOADERS + column],
    ),
#ifdef CODES
    array(
      cache[row$j + SCALES_AT / 4u + $iu * LOADERS / 16u][($iu * LOADERS + column) / 4u % 4u],
    ),
#endif
    array(
      cache[row$j + ROTATED + column],
    ),
  );
}

// Stores them in workgroup memory. The thread's first row begins at element `to` of `rows`.
fn put(to: u32, loader: u32, column: u32, asked: Asked) {
  let place = (to + column * QUADS_OF * 4u) / STAGE;
  let even = place + turned(column) * (4u / STAGE);
  let odd = place + (turned(column) ^ 1u) * (4u / STAGE);
#ifdef CODES
  let mask = hidden_mask(p.scale);
  let scale$j_$i = half_in(asked.scales[$j * ROW_LOADS + $i], column / 2u);
  put_quads(even, odd, ($ju * AT_ONCE * PITCH + $iu * QUADS_OF * LOADERS * 4u) / STAGE, asked.latent[$j * ROW_LOADS + $i], scale$j_$i, mask);
#else
  put_quads(even, odd, ($ju * AT_ONCE * PITCH + $iu * QUADS_OF * LOADERS * 4u) / STAGE, asked.latent[$j * ROW_LOADS + $i]);
#endif
  // Threads of neighbouring rows store different quads of a vector at once, so that these lie in different banks, too.
  let second = loader % 2u == 1u;
  let rotated = to + KV_LORA + column * 8u;
  rows_put((rotated + $ju * (AT_ONCE * PITCH) + select(0u, 4u, second)) / STAGE, halves_of(select(asked.rotated[$j].xy, asked.rotated[$j].zw, second)));
  rows_put((rotated + $ju * (AT_ONCE * PITCH) + select(4u, 0u, second)) / STAGE, halves_of(select(asked.rotated[$j].zw, asked.rotated[$j].xy, second)));
}

// Stores the quads of a vector. `even` and `odd` are the places of the thread's first two quads, and this vector's places lie `further` on.
#ifdef CODES
fn put_quads(even: u32, odd: u32, further: u32, codes: vec4<u32>, scale: f16, mask: u32) {
  rows_put(even + further, apart_halves(codes.x, scale, mask));
  rows_put(odd + further, apart_halves(codes.y, scale, mask));
  rows_put(even + (further + 8u / STAGE), apart_halves(codes.z, scale, mask));
  rows_put(odd + (further + 8u / STAGE), apart_halves(codes.w, scale, mask));
}
#else
fn put_quads(even: u32, odd: u32, further: u32, values: vec4<u32>) {
  rows_put(even + further, halves_of(values.xy));
  rows_put(odd + further, halves_of(values.zw));
}
#endif

// The scores of head h for rows r and r + 1 of the tile: the sums over the shares of the columns.
fn two_scores(h: u32, r: u32) -> vec2<f32> {
  var sum = vec2(0.0);
  sum += two_products((($hu * ROW_TILES + r / MAT) * HEAD_TILES + h / MAT) * MATRIX + (h % MAT) * MAT + r % MAT);
  return sum;
}

// Sums of tile `m` of heads, multiplied by the decay of their heads. They pass through the subgroup's area of `products`.
fn decayed(t: u32, m: u32, sums: cSums) -> cSums {
  let area = t / LANES * MATRIX;
  let e$x = ($xu * LANES + t % LANES) * 2u;
  coopStoreT(sums, &products[area / PAIR], MAT / PAIR);
  workgroupBarrier();
  put_products(area + e$x, two_products(area + e$x) * decay[m * MAT + e$x / MAT]);
  workgroupBarrier();
  let after = coopLoadT<cSums>(&products[area / PAIR], MAT / PAIR);
  // The next matrix uses the same area.
  workgroupBarrier();
  return after;
}

// The weights of a tile, as matrices: (tile of rows, tile of heads).
alias Weights = array<cLeft, ROW_TILES * HEAD_TILES>;

fn weights_of(t: u32) -> Weights {
  let w$r_$m = coopLoadT<cLeft>(&weights[($mu * MAT * WEIGHT_PITCH + $ru * MAT) / PAIR], WEIGHT_PITCH / PAIR);
  return Weights(
    w$r_$m,
  );
}

// Adds the products of the weights and values. The subgroup's columns begin at `own`.
fn add_values(t: u32, own: u32, by: Weights, sums: ptr<function, Sums>) {
  let v$r_$n = coopLoadT<cRight>(&rows[($ru * MAT * PITCH + own + $nu * MAT) / STAGE], PITCH / STAGE);
  (*sums)[$m * VALUE_TILES + $n] = coopMultiplyAdd(by[$r * HEAD_TILES + $m], v$r_$n, (*sums)[$m * VALUE_TILES + $n]);
}

// Writes sums of tile `m` of heads, for the columns from vector `column` on. They pass through workgroup memory, because a matrix stored to
// a buffer is written in single values.
fn write(wid: vec3<u32>, own: Slice, t: u32, m: u32, column: u32, sums: cSums) {
  let area = t / LANES * MATRIX;
  coopStoreT(sums, &products[area / PAIR], MAT / PAIR);
  workgroupBarrier();
  write_four(wid, own, m, column, area, $ou * LANES + t % LANES);
  // The next matrix uses the same area.
  workgroupBarrier();
}

// Writes vector e of that matrix.
fn write_four(wid: vec3<u32>, own: Slice, m: u32, column: u32, area: u32, e: u32) {
  let head = m * MAT + e / QUADS;
  if (e >= MATRIX / 4u || !first_of(wid, own, head)) { return; }
  let row = (own.place + own_query(wid, own, head) * own.count) * (KV_LORA / 4u);
  slice_sums[row + quad_at(column + e % QUADS)] = ordered(vec4(two_products(area + 4u * e), two_products(area + 4u * e + 2u)));
}

#main
  let own = own_slice(wid);
  let begin = own.begin;
  let end = own.end;
  let last = max(end, 1u) - 1u;
  let loader = t / LOADERS;
  let column = t % LOADERS;
  let to = loader * PITCH;
  var asked = ask(own.page, last, begin + loader, column);
  if (t == 0u) { raised = vec4(0u); }
  bring_queries(wid, own, t);
  workgroupBarrier();
  // This kernel runs on devices whose subgroups all have LANES lanes.
  let group = t / LANES;
  let own_products = group * MATRIX;
  let share = (group / (HEAD_TILES * ROW_TILES)) * (STEPS * MAT);
  let own_heads = (group % HEAD_TILES) * MAT;
  let own_rows = ((group / HEAD_TILES) % ROW_TILES) * MAT;
  let own_values = group * (VALUE_TILES * MAT);
  let query$k = coopLoadT<cLeft>(&rows[(own_heads * PITCH + share + $ku * MAT) / STAGE], PITCH / STAGE);
  var sums: Sums;
  // In the softmax: the thread's query, and its number among the threads of that query.
  let h = t / SPREAD;
  let along = t % SPREAD;
  // Later rows belong to later tokens of those that share the workgroup.
  let seen = min(end, position(own.token) + own_query(wid, own, h) / HEADS + 1u);
  var m = LOWEST;     // the reference of head h, an exponent of 2
  var l = 0.0;        // this thread's share of the sum of weights

  var first = begin;
  loop {
    // This loop ends at a tile that raises a reference. If it scaled the sums itself, compilers would move them between registers for every tile.
    loop {
      // 1. The rows.
      workgroupBarrier();
      put(to, loader, column, asked);
      if (t == 0u) { raised = vec4(0u); }
      workgroupBarrier();
      // The barriers keep these loads here. Before the stores they would delay them, and after the scores they would come late.
      asked = ask(own.page, last, first + TILE + loader, column);

      // 2. The scores.
      var product: cSums;
      let key$k = coopLoad<cRight>(&rows[(own_rows * PITCH + share + $ku * MAT) / STAGE], PITCH / STAGE); product = coopMultiplyAdd(query$k, key$k, product);
      coopStoreT(product, &products[own_products / PAIR], MAT / PAIR);
      workgroupBarrier();

      // 3. The softmax.
      var best = LOWEST;
      let r$s = 2u * (along * THREAD_PAIRS + $su);
      let score$s = select(vec2(LOWEST), two_scores(h, r$s), vec2(first + r$s, first + r$s + 1u) < vec2(seen));
      best = max(best, max(score$s.x, score$s.y));
      var shrink = 1.0;
      if (subgroupAny(best > m + SLACK)) {
        best = spread_max(best);
        let reference = select(m, best, best > m + SLACK);
        shrink = exp2(m - reference);
        m = reference;
        l *= shrink;
        if (first != begin) { raised = vec4(1u); }
      }
      let weight$s = vec2<f16>(exp2(score$s - m));
      put_weights(h * WEIGHT_PITCH + r$s, weight$s);
      l += f32(weight$s.x) + f32(weight$s.y);
      if (along == 0u) { decay[h] = shrink; }
      workgroupBarrier();
      // Loaded before it is known whether they are used here, because both take as long.
      let by = weights_of(t);
      if (raised.x == 1u) { break; }

      // 4. The values.
      add_values(t, own_values, by, &sums);
      first += TILE;
      if (first >= end) { break; }
    }
    if (first >= end) { break; }
    sums[$m * VALUE_TILES + $n] = decayed(t, $mu, sums[$m * VALUE_TILES + $n]);
    add_values(t, own_values, weights_of(t), &sums);
    first += TILE;
    if (first >= end) { break; }
  }

  let sum = spread_sum(l);
  if (along == 0u && first_of(wid, own, h)) {
    stats[own.place + own_query(wid, own, h) * own.count] = vec2(m / LOG2_E, sum);
  }
  write(wid, own, t, $mu, own_values / 4u + $nu * QUADS, sums[$m * VALUE_TILES + $n]);
}
