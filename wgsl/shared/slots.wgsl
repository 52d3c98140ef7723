// The slots of a layer's experts, whose table expert_slots.wgsl describes, in workgroup memory: which are forgotten first. The kernel declares
// SLOTS, `is_chosen` and NONE.
#number COUNTED PERIOD    // the count of one choice, tokens between decays
#number DECAY_TIMES DECAY_BY  // the factor of a decay
const SLOT_OF = 4u;
const COUNT_OF = SLOT_OF + EXPERTS;
const EXPERT_IN = COUNT_OF + EXPERTS;
// SLOTS, rounded up to whole vec4.
const KEYS = (SLOTS + 3u) / 4u * 4u;
var<workgroup> slot_of: array<u32, EXPERTS>;
var<workgroup> counts: array<u32, EXPERTS>;
var<workgroup> expert_in: array<u32, SLOTS>;
var<workgroup> keys: array<u32, KEYS>;

// Stores the order in which slot t is forgotten: an empty one first, and never one whose expert is chosen.
fn key_put(t: u32) {
  if (t >= KEYS) { return; }
  let held = expert_in[min(t, SLOTS - 1u)];
  var key = 0u;
  if (held > 0u) { key = select(counts[held - 1u] + 1u, NONE, is_chosen(held - 1u)); }
  keys[t] = select(NONE, key, t < SLOTS);
}

// The number of slots that are forgotten before this one.
fn place_of(slot: u32) -> u32 {
  let own = vec4(keys[slot]);
  var before = vec4(0u);
  var other = 0u;
  loop {
    if (other >= KEYS) { break; }
    let key = vec4(keys[other], keys[other + 1u], keys[other + 2u], keys[other + 3u]);
    let id = vec4(other) + vec4(0u, 1u, 2u, 3u);
    before += select(vec4(0u), vec4(1u), (key < own) | ((key == own) & (id < vec4(slot))));
    other += 4u;
  }
  return before.x + before.y + before.z + before.w;
}

// An expert's count `times` choices later, when the token number `now` comes after the token number `before`.
fn count_of(count: u32, times: u32, now: u32, before: u32) -> u32 {
  let sum = count + COUNTED * times;
  return select(sum, sum * DECAY_TIMES / DECAY_BY, now / PERIOD > before / PERIOD);
}
