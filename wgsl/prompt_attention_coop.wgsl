// Computes what prompt_attention.wgsl does, by cooperative matrices (MAT x MAT): keys, values, queries and weights are rounded to f16, sums
// are in f32.
// With GROUPED, keys and values are those of the cache, which GROUP query heads share. Its whole context is one block, and queries and keys
// come rotated.
//
// Division: grid (heads, tiles of TOKENS tokens). Tiles with the most rows to see come first. A subgroup has MAT tokens and keeps their
// queries and sums in registers. A workgroup takes the block in tiles of ROWS rows, none of which reaches beyond a page of the
// cache. In a turn a subgroup
// 1. multiplies the weights of a tile, from its area of `weights`, by the values of that tile;
// 2. computes the weights of the next tile from the scores in its area of `scores`, by SPREAD threads per token. Weights are relative to
//    a reference, which rises only where a score exceeds it by SLACK, because matrices in registers can only be scaled through memory;
// 3. computes the scores of the tile after that.
// Workgroup memory has two tiles of keys and two of values. One is read while the other is stored, so that a turn needs a single barrier.
// Bound by: the matrix units, 2 * (NOPE + ROPE + V) flops per token, row and head; workgroup memory, from which every subgroup loads all
// keys and values; registers, which allow few of those loads in flight.
enable f16;
enable wgpu_cooperative_matrix;
#number HEADS NOPE ROPE  // query heads, values of a head that are not rotated here, values that are, which are 0 with GROUPED
#number V WG LANES MAT  // width of a value, threads of a workgroup, threads of a subgroup, rows of a matrix
#number ROW_PASSES KEY_LOADS  // rows that a thread loads for, vectors of keys that a thread loads
#number ROPE_LOADS VALUE_LOADS  // vectors of rotated keys that a thread loads, vectors of values that a thread loads
#number ROW_TILES HEAD_STEPS VALUE_TILES  // tiles of MAT rows, matrices along a head, tiles of MAT columns of a subgroup
#number QUERY_LOADS GROUPS QUERY_COLUMNS  // vectors of queries that a thread loads, subgroups of a workgroup, columns of a run of queries
#number LOADERS QUERY_RUNS QUERY_STEPS  // threads that load a row, runs of a head, matrices along a run
#word pos: u32      // of the first token
#word tokens: u32
#ifndef GROUPED
#word begin: u32    // first context row of the block
#word rows: u32     // of the block
#word ends: u32     // bit 0: this is the first block, bit 1: the last
#endif
#word scale: f32
#each j ROW_PASSES
#each i KEY_LOADS
#each o ROPE_LOADS
#each v VALUE_LOADS
#each r ROW_TILES
#each k HEAD_STEPS
#each n VALUE_TILES
#each e SQUARE_FEWS
#each a QUERY_LOADS
#import coop_put as keys
#import coop_put as rows
#import coop_few as scores
#import coop_softmax
#read q: array<vec4<f32>> @floats(p.tokens * HEADS * (NOPE + ROPE))    // (tokens, HEADS, (NOPE + ROPE) / 4)
#ifdef GROUPED
#number GROUP  // query heads that share a key head
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#read kv: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)            // (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#import cache_halves
#else
#read kv: array<vec4<f16>> @cache(CACHE_ROWS * HEADS / GROUP * (NOPE + V))   // (rows, KEY_HEADS * (NOPE + V) / 4)
#endif
#else
#number KV_LORA  // width of a latent
#read angles: array<vec4<f32>> @floats(CONTEXT * ROPE)                 // (n_ctx, ROPE / 4) of (cos, sin, cos, sin)
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#read cache: array<vec4<f16>> @cache(CACHE_ROWS * CACHE_WORDS)         // (rows, CACHE_WORDS / 4) of 4 f16, of which the rotated ones are read
#import cache_codes
#else
#read cache: array<vec4<f16>> @cache(CACHE_ROWS * (KV_LORA + ROPE))    // (rows, (KV_LORA + ROPE) / 4)
#endif
#read kv: array<vec4<f16>> @halves(p.rows * HEADS * (NOPE + V))        // (block, HEADS * (NOPE + V) / 4)
#endif
#write values: array<Few> @floats(p.tokens * HEADS * V)                // (tokens, HEADS, V / FEW)
#ifndef GROUPED
#write stats: array<vec2<f32>> @floats(p.tokens * HEADS * 2)           // (tokens, HEADS) of (reference, sum)
#endif
#import MATRICES as c
#import rotate_pairs
#import own_pages

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK, and f16 ends at 2^16.
const SLACK = 15.0;
const MOST = 65504.0;   // the largest f16
const TOKENS = GROUPS * MAT;
const ROWS = ROW_TILES * MAT;
#ifdef GROUPED
const KEY_HEADS = HEADS / GROUP;
#else
const KEY_HEADS = HEADS;
#ifdef CODES
const CACHE_ROW = CACHE_WORDS / 4u;
#else
const CACHE_ROW = (KV_LORA + ROPE) / 4u;
#endif
#endif
#ifdef KV_CODES
const KV_ROW = CACHE_WORDS / 4u;
#else
const KV_ROW = KEY_HEADS * (NOPE + V) / 4u;
#endif
// Rows in workgroup memory are padded by 16 bytes, so that 8 of them lie in different banks.
const KEY_PITCH = NOPE + ROPE + 8u;
const VALUE_PITCH = V + 8u;
const QUERY_PITCH = QUERY_COLUMNS + 8u;
const SCORE_PITCH = ROWS + 4u;
const KEYS = ROWS * KEY_PITCH;
const VALUES = ROWS * VALUE_PITCH;
const SPREAD = LANES / MAT;
// LOADERS threads load a row, LOADERS vectors at a time, and the workgroup so many rows at once.
const AT_ONCE = WG / LOADERS;

