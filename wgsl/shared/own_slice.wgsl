// The slice of a token's context that a workgroup attends to. The grid is (slices, groups of heads, tokens). With `table` it is (all slices,
// groups of heads, 1), and `work` tells what each slice is.
#import sequences
#import token_slices
struct Slice {
  token: u32,
  begin: u32,   // its first position
  end: u32,     // one behind its last one that the token sees
  page: u32,    // the entry with the first page of the sequence
  place: u32,   // where the slice of the token's first head is left
  count: u32,   // slices of the token, from one head to the next
}

#ifdef table
#read work?: array<vec4<u32>> @words(4 * SLICES)    // (slices) of (token, begin, end, 0)
fn own_slice(wid: vec3<u32>) -> Slice {
  let own = work[wid.x];
  let slices = token_slices(own.x);
  let nth = wid.x - table[2u * own.x].w;
  return Slice(own.x, own.y, own.z, first_page(own.x), slices.place + nth, slices.count);
}
#else
#word slice_rows: u32
fn own_slice(wid: vec3<u32>) -> Slice {
  let begin = wid.x * p.slice_rows;
  let end = min(begin + p.slice_rows, p.pos + wid.z + 1u);
  return Slice(wid.z, begin, end, first_page(wid.z), token_slices(wid.z).place + wid.x, p.slices);
}
#endif
