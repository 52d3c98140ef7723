// The common parts of gemm and gemm_eight: a tile of W in workgroup memory, and a thread's sums for RM tokens and RN rows of W. In a pair
// the RN rows of the second weight follow, so that a thread has W_RN rows in all.
#number RN W_RN W_ROWS BN  // rows of W of a thread, rows that a thread multiplies, rows that a workgroup dequantises, rows of W in a tile
#each i RM
#each j RN
alias Value = f32;
alias Out = f32;
#import gemm_place

// The distance between two tokens of a thread.
const TM = WG / 8u;

alias Inputs = array<vec4<f32>, RM>;      // 4 columns of a thread's tokens
alias RowSums = array<f32, W_RN>;
alias Sums = array<RowSums, RM>;

// The tile of W: (W_ROWS, vector of 4 columns). Vector c of row r lies at c ^ (r & 7), so that 8 neighbouring rows are in different banks.
var<workgroup> ws: array<vec4<f32>, W_ROWS * 8u>;

// The weights of `unit` for a row of the tile. Rows from BN on are those of the second weight.
#ifdef u_q
#import UP as u
fn dequantised(row: u32, unit: u32) -> W32 {
  if (row >= BN) { return u_unit(unit, p.u_sub); }
  return w_unit(unit, p.sub);
}
#else
fn dequantised(row: u32, unit: u32) -> W32 { return w_unit(unit, p.sub); }
#endif

// The first unit of a row of the tile. Behind the last row of W it is that of the last row.
fn unit_of(at: Tile, row: u32) -> u32 {
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

// Adds the products of vector k of the columns. A thread's rows are tn and every 8th after it, loaded one by one to save registers.
fn multiply(x: Inputs, tn: u32, k: u32, sums: ptr<function, Sums>) {
#for r W_RN
  let w$r = ws[(tn + $ru * 8u) * 8u + (k ^ tn)];
  (*sums)[$i][$r] += dot(x[$i], w$r);
#endfor
}

// Writes a thread's sums of place m of the tile.
fn store(at: Tile, m: u32, tn: u32, sums: RowSums) {
  if (m >= at.count) { return; }
  let to = group_output(at, m);
  let row$j = at.row + tn + $ju * 8u;
  if (row$j < p.rows) { y[to + row$j] = with_residual(to + row$j, finished(sums[$j], sums[W_RN - RN + $j])); }
}