var<workgroup> keys: array<Stage, 2u * KEYS / STAGE>;                        // (tile, row, column); before that (subgroup) of queries
var<workgroup> rows: array<Stage, 2u * VALUES / STAGE>;                      // (tile, row, column) of values
var<workgroup> scores: array<Sum, GROUPS * MAT * SCORE_PITCH / SUM>;         // (token, row)
var<workgroup> weights: array<Stage, GROUPS * MAT * ROWS / STAGE>;           // (token, row)

// A subgroup's queries and sums, a matrix per MAT columns.
alias Queries = array<cLeft, HEAD_STEPS>;
alias Sums = array<cSums, VALUE_TILES>;

// The share of a tile that a thread moves: row `row` of every AT_ONCE rows. In a row of `kv` or the KV cache its first vectors are `kv` of the
// head's keys, `rope` of the rotated keys, which all heads share, and `value` of the values. Behind `last_row` it loads that row again. With
// codes a row begins at element row * KV_ROW + further.
#ifdef KV_CODES
struct Mover { row: u32, last_row: u32, kv: u32, further: u32, value: u32 }

// Elements of 8 codes, the first of them vector `own` of a row, then the next ones LOADERS further on. Behind the codes of each are two words
// with the scale of their block.
struct HeadKeys { own: u32, codes: array<vec4<u32>, ROW_PASSES * KEY_LOADS> }
struct Values { own: u32, codes: array<vec4<u32>, ROW_PASSES * VALUE_LOADS> }

// Vector `at` of the row that begins at element `row`, and the words with its scale.
fn codes_at(row: u32, at: u32) -> vec4<u32> { return vec4(kv[row + at], kv[row + SCALES_AT / 2u + at / 16u]); }

#ifdef pages
// The share in the page of the tile from row `first` on. All rows of the tile are in one page.
fn in_page(by: Mover, first: u32) -> Mover {
  return Mover(by.row, by.last_row, by.kv, moved(min(first, by.last_row)) * KV_ROW, by.value);
}
#endif

// Loads a thread's part of the keys of the tile that begins at row `first`.
fn ask_keys(by: Mover, first: u32) -> HeadKeys {
  let row$j = min(first + $ju * AT_ONCE + by.row, by.last_row) * KV_ROW + by.further;
  return HeadKeys(by.kv, array(
    codes_at(row$j, by.kv + $iu * LOADERS),
  ));
}

