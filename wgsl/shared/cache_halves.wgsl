// Values in f16 of a cache in Q8_0, for matrices.
#import cache_codes

// The values of four codes.
fn four_halves(word: u32, scale: f16) -> vec4<f16> { return vec4<f16>(four_codes(word)) * scale; }

// The scale of block `block`, from the two words that have those of four blocks.
fn scale_half(words: vec2<u32>, block: u32) -> f16 {
  return f16(scale_in(select(words.x, words.y, (block & 2u) != 0u), block));
}

// The values of two words of f16.
fn halves_of(words: vec2<u32>) -> vec4<f16> {
  return vec4<f16>(vec4(unpack2x16float(words.x), unpack2x16float(words.y)));
}
