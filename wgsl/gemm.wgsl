// y = x W^T (+ residual) for many tokens, or with a second weight silu(x W^T) * (x U^T), in f32: the products of a prompt where there
// are no cooperative matrices, and the router's logits everywhere.
//
// x (tokens, x_stride), W (groups, rows, 32 * units), y (tokens, y_stride). Group g of W (a head) reads x from
// g * x_group_stride on. With `tiles` the groups are experts, and a tile of tokens is one of the list by expert (see expert_rows), of
// USED experts a token (1 else): GATHER reads the rows of x by token, SCATTER writes the rows of y by slot.
// With `row_units` the groups are parts of the columns instead, p.units of each row, and y (parts, tokens, y_stride) holds sums that
// the next kernel adds up: for products of few rows, whose workgroups would not fill a device.
// Division: a workgroup owns BM tokens and BN rows; in steps of 32 columns it moves a tile of x and one of W, dequantised, to
// workgroup memory, from which each thread multiplies RM tokens by RN rows. Threads that differ in their row lie side by side:
// a subgroup reads few rows of x.
// Bound by: reading workgroup memory, (RM + RN) / (RM RN) vectors per product of vectors.
#ifdef SCATTER
#input x: array<vec4<f32>> @floats(4 * ((TOKENS * USED - 1) * p.x_stride + (p.first_group + max(p.groups, GRID_Z) - 1) * p.x_group_stride + 8 * p.units))
#else
#input x: array<vec4<f32>> @floats(4 * ((TOKENS - 1) * p.x_stride + (p.first_group + max(p.groups, GRID_Z) - 1) * p.x_group_stride + 8 * p.units))
#endif
#import gemm_place
// What a thread finishes at once.
alias Sums = f32;
const TM = WG / 8u;

// Vectors of 4 columns; vector c of row r lies at c ^ (r & 7), so that 8 neighbouring rows lie in different banks.
var<workgroup> xs: array<vec4<f32>, BM * 8u>;
var<workgroup> ws: array<vec4<f32>, W_ROWS * 8u>;

#main
#import gemm_begin
#ifdef EIGHT
  // Subgroups of 8 lanes, which software has: a subgroup owns RM tokens, and lane i reads the row of the i-th for all others.
  // Software pays for every address: twice as fast on llvmpipe (11 GFLOP/s of a core instead of 6 in Mesa 22.3, 20 instead of
  // 14 in 26.2).
  let tm = subgroup;
  let tn = lane_id;
  let begin_x = input_row(at.first + min(tm + min(tn, RM - 1u) * TM, at.count - 1u)) * p.x_stride + (p.first_group + at.group) * p.x_group_stride;
#else
  let tm = t >> 3u;
  let tn = t & 7u;
  let turn_m = tm & 7u;
#for i X_LOADS
  let from$i = input_row(at.first + min(($iu * WG + t) >> 3u, at.count - 1u)) * p.x_stride + (p.first_group + at.group) * p.x_group_stride + (t & 7u);
#endfor
#endif
#for i W_LOADS
  let unit$i = first_unit(at, min(at.row + ($iu * WG + t) % BN, p.rows - 1u));
#endfor
#for i RM
#for j RN
  var sum$i_$j = 0.0;
#ifdef u_q
  var up$i_$j = 0.0;
#endif
#endfor
#endfor
#ifndef EIGHT
  // The next tiles are loaded while these are multiplied.
#for i X_LOADS
  var next_x$i = x[from$i];
#endfor
#for i W_LOADS
  var next_w$i = dequantised($iu * WG + t, unit$i);
#endfor
#endif
  var unit = 0u;
  loop {
    if (unit >= p.units) { break; }
    workgroupBarrier();
#ifndef EIGHT
#for i X_LOADS
    {
      let row = ($iu * WG + t) >> 3u;
      xs[row * 8u + ((t ^ row) & 7u)] = next_x$i;
    }
#endfor
#endif
#for i W_LOADS
    {
      let row = $iu * WG + t;
      if (row < W_ROWS) {
#ifdef EIGHT
        let w = dequantised(row, unit$i + unit);
#else
        let w = next_w$i;
#endif
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
    }
#endfor
    workgroupBarrier();
#ifndef EIGHT
    let next = min(unit + 1u, p.units - 1u);
#for i X_LOADS
    next_x$i = x[from$i + next * 8u];
#endfor
#for i W_LOADS
    next_w$i = dequantised($iu * WG + t, unit$i + next);
#endfor
#endif
    var k = 0u;
    loop {
      if (k >= 8u) { break; }
#ifdef EIGHT
      let own = x[begin_x + unit * 8u + k];
#endif
#for i RM
#ifdef EIGHT
      let x$i = subgroupBroadcast(own, $iu);
#else
      let x$i = xs[(tm + $iu * TM) * 8u + (k ^ turn_m)];
#endif
#endfor
#for j RN
      {
        let w = ws[(tn + $ju * 8u) * 8u + (k ^ tn)];
#ifdef u_q
        let u = ws[(BN + tn + $ju * 8u) * 8u + (k ^ tn)];
#endif
#for i RM
        sum$i_$j += dot(x$i, w);
#ifdef u_q
        up$i_$j += dot(x$i, u);
#endif
#endfor
      }
#endfor
      k += 1u;
    }
    unit += 1u;
  }
#for i RM
  {
    let m = tm + $iu * TM;
    if (m < at.count) {
      let to = output_index(at, m);
#for j RN
      {
        let row = at.row + tn + $ju * 8u;
        if (row < p.rows) {
#ifdef u_q
          y[to + row] = swiglu(sum$i_$j, up$i_$j);
#else
#ifdef residual
          y[to + row] = sum$i_$j + residual[to + row];
#else
          y[to + row] = sum$i_$j;
#endif
#endif
        }
      }
#endfor
    }
  }
#endfor
}

// A unit of the tile of W, of the second weight behind the first.
fn dequantised(row: u32, unit: u32) -> W32 {
#ifdef u_q
  if (row >= BN) { return u_unit(unit, p.u_sub); }
#endif
  return w_unit(unit, p.sub);
}
