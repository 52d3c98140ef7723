// The second half of a choice: one token from the keys that sample_scan left.
//
// Greedy: the best of the maxima. Else top-k, top-p, min-p each keep the first so many in rank (greater key, then lower id), and
// the token is the first in order of ids at which the running sum of exp((logit - best) / temperature) exceeds uniform * total.
// Division: one workgroup. A thread owns PER slices in a row and keeps a list of its candidates, in order of ids. The k-th best
// slice maximum bounds the k-th best key from below, so with top-k only slices above it are read and lists are a few entries long.
// A rank is found by fixing its key bit by bit: 32 sums over the lists, exact counts or masses added in a fixed order.
// Bound by: the latency of those sums (some 100 barriers); without top-k, by one workgroup walking all VOCAB candidates, up to
// PER * WG steps for each of about ten sums until the lists shrink.
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
@group(0) @binding(1) var<storage, read> maxima: array<vec2<u32>>;        // (slices) of (key, id)
@group(0) @binding(2) var<storage, read_write> lists: array<vec2<u32>>;   // (WG, PER * WG) of (key, id)
@group(0) @binding(3) var<storage, read_write> history: array<u32>;       // (n_ctx + 1) ids by position
@group(0) @binding(4) var<storage, read_write> chosen: array<vec4<u32>>;  // one: (id, step, 0, 0)
#import params
#import reduce
#import order

const ALL = 0xffffffffu;

var<workgroup> tops: array<u32, SLICES>;     // keys of the maxima
var<workgroup> best_top: vec2<u32>;
var<workgroup> top_k_bound: u32;
var<workgroup> cut_ties: u32;
var<workgroup> running: array<f32, WG>;
var<workgroup> winner: atomic<u32>;

// Of this thread: where its list begins, its length, and what the reductions need.
var<private> base: u32;
var<private> count: u32;
var<private> thread: vec4<u32>;
var<private> best_logit: f32;

fn sum_all(v: f32) -> f32 {
  return workgroup_sum(v, thread.x, thread.y, thread.z, thread.w);
}

fn mass(key: u32) -> f32 {
  return exp(value(key) - best_logit);
}

// How many candidates have at least this key, or their mass.
fn amount(least: u32, by_mass: bool) -> f32 {
  var sum = 0.0;
  var i = 0u;
  loop {
    if (i >= count) { break; }
    let key = lists[base + i].x;
    if (key >= least) {
      if (by_mass) { sum += mass(key); } else { sum += 1.0; }
    }
    i += 1u;
  }
  return sum_all(sum);
}

// Drops all candidates below the key, and those of the key with a higher id.
fn trim(least: u32, last_id: u32) {
  var kept = 0u;
  var i = 0u;
  loop {
    if (i >= count) { break; }
    let entry = lists[base + i];
    if (entry.x > least || (entry.x == least && entry.y <= last_id)) {
      lists[base + kept] = entry;
      kept += 1u;
    }
    i += 1u;
  }
  count = kept;
}

// Keeps the fewest candidates in rank whose amount reaches `goal`; all where it never does.
fn keep_first(goal: f32, by_mass: bool) {
  var found = 0u;
  var bit = 0x80000000u;
  loop {
    if (bit == 0u) { break; }
    if (amount(found | bit, by_mass) >= goal) { found |= bit; }
    // The key looked for is at least what is found so far: what lies below need not be walked again.
    if ((bit & 0x01110000u) != 0u) { trim(found, ALL); }
    bit = bit >> 1u;
  }
  let above = amount(found + 1u, by_mass);
  let ties = amount(found, false) - amount(found + 1u, false);
  var needed = goal - above;
  if (by_mass) { needed = ceil(needed / max(mass(max(found, LOWEST + 1u)), 1e-30)); }
  needed = max(needed, 1.0);
  if (thread.x == 0u) { cut_ties = select(0u, 1u, needed < ties); }
  var last_id = ALL;
  if (workgroupUniformLoad(&cut_ties) == 1u) {
    // The greatest number with fewer than `needed` ties below it is the id of the last one to keep.
    last_id = 0u;
    bit = 1u << 17u;
    loop {
      if (bit == 0u) { break; }
      var below = 0.0;
      var i = 0u;
      loop {
        if (i >= count) { break; }
        let entry = lists[base + i];
        if (entry.x == found && entry.y < (last_id | bit)) { below += 1.0; }
        i += 1u;
      }
      if (sum_all(below) < needed) { last_id |= bit; }
      bit = bit >> 1u;
    }
  }
  trim(found, last_id);
}