fn store_keys(to: u32, asked: HeadKeys) {
  let scale$j_$i = scale_half(asked.codes[$j * KEY_LOADS + $i].zw, (asked.own + $iu * LOADERS) / 4u);
  keys_put((to + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 8u)) / STAGE, four_halves(asked.codes[$j * KEY_LOADS + $i].x, scale$j_$i));
  keys_put((to + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 8u + 4u)) / STAGE, four_halves(asked.codes[$j * KEY_LOADS + $i].y, scale$j_$i));
}

// Loads a thread's part of the values of the tile that begins at row `first`.
fn ask_values(by: Mover, first: u32) -> Values {
  let row$j = min(first + $ju * AT_ONCE + by.row, by.last_row) * KV_ROW + by.further;
  return Values(by.value, array(
    codes_at(row$j, by.value + $vu * LOADERS),
  ));
}

fn store_values(to: u32, asked: Values) {
  let scale$j_$v = scale_half(asked.codes[$j * VALUE_LOADS + $v].zw, (asked.own + $vu * LOADERS) / 4u);
  rows_put((to + ($ju * AT_ONCE * VALUE_PITCH + $vu * LOADERS * 8u)) / STAGE, four_halves(asked.codes[$j * VALUE_LOADS + $v].x, scale$j_$v));
  rows_put((to + ($ju * AT_ONCE * VALUE_PITCH + $vu * LOADERS * 8u + 4u)) / STAGE, four_halves(asked.codes[$j * VALUE_LOADS + $v].y, scale$j_$v));
}
#else
alias HeadKeys = array<vec4<f16>, ROW_PASSES * KEY_LOADS>;
alias Values = array<vec4<f16>, ROW_PASSES * VALUE_LOADS>;

#ifdef GROUPED
struct Mover { row: u32, last_row: u32, kv: u32, value: u32 }

#ifdef pages
// The share with the keys and values of the tile from row `first` on where its page has them. All rows of the tile are in one page.
fn in_page(by: Mover, first: u32) -> Mover {
  let further = moved(min(first, by.last_row)) * KV_ROW;
  return Mover(by.row, by.last_row, by.kv + further, by.value + further);
}
#endif

// Loads a thread's part of the keys of the tile that begins at row `first`.
fn ask_keys(by: Mover, first: u32) -> HeadKeys {
  let row$j = min(first + $ju * AT_ONCE + by.row, by.last_row);
  return HeadKeys(
    kv[row$j * KV_ROW + by.kv + $iu * LOADERS],
  );
}

fn store_keys(to: u32, asked: HeadKeys) {
  keys_put((to + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 4u)) / STAGE, asked[$j * KEY_LOADS + $i]);
}
#else
struct Mover { row: u32, last_row: u32, kv: u32, rope: u32, value: u32 }

alias RopeKeys = array<vec4<f16>, ROW_PASSES * ROPE_LOADS>;
struct Keys { own: HeadKeys, rope: RopeKeys }

#ifdef pages
// The share with the rotated keys of the tile from row `first` on where its page has them. All rows of the tile are in one page.
fn in_page(by: Mover, first: u32) -> Mover {
  let rope = by.rope + moved(p.begin + min(first, by.last_row)) * CACHE_ROW;
  return Mover(by.row, by.last_row, by.kv, rope, by.value);
}
#endif

// Loads a thread's part of the keys of the tile that begins at row `first`.
fn ask_keys(by: Mover, first: u32) -> Keys {
  let row$j = min(first + $ju * AT_ONCE + by.row, by.last_row);
  return Keys(
    HeadKeys(
      kv[row$j * KV_ROW + by.kv + $iu * LOADERS],
    ),
    RopeKeys(
      cache[row$j * CACHE_ROW + by.rope + $ou * LOADERS],
    ),
  );
}

