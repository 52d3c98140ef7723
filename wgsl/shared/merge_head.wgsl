// A head's latent, joined from the attention's slices by the whole workgroup and left in workgroup memory: with BYTES in
// halves of a record (shared/bytes.wgsl), else as floats. The kernel declares KV_LORA, `parts` and `stats` (shared/merge.wgsl); WG >= KV_LORA / 4.
#import merge

const COLUMNS = KV_LORA / 4u;   // groups of 4
const PHASES = WG / COLUMNS;    // threads that share one, slice by slice

var<workgroup> merge_maxima: array<f32, WG>;
var<workgroup> merge_totals: array<f32, WG>;
var<workgroup> merge_values: array<vec4<f32>, WG>;
#ifdef BYTES
#import bytes
#import quantize_quad
var<workgroup> latent_codes: array<u32, COLUMNS>;
var<workgroup> latent_scales: array<f32, KV_LORA / 16u>;
var<workgroup> latent_sums: array<f32, KV_LORA / 16u>;   // scale times the sum of the codes

// 32 values, once merge_head is done.
fn latent_unit(u: u32) -> Record {
  let at = 2u * u;
  let i = 8u * u;
  let lo = vec4<u32>(latent_codes[i], latent_codes[i + 1u], latent_codes[i + 2u], latent_codes[i + 3u]);
  let hi = vec4<u32>(latent_codes[i + 4u], latent_codes[i + 5u], latent_codes[i + 6u], latent_codes[i + 7u]);
  return Record(lo, hi, vec4<f32>(latent_scales[at], latent_scales[at + 1u], latent_sums[at], latent_sums[at + 1u]));
}
#else

fn latent_unit(u: u32) -> W32 {
  let i = 8u * u;
  return W32(merge_values[i], merge_values[i + 1u], merge_values[i + 2u], merge_values[i + 3u], merge_values[i + 4u], merge_values[i + 5u], merge_values[i + 6u], merge_values[i + 7u]);
}
#endif

// Every thread of the workgroup must call; t is the thread's number.
fn merge_head(head: u32, t: u32, splits: u32) {
  let phase = t / COLUMNS;
  if (phase < PHASES) {
    let own = merge(head, t - phase * COLUMNS, phase, PHASES, splits);
    merge_maxima[t] = own.max;
    merge_totals[t] = own.sum;
    merge_values[t] = own.value;
  }
  workgroupBarrier();
  if (t < COLUMNS) {
    // Phases behind the last slice had none.
    let end = min(splits, PHASES) * COLUMNS;
    var best = merge_maxima[t];
    var i = t + COLUMNS;
    loop {
      if (i >= end) { break; }
      best = max(best, merge_maxima[i]);
      i += COLUMNS;
    }
    var total = 0.0;
    var value = vec4(0.0);
    i = t;
    loop {
      if (i >= end) { break; }
      let weight = exp(merge_maxima[i] - best);
      total += weight * merge_totals[i];
      value += weight * merge_values[i];
      i += COLUMNS;
    }
#ifdef BYTES
    let quad = quantize_quad(value / total);
    latent_codes[t] = quad.word;
    if ((t & 3u) == 0u) {
      latent_scales[t >> 2u] = quad.scale;
      latent_sums[t >> 2u] = quad.scaled_sum;
    }
#else
    merge_values[t] = value / total;
#endif
  }
  workgroupBarrier();
}
