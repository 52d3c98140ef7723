// The value of $W at i, of the type that the kernel calls $W_Value. With the parameter `partial_sums`, $W holds so many partial sums of each
// value, p.partial_stride apart, and the value is their total.
#ifdef partial_sums
fn $W_sum(i: u32) -> $W_Value {
  var sum = $W[i];
  var sum_at = 1u;
  loop {
    if (sum_at >= p.partial_sums) { break; }
    sum += $W[sum_at * p.partial_stride + i];
    sum_at += 1u;
  }
  return sum;
}
#else
fn $W_sum(i: u32) -> $W_Value { return $W[i]; }
#endif