fn publish(id: u32) {
  history[p.pos + p.tokens] = id;
  chosen[0] = vec4(id, p.step, 0u, 0u);
}

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  thread = vec4(t, subgroup, subgroups, lane_id);
  base = t * PER * WG;
  count = 0u;
  var i = t;
  loop {
    if (i >= SLICES) { break; }
    tops[i] = maxima[i].x;
    i += WG;
  }
  if (t == 0u) {
    top_k_bound = 0u;
    atomicStore(&winner, ALL);
  }
  workgroupBarrier();
  i = t;
  loop {
    if (i >= SLICES) { break; }
    let top = tops[i];
    var place = 0u;
    var j = 0u;
    loop {
      if (j >= SLICES) { break; }
      if (tops[j] > top || (tops[j] == top && j < i)) { place += 1u; }
      j += 1u;
    }
    if (place == 0u) { best_top = maxima[i]; }
    if (place + 1u == p.top_k) { top_k_bound = top; }
    i += WG;
  }
  let best = workgroupUniformLoad(&best_top);
  let bound = max(workgroupUniformLoad(&top_k_bound), LOWEST + 1u);
  // Nothing but minus infinity has no distribution; infinity takes all.
  if (p.temperature <= 0.0 || best.x <= LOWEST || best.x >= INFINITE) {
    if (t == 0u) { publish(best.y); }
    return;
  }
  best_logit = value(best.x);

  var slice = t * PER;
  loop {
    if (slice >= min((t + 1u) * PER, SLICES)) { break; }
    if (tops[slice] >= bound) {
      var q = 0u;
      loop {
        if (q >= WG / 4u) { break; }
        let four = keys[slice * (WG / 4u) + q];
#for k 4
        if (four[$k] >= bound) {
          lists[base + count] = vec2(four[$k], slice * WG + q * 4u + $ku);
          count += 1u;
        }
#endfor
        q += 1u;
      }
    }
    slice += 1u;
  }

  if (p.top_k > 0u && p.top_k < VOCAB) { keep_first(f32(p.top_k), false); }
  // The best has mass 1, so a goal of one half keeps it alone.
  if (p.top_p < 1.0) { keep_first(max(p.top_p * amount(0u, true), 0.5), true); }
  trim(order(best_logit + p.log_min_p), ALL);

  var sum = 0.0;
  i = 0u;
  loop {
    if (i >= count) { break; }
    sum += exp((value(lists[base + i].x) - best_logit) / p.temperature);
    i += 1u;
  }
  running[t] = sum;
  workgroupBarrier();
  var distance = 1u;
  loop {
    if (distance >= WG) { break; }
    var before = 0.0;
    if (t >= distance) { before = running[t - distance]; }
    workgroupBarrier();
    running[t] += before;
    workgroupBarrier();
    distance = distance << 1u;
  }
  let threshold = p.uniform_draw * running[WG - 1u];
  if (sum > 0.0 && running[t] > threshold) { atomicMin(&winner, t); }
  workgroupBarrier();
  let first = atomicLoad(&winner);
  // Rounding of uniform * total can reach the total.
  if (first == ALL && t == 0u) { publish(best.y); }
  if (first == t) {
    var total = 0.0;
    if (t > 0u) { total = running[t - 1u]; }
    var id = best.y;
    i = 0u;
    loop {
      if (i >= count) { break; }
      let entry = lists[base + i];
      let weight = exp((value(entry.x) - best_logit) / p.temperature);
      total += weight;
      if (weight > 0.0) { id = entry.y; }
      if (total > threshold) { break; }
      i += 1u;
    }
    publish(id);
  }
}
