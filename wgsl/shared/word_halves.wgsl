// The values of two words of f16. Compilers leave the bits as they are.
fn halves_of(words: vec2<u32>) -> vec4<f16> {
  return vec4<f16>(vec4(unpack2x16float(words.x), unpack2x16float(words.y)));
}
