// x (32 * units) f32 as records of bytes (shared/q8.wgsl), for inputs whose producer does not leave them so.
// Division: a thread per unit. Bound by: launching it.
struct Params {
  units: u32,
}
#read x: array<vec4<f32>>            // (8 * units)
#write q: array<vec4<u32>>           // (units, 3)
#import params
#import w32
#import q8

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= p.units) {
    return;
  }
  let at = id.x * 8u;
  let a = q8_quantize(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
  let b = q8_quantize(x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
  q[id.x * 3u] = a.words;
  q[id.x * 3u + 1u] = b.words;
  q[id.x * 3u + 2u] = bitcast<vec4<u32>>(vec4<f32>(a.scale, b.scale, a.scaled_sum, b.scaled_sum));
}
