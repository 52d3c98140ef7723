// Computes what grouped_attention.wgsl does, by cooperative matrices (MAT x MAT): queries and weights are rounded to f16, sums are in f32.
//
// Division: grid (slices, key heads times parts of a group, tokens), see shared/own_slice.wgsl. Slices begin at multiples of ROWS rows. A workgroup
// takes up to HEADS_HERE query heads of one key head, which are rows of a matrix. It walks its slice in tiles of GROUPS * ROWS rows. Each subgroup
// takes ROWS of them. Subgroups wait for each other only at the end of the slice. In a turn of the loop
// 1. its keys move to workgroup memory from registers, and the keys of the next turn are requested;
// 2. it multiplies the queries, which stay in registers, by the keys;
// 3. its values take the place of the keys, and the values of the next turn are requested;
// 4. it computes weights from the scores, by SPREAD threads per head. Weights are relative to a reference, which rises only where a score exceeds it
//    by SLACK, because matrices in registers can only be scaled through memory;
// 5. it adds the products of weights and values to its sums, which stay in registers.
// At the end the subgroups join their sums in workgroup memory.
// Bound by: reading the cache, once for the heads of a workgroup. Each subgroup has ROWS rows on their way. So the workgroup memory of a core, which
// bounds the subgroups there, bounds the rows.
enable f16;
enable wgpu_cooperative_matrix;
#number HEADS KV_HEADS KEY VALUE  // query heads, key heads, values of a query or key head, of a value head
#number WG LANES MAT GROUPS  // threads of a workgroup, of a subgroup, rows of a matrix, subgroups
#number HEADS_HERE HEAD_ROWS  // most heads of a workgroup, rows of a matrix of which the softmax is computed
#number ROW_TILES STEPS VALUE_TILES  // matrices along the rows of a subgroup, along a key, along a value
#number QUERY_LOADS LOADERS ROW_PASSES  // vectors of queries that a thread loads, threads that load a row, rows that a thread loads for
#number KEY_LOADS VALUE_LOADS  // vectors that a thread loads of a key, of a value
#number PASSES PASS_TILES OUT_FEWS  // times that sums are joined, matrices of a subgroup each time, turns of a thread each time
#import own_slice
#word scale: f32
#read q: array<vec4<f32>> @floats(TOKENS * HEADS * KEY)              // (tokens, HEADS, KEY / 4)
// The cache is only read. It is declared as written because compilers move loads of read-only data past barriers to where they are used.
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#write cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)      // (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#import cache_halves
#else
#import word_halves
#write cache: array<vec4<u32>> @cache(CACHE_ROWS * KV_HEADS * (KEY + VALUE))   // (rows, KV_HEADS * (KEY + VALUE) / 8) of 8 f16
#endif
#write slice_sums: array<Few> @floats(SLICES * HEADS * VALUE)        // (tokens, HEADS, slices, VALUE / FEW)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)
#import MATRICES as c
#import coop_put as rows
#import coop_few as scores
#import coop_softmax
#each q QUERY_LOADS
#each j ROW_PASSES
#each i KEY_LOADS
#each v VALUE_LOADS
#each r ROW_TILES
#each k STEPS
#each n VALUE_TILES
#each g GROUPS
#each b OUT_FEWS

const LOWEST = -1e30;
const LOG2_E = 1.44269504;
// Weights reach 2^SLACK, and f16 ends at 2^16.
const SLACK = 15.0;
const GROUP = HEADS / KV_HEADS;
const PARTS = (GROUP + HEADS_HERE - 1u) / HEADS_HERE;   // workgroups of a group
const ROWS = ROW_TILES * MAT;
const TILE = GROUPS * ROWS;
#ifdef CODES
const CACHE_ROW = CACHE_WORDS / 4u;
#else
const CACHE_ROW = KV_HEADS * (KEY + VALUE) / 8u;
#endif
// Rows in workgroup memory are padded by 16 bytes, so that 8 of them lie in different banks.
const PITCH = max(KEY, VALUE) + 8u;
const SCORE_PITCH = max(ROWS, PASS_TILES * MAT) + 4u;
const WEIGHT_PITCH = ROWS + 8u;
const SPREAD = LANES / HEAD_ROWS;
const AT_ONCE = LANES / LOADERS;   // rows that a subgroup loads at once
const ACROSS = PASS_TILES * MAT / FEW;   // groups of FEW sums of a head that are left at once

