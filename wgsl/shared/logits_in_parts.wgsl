// The logits of a token's experts where they come in PARTS (shared/router_parts.wgsl), added up by the whole workgroup in workgroup
// memory: asked for by logits_load, left there by logits_put, and read behind a barrier. EXPERTS is a multiple of 4.
#read logits: array<vec4<f32>>       // (PARTS, EXPERTS / 4)

const LOGIT_COLUMNS = EXPERTS / 4u;
// LOGIT_PHASES threads share a column, part by part; those of a subgroup add up theirs in LOGIT_FOLDS exchanges.
const LOGIT_SUMS = LOGIT_PHASES >> LOGIT_FOLDS;
var<workgroup> logit_sums: array<vec4<f32>, LOGIT_SUMS * LOGIT_COLUMNS>;

fn logit_of(expert: u32) -> f32 {
  var sum = 0.0;
#for i LOGIT_SUMMED
  sum += logit_sums[$iu * LOGIT_COLUMNS + (expert >> 2u)][expert & 3u];
#endfor
  return sum;
}
