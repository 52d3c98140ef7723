// Computes what attention.wgsl does, and reads each cache row once for many heads. It uses subgroups, but no cooperative matrices.
//
// Division: grid (slices, groups of HEADS_HERE heads, tokens). A run of COLUMNS neighbouring threads takes HEADS_OF heads, 8 columns a
// thread. A workgroup has GROUPS x PHASES runs: GROUPS with different heads, PHASES with different rows. Queries and sums stay in
// registers. A workgroup walks its slice in tiles of TILE rows:
// 1. Rows: they move to workgroup memory from registers, to which they are loaded while the tile before is computed.
// 2. Scores: a thread multiplies its columns of 8 rows by the queries of its heads. Then 8 lanes exchange partial sums until each lane
//    has the sum of one row.
// 3. Softmax: 8 lanes per head. Weights are relative to a reference, which rises only where a score exceeds it by SLACK.
// 4. Values: a thread adds its columns of each row, times the row's weight, to the sums of its heads.
// Bound by: the multiply-adds of steps 2 and 4, 2 * KV_LORA + ROPE per row and head.
#number HEADS KV_LORA ROPE WG HEADS_OF  // query heads, width of a latent, rotated values of a head, threads of a workgroup, heads of a run
#number GROUPS PHASES ROWS  // runs of threads with different heads, runs of threads that take different rows, rows of a run
#number BUFFERS LOADS PE_PAIRS  // tiles in workgroup memory, vectors that a thread loads, pairs of rotated columns of a thread
#number PASSES EIGHTS RUNS OTHERS  // turns of the softmax, tiles of 8 rows, sets of 8 lanes that share a row, phases but the first
#number SOFTENERS  // threads of the softmax
#import own_slice
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<f32> @floats(TOKENS * HEADS * ROPE)                // (tokens, HEADS, ROPE)
// (rows, (KV_LORA + ROPE) / 8) of 8 f16. It is only read. It is declared as written because compilers move loads of read-only data past
// barriers to where they are used, and then a tile waits for all of its bytes.
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#write cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)   // in Q8_0 (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#else
#write cache: array<vec4<u32>> @cache(CACHE_ROWS * (KV_LORA + ROPE))
#endif
#write slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, slices, KV_LORA / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)

#flag TWO_BUFFERS   // a tile moves to workgroup memory while the tile before is still read there
#each i LOADS
#each h HEADS_OF
#each n PE_PAIRS
#each s PASSES
#each b EIGHTS
#each r RUNS
#each o OTHERS

const LOWEST = -1e30;
// Weights reach e^SLACK, far below the largest f32. The greater SLACK is, the less often sums are scaled.
const SLACK = 16.0;
const ROW = (KV_LORA + ROPE) / 8u;
const COLUMNS = KV_LORA / 8u;
const HEADS_HERE = HEADS_OF * GROUPS;   // of a workgroup
const TILE = PHASES * ROWS;
// RUNS sets of 8 lanes share a row, and each leaves a partial score. The pitch is longer by 8, so that lanes of neighbouring heads read
// different banks.
const SCORES_PITCH = RUNS * TILE + 8u;
const BUFFER = TILE * ROW;

var<workgroup> rows: array<vec4<u32>, BUFFERS * BUFFER>;              // (buffer, row) of the cache; at the end sums
var<workgroup> scores: array<f32, HEADS_HERE * SCORES_PITCH>;         // (head, set of 8 lanes, row)
var<workgroup> weights: array<vec4<f32>, HEADS_HERE * (TILE / 4u)>;   // (head) of 4 rows
var<workgroup> decay: array<f32, HEADS_HERE>;                         // (head), the factor for the sums of earlier tiles
var<workgroup> raised: array<u32, 2>;                                 // whether a tile raised a reference, for even and odd tiles

#ifdef CODES
#import cache_eights
#import fold

// Vector v of the rows of a sequence, as it lies in the cache. Rows behind the end are never read: the last one is read instead, from the same
// place, so that what is read there are numbers.
fn asked(page: u32, v: u32, end: u32) -> vec4<u32> {
  let row = cache_row_at(page, min(v / ROW, end - 1u)) * (CACHE_WORDS / 4u);
  let column = v % ROW;
  if (column < COLUMNS) { return latent_asked(row, column); }
  return rotated_asked(row, column - COLUMNS);
}