var<workgroup> rows: array<Stage, GROUPS * ROWS * PITCH / STAGE>;            // (subgroup, row) of keys or values; before that (subgroup, head) of queries
var<workgroup> scores: array<Sum, GROUPS * MAT * SCORE_PITCH / SUM>;         // (subgroup, head, row); at the end (subgroup, head, column) of sums
var<workgroup> weights: array<Stage, GROUPS * MAT * WEIGHT_PITCH / STAGE>;   // (subgroup, head, row)
var<workgroup> maxima: array<f32, GROUPS * HEAD_ROWS>;                       // (subgroup, head)
var<workgroup> totals: array<f32, GROUPS * HEAD_ROWS>;                       // (subgroup, head), relative to the maximum of the subgroup

alias Queries = array<cLeft, STEPS>;
alias Sums = array<cSums, VALUE_TILES>;

// Where a thread reads: the entry of its sequence's first page, the last row that it sees, the number of its first row in a turn, and its first
// elements of keys and values in a row.
struct Place { page: u32, last: u32, row: u32, key: u32, value: u32 }

// A thread's part of a subgroup's keys or values: vectors of 8 values, the next one LOADERS further on. With codes also the words with the scales
// of each row, which are the same for all vectors of a head.
#ifdef CODES
struct Keys { vectors: array<vec2<u32>, ROW_PASSES * KEY_LOADS>, scales: array<vec2<u32>, ROW_PASSES> }
struct Values { vectors: array<vec2<u32>, ROW_PASSES * VALUE_LOADS>, scales: array<vec2<u32>, ROW_PASSES> }

fn put(to: u32, vector: vec2<u32>, scales: vec2<u32>, at: u32) {
  let scale = scale_half(scales, at / 4u);
  rows_put(to / STAGE, four_halves(vector.x, scale));
  rows_put((to + 4u) / STAGE, four_halves(vector.y, scale));
}
#else
struct Keys { vectors: array<vec4<u32>, ROW_PASSES * KEY_LOADS> }
struct Values { vectors: array<vec4<u32>, ROW_PASSES * VALUE_LOADS> }

fn put(to: u32, vector: vec4<u32>) {
  rows_put(to / STAGE, halves_of(vector.xy));
  rows_put((to + 4u) / STAGE, halves_of(vector.zw));
}
#endif

// How far the rows from position `first` on lie behind the rows of the same numbers, modulo 2^32. All rows of a subgroup are in one page.
fn moved(place: Place, first: u32) -> u32 {
  let begin = min(first, place.last);
  return cache_row_at(place.page, begin) - begin;
}

// Requests the keys of a subgroup's rows from `first` on. Rows behind the last are never read, because they may hold anything, even NaN. The last
// one is read instead.
fn ask_keys(place: Place, first: u32) -> Keys {
  let further = moved(place, first);
  let row$j = (min(first + place.row + $ju * AT_ONCE, place.last) + further) * CACHE_ROW;
  return Keys(
    array(
      cache[row$j + place.key + $iu * LOADERS],
    ),
#ifdef CODES
    array(
      cache[row$j + SCALES_AT / 2u + place.key / 16u],
    ),
#endif
  );
}

fn ask_values(place: Place, first: u32) -> Values {
  let further = moved(place, first);
  let row$j = (min(first + place.row + $ju * AT_ONCE, place.last) + further) * CACHE_ROW;
  return Values(
    array(
      cache[row$j + place.value + $vu * LOADERS],
    ),
#ifdef CODES
    array(
      cache[row$j + SCALES_AT / 2u + place.value / 16u],
    ),
#endif
  );
}

