// Values in f16 of a cache in Q8_0, for matrices.
#import cache_codes
#import word_halves

// The values of four codes. Up to the product with the scale all steps are exact, and compilers make no floats of 32 bits.
fn four_halves(word: u32, scale: f16) -> vec4<f16> { return (vec4<f16>(raised_codes(word)) - vec4<f16>(1152.0h)) * scale; }

// The scale of block `block`, from the two words that have those of four blocks.
fn scale_half(words: vec2<u32>, block: u32) -> f16 {
  return f16(unpack2x16float(select(words.x, words.y, (block & 2u) != 0u) >> ((block & 1u) * 16u)).x);
}
