// The slice of a token's context that a workgroup attends to. The grid is (slices, groups of heads, tokens). With `table` it is (all slices,
// groups of heads, 1), and `work` tells what each slice is. There, tokens of a sequence that follow each other may share workgroups: a
// workgroup takes some of their queries, which lie as (tokens, HEADS), and all of them have slices at the same places.
// With OWN_KERNEL several kernels share the list, each slice being for one of them.
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
#read work?: array<vec4<u32>> @words(8 * SLICES)    // (slices, 2) of (token, begin, end, number of the slice), (first, queries, kernel, 0)
fn own_slice(wid: vec3<u32>) -> Slice {
  let own = work[2u * wid.x];
  let shared_by = work[2u * wid.x + 1u];
  let slices = token_slices(own.x);
  return Slice(own.x, own.y, own.z, first_page(own.x), slices.place + own.w, slices.count, shared_by.x, shared_by.y);
}

// Whether the slice is for this kernel.
fn is_own(wid: vec3<u32>) -> bool {
#ifdef OWN_KERNEL
  return work[2u * wid.x + 1u].z == KERNEL;
#else
  return true;
#endif
}
#ifdef OWN_KERNEL
#number KERNEL  // the number of the kernel
#endif
#else
#word slice_rows: u32
fn is_own(wid: vec3<u32>) -> bool { return true; }
fn own_slice(wid: vec3<u32>) -> Slice {
  let begin = wid.x * p.slice_rows;
  let end = min(begin + p.slice_rows, p.pos + wid.z + 1u);
  return Slice(wid.z, begin, end, first_page(wid.z), token_slices(wid.z).place + wid.x, p.slices, 0u, HEADS);
}
#endif
