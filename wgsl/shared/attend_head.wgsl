// A head's latent over a short context of up to MOST_ROWS rows, attended by the whole workgroup and kept as a product's input
// (shared/kept_units.wgsl): what attention_short and merge_head make of it in two dispatches. Every workgroup of a head repeats it.
// The kernel declares KV_LORA; `q_lat`, `q_pe` and `cache` as attention_short.
//
// SHARE neighbouring threads score a row, a workgroup WG / SHARE rows at once; then a thread sums 8 columns over every PHASES-th row,
// from the first-level cache.
const LATENT = KV_LORA / 8u;         // groups of 8 values: of the latent,
const ROTATED = ROPE / 8u;           // and of the rotated key
const SCORED = WG / SHARE;           // rows at once
const PHASES = WG / LATENT;
const KEPT = KV_LORA;
#import kept_units

var<workgroup> attend_scores: array<f32, MOST_ROWS>;
var<workgroup> attend_weights: array<f32, MOST_ROWS>;
var<workgroup> attend_totals: array<f32, PHASES>;
var<workgroup> attend_sums: array<vec4<f32>, PHASES * LATENT * 2u>;

fn first_half(k: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y));
}

fn second_half(k: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w));
}

// Over `count` rows, at least one; t is the thread's number. Every thread of the workgroup must call; a barrier is at the end.
fn attend_head(head: u32, t: u32, lane_id: u32, lanes: u32, count: u32, scale: f32) {
  let lane = t & (SHARE - 1u);
#for i LATENT_LOADS
  let qa$i = q_lat[(head * LATENT + lane + $iu * SHARE) * 2u];
  let qb$i = q_lat[(head * LATENT + lane + $iu * SHARE) * 2u + 1u];
#endfor
#for i ROTATED_LOADS
  let c$i = min(lane + $iu * SHARE, ROTATED - 1u);
  let pa$i = q_pe[(head * ROTATED + c$i) * 2u];
  let pb$i = q_pe[(head * ROTATED + c$i) * 2u + 1u];
#endfor
#for r SCORINGS
  if ($ru * SCORED < count) {
    let row = $ru * SCORED + t / SHARE;
    // Rows behind the last one repeat it and are not written.
    let at = min(row, count - 1u) * (LATENT + ROTATED);
#for i LATENT_LOADS
    let k$i = cache[at + lane + $iu * SHARE];
#endfor
#for i ROTATED_LOADS
    let r$i = cache[at + LATENT + c$i];
#endfor
    var score = 0.0;
#for i LATENT_LOADS
    score += dot(qa$i, first_half(k$i)) + dot(qb$i, second_half(k$i));
#endfor
#for i ROTATED_LOADS
    score += select(0.0, dot(pa$i, first_half(r$i)) + dot(pb$i, second_half(r$i)), lane + $iu * SHARE < ROTATED);
#endfor
    if (SHARE > 8u) { score += subgroupShuffleXor(score, 8u); }
    if (SHARE > 4u) { score += subgroupShuffleXor(score, 4u); }
    if (SHARE > 2u) { score += subgroupShuffleXor(score, 2u); }
    score += subgroupShuffleXor(score, 1u);
    if (lane == 0u && row < count) { attend_scores[row] = score * scale; }
  }
#endfor
  workgroupBarrier();
  var most = -1e30;
  var i = lane_id;
  loop {
    if (i >= count) { break; }
    most = max(most, attend_scores[i]);
    i += lanes;
  }
  most = subgroupMax(most);
  if (t < count) { attend_weights[t] = exp(attend_scores[t] - most); }
  workgroupBarrier();
  let column = t % LATENT;
  let phase = t / LATENT;
  var a = vec4<f32>(0.0);
  var b = vec4<f32>(0.0);
  var total = 0.0;
  var row = phase;
  loop {
    if (row >= count) { break; }
    // Several at a time, so that their loads overlap.
#for u 4
    let row$u = row + $uu * PHASES;
    let v$u = cache[min(row$u, count - 1u) * (LATENT + ROTATED) + column];
    let weight$u = select(0.0, attend_weights[min(row$u, count - 1u)], row$u < count);
#endfor
#for u 4
    a += weight$u * first_half(v$u);
    b += weight$u * second_half(v$u);
    total += weight$u;
#endfor
    row += 4u * PHASES;
  }
  // (phase, 4 values)
  attend_sums[2u * t] = a;
  attend_sums[2u * t + 1u] = b;
  if (column == 0u) { attend_totals[phase] = total; }
  workgroupBarrier();
  if (t < 2u * LATENT) {
    var sum = attend_sums[t];
    var all = attend_totals[0];
    var j = 1u;
    loop {
      if (j >= PHASES) { break; }
      sum += attend_sums[j * (2u * LATENT) + t];
      all += attend_totals[j];
      j += 1u;
    }
    keep(t, sum / all);
  }
  workgroupBarrier();
}
