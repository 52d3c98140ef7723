// A fraction of a unit of weights, as f16: a thread moves one of FRACTIONS (1, 2 or 4) to workgroup memory at once.
#number FRACTION_VECTORS  // vec4 of a load
#each v FRACTION_VECTORS
alias Fraction = array<vec4<f16>, FRACTION_VECTORS>;

// scale * code + offset for the four codes of a word, which are signed bytes. For n below 1024 the half 1024 + n has the bits 0x6400 + n,
// so that codes + 128 become halves without a conversion. Up to the `fma` the steps are exact.
fn word_halves(word: u32, affine: vec2<f32>) -> vec4<f16> {
  let even = unpack2x16float((word & 0x00ff00ffu) ^ 0x64806480u);
  let odd = unpack2x16float(((word >> 8u) & 0x00ff00ffu) ^ 0x64806480u);
  let codes = vec4<f16>(vec4<f32>(even.x, odd.x, even.y, odd.y)) - vec4<f16>(1152.0h);
  return fma(codes, vec4<f16>(f16(affine.x)), vec4<f16>(f16(affine.y)));
}

// Stores a fraction in the tile of W, from vector `column` of a row on.
fn put_fraction(row: u32, column: u32, v: Fraction) {
  ws_put(row * PITCH + (column + $vu) * QUAD, v[$v]);
}
