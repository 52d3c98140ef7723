// The whole workgroup joins a head's latent from the slices of attention, and keeps it as the input of a product
// (shared/kept_units.wgsl). The kernel declares KV_LORA, `slice_sums` and `stats` (shared/merge.wgsl). PHASES * KV_LORA / 4 <= WG.
#number PHASES  // threads that share a column
#import merge
#each i PHASES

// Vectors of 4 columns. PHASES threads share a vector, each with its slices.
const COLUMNS = KV_LORA / 4u;

var<workgroup> merge_maxima: array<f32, WG>;
var<workgroup> merge_totals: array<f32, WG>;
var<workgroup> merge_values: array<vec4<f32>, WG>;
const KEPT = KV_LORA;
#import kept_units

// The slices of the head begin at `first`. Every thread of the workgroup must call. t is the thread's number.
fn merge_head(first: u32, t: u32, slices: u32) {
  let phase = t / COLUMNS;
  if (phase < PHASES) {
    let own = merge(first, t - phase * COLUMNS, phase, PHASES, slices);
    merge_maxima[t] = own.max;
    merge_totals[t] = own.sum;
    merge_values[t] = own.value;
  }
  workgroupBarrier();
  if (t < COLUMNS) {
    // Phases without slices get no weight.
    let max$i = merge_maxima[t + $iu * COLUMNS];
    let total$i = merge_totals[t + $iu * COLUMNS];
    let value$i = merge_values[t + $iu * COLUMNS];
    var best = max0;
    best = max(best, max$i);
    var total = 0.0;
    var value = vec4(0.0);
    let weight$i = exp(max$i - best);
    total += weight$i * total$i;
    value += weight$i * value$i;
    keep(t, value / total);
  }
  workgroupBarrier();
}
