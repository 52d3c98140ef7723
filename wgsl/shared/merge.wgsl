// Joins slices of attention: 4 columns of a head over slices first, first + step, .. (none: sum 0).
// Uses `parts` (heads, splits, KV_LORA / 4) and `stats` (heads, splits) of (max, sum), which the kernel declares.
// sum and value are relative to exp(max); the attention's output is value / sum over all slices.
struct Joined { max: f32, sum: f32, value: vec4<f32> }

fn merge(head: u32, column: u32, first: u32, step: u32, splits: u32) -> Joined {
  var all = Joined(-1e30, 0.0, vec4(0.0));
  let last = (head + 1u) * splits - 1u;
  var s = head * splits + first;
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