fn store_keys(to: u32, asked: Keys) {
  keys_put((to + ($ju * AT_ONCE * KEY_PITCH + $iu * LOADERS * 4u)) / STAGE, asked.own[$j * KEY_LOADS + $i]);
  keys_put((to + ($ju * AT_ONCE * KEY_PITCH + NOPE + $ou * LOADERS * 4u)) / STAGE, asked.rope[$j * ROPE_LOADS + $o]);
}
#endif

// Loads a thread's part of the values of the tile that begins at row `first`.
fn ask_values(by: Mover, first: u32) -> Values {
  let row$j = min(first + $ju * AT_ONCE + by.row, by.last_row);
  return Values(
    kv[row$j * KV_ROW + by.value + $vu * LOADERS],
  );
}

fn store_values(to: u32, asked: Values) {
  rows_put((to + ($ju * AT_ONCE * VALUE_PITCH + $vu * LOADERS * 4u)) / STAGE, asked[$j * VALUE_LOADS + $v]);
}
#endif

// Moves run number `run` of QUERY_COLUMNS columns of a subgroup's queries to its own area of `keys`. It rotates the columns of the rotated
// part, and scales all so that scores are exponents of 2.
fn bring_queries(t: u32, head: u32, first_token: u32, run: u32) {
  let lane = t % LANES;
  let query$a = ($au * LANES + lane) / (QUERY_COLUMNS / 4u);
  let in_run$a = ($au * LANES + lane) % (QUERY_COLUMNS / 4u);
  let column$a = run * (QUERY_COLUMNS / 4u) + in_run$a;
  let token$a = min(first_token + t / LANES * MAT + query$a, p.tokens - 1u);
  var loaded$a = q[(token$a * HEADS + head) * ((NOPE + ROPE) / 4u) + column$a];
#ifndef GROUPED
  if (run * QUERY_COLUMNS >= NOPE) { loaded$a = rotate_pairs(loaded$a, angles[(p.pos + token$a) * (ROPE / 4u) + column$a - NOPE / 4u]); }
#endif
  let to = t / LANES * (MAT * QUERY_PITCH);
  keys_put((to + query$a * QUERY_PITCH + in_run$a * 4u) / STAGE, halved_query(loaded$a));
}

fn halved_query(v: vec4<f32>) -> vec4<f16> {
  return vec4<f16>(clamp(v * (p.scale * LOG2_E), vec4(-MOST), vec4(MOST)));
}

// Computes the scores of the tile whose keys begin at `tile`, and stores them in the subgroup's area of `scores`, at `own`.
fn make_scores(t: u32, tile: u32, own: u32, queries: ptr<function, Queries>) {
  var score$r: cSums;
  let key$r_$k = coopLoad<cRight>(&keys[(tile + $ru * MAT * KEY_PITCH + $ku * MAT) / STAGE], KEY_PITCH / STAGE); score$r = coopMultiplyAdd((*queries)[$k], key$r_$k, score$r);
  // Loaded to names first: naga 30 would evaluate the arguments of the call after the store.
  let scored$r = score$r;
  coopStoreT(scored$r, &scores[(own + $ru * MAT) / SUM], SCORE_PITCH / SUM);
}

// Adds the products of the weights and the values that begin at `tile`.
fn add_values(t: u32, tile: u32, sums: ptr<function, Sums>) {
  let weights$r = coopLoadT<cLeft>(&weights[(t / LANES * MAT * ROWS + $ru * MAT) / STAGE], ROWS / STAGE);
  let v$r_$n = coopLoadT<cRight>(&rows[(tile + $ru * MAT * VALUE_PITCH + $nu * MAT) / STAGE], VALUE_PITCH / STAGE); (*sums)[$n] = coopMultiplyAdd(weights$r, v$r_$n, (*sums)[$n]);
}

// Loads a matrix of sums that an earlier block left in `values`, from element `row` on, and scales it, in the subgroup's area of `scores`.
fn sums_before(t: u32, own: u32, mine: u32, row: u32, scale: f32) -> cSums {
  scores_put(mine, $eu * FURTHER, values[row + $eu * SPREAD] * scale);
  own_barrier();
  let sums = coopLoadT<cSums>(&scores[own / SUM], SCORE_PITCH / SUM);
  own_barrier();
  return sums;
}

