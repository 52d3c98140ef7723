// The tokens of each expert, in order: the slots of a chunk sorted by expert, then by token, and tiles of up to HEIGHT0 of them.
//
// ids (tokens, USED) -> slots (tokens * USED): token * USED + rank; tiles0 (tiles) of expert, first place in slots, places, 0;
// tiles behind the last are empty. With `tiles1`: if those are many more than tiles of up to HEIGHT1, since few experts have most tokens,
// they are all empty and tiles1 has the others; else tiles1 is empty. The products of each list have one row of workgroups per tile.
// Division: a workgroup per expert. Each counts all slots (integers: the order of the additions does not matter), so that it
// knows where its own begin; each thread looks through a run of slots, so that the sorted order is that of the tokens.
// Bound by: latency; reading ids twice per workgroup, from the cache.
#word tokens: u32
#word covered0: u32   // tiles that the grids of the products cover
#word covered1?: u32
#read ids: array<u32> @words(TOKENS * USED)    // (tokens, USED)
#write slots: array<u32> @words(TOKENS * USED)
// Each expert may leave one tile not full.
#write tiles0: array<vec4<u32>> @words(4 * max(p.covered0, TOKENS * USED / HEIGHT0 + EXPERTS))
#write tiles1?: array<vec4<u32>> @words(4 * max(p.covered1, TOKENS * USED / HEIGHT1 + EXPERTS))
#write workgroups: array<u32> @words(6 * LISTS)  // (lists, 2 products, 3): those along tiles are written

// So many times as many tiles of HEIGHT0 as of HEIGHT1 are too many.
const TOO_MANY = 1.25;

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> sums: array<u32, WG>;      // of the own slots, by thread
var<workgroup> first_place: atomic<u32>;
var<workgroup> first_tile: array<atomic<u32>, LISTS>;
var<workgroup> all_tiles: array<atomic<u32>, LISTS>;

// The expert of a slot, or none behind the end. Loads of several slots are asked for at once.
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
  if (f32(atomicLoad(&all_tiles[0])) > TOO_MANY * f32(atomicLoad(&all_tiles[1]))) { list = 1u; }
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
    // The last expert's workgroup empties the rest.
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
