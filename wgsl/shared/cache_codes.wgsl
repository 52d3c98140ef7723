// Rows of a cache in Q8_0: codes, a byte each, of the latent, or of the keys of all key heads and then of their values. From word SCALES_AT on a
// scale of f16 for each 32 of them, and what makes up whole 16 bytes. From word ROTATED_AT on the rotated values of latent attention in f16. A
// value is its code times the scale of its block.
#number CODED  // values with codes in a row
const SCALES_AT = CODED / 4u;
const ROTATED_AT = SCALES_AT + (CODED / 32u + 7u) / 8u * 4u;

// The four codes of a word, which are signed bytes, plus 1152. For n below 1024 the half 1024 + n has the bits 0x6400 + n, so that codes + 128
// become floats without a conversion of numbers.
fn raised_codes(word: u32) -> vec4<f32> {
  let even = unpack2x16float((word & 0x00ff00ffu) ^ 0x64806480u);
  let odd = unpack2x16float(((word >> 8u) & 0x00ff00ffu) ^ 0x64806480u);
  return vec4(even.x, odd.x, even.y, odd.y);
}

// The four codes of a word. All steps are exact.
fn four_codes(word: u32) -> vec4<f32> { return raised_codes(word) - vec4(1152.0); }

// The values of four codes, by a multiply-add for each. All steps are exact: raised codes and scales have 11 bits.
fn four_values(word: u32, scale: f32) -> vec4<f32> { return raised_codes(word) * scale - vec4(1152.0 * scale); }

// The scale of block `block`, from the word that has those of two blocks.
fn scale_in(word: u32, block: u32) -> f32 {
  let both = unpack2x16float(word);
  return select(both.x, both.y, (block & 1u) != 0u);
}
