// The input of the prediction layer's eh_proj: of each token the normed embedding, and behind it the normed state of the position before.
//
// embedding, states and a row of ring (4 * VECTORS) -> prepared (tokens, 2 * 4 * VECTORS): [e / rms(e) * enorm; h / rms(h) * hnorm], prepared
// for the next product (shared/token_write.wgsl), with h = s / rms(s) * state_norm. Of a draft, s is the token's own row of `states`. Otherwise
// it is the row of the position before: that of `ring`, and zeros before position 0; for a further token of a prompt the row of the token
// before in `states`, if both are bound. With SEARCHED the tokens of a step have a table and may lie in any order.
// Division: grid (tokens, 2), a workgroup for each half. A thread takes every WG-th vector of 4 values, LOADS in all.
// Bound by: latency; three rows are read and two are written.
#number WG VECTORS LOADS  // threads of a workgroup, vectors of a row, vectors of a thread
#word eps: f32
#read embedding: array<vec4<f32>> @floats(TOKENS * 4 * VECTORS)   // (tokens, VECTORS)
#read states?: array<vec4<f32>> @floats(TOKENS * 4 * VECTORS)     // (tokens, VECTORS)
#read enorm: array<vec4<f32>> @floats(4 * VECTORS)                // (VECTORS)
#read hnorm: array<vec4<f32>> @floats(4 * VECTORS)                // (VECTORS)
#read state_norm: array<vec4<f32>> @floats(4 * VECTORS)           // (VECTORS)
#length OUT_ROWS TOKENS * 8 * VECTORS
#each n LOADS
#import reduce
#import token_write
#ifdef RING
#import ring
#ifdef SEARCHED
#import step_token
#endif
#read ring: array<vec4<f32>> @floats(STATES * 4 * VECTORS)     // (sequences, rows of one, VECTORS)

// Vector i of the state of the position before, whose token in the step is the one before number `after`, if that is not 0.
fn state(token: u32, after: u32, i: u32) -> vec4<f32> {
#ifdef states
  if (after > 0u) { return states[(after - 1u) * VECTORS + i]; }
#endif
  return select(ring[ring_row(token, 1u) * VECTORS + i], vec4(0.0), ring_position(token) == 0u);
}
#else
fn state(token: u32, after: u32, i: u32) -> vec4<f32> { return states[token * VECTORS + i]; }
#endif

fn input(token: u32, after: u32, part: u32, i: u32) -> vec4<f32> {
  if (part == 0u) { return embedding[token * VECTORS + i]; }
  return state(token, after, i);
}

#main
  let token = wid.x;
  let part = wid.y;
#ifdef SEARCHED
  let after = token_at(token, ring_position(token) - 1u, t);
#else
  let after = token;
#endif
  var squares = 0.0;
  var weighted = 0.0;
  let x$n = input(token, after, part, min($nu * WG + t, VECTORS - 1u));
  let s$n = select(state_norm[min($nu * WG + t, VECTORS - 1u)], vec4(1.0), part == 0u) * x$n;
  let g$n = select(hnorm[min($nu * WG + t, VECTORS - 1u)], enorm[min($nu * WG + t, VECTORS - 1u)], part == 0u);
  squares += select(0.0, dot(x$n, x$n), $nu * WG + t < VECTORS);
  weighted += select(0.0, dot(s$n, s$n), $nu * WG + t < VECTORS);
  let own = inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(4u * VECTORS) + p.eps);
  // The state is normed twice: by the last norm of the model, and by that of the layer.
  let again = inverseSqrt(own * own * workgroup_sum(weighted, t, subgroup, subgroups, lane_id) / f32(4u * VECTORS) + p.eps);
  let scale = own * select(again, 1.0, part == 0u);
  if ($nu * WG + t < VECTORS) { token_write(((2u * token + part) * VECTORS + $nu * WG + t) * 4u, t, s$n * scale * g$n); }
}
