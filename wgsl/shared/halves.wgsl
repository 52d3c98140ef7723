// Activations as f16 with scales. The first 16 values of a unit share a scale, and so do the last 16: value = scale * half. A scale is a
// power of two, and the largest half lies between 2^14 and 2^15. So the products of halves and small codes are normal numbers
// (shared/halves_math.wgsl), and no sum of 16 of them overflows. Word 2i holds the values 4i and 4i + 2, word 2i + 1 the values 4i + 1 and
// 4i + 3. That is the order in which a mask of every other byte leaves the codes of a word (shared/w32.wgsl).
//
// A block has 8 units: first their first vec4s, then their second ones, and so on. Vec4 j of unit u is number (u / 8) * 40 + 8 j + u % 8. So
// lanes that read neighbouring units read neighbouring vectors.
struct Halves {
  a: vec4<u32>,       // values 0 .. 8
  b: vec4<u32>,       // values 8 .. 16
  c: vec4<u32>,       // values 16 .. 24
  d: vec4<u32>,       // values 24 .. 32
  scales: vec4<f32>,  // of the first 16: scale, scale * sum of the halves; of the last 16 the same
}

const HALVES_VECTORS = 40u;          // of a block
const HALVES_PLANE = 8u;             // from vec4 j to vec4 j + 1 of a unit
const HALVES_SCALES = 32u;           // from a block's begin to its scales

// The place of the first vec4 of unit u.
fn halves_place(u: u32) -> u32 {
  return u + ((u & ~7u) << 2u);
}
