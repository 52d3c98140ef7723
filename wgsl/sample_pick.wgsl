// The second half of a choice: one token from the keys that sample_scan left.
//
// Greedy: the best of the maxima. Else top-k, top-p, min-p each keep the first so many in rank (greater key, then lower id), and
// the token is the first in order of ids at which the running sum of exp((logit - best) / temperature) exceeds uniform * total.
// Division: one workgroup. The k-th best maximum of slices, or of groups of them, bounds the k-th best key from below, so only slices
// that reach it are read, and what reaches it there is mostly few (`choose_few`).
// Where more than WG are left (no top-k and an even distribution, or a great k), a cut is found from histograms over what may
// still be kept, finer and finer, until its bin is few enough to sort; the token from sums of the slices.
// Bound by, among few: fetching its code, which the weights of a token drove from the caches, so loops are short and not unrolled;
// among many: one workgroup walking all keys, once or twice for a histogram and once for the sums.
struct Params {
  pos: u32,           // of the first token of the step
  tokens: u32,        // of the step
  temperature: f32,   // 0: greedy
  top_k: u32,         // 0: off
  top_p: f32,         // 1: off
  log_min_p: f32,     // least logit below the best, very negative: off
  uniform_draw: f32,  // in [0, 1)
  step: u32,          // told with the result
}
@group(0) @binding(0) var<storage, read> keys: array<vec4<u32>>;          // (slices, WG / 4)
@group(0) @binding(1) var<storage, read> maxima: array<vec4<u32>>;        // (slices) of (key, id, mass as bits, 0)
@group(0) @binding(2) var<storage, read_write> history: array<u32>;       // (n_ctx + 1) ids by position
@group(0) @binding(3) var<storage, read_write> chosen: array<vec4<u32>>;  // one: (id, step, 0, 0)
#import params
#import order
#import best

const ALL = 0xffffffffu;
const LANES = 8u;      // threads that walk a slice together
const GROUPS = WG / 2u;   // of slices, for the bound
const GUESS = 64u;     // maxima that bound a choice without top-k from below, if its probability lies there
const WIDEST = 32.0;   // logits below the best that the first histogram covers: what is below has no mass
const ONE = 2147483648.0;   // a mass of 1 in the histograms, which sum integers: in any order the same

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
var<workgroup> live: array<u32, SLICES>;    // slices to read
var<workgroup> live_count: atomic<u32>;
var<workgroup> few_count: atomic<u32>;      // entries of `ranked`, or more where they were too many
var<workgroup> sums: array<atomic<u32>, 2>;
var<workgroup> bins: array<atomic<u32>, BINS>;   // counts, masses, their carries (3, WG), or sums of slices as bits (SLICES)
var<workgroup> running: array<f32, WG>;
var<workgroup> first: atomic<u32>;
var<workgroup> last: atomic<u32>;
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

// Puts what is looked at in n live slices into `ranked`, in any order: how many, in truth.
fn gather(n: u32) -> u32 {
  ranked[thread] = vec2(0u, ALL);
  if (thread == 0u) { atomicStore(&few_count, 0u); }
  workgroupBarrier();
  var i = thread;
  let end = n * (WG / 4u);
  loop {
    if (i >= end) { break; }
#for k 4
    // Beyond the end anything: again what is there.
    let i$k = min(i + $ku * WG, end - 1u);
    let at$k = live[i$k / (WG / 4u)] * (WG / 4u) + (i$k & (WG / 4u - 1u));
    var four$k = keys[at$k];
    if (i + $ku * WG >= end) { four$k = vec4(0u); }
#endfor
    var at = at0;
    var four = four0;
    var next = 1u;
    loop {
      if (max(max(four.x, four.y), max(four.z, four.w)) >= lo) {
        var c = 0u;
        loop {
          if (c >= 4u) { break; }
          let id = at * 4u + c;
          if (four.x >= lo && four.x <= hi && !(four.x == least && id > last_id)) {
            let place = atomicAdd(&few_count, 1u);
            if (place < WG) { ranked[place] = vec2(four.x, id); }
          }
          four = four.yzwx;
          c += 1u;
        }
      }
      if (next >= 4u) { break; }
      switch (next) {
        case 1u: {
          at = at1;
          four = four1;
        }
        case 2u: {
          at = at2;
          four = four2;
        }
        default: {
          at = at3;
          four = four3;
        }
      }
      next += 1u;
    }
    i += 4u * WG;
  }
  workgroupBarrier();
  return atomicLoad(&few_count);
}

