// Sums of 16 products of halves and codes, whose bits are used as subnormal halves. They show whether a device computes with those.
//
// Division: one workgroup, each thread of which computes one sum.
// Bound by: launching it.
#import halves
#import halves_math
#read codes: array<vec4<u32>> @words(64 * 2 * 4)   // (64, 2): even and odd codes of 16 weights
#read x: array<vec4<u32>> @words(64 * 2 * 4)       // (64, 2): 16 halves, in the order of shared/halves.wgsl
#write y: array<f32> @floats(64)                   // (64)

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32) {
  y[t] = HALVES_ONE * halves_dot16(codes[2u * t], codes[2u * t + 1u], x[2u * t], x[2u * t + 1u]);
}
