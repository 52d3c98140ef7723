// Latent attention over a slice of the context, without matrices: what attention.wgsl computes, with each cache row read once
// for many heads. Not normalised: attention_merge joins the slices.
//
// Token t sees rows 0..=pos+t. Slice s holds rows from s * split_rows on; one that begins after them leaves the sum 0.
// Division: grid (splits, head groups, tokens). COLUMNS neighbouring threads share HEADS_OF heads, 8 columns each, and a workgroup
// has GROUPS x PHASES such runs of threads: GROUPS of other heads, PHASES of other rows. Queries and sums stay in registers.
// A workgroup walks its slice in tiles of TILE rows:
// 1. the rows move to workgroup memory, loaded to registers while a tile before is worked on;
// 2. scores: a thread multiplies its columns of 8 rows with its heads' queries; 8 lanes swap until each has the sum of one row;
// 3. softmax: 8 lanes per head, relative to a reference that is raised only where a score exceeds it by SLACK;
// 4. values: a thread adds its columns of each row to the sums of its heads.
// Bound by: the multiply-adds of steps 2 and 4, 2 * KV_LORA + ROPE for each row and head, of some 4 instructions of 5.
#word pos: u32         // of the first token
#word splits: u32
#word split_rows: u32
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<f32> @floats(TOKENS * HEADS * ROPE)                // (tokens, HEADS, ROPE)
// (n_ctx, (KV_LORA + ROPE) / 8) of 8 f16. Never written, but as if it were: compilers move loads of what nobody writes past
// barriers to where they are used, and then a tile waits for all of its bytes.
#write cache: array<vec4<u32>> @cache(CONTEXT * (KV_LORA + ROPE))
#write parts: array<vec4<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, splits, KV_LORA / 4)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, splits) of (max, sum)

const LOWEST = -1e30;
// Weights reach e^SLACK, far from where f32 ends. The greater, the fewer sums are scaled.
const SLACK = 16.0;
const ROW = (KV_LORA + ROPE) / 8u;
const COLUMNS = KV_LORA / 8u;
const HEADS_HERE = HEADS_OF * GROUPS;
const TILE = PHASES * ROWS;
// RUNS runs of 8 lanes share a row, and each leaves a part of its scores. Longer by 8, so that lanes of neighbouring heads read different banks.
const SCORES_PITCH = RUNS * TILE + 8u;
const BUFFER = TILE * ROW;

var<workgroup> rows: array<vec4<u32>, BUFFERS * BUFFER>;              // (buffer, row) of the cache; in the end sums
// Numbers, not vectors, where threads write components: Metal and DX12 may write the whole vector, and the last would win.
var<workgroup> scores: array<f32, HEADS_HERE * SCORES_PITCH>;         // (head, run, row)
var<workgroup> weights: array<vec4<f32>, HEADS_HERE * (TILE / 4u)>;   // (head) of 4 rows
var<workgroup> decay: array<f32, HEADS_HERE>;                         // of what earlier tiles summed up
var<workgroup> raised: array<u32, 2>;                                 // whether a tile raised a reference, for every other tile

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

fn widen(x: vec4<u32>) -> Eight {
  return Eight(
    vec4(unpack2x16float(x.x), unpack2x16float(x.y)),
    vec4(unpack2x16float(x.z), unpack2x16float(x.w)),
  );
}

// One chain of multiply-adds that begins with `sum`.
fn plus_eight(sum: f32, lo: vec4<f32>, hi: vec4<f32>, k: Eight) -> f32 {
  var s = sum;
  s += lo.x * k.lo.x;
  s += lo.y * k.lo.y;
  s += lo.z * k.lo.z;
  s += lo.w * k.lo.w;
  s += hi.x * k.hi.x;
  s += hi.y * k.hi.y;
  s += hi.z * k.hi.z;
  s += hi.w * k.hi.w;
  return s;
}

// Of two rows the sum over two lanes that differ by `mask`: of b in the `upper` one, of a in the other.
fn fold(a: f32, b: f32, upper: bool, mask: u32) -> f32 {
  return select(a, b, upper) + subgroupShuffleXor(select(b, a, upper), mask);
}

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

