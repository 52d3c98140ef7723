// Adds to logits what requests want to have added to those of some tokens, before one is chosen.
//
// logits (rows, VOCAB) is changed in place by biases (rows, WG) of (token, number to add as bits). A place without a bias names no token of the
// vocabulary, and no two places of a row name the same.
// Division: grid (1, rows). Each thread takes one place of a row. Bound by: the latency of a dispatch.
#number VOCAB WG  // tokens of the vocabulary, threads of a workgroup
#write logits: array<f32> @floats(GRID_Y * VOCAB)             // (rows, VOCAB)
#read biases: array<vec2<u32>> @words(2 * GRID_Y * WG)        // (rows, WG) of (token, number as bits)

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let bias = biases[wid.y * WG + t];
  if (bias.x < VOCAB) { logits[wid.y * VOCAB + bias.x] += bitcast<f32>(bias.y); }
}
