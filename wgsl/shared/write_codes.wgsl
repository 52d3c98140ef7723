// This module writes values from workgroup memory to a cache row in Q8_0 (shared/cache_codes.wgsl). The kernel declares `cache`, an array of
// words. It also declares the constant MOST_CODED: the most values that a workgroup writes.
#number WG  // threads of a workgroup
#import cache_codes

var<workgroup> row_values: array<vec2<f32>, MOST_CODED / 2u>;   // pairs of the values to be written

// The scale of a block of 32 of `count` values: the greatest magnitude is code 127. A block behind the last one has none.
fn block_scale(block: u32, count: u32) -> f32 {
  if (block >= count / 32u) { return 0.0; }
  var most = vec2(0.0);
#for i 16
  most = max(most, abs(row_values[block * 16u + $iu]));
#endfor
  return max(most.x, most.y) / 127.0;
}

// Writes `count` values as codes, and the scales of their blocks. The row begins at word `to_row` of the cache, and the first of these values is
// value `first` of the row. `count` is a multiple of 32. `first` is a multiple of 64, since a word holds the scales of two blocks. The whole
// workgroup must call.
fn write_codes(to_row: u32, first: u32, count: u32, t: u32) {
  workgroupBarrier();
  var word = t;
  loop {
    if (word >= count / 4u) { break; }
    let block = word / 8u;
    let one = block_scale(block, count);
    let inverse = select(0.0, 1.0 / one, one > 0.0);
    let codes = vec4<i32>(round(vec4(row_values[2u * word], row_values[2u * word + 1u]) * inverse));
    let bytes = bitcast<vec4<u32>>(codes) & vec4(255u);
    cache[to_row + first / 4u + word] = bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
    // The thread of the first word of two blocks writes their scales.
    if (word % 16u == 0u) {
      cache[to_row + SCALES_AT + first / 64u + word / 16u] = pack2x16float(vec2(one, block_scale(block + 1u, count)));
    }
    word += WG;
  }
}
