// Causal attention of a prompt's chunk over one block of expanded keys and values (expand_kv.wgsl), in f32.
//
// q (tokens, HEADS, NOPE + ROPE) -> values (tokens, HEADS, V). Token t sees context rows 0..=pos+t. The softmax is online: sums are relative
// to the greatest score so far. From block to block they stay in `values`, the maxima and the sums of weights in `stats`. The last block
// divides by the sums of weights.
// With GROUPED, keys and values are those of the cache, which GROUP query heads share. Its whole context is one block, and queries and keys
// come rotated.
// Division: grid (heads, tiles of 32 tokens). Tiles with the most rows to see come first. A workgroup takes the block in tiles of 64 rows,
// none of which reaches beyond a page of the cache:
// 1. Scores: a thread has 4 tokens and 4 rows in registers. Queries, rotated here, and keys pass through workgroup memory, 32 columns at a
//    time.
// 2. Softmax: a thread finds the maxima of its 4 tokens in workgroup memory.
// 3. Values: a thread has the same 4 tokens and every 16th vector of columns in registers.
// Bound by: the multiply-adds, 2 * (NOPE + ROPE + V) flops per token, row and head.
#number HEADS NOPE ROPE  // query heads, values of a head that are not rotated here, values that are, which are 0 with GROUPED
#number V WG COLUMNS  // width of a value, threads of a workgroup, columns of values of a thread
#number QUERY_LOADS KEY_LOADS  // vectors of queries that a thread loads, vectors of keys that a thread loads
#word pos: u32      // of the first token
#word tokens: u32
#ifndef GROUPED
#word begin: u32    // first context row of the block
#word rows: u32     // of the block
#word ends: u32     // bit 0: this is the first block, bit 1: the last
#endif
#word scale: f32
#read q: array<vec4<f32>> @floats(p.tokens * HEADS * (NOPE + ROPE))    // (tokens, HEADS, (NOPE + ROPE) / 4)
#ifdef GROUPED
#number GROUP  // query heads that share a key head
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#read kv: array<u32> @cache(CACHE_ROWS * CACHE_WORDS)                  // (rows, CACHE_WORDS / 2) words, see shared/cache_codes.wgsl
#import cache_codes
#else
#read kv: array<vec2<u32>> @cache(CACHE_ROWS * HEADS / GROUP * (NOPE + V))   // (rows, KEY_HEADS * (NOPE + V) / 4) of 4 f16
#endif
#else
#number KV_LORA  // width of a latent
#read angles: array<vec4<f32>> @floats(CONTEXT * ROPE)                 // (n_ctx, ROPE / 4) of (cos, sin, cos, sin)
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#read cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)         // (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#import cache_codes
#else
#read cache: array<vec2<u32>> @cache(CACHE_ROWS * (KV_LORA + ROPE))    // (rows, (KV_LORA + ROPE) / 4) of 4 f16
#endif
#read kv: array<vec4<f32>> @floats(p.rows * HEADS * (NOPE + V))        // (block, HEADS * (NOPE + V) / 4)
#endif
#write values: array<vec4<f32>> @floats(p.tokens * HEADS * V)          // (tokens, HEADS, V / 4)
#ifndef GROUPED
#write stats: array<vec2<f32>> @floats(p.tokens * HEADS * 2)           // (tokens, HEADS) of (max, sum)
#endif
#import rotate_pairs
#import own_pages

const LOWEST = -1e30;
const TOKENS = 32u;
const ROWS = 64u;
// In vec4: 32 columns. Rows are padded by one, so that they lie in different banks.
const DEPTH = 8u;
const PITCH = DEPTH + 1u;
const HEAD = (NOPE + ROPE) / 4u;
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
const KV_ROW = CACHE_WORDS / 2u;
#else
const KV_ROW = KEY_HEADS * (NOPE + V) / 4u;
#endif

// Queries (token, column) followed by keys (row, column); then weights (row, 4 tokens); at the end sums of weights (along, 4 tokens).
var<workgroup> shared_tile: array<vec4<f32>, (TOKENS + ROWS) * PITCH>;
var<workgroup> maxima: array<vec4<f32>, WG>;   // (along, 4 tokens)