// Scales a matrix of sums and writes it to `values`, from element `row` on.
fn write_sums(t: u32, own: u32, mine: u32, sums: cSums, scale: f32, row: u32, writes: bool) {
  coopStoreT(sums, &scores[own / SUM], SCORE_PITCH / SUM);
  own_barrier();
  let done$e = scores_few(mine, $eu * FURTHER) * scale;
  if (writes) { values[row + $eu * SPREAD] = done$e; }
  own_barrier();
}

#main
  // This kernel runs on devices whose subgroups all have LANES lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let head = wid.x;
  let first_token = ((p.tokens - 1u) / TOKENS - wid.y) * TOKENS;
  // The rows of the block that the last of these tokens sees.
  let seen = p.pos + min(first_token + TOKENS, p.tokens);
#ifdef GROUPED
  let end = seen;
  let key_head = head / GROUP;
#else
  let key_head = head;
  let end = min(p.rows, max(seen, p.begin) - p.begin);
#endif

  // Run by run through the subgroup's area. Lines are repeated instead of looped over, because only constants may index the queries.
  var queries: Queries;
  let own_queries = group * (MAT * QUERY_PITCH);
#for c QUERY_RUNS
  bring_queries(t, head, first_token, $cu);
  own_barrier();
#for b QUERY_STEPS
  queries[$c * QUERY_STEPS + $b] = coopLoadT<cLeft>(&keys[(own_queries + $bu * MAT) / STAGE], QUERY_PITCH / STAGE);
#endfor
  own_barrier();
#endfor

  // In the softmax a thread has one token, and FEW of every SPREAD * FEW rows. It has columns of sums in memory in the same way.
  let own = group * (MAT * SCORE_PITCH);
  let along = lane % SPREAD;
  let mine = (own + lane / SPREAD * SCORE_PITCH + along * FEW) / SUM;
  let own_weights = (group * MAT + lane / SPREAD) * ROWS + along * FEW;
  let token = first_token + t / SPREAD;
  let at = min(token, p.tokens - 1u) * HEADS + head;
  let value_row = (at * V + along * FEW) / FEW;
  // The rows of the block that this token sees.
#ifdef GROUPED
  let visible = min(end, p.pos + token + 1u);
#else
  let visible = min(end, max(p.pos + token + 1u, p.begin) - p.begin);
#endif
  var m = LOWEST;   // the reference of the weights, an exponent of 2
  var l = 0.0;      // this thread's share of the sum of weights
  var sums: Sums;
#ifndef GROUPED
  let fresh = (p.ends & 1u) != 0u;
  if (!fresh) {
    let before = stats[at];
    m = before.x;
    if (along == 0u) { l = before.y; }
  }
#endif

  // Rows behind the end are never read, because they may hold anything, even NaN.
  let loaded = t % LOADERS;
#ifdef KV_CODES
  let by = Mover(t / LOADERS, max(end, 1u) - 1u, key_head * (NOPE / 8u) + loaded, 0u, (KEY_HEADS * NOPE + key_head * V) / 8u + loaded);
  let key_to = by.row * KEY_PITCH + loaded * 8u;
  let value_to = by.row * VALUE_PITCH + loaded * 8u;
#else
  let by = Mover(
    t / LOADERS,
    max(end, 1u) - 1u,
    key_head * (NOPE / 4u) + loaded,
#ifndef GROUPED
#ifdef CODES
    p.begin * CACHE_ROW + ROTATED_AT / 2u + loaded,
#else
    p.begin * CACHE_ROW + KV_LORA / 4u + loaded,
#endif
#endif
    (KEY_HEADS * NOPE + key_head * V) / 4u + loaded,
  );
  let key_to = by.row * KEY_PITCH + loaded * 4u;
  let value_to = by.row * VALUE_PITCH + loaded * 4u;
