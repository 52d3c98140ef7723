// The second half of a choice, for each row of logits: picks one token by the keys that sample_scan wrote.
//
// Greedy: the best of the slices' maxima. Else top-k, top-p and min-p each keep tokens from the best on, ranked by greater key, then by lower
// id. The token is the first one in order of ids at which the running sum of exp((logit - best) / temperature) exceeds draw * total.
// Division: grid (1, rows), a workgroup for each row. `table` has one record for each row (shared/choice.wgsl). The k-th best maximum among groups of slices bounds the k-th best key from below. So only the quarters of slices
// whose maximum reaches the bound are read, and mostly few tokens there reach it (shared/choose_few.wgsl).
// More than WG candidates are left with an even distribution and no top-k, or with a large k (shared/choose_many.wgsl). Then histograms over
// what may still be kept find each cut, finer and finer, until its bin has few enough tokens to sort. Sums over the slices find the token.
// Bound by: among few, latency: two round trips to memory, the barriers, and a comparison per pair of candidates; among many, one workgroup
// that walks the keys once or twice for each histogram and once for the sums.
#number VOCAB WG SLICES LIVE  // tokens of the vocabulary, threads of a workgroup, slices of a row, slices or quarters that are listed
#number BINS PER  // words for histograms or sums, slices of a thread
#import choice
#read keys: array<vec4<u32>> @words(GRID_Y * ceil(VOCAB, WG) * WG)      // (rows, slices, WG / 4)
#read maxima: array<vec4<u32>> @words(4 * GRID_Y * ceil(VOCAB, WG))     // (rows, slices) of (key, id, mass as bits, broken)
#read quarters: array<vec4<u32>> @words(4 * GRID_Y * ceil(VOCAB, WG))   // (rows, slices) of the greatest keys of the quarters
#write history: array<u32> @words(IDS + 1)                              // ids by position
#write chosen: array<vec4<u32>> @words(4 * GRID_Y)                      // (rows) of (id, step, number, broken)
#import order
#import best

const ALL = 0xffffffffu;
const LANES = 8u;           // threads that walk a slice together
const PIECE = 4u;           // log2 of the vec4s of a quarter of a slice
const GROUPS = 127u;        // groups of slices for the bound
const MANY_GROUPS = 251u;   // the same for k above GUESS
const GUESS = 64u;          // the k that is tried without top-k
const WIDEST = 32.0;        // how far below the best logit the first histogram reaches at most: tokens below have no mass
const ONE = 2147483648.0;   // a mass of 1 as an integer: sums of integers do not depend on their order

// Jobs of a walk over the live slices, for the tokens between lo and hi.
const TALLY = 0u;    // a histogram of their number, and if mass is cut also of their mass
const SHARE = 1u;    // the sum of their shares, by slice
const SORT = 2u;     // no walk: few enough are left to be sorted

// The steps of a choice among many. Those that do not apply are skipped.
const CUT_NUMBER = 1u;
const MASS_OF_KEPT = 2u;
const CUT_MASS = 3u;
const DRAW = 4u;

var<workgroup> tops: array<u32, SLICES>;    // keys of the maxima
var<workgroup> live: array<u32, LIVE>;      // slices to read, or up to WG quarters of slices
var<workgroup> live_count: atomic<u32>;
var<workgroup> few_count: atomic<u32>;      // candidates found, of which `ranked` has the first WG
var<workgroup> sums: array<atomic<u32>, 2>;   // of masses, of weights among few
var<workgroup> bins: array<atomic<u32>, BINS>;   // (3, WG): counts, masses, carries of masses; or (SLICES): sums as bits
var<workgroup> running: array<f32, WG>;
var<workgroup> first: atomic<u32>;
var<workgroup> last: atomic<u32>;
var<workgroup> broken: atomic<u32>;         // whether a logit is not finite: then the token means nothing
var<workgroup> told: u32;
var<workgroup> told_sum: f32;

