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
var<workgroup> begins: array<u32, 4>;     // own first place and tile, own places, all tiles

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
  workgroupBarrier();
  var own = 0u;
  var i = begin;
  loop {
    if (i >= end) { break; }
    let id = min(ids[i], EXPERTS - 1u);
    atomicAdd(&counts[id], 1u);
    own += select(0u, 1u, id == expert);
    i += 1u;
  }
  sums[t] = own;
  workgroupBarrier();
  if (t == 0u) {
    var place = 0u;
    var tile = 0u;
    var all = 0u;
    var k = 0u;
    loop {
      if (k >= EXPERTS) { break; }
      let count = atomicLoad(&counts[k]);
      let here = (count + HEIGHT - 1u) / HEIGHT;
      place += select(0u, count, k < expert);
      tile += select(0u, here, k < expert);
      all += here;
      k += 1u;
    }
    begins[0] = place;
    begins[1] = tile;
    begins[2] = atomicLoad(&counts[expert]);
    begins[3] = all;
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
  let first = begins[0];
  var place = first + sums[t] - own;
  i = begin;
  loop {
    if (i >= end) { break; }
    if (min(ids[i], EXPERTS - 1u) == expert) {
      slots[place] = i;
      place += 1u;
    }
    i += 1u;
  }
  let count = begins[2];
  var tile = t;
  loop {
    if (tile * HEIGHT >= count) { break; }
    tiles[begins[1] + tile] = vec4(expert, first + tile * HEIGHT, min(HEIGHT, count - tile * HEIGHT), 0u);
    tile += WG;
  }
  // The last expert's workgroup empties the rest.
  if (expert == EXPERTS - 1u) {
    tile = begins[3] + t;
    loop {
      if (tile >= p.tiles) { break; }
      tiles[tile] = vec4(0u);
      tile += WG;
    }
  }
}
