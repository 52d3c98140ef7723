// Copies rows of the cache of a layer: the first ones of a page that another page begins with as well.
//
// cache (rows, ROW_WORDS) words of two f16. copies (copies) of (first row of the source, first row of the copy, rows, 0). No row that is
// written belongs to another copy of the list.
// Division: grid (PAGE, copies). A workgroup copies a row. Bound by: the latency of a dispatch.
#number WG ROW_WORDS CACHE_ROWS  // threads of a workgroup, words of a row, rows of the cache
#write cache: array<u32> @cache(CACHE_ROWS * 2 * ROW_WORDS)   // (rows, ROW_WORDS)
#read copies: array<vec4<u32>> @words(4 * GRID_Y)             // (copies)

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let own = copies[wid.y];
  if (wid.x >= own.z) { return; }
  let read_at = (own.x + wid.x) * ROW_WORDS;
  let write_at = (own.y + wid.x) * ROW_WORDS;
  var i = t;
  loop {
    if (i >= ROW_WORDS) { break; }
    cache[write_at + i] = cache[read_at + i];
    i += WG;
  }
}
