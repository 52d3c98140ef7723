// The value of $W at i, of the type that the kernel calls $W_Value. With the parameter `$W_partial_sums`, $W holds so many partial sums of each
// value, p.$W_partial_stride apart, and the value is their total. So do a kernel's other inputs, each with parameters of its own.
#word $W_partial_sums?: u32     // of each value
#word $W_partial_stride?: u32   // values from one partial sum of a value to the next
#ifdef $W_partial_sums
#length $W_FURTHER (p.$W_partial_sums - 1) * p.$W_partial_stride
fn $W_sum(i: u32) -> $W_Value {
  var sum = $W[i];
  var sum_at = 1u;
  loop {
    if (sum_at >= p.$W_partial_sums) { break; }
    sum += $W[sum_at * p.$W_partial_stride + i];
    sum_at += 1u;
  }
  return sum;
}
#else
#length $W_FURTHER 0
fn $W_sum(i: u32) -> $W_Value { return $W[i]; }
#endif