// Sorts the n entries of `ranked`, best first, those behind them being (0, ALL).
fn sort_few(n: u32) {
  let mine = ranked[thread];
  var place = 0u;
  var i = 0u;
  loop {
    if (i >= n) { break; }
#for k 4
    let other$k = ranked[i + $ku];
#endfor
#for k 4
    if (other$k.x > mine.x || (other$k.x == mine.x && other$k.y < mine.y)) { place += 1u; }
#endfor
    i += 4u;
  }
  workgroupBarrier();
  if (thread < n) { ranked[place] = mine; }
  workgroupBarrier();
}

// Of running, in order: (the sum up to this thread, the sum of the first n), the others being 0.
fn sums_few(n: u32) -> vec2<f32> {
  var sum = 0.0;
  var own = 0.0;
  var i = 0u;
  loop {
    if (i >= n) { break; }
#for k 4
    let next$k = running[i + $ku];
#endfor
#for k 4
    sum += next$k;
    own = select(own, sum, i + $ku == thread);
#endfor
    i += 4u;
  }
  return vec2(own, sum);
}

// The id chosen among the n of `ranked`, at most k of them; or ALL where top-p does not end among them and they are not all that
// may be kept. The mass before top-p is `total`, or what k leaves where that limits it.
// Masses and then weights are integers, so that those of better entries and of lower ids can be summed up without sorting.
fn choose_few(n: u32, k: u32, least_kept: u32, complete: bool, limited: bool, total: f32) -> u32 {
  let mine = ranked[thread];
  let one = ONE / f32(n);
  var kept = thread < n;
  var key = mine.x;
  var divisor = 1.0;
  if (thread < 2u) { atomicStore(&sums[thread], 0u); }
  if (thread == 0u) { told = best.y; }
  var turn = 0u;
  loop {
    var amount = 0u;
    if (kept) { amount = u32(weight(mine.x, divisor) * one); }
    ranked[thread] = vec2(key, mine.y);
    running[thread] = bitcast<f32>(amount);
    workgroupBarrier();
    var place = 0u;
    var before = 0u;
    if (kept) {
      var i = 0u;
      loop {
        if (i >= n) { break; }
#for k 4
        let other$k = ranked[i + $ku];
        let amount$k = bitcast<u32>(running[i + $ku]);
#endfor
#for k 4
        if (other$k.x > key || (other$k.x == key && other$k.y < mine.y)) {
          place += 1u;
          before += amount$k;
        }
#endfor
        i += 4u;
      }
      kept = place < k;
      if (kept) { atomicAdd(&sums[turn], amount); }
    }
    workgroupBarrier();
    let sum = f32(atomicLoad(&sums[turn]));
    if (turn == 1u) {
      // Where rounding of uniform * total reaches the total, the best stays.
      let threshold = u32(p.uniform_draw * sum);
      if (kept && before <= threshold && threshold < before + amount) { told = mine.y; }
      break;
    }
    if (p.top_p < 1.0) {
      let goal = p.top_p * select(total * one, sum, limited);
      if (place > 0u && f32(before) >= goal) { kept = false; }
      if (!complete && sum < goal) {
        kept = false;
        if (thread == 0u) { told = ALL; }
      }
    }
    kept = kept && mine.x >= least_kept;
    // From rank to order of ids.
    key = select(0u, 1u, kept);
    divisor = p.temperature;
    turn = 1u;
  }
  return workgroupUniformLoad(&told);
}

