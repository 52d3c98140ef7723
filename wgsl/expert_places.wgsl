// Gives each expert that a token of a step chose a slot, and tells the products of the step where it is. The slots of other experts are
// forgotten as expert_slots forgets them, whose table this is.
//
// ids (tokens, USED), or tiles of batch_experts (tiles, TILE_WORDS) of (expert, -, slots, ...): each expert becomes its slot. fills (FILLS) has a
// pair (expert, slot) for each expert that had none, by expert, and then pairs of NONE. There are SLOTS >= FILLS.
// Division: one workgroup. Its threads share the ids or the tiles, then each holds an expert and a slot.
// Bound by: latency. Each thread of a slot reads the counts of all others from workgroup memory.
#number WG EXPERTS SLOTS FILLS  // threads of a workgroup, experts of a layer, slots of a layer, most experts of a step
#word tokens: u32
#ifdef ids
#number USED  // experts of a token
#write ids?: array<u32> @words(TOKENS * USED)             // (tokens, USED)
#else
#number TILE_WORDS   // words of a tile
#word covered?: u32  // tiles that the grids of the products cover
#write tiles?: array<u32> @words(TILE_WORDS * p.covered)  // (tiles, TILE_WORDS)
#endif
#write table: array<u32> @words(4 + 2 * EXPERTS + SLOTS)  // of expert_slots
#write fills: array<vec2<u32>> @words(2 * FILLS)          // (FILLS)
#import step_experts
#import slots
const NONE = 0xffffffffu;
const RUNS = (EXPERTS + 31u) / 32u;
// A thread holds an expert.
const_assert EXPERTS <= WG;
var<workgroup> times: array<atomic<u32>, EXPERTS>;   // how often an expert was chosen
var<workgroup> missing: array<atomic<u32>, RUNS>;    // a bit for each expert that is chosen and has no slot
var<workgroup> forgotten: array<u32, FILLS>;         // the slots that are forgotten first
var<workgroup> chosen_ones: atomic<u32>;             // experts that are chosen
var<workgroup> tokens_before: u32;                   // of all steps before

fn is_chosen(expert: u32) -> bool { return atomicLoad(&times[expert]) > 0u; }

// The choices that entry i stands for.
fn choices_of(i: u32) -> u32 {
#ifdef ids
  return 1u;
#else
  return tiles[TILE_WORDS * i + 2u];
#endif
}

// The number of missing experts below this one.
fn missing_before(expert: u32) -> u32 {
  var sum = 0u;
  var run = 0u;
  loop {
    if (run >= RUNS) { break; }
    let bits = atomicLoad(&missing[run]);
    let below = max(expert, 32u * run) - 32u * run;
    sum += countOneBits(select(bits, bits & ((1u << (below & 31u)) - 1u), below < 32u));
    run += 1u;
  }
  return sum;
}

#main
  let own_slot = table[SLOT_OF + min(t, EXPERTS - 1u)];
  let own_count = table[COUNT_OF + min(t, EXPERTS - 1u)];
  let own_expert = table[EXPERT_IN + min(t, SLOTS - 1u)];
  if (t < EXPERTS) {
    slot_of[t] = own_slot;
    counts[t] = own_count;
    atomicStore(&times[t], 0u);
  }
  if (t < SLOTS) { expert_in[t] = own_expert; }
  if (t < RUNS) { atomicStore(&missing[t], 0u); }
  if (t == 0u) {
    tokens_before = table[0];
    atomicStore(&chosen_ones, 0u);
  }
  workgroupBarrier();
  var i = t;
  loop {
    if (i >= entries()) { break; }
    let expert = expert_of(i);
    if (expert < EXPERTS) { atomicAdd(&times[expert], choices_of(i)); }
    i += WG;
  }
  workgroupBarrier();
  let chosen = t < EXPERTS && is_chosen(min(t, EXPERTS - 1u));
  let misses = chosen && own_slot == 0u;
  if (chosen) { atomicAdd(&chosen_ones, 1u); }
  if (misses) { atomicOr(&missing[t / 32u], 1u << (t & 31u)); }
  key_put(t);
  workgroupBarrier();
  if (t < SLOTS) {
    let place = place_of(t);
    if (place < FILLS) { forgotten[place] = t; }
  }
  workgroupBarrier();
  // From here on threads write to the table. They read it from workgroup memory alone.
  let all = missing_before(EXPERTS);
  if (misses) {
    let place = missing_before(t);
    let slot = forgotten[place];
    let old = expert_in[slot];
    if (old != 0u) { table[SLOT_OF + old - 1u] = 0u; }
    table[SLOT_OF + t] = slot + 1u;
    table[EXPERT_IN + slot] = t + 1u;
    fills[place] = vec2(t, slot);
    slot_of[t] = slot + 1u;
  }
  if (t >= all && t < FILLS) { fills[t] = vec2(NONE, 0u); }
  let now = tokens_before + p.tokens;
  if (t < EXPERTS) { table[COUNT_OF + t] = count_of(own_count, atomicLoad(&times[t]), now, tokens_before); }
  if (t == 0u) {
    table[0] = now;
    table[1] += atomicLoad(&chosen_ones) - all;
    table[2] += all;
  }
  workgroupBarrier();
  i = t;
  loop {
    if (i >= entries()) { break; }
    let expert = expert_of(i);
#ifdef ids
    ids[i] = slot_of[min(expert, EXPERTS - 1u)] - 1u;
#else
    if (expert < EXPERTS) { tiles[TILE_WORDS * i] = slot_of[expert] - 1u; }
#endif
    i += WG;
  }
}
