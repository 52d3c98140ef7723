// Chooses the USED best experts of each token of a batch by the router's logits, and computes their weights. Then it lists tiles of up to
// PLACES slots of one expert, for the products of the experts (shared/batch_experts.wgsl). A slot is token * USED + rank.
//
// logits (tokens, LOGIT_STRIDE), of which EXPERTS are read -> weights (tokens, USED) and tiles (tiles, 8). The best expert of a token comes first, and among equals the one with
// the lower id. Tiles are sorted by expert and then by token. A tile is (expert, -, slots, -) and its slots. Tiles behind the last one have 0 slots.
// Division: one workgroup. THREADS threads share a token, with an expert each, and the workgroup takes WG / THREADS tokens at a time. Then
// each thread takes a slot.
// Bound by: latency; each thread reads the keys of its token's experts, and then the experts of the slots before its own.
#number EXPERTS USED WG PLACES  // experts of a layer, experts of a token, threads of a workgroup, slots of a tile
#number LOGIT_STRIDE THREADS MOST  // values from one token to the next in the logits, threads of a token, most tokens
#word tokens: u32
#word covered: u32    // tiles that the grids of the products cover
#word scale: f32      // by which the weights are multiplied
#read logits: array<f32> @floats((TOKENS - 1) * LOGIT_STRIDE + EXPERTS)    // (tokens, LOGIT_STRIDE)
#read bias?: array<f32> @floats(EXPERTS)              // (EXPERTS)
#write weights: array<f32> @floats(TOKENS * USED)     // (tokens, USED)
#write tiles: array<u32> @words(8 * max(p.covered, TOKENS * USED / PLACES + EXPERTS))   // (tiles, 8), of which each expert may leave one not full
#write workgroups: array<u32> @words(6)               // (2 products, 3), of which the second of 3 is written
#import order
#import router_weights

// Words of a tile, and the slots that it has room for.
const TILE_WORDS = 8u;
const MOST_PLACES = 4u;
const FIRST_SLOT = TILE_WORDS - MOST_PLACES;
// EXPERTS, rounded up to whole vec4.
const CHOICES = (EXPERTS + 3u) / 4u * 4u;
#ifndef SIGMOID
var<workgroup> token_logits: array<f32, WG>;      // (token, THREADS)
var<workgroup> token_exps: array<f32, WG>;        // (token, THREADS)
#endif
var<workgroup> keys: array<u32, WG>;              // (token, THREADS)
var<workgroup> chosen: array<u32, MOST * USED>;   // (slot), the expert
var<workgroup> probs: array<f32, MOST * USED>;    // (slot), its probability
var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> first_tiles: array<u32, EXPERTS>;

// The probability of the thread's expert. The logits of its token begin with thread `first`. Every thread must call.
fn probability(logit: f32, t: u32, first: u32) -> f32 {
#ifdef SIGMOID
  return router_sigmoid(logit);
#else
  token_logits[t] = logit;
  workgroupBarrier();
  var greatest = token_logits[first];
  var i = 1u;
  loop {
    if (i >= EXPERTS) { break; }
    greatest = max(greatest, token_logits[first + i]);
    i += 1u;
  }
  let own = exp(logit - greatest);
  token_exps[t] = own;
  workgroupBarrier();
  var total = 0.0;
  i = 0u;
  loop {
    if (i >= EXPERTS) { break; }
    total += token_exps[first + i];
    i += 1u;
  }
  return own / total;
#endif
}

fn bias_of(expert: u32) -> f32 {
#ifdef bias
  return bias[min(expert, EXPERTS - 1u)];
#else
  return 0.0;
#endif
}

