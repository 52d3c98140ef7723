// Grouped-query attention over a slice of the context. The query heads of a group read the same keys and values, which lie in the cache as they
// are. The softmax is online and its sums are not normalised: attention_merge joins the slices.
//
// A token sees the rows of its sequence up to its own position (shared/sequences.wgsl). A slice of which the token sees no row leaves zeros
// with the maximum -1e30. Slices begin at multiples of 8 rows.
// Division: grid (slices, key heads times parts of a group, tokens), see shared/own_slice.wgsl. A workgroup takes up to HEADS_HERE query heads of
// one key head. A run of LANES neighbouring threads has HEADS_OF of them, and a thread of it VECTORS times 8 columns. SPLITS runs with different
// heads share rows, and PHASES sets of them take different rows of a tile. Queries and sums stay in registers. A run knows of no other
// until the slice is over, so with subgroups nothing waits at a barrier:
// 1. Scores, 8 rows at a time: lanes exchange partial sums until each has the score of one of LANES rows (shared/run_lanes.wgsl).
// 2. Softmax: weights are relative to a reference, which rises only where a score exceeds it by SLACK.
// 3. Values, 8 rows at a time: a thread adds its columns of each row, times the row's weight, to the sums of its heads.
// While 8 rows are computed, the next 8 are on their way. With EAGER a run asks for all its rows of a tile at once instead.
// With FINISHED a workgroup has a head and its whole context, and leaves the values that attention_merge would.
// Bound by: the cache, which is read once for a workgroup's heads, as long as these are few; for 8 heads about as much by the multiply-adds. In
// short contexts by the latency of one tile.
#number HEADS KV_HEADS KEY VALUE  // query heads, key heads, values of a query or key head, of a value head
#number WG LANES SPLITS PHASES STAGES  // threads, threads of a run, runs that share rows, runs with different rows, times 8 rows of a run
#number VECTORS HEADS_OF HEADS_HERE  // vectors of 8 columns of a thread, heads of a run, most heads of a workgroup
#number BUFFERS  // heads whose sums workgroup memory holds at the end: 1 or 2
#import own_slice
#word scale: f32
#read q: array<vec4<f32>> @floats(TOKENS * HEADS * KEY)              // (tokens, HEADS, KEY / 4)
// The cache is only read. It is declared as written because compilers move loads of read-only data to where they are used, and then a run
// waits for each of its rows.
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#write cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)      // (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#else
#write cache: array<vec4<u32>> @cache(CACHE_ROWS * KV_HEADS * (KEY + VALUE))   // (rows, KV_HEADS * (KEY + VALUE) / 8) of 8 f16
#endif
#ifdef FINISHED
#length OUT_ROWS TOKENS * HEADS * VALUE
#ifdef prepared
#import token_write
#else
#write values: array<vec4<f32>> @floats(OUT_ROWS)                    // (tokens, HEADS, VALUE / 4)
#endif
#else
#write slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * VALUE)  // (tokens, HEADS, slices, VALUE / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)
#endif
#each h HEADS_OF
#each v VECTORS

const LOWEST = -1e30;
// Weights reach e^SLACK, far below the largest f32. The greater SLACK is, the less often sums are scaled.
const SLACK = 16.0;
#ifdef CODES
const ROW = CACHE_WORDS / 4u;
#else
const ROW = KV_HEADS * (KEY + VALUE) / 8u;
#endif
const GROUP = HEADS / KV_HEADS;
const PARTS = (GROUP + HEADS_HERE - 1u) / HEADS_HERE;   // workgroups of a group
const TILE = PHASES * LANES;
const OUTS = VALUE / 4u;                                // vectors of the sums of a head

var<workgroup> maxima: array<f32, SPLITS * HEADS_OF * PHASES>;               // (head, phase)
var<workgroup> totals: array<f32, SPLITS * HEADS_OF * PHASES>;               // (head, phase), relative to the greatest of the maxima
var<workgroup> left: array<vec4<f32>, BUFFERS * PHASES * SPLITS * OUTS>;     // (buffer, phase, split, VALUE / 4) of a head of each split

#import eight
#ifdef CODES
#import cache_codes
alias Vectors = array<vec3<u32>, VECTORS>;   // 8 codes, and the word with the scales of their block and of a neighbour

// The block of a thread's columns, modulo 2. It is the same in all of them, since heads are multiples of 64 wide and so are 8 threads.
var<private> own_block: u32;

// Vector `at` of the row that begins at element `row`.
fn coded(row: u32, at: u32) -> vec3<u32> {
  return vec3(cache[row + at], cache[row + SCALES_AT / 2u + at / 16u][at / 8u % 2u]);
}