// Bins by value, of logits so far below the best: even ones, in the first histogram.
fn bins_of(below: vec4<f32>) -> vec4<u32> {
  return vec4<u32>(clamp(below * scale, vec4(0.0), vec4(f32(WG - 1u))));
}

// The greatest finite key whose bin by value is `at` or later.
fn edge(at: u32) -> u32 {
  var found = 0u;
  var bit = 0x80000000u;
  loop {
    if (bit == 0u) { break; }
    let key = found | bit;
    if (key <= LOWEST || (key < INFINITE && bins_of(vec4(best_logit - value(key))).x >= at)) { found = key; }
    bit = bit >> 1u;
  }
  return found;
}

// Four tokens of a walk: their shares.
fn take(four: vec4<u32>, id: u32, job: u32) -> f32 {
  if (max(max(four.x, four.y), max(four.z, four.w)) < lo) { return 0.0; }
  let ids = vec4(id) + vec4(0u, 1u, 2u, 3u);
  let wanted = (four >= vec4(lo)) & (four <= vec4(hi)) & ((four != vec4(least)) | (ids <= vec4(last_id)));
  let below = vec4(best_logit) - bitcast<vec4<f32>>(select(~four, four & vec4(0x7fffffffu), four >= vec4(0x80000000u)));
  let weights = exp(-below / temperature);
  if (job == SHARE) { return dot(select(vec4(0.0), select(weights, vec4(1.0), counts), wanted), vec4(1.0)); }
  let masses = vec4<u32>(select(vec4(0.0), weights, wanted) * ONE);
  let places = select((vec4(hi) - four) >> vec4(shift), bins_of(below), scale > 0.0);
#for c 4
  if (wanted[$c]) {
    atomicAdd(&bins[places[$c]], 1u);
    if (by_mass && atomicAdd(&bins[WG + places[$c]], masses[$c]) > ALL - masses[$c]) { atomicAdd(&bins[2u * WG + places[$c]], 1u); }
  }
#endfor
  return 0.0;
}

// Does the job with all that is looked at in the n live slices.
fn walk(n: u32, job: u32) {
  var b = thread;
  loop {
    if (b >= BINS) { break; }
    atomicStore(&bins[b], 0u);
    b += WG;
  }
  if (thread == 0u) {
    atomicStore(&first, ALL);
    atomicStore(&last, 0u);
  }
  workgroupBarrier();
  // 8, but not to the compiler: unrolled, some take seconds.
  let loads = min(n * 8u, 8u);
  var i = 0u;
  loop {
    if (i >= n) { break; }
    let at = i + thread / LANES;
    let slice = live[min(at, n - 1u)];
    let begin = slice * (WG / 4u) + (thread & (LANES - 1u));
    var sum = 0.0;
    if (at < n) {
#for k 8
      var four$k = keys[begin + $ku * LANES];
#endfor
      var k = 0u;
      loop {
        if (k >= loads) { break; }
        sum += take(four0, (begin + k * LANES) * 4u, job);
        four0 = four1;
        four1 = four2;
        four2 = four3;
        four3 = four4;
        four4 = four5;
        four5 = four6;
        four6 = four7;
        k += 1u;
      }
    }
    if (job == SHARE) {
#ifdef PLAIN
      running[thread] = sum;
      workgroupBarrier();
      sum = 0.0;
#for k 8
      sum += running[(thread & ~(LANES - 1u)) + $ku];
#endfor
      workgroupBarrier();
#else
      sum += subgroupShuffleXor(sum, 4u);
      sum += subgroupShuffleXor(sum, 2u);
      sum += subgroupShuffleXor(sum, 1u);
#endif
      if (at < n && (thread & (LANES - 1u)) == 0u) { atomicStore(&bins[slice], bitcast<u32>(sum)); }
    }
    i += WG / LANES;
  }
  workgroupBarrier();
}

// After shares: the sum of those of this thread's slices, PER in a row.
fn own_slices() -> f32 {
  var own = 0.0;
#for k PER
  if (thread * PER + $ku < SLICES) { own += bitcast<f32>(atomicLoad(&bins[thread * PER + $ku])); }
#endfor
  return own;
}