// The number of experts of the token that come before this one. Their keys begin with thread `first`.
fn place_of(key: u32, expert: u32, first: u32) -> u32 {
  var before = vec4(0u);
  var j = 0u;
  loop {
    if (j >= CHOICES) { break; }
    let at = first + j;
    let other = vec4(keys[at], keys[at + 1u], keys[at + 2u], keys[at + 3u]);
    let id = vec4(j) + vec4(0u, 1u, 2u, 3u);
    let ahead = (other > vec4(key)) | ((other == vec4(key)) & (id < vec4(expert)));
    before += select(vec4(0u), vec4(1u), ahead);
    j += 4u;
  }
  return before.x + before.y + before.z + before.w;
}

// The weight of a slot.
fn weight_of(slot: u32) -> f32 {
#ifdef NORM
  let first = slot / USED * USED;
  var sum = 0.0;
  var k = 0u;
  loop {
    if (k >= USED) { break; }
    sum += probs[first + k];
    k += 1u;
  }
  return probs[slot] / max(sum, MIN_WEIGHT_SUM);
#else
  return probs[slot];
#endif
}

// The number of slots before this one that have its expert.
fn rank_of(slot: u32, expert: u32) -> u32 {
  var rank = 0u;
  var j = 0u;
  loop {
    if (j >= slot) { break; }
    rank += select(0u, 1u, chosen[j] == expert);
    j += 1u;
  }
  return rank;
}

fn tiles_of(expert: u32) -> u32 { return (atomicLoad(&counts[expert]) + PLACES - 1u) / PLACES; }

#main
  var e = t;
  loop {
    if (e >= EXPERTS) { break; }
    atomicStore(&counts[e], 0u);
    e += WG;
  }
  let expert = t % THREADS;
  let own_bias = bias_of(expert);
  var base = 0u;
  loop {
    if (base >= p.tokens) { break; }
    let token = base + t / THREADS;
    var logit = -1e30;
    if (expert < EXPERTS && token < p.tokens) { logit = logits[token * LOGIT_STRIDE + expert]; }
    let prob = probability(logit, t, t - expert);
    // Threads without an expert have the lowest key and the highest ids, so they come last.
    let key = select(0u, order(prob + own_bias), expert < EXPERTS);
    keys[t] = key;
    workgroupBarrier();
    let place = place_of(key, expert, t - expert);
    if (place < USED && expert < EXPERTS && token < p.tokens) {
      let slot = token * USED + place;
      chosen[slot] = expert;
      probs[slot] = prob;
      atomicAdd(&counts[expert], 1u);
    }
    workgroupBarrier();
    base += WG / THREADS;
  }
  e = t;
  loop {
    if (e >= EXPERTS) { break; }
    var first = 0u;
    var j = 0u;
    loop {
      if (j >= e) { break; }
      first += tiles_of(j);
      j += 1u;
    }
    first_tiles[e] = first;
    e += WG;
  }
  workgroupBarrier();
  var slot = t;
  loop {
    if (slot >= p.tokens * USED) { break; }
    weights[slot] = weight_of(slot) * p.scale;
    let own = chosen[slot];
    let rank = rank_of(slot, own);
    let at = TILE_WORDS * (first_tiles[own] + rank / PLACES);
    let left = atomicLoad(&counts[own]) - rank;
    var place = rank % PLACES;
    if (place == 0u) {
      tiles[at] = own;
      tiles[at + 2u] = min(left, PLACES);
    }
    tiles[at + FIRST_SLOT + place] = slot;
    // The last slot of a tile stands for the places behind it, too.
    let last = left == 1u || place + 1u == PLACES;
    loop {
      place += 1u;
      if (!last || place >= MOST_PLACES) { break; }
      tiles[at + FIRST_SLOT + place] = slot;
    }
    slot += WG;
  }
  let filled = first_tiles[EXPERTS - 1u] + tiles_of(EXPERTS - 1u);
  if (t < 2u) { workgroups[t * 3u + 1u] = filled; }
  var tile = filled + t;
  loop {
    if (tile >= p.covered) { break; }
    tiles[TILE_WORDS * tile + 2u] = 0u;
    tile += WG;
  }
}
