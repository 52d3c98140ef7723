// Sums over the LANES threads that share a row, a power of two. Without subgroups each thread keeps its own sum, and LANE_SUMS sums of a row
// are still to be added up. With them LANES is at most the size of a subgroup.
#ifdef PLAIN
const LANE_SUMS = LANES;
fn row_sum(v: f32) -> f32 { return v; }
#else
const LANE_SUMS = 1u;

fn row_sum(v: f32) -> f32 {
  var sum = v;
  if (LANES > 16u) { sum += subgroupShuffleXor(sum, 16u); }
  if (LANES > 8u) { sum += subgroupShuffleXor(sum, 8u); }
  if (LANES > 4u) { sum += subgroupShuffleXor(sum, 4u); }
  if (LANES > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  if (LANES > 1u) { sum += subgroupShuffleXor(sum, 1u); }
  return sum;
}

// The sum over the LANES / 2 threads of half a row.
fn half_sum(v: f32) -> f32 {
  var sum = v;
  if (LANES > 16u) { sum += subgroupShuffleXor(sum, 8u); }
  if (LANES > 8u) { sum += subgroupShuffleXor(sum, 4u); }
  if (LANES > 4u) { sum += subgroupShuffleXor(sum, 2u); }
  if (LANES > 2u) { sum += subgroupShuffleXor(sum, 1u); }
  return sum;
}
#endif