// Stores the products of the queries and the keys in the subgroup's rows, which begin at `own_rows`, in its area of `scores`, at `own`.
fn make_scores(t: u32, own_rows: u32, own: u32, queries: ptr<function, Queries>) {
  var score$r: cSums;
  let key$r_$k = coopLoad<cRight>(&rows[(own_rows + $ru * MAT * PITCH + $ku * MAT) / STAGE], PITCH / STAGE); score$r = coopMultiplyAdd((*queries)[$k], key$r_$k, score$r);
  // Loaded to names first: naga 30 would evaluate the arguments of the call after the store.
  let scored$r = score$r;
  coopStoreT(scored$r, &scores[(own + $ru * MAT) / SUM], SCORE_PITCH / SUM);
}

// Adds the products of the weights and the values in the subgroup's rows.
fn add_values(t: u32, own_rows: u32, sums: ptr<function, Sums>) {
  let weights$r = coopLoadT<cLeft>(&weights[(t / LANES * MAT * WEIGHT_PITCH + $ru * MAT) / STAGE], WEIGHT_PITCH / STAGE);
  let v$r_$n = coopLoadT<cRight>(&rows[(own_rows + $ru * MAT * PITCH + $nu * MAT) / STAGE], PITCH / STAGE); (*sums)[$n] = coopMultiplyAdd(weights$r, v$r_$n, (*sums)[$n]);
}

// Writes FEW sums of a head over all subgroups, number `i` of those in `scores`, whose columns begin at `column`.
fn write(wid: vec3<u32>, place: u32, count: u32, i: u32, column: u32) {
  let head = i / ACROSS;
  let first_head = wid.y % PARTS * HEADS_HERE;
  if (head >= HEADS_HERE || first_head + head >= GROUP) { return; }
  let max$g = maxima[$gu * HEAD_ROWS + head];
  var best = LOWEST;
  best = max(best, max$g);
  let factor$g = exp2(max$g - best);
  var sum = Few(0.0);
  sum += scores_few(($gu * MAT + head) * SCORE_PITCH / SUM, i % ACROSS * FEW) * factor$g;
  let at = place + (wid.y / PARTS * GROUP + first_head + head) * count;
  slice_sums[at * (VALUE / FEW) + column / FEW + i % ACROSS] = sum;
  if (column == 0u && i % ACROSS == 0u) {
    var all = 0.0;
    all += totals[$gu * HEAD_ROWS + head] * factor$g;
    stats[at] = vec2(best / LOG2_E, all);
  }
}