#endif
  // Without pages the loop has no code for them, which made it slower ("The same speed after work on the code" in benches/notes.md).
#ifdef pages
  let first_keys = ask_keys(in_page(by, 0u), 0u);
  let second_keys = ask_keys(in_page(by, ROWS), ROWS);
#else
  let first_keys = ask_keys(by, 0u);
  let second_keys = ask_keys(by, ROWS);
#endif
#ifdef PAGED_VALUES
  let first_values = ask_values(in_page(by, 0u), 0u);
  var next_value = in_page(by, ROWS);
#else
  let first_values = ask_values(by, 0u);
#endif
  // All subgroups have taken their queries out of `keys`.
  workgroupBarrier();
  store_keys(key_to, first_keys);
  store_keys(key_to + KEYS, second_keys);
  store_values(value_to, first_values);
#ifdef pages
  let third_keys = ask_keys(in_page(by, 2u * ROWS), 2u * ROWS);
  // The page of a tile is looked up a turn before its keys are loaded, so that these loads wait for no other.
  var next = in_page(by, 3u * ROWS);
#else
  let third_keys = ask_keys(by, 2u * ROWS);
#endif
  workgroupBarrier();
  make_scores(t, 0u, own, &queries);
  own_barrier();
  // The number of rows that the token sees, from the lane's first one on.
  let first_scores = take_scores(mine, i32(visible) - i32(along * FEW));
  let first_best = spread_max(highest_of(first_scores));
  let reference = select(m, first_best, first_best > m + SLACK);
  let shrink = exp2(m - reference);
  m = reference;
  l = make_weights(own_weights, first_scores, m, l * shrink);
  own_barrier();
#ifndef GROUPED
  if (!fresh) {
    sums[$n] = sums_before(t, own, mine, value_row + $nu * (MAT / FEW), shrink);
  }
#endif
  make_scores(t, KEYS, own, &queries);
  workgroupBarrier();
  store_keys(key_to, third_keys);
  workgroupBarrier();

  var first = 0u;
  var now = 0u;   // which of the two tiles in memory is read
  loop {
    if (first >= end) { break; }
    // Keys are loaded three tiles ahead, values one.
#ifdef pages
    let next_keys = ask_keys(next, first + 3u * ROWS);
#else
    let next_keys = ask_keys(by, first + 3u * ROWS);
#endif
#ifdef PAGED_VALUES
    let next_values = ask_values(next_value, first + ROWS);
    next_value = in_page(by, first + 2u * ROWS);
#else
    let next_values = ask_values(by, first + ROWS);
#endif
#ifdef pages
    next = in_page(by, first + 4u * ROWS);
#endif
    add_values(t, now * VALUES, &sums);
    let own_scores = take_scores(mine, i32(visible) - i32(first + ROWS + along * FEW));
    var best = highest_of(own_scores);
    // A loop that runs at most once instead of a branch. In a branch naga refuses matrices unless it sees that all lanes agree, and compilers
    // would move the loads above behind it, to where they are used.
    loop {
      if (!own_any(best > m + SLACK)) { break; }
      best = spread_max(best);
      let reference = select(m, best, best > m + SLACK);
      let shrink = exp2(m - reference);
      m = reference;
      l *= shrink;
      own_barrier();
      sums[$n] = scaled(t, own, mine, sums[$n], shrink);
    }
    own_barrier();
    l = make_weights(own_weights, own_scores, m, l);
    make_scores(t, now * KEYS, own, &queries);
    now = 1u - now;
    store_keys(key_to + now * KEYS, next_keys);
    store_values(value_to + now * VALUES, next_values);
    workgroupBarrier();
    first += ROWS;
  }

  let sum = spread_sum(l);
#ifdef GROUPED
  let factor = 1.0 / sum;
#else
  let factor = select(1.0, 1.0 / sum, (p.ends & 2u) != 0u);
  if (along == 0u && token < p.tokens) { stats[at] = vec2(m, sum); }
#endif
  write_sums(t, own, mine, sums[$n], factor, value_row + $nu * (MAT / FEW), token < p.tokens);
}
