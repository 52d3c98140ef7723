// A fraction (shared/gemm_halves.wgsl) of a unit of a type without codes: some of its eight vectors.
#number FRACTION_VECTORS  // vec4 of a load
#each v FRACTION_VECTORS
fn $W_fraction(u: u32, sub: u32, fraction: u32) -> Fraction {
  let w = $W_unit(u, sub);
  return Fraction(
    $W_vector(w, fraction * FRACTION_VECTORS + $vu),
  );
}

fn $W_vector(w: W32, i: u32) -> vec4<f16> {
  let odd = (i & 1u) != 0u;
  let second = (i & 2u) != 0u;
  let lo = select(select(w.v0, w.v1, odd), select(w.v2, w.v3, odd), second);
  let hi = select(select(w.v4, w.v5, odd), select(w.v6, w.v7, odd), second);
  return vec4<f16>(select(lo, hi, i >= 4u));
}
