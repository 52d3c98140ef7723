// Lists for each expert of a layer whether a token of the step chose it, and where expert_fill finds it.
//
// ids (tokens, USED), or tiles of batch_experts (tiles, TILE_WORDS) of (expert, -, slots, ...) -> fills (EXPERTS) of (source, expert). The source is
// KEPT + the slot of an expert that has one in `table`, else the expert, and NONE for an expert that nobody chose.
// Division: one workgroup. Its threads share the ids or the tiles, then each takes experts.
// Bound by: latency.
#number WG EXPERTS  // threads of a workgroup, experts of a layer
#ifdef ids
#number USED  // experts of a token
#word tokens?: u32
#read ids?: array<u32> @words(TOKENS * USED)             // (tokens, USED)
#else
#number TILE_WORDS  // words of a tile
#word covered?: u32  // tiles that the grids of the products cover
#read tiles?: array<u32> @words(TILE_WORDS * p.covered)  // (tiles, TILE_WORDS)
#endif
#write table?: array<u32> @words(4 + EXPERTS)           // of expert_slots, of which hits and misses are written
#write fills: array<vec2<u32>> @words(2 * EXPERTS)      // (EXPERTS)
const NONE = 0xffffffffu;
const KEPT = 0x80000000u;
#import step_experts
var<workgroup> wanted: array<atomic<u32>, EXPERTS>;
var<workgroup> counts: array<atomic<u32>, 2>;   // experts with a slot, and without

#main
  var e = t;
  loop {
    if (e >= EXPERTS) { break; }
    atomicStore(&wanted[e], 0u);
    e += WG;
  }
  if (t < 2u) { atomicStore(&counts[t], 0u); }
  workgroupBarrier();
  var i = t;
  loop {
    if (i >= entries()) { break; }
    let expert = expert_of(i);
    if (expert < EXPERTS) { atomicStore(&wanted[expert], 1u); }
    i += WG;
  }
  workgroupBarrier();
  e = t;
  loop {
    if (e >= EXPERTS) { break; }
#ifdef table
    let slot = table[4u + e];
#else
    let slot = 0u;
#endif
    let source = select(KEPT + slot - 1u, e, slot == 0u);
    let is_wanted = atomicLoad(&wanted[e]) == 1u;
    fills[e] = vec2(select(NONE, source, is_wanted), e);
    if (is_wanted) { atomicAdd(&counts[select(0u, 1u, slot == 0u)], 1u); }
    e += WG;
  }
#ifdef table
  workgroupBarrier();
  if (t < 2u) { table[1u + t] += atomicLoad(&counts[t]); }
#endif
}
