// Values in f16 of a cache in Q8_0, for matrices.
#import cache_codes
#import word_halves

// The values of four codes. Up to the product with the scale all steps are exact, and compilers make no floats of 32 bits.
fn four_halves(word: u32, scale: f16) -> vec4<f16> { return (vec4<f16>(raised_codes(word)) - vec4<f16>(1152.0h)) * scale; }

// The scale of block `block`, from the two words that have those of four blocks.
fn scale_half(words: vec2<u32>, block: u32) -> f16 { return half_in(select(words.x, words.y, (block & 2u) != 0u), block); }

// The mask 0x00ff00ff. `scale` is positive, which compilers cannot know. NVIDIA's GPUs mask and combine bits in one instruction, but the compiler takes
// two if it knows both operands.
fn hidden_mask(scale: f32) -> u32 { return 0x00ff00ffu | ((bitcast<u32>(scale) >> 31u) << 8u); }

// The values of four codes in the order first, third, second, fourth, in which they need fewest steps. `mask` is `hidden_mask`.
fn apart_halves(word: u32, scale: f16, mask: u32) -> vec4<f16> {
  let codes = vec4(unpack2x16float((word & mask) ^ 0x64806480u), unpack2x16float(((word >> 8u) & mask) ^ 0x64806480u));
  return (vec4<f16>(codes) - vec4<f16>(1152.0h)) * scale;
}

// The scale of block `block`, from the word that has those of two blocks.
fn half_in(word: u32, block: u32) -> f16 { return f16(unpack2x16float(word >> ((block & 1u) * 16u)).x); }
