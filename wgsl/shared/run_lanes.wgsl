// A run is LANES neighbouring threads. This module has the sums and maxima that they exchange for HEADS_OF heads. With subgroups LANES is a
// power of two of 8 or more, and a run never leaves its subgroup. Without them LANES is 8, runs use workgroup memory, and the whole workgroup
// must call. The kernel declares Rows (8 rows), Scores and Queries, and `row_scores`, a thread's share of the scores of a row.
#number WG LANES HEADS_OF  // threads of a workgroup, threads of a run, heads of a run
#each h HEADS_OF

// A thread's number in its run, the number of the run's first thread in its subgroup, without subgroups in its workgroup, and whether the bits 4, 2
// and 1 of its number are set.
struct Lane { number: u32, first: u32, by4: bool, by2: bool, by1: bool }

#ifdef PLAIN
var<workgroup> told: array<f32, WG * 8u * HEADS_OF>;

fn lane_of(t: u32, lane_id: u32) -> Lane { return Lane(t & 7u, t & ~7u, false, false, false); }

// The scores of row `lane & 7` of 8.
fn scores_of_rows(queries: Queries, rows: Rows, lane: Lane) -> Scores {
  workgroupBarrier();
#for r 8
  let row$r = row_scores(queries, rows[$r]);
  told[((lane.first + $ru) * HEADS_OF + $hu) * 8u + lane.number] = row$r[$h];
#endfor
  workgroupBarrier();
  let own = (lane.first + lane.number) * HEADS_OF * 8u;
  var sum$h = 0.0;
#for i 8
  sum$h += told[own + $hu * 8u + $iu];
#endfor
  return Scores(
    sum$h,
  );
}

fn any_lane(v: bool) -> bool { return true; }

// Has all threads of a run read what each has of every head.
fn tell(v: Scores, lane: Lane) {
  workgroupBarrier();
  told[(lane.first + lane.number) * HEADS_OF + $hu] = v[$h];
  workgroupBarrier();
}

// The values that thread `number` of the run told last.
fn told_by(v: Scores, number: u32, lane: Lane) -> Scores {
  return Scores(
    told[(lane.first + number) * HEADS_OF + $hu],
  );
}

fn run_max(v: Scores, lane: Lane) -> Scores {
  tell(v, lane);
  var best = told_by(v, 0u, lane);
#for i 8
  best[$h] = max(best[$h], told[(lane.first + $iu) * HEADS_OF + $hu]);
#endfor
  return best;
}

fn run_sum(v: Scores, lane: Lane) -> Scores {
  tell(v, lane);
  var sum: Scores;
#for i 8
  sum[$h] += told[(lane.first + $iu) * HEADS_OF + $hu];
#endfor
  return sum;
}
#else
#import fold

fn lane_of(t: u32, lane_id: u32) -> Lane {
  let number = t & (LANES - 1u);
  return Lane(number, lane_id - number, (t & 4u) != 0u, (t & 2u) != 0u, (t & 1u) != 0u);
}

// The partial scores of four rows folded over bits 4 and 2. Folding at once saves registers.
fn four_rows(queries: Queries, a: Vectors, b: Vectors, c: Vectors, d: Vectors, lane: Lane) -> Scores {
  let first = row_scores(queries, a);
  let second = row_scores(queries, b);
  let third = row_scores(queries, c);
  let fourth = row_scores(queries, d);
  return Scores(
    fold(fold(first[$h], second[$h], lane.by4, 4u), fold(third[$h], fourth[$h], lane.by4, 4u), lane.by2, 2u),
  );
}

// The scores of row `lane & 7` of 8.
fn scores_of_rows(queries: Queries, rows: Rows, lane: Lane) -> Scores {
  let even = four_rows(queries, rows[0], rows[4], rows[2], rows[6], lane);
  let odd = four_rows(queries, rows[1], rows[5], rows[3], rows[7], lane);
  return Scores(
    over_eights(fold(even[$h], odd[$h], lane.by1, 1u)),
  );
}

// The sum over the threads of a run whose numbers are equal modulo 8.
fn over_eights(v: f32) -> f32 {
  var sum = v;
  if (LANES > 8u) { sum += subgroupShuffleXor(sum, 8u); }
  if (LANES > 16u) { sum += subgroupShuffleXor(sum, 16u); }
  return sum;
}

// Whether v holds in a thread of the subgroup.
fn any_lane(v: bool) -> bool { return subgroupAny(v); }

fn tell(v: Scores, lane: Lane) { }

// The values of thread `number` of the run.
fn told_by(v: Scores, number: u32, lane: Lane) -> Scores {
  return Scores(
    subgroupShuffle(v[$h], lane.first + number),
  );
}

fn max_of_lanes(v: f32) -> f32 {
  var best = v;
  if (LANES > 16u) { best = max(best, subgroupShuffleXor(best, 16u)); }
  if (LANES > 8u) { best = max(best, subgroupShuffleXor(best, 8u)); }
  best = max(best, subgroupShuffleXor(best, 4u));
  best = max(best, subgroupShuffleXor(best, 2u));
  return max(best, subgroupShuffleXor(best, 1u));
}

fn run_max(v: Scores, lane: Lane) -> Scores {
  return Scores(
    max_of_lanes(v[$h]),
  );
}

fn sum_of_lanes(v: f32) -> f32 {
  var sum = over_eights(v);
  sum += subgroupShuffleXor(sum, 4u);
  sum += subgroupShuffleXor(sum, 2u);
  return sum + subgroupShuffleXor(sum, 1u);
}

fn run_sum(v: Scores, lane: Lane) -> Scores {
  return Scores(
    sum_of_lanes(v[$h]),
  );
}
#endif
