// Which token of a step stands at a place, if its tokens have a table and may lie in any order.
#import table
#number WG           // threads of a workgroup
#word tokens: u32    // of the step
var<workgroup> token_found: u32;

// One more than the number of the token that is at this position of the sequence of `token`, or 0 if there is none. All threads of a workgroup
// call it.
fn token_at(token: u32, position: u32, t: u32) -> u32 {
  if (t == 0u) { token_found = 0u; }
  workgroupBarrier();
  var i = t;
  loop {
    if (i >= p.tokens) { break; }
    if (table[2u * i].x == position && table[2u * i].z == table[2u * token].z) { token_found = i + 1u; }
    i += WG;
  }
  workgroupBarrier();
  return token_found;
}
