// y[t] = residual[t] + sum over slots s of weights[t][s] * slots[t][s]: the end of the expert block of a prompt.
//
// slots (tokens, USED, 4 * vectors), weights (tokens, USED), residual and y (tokens, 4 * vectors). `other` is read instead of slots if
// `tiles`, a list of expert_rows, is not empty.
// Division: grid (tiles of WG vectors, tokens), a thread per vector. Slots are added in order.
// Bound by: the bytes, USED + 2 vectors per thread.
#number USED WG  // experts of a token, threads of a workgroup
#word vectors: u32  // vec4 per row
#read slots: array<vec4<f32>> @floats(4 * GRID_Y * USED * p.vectors)   // (tokens, USED, vectors)
#read other?: array<vec4<f32>> @floats(4 * GRID_Y * USED * p.vectors)  // (tokens, USED, vectors)
#read tiles?: array<vec4<u32>> @words(4)                               // (tiles) of expert_rows
#read weights: array<f32> @floats(GRID_Y * USED)                       // (tokens, USED)
#read residual: array<vec4<f32>> @floats(4 * GRID_Y * p.vectors)       // (tokens, vectors)
#write y: array<vec4<f32>> @floats(4 * GRID_Y * p.vectors)             // (tokens, vectors)

fn given(i: u32) -> vec4<f32> {
#ifdef other
  if (tiles[0].z > 0u) { return other[i]; }
#endif
  return slots[i];
}

#main
  let i = wid.x * WG + t;
  if (i < p.vectors) {
    let slot = wid.y * USED;
    var sum = vec4(0.0);
#for s USED
    sum += weights[slot + $su] * given((slot + $su) * p.vectors + i);
#endfor
    let at = wid.y * p.vectors + i;
    y[at] = residual[at] + sum;
  }
}
