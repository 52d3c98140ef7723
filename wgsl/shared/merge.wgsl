// Joins slices of attention: 4 columns of a head over slices first, first + step, .. (none: sum 0).
// Uses `parts` (heads, splits, KV_LORA / 4) and `stats` (heads, splits) of (max, sum), which the kernel declares.
// sum and value are relative to exp(max); the attention's output is value / sum over all slices.
struct Joined { max: f32, sum: f32, value: vec4<f32> }

fn merge(head: u32, column: u32, first: u32, step: u32, splits: u32) -> Joined {
  var all = Joined(-1e30, 0.0, vec4(0.0));
  let last = (head + 1u) * splits - 1u;
  var s = head * splits + first;
  if (splits <= 2u * step) {
    // A short context has two at most; work on slices that are not there would take longer than on these.
#for i 2
    let stats_of$i = stats[min(s + $iu * step, last)];
    let part_of$i = parts[min(s + $iu * step, last) * (KV_LORA / 4u) + column];
    let max_of$i = select(-1e30, stats_of$i.x, s + $iu * step <= last);
#endfor
    all.max = max(max_of0, max_of1);
#for i 2
    let weight_of$i = select(0.0, exp(max_of$i - all.max), s + $iu * step <= last);
    all.sum += weight_of$i * stats_of$i.y;
    all.value += weight_of$i * part_of$i;
#endfor
    return all;
  }
  loop {
    if (s > last) { break; }
    // 8 at a time, so that their loads overlap; those after the last one weigh nothing.
#for i 8
    let at$i = min(s + $iu * step, last);
    let stats$i = stats[at$i];
    let part$i = parts[at$i * (KV_LORA / 4u) + column];
#endfor
    var best = all.max;
#for i 8
    best = max(best, stats$i.x);
#endfor
    let shrink = exp(all.max - best);
    all.max = best;
    all.sum *= shrink;
    all.value *= shrink;
#for i 8
    let weight$i = select(0.0, exp(stats$i.x - best), s + $iu * step <= last);
    all.sum += weight$i * stats$i.y;
    all.value += weight$i * part$i;
#endfor
    s += 8u * step;
  }
  return all;
}
