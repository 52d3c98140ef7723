// The logits of a token's experts, as sums of partial logits, one for each of RUNS runs of rows (shared/leave_partial_logits.wgsl). The whole
// workgroup requests them (logits_ask), adds them up in workgroup memory (logits_put) and reads sums after a barrier (logit_of). EXPERTS is a
// multiple of 4.
#number RUNS RUN_LOADS LOGIT_SUMMED LOGIT_FOLDS  // runs of rows, runs of a thread, sums of such a column, exchanges of a subgroup
#number LOGIT_PHASES  // threads that share a column of 4 experts
#import own_token
#read logits: array<vec4<f32>> @floats(TOKENS * RUNS * EXPERTS)      // (tokens, RUNS, EXPERTS / 4)
#flag RAGGED_RUNS   // the last threads have fewer runs, or none
#each i RUN_LOADS
#each s LOGIT_SUMMED
#each f LOGIT_FOLDS

const LOGIT_COLUMNS = EXPERTS / 4u;
// LOGIT_PHASES threads share a column of 4 experts, each with its runs. LOGIT_FOLDS exchanges add up those of one subgroup.
const LOGIT_SUMS = LOGIT_PHASES >> LOGIT_FOLDS;
var<workgroup> logit_sums: array<vec4<f32>, LOGIT_SUMS * LOGIT_COLUMNS>;   // (sum, column)

fn logit_of(expert: u32) -> f32 {
  var sum = 0.0;
  sum += logit_sums[$su * LOGIT_COLUMNS + (expert >> 2u)][expert & 3u];
  return sum;
}

alias Logits = array<vec4<f32>, RUN_LOADS>;

// The thread's partial logits. Workgroups that choose nothing load the first vector instead, because a branch would delay the loads after
// these.
fn logits_ask(t: u32, chooses: bool) -> Logits {
  return Logits(
    logits[own_token * (RUNS * LOGIT_COLUMNS) + select(0u, logit_at($iu, t), chooses)],
  );
}

// The vector of the thread's load i.
fn logit_at(i: u32, t: u32) -> u32 {
  let phase = t / LOGIT_COLUMNS;
  if (RAGGED_RUNS) { return min(phase + i * LOGIT_PHASES, RUNS - 1u) * LOGIT_COLUMNS + t - phase * LOGIT_COLUMNS; }
  return i * LOGIT_PHASES * LOGIT_COLUMNS + t;
}

// A barrier must follow.
fn logits_put(asked: Logits, t: u32) {
  let phase = t / LOGIT_COLUMNS;
  var sum = vec4<f32>(0.0);
  sum += select(vec4<f32>(0.0), asked[$i], !RAGGED_RUNS || phase + $iu * LOGIT_PHASES < RUNS);
  sum += subgroupShuffleXor(sum, LOGIT_COLUMNS << $fu);
  let column = t - phase * LOGIT_COLUMNS;
  let folded = phase & ((1u << LOGIT_FOLDS) - 1u);
  if (phase < LOGIT_PHASES && folded == 0u) { logit_sums[(phase >> LOGIT_FOLDS) * LOGIT_COLUMNS + column] = sum; }
}
