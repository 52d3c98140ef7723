// The four values of f16 that two words hold. NVIDIA's compiler makes no instruction of it.
fn halves_of(words: vec2<u32>) -> vec4<f16> {
  return vec4<f16>(vec4(unpack2x16float(words.x), unpack2x16float(words.y)));
}
