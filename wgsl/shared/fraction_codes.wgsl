// A fraction (shared/gemm_halves.wgsl) of a unit of a type with codes: some of its eight words of codes, each with the scale and offset of
// its half of the unit.
#number FRACTION_VECTORS  // vec4 of a load
#each v FRACTION_VECTORS
fn $W_fraction(u: u32, sub: u32, fraction: u32) -> Fraction {
  let codes = $W_codes(u);
  let affine = $W_affine(u, sub);
  return Fraction(
    $W_word(codes, affine, fraction * FRACTION_VECTORS + $vu),
  );
}

fn $W_word(codes: W32Codes, affine: vec4<f32>, i: u32) -> vec4<f16> {
  let four = select(codes.lo, codes.hi, i >= 4u);
  let two = select(four.xy, four.zw, (i & 2u) != 0u);
  return word_halves(select(two.x, two.y, (i & 1u) != 0u), select(affine.xy, affine.zw, i >= 4u));
}
