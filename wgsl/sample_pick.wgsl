// The second half of a choice: one token from the keys that sample_scan left.
//
// Greedy: the best of the maxima. Else top-k, top-p, min-p each keep the first so many in rank (greater key, then lower id), and
// the token is the first in order of ids at which the running sum of exp((logit - best) / temperature) exceeds uniform * total.
// Division: one workgroup. The k-th best maximum of slices, or of groups of them, bounds the k-th best key from below, so only
// quarters of slices that reach it are read, and what reaches it there is mostly few (`choose_few`).
// Where more than WG are left (no top-k and an even distribution, or a great k), a cut is found from histograms over what may
// still be kept, finer and finer, until its bin is few enough to sort; the token from sums of the slices.
// Bound by, among few: latency, two round trips to memory, some 25 barriers, and as many comparisons as pairs of candidates;
// among many: one workgroup walking the keys, once or twice for a histogram and once for the sums.
#word pos: u32           // of the first token of the step
#word tokens: u32        // of the step
#word temperature: f32   // 0: greedy
#word top_k: u32         // 0: off
#word top_p: f32         // 1: off
#word log_min_p: f32     // least logit below the best, very negative: off
#word uniform_draw: f32  // in [0, 1)
#word step: u32          // told with the result
#word number: u32        // of the submission, told with the result
#read keys: array<vec4<u32>> @words(ceil(VOCAB, WG) * WG)      // (slices, WG / 4)
#read maxima: array<vec4<u32>> @words(4 * ceil(VOCAB, WG))     // (slices) of (key, id, mass as bits, broken)
#read quarters: array<vec4<u32>> @words(4 * ceil(VOCAB, WG))   // (slices) keys of the maxima of their quarters
#write history: array<u32> @words(CONTEXT + 1)                 // ids by position
#write chosen: array<vec4<u32>> @words(4)                      // one: (id, step, number, broken)
#import order
#import best

const ALL = 0xffffffffu;
const LANES = 8u;           // threads that walk a slice together
const PIECE = 4u;           // log2 of the vec4s of a quarter of a slice
const GROUPS = 127u;        // of slices, whose k-th best maximum bounds a choice from below
const MANY_GROUPS = 251u;   // the same where k is greater than GUESS
const GUESS = 64u;          // the k without top-k, if top-p or min-p ends there
const WIDEST = 32.0;        // logits below the best that the first histogram covers: what is below has no mass
const ONE = 2147483648.0;   // a mass of 1 as an integer: integers sum up to the same in any order

// What is done with what a walk over the live slices looks at.
const TALLY = 0u;    // its number, and mass where that is cut, by bin
const SHARE = 1u;    // the sum of its shares by slice
const SORT = 2u;     // no walk: what is left is few enough

// The steps of a choice among many, of which those apply that something is left to do for.
const CUT_NUMBER = 1u;
const MASS_OF_KEPT = 2u;
const CUT_MASS = 3u;
const DRAW = 4u;

var<workgroup> tops: array<u32, SLICES>;    // keys of the maxima
var<workgroup> live: array<u32, LIVE>;      // slices to read, or up to WG quarters
var<workgroup> live_count: atomic<u32>;
var<workgroup> few_count: atomic<u32>;      // entries of `ranked`, or more where they were too many
var<workgroup> sums: array<atomic<u32>, 2>;   // of masses, of weights among few
var<workgroup> bins: array<atomic<u32>, BINS>;   // counts, masses, their carries (3, WG), or sums of slices as bits (SLICES)
var<workgroup> running: array<f32, WG>;
var<workgroup> first: atomic<u32>;
var<workgroup> last: atomic<u32>;
var<workgroup> broken: atomic<u32>;         // whether a logit is not finite: then the token means nothing
var<workgroup> told: u32;
var<workgroup> told_sum: f32;

var<private> thread: u32;
var<private> best: vec2<u32>;   // (key, id)
var<private> best_logit: f32;
// What is kept: greater keys, and up to last_id those of the least key.
var<private> least: u32;
var<private> last_id: u32;
// Keys from lo to hi are looked at.
var<private> lo: u32;
var<private> hi: u32;
// Their bins, by value where the scale is not 0, else by key; by mass or by number.
var<private> scale: f32;
var<private> shift: u32;
var<private> by_mass: bool;
// A share is exp((logit - best) / temperature), or 1 where it counts.
var<private> temperature: f32;
var<private> counts: bool;