fn decoded(asked: vec3<u32>) -> Eight {
  let scale = scale_in(asked.z, own_block);
  return Eight(four_values(asked.x, scale), four_values(asked.y, scale));
}
#else
alias Vectors = array<vec4<u32>, VECTORS>;
#endif
alias Rows = array<Vectors, 8>;
alias Wide = array<Eight, VECTORS>;
alias Queries = array<Wide, HEADS_OF>;
alias Scores = array<f32, HEADS_OF>;
alias Sums = array<Wide, HEADS_OF>;

// A thread's columns of a row.
fn wide_of(row: Vectors) -> Wide {
  return Wide(
#ifdef CODES
    decoded(row[$v]),
#else
    widen(row[$v]),
#endif
  );
}

fn score(query: Wide, key: Wide) -> f32 {
  var sum = 0.0;
  sum = plus_eight(sum, query[$v].lo, query[$v].hi, key[$v]);
  return sum;
}

// A thread's share of the scores of a row for its heads, from its columns.
fn row_scores(queries: Queries, row: Vectors) -> Scores {
  let key = wide_of(row);
  return Scores(
    score(queries[$h], key),
  );
}

#import run_lanes

// Where a thread reads: the entry of its sequence's first page, the last row that it sees, the first vectors of its keys and values in a row,
// and its number in its run.
struct Place { page: u32, last: u32, key: u32, value: u32, lane: u32 }

// Requests a thread's columns of 8 rows, whose page is the same: their keys or their values. Rows behind the last are never read, because they
// may hold anything, even NaN. The last one is read instead.
fn ask(place: Place, first: u32, keys: bool) -> Rows {
  let begin = min(first, place.last);
  let moved = cache_row_at(place.page, begin) - begin;   // modulo 2^32
  let most = select(VALUE, KEY, keys) / 8u - 1u;
  let columns = select(place.value, place.key, keys);
  let at$v = columns + min(place.lane + $vu * LANES, most);
#for r 8
  let row$r = (min(first + $ru, place.last) + moved) * ROW;
#endfor
  return Rows(
#for r 8
    Vectors(
#ifdef CODES
      coded(row$r, at$v),
#else
      cache[row$r + at$v],
#endif
    ),
#endfor
  );
}

// A thread's columns of a query times the scale, 0 where it has none.
fn query_of(head: u32, lane: u32, scale: f32) -> Wide {
  let first = head * (KEY / 4u);
  let at$v = 2u * min(lane + $vu * LANES, KEY / 8u - 1u);
  let own$v = select(0.0, scale, lane + $vu * LANES < KEY / 8u);
  return Wide(
    Eight(q[first + at$v] * own$v, q[first + at$v + 1u] * own$v),
  );
}

// The sum of a head, times a factor.
fn scaled(sum: Wide, by: f32) -> Wide {
  return Wide(
    Eight(sum[$v].lo * by, sum[$v].hi * by),
  );
}

fn plus_row(sum: Wide, by: f32, row: Wide) -> Wide {
  return Wide(
    Eight(sum[$v].lo + by * row[$v].lo, sum[$v].hi + by * row[$v].hi),
  );
}

// The sums and 8 rows times their weights, which threads from `first` on of the run have.
fn plus_rows(before: Sums, rows: Rows, weights: Scores, first: u32, lane: Lane) -> Sums {
  var sums = before;
#for r 8
  let row$r = wide_of(rows[$r]);
  let weight$r = told_by(weights, first + $ru, lane);
  sums[$h] = plus_row(sums[$h], weight$r[$h], row$r);
#endfor
  return sums;
}

// The sum of the weights of a head, whose totals begin at `first`.
fn sum_of_weights(first: u32) -> f32 {
  var sum = 0.0;
#for i PHASES
  sum += totals[first + $iu];
#endfor
  return sum;
}

#main
#fetch
  let own = own_slice(wid);
  let lane = lane_of(t, lane_id);
#ifdef CODES
  own_block = lane.number / 4u;
#endif
  let run = t / LANES;
  let split = run % SPLITS;
  let phase = run / SPLITS;
  let key_head = wid.y / PARTS;
  // Of the workgroup, then of the thread, in the group.
  let first_head = (wid.y % PARTS) * HEADS_HERE;
  let own_head = first_head + split * HEADS_OF;
  let place = Place(own.page, own.end - 1u, key_head * (KEY / 8u), (KV_HEADS * KEY + key_head * VALUE) / 8u, lane.number);
  let own_rows = own.begin + phase * LANES;
#ifndef EAGER
  var asked = ask(place, own_rows, true);