// Vector v of a tile in f16, as it was asked for.
fn in_halves(asked: vec4<u32>, v: u32) -> vec4<u32> {
  let column = v % ROW;
  if (column >= COLUMNS) { return asked; }
  let k = latent_eight(asked, column);
  return vec4(pack2x16float(k.lo.xy), pack2x16float(k.lo.zw), pack2x16float(k.hi.xy), pack2x16float(k.hi.zw));
}
#else
#import eight
#import fold

// The place of vector v of the rows of a sequence.
#ifdef pages
fn vector_at(page: u32, v: u32) -> u32 { return cache_row_at(page, v / ROW) * ROW + v % ROW; }
#else
fn vector_at(page: u32, v: u32) -> u32 { return v; }
#endif
#endif

fn max_of_8(v: f32) -> f32 {
  var best = max(v, subgroupShuffleXor(v, 4u));
  best = max(best, subgroupShuffleXor(best, 2u));
  return max(best, subgroupShuffleXor(best, 1u));
}

fn sum_of_8(v: f32) -> f32 {
  var sum = v + subgroupShuffleXor(v, 4u);
  sum += subgroupShuffleXor(sum, 2u);
  return sum + subgroupShuffleXor(sum, 1u);
}

// A thread's share of the rotated part of a query or cache row, besides 8 latent columns: one column, or PE_PAIRS pairs of columns.
#ifdef ONE_PE
alias Rotated = f32;

fn rotated_query(head: u32, column: u32) -> Rotated { return q_pe[head * ROPE + column]; }

fn rotated_key(row: u32, column: u32, by1: bool) -> Rotated {
  let two = unpack2x16float(rows[row + COLUMNS + column / 8u][(column / 2u) & 3u]);
  return select(two.x, two.y, by1);
}

fn score(q: Query, k: Eight, pe: Rotated) -> f32 { return plus_eight(q.pe * pe, q.lo, q.hi, k); }
#else
alias Rotated = array<vec2<f32>, PE_PAIRS>;

fn rotated_query(head: u32, column: u32) -> Rotated {
  let at = head * ROPE + column * PE_PAIRS * 2u;
  return Rotated(
    vec2(q_pe[at + $nu * 2u], q_pe[at + $nu * 2u + 1u]),
  );
}

fn rotated_key(row: u32, column: u32, by1: bool) -> Rotated {
  let pair$n = column * PE_PAIRS + $nu;
  return Rotated(
    unpack2x16float(rows[row + COLUMNS + pair$n / 4u][pair$n & 3u]),
  );
}

fn score(q: Query, k: Eight, pe: Rotated) -> f32 {
  var sum = plus_eight(0.0, q.lo, q.hi, k);
  sum += dot(q.pe[$n], pe[$n]);
  return sum;
}
#endif

struct Query { lo: vec4<f32>, hi: vec4<f32>, pe: Rotated }
alias Queries = array<Query, HEADS_OF>;
alias Scores = array<f32, HEADS_OF>;

fn query(head: u32, column: u32) -> Query {
  let at = head * (KV_LORA / 4u) + column * 2u;
  return Query(q_lat[at], q_lat[at + 1u], rotated_query(head, column));
}

// A thread's number in its run, and whether the bits 4, 2 and 1 of its number are set, by which lanes exchange sums.
struct Lane { column: u32, by4: bool, by2: bool, by1: bool }

// The partial scores of the row at `row` for a thread's heads, from its columns.
fn row_scores(queries: Queries, row: u32, by: Lane) -> Scores {
  let k = widen(rows[row + by.column]);
  let pe = rotated_key(row, by.column, by.by1);
  return Scores(
    score(queries[$h], k, pe),
  );
}

