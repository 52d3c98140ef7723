// Joins the slices of attention: a softmax over the slices, weighted by their sums.
//
// parts (tokens, HEADS, splits, KV_LORA) and stats (max, sum) of each -> out (tokens, HEADS, KV_LORA).
// Division: grid (HEADS, column blocks, tokens); a workgroup owns COLUMNS vec4 of one head, PHASES threads share one,
// slice by slice. Bound by: reading the partial sums, splits * HEADS * KV_LORA * 4 bytes, from the second-level cache.
struct Params {
  splits: u32,
}
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;      // (tokens, HEADS, splits, KV_LORA / 4)
@group(0) @binding(1) var<storage, read> stats: array<vec2<f32>>;        // (tokens, HEADS, splits) of (max, sum)
@group(0) @binding(2) var<storage, read_write> merged: array<vec4<f32>>; // (tokens, HEADS, KV_LORA / 4)
#import params
#import reduce

var<workgroup> maxima: array<f32, WG>;
var<workgroup> weights: array<f32, WG>;
var<workgroup> sums: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let head = wid.z * HEADS + wid.x;
  // WG is at least as great as the number of slices: a thread each.
  var own = vec2(-1e30, 0.0);
  if (t < p.splits) { own = stats[head * p.splits + t]; }
  maxima[t] = own.x;
  workgroupBarrier();
  var step = WG / 2u;
  loop {
    if (step == 0u) { break; }
    if (t < step) { maxima[t] = max(maxima[t], maxima[t + step]); }
    workgroupBarrier();
    step = step >> 1u;
  }
  let weight = exp(own.x - maxima[0]);
  weights[t] = weight;
  let total = workgroup_sum(weight * own.y, t, subgroup, subgroups, lane_id);

  let column = wid.y * COLUMNS + t % COLUMNS;
  let phase = t / COLUMNS;
  var sum = vec4(0.0);
  if (column < KV_LORA / 4u) {
    var s = phase;
    loop {
      if (s >= p.splits) { break; }
      sum += weights[s] * parts[(head * p.splits + s) * (KV_LORA / 4u) + column];
      s += PHASES;
    }
  }
  sums[t] = sum;
  workgroupBarrier();
  if (phase == 0u && column < KV_LORA / 4u) {
#for i PHASES
    // The first is this thread's own.
    if ($iu > 0u) { sum += sums[$iu * COLUMNS + t]; }
#endfor
    merged[head * (KV_LORA / 4u) + column] = sum / total;
  }
}
