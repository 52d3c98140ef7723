// Joins slices of attention: 4 columns of a head, over slices first, first + step and so on of those from `place` on. Without any the sum is 0.
// The kernel declares `slice_sums` (heads, slices, KV_LORA / 4), KV_LORA values of a head, and `stats` (heads, slices) of (max, sum).
// In Joined, sum and value are relative to exp(max). Over all slices, value / sum is the output of the attention.
#each i 2
#each k 8
struct Joined { max: f32, sum: f32, value: vec4<f32> }

fn merge(place: u32, column: u32, first: u32, step: u32, slices: u32) -> Joined {
  let last = place + slices - 1u;
  let begin = place + first;
  if (slices <= 2u * step) { return merge_two(column, begin, step, last); }
  return merge_many(column, begin, step, last);
}

// For at most two slices, as in short contexts, where empty slots of merge_many would cost more than the slices.
fn merge_two(column: u32, s: u32, step: u32, last: u32) -> Joined {
  let at$i = min(s + $iu * step, last);
  let stats$i = stats[at$i];
  let sum$i = slice_sums[at$i * (KV_LORA / 4u) + column];
  let max$i = select(-1e30, stats$i.x, s + $iu * step <= last);
  var all = Joined(max(max0, max1), 0.0, vec4(0.0));
  let weight$i = select(0.0, exp(max$i - all.max), s + $iu * step <= last);
  all.sum += weight$i * stats$i.y;
  all.value += weight$i * sum$i;
  return all;
}

// Takes 8 slices at a time so that their loads overlap. Those behind the last one get no weight.
fn merge_many(column: u32, first: u32, step: u32, last: u32) -> Joined {
  var all = Joined(-1e30, 0.0, vec4(0.0));
  var s = first;
  loop {
    if (s > last) { break; }
    let at$k = min(s + $ku * step, last);
    let stats$k = stats[at$k];
    let sum$k = slice_sums[at$k * (KV_LORA / 4u) + column];
    var best = all.max;
    best = max(best, stats$k.x);
    let shrink = exp(all.max - best);
    all.max = best;
    all.sum *= shrink;
    all.value *= shrink;
    let weight$k = select(0.0, exp(stats$k.x - best), s + $ku * step <= last);
    all.sum += weight$k * stats$k.y;
    all.value += weight$k * sum$k;
    s += 8u * step;
  }
  return all;
}
