// The choice of a token among many candidates, for sample_pick, which declares the variables.

// Sorts the first n entries of `ranked`, best first. Those behind them are (0, ALL).
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

// The sum of `running` up to this thread's entry, and that of the first n entries. The others are 0.
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

// The bins of the first histogram, of equal width in logits. `below` is how far the logits are below the best.
fn bins_of(below: vec4<f32>) -> vec4<u32> {
  return vec4<u32>(clamp(below * scale, vec4(0.0), vec4(f32(WG - 1u))));
}

// The greatest finite key whose bin in the first histogram is `at` or later.
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

// Does the job for four tokens, from `id` on. Returns the sum of their shares, or 0.
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

// Does the job for the tokens between lo and hi of the n live slices.
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
  // This is 8, which the compiler does not know: some compilers take seconds for the unrolled loop.
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
      var four$k = keys[first_key + begin + $ku * LANES];
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

// After SHARE: the sum of the shares of this thread's PER consecutive slices.
fn own_slices() -> f32 {
  var own = 0.0;
#for k PER
  if (thread * PER + $ku < SLICES) { own += bitcast<f32>(atomicLoad(&bins[thread * PER + $ku])); }
#endfor
  return own;
}

// After SHARE and a scan of own_slices: the first id at which the running sum of shares exceeds the threshold. If none does, it is the last
// id with a share.
fn locate(threshold: f32) -> u32 {
  // Only slices with shares: rounding may change running sums elsewhere.
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
  let four = keys[first_key + id / 4u];
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

// The state of a choice.
struct State {
  step: u32,
  job: u32,
  ended: bool,   // whether the step is
  goal: f32,     // of a cut: the amount to reach,
  above: f32,    //   the amount of the keys above hi,
  count: u32,    //   and the number of tokens in its bin
  total: f32,    // the mass before top-p
}

// Begins the next step that applies.
fn begin_step(own: Choice, limits: Limits, state: ptr<function, State>) {
  var step = (*state).step + 1u;
  if (step == CUT_NUMBER && !limits.limited) { step = MASS_OF_KEPT; }
  if (step == MASS_OF_KEPT && !(limits.limited && own.top_p < 1.0)) { step = CUT_MASS; }
  if (step == CUT_MASS && own.top_p >= 1.0) { step = DRAW; }
  if (step == DRAW && limits.least_kept > least) {
    least = limits.least_kept;
    last_id = ALL;
  }
  (*state).step = step;
  (*state).job = SHARE;
  (*state).ended = false;
  temperature = select(1.0, own.temperature, step == DRAW);
  counts = false;
  lo = least;
  hi = ALL;
  if (step == CUT_NUMBER || step == CUT_MASS) {
    by_mass = step == CUT_MASS;
    lo = max(least, select(limits.bound, limits.least_kept, by_mass));
    hi = best.x;
    scale = f32(WG) / limits.width;
    (*state).job = TALLY;
    // The best has mass 1, so a goal of one half keeps it alone.
    (*state).goal = select(f32(own.top_k), max(own.top_p * (*state).total, 0.5), by_mass);
    (*state).above = 0.0;
    (*state).count = ALL;
  }
}

// Ends a cut whose bin has few enough tokens to sort.
fn cut_by_sorting(live_slices: u32, state: ptr<function, State>) {
  let n = min(gather(live_slices, PIECE + 2u), WG);
  sort_few(n);
  running[thread] = select(0.0, select(1.0, weight(ranked[thread].x, 1.0), by_mass), thread < n);
  if (thread == 0u) { atomicStore(&first, max(n, 1u) - 1u); }
  workgroupBarrier();
  if ((*state).above + sums_few(n).x >= (*state).goal) { atomicMin(&first, thread); }
  workgroupBarrier();
  let end = ranked[atomicLoad(&first)];
  least = end.x;
  last_id = end.y;
  (*state).ended = true;
}

// After TALLY: the amount in this thread's bin, of which `here` is the number of tokens.
fn own_bin(here: u32) -> f32 {
  if (by_mass) { return f32(atomicLoad(&bins[WG + thread])) / ONE + f32(atomicLoad(&bins[2u * WG + thread])) * 2.0; }
  return f32(here);
}

// After SHARE, whose sum is `sum`: the share at which the token lies. If all tokens have one key (`counts`), the lowest ids are kept.
fn threshold_of(own: Choice, sum: f32, state: ptr<function, State>) -> f32 {
  if (!counts) { return own.draw * sum; }
  var needed = (*state).goal - (*state).above;
  if (by_mass) { needed = ceil(needed / max(weight(lo, 1.0), 1e-30)); }
  return min(max(needed, 1.0), sum) - 0.5;
}

// After TALLY: goes on with bin `at`, which reaches the goal and has `count` tokens.
fn narrow(at: u32, count: u32, state: ptr<function, State>) {
  if (at > 0u) { (*state).above += running[at - 1u]; }
  (*state).count = count;
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
    (*state).job = SORT;
  } else if (lo == hi) {
    (*state).job = SHARE;
    counts = true;
  }
}

// The id that is chosen among all tokens, by one step after the other.
fn choose_many(own: Choice, limits: Limits) -> u32 {
  var state = State(0u, SHARE, true, 0.0, 0.0, ALL, limits.total);
  var chosen = ALL;
  loop {
    if (state.ended) { begin_step(own, limits, &state); }
    let job = agree(state.job, thread == 0u);
    let live_slices = agree(list_live(), thread == 0u);
    if (job == SORT) {
      cut_by_sorting(live_slices, &state);
      continue;
    }
    shift = max(32u - countLeadingZeros(hi - lo), 8u) - 8u;
    walk(live_slices, job);
    if (job == SHARE) {
      scan(own_slices());
      let sum = running[WG - 1u];
      state.ended = true;
      if (agree(select(0u, 1u, state.step == MASS_OF_KEPT), thread == 0u) == 1u) {
        state.total = sum;
        continue;
      }
      let id = locate(threshold_of(own, sum, &state));
      if (agree(state.step, thread == 0u) == DRAW) {
        chosen = id;
        break;
      }
      least = lo;
      last_id = id;
      continue;
    }
    let here = atomicLoad(&bins[thread]);
    scan(own_bin(here));
    if (here > 0u) {
      atomicMax(&last, thread);
      if (state.above + running[thread] >= state.goal) { atomicMin(&first, thread); }
    }
    workgroupBarrier();
    // After the first histogram some bin reaches the goal, up to rounding. If none does, the last one is taken.
    let reached = atomicLoad(&first);
    let at = agree(select(reached, atomicLoad(&last), reached == ALL && state.count != ALL), thread == 0u);
    if (at == ALL) {
      // No bin reaches the goal, so all are kept.
      state.ended = true;
      continue;
    }
    narrow(at, agree(here, thread == at), &state);
  }
  return chosen;
}
