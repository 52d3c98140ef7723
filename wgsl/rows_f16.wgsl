// Makes the inputs of gemm from the rows of x. With `norm` it divides each row by its root mean square and multiplies it by the
// norm's weight. The result is f16 with a scale per row (`halves`), f32 (`floats`), or both.
//
// x, halves and floats are (rows, 4 * vectors), scales are (rows): value = scale * half. The largest half of a row is 2^14. So
// large activations, of which real models have some above 10^5, do not overflow, and small ones keep their precision.
// With the word `partial_sums`, x holds so many sums of each value, which are added up first. With `residual` this is added, too, and
// `sums` (rows, 4 * vectors) gets the total. `other` is read instead of x if `tiles`, a list of tiles of expert_rows, is not empty.
// Division: a workgroup per row. Bound by: bytes, 6 per value. A row is read twice, the second time from the cache.
#number WG  // threads of a workgroup
#word vectors: u32       // vec4 of a row
#word first: u32         // vec4 before the first row of x
#word eps?: f32          // of the norm
#word partial_sums?: u32    // of each value
#word partial_stride?: u32  // vec4 from one partial sum of a value to the next
#ifdef partial_sums
#read x: array<vec4<f32>> @floats(4 * p.partial_sums * p.partial_stride)               // (partial_sums, rows, vectors)
#else
#read x: array<vec4<f32>> @floats(4 * (p.first + GRID_X * p.vectors))        // (rows, vectors)
#endif
#read other?: array<vec4<f32>> @floats(4 * GRID_X * p.vectors)               // (rows, vectors)
#read tiles?: array<vec4<u32>> @words(4)                                     // (tiles) of expert_rows
#read norm?: array<vec4<f32>> @floats(4 * p.vectors)                         // (vectors)
#write halves?: array<vec2<u32>> @halves(4 * GRID_X * p.vectors)             // (rows, vectors) of 4 f16
#write scales?: array<f32> @floats(GRID_X)                                   // (rows)
#write floats?: array<vec4<f32>> @floats(4 * GRID_X * p.vectors)             // (rows, vectors)
#read residual?: array<vec4<f32>> @floats(4 * GRID_X * p.vectors)            // (rows, vectors)
#write sums?: array<vec4<f32>> @floats(4 * GRID_X * p.vectors)               // (rows, vectors)
#import reduce
alias x_Value = vec4<f32>;
#import add_partial_sums as x

// Vector i of the input: that of `other` or of x, with its partial sums and the residual added up.
fn input(i: u32) -> vec4<f32> {
#ifdef other
  if (tiles[0].z > 0u) { return other[i]; }
#endif
  var sum = x_sum(i);
#ifdef residual
  sum += residual[i];
  sums[i] = sum;
#endif
  return sum;
}

// The largest half of a row.
const LARGEST = 16384.0;
// A row whose largest value is not above this becomes 0: the inverse of its scale might overflow f32.
const SMALLEST = 1e-30;

#main
  let row = wid.x * p.vectors;
  let source = p.first + row;
  var squares = 0.0;
  var most = vec4(0.0);
  var i = t;
  loop {
    if (i >= p.vectors) { break; }
    let v = input(source + i);
#ifdef norm
    squares += dot(v, v);
    most = max(most, abs(v * norm[i]));
#else
    most = max(most, abs(v));
#endif
    i += WG;
  }
  var scale = 1.0;
#ifdef norm
  scale = inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(p.vectors * 4u) + p.eps);
#endif
#ifdef halves
  let largest = workgroup_max(max(max(most.x, most.y), max(most.z, most.w)), t, subgroup, subgroups, lane_id) * scale;
  var inverse = 0.0;
  if (largest > SMALLEST) { inverse = LARGEST / largest; }
  if (t == 0u) { scales[wid.x] = select(0.0, largest / LARGEST, largest > SMALLEST); }
#endif
  i = t;
  loop {
    if (i >= p.vectors) { break; }
#ifdef residual
    let given = sums[source + i];
#else
    let given = input(source + i);
#endif
#ifdef norm
    let v = given * scale * norm[i];
#else
    let v = given;
#endif
#ifdef floats
    floats[row + i] = v;
#endif
#ifdef halves
    let h = v * inverse;
    halves[row + i] = vec2(pack2x16float(h.xy), pack2x16float(h.zw));
#endif
    i += WG;
  }
}