#ifdef KV_CODES
// Vector `at` of 4 keys or values of row `row` of the cache.
fn four_of(row: u32, at: u32) -> vec4<f32> {
  return four_codes(kv[row * KV_ROW + at]) * scale_in(kv[row * KV_ROW + SCALES_AT + at / 16u], at / 8u);
}
#else
fn widen(x: vec2<u32>) -> vec4<f32> {
  return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}
#endif

#main
  let head = wid.x;
  let first_token = ((p.tokens - 1u) / TOKENS - wid.y) * TOKENS;
  // A thread has the tokens four * 4 .. four * 4 + 4 of the tile. Its rows of a tile, and its vectors of columns, are along, along + 16...
  let four = t / 16u;
  let along = t % 16u;
#for i 4
  let token$i = first_token + four * 4u + $iu;
  let at$i = min(token$i, p.tokens - 1u) * HEADS + head;
  let see$i = p.pos + token$i;
#endfor
  // The rows of the block that the last of these tokens sees.
  let seen = p.pos + min(first_token + TOKENS, p.tokens);
#ifdef GROUPED
  let end = seen;
  let key_head = head / GROUP;
#else
  let end = min(p.rows, max(seen, p.begin) - p.begin);
  // The tile sees nothing of this block, and there are no sums to initialise or to divide.
  if (end == 0u && p.ends == 0u) { return; }
#endif

  var m = vec4(LOWEST);   // the greatest scores so far, of 4 tokens
  var l = vec4(0.0);      // this thread's shares of their sums of weights
#for i 4
#for c COLUMNS
  var out$i_$c = vec4(0.0);
#endfor
#endfor
#ifndef GROUPED
  if ((p.ends & 1u) == 0u) {
#for i 4
    let stats$i = stats[at$i];
    m[$i] = stats$i.x;
    l[$i] = select(0.0, stats$i.y, along == 0u);
#for c COLUMNS
    out$i_$c = values[at$i * (V / 4u) + $cu * 16u + along];
#endfor
#endfor
  }
