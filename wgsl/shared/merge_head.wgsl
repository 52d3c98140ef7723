// A head's latent, joined from the attention's slices by the whole workgroup and left in workgroup memory: with BYTES in
// halves of a record (shared/bytes.wgsl), else as floats. The kernel declares KV_LORA, `parts` and `stats` (shared/merge.wgsl);
// WG >= KV_LORA / 4, and PHASES is how often it is that.
#import merge

// Groups of 4, each of which PHASES threads share, slice by slice.
const COLUMNS = KV_LORA / 4u;

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
    // Phases behind the last slice had none, and weigh nothing.
#for i PHASES
    let max$i = merge_maxima[t + $iu * COLUMNS];
    let total$i = merge_totals[t + $iu * COLUMNS];
    let value$i = merge_values[t + $iu * COLUMNS];
#endfor
    var best = max0;
#for i PHASES
    best = max(best, max$i);
#endfor
    var total = 0.0;
    var value = vec4(0.0);
#for i PHASES
    let weight$i = exp(max$i - best);
    total += weight$i * total$i;
    value += weight$i * value$i;
#endfor
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
