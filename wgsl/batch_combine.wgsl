// x = residual + sum over slots s of weights[s] * slots[s], of each token of a batch: the end of a layer with experts. With USED = 0 it is the
// residual alone, as at the beginning of a step. x is left as f32, and normed and prepared for the next product.
//
// slots (tokens, USED, 4 * VECTORS), weights (tokens, USED), residual and x (tokens, 4 * VECTORS), values: the same prepared
// (shared/token_write.wgsl).
// Division: a workgroup per token. A thread takes every WG-th vector of 4 values, LOADS in all.
// Bound by: latency; USED + 1 rows are read and two are written.
#number USED WG VECTORS LOADS  // experts of a token, threads of a workgroup, vectors of a token, vectors of a thread
#word eps: f32
#read slots?: array<vec4<f32>> @floats(TOKENS * USED * 4 * VECTORS)   // (tokens, USED, VECTORS)
#read weights?: array<f32> @floats(TOKENS * USED)                     // (tokens, USED)
#read residual: array<vec4<f32>> @floats(TOKENS * 4 * VECTORS)        // (tokens, VECTORS)
#read norm: array<vec4<f32>> @floats(4 * VECTORS)                     // (VECTORS)
#write x?: array<vec4<f32>> @floats(TOKENS * 4 * VECTORS)             // (tokens, VECTORS)
#length OUT_ROWS TOKENS * 4 * VECTORS
#each n LOADS
#import reduce
#import token_write

// Vector `at` of the token's row, of all vectors of rows.
fn combined(token: u32, at: u32) -> vec4<f32> {
  var sum = residual[token * VECTORS + at];
#for s USED
  sum += weights[token * USED + $su] * slots[(token * USED + $su) * VECTORS + at];
#endfor
  return sum;
}

#main
  let token = wid.x;
  var squares = 0.0;
  let x$n = combined(token, min($nu * WG + t, VECTORS - 1u));
  let g$n = norm[min($nu * WG + t, VECTORS - 1u)];
  squares += select(0.0, dot(x$n, x$n), $nu * WG + t < VECTORS);
  let scale = inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(4u * VECTORS) + p.eps);
  if ($nu * WG + t < VECTORS) { x_put(token * VECTORS + $nu * WG + t, x$n); token_write((token * VECTORS + $nu * WG + t) * 4u, t, x$n * scale * g$n); }
}
