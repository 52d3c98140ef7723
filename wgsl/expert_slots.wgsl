// Chooses the experts of each token as token_gate_up does, and so to the bit: of several tokens, whose many workgroups would all make the same
// choice, or of products whose experts lie in host memory. Of one token it also tells where these find each chosen expert, and which ones
// expert_fill must copy there first.
//
// logits -> ids (tokens, USED) and weights (tokens, USED), the best expert first. With SEVERAL tokens the ids are experts. Else they are places:
// slots with `table`, and without it the expert's rank. fills (USED) has a pair of a source and a place for each chosen expert. The source is
// the expert, or NONE if the place holds the expert already.
// table: the tokens, hits and misses so far, and a word that nobody reads; of each expert 1 + its slot, or 0; of each expert how often it was
// chosen, in units of 1 / COUNTED; of each slot 1 + its expert, or 0. Every PERIOD tokens the counts are multiplied by DECAY_TIMES / DECAY_BY. A
// missing expert takes the slot whose expert has the lowest count and is not chosen now, the lowest slot among equals, and before these an
// empty one.
// split: with it, the host multiplies some of the missing experts itself: of n missing ones the last split[n]. These get no slot and no place
// (NONE), nothing is copied for them, and `asked` (USED) has them in the places of their ranks, and NONE in the others.
// routing: with it, each token takes the next of TRACED choices of experts instead of its own, with the weights of its own.
// Division: a workgroup per token, with as many threads as token_gate_up has for the choice. A thread holds an expert and a slot.
// Bound by: latency. Each thread of a slot reads the counts of all others from workgroup memory.
#number WG EXPERTS USED  // threads of a workgroup, experts of a layer, experts of a token
#word scale: f32         // by which the weights are multiplied
#write ids: array<u32> @words(TOKENS * USED)          // (tokens, USED)
#write weights: array<f32> @floats(TOKENS * USED)     // (tokens, USED)
#read bias?: array<f32> @floats(EXPERTS)              // (EXPERTS)
#write fills?: array<vec2<u32>> @words(2 * USED)      // (USED)
#write table?: array<u32> @words(4 + 2 * EXPERTS + SLOTS)
#read split?: array<u32> @words(USED + 1)             // (USED + 1)
#write asked?: array<u32> @words(USED)                // (USED)
#import own_token
// A thread holds an expert.
const_assert EXPERTS <= WG;
var<workgroup> slot_expert: u32;
var<workgroup> chosen: array<u32, USED>;
const LEAVES_CHOICE = true;
const NONE = 0xffffffffu;
fn weights_scale() -> f32 { return p.scale; }
fn weights_put(i: u32, weight: f32) { weights[i] = weight; }
fn ids_put(i: u32, expert: u32) { chosen[i - own_token * USED] = expert; }
#ifdef RAW_LOGITS
#number UNITS  // units of a token's input
const INPUT_UNITS = UNITS;
#import rms_in_runs
fn logit_scale() -> f32 { return rms_scale(0u); }
#else
fn logit_scale() -> f32 { return 1.0; }
#endif
#import LOGITS as logits
#import CHOICE as choice
#ifdef table
#number SLOTS  // slots of the layer
#read routing?: array<u32> @words(ROUTED)   // (TRACED, USED)
#ifdef routing
#number TRACED  // tokens of the trace
#length ROUTED TRACED * USED
#else
#length ROUTED 1
#endif
#import slots
var<workgroup> tokens: u32;
var<workgroup> forgotten: array<u32, USED>;   // the slots that are forgotten first

fn is_chosen(expert: u32) -> bool {
  var found = false;
  var k = 0u;
  loop {
    if (k >= USED) { break; }
    found = found || chosen[k] == expert;
    k += 1u;
  }
  return found;
}

// The number of missing experts among the first n chosen ones.
fn missing(n: u32) -> u32 {
  var sum = 0u;
  var k = 0u;
  loop {
    if (k >= n) { break; }
    sum += select(0u, 1u, slot_of[chosen[k]] == 0u);
    k += 1u;
  }
  return sum;
}
#endif

#main
#fetch
  own_place(wid);
  let logits = logits_ask(t, true);
  let own_bias = bias_ask(t);
#ifdef RAW_LOGITS
  let squares = squares_ask(t);
#endif
#ifdef table
  let own_slot = table[SLOT_OF + min(t, EXPERTS - 1u)];
  let own_count = table[COUNT_OF + min(t, EXPERTS - 1u)];
  let own_expert = table[EXPERT_IN + min(t, SLOTS - 1u)];
#endif
  logits_put(logits, t);
  bias_put(own_bias, t);
#ifdef RAW_LOGITS
  squares_put(squares, t, 0u);
#endif
#ifdef table
  if (t < EXPERTS) {
    slot_of[t] = own_slot;
    counts[t] = own_count;
  }
  if (t < SLOTS) { expert_in[t] = own_expert; }
  if (t == 0u) { tokens = table[0] + 1u; }
#endif
  workgroupBarrier();
  choose(0u, true, t, subgroup, subgroups, lane_id, subgroup_size);
  workgroupBarrier();
#ifdef table
#ifdef routing
  if (t < USED) { chosen[t] = routing[(tokens - 1u) % TRACED * USED + t]; }
  workgroupBarrier();
#endif
  // From here on threads write to the table. They read it from workgroup memory alone.
  key_put(t);
  workgroupBarrier();
  if (t < SLOTS) {
    let place = place_of(t);
    if (place < USED) { forgotten[place] = t; }
  }
  workgroupBarrier();
  if (t < USED) {
    let expert = chosen[t];
    let held = slot_of[expert];
#ifdef split
    let misses = missing(USED);
    let of_host = held == 0u && missing(t) + split[misses] >= misses;
    asked[t] = select(NONE, expert, of_host);
#else
    let of_host = false;
#endif
    let slot = select(held - 1u, forgotten[missing(t)], held == 0u);
    ids[t] = select(slot, NONE, of_host);
    fills[t] = vec2(select(NONE, expert, held == 0u && !of_host), slot);
    if (held == 0u && !of_host) {
      let old = expert_in[slot];
      if (old != 0u) { table[SLOT_OF + old - 1u] = 0u; }
      table[SLOT_OF + expert] = slot + 1u;
      table[EXPERT_IN + slot] = expert + 1u;
    }
  }
  if (t < EXPERTS) {
    table[COUNT_OF + t] = count_of(counts[t], select(0u, 1u, is_chosen(t)), tokens, tokens - 1u);
  }
  if (t == 0u) {
    let misses = missing(USED);
    table[0] = tokens;
    table[1] += USED - misses;
    table[2] += misses;
  }
#else
#ifdef fills
  if (t < USED) {
#ifdef split
    let of_host = t + split[USED] >= USED;
    asked[t] = select(NONE, chosen[t], of_host);
#else
    let of_host = false;
#endif
    ids[t] = select(t, NONE, of_host);
    fills[t] = vec2(select(chosen[t], NONE, of_host), t);
  }
#else
  if (t < USED) { ids[own_token * USED + t] = chosen[t]; }
#endif
#endif
}