#endif
  let first_query = own.token * HEADS + key_head * GROUP;
  let queries = Queries(
    query_of(first_query + min(own_head + $hu, GROUP - 1u), lane.number, p.scale),
  );
  var sums: Sums;
  var highest: Scores;   // the reference of each head's weights
  var total: Scores;     // this lane's share of their sum
  highest[$h] = LOWEST;

  var passed = 0u;       // rows of earlier tiles
  loop {
    if (own.begin + passed >= own.end) { break; }
    let first = own_rows + passed;
    // 1. The scores.
    var scores: Scores;
#ifdef EAGER
#for s STAGES
    let keys$s = ask(place, first + $su * 8u, true);
#endfor
#for s STAGES
    let values$s = ask(place, first + $su * 8u, false);
#endfor
#endif
#for s STAGES
#ifndef EAGER
    let keys$s = asked;
    asked = ask(place, first + ($su + 1u) % STAGES * 8u, $su + 1u < STAGES);
#endif
    let scores$s = scores_of_rows(queries, keys$s, lane);
    scores[$h] = select(scores[$h], scores$s[$h], lane.number / 8u == $su);
#endfor

    // 2. The softmax.
    let seen = first + lane.number < own.end;
    var rises = false;
    scores[$h] = select(LOWEST, scores[$h], seen);
    rises = rises || scores[$h] > highest[$h] + SLACK;
    if (any_lane(rises)) {
      let best = run_max(scores, lane);
      let rises$h = best[$h] > highest[$h] + SLACK;
      let shrink$h = select(1.0, exp(highest[$h] - best[$h]), rises$h);
      highest[$h] = select(highest[$h], best[$h], rises$h);
      total[$h] *= shrink$h;
      sums[$h] = scaled(sums[$h], shrink$h);
    }
    let weights = Scores(
      select(0.0, exp(scores[$h] - highest[$h]), seen),
    );
    total[$h] += weights[$h];
    tell(weights, lane);

    // 3. The values.
#for s STAGES
#ifndef EAGER
    let values$s = asked;
    asked = ask(place, first + select(($su + 1u) * 8u, TILE, $su + 1u == STAGES), $su + 1u == STAGES);
#endif
    sums = plus_rows(sums, values$s, weights, $su * 8u, lane);
#endfor
    passed += TILE;
  }

  // Runs with the same heads join theirs in workgroup memory.
  let of_run = run_sum(total, lane);
  let at$h = (split * HEADS_OF + $hu) * PHASES;
  if (lane.number == 0u) {
    maxima[at$h + phase] = highest[$h];
  }
  workgroupBarrier();
#for k HEADS_OF
  {
    var best = LOWEST;
#for i PHASES
    best = max(best, maxima[at$k + $iu]);
#endfor
    let shrink = exp(highest[$k] - best);
    if (lane.number == 0u) { totals[at$k + phase] = of_run[$k] * shrink; }
    let buffer = $ku % BUFFERS * (PHASES * SPLITS * OUTS);
    let own_sums = scaled(sums[$k], shrink);
    let to = buffer + run * OUTS;
    // The sums of another head have been read.
    if (BUFFERS == 1u) { workgroupBarrier(); }
#for v VECTORS
    if (lane.number + $vu * LANES < VALUE / 8u) {
      left[to + (lane.number + $vu * LANES) * 2u] = own_sums[$v].lo;
      left[to + (lane.number + $vu * LANES) * 2u + 1u] = own_sums[$v].hi;
    }
#endfor
    workgroupBarrier();
#ifndef FINISHED
    let head = own_head + $ku;
    if (phase == 0u && lane.number == 0u && split * HEADS_OF + $ku < HEADS_HERE && head < GROUP) {
      stats[own.place + (key_head * GROUP + head) * own.count] = vec2(best, sum_of_weights(at$k));
    }
#endif
    var i = t;
    loop {
      if (i >= SPLITS * OUTS) { break; }
      let in_workgroup = i / OUTS * HEADS_OF + $ku;
      if (in_workgroup < HEADS_HERE && first_head + in_workgroup < GROUP) {
        var sum = vec4(0.0);
#for o PHASES
        sum += left[buffer + $ou * (SPLITS * OUTS) + i];
#endfor
#ifdef FINISHED
        let result = sum / sum_of_weights(at$k);
        let head = (own.token * HEADS + key_head * GROUP + first_head + in_workgroup) * VALUE;
#ifdef prepared
        token_write(head + i % OUTS * 4u, t, result);
#else
        values[head / 4u + i % OUTS] = result;
#endif
#else
        slice_sums[(own.place + (key_head * GROUP + first_head + in_workgroup) * own.count) * OUTS + i % OUTS] = sum;
#endif
      }
      i += WG;
    }
  }
#endfor
}