#main
  let column = t % COLUMNS;
  let group = t / COLUMNS % GROUPS;
  let phase = t / (COLUMNS * GROUPS);
  let own_head = group * HEADS_OF;
  let first_head = wid.y * HEADS_HERE;
  let begin = wid.x * p.split_rows;
  let end = min(begin + p.split_rows, p.pos + wid.z + 1u);
  // Vectors beyond the slice are never read: what lies there may not even be numbers. The last one stands for them, since rows
  // beyond the end weigh nothing.
  let last = end * ROW - 1u;
#for i LOADS
  var next$i = cache[min(begin * ROW + t + $iu * WG, last)];
#endfor
#for h HEADS_OF
  let head$h = wid.z * HEADS + min(first_head + own_head + $hu, HEADS - 1u);
  let lo_q$h = q_lat[head$h * (KV_LORA / 4u) + column * 2u];
  let hi_q$h = q_lat[head$h * (KV_LORA / 4u) + column * 2u + 1u];
#ifdef ONE_PE
  let pe_q$h = q_pe[head$h * ROPE + column];
#else
#for i PE_PAIRS
  let pe_q$h_$i = vec2(q_pe[head$h * ROPE + (column * PE_PAIRS + $iu) * 2u], q_pe[head$h * ROPE + (column * PE_PAIRS + $iu) * 2u + 1u]);
#endfor
#endif
  var lo$h = vec4(0.0);
  var hi$h = vec4(0.0);
#endfor
  let by4 = (t & 4u) != 0u;
  let by2 = (t & 2u) != 0u;
  let by1 = (t & 1u) != 0u;
  let lane = t & 7u;
  let run = column / 8u;
  // In the softmax.
#for s PASSES
  let soft$s = min((t + $su * WG) / 8u, HEADS_HERE - 1u);
  var m$s = LOWEST;   // what the weights of that head are relative to
  var l$s = 0.0;      // this lane's part of the sum of weights
#endfor

  if (t == 0u) { raised[0] = 0u; }
  var first = begin;
  var odd = 0u;       // whether the tile is
  var at = 0u;        // of the tile in `rows`
#ifdef TWO_BUFFERS
#for i LOADS
  if (t + $iu * WG < BUFFER) { rows[t + $iu * WG] = next$i; }
#endfor
  workgroupBarrier();
