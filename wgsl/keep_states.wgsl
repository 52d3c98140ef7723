// Keeps the states of the last positions of each sequence, from which its prediction layer goes on: rows of the stream behind the last layer.
//
// x (tokens, 4 * VECTORS) -> ring (sequences, OF_EACH, 4 * VECTORS), the row of each token by its position (shared/ring.wgsl). Of the tokens of one
// sequence in a step, which follow each other, only the last OF_EACH are kept. With a table they may lie in any order: with SEARCHED a token is left
// out if one that is OF_EACH positions later is in the step, and without it no sequence may have more than OF_EACH.
// Division: a workgroup for each token. Bound by: latency.
#number WG VECTORS  // threads of a workgroup, vectors of a row
#import ring
#ifdef SEARCHED
#import step_token
#endif
#ifndef table
#word tokens: u32   // of the step
#endif
#read x: array<vec4<f32>> @floats(TOKENS * 4 * VECTORS)          // (tokens, VECTORS)
#write ring: array<vec4<f32>> @floats(STATES * 4 * VECTORS)   // (sequences, OF_EACH, VECTORS)

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) t: u32) {
#ifndef table
  if (wid.x + OF_EACH < p.tokens) { return; }
#endif
#ifdef SEARCHED
  if (token_at(wid.x, ring_position(wid.x) + OF_EACH, t) > 0u) { return; }
#endif
  let to = ring_row(wid.x, 0u) * VECTORS;
  var i = t;
  loop {
    if (i >= VECTORS) { break; }
    ring[to + i] = x[wid.x * VECTORS + i];
    i += WG;
  }
}