#main
  // This kernel runs on devices whose subgroups all have LANES lanes.
  let own_slice = own_slice(wid);
  let group = t / LANES;
  let lane = t % LANES;
  let key_head = wid.y / PARTS;
  // The first head of the workgroup in its group, and the number of its heads.
  let first_head = wid.y % PARTS * HEADS_HERE;
  let heads = min(GROUP - first_head, HEADS_HERE);
  let head = key_head * GROUP + first_head;
  let loader = lane / LOADERS;
  let along_row = lane % LOADERS;
  let place = Place(
    own_slice.page,
    max(own_slice.end, 1u) - 1u,
    loader,
    key_head * (KEY / 8u) + along_row,
    (KV_HEADS * KEY + key_head * VALUE) / 8u + along_row,
  );
  let own_rows = group * (ROWS * PITCH);
  let to = own_rows + loader * PITCH + along_row * 8u;
  var first = own_slice.begin + group * ROWS;
  var keys = ask_keys(place, first);
  var values = ask_values(place, first);

  // Each subgroup loads the queries for itself. Rows of the matrix behind HEAD_ROWS stay as they are, since no result depends on them.
  let at$q = $qu * LANES + lane;
  let query$q = q[(own_slice.token * HEADS + head + min(at$q / (KEY / 4u), heads - 1u)) * (KEY / 4u) + at$q % (KEY / 4u)];
  rows_put((own_rows + at$q / (KEY / 4u) * PITCH + at$q % (KEY / 4u) * 4u) / STAGE, vec4<f16>(query$q * (p.scale * LOG2_E)));
  own_barrier();
  var queries: Queries;
  queries[$k] = coopLoadT<cLeft>(&rows[(own_rows + $ku * MAT) / STAGE], PITCH / STAGE);

  // In the softmax a thread has one head, and FEW of every SPREAD * FEW rows. It has columns of sums in memory in the same way.
  let own = group * (MAT * SCORE_PITCH);
  let own_head = lane / SPREAD;
  let along = lane % SPREAD;
  let mine = (own + own_head * SCORE_PITCH + along * FEW) / SUM;
  let own_weights = (group * MAT + own_head) * WEIGHT_PITCH + along * FEW;
  var m = LOWEST;   // the reference of the weights, an exponent of 2
  var l = 0.0;      // this thread's share of the sum of weights
  var sums: Sums;

  var passed = 0u;  // rows of earlier tiles
  loop {
    if (own_slice.begin + passed >= own_slice.end) { break; }
    // The subgroup has read its rows of the turn before.
    own_barrier();
#ifdef CODES
    put(to + $ju * (AT_ONCE * PITCH) + $iu * (LOADERS * 8u), keys.vectors[$j * KEY_LOADS + $i], keys.scales[$j], place.key + $iu * LOADERS);
#else
    put(to + $ju * (AT_ONCE * PITCH) + $iu * (LOADERS * 8u), keys.vectors[$j * KEY_LOADS + $i]);
#endif
    own_barrier();
    keys = ask_keys(place, first + TILE);
    own_barrier();
    make_scores(t, own_rows, own, &queries);
    own_barrier();
#ifdef CODES
    put(to + $ju * (AT_ONCE * PITCH) + $vu * (LOADERS * 8u), values.vectors[$j * VALUE_LOADS + $v], values.scales[$j], place.value + $vu * LOADERS);
#else
    put(to + $ju * (AT_ONCE * PITCH) + $vu * (LOADERS * 8u), values.vectors[$j * VALUE_LOADS + $v]);
#endif
    values = ask_values(place, first + TILE);
    let own_scores = take_scores(mine, i32(own_slice.end) - i32(first + along * FEW));
    var best = highest_of(own_scores);
    // A loop that runs at most once instead of a branch. In a branch naga refuses matrices unless it sees that all lanes agree.
    loop {
      if (!own_any(best > m + SLACK)) { break; }
      best = spread_max(best);
      let reference = select(m, best, best > m + SLACK);
      let shrink = exp2(m - reference);
      m = reference;
      l *= shrink;
      own_barrier();
      if (passed == 0u) { break; }
      sums[$n] = scaled(t, own, mine, sums[$n], shrink);
    }
    l = make_weights(own_weights, own_scores, m, l);
    own_barrier();
    add_values(t, own_rows, &sums);
    passed += TILE;
    first += TILE;
  }

  // The subgroups join theirs.
  let sum = spread_sum(l);
  if (along == 0u) {
    maxima[group * HEAD_ROWS + own_head] = m;
    totals[group * HEAD_ROWS + own_head] = sum;
  }
#for d PASSES
#for c PASS_TILES
  coopStoreT(sums[$d * PASS_TILES + $c], &scores[(own + $cu * MAT) / SUM], SCORE_PITCH / SUM);
#endfor
  workgroupBarrier();
  write(wid, own_slice.place, own_slice.count, $bu * WG + t, $du * (PASS_TILES * MAT));
  // The next ones use the same area.
  if ($du + 1u < PASSES) { workgroupBarrier(); }
#endfor
}
