// The tokens of a workgroup, COLS of them: its columns. It reads a weight once and multiplies it by the inputs of all. With SEVERAL the grid
// has groups of COLS tokens along x. The threads of a row add its products in the same order for any number of columns.
#number COLS  // tokens of a workgroup
#ifdef SEVERAL
#word tokens: u32  // of the step
#endif
#import own_token
// The column that the workgroup has turned to.
var<private> column: u32;

// Turns to column c of the workgroup. Behind the last token of the step it is the last one again.
fn turn_to(wid: vec3<u32>, c: u32) {
  column = c;
#ifdef SEVERAL
  own_token = min(wid.x * COLS + c, p.tokens - 1u);
#endif
}

// Whether the step has a token for column c of the workgroup.
fn is_there(wid: vec3<u32>, c: u32) -> bool {
#ifdef SEVERAL
  if (COLS > 1u) { return wid.x * COLS + c < p.tokens; }
#endif
  return true;
}