// After shares, and the scan of what each thread's slices have: the first id at which the running sum of shares exceeds the threshold, the last with any where none does.
fn locate(threshold: f32) -> u32 {
  // Rounding may let running sums grow, or shrink, where nothing is.
  if (own_slices() > 0.0) {
    atomicMax(&last, thread);
    if (running[thread] > threshold) { atomicMin(&first, thread); }
  }
  workgroupBarrier();
  var owner = atomicLoad(&first);
  if (owner == ALL) { owner = atomicLoad(&last); }
  workgroupBarrier();
  if (thread == owner) {
    var slice = thread * PER;
    var sum = 0.0;
    if (thread > 0u) { sum = min(running[thread - 1u], threshold); }
    var before = sum;
#for k PER
    if (thread * PER + $ku < SLICES && sum <= threshold) {
      let share = bitcast<f32>(atomicLoad(&bins[thread * PER + $ku]));
      if (share > 0.0) {
        slice = thread * PER + $ku;
        before = sum;
        sum += share;
      }
    }
#endfor
    told = slice;
    told_sum = before;
    atomicStore(&first, ALL);
    atomicStore(&last, 0u);
  }
  let slice = workgroupUniformLoad(&told);
  let before = told_sum;
  let id = slice * WG + thread;
  let four = keys[id / 4u];
  let mine = take(select(vec4(0u), four, vec4(id & 3u) == vec4(0u, 1u, 2u, 3u)), id & ~3u, SHARE);
  scan(mine);
  if (mine > 0.0) {
    atomicMax(&last, thread);
    if (before + running[thread] > threshold) { atomicMin(&first, thread); }
  }
  workgroupBarrier();
  let place = atomicLoad(&first);
  return slice * WG + select(place, atomicLoad(&last), place == ALL);
}

fn publish(id: u32) {
  if (thread == 0u) {
    history[p.pos + p.tokens] = id;
    chosen[0] = vec4(id, p.step, 0u, 0u);
  }
}

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  thread = t;
  var mine = vec2(0u, ALL);
#for k PER
  let top$k = maxima[min(t + $ku * WG, SLICES - 1u)];
#endfor
#for k PER
  if (t + $ku * WG < SLICES) {
    tops[t + $ku * WG] = top$k.x;
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

  // The maxima of groups of slices, every GROUPS-th, ranked by two threads each: the k-th and the last.
  workgroupBarrier();
  ranked[t] = mine;
  atomicStore(&bins[t], 0u);
  if (t == 0u) {
    told = 0u;
    told_sum = best_logit - WIDEST;
  }
  workgroupBarrier();
  let group = t & (GROUPS - 1u);
  let top = max(ranked[group].x, ranked[group + GROUPS].x);
  var place = 0u;
  var i = t / GROUPS * (GROUPS / 2u);
  let end = i + GROUPS / 2u;
  loop {
    if (i >= end) { break; }
#for k 4
    let other$k = max(ranked[i + $ku].x, ranked[i + $ku + GROUPS].x);
#endfor
#for k 4
    if (other$k > top || (other$k == top && i + $ku < group)) { place += 1u; }
#endfor
    i += 4u;
  }
  atomicAdd(&bins[group], place);
  workgroupBarrier();
  if (t < GROUPS) {
    place = atomicLoad(&bins[t]);
    if (place + 1u == k) { told = top; }
    if (place + 1u == GROUPS && top > LOWEST) { told_sum = value(top); }
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
  let slices = list_live();
  // A candidate in each. Nothing but minus infinity has no distribution; infinity takes all.
  var way = select(0u, 1u, slices <= WG && (complete || p.top_p < 1.0));
  if (best.x <= LOWEST || best.x >= INFINITE) { way = 2u; }
  way = agree(way, t == 0u);
  if (way == 2u) {
    publish(best.y);
    return;
  }
  if (way == 1u) {
    let n = agree(gather(slices), t == 0u);
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
      let n = min(gather(live_slices), WG);
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
