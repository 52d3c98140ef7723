// out[t] = residual[t] + sum over slots s of weights[t][s] * slots[t][s]: the end of the expert block of a prompt.
//
// slots (tokens, USED, 4 * vectors), weights (tokens, USED), residual and y (tokens, 4 * vectors).
// Division: a thread per vector; the slots are added in order. Bound by: bytes, USED + 2 vectors per thread.
struct Params {
  vectors: u32,   // vec4 per row
}
@group(0) @binding(0) var<storage, read> slots: array<vec4<f32>>;       // (tokens, USED, vectors)
@group(0) @binding(1) var<storage, read> weights: array<f32>;           // (tokens, USED)
@group(0) @binding(2) var<storage, read> residual: array<vec4<f32>>;    // (tokens, vectors)
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;     // (tokens, vectors)
#import params

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let i = wid.x * WG + t;
  if (i < p.vectors) {
    let slot = wid.y * USED;
    var sum = vec4(0.0);
#for s USED
    sum += weights[slot + $su] * slots[(slot + $su) * p.vectors + i];
#endfor
    let at = wid.y * p.vectors + i;
    y[at] = residual[at] + sum;
  }
}