// What one thread says, in all of them. A barrier.
fn agree(mine: u32, says: bool) -> u32 {
  if (says) { told = mine; }
  return workgroupUniformLoad(&told);
}

fn weight(key: u32, temperature: f32) -> f32 {
  return exp((value(key) - best_logit) / temperature);
}

// running = sums of v over the threads up to each.
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

// Lists the slices with keys of at least lo: how many. Their order is any.
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

#import choose_few
#import choose_many

fn publish(id: u32) {
  if (thread == 0u) {
    history[p.pos + p.tokens] = id;
    chosen[0] = vec4(id, p.step, p.number, atomicLoad(&broken));
  }
}

#main
#fetch
  thread = t;
  var mine = vec2(0u, ALL);
  if (t == 0u) { atomicStore(&broken, 0u); }
  workgroupBarrier();
#for k PER
  let top$k = maxima[min(t + $ku * WG, SLICES - 1u)];
  let quarter$k = quarters[min(t + $ku * WG, SLICES - 1u)];
#endfor
#for k PER
  if (t + $ku * WG < SLICES) {
    tops[t + $ku * WG] = top$k.x;
    if (top$k.w == 1u) { atomicStore(&broken, 1u); }
    mine = better(mine, top$k.xy);
  }
#endfor
  best = workgroup_best(mine, t, subgroup, subgroups, lane_id);
  if (p.temperature <= 0.0) {
    publish(best.y);
    return;
  }
  best_logit = value(best.x);
  least = LOWEST + 1u;
  last_id = ALL;
  hi = ALL;
  let limited = p.top_k > 0u && (p.top_k <= WG || p.top_k < VOCAB);
  let k = select(GUESS, p.top_k, limited);

  // The maxima of groups of slices, ranked: the k-th and the last. Fewer groups are ranked sooner and bound less.
  // Their number is prime, so that what lies at regular distances does not meet in one.
  let groups = select(MANY_GROUPS, GROUPS, k <= GUESS);
  atomicStore(&bins[t], 0u);
  if (t == 0u) {
    told = 0u;
    told_sum = best_logit - WIDEST;
    atomicStore(&live_count, 0u);
  }
  workgroupBarrier();
#for k PER
  if (t + $ku * WG < SLICES) {
    let slice$k = t + $ku * WG;
    atomicMax(&bins[select(slice$k % MANY_GROUPS, slice$k % GROUPS, k <= GUESS)], top$k.x);
  }
#endfor
  workgroupBarrier();
  let top = atomicLoad(&bins[t]);
  ranked[t] = vec2(select(0u, top, t < groups), t);
  workgroupBarrier();
  rank(groups);
  if (t < groups) {
    let place = atomicLoad(&bins[t]);
    if (place + 1u == k) { told = top; }
    if (place + 1u == groups && top > LOWEST) { told_sum = value(top); }
  }
  let bound = max(workgroupUniformLoad(&told), least);
  let width = clamp(4.0 * (best_logit - told_sum), 1e-30, WIDEST);
  let least_kept = max(order(best_logit + p.log_min_p), least);
  let complete = limited || least_kept >= bound;

  var total = 0.0;    // mass before top-p
  if (!limited && p.top_p < 1.0) {
    var mass = 0.0;
#for k PER
    if (t + $ku * WG < SLICES && top$k.x > LOWEST) { mass += weight(top$k.x, 1.0) * bitcast<f32>(top$k.z); }
#endfor
    scan(mass);
    total = running[WG - 1u];
  }
  lo = bound;
  if (!limited) { lo = max(bound, least_kept); }
  // The quarters to read, each with a candidate.
#for k PER
  if (t + $ku * WG < SLICES && top$k.x >= lo) {
    var four = quarter$k;
    var c = 0u;
    loop {
      if (c >= 4u) { break; }
      if (four.x >= lo) {
        let place = atomicAdd(&live_count, 1u);
        if (place < WG) { live[place] = (t + $ku * WG) * 4u + c; }
      }
      four = four.yzwx;
      c += 1u;
    }
  }
