// The softmax of the scores that a subgroup's matrices left in workgroup memory, in an area of `scores` of its own. SPREAD lanes share a row of a
// matrix, and a lane takes FEW of every SPREAD * FEW values of it (shared/coop_few.wgsl). Weights are relative to a reference m, an exponent of 2.
// The kernel declares `scores`, `weights`, SPREAD, SCORE_PITCH, LOWEST and the types of its matrices.
#number SCORE_FEWS SQUARE_FEWS  // turns of a lane with scores, turns of a lane with a matrix
#each s SCORE_FEWS
#each e SQUARE_FEWS
#import coop_own

// The distance between two groups of FEW values that a lane takes.
const FURTHER = SPREAD * FEW;

fn spread_max(v: f32) -> f32 {
  var best = v;
  if (SPREAD > 2u) { best = max(best, subgroupShuffleXor(best, 2u)); }
  if (SPREAD > 1u) { best = max(best, subgroupShuffleXor(best, 1u)); }
  return best;
}

fn spread_sum(v: f32) -> f32 {
  var sum = v;
  if (SPREAD > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  if (SPREAD > 1u) { sum += subgroupShuffleXor(sum, 1u); }
  return sum;
}

// For the FEW values that a lane takes at once: storing weights, masking scores behind the first `seen`, the highest score, the sum.
#ifdef VECTORS
fn put_weights(at: u32, v: FewHalves) { weights[at / 4u] = v; }

fn seen_few(v: Few, seen: i32) -> Few { return select(Few(LOWEST), v, vec4(0, 1, 2, 3) < vec4(seen)); }

fn highest(v: Few) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }

fn total(v: Few) -> f32 { return (v.x + v.y) + (v.z + v.w); }
#else
fn put_weights(at: u32, v: FewHalves) {
  weights[at] = v.x;
  weights[at + 1u] = v.y;
}

fn seen_few(v: Few, seen: i32) -> Few { return select(Few(LOWEST), v, vec2(0, 1) < vec2(seen)); }

fn highest(v: Few) -> f32 { return max(v.x, v.y); }

fn total(v: Few) -> f32 { return v.x + v.y; }
#endif

alias Scores = array<Few, SCORE_FEWS>;

// A lane's scores, from element `mine` on. Those behind the first `seen` are masked.
fn take_scores(mine: u32, seen: i32) -> Scores {
  return Scores(
    seen_few(scores_few(mine, $su * FURTHER), seen - i32($su * FURTHER)),
  );
}

fn highest_of(v: Scores) -> f32 {
  var best = LOWEST;
  best = max(best, highest(v[$s]));
  return best;
}

// Stores the weights of these scores, relative to m, and adds them to `sum`.
fn make_weights(at: u32, v: Scores, m: f32, sum: f32) -> f32 {
  var l = sum;
  let w$s = FewHalves(exp2(v[$s] - m));
  put_weights(at + $su * FURTHER, w$s);
  l += total(Few(w$s));
  return l;
}

// Scales a matrix of sums, in the subgroup's area of `scores`, which begins at `own`. The lane's first value there is element `mine`.
fn scaled(t: u32, own: u32, mine: u32, sums: cSums, scale: f32) -> cSums {
  coopStoreT(sums, &scores[own / SUM], SCORE_PITCH / SUM);
  own_barrier();
  scores_put(mine, $eu * FURTHER, scores_few(mine, $eu * FURTHER) * scale);
  own_barrier();
  let after = coopLoadT<cSums>(&scores[own / SUM], SCORE_PITCH / SUM);
  own_barrier();
  return after;
}
