// The slice of a token's context that a workgroup attends to. The grid is (slices, groups of heads, tokens). With `table` it is (all slices,
// groups of heads, 1), and `work` tells what each slice is. There, tokens of a sequence that follow each other may share workgroups: a
// workgroup takes some of their queries, which lie as (tokens, HEADS), and all of them have slices at the same places.
// With `first_work` the slices of a kernel follow others in the list.
#import sequences
#import token_slices
struct Slice {
  token: u32,   // the first of those that share the workgroups
  begin: u32,   // its first position
  end: u32,     // one behind its last one that a query of the workgroup sees
  page: u32,    // the entry with the first page of the sequence
  place: u32,   // where the slice of the token's first head is left
  count: u32,   // slices of the token, from one head to the next
  first: u32,   // the workgroup's first query, among groups of heads the first group's
  queries: u32, // of all tokens that share the workgroups
}

#ifdef table
#word first_work?: u32   // the kernel's first slice
#read work?: array<vec4<u32>> @words(8 * SLICES)    // (slices, 2) of (token, begin, end, number of the slice), (first, queries, 0, 0)
fn own_slice(wid: vec3<u32>) -> Slice {
#ifdef first_work
  let nth = p.first_work + wid.x;
#else
  let nth = wid.x;
#endif
  let own = work[2u * nth];
  let shared_by = work[2u * nth + 1u];
  let slices = token_slices(own.x);
  return Slice(own.x, own.y, own.z, first_page(own.x), slices.place + own.w, slices.count, shared_by.x, shared_by.y);
}
#else
#word slice_rows: u32
fn own_slice(wid: vec3<u32>) -> Slice {
  let begin = wid.x * p.slice_rows;
  let end = min(begin + p.slice_rows, p.pos + wid.z + 1u);
  return Slice(wid.z, begin, end, first_page(wid.z), token_slices(wid.z).place + wid.x, p.slices, 0u, HEADS);
}
#endif
