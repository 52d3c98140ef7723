// The tokens of each expert, in order: the slots of a chunk sorted by expert, then by token, and tiles of up to HEIGHT of them.
//
// ids (tokens, USED) -> slots (tokens * USED): token * USED + rank; tiles (TILES) of expert, first place in slots, places, 0;
// tiles behind the last are empty.
// Division: a workgroup per expert. Each counts all slots (integers: the order of the additions does not matter), so that it
// knows where its own begin; each thread looks through a run of slots, so that the sorted order is that of the tokens.
// Bound by: latency; reading ids twice per workgroup, from the cache.
struct Params {
  tokens: u32,
  tiles: u32,   // that the grids of the products cover
}
@group(0) @binding(0) var<storage, read> ids: array<u32>;                  // (tokens, USED)
@group(0) @binding(1) var<storage, read_write> slots: array<u32>;          // (tokens * USED)
@group(0) @binding(2) var<storage, read_write> tiles: array<vec4<u32>>;    // (tiles)
#import params

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> sums: array<u32, WG>;      // of the own slots, by thread
var<workgroup> begins: array<atomic<u32>, 3>;   // own first place and tile; all tiles

// The expert of a slot, or none behind the end. Loads of several slots are asked for at once.
fn expert_of(i: u32, end: u32) -> u32 {
  return select(EXPERTS, min(ids[min(i, end - 1u)], EXPERTS - 1u), i < end);
}

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
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
  if (t < 3u) { atomicStore(&begins[t], 0u); }
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
    let here = (count + HEIGHT - 1u) / HEIGHT;
    if (e < expert) {
      atomicAdd(&begins[0], count);
      atomicAdd(&begins[1], here);
    }
    atomicAdd(&begins[2], here);
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
  let first = atomicLoad(&begins[0]);
  let first_tile = atomicLoad(&begins[1]);
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
  var tile = t;
  loop {
    if (tile * HEIGHT >= count) { break; }
    tiles[first_tile + tile] = vec4(expert, first + tile * HEIGHT, min(HEIGHT, count - tile * HEIGHT), 0u);
    tile += WG;
  }
  // The last expert's workgroup empties the rest.
  if (expert == EXPERTS - 1u) {
    tile = atomicLoad(&begins[2]) + t;
    loop {
      if (tile >= p.tiles) { break; }
      tiles[tile] = vec4(0u);
      tile += WG;
    }
  }
}
