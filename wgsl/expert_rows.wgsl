// Sorts the slots of a chunk by expert, then by token, and lists tiles of up to HEIGHT0 slots of one expert.
//
// ids (tokens, USED) -> slots (tokens * USED) of token * USED + rank; tiles0 (tiles) of (expert, first place in slots, places, 0). Tiles
// behind the last one are empty. With `tiles1` one of two lists is empty. If few experts have most tokens, so that tiles of up to HEIGHT0
// are many more than tiles of up to HEIGHT1, tiles1 has the latter. Else tiles0 has the former. Each list has its own products, with one
// row of workgroups per tile.
// Division: a workgroup per expert. Each counts all slots, so that it knows where its own slots begin. The counts are integers, so the order
// of the additions does not matter. A thread goes through a run of slots, which keeps the order of the tokens.
// Bound by: latency; every workgroup reads ids twice, from the cache.
#number EXPERTS USED WG HEIGHT0  // experts of a layer, experts of a token, threads of a workgroup, slots of a low tile
#number HEIGHT1 LISTS SLOTS  // slots of a tall tile, lists of tiles, slots of a thread
#number LOW_TILES TALL_TILES  // the ratio of low to tall tiles above which the tall ones are taken
#word tokens: u32
#word covered0: u32   // tiles that the grids of the products cover
#word covered1?: u32
#read ids: array<u32> @words(TOKENS * USED)      // (tokens, USED)
#write slots: array<u32> @words(TOKENS * USED)   // (tokens * USED)
// (tiles), of which each expert may leave one not full.
#write tiles0: array<vec4<u32>> @words(4 * max(p.covered0, TOKENS * USED / HEIGHT0 + EXPERTS))
#write tiles1?: array<vec4<u32>> @words(4 * max(p.covered1, TOKENS * USED / HEIGHT1 + EXPERTS))
#write workgroups: array<u32> @words(6 * LISTS)   // (lists, 2 products, 3), of which the second of 3 is written

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> sums: array<u32, WG>;      // (thread), the number of its slots of the expert
var<workgroup> first_place: atomic<u32>;
var<workgroup> first_tile: array<atomic<u32>, LISTS>;
var<workgroup> all_tiles: array<atomic<u32>, LISTS>;

// The expert of a slot, or EXPERTS behind the end. It has no branch, so that the loads of several slots overlap.
fn expert_of(i: u32, end: u32) -> u32 {
  return select(EXPERTS, min(ids[min(i, end - 1u)], EXPERTS - 1u), i < end);
}

#main
  let expert = wid.x;
  let n = p.tokens * USED;
  let run = (n + WG - 1u) / WG;
  let begin = min(t * run, n);
  let end = min(begin + run, n);
  var e = t;
  loop {
    if (e >= EXPERTS) { break; }
    atomicStore(&counts[e], 0u);
    e += WG;
  }
  if (t == 0u) { atomicStore(&first_place, 0u); }
  if (t < LISTS) {
    atomicStore(&first_tile[t], 0u);
    atomicStore(&all_tiles[t], 0u);
  }
  workgroupBarrier();
  var own = 0u;
  var i = begin;
  loop {
    if (i >= end) { break; }
#for k SLOTS
    let id$k = expert_of(i + $ku, end);
#endfor
#for k SLOTS
    if (id$k < EXPERTS) { atomicAdd(&counts[id$k], 1u); }
    own += select(0u, 1u, id$k == expert);
#endfor
    i += SLOTS;
  }
  sums[t] = own;
  workgroupBarrier();
  e = t;
  loop {
    if (e >= EXPERTS) { break; }
    let count = atomicLoad(&counts[e]);
    if (e < expert) { atomicAdd(&first_place, count); }
#for l LISTS
    let here$l = (count + HEIGHT$l - 1u) / HEIGHT$l;
    if (e < expert) { atomicAdd(&first_tile[$l], here$l); }
    atomicAdd(&all_tiles[$l], here$l);
#endfor
    e += WG;
  }
  // Inclusive sums over the threads.
  var step = 1u;
  loop {
    if (step >= WG) { break; }
    workgroupBarrier();
    var before = 0u;
    if (t >= step) { before = sums[t - step]; }
    workgroupBarrier();
    sums[t] += before;
    step = step << 1u;
  }
  workgroupBarrier();
  let first = atomicLoad(&first_place);
  var place = first + sums[t] - own;
  i = begin;
  loop {
    if (i >= end) { break; }
#for k SLOTS
    let own$k = expert_of(i + $ku, end) == expert;
#endfor
#for k SLOTS
    if (own$k) {
      slots[place] = i + $ku;
      place += 1u;
    }
#endfor
    i += SLOTS;
  }
  let count = atomicLoad(&counts[expert]);
  var list = 0u;
#ifdef tiles1
  // The list of tall tiles is taken if the ratio of low to tall ones is above LOW_TILES to TALL_TILES (LOW_FOR_TALL in gpu/machine/tiles.rs).
  if (TALL_TILES * atomicLoad(&all_tiles[0]) > LOW_TILES * atomicLoad(&all_tiles[1])) { list = 1u; }
#endif
#for l LISTS
  {
    let listed = select(0u, count, list == $lu);
    let first_own = atomicLoad(&first_tile[$l]);
    var tile = t;
    loop {
      if (tile * HEIGHT$l >= listed) { break; }
      tiles$l[first_own + tile] = vec4(expert, first + tile * HEIGHT$l, min(HEIGHT$l, count - tile * HEIGHT$l), 0u);
      tile += WG;
    }
    // The last expert's workgroup empties the other tiles.
    if (expert == EXPERTS - 1u) {
      let filled = select(0u, atomicLoad(&all_tiles[$l]), list == $lu);
      if (t < 2u) { workgroups[($lu * 2u + t) * 3u + 1u] = filled; }
      tile = filled + t;
      loop {
        if (tile >= p.covered$l) { break; }
        tiles$l[tile] = vec4(0u);
        tile += WG;
      }
    }
  }
#endfor
}
