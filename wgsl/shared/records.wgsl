// Activations as signed bytes. A unit is a record of 3 vec4<u32>: the bytes of values 0 .. 16, those of values 16 .. 32, and as floats
// (s0, s1, s0 * sum0, s1 * sum1). A value of half i is s_i times its byte, and sum_i is the sum of the bytes of half i.
//
// A block has 8 units: first their first vec4s, then their second ones, and then their third ones. Vec4 j of unit u is number
// (u / 8) * 24 + 8 j + u % 8. So lanes that read neighbouring units read neighbouring vectors.
struct Record { lo: vec4<u32>, hi: vec4<u32>, scales: vec4<f32> }

const RECORD_PLANE = 8u;   // from vec4 j to vec4 j + 1 of a unit

// Where the first vec4 of unit u lies.
fn record_place(u: u32) -> u32 { return u + ((u & ~7u) << 1u); }
