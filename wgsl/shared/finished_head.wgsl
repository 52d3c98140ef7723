// A head of $W (tokens, heads, KEY / 2): its bias is added, it is normed and rotated, as far as the model does so. A thread has the pairs of
// neighbouring values t + n * WG. The kernel declares $W and, where the model has them, $W_bias (heads, KEY / 2) and $W_norm (KEY / 2), and how
// pairs turn.
#number PAIRS WG KEY  // pairs of a thread, threads of a workgroup, values of a head
alias $W_Value = vec2<f32>;
#import partial_values as $W
#each n PAIRS

fn $W_biased(first: u32, head: u32, pair: u32) -> vec2<f32> {
  return $W_sum(first + head * (KEY / 2u) + pair) + $W_bias_at(head * (KEY / 2u) + pair);
}

// Head `head` of the token whose heads begin at pair `first`, which stands at position `pos`. The whole workgroup must call. Everything is
// loaded before the first barrier.
fn $W_finished(first: u32, head: u32, pos: u32, t: u32, subgroup: u32, subgroups: u32, lane_id: u32) -> Finished {
  let pair$n = min(t + $nu * WG, KEY / 2u - 1u);
  let turn$n = turn_of(pos, pair$n);
  var own$n = $W_biased(first, head, pair$n);
  var other$n = own$n;
#ifdef ROTATES_HALVES
  other$n = $W_biased(first, head, other_of(pair$n));
#endif
#ifdef $W_norm
  let weight$n = $W_norm[pair$n];
  let other_weight$n = $W_norm[other_of(pair$n)];
  var squares = 0.0;
  squares += select(0.0, dot(own$n, own$n), t + $nu * WG < KEY / 2u);
  let scale = inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(KEY) + p.eps);
  own$n *= scale * weight$n;
  other$n *= scale * other_weight$n;
#endif
  return Finished(
    rotated(own$n, other$n, turn$n, pair$n),
  );
}
