// What a thread brings to workgroup memory at once: one of the FRACTIONS (1, 2 or 4) of a unit of weights, as f16.
#each v FRACTION_VECTORS
alias Fraction = array<vec4<f16>, FRACTION_VECTORS>;

// scale * code + offset for the four codes of a word, each right as a signed byte. The bits of the half 1024 + n are 0x6400 + n
// for n below 1024: so codes become halves without a conversion, and all but the last step is exact.
fn word_halves(word: u32, a: vec2<f32>) -> vec4<f16> {
  let even = unpack2x16float((word & 0x00ff00ffu) ^ 0x64806480u);
  let odd = unpack2x16float(((word >> 8u) & 0x00ff00ffu) ^ 0x64806480u);
  let codes = vec4<f16>(vec4<f32>(even.x, odd.x, even.y, odd.y)) - vec4<f16>(1152.0h);
  return fma(codes, vec4<f16>(f16(a.x)), vec4<f16>(f16(a.y)));
}

// To the tile of W, vectors `column` on of a row.
fn put_fraction(row: u32, column: u32, v: Fraction) {
  ws_put(row * PITCH + (column + $vu) * QUAD, v[$v]);
}