// The partial scores of rows i, i + 4, i + 2 and i + 6 of the 8 at `base`, folded over bits 4 and 2. Folding at once saves registers.
fn four_scores(queries: Queries, base: u32, i: u32, by: Lane) -> Scores {
  let first = row_scores(queries, base + i * ROW, by);
  let second = row_scores(queries, base + (i + 4u) * ROW, by);
  let third = row_scores(queries, base + (i + 2u) * ROW, by);
  let fourth = row_scores(queries, base + (i + 6u) * ROW, by);
  return Scores(
    fold(fold(first[$h], second[$h], by.by4, 4u), fold(third[$h], fourth[$h], by.by4, 4u), by.by2, 2u),
  );
}

// The reference of a head's weights, and a lane's share of their sum.
struct Soft { m: f32, l: f32 }

// Computes a tile's weights for a head of the workgroup, by 8 lanes. Without `own` it writes nothing: surplus lanes repeat the last head.
fn soften(head: u32, lane: u32, own: bool, first: u32, end: u32, odd: u32, before: Soft) -> Soft {
  var best = LOWEST;
  var score$b = 0.0;
  score$b += scores[head * SCORES_PITCH + $ru * TILE + $bu * 8u + lane];
  score$b = select(LOWEST, score$b * p.scale, first + $bu * 8u + lane < end);
  best = max(best, score$b);
  best = max_of_8(best);
  var m = before.m;
  var l = before.l;
  var shrink = 1.0;
  if (best > m + SLACK) {
    shrink = exp(m - best);
    m = best;
    l *= shrink;
    if (own) { raised[odd] = 1u; }
  }
  if (own && lane == 0u) { decay[head] = shrink; }
  let w$b = exp(score$b - m);
  l += w$b;
  let four$b = vec4(w$b, subgroupShuffleXor(w$b, 1u), subgroupShuffleXor(w$b, 2u), subgroupShuffleXor(w$b, 3u));
  if (own && (lane & 3u) == 0u) { weights[head * (TILE / 4u) + $bu * 2u + lane / 4u] = four$b; }
  return Soft(m, l);
}

// Adds up the sums of a head over the phases in workgroup memory. Threads of phase 0 write them from vector `to` on, if the head exists.
fn write_sums(phase: u32, at: u32, writes: bool, to: u32, sums: Eight) {
  if (PHASES > 1u) {
    workgroupBarrier();
    if (phase > 0u) {
      let own = (phase - 1u) * (GROUPS * COLUMNS * 2u) + at;
      rows[own] = bitcast<vec4<u32>>(sums.lo);
      rows[own + GROUPS * COLUMNS] = bitcast<vec4<u32>>(sums.hi);
    }
    workgroupBarrier();
  }
  if (phase > 0u || !writes) { return; }
  var lo = sums.lo;
  var hi = sums.hi;
  lo += bitcast<vec4<f32>>(rows[$ou * (GROUPS * COLUMNS * 2u) + at]);
  hi += bitcast<vec4<f32>>(rows[$ou * (GROUPS * COLUMNS * 2u) + GROUPS * COLUMNS + at]);
  slice_sums[to] = lo;
  slice_sums[to + 1u] = hi;
}

#main
  let column = t % COLUMNS;
  let group = t / COLUMNS % GROUPS;
  let phase = t / (COLUMNS * GROUPS);
  let own_head = group * HEADS_OF;
  let first_head = wid.y * HEADS_HERE;
  let own = own_slice(wid);
  let begin = own.begin;
  let end = own.end;
#ifdef CODES
  var next$i = asked(own.page, begin * ROW + t + $iu * WG, end);
#else
  // Vectors behind the slice are never read, because they may hold anything, even NaN. The last one is read instead: rows behind the
  // end get no weight.
  let last = end * ROW - 1u;
  var next$i = cache[vector_at(own.page, min(begin * ROW + t + $iu * WG, last))];
