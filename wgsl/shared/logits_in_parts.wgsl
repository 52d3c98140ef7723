// The logits of a token's experts where they come in PARTS (shared/router_parts.wgsl), added up by the whole workgroup in workgroup
// memory. EXPERTS is a multiple of 4.
#read logits: array<vec4<f32>>       // (PARTS, EXPERTS / 4)

const LOGIT_COLUMNS = EXPERTS / 4u;
// LOGIT_PHASES threads share a column, part by part.
var<workgroup> logit_sums: array<vec4<f32>, LOGIT_PHASES * LOGIT_COLUMNS>;

// Every thread calls; a barrier must follow.
fn add_logits(t: u32) {
  let phase = t / LOGIT_COLUMNS;
  if (phase < LOGIT_PHASES) {
    var sum = vec4<f32>(0.0);
#for i PART_LOADS
    let part$i = phase + $iu * LOGIT_PHASES;
#ifdef RAGGED_PARTS
    let value$i = logits[min(part$i, PARTS - 1u) * LOGIT_COLUMNS + t - phase * LOGIT_COLUMNS];
    sum += select(vec4<f32>(0.0), value$i, part$i < PARTS);
#else
    sum += logits[part$i * LOGIT_COLUMNS + t - phase * LOGIT_COLUMNS];
#endif
#endfor
    logit_sums[t] = sum;
  }
}

fn logit_of(expert: u32) -> f32 {
  var sum = 0.0;
#for i LOGIT_PHASES
  sum += logit_sums[$iu * LOGIT_COLUMNS + (expert >> 2u)][expert & 3u];
#endfor
  return sum;
}
