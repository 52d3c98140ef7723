// Activations as halves. A unit is 32 values; its first and its last 16 share a scale each, a power of two: value =
// scale * half, and the largest half lies between 2^14 and 2^15. So the products of halves with small codes are normal
// (shared/halves_math.wgsl), and no sum of 16 of them overflows. The word pairs (2i, 2i + 1) hold the values (4i, 4i + 2) and (4i + 1, 4i + 3): the order in
// which a mask of every other byte leaves the codes of a word (shared/w32.wgsl).
//
// Units lie in blocks of 8, and the vec4 of the units of a block in planes: vec4 j of unit u is number
// (u / 8) * 40 + 8 j + u % 8. So lanes that read neighbouring units read neighbouring vectors.
struct Halves {
  a: vec4<u32>,       // values 0 .. 8
  b: vec4<u32>,       // values 8 .. 16
  c: vec4<u32>,       // values 16 .. 24
  d: vec4<u32>,       // values 24 .. 32
  scales: vec4<f32>,  // of the first 16: scale, scale * sum of the halves; of the last 16 the same
}

const HALVES_VECTORS = 40u;          // of a block
const HALVES_PLANE = 8u;             // from one plane of a block to the next
const HALVES_SCALES = 32u;           // from a block's begin to its scales

// Where the first vec4 of unit u lies.
fn halves_place(u: u32) -> u32 {
  return u + ((u & ~7u) << 2u);
}
