// Adds up two rows over two lanes whose numbers differ by `mask`: the `upper` lane gets the sum of b, the other that of a.
fn fold(a: f32, b: f32, upper: bool, mask: u32) -> f32 {
  return select(a, b, upper) + subgroupShuffleXor(select(b, a, upper), mask);
}
