// What gemm and gemm_eight have in common: a tile of W in workgroup memory, and the sums of a thread, of RM tokens and RN rows of W.
// In a pair as many rows of the second weight follow: W_RN of both.
#each i RM
#each j RN
alias Value = f32;
alias Out = f32;
#import gemm_place

// From one token of a thread to its next one.
const TM = WG / 8u;

alias Inputs = array<vec4<f32>, RM>;      // 4 columns of a thread's tokens
alias RowSums = array<f32, W_RN>;
alias Sums = array<RowSums, RM>;

// Vectors of 4 columns; vector c of row r lies at c ^ (r & 7), so that 8 neighbouring rows lie in different banks.
var<workgroup> ws: array<vec4<f32>, W_ROWS * 8u>;

// A unit of a row of the tile.
#ifdef u_q
#import UP as u
fn dequantised(row: u32, unit: u32) -> W32 {
  if (row >= BN) { return u_unit(unit, p.u_sub); }
  return w_unit(unit, p.sub);
}
#else
fn dequantised(row: u32, unit: u32) -> W32 { return w_unit(unit, p.sub); }
#endif

// Its unit at column 0.
fn unit_of(at: Place, row: u32) -> u32 {
  return group_first_unit(at, min(at.row + row % BN, p.rows - 1u));
}

fn put_w(row: u32, w: W32) {
  if (row >= W_ROWS) { return; }
  let to = row * 8u;
  let turn = row & 7u;
  ws[to + turn] = w.v0;
  ws[to + (turn ^ 1u)] = w.v1;
  ws[to + (turn ^ 2u)] = w.v2;
  ws[to + (turn ^ 3u)] = w.v3;
  ws[to + (turn ^ 4u)] = w.v4;
  ws[to + (turn ^ 5u)] = w.v5;
  ws[to + (turn ^ 6u)] = w.v6;
  ws[to + (turn ^ 7u)] = w.v7;
}

// Adds the products of vector k; the thread's rows are tn and every 8th after it. Row by row: few vectors are held at once.
fn multiply(x: Inputs, tn: u32, k: u32, sums: ptr<function, Sums>) {
#for r W_RN
  let w$r = ws[(tn + $ru * 8u) * 8u + (k ^ tn)];
  (*sums)[$i][$r] += dot(x[$i], w$r);
#endfor
}

// Writes the sums of the m-th place of the tile.
fn store(at: Place, m: u32, tn: u32, sums: RowSums) {
  if (m >= at.count) { return; }
  let to = group_output(at, m);
  let row$j = at.row + tn + $ju * 8u;
  if (row$j < p.rows) { y[to + row$j] = with_residual(to + row$j, finished(sums[$j], sums[W_RN - RN + $j])); }
}