#endfor
  workgroupBarrier();
  let pieces = atomicLoad(&live_count);
  // Nothing but minus infinity has no distribution; infinity takes all.
  var way = select(0u, 1u, pieces <= WG && (complete || p.top_p < 1.0));
  if (best.x <= LOWEST || best.x >= INFINITE) { way = 2u; }
  way = agree(way, t == 0u);
  if (way == 2u) {
    publish(best.y);
    return;
  }
  if (way == 1u) {
    let n = agree(gather(pieces, PIECE), t == 0u);
    if (n <= WG) {
      let id = choose_few(n, select(WG, k, limited), least_kept, complete, limited, total);
      if (id != ALL) {
        publish(id);
        return;
      }
    }
  }

  var step = 0u;
  var next = true;
  var job = 0u;
  // Of a cut: the amount to reach, that of greater keys, how many there are in the bin.
  var goal = 0.0;
  var above = 0.0;
  var count = ALL;
  loop {
    if (next) {
      step += 1u;
      if (step == CUT_NUMBER && !limited) { step = MASS_OF_KEPT; }
      if (step == MASS_OF_KEPT && !(limited && p.top_p < 1.0)) { step = CUT_MASS; }
      if (step == CUT_MASS && p.top_p >= 1.0) { step = DRAW; }
      if (step == DRAW && least_kept > least) {
        least = least_kept;
        last_id = ALL;
      }
      job = SHARE;
      temperature = select(1.0, p.temperature, step == DRAW);
      counts = false;
      lo = least;
      hi = ALL;
      if (step == CUT_NUMBER || step == CUT_MASS) {
        job = TALLY;
        by_mass = step == CUT_MASS;
        lo = max(least, select(bound, least_kept, by_mass));
        hi = best.x;
        scale = f32(WG) / width;
        // The best has mass 1, so a goal of one half keeps it alone.
        goal = select(f32(p.top_k), max(p.top_p * total, 0.5), by_mass);
        above = 0.0;
        count = ALL;
      }
      next = false;
    }
    let now = agree(job, t == 0u);
    let live_slices = agree(list_live(), t == 0u);
    if (now == SORT) {
      let n = min(gather(live_slices, PIECE + 2u), WG);
      sort_few(n);
      running[t] = select(0.0, select(1.0, weight(ranked[t].x, 1.0), by_mass), t < n);
      if (t == 0u) { atomicStore(&first, max(n, 1u) - 1u); }
      workgroupBarrier();
      if (above + sums_few(n).x >= goal) { atomicMin(&first, t); }
      workgroupBarrier();
      let end = ranked[atomicLoad(&first)];
      least = end.x;
      last_id = end.y;
      next = true;
      continue;
    }
    shift = max(32u - countLeadingZeros(hi - lo), 8u) - 8u;
    walk(live_slices, now);

    var amount = 0.0;
    let own = atomicLoad(&bins[t]);
    if (now == SHARE) {
      amount = own_slices();
    } else if (by_mass) {
      amount = f32(atomicLoad(&bins[WG + t])) / ONE + f32(atomicLoad(&bins[2u * WG + t])) * 2.0;
    } else {
      amount = f32(own);
    }
    scan(amount);
    if (now == SHARE) {
      let sum = running[WG - 1u];
      if (agree(select(0u, 1u, step == MASS_OF_KEPT), t == 0u) == 1u) {
        total = sum;
        next = true;
        continue;
      }
      var threshold = p.uniform_draw * sum;
      if (counts) {
        // All of one key, of which the first ids stay.
        var needed = goal - above;
        if (by_mass) { needed = ceil(needed / max(weight(lo, 1.0), 1e-30)); }
        threshold = min(max(needed, 1.0), sum) - 0.5;
      }
      let id = locate(threshold);
      if (agree(step, t == 0u) == DRAW) {
        publish(id);
        return;
      }
      least = lo;
      last_id = id;
      next = true;
      continue;
    }

    if (own > 0u) {
      atomicMax(&last, t);
      if (above + running[t] >= goal) { atomicMin(&first, t); }
    }
    workgroupBarrier();
    // A bin of the first histogram is certain to reach it, but for rounding.
    let reached = atomicLoad(&first);
    let at = agree(select(reached, atomicLoad(&last), reached == ALL && count != ALL), t == 0u);
    if (at == ALL) {
      // None does: all are kept.
      next = true;
      continue;
    }
    if (at > 0u) { above += running[at - 1u]; }
    count = agree(own, t == at);
    if (scale > 0.0) {
      let low = edge(at + 1u) + 1u;
      if (at > 0u) { hi = min(hi, edge(at)); }
      if (at + 1u < WG) { lo = max(lo, low); }
      scale = 0.0;
    } else {
      hi -= at << shift;
      if (hi - lo >= 1u << shift) { lo = hi - ((1u << shift) - 1u); }
    }
    if (count <= WG) {
      job = SORT;
    } else if (lo == hi) {
      job = SHARE;
      counts = true;
    }
  }
}
