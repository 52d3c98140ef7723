// Sums and maxima over threads of a workgroup, all of which must call. WG threads form the workgroup, and LANES threads share a row. LANES is
// a power of two up to 8, so that a row never leaves its subgroup: the tiers ask for subgroups of 8 or more. `t` is the thread's number.
#number WG LANES  // threads of a workgroup, threads that share a row
#ifdef PLAIN
var<workgroup> reduce_scratch: array<f32, WG>;
#else
var<workgroup> reduce_scratch: array<f32, 64>;
#endif

// The sum of v over the LANES threads of a row, in all of them.
fn lanes_sum(v: f32, t: u32) -> f32 {
#ifdef PLAIN
  workgroupBarrier();
  reduce_scratch[t] = v;
  workgroupBarrier();
  let first = t & ~(LANES - 1u);
  var sum = 0.0;
  var i = 0u;
  loop {
    if (i >= LANES) { break; }
    sum += reduce_scratch[first + i];
    i += 1u;
  }
  return sum;
#else
  var sum = v;
  if (LANES > 4u) { sum += subgroupShuffleXor(sum, 4u); }
  if (LANES > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  if (LANES > 1u) { sum += subgroupShuffleXor(sum, 1u); }
  return sum;
#endif
}

// The sum of v over the whole workgroup, in every thread.
fn workgroup_sum(v: f32, t: u32, subgroup: u32, subgroups: u32, lane: u32) -> f32 {
#ifdef PLAIN
  workgroupBarrier();
  reduce_scratch[t] = v;
  workgroupBarrier();
  var step = WG / 2u;
  loop {
    if (step == 0u) { break; }
    if (t < step) { reduce_scratch[t] += reduce_scratch[t + step]; }
    workgroupBarrier();
    step = step >> 1u;
  }
  return reduce_scratch[0];
#else
  let sum = subgroupAdd(v);
  workgroupBarrier();
  if (lane == 0u) { reduce_scratch[subgroup] = sum; }
  workgroupBarrier();
  var total = 0.0;
  var i = 0u;
  loop {
    if (i >= subgroups) { break; }
    total += reduce_scratch[i];
    i += 1u;
  }
  return total;
#endif
}

// The largest v of the whole workgroup, in every thread.
fn workgroup_max(v: f32, t: u32, subgroup: u32, subgroups: u32, lane: u32) -> f32 {
#ifdef PLAIN
  workgroupBarrier();
  reduce_scratch[t] = v;
  workgroupBarrier();
  var step = WG / 2u;
  loop {
    if (step == 0u) { break; }
    if (t < step) { reduce_scratch[t] = max(reduce_scratch[t], reduce_scratch[t + step]); }
    workgroupBarrier();
    step = step >> 1u;
  }
  return reduce_scratch[0];
#else
  let most = subgroupMax(v);
  workgroupBarrier();
  if (lane == 0u) { reduce_scratch[subgroup] = most; }
  workgroupBarrier();
  var result = reduce_scratch[0];
  var i = 1u;
  loop {
    if (i >= subgroups) { break; }
    result = max(result, reduce_scratch[i]);
    i += 1u;
  }
  return result;
#endif
}
