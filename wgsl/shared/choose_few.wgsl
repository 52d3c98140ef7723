// The choice of a token among few candidates, for sample_pick, which declares the variables.

// Collects the tokens between lo and hi of n listed pieces, of 4 << size tokens each, in `ranked`, in any order. Returns how many there are,
// even if only WG of them fit.
fn gather(n: u32, size: u32) -> u32 {
  ranked[thread] = vec2(0u, ALL);
  if (thread == 0u) { atomicStore(&few_count, 0u); }
  workgroupBarrier();
  var i = thread;
  let end = n << size;
  loop {
    if (i >= end) { break; }
#for k 4
    // Behind the end the last vector is loaded again, and not used.
    let i$k = min(i + $ku * WG, end - 1u);
    let at$k = (live[i$k >> size] << size) + (i$k & ((1u << size) - 1u));
    var four$k = keys[first_key + at$k];
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

// For each entry c of the first n of `ranked`: bins[c] becomes the number of better entries, bins[WG + c] the sum of their amounts, which
// are in bins[2 WG ..]. Up to four threads share an entry. Entries behind the first n must be worse than all of them.
fn rank(n: u32) {
  atomicStore(&bins[thread], 0u);
  atomicStore(&bins[WG + thread], 0u);
  workgroupBarrier();
  let sharers = select(1u, 2u, 2u * n <= WG) + select(0u, 1u, 3u * n <= WG) + select(0u, 1u, 4u * n <= WG);
  let sharer = select(0u, 1u, thread >= n) + select(0u, 1u, thread >= 2u * n) + select(0u, 1u, thread >= 3u * n);
  let c = thread - sharer * n;
  if (c < n && sharer < sharers) {
    let mine = ranked[c];
    var place = 0u;
    var sum = 0u;
    var i = 4u * sharer;
    loop {
      if (i >= n) { break; }
#for k 4
      let other$k = ranked[i + $ku];
      let amount$k = atomicLoad(&bins[2u * WG + i + $ku]);
#endfor
#for k 4
      let better$k = other$k.x > mine.x || (other$k.x == mine.x && other$k.y < mine.y);
      place += select(0u, 1u, better$k);
      sum += select(0u, amount$k, better$k);
#endfor
      i += 4u * sharers;
    }
    atomicAdd(&bins[c], place);
    atomicAdd(&bins[WG + c], sum);
  }
  workgroupBarrier();
}

// The id that is chosen among the n entries of `ranked`, of which at most k are kept. It is ALL if these do not reach top-p and are not
// complete, that is, others may be kept, too. The mass before top-p is `total`, or with `limited` that of the k best.
// Masses, and then weights, are integers. So the sum over better entries, or over lower ids, needs no sorting.
fn choose_few(own: Choice, n: u32, k: u32, least_kept: u32, complete: bool, limited: bool, total: f32) -> u32 {
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
    atomicStore(&bins[2u * WG + thread], amount);
    workgroupBarrier();
    rank(n);
    var place = 0u;
    var before = 0u;
    if (kept) {
      place = atomicLoad(&bins[thread]);
      before = atomicLoad(&bins[WG + thread]);
      kept = place < k;
      if (kept) { atomicAdd(&sums[turn], amount); }
    }
    workgroupBarrier();
    let sum = f32(atomicLoad(&sums[turn]));
    if (turn == 1u) {
      // If rounding takes the threshold to the total, the best stays chosen.
      let threshold = u32(own.draw * sum);
      if (kept && before <= threshold && threshold < before + amount) { told = mine.y; }
      break;
    }
    if (own.top_p < 1.0) {
      let goal = own.top_p * select(total * one, sum, limited);
      if (place > 0u && f32(before) >= goal) { kept = false; }
      if (!complete && sum < goal) {
        kept = false;
        if (thread == 0u) { told = ALL; }
      }
    }
    kept = kept && mine.x >= least_kept;
    // The first turn ranks by key. The second ranks the kept ones by id.
    key = select(0u, 1u, kept);
    divisor = own.temperature;
    turn = 1u;
  }
  return workgroupUniformLoad(&told);
}