var<private> thread: u32;
// For each slice of the thread: its maximum, and the greatest keys of its quarters.
#for k PER
var<private> top$k: vec4<u32>;
var<private> quarter$k: vec4<u32>;
#endfor
var<private> first_key: u32;    // vector of `keys` with which the row begins
var<private> best: vec2<u32>;   // (key, id)
var<private> best_logit: f32;
// Tokens are kept if their keys are greater than `least`, or equal to it and their ids are at most last_id.
var<private> least: u32;
var<private> last_id: u32;
// A walk looks at keys from lo to hi.
var<private> lo: u32;
var<private> hi: u32;
// Their bins: even in logits if `scale` is not 0, else even in keys by `shift`. The cut is by mass or by number.
var<private> scale: f32;
var<private> shift: u32;
var<private> by_mass: bool;
// The share of a token is exp((logit - best) / temperature), or 1 if `counts`.
var<private> temperature: f32;
var<private> counts: bool;

// Gives all threads the value of the one thread that `says`. It is a barrier.
fn agree(mine: u32, says: bool) -> u32 {
  if (says) { told = mine; }
  return workgroupUniformLoad(&told);
}

fn weight(key: u32, temperature: f32) -> f32 {
  return exp((value(key) - best_logit) / temperature);
}

// Sets running[i] to the sum of v over threads 0 ..= i.
fn scan(v: f32) {
  workgroupBarrier();
  running[thread] = v;
  workgroupBarrier();
  var distance = 1u;
  loop {
    if (distance >= WG) { break; }
    var before = 0.0;
    if (thread >= distance) { before = running[thread - distance]; }
    workgroupBarrier();
    running[thread] += before;
    workgroupBarrier();
    distance = distance << 1u;
  }
}

// Lists the slices with keys of at least lo, in any order, and returns how many there are.
fn list_live() -> u32 {
  if (thread == 0u) { atomicStore(&live_count, 0u); }
  workgroupBarrier();
  var i = thread;
  loop {
    if (i >= SLICES) { break; }
    if (tops[i] >= lo) { live[atomicAdd(&live_count, 1u)] = i; }
    i += WG;
  }
  workgroupBarrier();
  return atomicLoad(&live_count);
}

// The cuts of a row.
struct Limits {
  limited: bool,     // whether top-k leaves some out
  bound: u32,        // a key that as many tokens reach
  width: f32,        // of the first histogram, in logits
  least_kept: u32,   // the least key that min-p keeps
  total: f32,        // the mass before top-p
}

#import choose_few
#import choose_many

fn publish(row: u32, own: Choice, id: u32) {
  if (thread == 0u) {
    history[own.to] = id;
    chosen[row] = vec4(id, own.step, own.number, atomicLoad(&broken));
  }
}

// Loads the maxima of the thread's slices, and returns the best of them.
fn load_maxima(row: u32) -> vec2<u32> {
  if (thread == 0u) { atomicStore(&broken, 0u); }
  workgroupBarrier();
#for k PER
  top$k = maxima[row * SLICES + min(thread + $ku * WG, SLICES - 1u)];
  quarter$k = quarters[row * SLICES + min(thread + $ku * WG, SLICES - 1u)];
#endfor
  var mine = vec2(0u, ALL);
#for k PER
  if (thread + $ku * WG < SLICES) {
    tops[thread + $ku * WG] = top$k.x;
    if (top$k.w == 1u) { atomicStore(&broken, 1u); }
    mine = better(mine, top$k.xy);
  }
#endfor
  return mine;
}