#endif
  let head$h = own.token * HEADS + min(first_head + own_head + $hu, HEADS - 1u);
  let queries = Queries(
    query(head$h, column),
  );
  var lo$h = vec4(0.0);
  var hi$h = vec4(0.0);
  let lane = t & 7u;
  let by = Lane(column, (t & 4u) != 0u, (t & 2u) != 0u, (t & 1u) != 0u);
  let lanes = column / 8u;   // number of its set of 8 lanes in the run
  // The heads of this thread in the softmax, and whether no other lanes stand for the same head.
  let soft$s = min((t + $su * WG) / 8u, HEADS_HERE - 1u);
  let own$s = t + $su * WG < HEADS_HERE * 8u;
  var state$s = Soft(LOWEST, 0.0);

  if (t == 0u) { raised[0] = 0u; }
  var first = begin;
  var odd = 0u;       // 1 for every second tile
  if (TWO_BUFFERS) {
#ifdef CODES
    if (t + $iu * WG < BUFFER) { rows[t + $iu * WG] = in_halves(next$i, t + $iu * WG); }
#else
    if (t + $iu * WG < BUFFER) { rows[t + $iu * WG] = next$i; }
#endif
    workgroupBarrier();
  }
  loop {
    if (first >= end) { break; }
    let at = odd * ((BUFFERS - 1u) * BUFFER);   // where the tile lies in `rows`
    // 1. The rows.
    if (!TWO_BUFFERS) {
      // The values of the tile before have been read.
      workgroupBarrier();
#ifdef CODES
      if (t + $iu * WG < BUFFER) { rows[t + $iu * WG] = in_halves(next$i, t + $iu * WG); }
#else
      if (t + $iu * WG < BUFFER) { rows[t + $iu * WG] = next$i; }
#endif
      workgroupBarrier();
    }
#ifdef CODES
    next$i = asked(own.page, (first + TILE) * ROW + t + $iu * WG, end);
#else
    next$i = cache[vector_at(own.page, min((first + TILE) * ROW + t + $iu * WG, last))];
#endif

    // 2. The scores.
    var eight = phase * ROWS;
    loop {
      if (eight >= (phase + 1u) * ROWS) { break; }
      let base = at + eight * ROW;
      let even_rows = four_scores(queries, base, 0u, by);
      let odd_rows = four_scores(queries, base, 1u, by);
      scores[(own_head + $hu) * SCORES_PITCH + lanes * TILE + eight + lane] = fold(even_rows[$h], odd_rows[$h], by.by1, 1u);
      eight += 8u;
    }
    workgroupBarrier();

    // 3. The softmax. Whole subgroups take the branch or skip it, since SOFTENERS is a multiple of their size.
    if (t + $su * WG < SOFTENERS) { state$s = soften(soft$s, lane, own$s, first, end, odd, state$s); }
    if (t == 0u) { raised[1u - odd] = 0u; }
    if (TWO_BUFFERS) {
#ifdef CODES
      if (t + $iu * WG < BUFFER) { rows[BUFFER - at + t + $iu * WG] = in_halves(next$i, t + $iu * WG); }
#else
      if (t + $iu * WG < BUFFER) { rows[BUFFER - at + t + $iu * WG] = next$i; }
#endif
    }
    workgroupBarrier();

    // 4. The values, row by row to save registers.
    if (raised[odd] != 0u) {
      lo$h *= decay[own_head + $hu];
      hi$h *= decay[own_head + $hu];
    }
    var four = phase * (ROWS / 4u);
    loop {
      if (four >= (phase + 1u) * (ROWS / 4u)) { break; }
      let w$h = weights[(own_head + $hu) * (TILE / 4u) + four];
#for q 4
      let v$q = widen(rows[at + (four * 4u + $qu) * ROW + column]);
      lo$h += w$h[$q] * v$q.lo;
      hi$h += w$h[$q] * v$q.hi;
#endfor
      four += 1u;
    }
    odd = 1u - odd;
    first += TILE;
  }

  let sum$s = sum_of_8(state$s.l);
  if (own$s && lane == 0u && first_head + soft$s < HEADS) { stats[own.place + (first_head + soft$s) * own.count] = vec2(state$s.m, sum$s); }
  write_sums(phase, group * COLUMNS + column, first_head + own_head + $hu < HEADS, (own.place + (first_head + own_head + $hu) * own.count) * (KV_LORA / 4u) + column * 2u, Eight(lo$h, hi$h));
}