#endif

  var first = 0u;
  loop {
    if (first >= end) { break; }
#ifdef GROUPED
    let tile_moved = moved(first);
#else
    let tile_moved = moved(p.begin + first);
#endif
#for j 4
    var s$j = vec4(0.0);   // of 4 tokens
#endfor
    var c = 0u;
    loop {
      if (c >= HEAD) { break; }
      let own = c + t % DEPTH;
#ifndef GROUPED
      let pe = c >= NOPE / 4u;
#endif
      workgroupBarrier();
#for i QUERY_LOADS
      {
        let e = $iu * (WG / DEPTH) + t / DEPTH;
        let token = min(first_token + e, p.tokens - 1u);
#ifdef GROUPED
        var query = vec4(0.0);
        if (own < HEAD) { query = q[(token * HEADS + head) * HEAD + own]; }
#else
        var query = q[(token * HEADS + head) * HEAD + own];
        if (pe) { query = rotate_pairs(query, angles[(p.pos + token) * (ROPE / 4u) + own - NOPE / 4u]); }
#endif
        shared_tile[e * PITCH + t % DEPTH] = query * p.scale;
      }
#endfor
#for i KEY_LOADS
      {
        let e = $iu * (WG / DEPTH) + t / DEPTH;
        // Rows behind the end are never read, because they may hold anything, even NaN.
        let row = min(first + e, end - 1u);
#ifdef GROUPED
        // The last columns of a head may be fewer than 32. The others are 0 in queries and in keys.
        var key = vec4(0.0);
#ifdef CODES
        if (own < HEAD) { key = four_of(row + tile_moved, key_head * HEAD + own); }
#else
        if (own < HEAD) { key = widen(kv[(row + tile_moved) * KV_ROW + key_head * HEAD + own]); }
#endif
        shared_tile[(TOKENS + e) * PITCH + t % DEPTH] = key;
#else
        if (pe) {
          let place = p.begin + row + tile_moved;
#ifdef CODES
          shared_tile[(TOKENS + e) * PITCH + t % DEPTH] = widen(cache[place * CACHE_ROW + ROTATED_AT / 2u + own - NOPE / 4u]);
#else
          shared_tile[(TOKENS + e) * PITCH + t % DEPTH] = widen(cache[place * CACHE_ROW + KV_LORA / 4u + own - NOPE / 4u]);
#endif
        } else {
          shared_tile[(TOKENS + e) * PITCH + t % DEPTH] = kv[row * KV_ROW + head * (NOPE / 4u) + own];
        }
#endif
      }
#endfor
      workgroupBarrier();
#for d 8
      {
#for i 4
        let q$i = shared_tile[(four * 4u + $iu) * PITCH + $du];
#endfor
#for j 4
        let k$j = shared_tile[(TOKENS + along + $ju * 16u) * PITCH + $du];
        s$j += vec4(dot(q0, k$j), dot(q1, k$j), dot(q2, k$j), dot(q3, k$j));
#endfor
      }
#endfor
      c += DEPTH;
    }

    let see = vec4(see0, see1, see2, see3);
#for j 4
    {
      let row = first + along + $ju * 16u;
#ifdef GROUPED
      s$j = select(vec4(LOWEST), s$j, (vec4(row) <= see) & vec4(row < end));
#else
      s$j = select(vec4(LOWEST), s$j, (vec4(p.begin + row) <= see) & vec4(row < end));
#endif
    }
#endfor
    maxima[along * 8u + four] = max(max(s0, s1), max(s2, s3));
    workgroupBarrier();
    var best = m;
#for i 16
    best = max(best, maxima[$iu * 8u + four]);
#endfor
    let shrink = exp(m - best);
    m = best;
    l *= shrink;
#for j 4
    let w$j = exp(s$j - best);
    l += w$j;
    shared_tile[(along + $ju * 16u) * 8u + four] = w$j;
#endfor
#for i 4
#for c COLUMNS
    out$i_$c *= shrink[$i];
#endfor
#endfor
    workgroupBarrier();

    let rows = min(ROWS, end - first);
    var r = 0u;
    loop {
      if (r >= rows) { break; }
      let w = shared_tile[r * 8u + four];
#ifdef GROUPED
#ifdef CODES
      let row = first + r + tile_moved;
#else
      let row = (first + r + tile_moved) * KV_ROW + KEY_HEADS * HEAD + key_head * (V / 4u);
#endif
#else
      let row = (first + r) * KV_ROW + HEADS * (NOPE / 4u) + head * (V / 4u) + along;
#endif
#for c COLUMNS
#ifdef GROUPED
      // Threads beyond the last column have it, too. They write nothing.
#ifdef CODES
      let v$c = four_of(row, KEY_HEADS * HEAD + key_head * (V / 4u) + min($cu * 16u + along, V / 4u - 1u));
#else
      let v$c = widen(kv[row + min($cu * 16u + along, V / 4u - 1u)]);
#endif
#else
      let v$c = kv[row + $cu * 16u];
#endif
#for i 4
      out$i_$c += w[$i] * v$c;
#endfor
#endfor
      r += 1u;
    }
    first += ROWS;
  }

  workgroupBarrier();
  shared_tile[along * 8u + four] = l;
  workgroupBarrier();
  var sum = vec4(0.0);
#for i 16
  sum += shared_tile[$iu * 8u + four];
#endfor
#ifdef GROUPED
#for i 4
  if (token$i < p.tokens) {
#for c COLUMNS
    if ($cu * 16u + along < V / 4u) { values[at$i * (V / 4u) + $cu * 16u + along] = out$i_$c * (1.0 / sum[$i]); }
#endfor
  }
#endfor
#else
  let last = (p.ends & 2u) != 0u;
#for i 4
  if (token$i < p.tokens) {
    let factor = select(1.0, 1.0 / sum[$i], last);
#for c COLUMNS
    values[at$i * (V / 4u) + $cu * 16u + along] = out$i_$c * factor;
#endfor
    if (along == 0u) { stats[at$i] = vec2(m[$i], sum[$i]); }
  }
#endfor
#endif
}