// Ranks the maxima of groups of slices. Returns the k-th key, and leaves the logit of the last one in told_sum. Fewer groups are ranked sooner
// but give a lower bound. Their number is prime, so that maxima at regular distances fall into different groups.
fn rank_groups(k: u32) -> u32 {
  let groups = select(MANY_GROUPS, GROUPS, k <= GUESS);
  atomicStore(&bins[thread], 0u);
  if (thread == 0u) {
    told = 0u;
    told_sum = best_logit - WIDEST;
    atomicStore(&live_count, 0u);
  }
  workgroupBarrier();
#for k PER
  if (thread + $ku * WG < SLICES) {
    let slice$k = thread + $ku * WG;
    atomicMax(&bins[select(slice$k % MANY_GROUPS, slice$k % GROUPS, k <= GUESS)], top$k.x);
  }
#endfor
  workgroupBarrier();
  let greatest = atomicLoad(&bins[thread]);
  ranked[thread] = vec2(select(0u, greatest, thread < groups), thread);
  workgroupBarrier();
  rank(groups);
  if (thread < groups) {
    let place = atomicLoad(&bins[thread]);
    if (place + 1u == k) { told = greatest; }
    if (place + 1u == groups && greatest > LOWEST) { told_sum = value(greatest); }
  }
  return workgroupUniformLoad(&told);
}

// The mass of all tokens.
fn mass_of_all() -> f32 {
  var mass = 0.0;
#for k PER
  if (thread + $ku * WG < SLICES && top$k.x > LOWEST) { mass += weight(top$k.x, 1.0) * bitcast<f32>(top$k.z); }
#endfor
  scan(mass);
  return running[WG - 1u];
}

// Lists the quarters with keys of at least lo. Returns how many there are, even if only WG of them fit.
fn list_quarters() -> u32 {
#for k PER
  if (thread + $ku * WG < SLICES && top$k.x >= lo) {
    var four = quarter$k;
    var c = 0u;
    loop {
      if (c >= 4u) { break; }
      if (four.x >= lo) {
        let place = atomicAdd(&live_count, 1u);
        if (place < WG) { live[place] = (thread + $ku * WG) * 4u + c; }
      }
      four = four.yzwx;
      c += 1u;
    }
  }
#endfor
  workgroupBarrier();
  return atomicLoad(&live_count);
}

// The id that is drawn.
fn draw(own: Choice) -> u32 {
  best_logit = value(best.x);
  least = LOWEST + 1u;
  last_id = ALL;
  hi = ALL;
  let limited = own.top_k > 0u && (own.top_k <= WG || own.top_k < VOCAB);
  let k = select(GUESS, own.top_k, limited);
  let bound = max(rank_groups(k), least);
  let width = clamp(4.0 * (best_logit - told_sum), 1e-30, WIDEST);
  let least_kept = max(order(best_logit + own.log_min_p), least);
  let complete = limited || least_kept >= bound;
  var total = 0.0;
  if (!limited && own.top_p < 1.0) { total = mass_of_all(); }
  lo = select(max(bound, least_kept), bound, limited);
  let pieces = list_quarters();
  // If all logits are minus infinity there is no distribution, and a logit of infinity takes all of it: the best is the choice.
  var way = select(0u, 1u, pieces <= WG && (complete || own.top_p < 1.0));
  if (best.x <= LOWEST || best.x >= INFINITE) { way = 2u; }
  way = agree(way, thread == 0u);
  if (way == 2u) { return best.y; }
  if (way == 1u) {
    let n = agree(gather(pieces, PIECE), thread == 0u);
    if (n <= WG) {
      let id = choose_few(own, n, select(WG, k, limited), least_kept, complete, limited, total);
      if (id != ALL) { return id; }
    }
  }
  return choose_many(own, Limits(limited, bound, width, least_kept, total));
}

#main
#fetch
  let own = own_choice(wid.y);
  thread = t;
  first_key = wid.y * (SLICES * WG / 4u);
  best = workgroup_best(load_maxima(wid.y), t, subgroup, subgroups, lane_id);
  if (own.temperature <= 0.0) {
    publish(wid.y, own, best.y);
    return;
  }
  publish(wid.y, own, draw(own));
}