#endif
  loop {
    if (first >= end) { break; }
#ifndef TWO_BUFFERS
    // What the values of the tile before were.
    workgroupBarrier();
#for i LOADS
    if (t + $iu * WG < BUFFER) { rows[t + $iu * WG] = next$i; }
#endfor
    workgroupBarrier();
#endif
#for i LOADS
    next$i = cache[min((first + TILE) * ROW + t + $iu * WG, last)];
#endfor

    var eight = phase * ROWS;
    loop {
      if (eight >= (phase + 1u) * ROWS) { break; }
      let base = at + eight * ROW;
#for i 2
#for j 4
      // Rows i, i + 4, i + 2 and i + 6: sums are folded as soon as may be.
      let row$i_$j = base + ($iu + ($ju & 1u) * 4u + ($ju >> 1u) * 2u) * ROW;
      let k$i_$j = widen(rows[row$i_$j + column]);
#ifdef ONE_PE
      let word$i_$j = rows[row$i_$j + COLUMNS + column / 8u][(column / 2u) & 3u];
      let two$i_$j = unpack2x16float(word$i_$j);
      let pe$i_$j = select(two$i_$j.x, two$i_$j.y, by1);
#for h HEADS_OF
      let s$i_$j_$h = plus_eight(pe_q$h * pe$i_$j, lo_q$h, hi_q$h, k$i_$j);
#endfor
#else
#for n PE_PAIRS
      let pair$i_$j_$n = column * PE_PAIRS + $nu;
      let two$i_$j_$n = unpack2x16float(rows[row$i_$j + COLUMNS + pair$i_$j_$n / 4u][pair$i_$j_$n & 3u]);
#endfor
#for h HEADS_OF
      var s$i_$j_$h = plus_eight(0.0, lo_q$h, hi_q$h, k$i_$j);
#for n PE_PAIRS
      s$i_$j_$h += dot(pe_q$h_$n, two$i_$j_$n);
#endfor
#endfor
#endif
#endfor
#for h HEADS_OF
      let four$i_$h = fold(fold(s$i_0_$h, s$i_1_$h, by4, 4u), fold(s$i_2_$h, s$i_3_$h, by4, 4u), by2, 2u);
#endfor
#endfor
#for h HEADS_OF
      scores[(own_head + $hu) * SCORES_PITCH + run * TILE + eight + lane] = fold(four0_$h, four1_$h, by1, 1u);
#endfor
      eight += 8u;
    }
    workgroupBarrier();

#for s PASSES
    // A head's lanes are 8 neighbours, and whole subgroups pass or skip.
    if (t + $su * WG < SOFTENERS) {
      let own = t + $su * WG < HEADS_HERE * 8u;
      var best = LOWEST;
#for b EIGHTS
      var score$b = 0.0;
#for r RUNS
      score$b += scores[soft$s * SCORES_PITCH + $ru * TILE + $bu * 8u + lane];
#endfor
      score$b = select(LOWEST, score$b * p.scale, first + $bu * 8u + lane < end);
      best = max(best, score$b);
#endfor
      best = max_of_8(best);
      var shrink = 1.0;
      if (best > m$s + SLACK) {
        shrink = exp(m$s - best);
        m$s = best;
        l$s *= shrink;
        if (own) { raised[odd] = 1u; }
      }
      if (own && lane == 0u) { decay[soft$s] = shrink; }
#for b EIGHTS
      let w$b = exp(score$b - m$s);
      l$s += w$b;
      let four$b = vec4(w$b, subgroupShuffleXor(w$b, 1u), subgroupShuffleXor(w$b, 2u), subgroupShuffleXor(w$b, 3u));
      if (own && (lane & 3u) == 0u) { weights[soft$s * (TILE / 4u) + $bu * 2u + lane / 4u] = four$b; }
#endfor
    }
#endfor
    if (t == 0u) { raised[1u - odd] = 0u; }
#ifdef TWO_BUFFERS
#for i LOADS
    if (t + $iu * WG < BUFFER) { rows[BUFFER - at + t + $iu * WG] = next$i; }
#endfor
#endif
    workgroupBarrier();

    if (raised[odd] != 0u) {
#for h HEADS_OF
      lo$h *= decay[own_head + $hu];
      hi$h *= decay[own_head + $hu];
#endfor
    }
    var four = phase * (ROWS / 4u);
    loop {
      if (four >= (phase + 1u) * (ROWS / 4u)) { break; }
#for h HEADS_OF
      let w$h = weights[(own_head + $hu) * (TILE / 4u) + four];
#endfor
#for r 4
      let v$r = widen(rows[at + (four * 4u + $ru) * ROW + column]);
#for h HEADS_OF
      lo$h += w$h[$r] * v$r.lo;
      hi$h += w$h[$r] * v$r.hi;
#endfor
#endfor
      four += 1u;
    }
#ifdef TWO_BUFFERS
    at = BUFFER - at;
#endif
    odd = 1u - odd;
    first += TILE;
  }

#for s PASSES
  let sum$s = sum_of_8(l$s);
  let whose$s = first_head + soft$s;
  if (t + $su * WG < HEADS_HERE * 8u && lane == 0u && whose$s < HEADS) {
    stats[(wid.z * HEADS + whose$s) * p.splits + wid.x] = vec2(m$s, sum$s);
  }
#endfor
#for h HEADS_OF
#ifdef PHASED
  // Phases meet in workgroup memory, head by head.
  workgroupBarrier();
  if (phase > 0u) {
    let to = (phase - 1u) * (GROUPS * COLUMNS * 2u) + group * COLUMNS + column;
    rows[to] = bitcast<vec4<u32>>(lo$h);
    rows[to + GROUPS * COLUMNS] = bitcast<vec4<u32>>(hi$h);
  }
  workgroupBarrier();
#endif
  if (phase == 0u && first_head + own_head + $hu < HEADS) {
#for i OTHERS
    lo$h += bitcast<vec4<f32>>(rows[$iu * (GROUPS * COLUMNS * 2u) + group * COLUMNS + column]);
    hi$h += bitcast<vec4<f32>>(rows[$iu * (GROUPS * COLUMNS * 2u) + GROUPS * COLUMNS + group * COLUMNS + column]);
#endfor
    let to = (head$h * p.splits + wid.x) * (KV_LORA / 4u) + column * 2u;
    parts[to] = lo$h;
    parts[to + 1u] = hi$h;
  }
#endfor
}
